//! The connection of a project to the shared edge: while it is open, the edge serves the project.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::message::{Answer, Greeting, Joining, Link, PROTOCOL, Request};
use super::place::Place;

/// The time that an edge may take to start, or to answer: it makes keys, and reads a new
/// configuration.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The time for which `eyelet list` and `eyelet stop` wait for an edge's greeting, and the first
/// for its answer: an edge says them at once.
const ASKED_TIMEOUT: Duration = Duration::from_secs(3);
/// The time for which a command waits for the line about memory.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(2);
/// The time that an edge may take to forget a project. The last one waits for the edge's end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// An edge may end just before its greeting. Then another one is started.
const TRIES: usize = 3;
/// Lines that come before an answer. More are not printed.
const SAID_MAX: usize = 64;

/// The lease of a project.
pub(crate) struct Lease {
    link: Link,
    /// The addresses at which the edge listens.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Events that came before an answer.
    early: VecDeque<LeaseEvent>,
}

/// An error that keeps a project from joining a shared edge.
pub(crate) enum JoinError {
    /// There is no folder for its socket, or it cannot be started: a project alone needs none.
    NoPlace(io::Error),
    /// The edge does not take the project.
    Refused(String),
}

/// A message of a shared edge that answers none.
pub(crate) enum LeaseEvent {
    /// A line to print.
    Said(String),
    /// To end, by `eyelet stop`.
    End,
    /// The edge has ended. The project is served no more.
    Lost,
}

impl Lease {
    /// Joins the edge for this authority. Starts it if there is none. Returns notes, too.
    pub(crate) async fn join(
        is_loopback: bool,
        joining: Joining,
    ) -> Result<(Self, Vec<String>), JoinError> {
        let place = Place::new(&joining.authority, is_loopback).map_err(JoinError::NoPlace)?;
        // An edge does not end while another process has it.
        let _lock = place.lock().await.map_err(JoinError::NoPlace)?;
        let failed = |error: io::Error| JoinError::Refused(format!("the shared edge: {error}"));
        let (mut link, greeting) = greeted(&place).await?;
        let mut notes = Vec::new();
        let own = Greeting::own();
        if greeting.version != own.version {
            notes.push(format!(
                "the shared edge is version {} (process {}), this program {}; it is replaced when \
                 its last project has ended",
                greeting.version, greeting.pid, own.version
            ));
        }
        link.send(&Request::Join(Box::new(joining))).await.map_err(failed)?;
        let mut lease = Self { link, addresses: Vec::new(), early: VecDeque::new() };
        match lease.answer().await.map_err(failed)? {
            Answer::Joined { addresses, notes: of_start } => {
                lease.addresses = addresses;
                notes.extend(of_start);
                Ok((lease, notes))
            }
            Answer::Failed(why) => Err(JoinError::Refused(why)),
            _ => Err(failed(ErrorKind::InvalidData.into())),
        }
    }

    /// Has the edge send requests there.
    pub(crate) async fn lead_to(&mut self, upstream: &str) -> Result<(), String> {
        let mut answer = self.ask(&Request::LeadTo(upstream.to_owned())).await;
        // Nobody waited for it any more.
        while matches!(answer, Ok(Answer::Memory(_))) {
            answer = self.answer().await;
        }
        match answer {
            Ok(Answer::Done) => Ok(()),
            Ok(Answer::Failed(why)) => Err(why),
            Ok(_) => Err("the shared edge answers something else".into()),
            Err(error) => Err(format!("the shared edge: {error}")),
        }
    }

    /// The memory of TLS, as a line.
    pub(crate) async fn memory(&mut self) -> String {
        match timeout(MEMORY_TIMEOUT, self.ask(&Request::Memory)).await {
            Ok(Ok(Answer::Memory(line))) => line,
            _ => "memory of TLS: the shared edge does not answer".into(),
        }
    }

    /// The next event. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> LeaseEvent {
        if let Some(event) = self.early.pop_front() {
            return event;
        }
        loop {
            match self.link.receive().await {
                Ok(Some(answer)) => {
                    if let Some(event) = event(answer) {
                        return event;
                    }
                }
                Ok(None) | Err(_) => return LeaseEvent::Lost,
            }
        }
    }

    /// Leaves the edge. Returns when it has forgotten the project.
    pub(crate) async fn leave(mut self) {
        let gone = async {
            self.link.finish().await?;
            while self.link.receive::<Answer>().await?.is_some() {}
            io::Result::Ok(())
        };
        // If this fails, the edge sees the end of the connection all the same.
        let _ = timeout(LEAVE_TIMEOUT, gone).await;
    }

    async fn ask(&mut self, request: &Request) -> io::Result<Answer> {
        self.link.send(request).await?;
        self.answer().await
    }

    async fn answer(&mut self) -> io::Result<Answer> {
        loop {
            let answer = received(&mut self.link).await?;
            match answer {
                Answer::Said(_) | Answer::End => {
                    if self.early.len() < SAID_MAX {
                        self.early.extend(event(answer));
                    }
                }
                answer => return Ok(answer),
            }
        }
    }
}

fn event(answer: Answer) -> Option<LeaseEvent> {
    match answer {
        Answer::Said(line) => Some(LeaseEvent::Said(line)),
        Answer::End => Some(LeaseEvent::End),
        _ => None,
    }
}

async fn received<T: DeserializeOwned>(link: &mut Link) -> io::Result<T> {
    match timeout(ANSWER_TIMEOUT, link.receive()).await {
        Ok(Ok(Some(message))) => Ok(message),
        Ok(Ok(None)) => Err(io::Error::other("it has ended")),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(ErrorKind::TimedOut.into()),
    }
}

/// A connection to the edge of this place, and its greeting. Starts it if there is none.
async fn greeted(place: &Place) -> Result<(Link, Greeting), JoinError> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for _ in 0..TRIES {
        let stream = match place.connect().await.map_err(JoinError::NoPlace)? {
            Some(stream) => stream,
            None => {
                place.start().map_err(JoinError::NoPlace)?;
                continue;
            }
        };
        let mut link = Link::new(stream).map_err(JoinError::NoPlace)?;
        match received::<Greeting>(&mut link).await {
            Ok(greeting) if greeting.protocol == PROTOCOL => return Ok((link, greeting)),
            Ok(greeting) => return Err(JoinError::Refused(of_another_version(&greeting))),
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                return Err(JoinError::Refused(silent(link.pid, ANSWER_TIMEOUT)));
            }
            Err(error) => last = error,
        }
    }
    Err(JoinError::Refused(format!("the shared edge does not start: {last}")))
}

fn of_another_version(Greeting { version, pid, .. }: &Greeting) -> String {
    let own = env!("CARGO_PKG_VERSION");
    format!(
        "the shared edge of your other projects is Eyelet {version} (process {pid}), and this is \
         {own}, which cannot use it: end those projects, or all at once with `kill {pid}`, and \
         start them again; or give this one a port of its own with --listen 127.0.0.1:8444"
    )
}

/// Asks all shared edges of this user. Returns what each says, or why it says nothing.
pub(super) async fn ask_all(request: &Request) -> Vec<Result<Answer, String>> {
    let mut answers = Vec::new();
    for place in Place::all() {
        // A socket without a process is left of one that was killed.
        let Ok(Some(stream)) = place.connect().await else { continue };
        answers.push(ask_one(stream, request).await);
    }
    answers
}

async fn ask_one(stream: tokio::net::UnixStream, request: &Request) -> Result<Answer, String> {
    let failed = |error: io::Error| format!("the shared edge: {error}");
    let mut link = Link::new(stream).map_err(failed)?;
    let of = link.pid;
    let greeting = timeout(ASKED_TIMEOUT, received(&mut link)).await;
    let greeting = greeting.map_err(|_| silent(of, ASKED_TIMEOUT))?;
    let Greeting { protocol, version, pid } = greeting.map_err(failed)?;
    if protocol != PROTOCOL {
        return Err(format!(
            "process {pid} is a shared edge of Eyelet {version}, which this one does not \
             understand; ask it by that version"
        ));
    }
    link.send(request).await.map_err(failed)?;
    let answer = received(&mut link);
    match request {
        // The project may take its time to end.
        Request::Stop(_) => answer.await.map_err(failed),
        _ => match timeout(ASKED_TIMEOUT, answer).await {
            Ok(answer) => answer.map_err(failed),
            Err(_) => Err(silent(pid, ASKED_TIMEOUT)),
        },
    }
}

/// Says which edge does not answer, and what to do.
fn silent(pid: u32, waited: Duration) -> String {
    let seconds = waited.as_secs();
    format!(
        "the shared edge (process {pid}) has not answered for {seconds} s: if something has \
         stopped it, `kill -CONT {pid}` has it go on; `kill -KILL {pid}` ends it, and what it \
         serves"
    )
}

/// True if these are names of this machine only.
pub(crate) fn is_loopback(names: &[&str]) -> bool {
    names.iter().all(|name| eyelet_config::is_loopback_name(name))
}

/// The folder that `list` shows for a project that is started here.
pub(crate) fn own_folder() -> std::path::PathBuf {
    std::env::current_dir().unwrap_or_else(|_| Path::new("/").to_owned())
}

//! The process of the shared edge: it takes projects in by its socket, serves them by one
//! configuration, which it replaces in place, and ends when the last one has left.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener as StdListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use eyelet_sys::child::Signal;
use eyelet_sys::{process, socket};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tracing::Level;

use super::message::{Answer, Greeting, Joining, Link, ProjectKind, Request};
use super::place::Place;
use super::projects::{Project, Projects};
use crate::command::run::failed;
use crate::command::run::memory::Memory;
use crate::command::run::missing::{Alarms, Lookout};
use crate::command::run::plan::Plan;
use crate::command::run::ports::{self, Ports};
use eyelet_process::diagnostics;
use eyelet_process::serve::{self, Running};
use eyelet_process::signals::Signals;

/// Connections at the socket: a project has one, and so has each `eyelet list`.
const CONNECTIONS_MAX: usize = 256;
/// Connections that wait to be accepted.
const QUEUE_MAX: i32 = 128;
/// Requests that wait while one is answered. Their connections wait, too.
const REQUESTS_MAX: usize = 16;
/// Answers and lines that wait for a project to read them. More are lost.
const ANSWERS_MAX: usize = 64;
/// Logged lines that wait for the event loop. More are lost.
const LINES_MAX: usize = 64;
/// The interval at which earlier configurations are freed, and the workers are checked.
const TICK: Duration = Duration::from_secs(1);
/// The time for which an edge waits for its first project.
const FIRST_TIMEOUT: Duration = Duration::from_secs(30);
/// The time that the last answers may take.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the edge whose listening socket is the standard input.
pub fn serve(socket: PathBuf) -> ExitCode {
    match begin(Place::of_socket(socket)) {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody reads it.
        Err(_) => ExitCode::FAILURE,
    }
}

/// Has lines of the log printed by all projects.
struct ToProjects(Sender<String>);

impl Write for ToProjects {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for line in String::from_utf8_lossy(bytes).lines() {
            // What is too much is lost.
            let _ = self.0.try_send(line.to_owned());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn begin(place: Place) -> Result<(), Box<dyn Error>> {
    // Ctrl-C and the end of the terminal are for the project that was started there.
    process::leave_terminal()?;
    let listener = StdListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    process::close_stdin()?;
    // Clients ask the kernel who listens: from now on it is this process, not the one that made it.
    socket::listen(&listener, QUEUE_MAX)?;
    listener.set_nonblocking(true)?;
    let (sender, said) = channel(LINES_MAX);
    let diagnostics = diagnostics::start_to(Level::WARN, ToProjects(sender))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let listener = UnixListener::from_std(listener)?;
        let signals = Signals::new()?;
        let (heard, requests) = channel(REQUESTS_MAX);
        let edge = SharedEdge {
            place,
            projects: Projects::default(),
            connections: HashMap::new(),
            tasks: JoinSet::new(),
            heard,
            leaving: Vec::new(),
            stops: Vec::new(),
            lookouts: HashMap::new(),
            serving: None,
            is_behind: false,
            next_id: 0,
            began: Instant::now(),
            was_joined: false,
        };
        edge.run(listener, signals, (requests, said)).await
    });
    diagnostics.finish();
    done
}

/// A message of a connection.
enum Heard {
    Request(Request),
    /// Its other end is closed.
    Gone,
}

/// A connection at the socket.
struct Connection {
    pid: u32,
    answers: Sender<Answer>,
}

struct SharedEdge {
    place: Place,
    projects: Projects,
    connections: HashMap<u64, Connection>,
    tasks: JoinSet<()>,
    /// Given to each connection's task.
    heard: Sender<(u64, Heard)>,
    /// Connections whose other end is closed.
    leaving: Vec<u64>,
    /// The ones who wait for the end of a project: the project's connection, and the one that
    /// waits.
    stops: Vec<(u64, u64)>,
    /// The tasks that look for applications that run already, by the project's connection.
    lookouts: HashMap<u64, (JoinHandle<()>, Alarms)>,
    serving: Option<Serving>,
    /// A project that has left is still served, because a configuration without it failed.
    is_behind: bool,
    next_id: u64,
    began: Instant,
    was_joined: bool,
}

/// The edge that serves the projects.
struct Serving {
    running: Running,
    plan: Plan,
    memory: Memory,
}

impl SharedEdge {
    async fn run(
        mut self,
        listener: UnixListener,
        mut signals: Signals,
        (mut requests, mut said): (Receiver<(u64, Heard)>, Receiver<String>),
    ) -> Result<(), Box<dyn Error>> {
        let mut tick = tokio::time::interval(TICK);
        let mut is_ending = false;
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.take_in(stream),
                    // No free descriptor: it would fail again at once.
                    Err(_) => tokio::time::sleep(TICK).await,
                },
                Some((id, heard)) = requests.recv() => match heard {
                    Heard::Request(request) => self.obey(id, request),
                    Heard::Gone => self.forget(id),
                },
                Some(line) = said.recv() => self.say_logged(&line),
                signal = signals.next() => {
                    is_ending |= matches!(signal, Signal::TERM | Signal::INT);
                }
                _ = tick.tick() => {
                    self.tasks_done();
                    self.note_failed();
                    if self.is_behind {
                        // It was said once. What is wrong may be mended.
                        let _ = self.apply(&self.projects.clone(), false);
                    }
                    if !is_ending && let Some(thread) = self.tend() {
                        self.say(&format!("eyelet: {thread} of the shared edge has ended"));
                        is_ending = true;
                    }
                }
            }
            // Who joins has the lock until the edge has answered: it is tried at each turn.
            if (is_ending || self.is_over())
                && let Some(lock) = self.place.try_lock()?
            {
                return self.end(lock).await;
            }
            // The last one that leaves hears of the edge's end instead.
            for id in self.leaving.drain(..) {
                self.connections.remove(&id);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.projects.is_empty() && (self.was_joined || self.began.elapsed() > FIRST_TIMEOUT)
    }

    /// Ends the connections of clients, then those at the socket.
    async fn end(mut self, lock: File) -> Result<(), Box<dyn Error>> {
        if let Some(Serving { running, .. }) = self.serving.take() {
            running.drain();
        }
        self.place.remove()?;
        // Each task sends what it has, and ends.
        self.connections.clear();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = timeout(FINISH_TIMEOUT, all).await;
        drop(lock);
        Ok(())
    }

    /// Reaps the tasks of closed connections.
    fn tasks_done(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }

    /// Has each project print which of its requests failed, and look at its upstream's scheme.
    fn note_failed(&self) {
        for failures in failed::take() {
            let Some(owner) = self.projects.owner(&failures.name) else { continue };
            if let Some((_, alarms)) = self.lookouts.get(&owner.id) {
                alarms.note(&failures.name);
            }
            self.answer(owner.id, Answer::Said(failures.line));
        }
    }

    /// Returns the thread that has ended by itself, if there is one.
    fn tend(&mut self) -> Option<&'static str> {
        let running = &mut self.serving.as_mut()?.running;
        running.tidy();
        running.log_lost_threads();
        running.admin.tend();
        running.died()
    }

    /// Prints a line of the log in the terminals of those whose upstream it is about, else of all.
    fn say_logged(&self, line: &str) {
        let is_meant = |project: &&Project| project.has_upstream_in(line);
        let meant: Vec<u64> = self.projects.iter().filter(is_meant).map(|it| it.id).collect();
        match (line.split_once(" WARN "), &*meant) {
            (Some((_, text)), [_, ..]) => {
                let answer = |id: &u64| self.answer(*id, Answer::Said(format!("eyelet: {text}")));
                meant.iter().for_each(answer);
            }
            _ => self.say(line),
        }
    }

    /// Prints a line in each project's terminal.
    fn say(&self, line: &str) {
        for (id, connection) in &self.connections {
            if self.projects.of_connection(*id).is_some() {
                let _ = connection.answers.try_send(Answer::Said(line.to_owned()));
            }
        }
    }

    fn answer(&self, id: u64, answer: Answer) {
        if let Some(connection) = self.connections.get(&id) {
            // One that does not read loses its answer.
            let _ = connection.answers.try_send(answer);
        }
    }

    fn take_in(&mut self, stream: UnixStream) {
        let link = match Link::new(stream) {
            Ok(link) if self.connections.len() < CONNECTIONS_MAX => link,
            _ => return,
        };
        let id = self.next_id;
        self.next_id += 1;
        let (answers, to_send) = channel(ANSWERS_MAX);
        self.connections.insert(id, Connection { pid: link.pid, answers });
        self.tasks.spawn(attend(id, link, to_send, self.heard.clone()));
    }

    fn obey(&mut self, id: u64, request: Request) {
        let answer = match request {
            Request::Join(joining) => self.join(id, *joining),
            Request::LeadTo(upstream) => self.lead_to(id, &upstream),
            Request::Memory => {
                let serving = self.serving.as_ref();
                Answer::Memory(serving.map_or(String::new(), |serving| serving.memory.report()))
            }
            Request::List => {
                let address = self.serving.as_ref().and_then(Serving::address);
                Answer::Listed(address.map_or(Vec::new(), |address| self.projects.listed(address)))
            }
            Request::Stop(name) => match self.stop(id, &name) {
                Some(answer) => answer,
                None => return,
            },
        };
        self.answer(id, answer);
    }

    fn join(&mut self, id: u64, joining: Joining) -> Answer {
        self.was_joined = true;
        let Some(pid) = self.connections.get(&id).map(|connection| connection.pid) else {
            return Answer::Done;
        };
        if self.projects.of_connection(id).is_some() {
            return Answer::Failed("the project is served already".into());
        }
        let (kind, first) = (joining.kind, joining.authority.clone());
        let (rules, kept) = (joining.rules.clone(), joining.kept.clone());
        let mut projects = self.projects.clone();
        let mut notes = Vec::new();
        let applied = projects.add((id, pid), joining).and_then(|()| {
            // An application that is started may want port 80 itself.
            let redirects = kind != ProjectKind::Run && projects.has_http();
            let started = self.serving.is_none();
            match started {
                true => self.start(&projects, redirects, (first, &kept), &mut notes),
                false => self.apply(&projects, redirects),
            }
        });
        if let Err(why) = applied {
            return Answer::Failed(why);
        }
        self.projects = projects;
        let addresses = self.serving.as_ref().map_or(Vec::new(), |it| it.running.addresses());
        if kind == ProjectKind::Proxy {
            self.look_for(id, Lookout::start(&rules, addresses.clone()));
        }
        Answer::Joined { addresses, notes }
    }

    /// Has a project print what is found of its applications.
    fn look_for(&mut self, id: u64, mut lookout: Lookout) {
        let Some(answers) = self.connections.get(&id).map(|it| it.answers.downgrade()) else {
            return;
        };
        let alarms = lookout.alarms.clone();
        let task = tokio::spawn(async move {
            while let Some(line) = lookout.lines.recv().await {
                let Some(answers) = answers.upgrade() else { return };
                let _ = answers.try_send(Answer::Said(format!("eyelet: {line}")));
            }
            // The looks end with it.
            drop(lookout);
        });
        if let Some((before, _)) = self.lookouts.insert(id, (task, alarms)) {
            before.abort();
        }
    }

    fn start(
        &mut self,
        projects: &Projects,
        redirects: bool,
        (authority, kept): (PathBuf, &[u16]),
        notes: &mut Vec<String>,
    ) -> Result<(), String> {
        let rules = projects.rules();
        let names: Vec<&str> = rules.iter().map(|rule| &*rule.site.name).collect();
        let ports = Ports::choose(None, &names, kept, |taken| notes.push(taken.to_string()));
        let ports = ports.map_err(|error| error.to_string())?;
        let mut plan = Plan::shared(&ports, authority);
        plan.follow(rules, projects.permits());
        let start = |plan: &Plan| serve::start(plan.config()?).map_err(|error| error.to_string());
        let running = match redirects {
            true => plan.apply(ports::free_http, start)?,
            false => start(&plan)?,
        };
        self.serving = Some(Serving { running, plan, memory: Memory::at_start() });
        Ok(())
    }

    /// Serves these projects from now on. After an error all is as before.
    fn apply(&mut self, projects: &Projects, redirects: bool) -> Result<(), String> {
        let Some(serving) = &mut self.serving else { return Ok(()) };
        let mut plan = serving.plan.clone();
        plan.follow(projects.rules(), projects.permits());
        let running = &mut serving.running;
        let mut reload = |plan: &Plan| {
            let prepared = running.preparation().run(plan.config()?);
            let prepared = prepared.map_err(|error| error.to_string())?;
            running.reload(prepared).map(drop).map_err(|error| error.to_string())
        };
        let applied = match redirects {
            true => plan.apply(ports::free_http, reload),
            false => reload(&plan),
        };
        applied.map_err(|why| blamed(projects, plan.clone(), why))?;
        serving.plan = plan;
        self.is_behind = false;
        Ok(())
    }

    fn lead_to(&mut self, id: u64, upstream: &str) -> Answer {
        let mut projects = self.projects.clone();
        let changes = projects.lead_to(id, upstream);
        let may_redirect = self.serving.as_ref().is_some_and(|it| it.plan.may_redirect());
        let redirects = may_redirect && projects.has_http();
        if (changes || redirects)
            && let Err(why) = self.apply(&projects, redirects)
        {
            return Answer::Failed(why);
        }
        self.projects = projects;
        if (changes || !self.lookouts.contains_key(&id))
            && let Some(project) = self.projects.of_connection(id)
        {
            self.look_for(id, Lookout::of_command(&project.rules));
        }
        Answer::Done
    }

    /// Ends the project that has this name. `None`: the answer comes when it has ended.
    fn stop(&mut self, id: u64, name: &str) -> Option<Answer> {
        let Some(project) = self.projects.owner(name) else {
            return Some(Answer::Failed(format!("no project has the name {name}")));
        };
        let (owner, kind) = (project.id, project.joining.kind);
        if kind == ProjectKind::Background {
            self.remove(owner);
            return Some(Answer::Done);
        }
        self.stops.push((owner, id));
        self.answer(owner, Answer::End);
        None
    }

    /// Forgets a connection, and its project unless that stays.
    fn forget(&mut self, id: u64) {
        let kind = self.projects.of_connection(id).map(|project| project.joining.kind);
        if kind.is_some_and(|kind| kind != ProjectKind::Background) {
            self.remove(id);
        }
        self.leaving.push(id);
    }

    fn remove(&mut self, id: u64) {
        if let Some((task, _)) = self.lookouts.remove(&id) {
            task.abort();
        }
        let mut projects = self.projects.clone();
        projects.remove(id);
        // Without projects the edge ends.
        if !projects.is_empty()
            && let Err(error) = self.apply(&projects, false)
        {
            self.is_behind = true;
            self.say(&format!("eyelet: a project that has ended is still served: {error}"));
        }
        self.projects = projects;
        let (ended, waiting) =
            std::mem::take(&mut self.stops).into_iter().partition(|(project, _)| *project == id);
        self.stops = waiting;
        let ended: Vec<(u64, u64)> = ended;
        ended.iter().for_each(|(_, client)| self.answer(*client, Answer::Done));
    }
}

impl Serving {
    fn address(&self) -> Option<std::net::SocketAddr> {
        self.running.addresses().first().copied()
    }
}

/// Names the project because of which a configuration of all fails: a file of it may be gone.
fn blamed(projects: &Projects, mut plan: Plan, why: String) -> String {
    for project in projects.iter() {
        plan.follow(project.rules.clone(), projects.permits());
        if plan.config().is_err() {
            return format!("the project in {}: {why}", project.joining.folder.display());
        }
    }
    why
}

/// Passes messages between a connection and the edge, until the edge has nothing more to send.
async fn attend(
    id: u64,
    mut link: Link,
    mut answers: Receiver<Answer>,
    heard: Sender<(u64, Heard)>,
) {
    let mut is_open = link.send(&Greeting::own()).await.is_ok();
    while is_open {
        tokio::select! {
            request = link.receive() => match request {
                Ok(Some(request)) => {
                    is_open = heard.send((id, Heard::Request(request))).await.is_ok();
                }
                Ok(None) | Err(_) => break,
            },
            answer = answers.recv() => match answer {
                Some(answer) => is_open = link.send(&answer).await.is_ok(),
                None => return,
            },
        }
    }
    let _ = heard.send((id, Heard::Gone)).await;
    // The other end may wait for this end to be closed.
    while answers.recv().await.is_some() {}
}

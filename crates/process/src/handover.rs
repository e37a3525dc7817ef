//! The messages between the two processes of an upgrade before connections move.
//!
//! ```text
//! earlier process                       new process
//! HELLO, SOCKETS, TICKETS, BEGIN ->     reads its file, binds, warms up
//!                                <-     READY, or FAILED with the reason
//! SERVE                          ->     accepts
//!                                <-     SERVING
//! VERDICTS on what is held       ->     remembers them
//! FLOWS of QUIC                  ->     serves them, and reads none of their listening sockets
//! FLOWS_END                      ->     reads datagrams
//! BATCH                          ->     reads the connections and does not touch them
//!                                <-     RECEIVED with those that it has dropped, or REFUSED
//! COMMIT                         ->     owns the others from now on
//! PART, the first of a group     ->     keeps room for its sockets
//!                                <-     RECEIVED, which refuses it if there is none
//! PART for its sockets           ->     reads it when it is whole
//!                                <-     RECEIVED, or REFUSED
//! COMMIT                         ->
//! VERDICTS that were given meanwhile   ->
//! PREDECESSOR for each older process   ->
//! SETTLED                        ->     may be replaced in turn
//! BATCH, and so on, of what comes to rest later
//!                                <-     DRAIN
//! END                            ->
//! ```
//!
//! After SETTLED the earlier process lingers: it serves what cannot move. The new process has the
//! channel, and gives it to the one that replaces it by PREDECESSOR, so that the newest process has
//! a channel to each older one.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use eyelet_config::ListenAddress;
use eyelet_engine::departure::BATCH_DESCRIPTORS_MAX;
use eyelet_hold::{HandedVerdict, HoldDecision, HoldKey, RequestKey};
use eyelet_sys::channel::{Channel, DESCRIPTORS_MAX, Received};
use eyelet_sys::socket_file::Identity;
use eyelet_telemetry::held::{HeldBy, HeldVerdict};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use eyelet_edge::snapshot::listen::{Asked, Bound, text};

/// Kinds of messages.
pub mod kind {
    /// [`HandoverHello`](super::HandoverHello).
    pub const HELLO: u8 = 1;
    /// Listening sockets, in the order of the hello.
    pub const SOCKETS: u8 = 2;
    /// The keys of session tickets, which are secret.
    pub const TICKETS: u8 = 3;
    /// The state of the earlier process is complete.
    pub const BEGIN: u8 = 4;
    /// [`HandoverReady`](super::HandoverReady).
    pub const READY: u8 = 5;
    /// [`Failed`](super::Failed).
    pub const FAILED: u8 = 6;
    /// [`Serve`](super::Serve).
    pub const SERVE: u8 = 7;
    /// The new process accepts.
    pub const SERVING: u8 = 8;
    /// Connections.
    pub const BATCH: u8 = 9;
    /// [`HandoverReceived`](super::HandoverReceived).
    pub const RECEIVED: u8 = 10;
    /// The connections cannot be read, for this reason. All are dropped.
    pub const REFUSED: u8 = 11;
    /// Those that were not refused are the new process's.
    pub const COMMIT: u8 = 12;
    /// Nothing follows.
    pub const END: u8 = 13;
    /// [`LingeringProcess`](super::LingeringProcess), and its channel.
    pub const PREDECESSOR: u8 = 14;
    /// The earlier process has let its listening sockets go, and takes no connection back.
    pub const SETTLED: u8 = 15;
    /// Too many earlier processes linger, or the service ends: drain.
    pub const DRAIN: u8 = 16;
    /// A part of a group that one BATCH does not carry.
    pub const PART: u8 = 17;
    /// [`HandoverVerdict`](super::HandoverVerdict)s on what is held: some of them.
    pub const VERDICTS: u8 = 18;
    /// Flows of QUIC of one listening socket. There is no answer.
    pub const FLOWS: u8 = 19;
    /// All flows have come: datagrams are the new process's to read.
    pub const FLOWS_END: u8 = 20;
}

/// The time that one message may take to be sent, and that the answer to a short one may take. The
/// other process has nothing else to do, but the machine may be busy.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(20);

/// The state of the earlier process.
#[derive(Debug, Serialize, Deserialize)]
pub struct HandoverHello {
    /// The version of the earlier program, for messages.
    pub program: String,
    /// Its listeners.
    pub listeners: Vec<Handed>,
    /// Its process id, if it lingers: it reads DRAIN. Earlier programs do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lingers: Option<u32>,
    /// It sends FLOWS and FLOWS_END to a process that reads their version. Earlier programs do not.
    /// A recording may have them, and does not say so: its reader awaits them anyway.
    #[serde(default)]
    pub hands_flows: bool,
    /// The addresses of its upstreams' names: what it hands over counts at the name that has its
    /// address. Earlier programs do not say them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub upstreams: BTreeMap<String, Vec<SocketAddr>>,
}

/// A listener of the earlier process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    /// Its address; port 0 is resolved.
    #[serde(with = "text")]
    pub address: ListenAddress,
    /// The purpose of its sockets.
    pub asked: Asked,
    /// Device and inode of a Unix socket's file. Earlier programs have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<Identity>,
    /// The number of its sockets.
    pub sockets: usize,
}

/// An older process, which lingers.
#[derive(Debug, Serialize, Deserialize)]
pub struct LingeringProcess {
    /// Its process id, if it reads DRAIN.
    pub pid: Option<u32>,
    /// DRAIN was sent.
    pub is_told: bool,
}

/// The new process can serve.
#[derive(Debug, Serialize, Deserialize)]
pub struct HandoverReady {
    /// The listeners that it accepts from, by their index in the hello.
    pub kept: Vec<usize>,
    /// The versions of the format of connections that it reads. Earlier programs do not say it.
    #[serde(default = "first_format")]
    pub formats: Vec<u16>,
    /// Most descriptors of a batch: so many stay free for one. Earlier programs do not say it.
    #[serde(default = "largest_batch")]
    pub batch_descriptors: usize,
    /// Its process id. Earlier programs do not say it.
    #[serde(default)]
    pub pid: Option<u32>,
    /// It reads PREDECESSOR and SETTLED. Earlier programs do not.
    #[serde(default)]
    pub knows_predecessors: bool,
    /// It reads VERDICTS. Earlier programs do not.
    #[serde(default)]
    pub reads_verdicts: bool,
    /// Warnings about the file, in whole lines.
    pub warnings: String,
}

/// A verdict of the earlier process.
#[derive(Debug, Serialize, Deserialize)]
pub struct HandoverVerdict {
    pub rule: String,
    pub name: String,
    pub port: u16,
    /// The method and the path, if it is about requests.
    pub request: Option<(String, String)>,
    /// The names of the verdict and of who gave it.
    pub verdict: String,
    pub by: String,
    /// The host of the client that it was about first. Earlier programs do not say it.
    #[serde(default)]
    pub host: Option<IpAddr>,
    /// Milliseconds for which it still holds. 0: it is for those who wait.
    pub left_ms: u64,
}

/// Verdicts of one message: 250 KB at most.
const VERDICTS_MAX: usize = 100;

/// Sends verdicts.
///
/// # Errors
/// [`HandoverError`].
pub fn tell_verdicts(
    channel: &mut Channel,
    verdicts: Vec<HandedVerdict>,
) -> Result<(), HandoverError> {
    let mut all = verdicts.into_iter().map(HandoverVerdict::from);
    loop {
        let some: Vec<HandoverVerdict> = all.by_ref().take(VERDICTS_MAX).collect();
        if some.is_empty() {
            return Ok(());
        }
        tell(channel, kind::VERDICTS, &some)?;
    }
}

impl From<HandedVerdict> for HandoverVerdict {
    fn from(HandedVerdict { key, decision, host, left_ms }: HandedVerdict) -> Self {
        let HoldKey { rule, name, port, request } = key;
        let request = request.map(|request| (request.method.into(), request.path.into()));
        let (verdict, by) = (decision.verdict.name().into(), decision.by.name().into());
        Self { rule: rule.into(), name: name.into(), port, request, verdict, by, host, left_ms }
    }
}

impl HandoverVerdict {
    /// The verdict. `None`: a later program has words that this one does not know.
    pub fn handed(self) -> Option<HandedVerdict> {
        let Self { rule, name, port, request, verdict, by, host, left_ms } = self;
        let request = match request {
            Some((method, path)) => Some(Box::new(RequestKey::new(&method, &path)?)),
            None => None,
        };
        let key = HoldKey { rule: rule.into(), name: name.into(), port, request };
        let verdict = HeldVerdict::ALL.iter().copied().find(|one| one.name() == verdict)?;
        let by = HeldBy::ALL.iter().copied().find(|one| one.name() == by)?;
        Some(HandedVerdict { key, decision: HoldDecision { verdict, by }, host, left_ms })
    }
}

fn first_format() -> Vec<u16> {
    vec![1]
}

fn largest_batch() -> usize {
    BATCH_DESCRIPTORS_MAX
}

/// The new process has read a batch.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HandoverReceived {
    /// The indexes of the connections that it does not take, in ascending order. It has dropped
    /// them: they stay the earlier process's.
    pub refused: Vec<usize>,
    /// The reason why it does not take the first of them.
    pub why: Option<String>,
}

/// The new process cannot serve, and ends.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failed {
    /// Its exit status: 2 if the file has mistakes.
    pub code: u8,
    /// The mistakes or the reason, in whole lines.
    pub text: String,
}

/// The new process may accept.
#[derive(Debug, Serialize, Deserialize)]
pub struct Serve {
    /// The number of the first connection of each worker.
    pub first_id: u64,
}

/// The reason why the two processes do not understand each other.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The channel is closed or too slow, or something else is wrong with it.
    #[error("{}", say(.0))]
    Channel(#[from] io::Error),
    /// A part that a service manager keeps cannot be written or read.
    #[error("{}", say_stored(.0))]
    Stored(io::Error),
    /// The other process says something that does not come now.
    #[error("message {0} came, and another was due")]
    Kind(u8),
    /// A message is not as it should be.
    #[error("message {kind} cannot be read: {why}")]
    Content {
        /// Its kind.
        kind: u8,
        /// The reason.
        why: String,
    },
}

impl HandoverError {
    /// This error where no other process is at fault, but what a service manager keeps.
    pub fn of_store(self) -> Self {
        match self {
            Self::Channel(error) => Self::Stored(error),
            other => other,
        }
    }

    /// True if the other process has closed its end of the channel.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Channel(error) if is_closed(error))
    }
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    // A process that ends without reading all that was sent resets the channel.
    [UnexpectedEof, BrokenPipe, ConnectionReset].contains(&error.kind())
}

fn say(error: &io::Error) -> String {
    match error.kind() {
        _ if is_closed(error) => "the other process has ended".into(),
        io::ErrorKind::TimedOut => "the other process is too slow".into(),
        _ => error.to_string(),
    }
}

fn say_stored(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the state ends too early".into(),
        io::ErrorKind::TimedOut => "a socket that holds others is too slow".into(),
        _ => error.to_string(),
    }
}

/// A message and its body, which may be secret.
pub type Message = (Received, Zeroizing<Vec<u8>>);

/// Sends a message whose body is a value.
///
/// # Errors
/// [`HandoverError`].
pub fn tell(channel: &mut Channel, kind: u8, value: &impl Serialize) -> Result<(), HandoverError> {
    Ok(channel.send(kind, &body(kind, value)?, &[], MESSAGE_TIMEOUT)?)
}

/// The body of a message of this kind whose body is a value.
///
/// # Errors
/// [`HandoverError`].
pub fn body(kind: u8, value: &impl Serialize) -> Result<Vec<u8>, HandoverError> {
    let content =
        |error: serde_json::Error| HandoverError::Content { kind, why: error.to_string() };
    serde_json::to_vec(value).map_err(content)
}

/// Sends a message without a body.
///
/// # Errors
/// [`HandoverError`].
pub fn signal(channel: &mut Channel, kind: u8) -> Result<(), HandoverError> {
    Ok(channel.send(kind, &[], &[], MESSAGE_TIMEOUT)?)
}

/// The state of a process that ends, besides its listeners and connections.
pub struct OwnState<'a> {
    /// The keys of its tickets, which are secret.
    pub tickets: &'a [u8],
    /// It sends its flows of QUIC.
    pub hands_flows: bool,
    /// The addresses of its upstreams' names.
    pub upstreams: &'a BTreeMap<String, Vec<SocketAddr>>,
}

/// Sends what a process has besides connections: HELLO, SOCKETS, TICKETS.
///
/// # Errors
/// [`HandoverError`].
pub fn hand_state(
    listeners: &[Bound],
    OwnState { tickets, hands_flows, upstreams }: OwnState<'_>,
    mut send: impl FnMut(u8, &[u8], &[BorrowedFd<'_>]) -> io::Result<()>,
) -> Result<(), HandoverError> {
    let handed = listeners.iter().map(|bound| Handed {
        address: bound.address.clone(),
        asked: bound.asked.clone(),
        file: bound.file.as_ref().map(|file| file.identity()),
        sockets: bound.distinct().count(),
    });
    let program = String::from(env!("CARGO_PKG_VERSION"));
    let lingers = Some(std::process::id());
    let listed = handed.collect();
    let upstreams = upstreams.clone();
    let hello = HandoverHello { program, listeners: listed, lingers, hands_flows, upstreams };
    send(kind::HELLO, &body(kind::HELLO, &hello)?, &[])?;
    for bound in listeners {
        let sockets: Vec<BorrowedFd<'_>> = bound.distinct().map(|s| s.as_fd()).collect();
        for sockets in sockets.chunks(DESCRIPTORS_MAX) {
            send(kind::SOCKETS, &[], sockets)?;
        }
    }
    Ok(send(kind::TICKETS, tickets, &[])?)
}

/// Receives the next message and its body.
///
/// # Errors
/// [`HandoverError`].
pub fn receive(channel: &mut Channel, within: Option<Duration>) -> Result<Message, HandoverError> {
    let mut body = Zeroizing::default();
    let received = channel.receive(&mut body, within)?;
    Ok((received, body))
}

/// Receives a message of this kind without a body.
///
/// # Errors
/// [`HandoverError`].
pub fn expect(channel: &mut Channel, kind: u8, within: Duration) -> Result<(), HandoverError> {
    match receive(channel, Some(within))? {
        (received, _) if received.kind == kind => Ok(()),
        (received, _) => Err(HandoverError::Kind(received.kind)),
    }
}

/// The value in a message's body.
///
/// # Errors
/// [`HandoverError`].
pub fn read<T: DeserializeOwned>(
    received: &Received,
    kind: u8,
    body: &[u8],
) -> Result<T, HandoverError> {
    if received.kind != kind {
        return Err(HandoverError::Kind(received.kind));
    }
    // RECEIVED of earlier programs has no body.
    let body = if kind == kind::RECEIVED && body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body)
        .map_err(|error| HandoverError::Content { kind, why: error.to_string() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// An upgrade may begin in a program of before.
    #[test]
    fn what_earlier_programs_do_not_say_has_a_default() {
        let received = |kind| Received { kind, descriptors: Vec::new() };
        let body = br#"{"kept":[2],"warnings":""}"#;
        let ready: HandoverReady = read(&received(kind::READY), kind::READY, body).unwrap();
        assert_eq!((ready.formats, ready.pid, ready.knows_predecessors), (vec![1], None, false));
        assert!(!ready.reads_verdicts);
        assert_eq!(ready.batch_descriptors, BATCH_DESCRIPTORS_MAX);
        let body = br#"{"program":"0.1.0","listeners":[]}"#;
        let hello: HandoverHello = read(&received(kind::HELLO), kind::HELLO, body).unwrap();
        assert!(!hello.hands_flows && hello.upstreams.is_empty());
        assert_eq!(hello.lingers, None, "it ends by its drain_timeout, and reads no DRAIN");
        for body in ["", "{}"] {
            let kind = kind::RECEIVED;
            let taken: HandoverReceived = read(&received(kind), kind, body.as_bytes()).unwrap();
            assert_eq!((taken.refused, taken.why), (vec![], None));
        }
        assert!(read::<Serve>(&received(kind::SERVE), kind::SERVE, b"").is_err());
    }
}

//! A question: who may go where. All connections of one rule to one name and port wait on one, and
//! so do all requests with one method and path there.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use eyelet_wire::local_peer::host_of;
use parking_lot::Mutex;

use crate::verdict::HoldDecision;

/// Most bytes of a method and a path that are asked about. A person reads no more, and 1,000
/// questions then hold at most 2 MiB.
pub const REQUEST_BYTES_MAX: usize = 2 << 10;

/// The method and the path of a request that somebody is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey {
    pub method: Box<str>,
    /// The path as it came, without the query.
    pub path: Box<str>,
}

impl RequestKey {
    /// Those of a request. `None`: they are longer than [`REQUEST_BYTES_MAX`].
    pub fn new(method: &str, path: &str) -> Option<Self> {
        let is_short = method.len() + path.len() <= REQUEST_BYTES_MAX;
        is_short.then(|| Self { method: method.into(), path: path.into() })
    }
}

/// The key that connections or requests which wait on one question share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HoldKey {
    /// The name of the rule.
    pub rule: Box<str>,
    /// The name or address that is dialled once the verdict is to allow it.
    pub name: Box<str>,
    pub port: u16,
    /// `None`: the question is about a connection.
    pub request: Option<Box<RequestKey>>,
}

/// Writes `name:port`, as a command takes it, and then the method and the path if there are any.
impl fmt::Display for HoldKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.parse::<IpAddr>() {
            Ok(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port)?,
            _ => write!(f, "{}:{}", self.name, self.port)?,
        }
        let Some(RequestKey { method, path }) = self.request.as_deref() else { return Ok(()) };
        write!(f, " {method} ")?;
        // What a terminal or a reader may take for something else is written by its code point.
        path.chars().try_for_each(|one| match one {
            '!'..='~' => f.write_char(one),
            other => write!(f, "{}", other.escape_unicode()),
        })
    }
}

/// The first client that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    pub client: IpAddr,
    /// Its program, as far as a sandbox knows it, or its user.
    pub program: Option<Box<str>>,
    /// The list that its rule writes "always" to.
    pub file: Option<Arc<Path>>,
}

impl Who {
    /// The host of the client.
    pub(crate) fn host(&self) -> IpAddr {
        host_of(self.client)
    }
}

/// A question that is or was open.
#[derive(Debug)]
pub struct HoldQuestion {
    /// Its number in this process.
    pub id: u64,
    pub key: HoldKey,
    /// The first who asked.
    pub who: Who,
    /// The time of that, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Connections that wait. Changed under the lock of its [`Holds`] only.
    pub(crate) waiting: AtomicUsize,
    /// Tasks that wait, by the numbers of their places. Those of parked connections are woken by
    /// their worker.
    pub(crate) tasks: Mutex<HashMap<u64, Waker>>,
    pub(crate) decision: OnceLock<HoldDecision>,
    /// The verdict of the process before on those who waited there, and the last place that was
    /// given when it came.
    pub(crate) earlier: OnceLock<(u64, HoldDecision)>,
}

impl HoldQuestion {
    /// The line of the log that says who asks.
    pub fn announcement(&self) -> String {
        let (key, client) = (&self.key, self.who.client);
        format!("held: {key} for {client}, by \"{}\": `eyelet held` decides", key.rule)
    }
}

/// The questions that a verdict has decided.
#[derive(Clone, Debug, Default)]
pub struct DecidedQuestions {
    /// The questions, oldest first.
    pub questions: Vec<Arc<HoldQuestion>>,
    /// The number of connections that waited.
    pub connections: usize,
}

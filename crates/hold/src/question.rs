//! A question: who may go where. All connections of one rule to one name and port wait on one.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use crate::verdict::HoldDecision;

/// The key that connections which wait on one question share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HoldKey {
    /// The name of the rule.
    pub rule: Box<str>,
    /// The name or address that is dialled once the verdict is to allow it.
    pub name: Box<str>,
    pub port: u16,
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
    /// The host of the client: an IPv6 host chooses its addresses within a /64 (RFC 8981).
    pub(crate) fn host(&self) -> IpAddr {
        match self.client.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) >> 64 << 64).into(),
            four @ IpAddr::V4(_) => four,
        }
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
    /// When that was, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Connections that wait. Changed under the lock of its [`Holds`] only.
    pub(crate) waiting: AtomicUsize,
    pub(crate) decision: OnceLock<HoldDecision>,
}

/// The questions that a verdict has decided.
#[derive(Clone, Debug, Default)]
pub struct DecidedQuestions {
    /// The questions, oldest first.
    pub questions: Vec<Arc<HoldQuestion>>,
    /// The number of connections that waited.
    pub connections: usize,
}

//! A question: who may go where. All connections of one rule to one name and port wait on one.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use crate::holds::Holds;
use crate::verdict::Decision;

/// What connections that wait on one question have in common.
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

/// A question that is or was open.
#[derive(Debug)]
pub struct Question {
    /// Its number in this process.
    pub id: u64,
    pub key: HoldKey,
    /// The first who asked.
    pub who: Who,
    /// When that was, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Connections that wait. Changed under the lock of its [`Holds`] only.
    pub(crate) waiting: AtomicUsize,
    pub(crate) decision: OnceLock<Decision>,
}

/// The place of one connection that waits on a question. Dropping it gives the place back, and the
/// question ends with the last one.
pub struct Waiting {
    holds: Arc<Holds>,
    pub(crate) question: Arc<Question>,
    /// Bytes that are held of the connection.
    pub(crate) bytes: u32,
    /// True if nobody waited on the question before.
    is_first: bool,
}

impl Waiting {
    pub(crate) fn new(
        holds: &Arc<Holds>,
        question: Arc<Question>,
        (bytes, is_first): (u32, bool),
    ) -> Self {
        Self { holds: holds.clone(), question, bytes, is_first }
    }

    /// True if nobody waited on the question before.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// The verdict, once there is one.
    pub fn decision(&self) -> Option<Decision> {
        self.question.decision.get().copied()
    }

    /// The question.
    pub fn question(&self) -> &Arc<Question> {
        &self.question
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.holds.leave(self);
    }
}

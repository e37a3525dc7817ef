//! A connection that is held until somebody decides: its hello, or a request on it, and the
//! question that it waits on. Nothing of it is read. It goes on in a task once there is a verdict,
//! or its time is over.

use std::time::Duration;

use eyelet_hold::{HoldDecision, HoldKey, HoldPlace};
use eyelet_record::Session;
use eyelet_sys::epoll::{ENDED, FAILED};
use eyelet_telemetry::info::{AskedBy, End};
use eyelet_telemetry::reason::{Reason, Stage, When};

use super::flow::Flow;
use super::sockets::{Progress, Sockets};
use super::terminate::Terminated;
use crate::ready::CLIENT;
use crate::socket;

/// Most bytes that are held of a client: a hello or a request, and what came with it in the same
/// reads.
pub const HELD_BYTES_MAX: usize = 1 << 20;

/// A held connection's bytes, and what it waits for.
pub struct HeldConnection {
    /// Nothing passes on it. That of a request may have the beginning of a TLS record.
    pub flow: Flow,
    /// The client's TLS, if a request of it is held.
    session: Option<Box<Session>>,
    bytes: Box<[u8]>,
    /// The protocol in which the client asked for its target, if it still waits for an answer.
    pub owes_answer: Option<AskedBy>,
    /// Milliseconds that it may wait in all.
    wait_ms: u32,
    /// True if that time is over.
    is_late: bool,
    question: HeldState,
}

/// The question of a held connection.
pub enum HeldState {
    /// It waits on this one.
    Waits(HoldPlace),
    /// It is to wait on this one: it came from another process.
    Moved(Box<HoldKey>),
    /// It is to be decided anew: its rule is gone, or there is no place for its question.
    Anew,
}

impl HeldConnection {
    /// A connection that has sent `bytes` and may wait so long.
    pub fn new(
        bytes: Box<[u8]>,
        owes_answer: Option<AskedBy>,
        wait: Duration,
        question: HeldState,
    ) -> Self {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let (flow, session) = (Flow::default(), None);
        Self { flow, session, bytes, owes_answer, wait_ms, is_late: false, question }
    }

    /// Has it be a request that is held: `bytes` are its head and what came behind it.
    #[must_use]
    pub fn of_request(self, Terminated { session, flow }: Terminated) -> Self {
        Self { flow, session: Some(Box::new(session)), ..self }
    }

    /// True if a request is held, or was until its TLS was taken.
    pub fn is_request(&self) -> bool {
        let key = self.key();
        self.session.is_some() || key.is_some_and(|key| key.request.is_some())
    }

    /// The client's TLS, if a request of it is held.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_deref()
    }

    /// Takes the TLS connection whose request was held.
    pub fn take_terminated(&mut self) -> Option<Terminated> {
        let session = *self.session.take()?;
        Some(Terminated { session, flow: std::mem::take(&mut self.flow) })
    }

    /// All bytes that its client has sent and that were read.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The time for which it may wait in all.
    pub fn wait(&self) -> Duration {
        Duration::from_millis(self.wait_ms.into())
    }

    /// The verdict, once there is one.
    pub fn decision(&self) -> Option<HoldDecision> {
        match &self.question {
            HeldState::Waits(waiting) => waiting.decision(),
            HeldState::Moved(_) | HeldState::Anew => None,
        }
    }

    /// The key of its question, unless it is decided anew.
    pub fn key(&self) -> Option<&HoldKey> {
        match &self.question {
            HeldState::Waits(waiting) => Some(&waiting.question().key),
            HeldState::Moved(key) => Some(key),
            HeldState::Anew => None,
        }
    }

    /// Has it wait on another question.
    pub fn set_question(&mut self, question: HeldState) {
        self.question = question;
    }

    /// True if the time that it may wait is over.
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// Notes that this time is over.
    pub fn expire(&mut self) {
        self.is_late = true;
    }

    /// True if it is to go on in a task.
    pub fn is_over(&self) -> bool {
        self.is_late
            || match &self.question {
                HeldState::Waits(waiting) => waiting.decision().is_some(),
                HeldState::Moved(_) | HeldState::Anew => true,
            }
    }

    /// Bytes of memory that it holds besides its slot.
    pub(crate) fn held_bytes(&self) -> usize {
        let session = if self.session.is_some() { size_of::<Session>() } else { 0 };
        self.bytes.len() + session
    }
}

/// Says whether it goes on in a task, or its client has gone. A client that has ended its stream
/// has no handshake to come, and mostly reads no answer to a request, so it has gone, too.
pub(crate) fn run(held: &HeldConnection, sockets: &Sockets<'_>) -> Progress {
    const WHEN: Option<When> = Some(When::During(Stage::Verdict));
    if sockets.ready.any(CLIENT, ENDED | FAILED) {
        return match socket::peek(sockets.client, &mut [0]) {
            Ok(_) => Progress::Closed(End::failed(Reason::ClientClosed(WHEN))),
            Err(error) => Progress::Reset(End::failed(Reason::client_io(&error, WHEN))),
        };
    }
    if held.is_over() { Progress::Dial } else { Progress::Rest }
}

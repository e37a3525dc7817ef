//! The new process, as the one before it knows it: what is sent to it, and what it answers.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use eyelet_engine::departure::{BatchAnswer, LeavingBatch};
use eyelet_engine::moving::handover::VERSION_USUAL;
use eyelet_engine::moving::parts::{GroupPart, parts};
use eyelet_handover::flows::FlowBatch;
use eyelet_sys::channel::Channel;

use crate::handover::{
    HandoverError, HandoverReady, HandoverReceived, MESSAGE_TIMEOUT, body, kind, read, receive,
    signal,
};
use crate::predecessors::{PredecessorLink, Predecessors};

/// The time for which a lingering process waits for the answer to a batch. It is longer than the
/// newest process may take, because without an answer the batch counts as taken.
const SETTLED_ANSWER_TIMEOUT: Duration = Duration::from_secs(3 * MESSAGE_TIMEOUT.as_secs());
/// The time for which a lingering process listens to the serving one between two answers. All that
/// has arrived is read at once.
const HEAR_TIME: Duration = Duration::from_millis(1);

/// The new process. Unless it is on its own, it is killed when this is dropped. From then on the
/// other end of the channel may be that of a process after it.
pub(super) struct Successor {
    pub(super) child: Child,
    pub(super) channel: Channel,
    /// It reads the format that this process writes.
    pub(super) reads_connections: bool,
    /// It may say something.
    is_heard: bool,
    /// It has said that this process is to drain.
    must_drain: bool,
    /// It has refused a connection, which is logged.
    has_refused: bool,
    /// The time that it may take to read a batch.
    pub(super) answer_timeout: Duration,
    is_on_its_own: bool,
}

/// An error in place of the answer to a batch.
struct Unanswered {
    error: HandoverError,
    /// The other process may have all of it, and may live: this one must not touch it any more.
    may_be_taken: bool,
}

impl Successor {
    /// One that was just started, at the other end of this channel.
    pub(super) fn new(child: Child, channel: Channel) -> Self {
        Self {
            child,
            channel,
            reads_connections: false,
            is_heard: true,
            must_drain: false,
            has_refused: false,
            answer_timeout: MESSAGE_TIMEOUT,
            is_on_its_own: false,
        }
    }

    /// Gives some flows of QUIC. Behind the last ones the new process reads datagrams.
    pub(super) fn give_flows(
        &mut self,
        batches: Vec<FlowBatch>,
        are_last: bool,
    ) -> Result<(), HandoverError> {
        for FlowBatch { body, sockets, .. } in batches {
            self.send(kind::FLOWS, &body, &sockets)?;
        }
        if are_last { signal(&mut self.channel, kind::FLOWS_END) } else { Ok(()) }
    }

    /// Hands over a batch. Without an answer the worker takes it back.
    pub(super) fn move_batch(
        &mut self,
        batch: LeavingBatch,
    ) -> (Option<BatchAnswer>, Result<(), HandoverError>) {
        if !self.reads_connections {
            self.note_refusal(&format!("it does not read version {VERSION_USUAL} of their format"));
            return (Some(BatchAnswer::Refused), Ok(()));
        }
        let answer = match self.offer(&batch) {
            Ok(answer) => answer,
            Err(Unanswered { error, may_be_taken }) if self.is_on_its_own => {
                self.give_up(&error);
                // Nobody can end it, so it owns what it may have. It takes that when the channel
                // ends.
                let taken = BatchAnswer::Committed { refused: Vec::new() };
                return (Some(if may_be_taken { taken } else { BatchAnswer::Refused }), Ok(()));
            }
            Err(Unanswered { error, .. }) => return (None, Err(error)),
        };
        // The worker uses the sockets of those that stay.
        drop(batch);
        let end = match answer {
            // Even if this fails: the new process may have read it.
            BatchAnswer::Committed { .. } => signal(&mut self.channel, kind::COMMIT),
            BatchAnswer::Refused | BatchAnswer::Over => Ok(()),
        };
        (Some(answer), end)
    }

    /// Sends a batch and waits until the new process has read it.
    fn offer(&mut self, batch: &LeavingBatch) -> Result<BatchAnswer, Unanswered> {
        // A message that is cut is never read, and a group that lacks a part is never placed.
        let kept = |error| Unanswered { error, may_be_taken: false };
        match batch.group {
            None => self.send(kind::BATCH, &batch.states, &batch.sockets).map_err(kept)?,
            Some(group) => {
                let mut parts = parts(group, batch);
                if let Some(GroupPart { body, sockets }) = parts.next() {
                    self.send(kind::PART, &body, sockets).map_err(kept)?;
                    match self.answer().map_err(kept)? {
                        BatchAnswer::Committed { refused } if refused.is_empty() => {}
                        answer => return Ok(answer),
                    }
                }
                for GroupPart { body, sockets } in parts {
                    self.send(kind::PART, &body, sockets).map_err(kept)?;
                }
            }
        }
        self.answer().map_err(|error| {
            // Only what it has answered for is its own when it closes the channel.
            let may_be_taken = !error.is_closed();
            Unanswered { error, may_be_taken }
        })
    }

    fn send(
        &mut self,
        kind: u8,
        body: &[u8],
        sockets: &[Arc<OwnedFd>],
    ) -> Result<(), HandoverError> {
        let sockets: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket| socket.as_fd()).collect();
        Ok(self.channel.send(kind, body, &sockets, MESSAGE_TIMEOUT)?)
    }

    fn answer(&mut self) -> Result<BatchAnswer, HandoverError> {
        let (mut received, mut body) = receive(&mut self.channel, Some(self.answer_timeout))?;
        if received.kind == kind::DRAIN {
            self.must_drain = true;
            (received, body) = receive(&mut self.channel, Some(self.answer_timeout))?;
        }
        match received.kind {
            kind::RECEIVED => {
                let HandoverReceived { refused, why } = read(&received, kind::RECEIVED, &body)?;
                if !refused.is_empty() {
                    self.note_refusal(&why.unwrap_or_default());
                }
                Ok(BatchAnswer::Committed { refused })
            }
            kind::REFUSED => {
                self.note_refusal(&String::from_utf8_lossy(&body));
                Ok(BatchAnswer::Refused)
            }
            other => Err(HandoverError::Kind(other)),
        }
    }

    /// From now on it lives without this process, which tells it of those before.
    pub(super) fn settle(&mut self, ready: &HandoverReady, predecessors: &Predecessors) {
        self.is_on_its_own = true;
        self.answer_timeout = SETTLED_ANSWER_TIMEOUT;
        let links = predecessors.pause();
        let last = if ready.knows_predecessors {
            self.pass_on(predecessors, links);
            kind::SETTLED
        } else {
            kind::END
        };
        match signal(&mut self.channel, last) {
            Ok(()) if ready.knows_predecessors => {}
            Ok(()) => (self.reads_connections, self.is_heard) = (false, false),
            Err(error) => self.give_up(&error),
        }
    }

    /// Tells it of processes before this one, and gives it their channels.
    pub(super) fn pass_on(&mut self, predecessors: &Predecessors, links: Vec<PredecessorLink>) {
        if !self.is_heard {
            return;
        }
        for mut link in links {
            // If this fails, it has ended: so its channel says to the next one, too.
            let _ = predecessors.tell(&mut link);
            let sockets = &[link.channel.as_fd()];
            let sent = body(kind::PREDECESSOR, &link.predecessor).and_then(|body| {
                let sent = self.channel.send(kind::PREDECESSOR, &body, sockets, MESSAGE_TIMEOUT);
                sent.map_err(HandoverError::from)
            });
            if let Err(error) = sent {
                return self.give_up(&error);
            }
        }
    }

    /// Notes that nothing more passes over the channel.
    pub(super) fn give_up(&mut self, error: &HandoverError) {
        if std::mem::replace(&mut self.is_heard, false) {
            tracing::warn!("connections stay here from now on: {error}");
        }
        (self.reads_connections, self.has_refused) = (false, true);
        self.channel.end();
    }

    /// True if it has said that this process is to drain, once.
    pub(super) fn says_drain(&mut self) -> bool {
        // Reaped, if it has ended. Others may have its end of the channel.
        let _ = self.child.try_wait();
        if self.is_heard {
            match receive(&mut self.channel, Some(HEAR_TIME)) {
                Ok((received, _)) if received.kind == kind::DRAIN => self.must_drain = true,
                Ok((received, _)) => self.give_up(&HandoverError::Kind(received.kind)),
                Err(HandoverError::Channel(error)) if error.kind() == ErrorKind::TimedOut => {}
                Err(error) => self.give_up(&error),
            }
        }
        std::mem::take(&mut self.must_drain)
    }

    fn note_refusal(&mut self, why: &str) {
        if !std::mem::replace(&mut self.has_refused, true) {
            tracing::error!(
                "the new process does not take some connections, which stay here: {why}"
            );
        }
    }

    /// Checks that it has not ended.
    ///
    /// # Errors
    /// It has.
    pub(super) fn must_live(&mut self) -> Result<(), HandoverError> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(_) => Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
        }
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.is_on_its_own {
            // It may have ended already. It is reaped, so it touches no connection after this.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

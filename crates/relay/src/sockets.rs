//! The two sockets of a connection: reads and writes that note readiness, and the result of a wake.

use std::io;
use std::os::fd::BorrowedFd;

use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::Reason;

use super::buffers::{Buffers, TIGHT_BYTES};
use super::flow::Flow;
use crate::ready::{CLIENT, READ, Ready, Side, UPSTREAM, WRITE};
use crate::socket;

/// Answers what the client of a connection without an upstream has sent. It gets what the program
/// keeps of the connection up to the first shared piece, the bytes, and where to append the
/// answers. It returns how many bytes are answered.
pub type AnswerParked<'a> = &'a dyn Fn(&mut [u8], &[u8], &mut Vec<u8>) -> usize;

/// The two sockets of a connection and their known readiness.
pub struct Sockets<'a> {
    pub client: BorrowedFd<'a>,
    /// The upstream's, if it was dialled.
    pub upstream: Option<BorrowedFd<'a>>,
    /// Reported readiness that is not used up.
    pub ready: &'a mut Ready,
    /// The side that a write has found reset.
    reset: Option<Side>,
}

/// The result of a wake.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everything that could be moved was moved: the connection rests.
    Rest,
    /// There is more, but other connections go first.
    Again,
    /// There may be more, but memory is short and the last bytes are not sent yet.
    Later,
    /// The program goes on: the client's first bytes are here, and the upstream is to be dialled,
    /// or an exchange rests no more.
    Dial,
    /// Both directions have ended.
    Closed(End),
    /// Both have ended, but the client may still send bytes that are never read. They would cause
    /// a reset, which must not overtake what the client was sent last.
    Linger(End),
    /// A side was reset or has failed: reset the other.
    Reset(End),
    /// The client was sent an alert and needs time to read it. What it had sent was cut.
    Cut(End),
}

impl Progress {
    /// True if the connection stays parked.
    pub fn goes_on(&self) -> bool {
        matches!(self, Self::Rest | Self::Again | Self::Later)
    }
}

/// A side's socket failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) side: Side,
    pub(super) error: io::Error,
}

impl Failed {
    pub(super) fn reason(&self) -> Reason {
        match self.side {
            CLIENT => Reason::client_io(&self.error, None),
            _ => Reason::upstream_io(&self.error),
        }
    }
}

impl<'a> Sockets<'a> {
    /// The sockets of a connection for one wake.
    pub fn new(
        client: BorrowedFd<'a>,
        upstream: Option<BorrowedFd<'a>>,
        ready: &'a mut Ready,
    ) -> Self {
        Self { client, upstream, ready, reset: None }
    }

    pub(super) fn socket(&self, side: Side) -> Option<BorrowedFd<'_>> {
        match side {
            CLIENT => Some(self.client),
            _ => self.upstream,
        }
    }

    /// Reads and notes readiness. `None`: nothing there now.
    pub(super) fn recv(&mut self, from: Side, buffer: &mut [u8]) -> Result<Option<usize>, Failed> {
        let Some(socket) = self.socket(from) else { return Ok(None) };
        let read = socket::recv(socket, buffer);
        self.note_read(from, read, buffer.len())
    }

    /// A read that got less than it had room for has emptied the socket: the next edge will report
    /// more (epoll(7)). If the peer has ended its stream, that edge has come already.
    pub(super) fn note_read(
        &mut self,
        from: Side,
        read: io::Result<usize>,
        room: usize,
    ) -> Result<Option<usize>, Failed> {
        match read {
            Ok(0) if self.reset == Some(from) => {
                Err(Failed { side: from, error: io::ErrorKind::ConnectionReset.into() })
            }
            Ok(read) => {
                if read < room && !self.ready.any(from, eyelet_sys::epoll::ENDED) {
                    self.ready.clear(from, READ);
                }
                Ok(Some(read))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.ready.clear(from, READ);
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(Failed { side: from, error }),
        }
    }

    /// Writes. Returns how many bytes the socket accepted: 0 if it is full.
    pub(super) fn send(&mut self, to: Side, bytes: &[u8]) -> Result<usize, Failed> {
        let Some(socket) = self.socket(to) else { return Ok(0) };
        let sent = socket::send(socket, bytes);
        self.note_write(to, sent)
    }

    /// Sets TCP_NODELAY before the second write to an upstream, which would otherwise wait until
    /// the first is acknowledged.
    pub(super) fn no_delay(&self, flow: &mut Flow, to: Side) {
        if to == UPSTREAM
            && flow.is_written_once
            && let Some(upstream) = self.upstream
        {
            flow.is_written_once = false;
            // If it cannot be set, the write is late but not lost.
            let _ = socket::no_delay(upstream);
        }
    }

    pub(super) fn note_write(
        &mut self,
        to: Side,
        sent: io::Result<usize>,
    ) -> Result<usize, Failed> {
        match sent {
            Ok(sent) => Ok(sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.ready.clear(to, WRITE);
                Ok(0)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => {
                if socket::has_lost_rest(&error) {
                    self.reset = Some(to);
                }
                Err(Failed { side: to, error })
            }
        }
    }

    /// Writes the bytes held for a side. Returns whether none are left.
    pub(super) fn flush(
        &mut self,
        flow: &mut Flow,
        to: Side,
        buffers: &mut Buffers,
    ) -> Result<bool, Failed> {
        if flow.held(to).is_some() {
            self.no_delay(flow, to);
        }
        while let Some(held) = flow.held(to) {
            if self.socket(to).is_none() || !self.ready.any(to, WRITE) {
                return Ok(false);
            }
            if !held.is_sent() {
                held.sent += self.send(to, &held.bytes[held.sent..])?;
                if held.is_sent() {
                    (held.bytes, held.sent, held.since) = (Vec::new(), 0, None);
                }
            } else if let Some((lent, left)) = held.pipe.take() {
                let emptied = match self.socket(to) {
                    Some(socket) => lent.pipe.empty(socket, left),
                    None => return Ok(false),
                };
                let left = left - self.note_write(to, emptied)?;
                match left {
                    0 => buffers.give_back(lent),
                    _ => held.pipe = Some((lent, left)),
                }
            }
        }
        flow.drop_empty();
        Ok(true)
    }

    /// Returns the number of bytes that may be read now that go to `to`. `None` if they might have
    /// to be held and there is no memory for that.
    pub(super) fn room(&self, to: Side, buffers: &Buffers) -> Option<usize> {
        buffers.piece.or_else(|| {
            // For an upstream that is not dialled yet, one record at most is read.
            let unsent = self.socket(to).map_or(0, |socket| socket::unsent(socket).unwrap_or(1));
            (unsent == 0).then_some(TIGHT_BYTES)
        })
    }

    /// Passes the end of one direction on, once all bytes before it are written.
    pub(super) fn pass_end(&mut self, flow: &mut Flow, to: Side) -> Result<(), Failed> {
        if !flow.is_end_due(to) || flow.held(to).is_some() {
            return Ok(());
        }
        flow.pass_end(to);
        // If the other direction has ended, too, the close that follows says it.
        if flow.is_over() {
            return Ok(());
        }
        let Some(socket) = self.socket(to) else { return Ok(()) };
        match socket::shutdown_write(socket) {
            // The peer is gone: a read will return its reset or its end.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            Err(error) => Err(Failed { side: to, error }),
            Ok(()) => Ok(()),
        }
    }
}

/// Chooses the next step after both directions were tried.
pub(super) fn conclude(flow: &mut Flow, up: More, down: More, outcome: Outcome) -> Progress {
    flow.drop_empty();
    if flow.is_over() {
        return Progress::Closed(End { outcome, reason: flow.end_reason() });
    }
    match (up, down) {
        (More::Again, _) | (_, More::Again) => Progress::Again,
        (More::Later, _) | (_, More::Later) => Progress::Later,
        (More::No, More::No) => Progress::Rest,
    }
}

/// The outcome of moving one direction: more to move, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    /// Its share of the iteration is used up.
    Again,
    /// See [`Progress::Later`].
    Later,
    /// Nothing more can be moved until the next event.
    No,
}

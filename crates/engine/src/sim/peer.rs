//! A scripted peer: a client or an upstream at the other end of one of the edge's sockets. It
//! checks each byte that it receives.

use std::fmt;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use eyelet_sys::socket;
use fastrand::Rng;

use crate::testing::stream::Stream;
use crate::testing::tls::{Client, Said};
use eyelet_relay::testing::kernel::{self, Link};

/// The end of a peer's connection by the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Fin,
    Reset,
}

pub struct Peer {
    name: &'static str,
    fd: Option<OwnedFd>,
    link: Rc<Link>,
    /// The bytes that it sends, and how many of them are in the outbox or beyond.
    stream: Stream,
    pub said: usize,
    /// The bytes that it expects to receive, and how many of them it has received.
    pub expected: Stream,
    pub heard: usize,
    /// Bytes that are not written to the socket yet.
    outbox: Vec<u8>,
    pub tls: Option<Client>,
    /// It sends no more, and ends its stream once the outbox is empty.
    is_finished: bool,
    /// It keeps its stream open for now, although it sends no more.
    keeps_open: bool,
    has_ended: bool,
    pub end: Option<End>,
    /// It has closed its socket without waiting for the edge.
    pub is_gone: bool,
    /// It has cut its own stream in the middle, or broken the protocol.
    pub is_faulty: bool,
}

impl Peer {
    /// A peer, and the edge's socket towards it.
    pub fn new(name: &'static str, stream: Stream, expected: Stream) -> (Self, OwnedFd) {
        let (edge, link, fd) = kernel::pair();
        let peer = Self {
            name,
            fd: Some(fd),
            link,
            stream,
            said: 0,
            expected,
            heard: 0,
            outbox: Vec::new(),
            tls: None,
            is_finished: false,
            keeps_open: false,
            has_ended: false,
            end: None,
            is_gone: false,
            is_faulty: false,
        };
        (peer, edge)
    }

    /// Puts the next bytes of its stream into the outbox.
    pub fn say(&mut self, len: usize, rng: &mut Rng) {
        let is_refused = matches!(self.said_at_end(), Some(Said::Alert(_)));
        if self.is_finished || self.is_gone || is_refused {
            return;
        }
        let Self { stream, said, outbox, tls, .. } = self;
        match tls {
            None => stream.bytes(*said, len, |bytes| outbox.extend_from_slice(bytes)),
            Some(client) => {
                let record = if rng.bool() { rng.usize(1..=600) } else { usize::MAX };
                stream.bytes(*said, len, |bytes| client.seal(bytes, record, outbox));
            }
        }
        *said += len;
    }

    /// Writes at most `max` bytes of the outbox, and then its end if that is due.
    pub fn write(&mut self, max: usize) {
        let Some(fd) = &self.fd else { return };
        let mut left = max.min(self.outbox.len());
        while left > 0 && !self.has_ended {
            match socket::send(fd, &self.outbox[..left]) {
                Ok(sent) => {
                    self.outbox.drain(..sent);
                    left -= sent;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The edge has closed: what it sent before can still be read.
                Err(error) => {
                    if error.kind() == ErrorKind::ConnectionReset {
                        self.end.get_or_insert(End::Reset);
                    }
                    (self.outbox, self.is_finished) = (Vec::new(), true);
                    return;
                }
            }
        }
        let is_done = self.is_finished && !self.keeps_open && self.outbox.is_empty();
        if is_done && !self.has_ended {
            self.has_ended = true;
            let _ = socket::shutdown_write(fd);
        }
    }

    /// Reads at most `max` bytes. The edge may then write `room` more.
    pub fn read(&mut self, mut max: usize, room: Option<usize>) {
        let Some(fd) = &self.fd else { return };
        let mut buffer = [0; 16 << 10];
        self.link.set_room(room);
        while max > 0 && self.end.is_none() {
            let len = max.min(buffer.len());
            match socket::recv(fd, &mut buffer[..len]) {
                Ok(0) if self.link.is_cut() => self.end = Some(End::Reset),
                Ok(0) => self.end = Some(End::Fin),
                Ok(read) => {
                    max -= read;
                    Self::hear(self.name, &self.expected, &mut self.heard, &buffer[..read], {
                        self.tls.as_mut().map(|client| (client, &mut self.outbox))
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    self.end = Some(End::Reset);
                }
                Err(error) => panic!("{}: {error}", self.name),
            }
        }
    }

    fn hear(
        name: &str,
        expected: &Stream,
        heard: &mut usize,
        bytes: &[u8],
        tls: Option<(&mut Client, &mut Vec<u8>)>,
    ) {
        let mut check = |bytes: &[u8]| {
            expected.check(*heard, bytes, name);
            *heard += bytes.len();
        };
        match tls {
            None => check(bytes),
            Some((client, outbox)) => client.open(bytes, outbox, check),
        }
    }

    /// Sends no more. With TLS it sends close_notify, unless it is `truncated`.
    pub fn finish(&mut self, truncated: bool) {
        self.keeps_open = false;
        if !std::mem::replace(&mut self.is_finished, true)
            && let Some(client) = &mut self.tls
            && !truncated
        {
            client.close_notify(&mut self.outbox);
        }
    }

    /// Sends close_notify, and no FIN until it is told to finish.
    pub fn close_notify(&mut self) {
        if self.tls.is_some() && !self.is_finished {
            self.finish(false);
            self.keeps_open = true;
        }
    }

    /// Ends its stream at once. The outbox is never written.
    pub fn truncate(&mut self) {
        match self.tls {
            // The edge cannot tell that from a proper end.
            None => self.said -= self.outbox.len(),
            // The cut may be in the middle of a record.
            Some(_) => self.is_faulty |= !self.outbox.is_empty(),
        }
        self.outbox.clear();
        self.is_finished = true;
    }

    /// Sends bytes that break the protocol.
    pub fn garble(&mut self, rng: &mut Rng) {
        if self.tls.is_some() && !self.is_finished {
            self.is_faulty = true;
            self.outbox.extend([23, 3, 3, 0, 40]);
            self.outbox.extend((0..40).map(|_| rng.u8(..)));
            self.is_finished = true;
        }
    }

    /// Sends a fatal alert.
    pub fn alert(&mut self, description: u8) {
        if let Some(client) = &mut self.tls
            && !self.is_finished
        {
            self.is_faulty = true;
            client.alert(description, &mut self.outbox);
            self.is_finished = true;
        }
    }

    pub fn update_keys(&mut self) {
        if let Some(client) = &mut self.tls
            && !self.is_finished
        {
            client.update_keys(&mut self.outbox);
        }
    }

    /// Leaves by a reset, or closes its socket whatever is still to come.
    pub fn leave(&mut self, reset: bool) {
        if reset {
            self.link.reset();
        }
        self.truncate();
        // A write to a closed peer does not block: it fails.
        self.link.set_room(None);
        self.is_gone |= self.fd.take().is_some();
    }

    /// True if nothing more comes from the edge.
    pub fn is_ended(&self) -> bool {
        self.end.is_some() || self.said_at_end().is_some()
    }

    /// True if all that it has sent is written, and complete.
    pub fn has_written_all(&self) -> bool {
        self.outbox.is_empty() && !self.is_gone && !self.is_faulty
    }

    pub fn said_at_end(&self) -> Option<Said> {
        self.tls.as_ref().and_then(|client| client.said)
    }

    /// True if the edge has closed its socket.
    pub fn is_closed_by_edge(&self) -> bool {
        self.fd.as_ref().is_none_or(|fd| {
            socket::send(fd, b"x").is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
        })
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("said", &self.said)
            .field("heard", &self.heard)
            .field("unwritten", &self.outbox.len())
            .field("is_finished", &self.is_finished)
            .field("has_ended", &self.has_ended)
            .field("said_at_end", &self.said_at_end())
            .field("end", &self.end)
            .field("is_gone", &self.is_gone)
            .field("is_faulty", &self.is_faulty)
            .finish_non_exhaustive()
    }
}

//! A socket of a scripted peer: bytes wait until they are written, what arrives is opened, and the
//! connection ends in one of several ways.

use std::fmt;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use eyelet_engine::testing::tls::{Client, Said};
use eyelet_sys::socket;
use fastrand::Rng;

/// Most bytes that one read takes from the socket.
const READ_BYTES: usize = 16 << 10;

/// The way in which a peer leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// It ends what it sends, and reads on.
    Orderly,
    /// So, but a TLS client says no close_notify.
    Truncated,
    /// It closes its socket. If bytes are unread, the other side sees a reset.
    Gone,
}

pub struct Peer {
    fd: Option<OwnedFd>,
    tls: Option<Client>,
    outbox: Vec<u8>,
    /// It sends no more, and ends its stream once the outbox is empty.
    is_finished: bool,
    has_ended: bool,
    /// The first byte in the socket was read before. Bytes that stay there make a close a reset, as
    /// TCP does.
    is_held: bool,
    /// The edge's end of the stream has arrived.
    is_ended: bool,
    buffer: Box<[u8]>,
}

impl Peer {
    pub fn new(fd: OwnedFd, tls: Option<Client>) -> Self {
        Self {
            fd: Some(fd),
            tls,
            outbox: Vec::new(),
            is_finished: false,
            has_ended: false,
            is_held: false,
            is_ended: false,
            buffer: vec![0; READ_BYTES].into(),
        }
    }

    /// Puts bytes into the outbox, in records of any size.
    pub fn say(&mut self, bytes: &[u8], rng: &mut Rng) {
        if self.is_finished || self.fd.is_none() || self.is_over() {
            return;
        }
        match &mut self.tls {
            None => self.outbox.extend_from_slice(bytes),
            Some(client) => {
                let record = if rng.u8(..4) == 0 { rng.usize(1..=600) } else { usize::MAX };
                client.seal(bytes, record, &mut self.outbox);
            }
        }
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
                // The edge has closed. What it has sent before can still be read.
                Err(_) => {
                    (self.outbox, self.is_finished) = (Vec::new(), true);
                    return;
                }
            }
        }
        if self.is_finished && self.outbox.is_empty() && !self.has_ended {
            self.has_ended = true;
            let _ = socket::shutdown_write(fd);
        }
    }

    /// Reads at most `max` bytes, and returns what they say. With `holds` the last byte stays in
    /// the socket until the next read.
    pub fn read(&mut self, max: usize, holds: bool) -> Vec<u8> {
        let mut plain = Vec::new();
        let Some(fd) = &self.fd else { return plain };
        let buffer = &mut self.buffer[..READ_BYTES.min(max.saturating_add(1))];
        loop {
            let peeked = match socket::peek(fd, buffer) {
                Ok(peeked) => peeked,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return plain,
                Err(_) => 0,
            };
            if peeked == 0 {
                self.is_ended = true;
                return plain;
            }
            let known = usize::from(std::mem::replace(&mut self.is_held, holds));
            // They are the same bytes.
            let _ = socket::recv(fd, &mut buffer[..peeked - usize::from(holds)]);
            let new = &buffer[known..peeked];
            match &mut self.tls {
                None => plain.extend_from_slice(new),
                Some(client) => {
                    client.open(new, &mut self.outbox, |part| plain.extend_from_slice(part))
                }
            }
            if holds || plain.len() >= max {
                return plain;
            }
        }
    }

    pub fn leave(&mut self, how: Leave) {
        if how == Leave::Gone {
            self.fd = None;
            self.outbox.clear();
            return;
        }
        if std::mem::replace(&mut self.is_finished, true) {
            return;
        }
        match (&mut self.tls, how) {
            (Some(_), Leave::Truncated) => self.outbox.clear(),
            (Some(client), _) => client.close_notify(&mut self.outbox),
            (None, _) => {}
        }
    }

    /// Says if it sends no more.
    pub fn is_finished(&self) -> bool {
        self.is_finished || self.fd.is_none()
    }

    pub fn is_gone(&self) -> bool {
        self.fd.is_none()
    }

    pub fn has_written_all(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Says if nothing more comes from the edge.
    pub fn is_over(&self) -> bool {
        self.is_ended || self.is_gone() || self.said().is_some()
    }

    /// Returns the last words of TLS.
    pub fn said(&self) -> Option<Said> {
        self.tls.as_ref().and_then(|client| client.said)
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("unwritten", &self.outbox.len())
            .field("is_finished", &self.is_finished)
            .field("has_ended", &self.has_ended)
            .field("is_ended", &self.is_ended)
            .field("is_gone", &self.is_gone())
            .field("said", &self.said())
            .finish_non_exhaustive()
    }
}

//! A connection leaves its worker with the exchanges that rest on it, as values, and goes on in
//! another one.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use eyelet_engine::worker::{ParkedWaker, Worker};
use eyelet_h2::{OpenStream, ParkedConnection};
use eyelet_memory::budget::{Budget, Counted, UPSTREAM_RESTING_BYTES};
use eyelet_memory::slab::Key;
use eyelet_sys::memory::long_rc::LongRc;

use super::{Http2Connection, Http2Exchange, STREAMS_MAX};
use crate::link::Link;
use crate::socket::tls::RestingTls;
use crate::socket::{Descriptor, DrivenSocket, Socket};
use crate::windows::Bursts;

/// A connection outside of any worker, without its socket.
#[derive(Debug)]
pub struct DetachedConnection {
    /// The address that was dialled.
    pub name: Arc<str>,
    /// TLS on its socket.
    pub tls: Option<RestingTls>,
    /// The state of HTTP/2 with the streams at rest.
    pub h2: ParkedConnection,
}

/// A stream at rest on such a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetachedStream {
    /// Its identifier.
    pub id: u32,
    /// The request cannot be repeated elsewhere any more.
    pub is_fixed: bool,
    /// The request was sent with a coded body.
    pub is_coded: bool,
    /// The connection had carried others before.
    pub reused: bool,
}

impl DetachedConnection {
    /// The streams at rest on it in ascending order. `None`: it is no connection that rests.
    pub fn streams(&self, budget: &Arc<Budget>) -> Option<Vec<OpenStream>> {
        // A link counts its windows, until it is dropped.
        Link::resumed(budget.clone(), &self.h2)?;
        let streams = self.h2.open_streams();
        (1..=STREAMS_MAX).contains(&streams.len()).then_some(streams)
    }
}

impl Http2Connection {
    /// A number that no other connection of the worker has while this one lives.
    pub fn number(&self) -> usize {
        self.link.as_ptr().addr()
    }

    /// True if it may leave: nothing is on its way. Adds the keys of its streams' connections.
    pub fn may_leave(&self, keys: &mut Vec<Key>) -> bool {
        let place = self.place.borrow();
        let driven = place.as_ref().filter(|driven| driven.is_writable);
        driven.is_some_and(|driven| driven.socket.may_leave()) && self.link.borrow().may_leave(keys)
    }

    /// Takes it out of its worker, if it may leave. Its streams are of no use here any more.
    /// `None`: its socket cannot be taken, and is closed.
    pub fn detach(&self) -> Option<(OwnedFd, DetachedConnection)> {
        let DrivenSocket { socket, .. } = self.place.take()?;
        let h2 = self.link.borrow_mut().leave_worker()?;
        let (socket, tls) = socket.into_resting().ok()?;
        Some((socket, DetachedConnection { name: self.name.clone(), tls, h2 }))
    }

    /// Goes on with a connection of another worker. It takes no new stream.
    ///
    /// # Errors
    /// The kernel's, or that no connection has such a state.
    pub fn attach(
        worker: &Rc<Worker>,
        socket: OwnedFd,
        connection: DetachedConnection,
    ) -> io::Result<LongRc<Self>> {
        let DetachedConnection { name, tls, h2 } = connection;
        let link = Link::resumed(worker.process.budget.clone(), &h2);
        let link = link.ok_or(io::ErrorKind::InvalidData)?;
        let socket = Socket::resumed(worker, socket, tls)?;
        Ok(LongRc::new(Self::driven(link, socket, name, Descriptor::new(worker, None))))
    }

    /// The exchange of one of its streams, which rests with a connection that this wakes.
    pub fn resume(
        connection: &LongRc<Self>,
        stream: DetachedStream,
        waker: ParkedWaker,
    ) -> Http2Exchange {
        let DetachedStream { id, is_fixed, is_coded, reused } = stream;
        let mut link = connection.link.borrow_mut();
        link.fixed += usize::from(is_fixed);
        let has_head = |open: OpenStream| open.id == id && !open.awaits_head;
        let has_body = link.mux.h2.open_streams().any(has_head);
        drop(link);
        let mut exchange = Http2Exchange {
            connection: connection.clone(),
            reused,
            is_coded,
            counted: Counted::new(&connection.budget, UPSTREAM_RESTING_BYTES),
            stream: id,
            is_fixed,
            bursts: Bursts::default(),
            has_body,
            end: None,
        };
        exchange.rests(waker);
        exchange
    }

    /// Resets the streams that rest with no connection.
    pub fn end_unclaimed(&self) {
        let mut link = self.link.borrow_mut();
        for id in link.unclaimed() {
            link.forget(id);
        }
    }
}

impl Http2Exchange {
    /// Returns what its connection does not know of it.
    pub fn detached(&self) -> DetachedStream {
        let Self { stream, is_fixed, is_coded, reused, .. } = *self;
        DetachedStream { id: stream, is_fixed, is_coded, reused }
    }
}

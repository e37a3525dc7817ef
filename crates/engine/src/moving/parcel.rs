//! A parcel moves as one: a connection, or a group of connections and what they share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use eyelet_memory::slab::Key;
use eyelet_telemetry::listing::streams::StreamCounts;
use zeroize::Zeroizing;

use crate::departure::ParcelCounts;
use crate::moving::group::{self, DetachedGroup, SocketRoom};
use crate::moving::handover::{self, Detached, ImportError, Stays, is_group};
use crate::worker::Worker;

/// A connection or a group outside of any worker.
#[allow(clippy::large_enum_variant)] // a box for each connection would cost more than the move
pub enum Parcel {
    /// A connection.
    One(Detached),
    /// A group.
    Group(DetachedGroup),
}

impl Parcel {
    /// Takes a parked connection out of its worker, with its group if it has one.
    ///
    /// # Errors
    /// Why it stays.
    pub fn detach(worker: &Rc<Worker>, key: Key, room: SocketRoom) -> Result<Self, Stays> {
        let shared = worker.table.borrow().shared_count(key);
        match shared {
            0 => handover::detach(worker, key, room.one).map(Self::One),
            _ => group::detach(worker, key, room).map(Self::Group),
        }
    }

    /// Parks it in a worker: see [`handover::attach`]. Returns the keys of its connections.
    ///
    /// # Errors
    /// It, where there is no room for it.
    #[allow(clippy::result_large_err)] // as in handover.rs
    pub fn attach(self, worker: &Rc<Worker>) -> Result<Vec<Key>, Self> {
        match self {
            Self::One(one) => match handover::attach(worker, one) {
                Ok(key) => Ok(key.into_iter().collect()),
                Err(one) => Err(Self::One(one)),
            },
            Self::Group(group) => group::attach(worker, group).map_err(Self::Group),
        }
    }

    /// Has the limits of a worker's process count it, or nothing of it.
    pub fn reserve(&mut self, worker: &Worker) -> bool {
        match self {
            Self::One(one) => handover::reserve(worker, one),
            Self::Group(group) => group::reserve(worker, group),
        }
    }

    /// Ends it after it was refused.
    pub fn close(self, worker: &Rc<Worker>) {
        match self {
            Self::One(one) => handover::close(worker, one),
            Self::Group(group) => group::close(worker, group),
        }
    }

    /// Its message.
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        match self {
            Self::One(one) => one.encode(),
            Self::Group(group) => group.encode(),
        }
    }

    /// Reads a message and its sockets.
    ///
    /// # Errors
    /// [`ImportError`]. The sockets are then closed.
    pub fn decode(bytes: &[u8], sockets: Vec<OwnedFd>) -> Result<Self, ImportError> {
        match is_group(bytes) {
            true => DetachedGroup::decode(bytes, sockets).map(Self::Group),
            false => Detached::decode(bytes, sockets).map(Self::One),
        }
    }

    /// Its connections.
    pub fn connections(&self) -> &[Detached] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Group(group) => &group.connections,
        }
    }

    /// Its sockets for another thread, in the order of its message.
    pub(crate) fn shared_sockets(&self) -> impl Iterator<Item = &Arc<OwnedFd>> {
        let links = match self {
            Self::One(_) => &[][..],
            Self::Group(group) => &group.links,
        };
        let of_connections = self.connections().iter().flat_map(Detached::shared_sockets);
        of_connections.chain(links.iter().map(|link| &link.socket))
    }

    /// Its sockets, in the order of its message.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.shared_sockets().map(|socket| socket.as_fd())
    }

    /// Counts its connections and what rests on them.
    pub(crate) fn counts(&self, worker: &Worker) -> ParcelCounts {
        let mut streams = StreamCounts::default();
        for connection in self.connections() {
            streams.add_all(&worker.resting_streams(&connection.relay));
        }
        ParcelCounts { connections: self.connections().len(), streams }
    }
}

//! Further upstream sockets of parked connections: a client's HTTP/2 connection has one for each
//! stream that has an upstream of its own. A connection without any takes no memory here.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use foldhash::fast::RandomState;

use eyelet_memory::slab::Key;
use eyelet_sys::epoll::Epoll;
use eyelet_sys::memory::blocks::{LongBox, LongLived, LongVec};

use eyelet_relay::ready::{SIDES, Side, Token};

/// A further socket. Its place among those of its connection is all that names it.
#[derive(Debug, Default)]
pub struct FurtherSocket {
    /// The socket. `None`: the task of its connection has taken it, and its place waits for it.
    pub socket: Option<OwnedFd>,
    /// The readiness that epoll has reported since it was given.
    pub ready: u8,
    is_registered: bool,
}

const _: () = assert!(size_of::<FurtherSocket>() == 8);

/// Bytes of one connection's entry: its key, where its sockets are, and a byte of the map, where
/// the map is half full.
const ENTRY_BYTES: usize = 2 * (size_of::<(Key, LongBox<[FurtherSocket]>)>() + 1);

/// Bytes that so many further sockets of one connection take.
pub fn further_bytes(count: usize) -> usize {
    if count == 0 { 0 } else { ENTRY_BYTES + count * size_of::<FurtherSocket>() }
}

/// The further sockets of a worker's connections, by their keys.
#[derive(Default)]
pub(crate) struct FurtherSockets {
    all: HashMap<Key, LongBox<[FurtherSocket]>, RandomState>,
    /// The sum of [`further_bytes`].
    bytes: usize,
}

impl FurtherSockets {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sockets of a connection.
    pub(crate) fn count(&self, key: Key) -> usize {
        self.of(key).map_or(0, <[FurtherSocket]>::len)
    }

    /// The places of those that epoll has reported.
    pub(crate) fn ready(&self, key: Key) -> impl Iterator<Item = usize> {
        let sockets = self.of(key).unwrap_or_default().iter().enumerate();
        sockets.filter(|(_, socket)| socket.ready != 0).map(|(nth, _)| nth)
    }

    /// Takes one, and ends its registration. Its place stays.
    pub(crate) fn take_at(&mut self, key: Key, nth: usize, epoll: &Epoll) -> Option<OwnedFd> {
        let place = self.all.get_mut(&key)?.get_mut(nth)?;
        unregister(std::slice::from_mut(place), epoll);
        place.ready = 0;
        place.socket.take()
    }

    /// Puts one, which is registered nowhere, at a place that is free.
    pub(crate) fn put_at(&mut self, key: Key, nth: usize, socket: OwnedFd) -> Result<(), OwnedFd> {
        let place = self.all.get_mut(&key).and_then(|all| all.get_mut(nth));
        let Some(place) = place.filter(|place| place.socket.is_none()) else {
            return Err(socket);
        };
        *place = FurtherSocket { socket: Some(socket), ready: 0, is_registered: false };
        Ok(())
    }

    /// Forgets what epoll has reported of one. Its registration stays.
    pub(crate) fn forget_ready(&mut self, key: Key, nth: usize) {
        if let Some(place) = self.all.get_mut(&key).and_then(|all| all.get_mut(nth)) {
            place.ready = 0;
        }
    }

    pub(crate) fn of(&self, key: Key) -> Option<&[FurtherSocket]> {
        // Most workers have none, and each connection that ends comes here.
        if self.all.is_empty() {
            return None;
        }
        self.all.get(&key).map(|sockets| &**sockets)
    }

    /// Adds the sockets of a connection that has none: [`eyelet_relay::ready::FURTHER_MAX`] at
    /// most.
    pub(crate) fn insert(&mut self, key: Key, sockets: Vec<OwnedFd>) {
        if sockets.is_empty() {
            return;
        }
        self.bytes += further_bytes(sockets.len());
        let new = |socket| FurtherSocket { socket: Some(socket), ready: 0, is_registered: false };
        let mut all = LongVec::with_capacity_in(sockets.len(), LongLived);
        all.extend(sockets.into_iter().map(new));
        self.all.insert(key, all.into_boxed_slice());
    }

    /// Takes the sockets of a connection. They stay registered.
    pub(crate) fn remove(&mut self, key: Key) -> Vec<FurtherSocket> {
        if self.all.is_empty() {
            return Vec::new();
        }
        let mut removed = self.all.remove(&key);
        let removed = removed.iter_mut().flat_map(|all| all.iter_mut()).map(std::mem::take);
        let removed: Vec<_> = removed.collect();
        self.bytes -= further_bytes(removed.len());
        // What a burst had is not kept.
        if self.all.len() < self.all.capacity() / 4 {
            self.all.shrink_to_fit();
        }
        removed
    }

    /// Notes an event. One of a socket that was taken is for nobody.
    pub(crate) fn note(&mut self, key: Key, side: Side, bits: u8) {
        let nth = usize::from(side.saturating_sub(SIDES));
        let place = self.all.get_mut(&key).and_then(|all| all.get_mut(nth));
        if let Some(place) = place.filter(|place| place.socket.is_some()) {
            place.ready |= bits;
        }
    }

    /// Registers those of a connection that are not. Nothing is written to them, so only what can
    /// be read is reported.
    pub(crate) fn register(&mut self, key: Key, epoll: &Epoll) -> io::Result<()> {
        if self.all.is_empty() {
            return Ok(());
        }
        let sockets = self.all.get_mut(&key).map(|sockets| &mut **sockets).unwrap_or_default();
        for (side, further) in (SIDES..).zip(sockets) {
            if let Some(socket) = further.socket.as_ref().filter(|_| !further.is_registered) {
                let token = Token::Connection(key, side).encode();
                epoll.add_stream(socket, token, false)?;
                further.is_registered = true;
            }
        }
        Ok(())
    }
}

/// Ends the registrations of sockets that stay open.
pub(crate) fn unregister(sockets: &mut [FurtherSocket], epoll: &Epoll) {
    for further in sockets {
        if std::mem::take(&mut further.is_registered)
            && let Some(socket) = &further.socket
        {
            // An error means that it is not registered, which is the aim.
            let _ = epoll.remove(socket);
        }
    }
}

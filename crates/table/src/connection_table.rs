//! The connection table of a worker: one slot per connection from accept to close, with its
//! readiness, its deadline and its registrations in epoll.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use eyelet_sys::epoll::Epoll;
use eyelet_sys::memory::long_rc::LongRc;

use crate::further::{self, FurtherSocket, FurtherSockets, further_bytes};
use crate::held_places::{HeldPlaces, held_bytes};
use crate::shared_socket::SharedSocket;
use crate::shared_streams::{KeptStreams, SharedStreams, shared_bytes};
use crate::slot::{Slot, SlotState};
use crate::timer_wheel::{TICK_MS, TimerWheel};
use eyelet_hold::{HeldStreams, HoldPlace};
use eyelet_memory::budget::{Account, Budget, Counted};
use eyelet_memory::slab::{Key, Slab};
use eyelet_relay::ready::{CLIENT, FURTHER_MAX, READ, Ready, SIDES, Side, Token, UPSTREAM, WRITE};

/// The table.
pub struct ConnectionTable {
    /// The epoll instance in which all its sockets are registered.
    pub epoll: Epoll,
    slots: Slab<Slot>,
    further: FurtherSockets,
    streams: SharedStreams,
    holds: HeldPlaces,
    shared_sockets: Slab<LongRc<SharedSocket>>,
    wheel: TimerWheel,
    /// Memory of the slots' slab, of further sockets, and of shared and held streams.
    counted: Counted,
}

/// A connection that has left the table. Dropping it closes its sockets.
pub struct Removed {
    /// Its slot.
    pub slot: Slot,
    /// Its further sockets.
    pub further: Vec<FurtherSocket>,
    /// Its shared streams.
    pub streams: Option<KeptStreams>,
    /// The places of its held streams.
    pub holds: HeldStreams,
}

impl Removed {
    /// Descriptors that it holds, or was about to take.
    pub fn descriptors(&self) -> usize {
        self.slot.descriptors() + open_sockets(&self.further)
    }
}

/// The number of further sockets that are at their places.
pub fn open_sockets(further: &[FurtherSocket]) -> usize {
    further.iter().filter(|further| further.socket.is_some()).count()
}

impl ConnectionTable {
    /// An empty table whose time begins at a tick. Its memory counts against the budget.
    pub fn new(budget: &Arc<Budget>, first_tick: u32) -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new()?,
            slots: Slab::default(),
            further: FurtherSockets::default(),
            streams: SharedStreams::default(),
            holds: HeldPlaces::default(),
            shared_sockets: Slab::default(),
            wheel: TimerWheel::starting_at(first_tick),
            counted: Counted::of(budget, Account::Connections, 0),
        })
    }

    /// True if no connection is left.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Bytes that one more slot takes: 0 where a freed one can be used again.
    pub fn next_entry_bytes(&self) -> usize {
        if self.slots.has_hole() { 0 } else { size_of::<Slot>() }
    }

    /// Adds an accepted connection as an active one. With `is_early` its hello should have arrived:
    /// the socket counts as readable until a read shows otherwise.
    pub fn insert(&mut self, client: OwnedFd, is_early: bool) -> Key {
        let mut ready = Ready::default();
        ready.add(CLIENT, if is_early { READ | WRITE } else { WRITE });
        let key = self.slots.insert(Slot::accepted(client, ready));
        self.count();
        key
    }

    fn count(&mut self) {
        let beside = self.further.bytes() + self.streams.bytes() + self.holds.bytes();
        self.counted.set(self.slots.held_bytes() + beside);
    }

    /// Number of further sockets of a connection, or of their places.
    pub fn further_count(&self, key: Key) -> usize {
        self.further.count(key)
    }

    /// Number of shared streams of a connection.
    pub fn shared_count(&self, key: Key) -> usize {
        self.streams.count(key)
    }

    /// Bytes that a connection's further sockets, shared and held streams take, in the table and
    /// beside it: shared streams count themselves in the budget.
    pub fn stream_bytes(&self, key: Key) -> usize {
        let beside = further_bytes(self.further_count(key)) + shared_bytes(self.shared_count(key));
        beside + held_bytes(self.holds(key).len())
    }

    /// The places of a connection's held streams, in their order.
    pub fn holds(&self, key: Key) -> &[Option<HoldPlace>] {
        self.holds.of(key)
    }

    /// The connections for the places of whose held streams `is` is true.
    pub fn held_keys(&self, is: impl Fn(&[Option<HoldPlace>]) -> bool) -> Vec<Key> {
        self.holds.keys(is)
    }

    /// The places of all held streams.
    pub fn holds_mut(&mut self) -> impl Iterator<Item = &mut Option<HoldPlace>> {
        self.holds.all_mut()
    }

    /// Gives a connection the places of its held streams. It has none.
    pub fn give_holds(&mut self, key: Key, holds: HeldStreams) {
        // Another connection may be in its slot.
        if self.slots.slot(key).is_none() {
            return;
        }
        self.holds.insert(key, holds);
        self.count();
    }

    /// Takes the places of a connection's held streams.
    pub fn take_holds(&mut self, key: Key) -> HeldStreams {
        let taken = self.holds.remove(key);
        self.count();
        taken
    }

    /// The further sockets of a connection.
    pub fn further(&self, key: Key) -> &[FurtherSocket] {
        self.further.of(key).unwrap_or_default()
    }

    /// The places of a connection's further sockets that have something to be read.
    pub fn further_ready(&self, key: Key) -> impl Iterator<Item = usize> {
        self.further.ready(key)
    }

    /// The upstream of what rests on a connection: its further socket at this place, or its only
    /// one.
    pub fn upstream_at(&mut self, key: Key, nth: usize) -> Option<BorrowedFd<'_>> {
        match self.further.of(key) {
            Some(further) => further.get(nth)?.socket.as_ref().map(AsFd::as_fd),
            None => self.slots.slot(key)?.socket(UPSTREAM),
        }
    }

    /// Takes one further socket of a connection, and ends its registration. Its place stays.
    pub fn take_further_at(&mut self, key: Key, nth: usize) -> Option<OwnedFd> {
        self.further.take_at(key, nth, &self.epoll)
    }

    /// Puts a further socket, which is registered nowhere, at a place that is free.
    ///
    /// # Errors
    /// The socket: there is no such place.
    pub fn put_further_at(&mut self, key: Key, nth: usize, socket: OwnedFd) -> Result<(), OwnedFd> {
        self.further.put_at(key, nth, socket)
    }

    /// Forgets that a further socket has something to be read.
    pub fn forget_further_ready(&mut self, key: Key, nth: usize) {
        self.further.forget_ready(key, nth);
    }

    /// True if a further socket of a connection has something to be read, or something has come for
    /// a shared stream.
    pub fn is_called(&self, key: Key) -> bool {
        self.further.ready(key).next().is_some() || self.streams.is_called(key)
    }

    /// Notes that something has come for a shared stream of a connection. Returns whether it has
    /// some.
    pub fn call(&mut self, key: Key) -> bool {
        self.streams.call(key)
    }

    /// Gives a connection so many shared streams. Returns those that it had, or these if it has
    /// ended: another connection may be in its slot.
    pub fn give_streams(&mut self, key: Key, count: u32, kept: KeptStreams) -> Option<KeptStreams> {
        if self.slots.slot(key).is_none() {
            return Some(kept);
        }
        let earlier = self.streams.insert(key, count, kept);
        self.count();
        earlier
    }

    /// Returns the shared streams of a connection.
    pub fn kept_streams(&self, key: Key) -> Option<&KeptStreams> {
        self.streams.kept(key)
    }

    /// Takes the shared streams of a connection.
    pub fn take_streams(&mut self, key: Key) -> Option<KeptStreams> {
        let taken = self.streams.remove(key);
        self.count();
        taken
    }

    /// Gives a connection further sockets.
    ///
    /// # Errors
    /// The sockets: they are more than [`FURTHER_MAX`], the connection has some, or an upstream, or
    /// it has ended.
    pub fn give_further(&mut self, key: Key, sockets: Vec<OwnedFd>) -> Result<(), Vec<OwnedFd>> {
        // Another connection may be in its slot.
        let may_have = self.slots.slot(key).is_some_and(|slot| slot.upstream.is_none());
        if !may_have || self.further_count(key) > 0 || sockets.len() > FURTHER_MAX {
            return Err(sockets);
        }
        self.further.insert(key, sockets);
        self.count();
        Ok(())
    }

    /// Takes the further sockets of a connection, and ends their registrations.
    pub fn take_further(&mut self, key: Key) -> Vec<FurtherSocket> {
        let mut taken = self.further.remove(key);
        further::unregister(&mut taken, &self.epoll);
        self.count();
        taken
    }

    /// Registers a connection's sockets in epoll, which then reports their present readiness and
    /// each change. It is done at the first wait, so that earlier bytes cause no event. Writability
    /// is registered only for sockets that were full once: most sockets never are, and each would
    /// cause an event at the start and at each acknowledgement.
    pub fn register(&mut self, key: Key) -> io::Result<()> {
        let Some(slot) = self.slots.slot(key) else { return Ok(()) };
        // Most wait for a client alone that was registered before.
        let is_done = slot.registered & 1 << CLIENT != 0 && slot.ready.any(CLIENT, WRITE);
        if is_done && slot.upstream.is_none() {
            return self.further.register(key, &self.epoll);
        }
        for side in [CLIENT, UPSTREAM] {
            let room = !slot.ready.any(side, WRITE);
            let (is_registered, bit) = (slot.registered & 1 << side != 0, 1 << side);
            if is_registered && (!room || slot.watched_for_room & bit != 0) {
                continue;
            }
            let Some(socket) = slot.socket(side) else { continue };
            let token = Token::Connection(key, side).encode();
            if is_registered {
                self.epoll.change_stream(socket, token, room)?;
            } else {
                self.epoll.add_stream(socket, token, room)?;
            }
            slot.registered |= bit;
            slot.watched_for_room |= if room { bit } else { 0 };
        }
        self.further.register(key, &self.epoll)
    }

    /// The slot of this key, if it is still in use.
    pub fn slot(&mut self, key: Key) -> Option<&mut Slot> {
        self.slots.slot(key)
    }

    /// The keys of all connections.
    pub fn keys(&self) -> Vec<Key> {
        self.slots.keys()
    }

    /// The keys of the next `count` slots after `cursor`, or of all if there are fewer. The first
    /// slot follows the last one.
    pub fn next_keys(&self, cursor: &Cell<u32>, count: u32) -> impl Iterator<Item = Key> {
        let slots = self.slots.slots();
        let begin = cursor.get();
        let count = count.min(slots);
        cursor.set(begin.wrapping_add(count).checked_rem(slots).unwrap_or(0));
        (0..count).filter_map(move |n| {
            let position = (u64::from(begin) + u64::from(n)) % u64::from(slots);
            self.slots.key_at(position as u32)
        })
    }

    /// The key of the connection in this slot.
    pub fn key_at(&self, index: u32) -> Option<Key> {
        self.slots.key_at(index)
    }

    /// Number of slots, in use or not.
    pub fn slots(&self) -> u32 {
        self.slots.slots()
    }

    /// The current tick.
    pub fn now(&self) -> u32 {
        self.wheel.now()
    }

    /// Removes a connection. Dropping it closes its sockets.
    pub fn remove(&mut self, key: Key) -> Option<Removed> {
        self.slots.slot(key)?;
        self.wheel.unlink(&mut self.slots, key.index);
        let (slot, further) = (self.slots.remove(key)?, self.further.remove(key));
        let (streams, holds) = (self.streams.remove(key), self.holds.remove(key));
        self.count();
        Some(Removed { slot, further, streams, holds })
    }

    /// Adds a connection that was parked elsewhere. Its sockets count as writable until a write
    /// shows otherwise; whether they can be read is reported once they are registered.
    pub fn insert_parked(
        &mut self,
        client: OwnedFd,
        (upstream, further): (Option<OwnedFd>, Vec<OwnedFd>),
        state: SlotState,
    ) -> Key {
        let key = self.insert(client, false);
        if let Some(upstream) = upstream {
            self.set_connected(key, upstream);
        }
        self.further.insert(key, further);
        self.count();
        if let Some(slot) = self.slots.slot(key) {
            slot.state = state;
        }
        key
    }

    /// Removes a connection whose sockets stay open, and ends their registrations: those belong to
    /// the sockets, which another process may have, and would report its events here.
    pub fn remove_open(&mut self, key: Key) -> Option<Removed> {
        let mut removed = self.remove(key)?;
        let slot = &removed.slot;
        for side in [CLIENT, UPSTREAM] {
            if slot.registered & 1 << side != 0
                && let Some(socket) = slot.socket(side)
            {
                // An error means that it is not registered, which is the aim.
                let _ = self.epoll.remove(socket);
            }
        }
        further::unregister(&mut removed.further, &self.epoll);
        Some(removed)
    }

    /// Returns the time until the connection's deadline.
    pub fn due_left(&mut self, key: Key) -> Duration {
        let ticks = self.due(key).saturating_sub(self.wheel.now());
        Duration::from_millis(u64::from(ticks) * TICK_MS)
    }

    /// Makes the connection due after `wait` from now, also after an earlier deadline has passed.
    pub fn due_in(&mut self, key: Key, wait: Duration) {
        let Some(slot) = self.slots.slot(key) else { return };
        if let SlotState::Active { is_late, .. } = &mut slot.state {
            *is_late = false;
        }
        // Rounded up, plus one because the current tick may be nearly over.
        let of_second = u64::from(wait.subsec_millis()).div_ceil(TICK_MS);
        let ticks = wait.as_secs().saturating_mul(1000 / TICK_MS);
        let ticks = ticks.saturating_add(of_second + 1);
        let ticks = u32::try_from(ticks).unwrap_or(u32::MAX / 2);
        let deadline = self.wheel.now().saturating_add(ticks);
        self.wheel.set(&mut self.slots, key.index, deadline);
    }

    /// Returns the time since the connection's deadline was last set to `wait` from then.
    pub fn since_due_in(&mut self, key: Key, wait: Duration) -> Duration {
        let now = self.wheel.now();
        let Some(slot) = self.slots.slot(key) else { return Duration::ZERO };
        let left = u64::from(slot.links.deadline.saturating_sub(now)) * TICK_MS;
        wait.saturating_sub(Duration::from_millis(left))
    }

    /// The tick of so long ago.
    pub fn tick_before(&self, idle: Duration) -> u32 {
        let ticks = u32::try_from(idle.as_millis() / u128::from(TICK_MS)).unwrap_or(u32::MAX);
        self.wheel.now().saturating_sub(ticks)
    }

    /// Returns the time since a tick.
    pub fn since_tick(&self, tick: u32) -> Duration {
        Duration::from_millis(u64::from(self.wheel.now().saturating_sub(tick)) * TICK_MS)
    }

    /// The tick at which a connection is due.
    pub fn due(&mut self, key: Key) -> u32 {
        self.slots.slot(key).map_or(0, |slot| slot.links.deadline)
    }

    /// Advances the timer wheel and returns the next connection whose deadline has passed.
    pub fn next_due(&mut self, now: u32) -> Option<Key> {
        let index = self.wheel.next_due(&mut self.slots, now)?;
        self.slots.key_at(index)
    }

    /// Notes an event, if its connection still exists.
    pub fn note(&mut self, key: Key, side: Side, bits: u8) {
        match self.slots.slot(key) {
            Some(slot) if side < SIDES => slot.ready.add(side, bits),
            Some(_) => self.further.note(key, side, bits),
            None => {}
        }
    }

    /// Registers a socket that belongs to no slot, until [`ConnectionTable::unregister_shared`].
    pub fn register_shared(
        &mut self,
        socket: impl AsFd,
    ) -> io::Result<(Key, LongRc<SharedSocket>)> {
        let shared_socket = LongRc::new(SharedSocket::connected());
        let key = self.shared_sockets.insert(shared_socket.clone());
        if let Err(error) = self.epoll.add_stream(socket, Token::Shared(key).encode(), true) {
            self.shared_sockets.remove(key);
            return Err(error);
        }
        Ok((key, shared_socket))
    }

    /// Forgets such a socket. Its registration ends when it is closed.
    pub fn unregister_shared(&mut self, key: Key) {
        self.shared_sockets.remove(key);
    }

    /// Notes an event for such a socket. Returns the waker of the task that waits for it.
    pub fn note_shared(&mut self, key: Key, bits: u8) -> Option<Waker> {
        self.shared_sockets.slot(key)?.note(bits)
    }

    /// Registers a socket that may become the upstream.
    pub fn register_attempt(&mut self, key: Key, socket: impl AsFd, side: Side) -> io::Result<()> {
        let Some(slot) = self.slots.slot(key) else { return Ok(()) };
        slot.ready.clear(side, 15);
        self.epoll.add_stream(socket, Token::Connection(key, side).encode(), true)?;
        slot.registered |= 1 << side;
        slot.watched_for_room |= 1 << side;
        Ok(())
    }

    /// Makes such a socket the upstream.
    pub fn set_upstream(&mut self, key: Key, socket: OwnedFd, side: Side) -> io::Result<()> {
        let Some(slot) = self.slots.slot(key) else { return Ok(()) };
        if side != UPSTREAM {
            let token = Token::Connection(key, UPSTREAM).encode();
            self.epoll.change_stream(&socket, token, true)?;
            slot.ready.rename(side, UPSTREAM);
            slot.registered |= 1 << UPSTREAM;
            slot.watched_for_room |= 1 << UPSTREAM;
        }
        slot.upstream = Some(socket);
        Ok(())
    }

    /// Takes the upstream's socket out of its slot, and ends its registration. Whoever registers it
    /// anew is told what waits in it.
    pub fn take_upstream(&mut self, key: Key) -> Option<OwnedFd> {
        let slot = self.slots.slot(key)?;
        let socket = slot.upstream.take()?;
        if slot.registered & 1 << UPSTREAM != 0 {
            // An error means that it is not registered, which is the aim.
            let _ = self.epoll.remove(&socket);
        }
        slot.ready.clear(UPSTREAM, 15);
        slot.registered &= !(1 << UPSTREAM);
        slot.watched_for_room &= !(1 << UPSTREAM);
        Some(socket)
    }

    /// Makes a connected socket, which is not registered yet, the upstream.
    pub fn set_connected(&mut self, key: Key, socket: OwnedFd) {
        let Some(slot) = self.slots.slot(key) else { return };
        slot.ready.clear(UPSTREAM, 15);
        slot.ready.add(UPSTREAM, WRITE);
        slot.registered &= !(1 << UPSTREAM);
        slot.watched_for_room &= !(1 << UPSTREAM);
        slot.upstream = Some(socket);
    }
}

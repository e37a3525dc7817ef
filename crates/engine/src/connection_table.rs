//! The table of a worker: one entry a connection from accept to close, its readiness and its
//! deadline. It must not know what is done with bytes; `relay` does.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use eyelet_sys::epoll::{ENDED, Epoll};

use crate::ready::{CLIENT, READ, Ready, SIDES, Side, Token, UPSTREAM, WRITE};
use crate::relay::Relay;
use crate::timer_wheel::{Linked, Links, TICK_MS, TimerWheel};
use eyelet_memory::budget::{ACTIVE_BYTES, Account, Budget, Counted};
use eyelet_memory::slab::{Key, Slab};
use eyelet_telemetry::info::Parked;

/// Readiness of a socket that belongs to no entry, and the one task that waits for it.
pub struct SharedSocket {
    ready: Cell<u8>,
    waker: Cell<Option<Waker>>,
}

impl SharedSocket {
    /// Whether any of the bits was seen and is not used up.
    pub fn is_ready(&self, bits: u8) -> bool {
        self.ready.get() & bits != 0
    }

    /// Waits for any of the bits.
    pub fn poll_ready(&self, task: &mut Context<'_>, bits: u8) -> Poll<()> {
        if self.is_ready(bits) {
            return Poll::Ready(());
        }
        let known = self.waker.take().filter(|known| known.will_wake(task.waker()));
        self.waker.set(known.or_else(|| Some(task.waker().clone())));
        Poll::Pending
    }

    /// Nobody waits any more: who did would be kept by it.
    pub fn forget(&self) {
        self.waker.take();
    }

    /// Takes bits off, after a call that would have blocked.
    pub fn clear(&self, bits: u8) {
        self.ready.update(|ready| ready & !bits);
    }

    /// Notes that a read got less than it had room for. Behind an end there is one more to read.
    pub fn all_read(&self) {
        if !self.is_ready(ENDED) {
            self.clear(READ);
        }
    }
}

/// A connection. Its size is what an idle connection costs; see `park::tests`.
pub struct Slot {
    /// The client's socket.
    pub client: OwnedFd,
    /// The upstream's socket, where there is one.
    pub upstream: Option<OwnedFd>,
    /// Edges not yet used up.
    pub ready: Ready,
    /// The sides whose edges the kernel tells, a bit each.
    shared_socket: u8,
    /// Those of them of which it also tells that they can be written.
    watched_for_room: u8,
    /// Which of its places in the queues of those that make room counts: the newest.
    pub position: u16,
    links: Links,
    /// Who moves its bytes.
    pub state: SlotState,
}

/// Who moves a connection's bytes.
pub enum SlotState {
    /// Its future runs: the connection is being peeked at, decided, dialled or shaken hands with.
    Active {
        /// Who goes on with it.
        waits: Waits,
        /// Its deadline has passed, or it must end for another reason.
        late: bool,
        /// Its memory is wanted for others.
        shed: bool,
        /// How far it is.
        phase: Phase,
    },
    /// Nobody, until an event: the usual state.
    Parked {
        /// What its access line will need.
        info: Parked,
        /// How its bytes are moved.
        relay: Relay,
    },
    /// Its line is written and its last bytes are sent: what the client still sends is read and
    /// dropped, so that a reset does not overtake the alert (RFC 1122 4.2.2.13).
    Lingering,
}

/// A connection's future between two waits.
pub type Waiting = Pin<Box<dyn Future<Output = ()>>>;

/// Who goes on with an active connection when what it waits for has come.
pub enum Waits {
    /// It does not wait.
    No,
    /// Its future, which waits for nothing but its own sockets and its deadline. It is no task:
    /// most wait so once or twice and never otherwise.
    Here(Waiting),
    /// A task.
    Task(Waker),
}

/// A half-open connection that has sent more than this of a message without its end makes room
/// before smaller ones, however new it is. A hello with two post-quantum key shares and ECH takes
/// some 4 KiB, a certificate chain with RSA keys 5 KiB.
pub const LARGE_BYTES: usize = 8 << 10;

/// How far an active connection is, for who has to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its handshake, or the head of its request, is not done.
    HalfOpen,
    /// The same, and it has sent more than [`LARGE_BYTES`] of a message whose end has not come.
    Large,
    /// HTTP/2 without a stream.
    Idle,
    /// It is being served.
    Busy,
}

impl Linked for Slot {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Waits {
    /// What it waited for has come: wakes the task, or gives the future to be resumed.
    pub fn over(&mut self) -> Option<Waiting> {
        match self {
            Self::No => None,
            Self::Here(_) => match std::mem::replace(self, Self::No) {
                Self::Here(future) => Some(future),
                _ => None,
            },
            // It stays: to clone it for each wait would cost more than waking once in vain.
            Self::Task(waker) => {
                waker.wake_by_ref();
                None
            }
        }
    }
}

impl SlotState {
    /// One whose future waits for nothing yet.
    pub fn active(phase: Phase) -> Self {
        Self::Active { waits: Waits::No, late: false, shed: false, phase }
    }
}

impl Slot {
    /// The socket of one side.
    pub fn socket(&self, side: Side) -> Option<BorrowedFd<'_>> {
        match side {
            CLIENT => Some(self.client.as_fd()),
            _ => self.upstream.as_ref().map(AsFd::as_fd),
        }
    }

    /// What the entry is counted as in the budget beside itself. One that is being shed was
    /// given back already.
    pub fn active_bytes(&self) -> usize {
        match self.state {
            SlotState::Active { shed: false, .. } => ACTIVE_BYTES,
            _ => 0,
        }
    }

    /// Descriptors that the entry holds, or may be about to take.
    pub fn descriptors(&self) -> usize {
        match self.state {
            SlotState::Active { .. } => 2,
            SlotState::Parked { .. } | SlotState::Lingering => {
                1 + usize::from(self.upstream.is_some())
            }
        }
    }
}

/// The table.
pub struct ConnectionTable {
    /// Where all its sockets are registered.
    pub epoll: Epoll,
    slots: Slab<Slot>,
    shared_socket: Slab<Rc<SharedSocket>>,
    wheel: TimerWheel,
    /// What the entries' slab holds.
    counted: Counted,
}

impl ConnectionTable {
    /// An empty table. Memory for entries is counted against the budget.
    pub fn new(budget: &Arc<Budget>) -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new()?,
            slots: Slab::default(),
            shared_socket: Slab::default(),
            wheel: TimerWheel::default(),
            counted: Counted::of(budget, Account::Connections, 0),
        })
    }

    /// Whether no connection is left.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Bytes that one more entry takes: none where one that has ended left its place.
    pub fn next_entry_bytes(&self) -> usize {
        if self.slots.has_hole() { 0 } else { size_of::<Slot>() }
    }

    /// Takes in an accepted connection as an active one. With `is_early` its hello should be here
    /// already: that it can be read is supposed until a read has shown otherwise.
    pub fn insert(&mut self, client: OwnedFd, is_early: bool) -> Key {
        let mut ready = Ready::default();
        ready.add(CLIENT, if is_early { READ | WRITE } else { WRITE });
        let key = self.slots.insert(Slot {
            client,
            upstream: None,
            ready,
            shared_socket: 0,
            watched_for_room: 0,
            position: 0,
            links: Links::default(),
            state: SlotState::active(Phase::HalfOpen),
        });
        self.counted.set(self.slots.held_bytes());
        key
    }

    /// Has the kernel tell of a connection's sockets from now on: of how they are now, and of
    /// each change. Done when something must be waited for, so that what came before is no event.
    /// That a socket can be written is told of those that once could not: most always can, and
    /// would have an event at the start and at each acknowledgement for nothing.
    pub fn register(&mut self, key: Key) -> io::Result<()> {
        let Some(slot) = self.slots.slot(key) else { return Ok(()) };
        for side in [CLIENT, UPSTREAM] {
            let room = !slot.ready.any(side, WRITE);
            let (is_inspected, bit) = (slot.shared_socket & 1 << side != 0, 1 << side);
            if is_inspected && (!room || slot.watched_for_room & bit != 0) {
                continue;
            }
            let Some(socket) = slot.socket(side) else { continue };
            let token = Token::Connection(key, side).encode();
            if is_inspected {
                self.epoll.change_stream(socket, token, room)?;
            } else {
                self.epoll.add_stream(socket, token, room)?;
            }
            slot.shared_socket |= bit;
            slot.watched_for_room |= if room { bit } else { 0 };
        }
        Ok(())
    }

    /// The entry of this key, if it is still there.
    pub fn slot(&mut self, key: Key) -> Option<&mut Slot> {
        self.slots.slot(key)
    }

    /// The keys of all connections.
    pub fn keys(&self) -> Vec<Key> {
        self.slots.keys()
    }

    /// The keys of the next `count` places behind `cursor`, or of all if there are fewer. After
    /// the last place comes the first.
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

    /// Places for connections that there are, in use or not.
    pub fn slots(&self) -> u32 {
        self.slots.slots()
    }

    /// The current tick.
    pub fn now(&self) -> u32 {
        self.wheel.now()
    }

    /// Takes a connection out. Dropping it closes its sockets.
    pub fn remove(&mut self, key: Key) -> Option<Slot> {
        self.slots.slot(key)?;
        self.wheel.unlink(&mut self.slots, key.index);
        let removed = self.slots.remove(key);
        self.counted.set(self.slots.held_bytes());
        removed
    }

    /// Makes the connection due after `wait` from now.
    pub fn due_in(&mut self, key: Key, wait: Duration) {
        if self.slots.slot(key).is_some() {
            // Rounded up, and one more: the current tick may be nearly over.
            let ticks = wait.as_millis().div_ceil(u128::from(TICK_MS)) + 1;
            let ticks = u32::try_from(ticks).unwrap_or(u32::MAX / 2);
            let deadline = self.wheel.now().saturating_add(ticks);
            self.wheel.set(&mut self.slots, key.index, deadline);
        }
    }

    /// How long ago the deadline of a connection was last set to `wait` from then.
    pub fn since_due_in(&mut self, key: Key, wait: Duration) -> Duration {
        let now = self.wheel.now();
        let Some(slot) = self.slots.slot(key) else { return Duration::ZERO };
        let left = u64::from(slot.links.deadline.saturating_sub(now)) * TICK_MS;
        wait.saturating_sub(Duration::from_millis(left))
    }

    /// The tick at which a connection is due.
    pub fn due(&mut self, key: Key) -> u32 {
        self.slots.slot(key).map_or(0, |slot| slot.links.deadline)
    }

    /// Moves the wheel on and gives the next connection whose deadline has passed.
    pub fn next_due(&mut self, now: u32) -> Option<Key> {
        let index = self.wheel.next_due(&mut self.slots, now)?;
        self.slots.key_at(index)
    }

    /// Notes an event, if the entry that it belongs to is still there.
    pub fn note(&mut self, key: Key, side: Side, bits: u8) {
        if let Some(slot) = self.slots.slot(key) {
            slot.ready.add(side.min(SIDES - 1), bits);
        }
    }

    /// Watches a socket that belongs to no entry, until [`ConnectionTable::unwatch_shared`].
    pub fn register_shared(&mut self, socket: impl AsFd) -> io::Result<(Key, Rc<SharedSocket>)> {
        // What is connected can be written; if not, the first try shows it.
        let shared_socket =
            Rc::new(SharedSocket { ready: Cell::new(WRITE), waker: Cell::default() });
        let key = self.shared_socket.insert(shared_socket.clone());
        if let Err(error) = self.epoll.add_stream(socket, Token::Shared(key).encode(), true) {
            self.shared_socket.remove(key);
            return Err(error);
        }
        Ok((key, shared_socket))
    }

    /// Forgets such a socket, whose registration ends when it is closed.
    pub fn unwatch_shared(&mut self, key: Key) {
        self.shared_socket.remove(key);
    }

    /// Notes an event for such a socket; who waits for it.
    pub fn note_watched(&mut self, key: Key, bits: u8) -> Option<Waker> {
        let shared_socket = self.shared_socket.slot(key)?;
        shared_socket.ready.update(|ready| ready | bits);
        shared_socket.waker.take()
    }

    /// Has the kernel tell of a socket that may become the upstream.
    pub fn register_attempt(&mut self, key: Key, socket: impl AsFd, side: Side) -> io::Result<()> {
        let Some(slot) = self.slots.slot(key) else { return Ok(()) };
        slot.ready.clear(side, 15);
        self.epoll.add_stream(socket, Token::Connection(key, side).encode(), true)?;
        slot.shared_socket |= 1 << side;
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
            slot.shared_socket |= 1 << UPSTREAM;
            slot.watched_for_room |= 1 << UPSTREAM;
        }
        slot.upstream = Some(socket);
        Ok(())
    }

    /// Makes a socket the upstream that is connected and not watched yet.
    pub fn set_connected(&mut self, key: Key, socket: OwnedFd) {
        let Some(slot) = self.slots.slot(key) else { return };
        slot.ready.clear(UPSTREAM, 15);
        slot.ready.add(UPSTREAM, WRITE);
        slot.shared_socket &= !(1 << UPSTREAM);
        slot.watched_for_room &= !(1 << UPSTREAM);
        slot.upstream = Some(socket);
    }
}

//! An iteration of a worker takes events, wakes or resumes their connections, and accepts new ones.
//! A tick handles deadlines, the log and returned memory.

use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use eyelet_flows::peer::Peer;
use eyelet_memory::budget::{ACTIVE_BYTES, Account};
use eyelet_memory::slab::Key;
use eyelet_sys::epoll::Events;
use eyelet_sys::waker;
use eyelet_telemetry::info::ConnectionInfo;
use eyelet_telemetry::reason::{Reason, Shed};

use crate::park::{self, timeouts};
use crate::ready::{CLIENT, Token};
use crate::shedding::{drain, retired};
use crate::worker::{FIRST_TICK, Handle, Program, Task, Update, Worker};
use accept::{ACCEPTS, Accepted, Accepting};
use eyelet_table::queues;
use eyelet_table::timer_wheel::TICK_MS;
use eyelet_table::{SlotState, Waiting, Waits};

pub mod accept;
mod event_loop;
mod leave;
mod trim;

pub use event_loop::{DropFutures, others_first, run};

/// The number of connections accepted in one iteration from which most of their hellos have arrived
/// when the connections begin.
const CROWD: usize = 4;
/// Further looks at the sockets where only datagrams came. They come in trains, and the next one
/// has often come while the first one passed; the runtime's turn costs more than a look.
const TRAIN_LOOKS: usize = 4;
/// Ticks (1 s) between two reads of the kernel's drop counts: a system call for each listener.
const DROPS_TICKS: u32 = 10;

impl Worker {
    /// Creates a connection's slot and starts its future, or sheds the connection if there is no
    /// room.
    fn begin(self: &Rc<Self>, accepted: Accepted, is_early: bool) {
        self.begin_with(accepted, is_early, |program, handle, info| program.accepted(handle, info));
    }

    /// Returns false if it was shed.
    fn begin_with(
        self: &Rc<Self>,
        accepted: Accepted,
        is_early: bool,
        begin: impl FnOnce(Rc<dyn Program>, Handle, ConnectionInfo) -> Task,
    ) -> bool {
        let Accepted { listener, client, peer } = accepted;
        if !self.make_room(peer.ip()) {
            self.process.open.fetch_sub(1, Relaxed);
            self.uses_descriptors(-2);
            self.shed_new(listener, client, peer);
            return false;
        }
        let program = self.program();
        let mut info = self.info(listener, peer);
        info.decided.labels = program.as_ref().map(|it| it.labels()).unwrap_or_default();
        let key = {
            let mut table = self.table.borrow_mut();
            let key = table.insert(client, is_early);
            if let Some(slot) = table.slot(key) {
                queues::queue(&self.shedding.half_open, key, &mut slot.position);
                self.note_accepted(&mut slot.state, &info);
            }
            key
        };
        self.process.budget.take(Account::Connections, ACTIVE_BYTES);
        self.counters.connections.up();
        let handle = Handle::new(self.clone(), key);
        let Some(program) = program else { return true };
        self.guarded(key, || self.advance(key, begin(program, handle, info)));
        true
    }

    /// Begins the future that decides a flow, or ends the flow if there is no room.
    pub(crate) fn begin_deciding(self: &Rc<Self>, accepted: Accepted, (flow, peer): (Key, Peer)) {
        let begin = |program: Rc<dyn Program>, handle: Handle, mut info: ConnectionInfo| {
            info.is_quic = true;
            info.decided.destination = Some(peer.local());
            self.note_deciding(flow, handle.key());
            program.flow_begun(handle, info, flow)
        };
        if !self.begin_with(accepted, false, begin) {
            self.end_flow(flow, Reason::Shed(Shed::New));
        }
    }

    /// Polls a connection's future. If it waits only for its own sockets and its deadline, it is
    /// stored in its slot. Otherwise it becomes a task, which polls it again.
    fn advance(&self, key: Key, mut future: Waiting) {
        let used = waker::used();
        if future.as_mut().poll(&mut Context::from_waker(&self.counting_waker)).is_ready() {
            return;
        }
        let mut table = self.table.borrow_mut();
        match table.slot(key).map(|slot| &mut slot.state) {
            Some(SlotState::Active { waits, .. }) if waker::used() == used => {
                *waits = Waits::Here(future);
            }
            _ => drop(tokio::task::spawn_local(future)),
        }
    }

    /// Dispatches one epoll event.
    pub(crate) fn dispatch(self: &Rc<Self>, key: Key) {
        let mut table = self.table.borrow_mut();
        let Some(slot) = table.slot(key) else { return };
        match &mut slot.state {
            // Handshakes run after everything that only moves bytes.
            SlotState::Active { waits: Waits::Here(_), .. } => {
                self.run_queue.ready.borrow_mut().push(key)
            }
            SlotState::Active { waits, .. } => drop(waits.over()),
            SlotState::Parked { .. } | SlotState::Lingering => {
                drop(table);
                park::wake(self, key);
            }
        }
    }

    /// Resumes a connection: its future, its task, or its relay if it is parked.
    fn go_on(self: &Rc<Self>, key: Key) {
        let mut table = self.table.borrow_mut();
        let Some(slot) = table.slot(key) else { return };
        if let SlotState::Active { waits, .. } = &mut slot.state {
            let future = waits.over();
            drop(table);
            future.into_iter().for_each(|future| self.advance(key, future));
        } else {
            drop(table);
            park::wake(self, key);
        }
    }

    /// The deadline of a connection has passed, or it must end for another reason.
    pub fn late(self: &Rc<Self>, key: Key) {
        let mut table = self.table.borrow_mut();
        let Some(slot) = table.slot(key) else { return };
        match &mut slot.state {
            SlotState::Active { waits, is_late, .. } => {
                *is_late = true;
                let future = waits.over();
                drop(table);
                future.into_iter().for_each(|future| self.advance(key, future));
            }
            SlotState::Parked { .. } | SlotState::Lingering => {
                drop(table);
                park::late(self, key);
            }
        }
    }

    /// One iteration: the sockets that are ready, then the connections that used up their share of
    /// the last one. Returns whether more is waiting.
    pub(crate) fn iteration(
        self: &Rc<Self>,
        events: &mut Events,
        accepting: &mut Accepting,
    ) -> io::Result<bool> {
        self.clock.begin_iteration();
        let more = self.iterate(events, accepting);
        self.clock.end_iteration();
        more
    }

    fn iterate(
        self: &Rc<Self>,
        events: &mut Events,
        accepting: &mut Accepting,
    ) -> io::Result<bool> {
        let mut left = self.look(events, accepting, 1)?;
        if left {
            // A listener that is ready again has more connections than predicted.
            left = self.look(events, accepting, 2)?;
        }
        for _ in 0..TRAIN_LOOKS {
            if left || !are_datagrams(events) {
                break;
            }
            left = self.look(events, accepting, 1)?;
        }
        // Connections that a task has shed.
        self.end_shed();
        let called = std::mem::take(&mut *self.run_queue.called.borrow_mut());
        for key in called {
            let has_streams = self.table.borrow_mut().call(key);
            if has_streams {
                self.guarded(key, || park::wake(self, key));
            }
        }
        let again = std::mem::take(&mut *self.run_queue.next_iteration.borrow_mut());
        let more = left || !again.is_empty();
        for key in again {
            self.guarded(key, || self.go_on(key));
        }
        Ok(more)
    }

    /// Handles the sockets that are ready now. Returns whether more may be ready. From each
    /// listener it accepts up to `times` as many connections as last time.
    fn look(
        self: &Rc<Self>,
        events: &mut Events,
        accepting: &mut Accepting,
        times: usize,
    ) -> io::Result<bool> {
        self.table.borrow().epoll.poll(events)?;
        let mut left = events.is_full();
        for event in events.iter() {
            if let Token::Listener(index) = Token::decode(event.token)
                && !accepting.paused
            {
                accepting.guess = (times * accepting.guess).min(ACCEPTS);
                left |= self.accept(accepting, index);
            }
        }
        left |= self.read_datagrams(events);
        for event in events.iter() {
            if let Token::Connection(key, side) = Token::decode(event.token) {
                self.table.borrow_mut().note(key, side, event.ready);
            }
        }
        // Writes to one kind of peer are done together, so that each peer process wakes once: first
        // what upstreams sent goes to clients, then what clients sent goes to upstreams.
        for of_client in [false, true] {
            for event in events.iter() {
                if let Token::Connection(key, side) = Token::decode(event.token)
                    && (side == CLIENT) == of_client
                {
                    self.guarded(key, || self.dispatch(key));
                }
            }
        }
        // Requests above are read before the responses here: these sockets are shared upstreams.
        for event in events.iter() {
            if let Token::Shared(key) = Token::decode(event.token) {
                let waiting = self.table.borrow_mut().note_shared(key, event.ready);
                waiting.into_iter().for_each(Waker::wake);
            }
        }
        let mut keys = std::mem::take(&mut *self.run_queue.ready.borrow_mut());
        for key in keys.drain(..) {
            self.guarded(key, || self.go_on(key));
        }
        *self.run_queue.ready.borrow_mut() = keys;
        // Accepted first and begun last: a new connection's handshake does not delay the others.
        self.begin_all(accepting);
        Ok(left)
    }

    /// Begins the connections that were accepted.
    pub fn begin_all(self: &Rc<Self>, accepting: &mut Accepting) {
        // In a crowd most hellos have arrived by now.
        let is_crowd = accepting.waiting.len() >= CROWD;
        for accepted in accepting.waiting.drain(..) {
            self.begin(accepted, is_crowd);
        }
    }

    /// Runs `wake` for a connection, then ends the connections that it has shed.
    pub(crate) fn guarded(self: &Rc<Self>, key: Key, wake: impl FnOnce()) {
        self.caught(key, wake);
        self.end_shed();
    }

    /// A panic ends the connection that caused it, not its neighbours. (In a task, tokio catches
    /// it.)
    fn caught(self: &Rc<Self>, key: Key, wake: impl FnOnce()) {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(wake)).is_err() {
            tracing::error!("internal error: one connection is closed");
            park::abandon(self, key);
        }
    }

    /// Resumes the futures of connections that were shed. They end and free their memory. Each wake
    /// calls this, and mostly none were shed.
    #[inline]
    fn end_shed(self: &Rc<Self>) {
        if !self.run_queue.shed.borrow().is_empty() {
            self.end_all_shed();
        }
    }

    #[cold]
    fn end_all_shed(self: &Rc<Self>) {
        loop {
            let shed = self.run_queue.shed.borrow_mut().pop();
            let Some(key) = shed else { break };
            self.caught(key, || self.go_on(key));
        }
    }

    /// Handles one tick. The worker's clock has run for `elapsed`.
    pub(crate) fn tick(self: &Rc<Self>, accepting: &mut Accepting, elapsed: Duration) {
        let now = FIRST_TICK + (elapsed.as_millis() as u64 / TICK_MS) as u32;
        loop {
            let due = self.table.borrow_mut().next_due(now);
            let Some(key) = due else { break };
            self.guarded(key, || self.late(key));
        }
        let mut later = std::mem::take(&mut *self.run_queue.next_tick.borrow_mut());
        // Each edge of a waiting connection has added it once more.
        later.sort_unstable_by_key(|key| (key.index, key.generation));
        later.dedup();
        for key in later {
            self.guarded(key, || park::wake(self, key));
        }
        self.end_due_flows();
        self.shedding.memory_wait.wake_all();
        let program = self.program();
        if let Some(program) = &program {
            program.tick();
        }
        self.process.budget.note_peak();
        self.tidy_queues();
        self.resume(accepting);
        if self.burst.get().ticks.is_multiple_of(DROPS_TICKS) {
            self.count_drops(accepting);
        }
        if let Some(program) = program {
            program.flush_log(self.clock.look());
            self.give_memory_back(&*program, accepting);
        }
        if self.is_draining() {
            drain::tick(self);
        } else if self.is_retired() {
            retired::tick(self);
        }
    }

    /// Has the program take over the newest configuration, and listens where it says. Connections
    /// that are queued at a removed listener begin under the configuration that still has it.
    fn reload(self: &Rc<Self>, accepting: &mut Accepting, end: Instant) {
        let Some(program) = self.program() else { return };
        let Some(update) = program.update() else { return };
        let Update { settings, sockets } = update;
        let (datagram_sockets, sockets): (Vec<_>, Vec<_>) =
            sockets.into_iter().partition(|socket| socket.is_datagrams);
        self.unlisten(accepting, &sockets, end);
        program.apply_update();
        timeouts::take_settings(self, settings);
        self.relisten(accepting, sockets);
        self.listen_datagrams(&datagram_sockets);
    }
}

/// True if there are events, and all are of datagrams.
fn are_datagrams(events: &Events) -> bool {
    let is_one = |token| matches!(Token::decode(token), Token::Flow(_) | Token::Datagrams(_));
    !events.is_empty() && events.iter().all(|event| is_one(event.token))
}

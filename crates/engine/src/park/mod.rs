//! Park and wake. An idle connection is a value in the connection table, and an event moves its
//! bytes without a task. Also how a parked connection ends, and how a client lingers.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use eyelet_sys::epoll::ENDED;

use self::rest::{SETTLE, idle_for, idle_timeout};
use self::resting::{goes_on_until, has_room_to_wake, wake_bytes};
use crate::ready::{CLIENT, READ, UPSTREAM, WRITE};
use crate::socket;
use crate::worker::{Handle, Worker};
use eyelet_memory::budget::{ACTIVE_BYTES, Account, Counted};
use eyelet_memory::slab::Key;
use eyelet_record::alert::CLOSE_NOTIFY;
use eyelet_relay::{Progress, Relay, Sockets};
use eyelet_table::queues::{self, IdleKind};
use eyelet_table::{EndCause, Phase, Slot, SlotState, open_sockets};
use eyelet_telemetry::info::{ConnectionInfo, End, Parked};
use eyelet_telemetry::labels::Labels;
use eyelet_telemetry::listing::State;
use eyelet_telemetry::reason::{Class, Limit, Reason, Shed, Stage, When};
use eyelet_wire::websocket::close_to_server;

/// Idle time after which the kernel probes a connection: below the five minutes after which
/// common NATs forget one.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(240);
/// The time that a lingering client may take to read the last bytes and close.
const LINGER: Duration = Duration::from_secs(2);
/// Reads of a lingering client's bytes in one wake.
const LINGER_READS: usize = 16;
/// Parts of the table in which connections of removed rules are ended, a part each tick: one second
/// in all. Clients that come back at once would delay the others.
const END_PARTS: u32 = 10;
/// Slots of a part at least, so that a small table is one part.
const END_SLOTS_MIN: u32 = 1024;

/// Parks a connection. Its future must end after this; the slot keeps the rest.
pub fn park(active: &Handle, info: &mut ConnectionInfo, mut relay: Relay) {
    let worker = &active.worker;
    active.release();
    let is_quiet = relay.flow().held_bytes() == 0;
    let rests = {
        let mut table = worker.table.borrow_mut();
        let beside = table.stream_bytes(active.key());
        relay.flow().set_has_streams(beside > 0);
        let Some(slot) = table.slot(active.key()) else { return };
        if slot.upstream.is_none() {
            worker.uses_descriptors(-1);
        }
        worker.process.budget.give(Account::Connections, slot.active_bytes());
        let rests = is_quiet && !slot.ready.readable() && matches!(relay, Relay::Splice(_));
        let mut info = info.take().park(&mut worker.shared.borrow_mut());
        worker.count_parked(&info, &mut relay, beside);
        let wait = rest::wait_of(active, (&mut info, &mut relay), &table);
        let Some(slot) = table.slot(active.key()) else { return };
        if held::waits_for_verdicts(worker, &relay) {
            queues::queue(&worker.shedding.held, active.key(), &mut slot.position);
        }
        worker.set_state(&mut slot.state, SlotState::Parked { info, relay });
        table.due_in(active.key(), wait);
        rests
    };
    // Bytes that arrived while it was active cause no event any more.
    if !rests {
        wake(worker, active.key());
    }
    register(worker, active.key());
}

/// Registers the sockets that must be waited for, if they are not registered yet.
pub(crate) fn register(worker: &Rc<Worker>, key: Key) {
    let registered = worker.table.borrow_mut().register(key);
    if let Err(error) = registered {
        give_up(worker, key, Reason::Unregistered((&error).into()));
    }
}

/// Bytes of a TLS record with the shortest message that a program can answer: header, 18 bytes of
/// text, tag. A close_notify, which needs no answer, has 24 in TLS 1.3.
const MESSAGE_BYTES_MIN: usize = 5 + 18 + 16;

/// Handles an event for a parked connection: moves what can be moved, and parks it again.
pub fn wake(worker: &Rc<Worker>, key: Key) {
    if is_to_wait(worker, key) {
        return worker.run_queue.push_next_tick(key);
    }
    let mut table = worker.table.borrow_mut();
    let is_called = held::is_called(&table, key);
    let (now, beside) = (table.now(), table.stream_bytes(key));
    let Some(Slot { client, upstream, ready, state, position, .. }) = table.slot(key) else {
        return;
    };
    let (progress, moved, blocked) = match state {
        SlotState::Active { .. } => return,
        SlotState::Lingering => {
            if lingers(worker, client, ready) {
                return;
            }
            let removed = table.remove(key);
            drop(table);
            return worker.closed(removed);
        }
        SlotState::Parked { info, relay } => {
            let (moved, untaken) = (info.moved(), relay.flow().untaken());
            let counted = Recounted { held: relay.held_bytes(), beside, worker, info, relay };
            let upstream = upstream.as_ref().map(AsFd::as_fd);
            let mut sockets = Sockets::new(client.as_fd(), upstream, ready);
            let buffers = &mut *worker.buffers.borrow_mut();
            buffers.piece = worker.process.budget.piece();
            let answer: eyelet_relay::AnswerParked<'_> = &|state, bytes, out| {
                worker.program().map_or(0, |program| program.answer(state, bytes, out))
            };
            let progress =
                eyelet_relay::run(counted.relay, &mut sockets, counted.info, buffers, answer);
            drop(counted);
            let progress = if is_called && progress.goes_on() { Progress::Dial } else { progress };
            if let Some(since) = relay.flow().note_holding(now)
                && (upstream.is_some() || relay.flow().exchange().is_some())
                && relay.flow().begins_to_hold()
            {
                worker.queue_holder(key, since);
            }
            let is_served = upstream.is_some() || relay.flow().exchange().is_some();
            if !is_served && progress != Progress::Dial {
                note_waiting(worker, key, position, relay);
            }
            // An exchange that rests has not read them here.
            let is_taken = relay.has_exchange() && relay.flow().untaken() < untaken;
            // A PING moves no stream, and each has a deadline of its own.
            let may_move = progress != Progress::Dial && !relay.flow().has_streams();
            let has_moved = may_move && (moved != info.moved() || is_taken);
            let moved = has_moved.then(|| idle_for(worker, relay, info.is_settled()));
            let is_full = |side| !ready.any(side, WRITE);
            (progress, moved, is_full(CLIENT) || upstream.is_some() && is_full(UPSTREAM))
        }
    };
    moved.into_iter().for_each(|wait| table.due_in(key, wait));
    drop(table);
    if blocked && progress.goes_on() {
        register(worker, key);
    }
    match progress {
        Progress::Rest => {}
        Progress::Again => worker.run_queue.push_next_iteration(key),
        Progress::Later => worker.run_queue.push_next_tick(key),
        Progress::Dial => dial(worker, key),
        Progress::Closed(end) => end_parked(worker, key, &end, Last::Close),
        Progress::Reset(end) => end_parked(worker, key, &end, Last::Reset),
        Progress::Linger(end) => end_parked(worker, key, &end, Last::Linger),
        Progress::Cut(end) => end_parked(worker, key, &end, Last::Cut),
    }
}

/// A parked connection whose bytes are moved. When this is dropped, what it holds counts: also
/// after a panic, because its end gives back what it holds then.
struct Recounted<'a> {
    held: usize,
    /// Bytes of its further sockets and shared streams.
    beside: usize,
    worker: &'a Worker,
    info: &'a mut Parked,
    relay: &'a mut Relay,
}

impl Drop for Recounted<'_> {
    fn drop(&mut self) {
        // A wake changes no piece of a state, and takes no stream.
        self.worker.recount(self.info, self.relay, self.held, self.beside);
    }
}

/// Hands a terminated connection to the program: its upstream must be dialled, or an exchange of it
/// rests no more.
fn dial(worker: &Rc<Worker>, key: Key) {
    let since = rest::idle_since(worker, key);
    let has_upstream =
        worker.table.borrow_mut().slot(key).is_some_and(|slot| slot.upstream.is_some());
    let Some((info, mut relay)) = unpark(worker, key, SlotState::active(Phase::Busy)) else {
        return;
    };
    let is_held = matches!(relay, Relay::Held(_));
    worker.note_state(key, if is_held { State::Deciding } else { State::Serving }, &info);
    worker.uses_descriptors(isize::from(!has_upstream));
    worker.process.budget.take(Account::Connections, ACTIVE_BYTES);
    // From here on a failure drops it, and what the connection took is given back.
    let handle = Handle::woken(worker.clone(), key, since);
    let Some(program) = worker.program() else { return };
    // The others of this turn are woken before its task has run and counted what it holds.
    let streams = resting::streams(&mut worker.table.borrow_mut(), key);
    let resting = streams.bytes(worker, relay.flow());
    let bytes = program.task_bytes(&info.decided) + relay.flow().held_bytes() + resting;
    let counted = Counted::new(&worker.process.budget, bytes);
    tokio::task::spawn_local(program.woken(handle, info, relay, counted));
}

/// Has the tasks of exchanges at rest end them, as those of any other.
fn end_in_task(worker: &Rc<Worker>, key: Key, cause: EndCause) {
    dial(worker, key);
    worker.ending.has_operator_ended.update(|has| has || cause == EndCause::Ended);
    let mut table = worker.table.borrow_mut();
    if let Some(Slot { state: SlotState::Active { end, .. }, .. }) = table.slot(key) {
        *end = Some(cause);
    }
}

/// Wakes a connection whose exchange is due, or tries again at the next tick if there is no room
/// for its tasks. They know since when nothing has moved, and what that means.
fn late_exchange(worker: &Rc<Worker>, key: Key) {
    let source = match worker.table.borrow_mut().slot(key).map(|slot| &slot.state) {
        Some(SlotState::Parked { info, .. }) => info.client_ip(),
        _ => return,
    };
    if worker.make_room_to_wake(key, source, wake_bytes(worker, key)) {
        return dial(worker, key);
    }
    worker.table.borrow_mut().due_in(key, Duration::ZERO);
}

/// True if bytes must stay unread, because there is no room for the task that would serve them. The
/// connection is tried again at the next tick.
fn is_to_wait(worker: &Rc<Worker>, key: Key) -> bool {
    if has_room_to_wake(worker, key) {
        return false;
    }
    let (source, task_bytes) = {
        let mut table = worker.table.borrow_mut();
        let streams = resting::streams(&mut table, key);
        let is_called = held::is_called(&table, key);
        let Some(Slot { client, upstream, ready, state, .. }) = table.slot(key) else {
            return false;
        };
        let SlotState::Parked { info, relay } = state else { return false };
        let needs_task = match upstream {
            None if is_called => true,
            None if matches!(relay, Relay::Held(_)) => held::is_over(relay),
            None if relay.flow().exchange().is_none() => {
                ready.any(CLIENT, READ) && !(ready.any(CLIENT, ENDED) && says_no_more(client))
            }
            // What the client has not taken is sent first, which needs none.
            _ if relay.has_exchange() && relay.flow().untaken() == 0 => {
                ready.any(CLIENT, READ) || ready.any(UPSTREAM, READ)
            }
            _ => false,
        };
        if !needs_task {
            return false;
        }
        let resting = streams.bytes(worker, relay.flow());
        let shared = worker.shared.borrow();
        let needs = |decided| worker.program().map(|program| program.task_bytes(decided));
        let task_bytes = info.decided(&shared).and_then(needs).unwrap_or(0);
        (info.client_ip(), task_bytes + resting)
    };
    if worker.make_room_to_wake(key, source, ACTIVE_BYTES + task_bytes) {
        return false;
    }
    if let Some(Slot { upstream: None, state: SlotState::Parked { relay, .. }, position, .. }) =
        worker.table.borrow_mut().slot(key)
    {
        note_waiting(worker, key, position, relay);
    }
    true
}

/// Queues a connection as half-open if it holds a request, or a part of one, that is not served.
/// One that is held has a queue of its own.
fn note_waiting(worker: &Worker, key: Key, position: &mut u16, relay: &mut Relay) {
    if !held::waits_for_verdicts(worker, relay) && relay.flow().begins_to_wait() {
        queues::queue(&worker.shedding.half_open, key, position);
    }
}

/// True if a connection is parked and half-open. One that has an upstream is being served.
pub fn waits(slot: &mut Slot) -> bool {
    match slot {
        Slot { upstream: None, state: SlotState::Parked { relay, .. }, .. } => relay.flow().waits(),
        _ => false,
    }
}

/// True if a client that has ended its stream sent at most a close_notify before.
fn says_no_more(client: &impl AsFd) -> bool {
    let mut unread = [0; MESSAGE_BYTES_MIN];
    // The wake's own read reports an error.
    !socket::peek(client, &mut unread).is_ok_and(|length| length == unread.len())
}

/// Takes info and relay out of a parked slot and gives the slot another role.
pub(crate) fn unpark(
    worker: &Rc<Worker>,
    key: Key,
    state: SlotState,
) -> Option<(ConnectionInfo, Relay)> {
    let mut table = worker.table.borrow_mut();
    let further = table.stream_bytes(key);
    let slot = table.slot(key)?;
    let SlotState::Parked { info, mut relay } = worker.change_state(&mut slot.state, state) else {
        return None;
    };
    worker.uncount_parked(&info, &mut relay, further);
    Some((info.wake(&mut worker.shared.borrow_mut()), relay))
}

/// Ends a connection after a panic of ours.
pub fn abandon(worker: &Rc<Worker>, key: Key) {
    give_up(worker, key, Reason::Internal("a panic"));
}

fn give_up(worker: &Rc<Worker>, key: Key, reason: Reason) {
    end_parked(worker, key, &End::failed(reason), Last::Reset);
    // If it was not parked, it is gone already or has been logged.
    let removed = worker.table.borrow_mut().remove(key);
    worker.closed(removed);
}

/// The way in which the sockets of a connection end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// It ends with a FIN.
    Close,
    /// It ends with a reset, towards both sides.
    Reset,
    /// After the client had time to read what it was sent last.
    Linger,
    /// After that time, too. The upstream gets a reset: what the client had sent was cut, and the
    /// application must not take it for complete.
    Cut,
}

fn end_parked(worker: &Rc<Worker>, key: Key, end: &End, last: Last) {
    let mut table = worker.table.borrow_mut();
    if !matches!(table.slot(key).map(|slot| &slot.state), Some(SlotState::Parked { .. })) {
        return;
    }
    let bytes = table.stream_bytes(key);
    let further = table.take_further(key);
    let streams = table.take_streams(key);
    let holds = table.take_holds(key);
    worker.uses_descriptors(-open_sockets(&further).cast_signed());
    let Some(Slot { client, upstream, state, .. }) = table.slot(key) else { return };
    // Taken out first: if the rest panics, nothing is uncounted twice.
    let parked = worker.change_state(state, SlotState::Lingering);
    if let SlotState::Parked { info, mut relay } = parked {
        worker.uncount_parked(&info, &mut relay, bytes);
        resting::end_resting(worker, &info, &relay, end);
        if let Relay::Held(held) = &relay {
            held::end_request(worker, &info, held, end);
        }
        worker.emit_parked(&info, &relay, end);
        // Drops held bytes and pipes before the sockets that they were for.
    }
    if matches!(last, Last::Reset | Last::Cut) {
        // Without a reset a socket is still closed.
        let sockets = further.iter().filter_map(|further| further.socket.as_ref());
        sockets.for_each(|socket| _ = socket::reset_on_close(socket));
    }
    // Each is reset.
    drop((further, streams, holds));
    match last {
        Last::Linger | Last::Cut => {
            if let Some(upstream) = upstream {
                if last == Last::Cut {
                    let _ = socket::reset_on_close(upstream);
                }
                worker.uses_descriptors(-1);
            }
            drop(table);
            linger(worker, key);
        }
        Last::Close | Last::Reset => {
            if last == Last::Reset {
                // Without a reset the socket is still closed.
                let _ = socket::reset_on_close(client);
                let _ = upstream.as_ref().map(socket::reset_on_close);
            }
            let removed = table.remove(key);
            drop(table);
            worker.closed(removed);
        }
    }
}

/// Sends an active connection's last bytes and makes it linger. The caller has logged it.
pub fn close_with(active: &Handle, bytes: &[u8]) {
    let worker = &active.worker;
    active.release();
    {
        let mut table = worker.table.borrow_mut();
        let Some(slot) = table.slot(active.key()) else { return };
        // A client whose receive window is full already will not read an alert.
        if !bytes.is_empty() {
            let _ = socket::send(&slot.client, bytes);
        }
        worker.uses_descriptors(-1);
        worker.process.budget.give(Account::Connections, slot.active_bytes());
        worker.change_state(&mut slot.state, SlotState::Lingering);
    }
    linger(worker, active.key());
}

fn linger(worker: &Rc<Worker>, key: Key) {
    let mut table = worker.table.borrow_mut();
    let Some(slot) = table.slot(key) else { return };
    // If the client is gone, the wake below finds that out.
    let _ = socket::shutdown_write(&slot.client);
    slot.upstream = None;
    slot.ready.add(CLIENT, READ);
    table.due_in(key, LINGER);
    drop(table);
    wake(worker, key);
    register(worker, key);
}

/// Reads and drops what a lingering client still sends. Returns whether it lingers on.
fn lingers(worker: &Worker, client: &impl AsFd, ready: &mut crate::ready::Ready) -> bool {
    let buffers = &mut *worker.buffers.borrow_mut();
    for _ in 0..LINGER_READS {
        match socket::recv(client, &mut buffers.input) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                ready.clear(CLIENT, READ | ENDED);
                return true;
            }
            Err(_) => return false,
        }
    }
    // It sends without end, so it does not wait to read our last bytes.
    false
}

/// Handles the deadline of a parked connection.
pub fn late(worker: &Rc<Worker>, key: Key) {
    let mut table = worker.table.borrow_mut();
    match table.slot(key).map(|slot| &mut slot.state) {
        Some(SlotState::Lingering) => {
            let removed = table.remove(key);
            drop(table);
            worker.closed(removed);
        }
        Some(SlotState::Parked { relay, .. }) if relay.has_exchange() => {
            drop(table);
            late_exchange(worker, key);
        }
        Some(SlotState::Parked { relay: Relay::Held(held), .. }) => {
            held.expire();
            drop(table);
            wake(worker, key);
        }
        Some(SlotState::Parked { info, relay }) => {
            let flow = relay.flow();
            let left = idle_timeout(&worker.settings.get(), flow).saturating_sub(SETTLE);
            let limit = if flow.is_between_requests() { Limit::Http2Idle } else { Limit::Idle };
            if info.is_settled() || left.is_zero() {
                drop(table);
                return close(worker, key, Reason::Timeout(limit, None));
            }
            info.settle();
            if let Some(Slot { upstream: Some(upstream), .. }) = table.slot(key) {
                // The client's socket has it from its listener. A Unix socket needs none.
                let _ = socket::keepalive(upstream, KEEPALIVE_IDLE);
            }
            for socket in table.further(key).iter().filter_map(|further| further.socket.as_ref()) {
                let _ = socket::keepalive(socket, KEEPALIVE_IDLE);
            }
            table.due_in(key, left);
        }
        Some(SlotState::Active { .. }) | None => {}
    }
}

/// Ends a connection that waits to be served, because others need its memory. Returns `false` if it
/// does not wait any more.
pub fn shed_waiting(worker: &Rc<Worker>, key: Key) -> bool {
    let waits = worker.table.borrow_mut().slot(key).is_some_and(waits);
    if waits {
        close(worker, key, Reason::Shed(Shed::Unfinished(When::Before(Stage::Request))));
    }
    waits
}

/// The tick since which a parked connection holds bytes for a peer. If it holds none, it returns
/// `None` and notes that the connection is not queued any more.
pub fn holds_since(worker: &Worker, key: Key) -> Option<u32> {
    let mut table = worker.table.borrow_mut();
    let Some(Slot { state: SlotState::Parked { relay, .. }, .. }) = table.slot(key) else {
        return None;
    };
    let since = relay.flow().holds_since();
    if since.is_none() {
        relay.flow().leaves_queue();
    }
    since
}

/// Ends a connection whose peer does not take the bytes that we hold for it. It sends resets, so
/// that neither side takes a cut stream for complete.
pub fn give_up_slow(worker: &Rc<Worker>, key: Key) {
    let outcome = match worker.table.borrow_mut().slot(key).map(|slot| &slot.state) {
        Some(SlotState::Parked { relay, .. }) => relay.outcome(),
        _ => return,
    };
    let reason = Reason::Shed(Shed::Untaken);
    end_parked(worker, key, &End { outcome, reason }, Last::Reset);
}

/// Ends an idle connection because memory is short. Returns `false` if it is not idle any more.
pub fn shed(worker: &Rc<Worker>, key: Key, kind: IdleKind) -> bool {
    {
        let mut table = worker.table.borrow_mut();
        let Some(Slot { state: SlotState::Parked { relay, .. }, .. }) = table.slot(key) else {
            return false;
        };
        let has_state = relay.flow().is_between_requests();
        let is_other = has_state != (kind < IdleKind::Plain);
        if is_other || !relay.flow().is_quiet() || held::waits_for_verdicts(worker, relay) {
            return false;
        }
    }
    close(worker, key, Reason::Shed(Shed::Idle));
    true
}

/// Ends parked connections for which `is_gone` is true by their labels and their rule, in one part
/// of the table from `cursor` on. It wakes the tasks of active ones, and those of streams and
/// switched connections that rest. They look for themselves. A response of HTTP/1.1 that rests goes
/// on to its end. Returns true if that was the last part.
pub fn end_where(
    worker: &Rc<Worker>,
    cursor: &Cell<u32>,
    reason: &Reason,
    mut is_gone: impl FnMut(&Labels, Option<u32>) -> bool,
) -> bool {
    let slots = worker.table.borrow().slots();
    let part = slots.div_ceil(END_PARTS).max(END_SLOTS_MIN);
    let end = cursor.get().saturating_add(part);
    let keys: Vec<Key> = worker.table.borrow().next_keys(cursor, part).collect();
    for key in keys {
        let (mut goes_on, mut has_streams, mut ends) = (false, false, false);
        match worker.table.borrow_mut().slot(key).map(|slot| &mut slot.state) {
            Some(SlotState::Parked { info, relay }) => {
                let (labels, rule) = info.rule(&worker.shared.borrow());
                ends = !relay.has_exchange() && is_gone(&labels, rule);
                let exchange = relay.flow().exchange();
                let has_switched = exchange.zip(worker.program());
                let has_switched =
                    has_switched.is_some_and(|(form, program)| program.ends_with_rule(form));
                has_streams = relay.flow().has_streams();
                goes_on = (has_streams || has_switched) && is_gone(&labels, rule);
            }
            Some(SlotState::Active { waits, .. }) => {
                worker.run_queue.wake(waits, key);
            }
            _ => {}
        }
        if goes_on {
            // Its tasks look for themselves, as those of active ones.
            worker.guarded(key, || match has_room_to_wake(worker, key) {
                true => dial(worker, key),
                false if has_streams => close(worker, key, reason.clone()),
                false => {}
            });
        }
        if ends {
            worker.guarded(key, || close(worker, key, reason.clone()));
        }
    }
    end >= slots
}

/// Ends a parked connection from our side, with close_notify where TLS ends here. Both sides of a
/// WebSocket get a close frame (1001) where they are between frames. Where the program keeps a
/// state, its client gets the program's last bytes. Exchanges that rest end here, too, because an
/// end frees memory and must not need any: see `goes_on_until` for those that may need some.
pub(crate) fn close(worker: &Rc<Worker>, key: Key, reason: Reason) {
    if let Some(cause) = goes_on_until(worker, key, &reason) {
        return end_in_task(worker, key, cause);
    }
    let mut table = worker.table.borrow_mut();
    let Some(Slot { client, upstream, state, .. }) = table.slot(key) else { return };
    let SlotState::Parked { relay, .. } = state else { return };
    // Held bytes are lost, so neither side may take its stream for complete.
    let has_upstream = upstream.is_some() || relay.flow().exchange().is_some();
    let is_cut = has_upstream && !relay.flow().is_quiet();
    let outcome = relay.outcome();
    let (mut is_answered, mut of_upstreams) = (false, Vec::new());
    match relay {
        Relay::Splice(_) => {}
        Relay::Held(held) => {
            if let Some(answer) = held::last_answer(held) {
                let _ = socket::send(client.as_fd(), &answer);
                is_answered = true;
            }
        }
        Relay::Cleartext(flow) => {
            is_answered = resting::end_in_clear(worker, flow, client);
            of_upstreams = resting::for_upstreams(worker, flow);
        }
        Relay::Terminate(originated) if originated.is_originated() => {
            let last = eyelet_relay::terminate::final_alert(originated, CLOSE_NOTIFY);
            let _ = upstream.as_ref().map(|upstream| socket::send(upstream.as_fd(), &last));
        }
        Relay::Terminate(terminated) => {
            if let Some(upstream) = upstream
                && terminated.flow.takes_close_frame(UPSTREAM)
                && let Some(mask) = eyelet_sys::process::random()
            {
                // An upstream that has not read for long sees only the FIN.
                let _ = socket::send(upstream.as_fd(), &close_to_server(mask));
            }
            let of_program = resting::last_bytes(worker, &terminated.flow);
            // RFC 8446 6.1: close_notify tells the client that this is no truncation. It would end
            // a response that is cut.
            if terminated.flow.exchange().is_none() || !of_program.is_empty() {
                let records = eyelet_relay::terminate::final_records(terminated, &of_program);
                // If its receive window is full, the client sees only the FIN.
                let _ = socket::send(client.as_fd(), &records);
            }
            let flow = &terminated.flow;
            is_answered = flow.is_websocket() || flow.state().is_some() || !of_program.is_empty();
            of_upstreams = resting::for_upstreams(worker, flow);
        }
    }
    // The client of a WebSocket answers the close frame, and one with a state may just be sending.
    // A reset would overtake what it reads.
    if reason.class() == Class::Shed && std::mem::take(&mut is_answered) {
        held::drop_unread(client, &mut worker.buffers.borrow_mut().input);
    }
    for (nth, bytes) in of_upstreams {
        // One that has not read for long sees only the FIN.
        let socket = table.upstream_at(key, nth);
        let _ = socket.map(|socket| socket::send(socket, &bytes));
    }
    drop(table);
    let last = match (is_cut, is_answered) {
        (true, _) => Last::Reset,
        (false, true) => Last::Linger,
        (false, false) => Last::Close,
    };
    end_parked(worker, key, &End { outcome, reason }, last);
}

pub(crate) mod held;
pub(crate) mod place;
pub(crate) mod rest;
mod resting;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod timeouts;

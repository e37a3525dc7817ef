//! Park and wake: an idle connection is a value in the table, and an event moves its bytes in
//! place. It must not know rules or the handshake.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use eyelet_record::alert::CLOSE_NOTIFY;
use eyelet_sys::epoll::ENDED;

use crate::accept::KEEPALIVE_IDLE;
use crate::connection_table::{Entry, Phase, Role, Waits};
use crate::queues;
use crate::ready::{CLIENT, READ, UPSTREAM, WRITE};
use crate::relay::{self, Progress, Relay, Sockets};
use crate::socket;
use crate::timer_wheel::TICK_MS;
use crate::worker::Handle;
use crate::worker::Worker;
use eyelet_memory::budget::{ACTIVE_BYTES, Account, Counted, HTTP2_BYTES};
use eyelet_memory::slab::Key;
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome, Parked};
use eyelet_telemetry::labels::Labels;
use eyelet_telemetry::reason::{Limit, Reason, Shed, Stage, When};

/// How long a client may take to read the last words and close.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes of such a client that are read and dropped in one wake.
const LINGER_READS: usize = 16;
/// A connection that has moved nothing for so long is idle when the process drains.
const DRAIN_IDLE: Duration = Duration::from_millis(500);

/// Ticks in that time.
const DRAIN_PARTS: u32 = (DRAIN_IDLE.as_millis() / TICK_MS as u128) as u32;

/// How long a connection is parked until it counts as one that stays. Most connections of a busy
/// edge are over by then, and never pay for what only those that stay need.
const SETTLE: Duration = Duration::from_secs(2);

/// Leaves a connection to the table: its future ends, and what is left of it is one entry.
pub fn park(active: &Handle, info: &mut ConnectionInfo, mut relay: Relay) {
    let worker = &active.worker;
    active.release();
    let held = relay.held_bytes();
    let is_quiet = relay.flow().held_bytes() == 0;
    let rests = {
        let mut table = worker.table.borrow_mut();
        let Some(entry) = table.entry(active.key()) else { return };
        if entry.upstream.is_none() {
            worker.uses_descriptors(-1);
        }
        worker.process.budget.give(Account::Connections, entry.active_bytes());
        let rests = is_quiet && !entry.ready.readable() && matches!(relay, Relay::Splice(_));
        let info = info.take().park(&mut worker.shared.borrow_mut());
        worker.sources.add(info.client_ip(), held);
        entry.role = Role::Parked { info, relay };
        table.due_in(active.key(), idle_for(worker, false));
        rests
    };
    worker.counters.parked.up();
    worker.holds(0, size_of::<Entry>());
    worker.keeps(0, held);
    // What came while it was active has its edge behind it.
    if !rests {
        wake(worker, active.key());
    }
    watch(worker, active.key());
}

/// Has the kernel tell of what is still to come, unless that is not the case any more.
fn watch(worker: &Rc<Worker>, key: Key) {
    let watched = worker.table.borrow_mut().watch(key);
    if let Err(error) = watched {
        give_up(worker, key, Reason::Unwatched((&error).into()));
    }
}

/// The shortest request in a TLS record: header, `GET / HTTP/1.1` with its two line ends, tag.
const REQUEST_BYTES_MIN: usize = 5 + 18 + 16;

/// How long a parked connection may be idle until it is looked at: to settle, or to be closed.
fn idle_for(worker: &Worker, settled: bool) -> Duration {
    let idle_timeout = worker.settings.get().idle_timeout;
    if settled { idle_timeout } else { idle_timeout.min(SETTLE) }
}

/// An event for a parked connection: moves what can be moved, and parks it again.
pub fn wake(worker: &Rc<Worker>, key: Key) {
    if is_to_wait(worker, key) {
        return worker.later.borrow_mut().push(key);
    }
    let mut table = worker.table.borrow_mut();
    let now = table.now();
    let Some(Entry { client, upstream, ready, role, place, .. }) = table.entry(key) else { return };
    let (progress, moved, blocked) = match role {
        Role::Active { .. } => return,
        Role::Lingering => {
            if lingers(worker, client, ready) {
                return;
            }
            let removed = table.remove(key);
            drop(table);
            return worker.closed(removed);
        }
        Role::Parked { info, relay } => {
            let (held, moved) = (relay.held_bytes(), info.moved());
            let upstream = upstream.as_ref().map(AsFd::as_fd);
            let mut sockets = Sockets { client: client.as_fd(), upstream, ready };
            let buffers = &mut *worker.buffers.borrow_mut();
            buffers.piece = worker.process.budget.piece();
            let progress = relay::run(relay, &mut sockets, info, buffers);
            let holds = relay.held_bytes();
            worker.keeps(held, holds);
            worker.sources.update(info.client_ip(), held, holds);
            if let Some(since) = relay.flow().note_holding(now)
                && upstream.is_some()
                && relay.flow().begins_to_hold()
            {
                worker.queue_holder(key, since);
            }
            if upstream.is_none() && progress != Progress::Dial {
                note_waiting(worker, key, place, relay);
            }
            let moved = (moved != info.moved()).then_some(info.is_settled());
            let is_full = |side| !ready.any(side, WRITE);
            (progress, moved, is_full(CLIENT) || upstream.is_some() && is_full(UPSTREAM))
        }
    };
    if let Some(settled) = moved {
        table.due_in(key, idle_for(worker, settled));
    }
    drop(table);
    let goes_on = matches!(progress, Progress::Rest | Progress::Again | Progress::Later);
    if blocked && goes_on {
        watch(worker, key);
    }
    match progress {
        Progress::Rest => {}
        Progress::Again => worker.go_on_later(key),
        Progress::Later => worker.later.borrow_mut().push(key),
        Progress::Dial => dial(worker, key),
        Progress::Closed(end) => end_parked(worker, key, &end, Last::Close),
        Progress::Reset(end) => end_parked(worker, key, &end, Last::Reset),
        Progress::Linger(end) => end_parked(worker, key, &end, Last::Linger),
        Progress::Cut(end) => end_parked(worker, key, &end, Last::Cut),
    }
}

/// Wakes a terminated connection into a task, because its upstream must be dialled.
fn dial(worker: &Rc<Worker>, key: Key) {
    let Some((info, mut relay)) = unpark(worker, key, Role::active(Phase::Busy)) else { return };
    worker.uses_descriptors(1);
    worker.process.budget.take(Account::Connections, ACTIVE_BYTES);
    // The others of this turn are woken before its task has run and counted what it holds.
    let library = if info.decided.http2 { HTTP2_BYTES } else { 0 };
    let counted = Counted::new(&worker.process.budget, library + relay.flow().held_bytes());
    let Some(program) = worker.program() else { return };
    let handle = Handle::new(worker.clone(), key);
    tokio::task::spawn_local(program.woken(handle, info, relay, counted));
}

/// Whether what a client says is to be left unread, because there is no room for the task that
/// would serve it. It is looked at again in the next tick.
fn is_to_wait(worker: &Rc<Worker>, key: Key) -> bool {
    if !worker.process.budget.is_filling(ACTIVE_BYTES + HTTP2_BYTES) {
        return false;
    }
    let (source, http2) = {
        let mut table = worker.table.borrow_mut();
        let Some(Entry { client, upstream: None, ready, role, .. }) = table.entry(key) else {
            return false;
        };
        let Role::Parked { info, relay: Relay::Terminate(_) } = role else { return false };
        if !ready.any(CLIENT, READ) || ready.any(CLIENT, ENDED) && says_no_more(client) {
            return false;
        }
        (info.client_ip(), info.is_http2(&worker.shared.borrow()))
    };
    let bytes = ACTIVE_BYTES + if http2 { HTTP2_BYTES } else { 0 };
    if worker.make_room_to_wake(key, source, bytes) {
        return false;
    }
    if let Some(Entry { role: Role::Parked { relay, .. }, place, .. }) =
        worker.table.borrow_mut().entry(key)
    {
        note_waiting(worker, key, place, relay);
    }
    true
}

/// What holds the beginning of a request, or a whole one that nobody serves, is half-open.
fn note_waiting(worker: &Worker, key: Key, place: &mut u16, relay: &mut Relay) {
    if relay.flow().begins_to_wait() {
        queues::queue(&worker.half_open, key, place);
    }
}

/// Whether a connection is parked and half-open. One that has its upstream is being served.
pub fn waits(entry: &mut Entry) -> bool {
    match entry {
        Entry { upstream: None, role: Role::Parked { relay, .. }, .. } => relay.flow().waits(),
        _ => false,
    }
}

/// Whether a client that has ended its stream said less before than a request takes: its
/// close_notify at most.
fn says_no_more(client: &impl AsFd) -> bool {
    let mut unread = [0; REQUEST_BYTES_MIN];
    // An error is for the wake to see.
    !socket::peek(client, &mut unread).is_ok_and(|length| length == unread.len())
}

/// Takes info and relay out of an entry that gets another role.
fn unpark(worker: &Rc<Worker>, key: Key, role: Role) -> Option<(ConnectionInfo, Relay)> {
    let mut table = worker.table.borrow_mut();
    let entry = table.entry(key)?;
    let Role::Parked { info, mut relay } = std::mem::replace(&mut entry.role, role) else {
        return None;
    };
    uncount(worker, &info, &mut relay);
    Some((info.wake(&mut worker.shared.borrow_mut()), relay))
}

/// Counts a parked connection out.
fn uncount(worker: &Worker, info: &Parked, relay: &mut Relay) {
    worker.counters.parked.down();
    worker.holds(size_of::<Entry>(), 0);
    worker.keeps(relay.held_bytes(), 0);
    worker.sources.remove(info.client_ip(), relay.held_bytes());
}

/// Ends a connection in whose wake a fault of ours showed.
pub fn abandon(worker: &Rc<Worker>, key: Key) {
    give_up(worker, key, Reason::Internal("a panic"));
}

fn give_up(worker: &Rc<Worker>, key: Key, reason: Reason) {
    end_parked(worker, key, &End::failed(reason), Last::Reset);
    // One that was not parked is not there any more, or has no line to come.
    let removed = worker.table.borrow_mut().remove(key);
    worker.closed(removed);
}

/// How the sockets of a connection end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// With a FIN.
    Close,
    /// With a reset, towards both sides.
    Reset,
    /// The client may read what it was sent last.
    Linger,
    /// The same, and what it had sent so far was cut: the application must not take it for whole.
    Cut,
}

fn end_parked(worker: &Rc<Worker>, key: Key, end: &End, last: Last) {
    let mut table = worker.table.borrow_mut();
    let Some(Entry { client, upstream, role, .. }) = table.entry(key) else { return };
    if !matches!(role, Role::Parked { .. }) {
        return;
    }
    // Taken out first: should the rest meet a fault of ours, nothing is counted out twice.
    let parked = std::mem::replace(role, Role::Lingering);
    if let Role::Parked { info, mut relay } = parked {
        uncount(worker, &info, &mut relay);
        worker.emit_parked(&info, &relay, end);
        // Pipes and bytes that are held go here, before the sockets that they were for.
    }
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
                // A socket that cannot be told to reset is closed all the same.
                let _ = socket::reset_on_close(client);
                let _ = upstream.as_ref().map(socket::reset_on_close);
            }
            let removed = table.remove(key);
            drop(table);
            worker.closed(removed);
        }
    }
}

/// Sends the last bytes of an active connection and leaves it to linger. Its line is the
/// caller's.
pub fn close_with(active: &Handle, bytes: &[u8]) {
    let worker = &active.worker;
    active.release();
    {
        let mut table = worker.table.borrow_mut();
        let Some(entry) = table.entry(active.key()) else { return };
        // A client whose receive window is full at its first alert does not want to read it.
        if !bytes.is_empty() {
            let _ = socket::send(&entry.client, bytes);
        }
        worker.uses_descriptors(-1);
        worker.process.budget.give(Account::Connections, entry.active_bytes());
        entry.role = Role::Lingering;
    }
    linger(worker, active.key());
}

fn linger(worker: &Rc<Worker>, key: Key) {
    let mut table = worker.table.borrow_mut();
    let Some(entry) = table.entry(key) else { return };
    // If the client is gone the wake that follows finds it.
    let _ = socket::shutdown_write(&entry.client);
    entry.upstream = None;
    entry.ready.add(CLIENT, READ);
    table.due_in(key, LINGER);
    drop(table);
    wake(worker, key);
    watch(worker, key);
}

/// Reads and drops what a lingering client still sends; whether it lingers on.
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
    // It sends without end: that is no client that reads.
    false
}

/// The deadline of a parked connection has passed.
pub fn late(worker: &Rc<Worker>, key: Key) {
    let mut table = worker.table.borrow_mut();
    match table.entry(key).map(|entry| &mut entry.role) {
        Some(Role::Lingering) => {
            let removed = table.remove(key);
            drop(table);
            worker.closed(removed);
        }
        Some(Role::Parked { info, .. })
            if !info.is_settled() && worker.settings.get().idle_timeout > SETTLE =>
        {
            info.settle();
            if let Some(Entry { upstream: Some(upstream), .. }) = table.entry(key) {
                // The accepted socket has it from its listener. A Unix socket needs none.
                let _ = socket::keepalive(upstream, KEEPALIVE_IDLE);
            }
            table.due_in(key, worker.settings.get().idle_timeout - SETTLE);
        }
        Some(Role::Parked { .. }) => {
            drop(table);
            close(worker, key, Reason::Timeout(Limit::Idle, None));
        }
        Some(Role::Active { .. }) | None => {}
    }
}

/// Ends a connection that waits to be served, because its memory is wanted for others. `false`:
/// it does not wait any more.
pub fn shed_waiting(worker: &Rc<Worker>, key: Key) -> bool {
    let waits = worker.table.borrow_mut().entry(key).is_some_and(waits);
    if waits {
        close(worker, key, Reason::Shed(Shed::Unfinished(When::Before(Stage::Request))));
    }
    waits
}

/// Since when a parked connection holds bytes for a peer. `None`: it does not, and is not queued
/// for that any more.
pub fn holds_since(worker: &Worker, key: Key) -> Option<u32> {
    let mut table = worker.table.borrow_mut();
    let Some(Entry { role: Role::Parked { relay, .. }, .. }) = table.entry(key) else {
        return None;
    };
    let since = relay.flow().holds_since();
    if since.is_none() {
        relay.flow().leaves_queue();
    }
    since
}

/// Ends a connection whose peer leaves bytes in our memory that others want. By a reset: neither
/// side may take what was cut for whole.
pub fn give_up_slow(worker: &Rc<Worker>, key: Key) {
    let outcome = match worker.table.borrow_mut().entry(key).map(|entry| &entry.role) {
        Some(Role::Parked { relay: Relay::Splice(_), .. }) => Outcome::Spliced,
        Some(Role::Parked { relay: Relay::Terminate(_), .. }) => Outcome::Terminated,
        _ => return,
    };
    let reason = Reason::Shed(Shed::Untaken);
    end_parked(worker, key, &End { outcome, reason }, Last::Reset);
}

/// Ends an idle connection because memory is short. `false`: it is not idle any more.
pub fn shed(worker: &Rc<Worker>, key: Key) -> bool {
    {
        let mut table = worker.table.borrow_mut();
        let Some(Entry { role: Role::Parked { relay, .. }, .. }) = table.entry(key) else {
            return false;
        };
        if !relay.flow().is_quiet() {
            return false;
        }
    }
    close(worker, key, Reason::Shed(Shed::Idle));
    true
}

/// Ends the parked connections for which `is_gone` is true by their labels and their rule.
pub fn end_where(
    worker: &Rc<Worker>,
    reason: &Reason,
    mut is_gone: impl FnMut(&Labels, Option<u32>) -> bool,
) {
    let keys = worker.table.borrow().keys();
    for key in keys {
        let ends = match worker.table.borrow_mut().entry(key).map(|entry| &entry.role) {
            Some(Role::Parked { info, .. }) => {
                let (labels, rule) = info.rule(&worker.shared.borrow());
                is_gone(&labels, rule)
            }
            _ => false,
        };
        if ends {
            close(worker, key, reason.clone());
        }
    }
}

/// Ends a parked connection from our side, politely.
fn close(worker: &Rc<Worker>, key: Key, reason: Reason) {
    let mut table = worker.table.borrow_mut();
    let Some(Entry { client, upstream, role, .. }) = table.entry(key) else { return };
    let Role::Parked { relay, .. } = role else { return };
    // Bytes that are still held are lost: neither side may take what it has got for whole.
    let is_cut = upstream.is_some() && !relay.flow().is_quiet();
    let outcome = match relay {
        Relay::Splice(_) => Outcome::Spliced,
        Relay::Terminate(terminated) => {
            // RFC 8446 6.1: the client can tell this end from a truncation.
            let goodbye = relay::terminate::final_alert(terminated, CLOSE_NOTIFY);
            // A client whose receive window is full learns it by the FIN.
            let _ = socket::send(client.as_fd(), &goodbye);
            Outcome::Terminated
        }
    };
    drop(table);
    let last = if is_cut { Last::Reset } else { Last::Close };
    end_parked(worker, key, &End { outcome, reason }, last);
}

/// Ends the parked connections that are idle while the process drains. What a spliced pair is
/// about to say cannot be known, so it has until the drain's end. In each tick a part of them is
/// looked at, so that those that move have their turn: all in `DRAIN_IDLE`.
pub fn drain_idle(worker: &Rc<Worker>) {
    let places = worker.table.borrow().places().div_ceil(DRAIN_PARTS);
    for _ in 0..places {
        let key = worker.table.borrow().next_keys(&worker.drain_cursor, 1).next();
        let Some(key) = key else { continue };
        let mut table = worker.table.borrow_mut();
        let (info, relay) = match table.entry(key).map(|entry| &mut entry.role) {
            Some(Role::Parked { info, relay }) => (info, relay),
            // One that waits for its client's next request learns of the drain.
            Some(Role::Active { waits, .. }) => {
                match waits {
                    Waits::No => {}
                    Waits::Here(_) => worker.go_on_later(key),
                    Waits::Task(waker) => waker.wake_by_ref(),
                }
                continue;
            }
            _ => continue,
        };
        let wait = idle_for(worker, info.is_settled());
        // An upstream that was asked something has until the drain's end to answer.
        let quiet = relay.flow().is_quiet() && !relay.flow().is_asked();
        if quiet && matches!(relay, Relay::Terminate(_)) {
            let idle = table.since_due_in(key, wait) >= DRAIN_IDLE;
            drop(table);
            if idle {
                close(worker, key, Reason::Drained(None));
            }
        }
    }
}

/// Ends whatever is left when the drain's time is over: at once, or in its task. Gives the number
/// of connections.
pub fn cut_all(worker: &Rc<Worker>) -> usize {
    let keys = worker.table.borrow().keys();
    for key in &keys {
        close(worker, *key, Reason::Drained(None));
        worker.late(*key);
    }
    keys.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::terminate::Terminated;
    use eyelet_telemetry::info::Parked;

    /// What an idle connection costs in this process: its entry, and four bytes for the entry's
    /// generation. Two descriptors (4 + 4), readiness of eight sides (4), links of the deadline
    /// wheel (16), the info (64), and the relay: secrets and sequence numbers of both directions
    /// (2 x (48 + 8)) with 16 bytes of state, a pointer to what is on its way (8)
    /// and the states of both directions (8).
    #[test]
    fn an_entry_is_small() {
        assert_eq!(size_of::<Parked>(), 64);
        assert_eq!(size_of::<Terminated>(), 144);
        assert_eq!(size_of::<Entry>(), 240);
    }
}

//! Lists the connections of all workers for another thread, and ends those that it asks for. A
//! worker looks at a slice of its table between two iterations, and waits where nobody reads.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use eyelet_hold::{HoldKey, RequestKey};
use eyelet_memory::slab::Key;
use eyelet_telemetry::listing::streams::StreamKind;
use eyelet_telemetry::listing::{
    ConnectionKind, ConnectionView, Filter, Listed, ListedRequest, Slice, State,
};
use eyelet_telemetry::reason::Reason;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::park;
use crate::park::rest;
use crate::worker::Worker;
use eyelet_relay::Relay;
use eyelet_table::{EndCause, Slot, SlotState};

mod passing;

/// Slots that a worker looks at between two iterations. To copy what it shows of one takes about a
/// microsecond, so that others wait for less than a millisecond.
pub const SLICE_SLOTS: u32 = 256;
/// Streams at rest after which a slice ends: to read the kind of one takes a part of a microsecond,
/// and a connection has up to 100.
const SLICE_STREAMS: u32 = 1_024;
/// Slots of a slice in which connections are ended: an end takes system calls, 26 microseconds on a
/// busy machine, so that others wait for about a millisecond.
const ENDING_SLOTS: u32 = 32;
/// Slices that wait for a reader: about 100 KiB each.
const SLICES_MAX: usize = 2;
/// Lists that are made at a time. A reader that does not read holds one until it is given up.
pub const LISTS_MAX: usize = 4;

/// A worker is asked for its connections.
pub struct Query {
    filter: Arc<Filter>,
    /// The connections that it may still end: those that are found are not listed then.
    ends: Option<Arc<AtomicUsize>>,
    /// The place of its list among [`LISTS_MAX`]. It is given back before the slices end: who has
    /// read a list to its end may ask for the next one.
    _permit: Arc<OwnedSemaphorePermit>,
    slices: Sender<Slice>,
}

/// The queue of a worker's queries.
pub type Queries = Receiver<Query>;

/// Asks the workers of a process.
#[derive(Clone, Debug)]
pub struct Connections {
    workers: Vec<Sender<Query>>,
    permits: Arc<Semaphore>,
}

impl Connections {
    /// Makes it for so many workers, with a queue for each, which it answers by [`answer`].
    pub fn new(workers: usize) -> (Self, Vec<Queries>) {
        // Each list has one query for each worker.
        let (workers, queries) = (0..workers).map(|_| channel(LISTS_MAX)).unzip();
        (Self { workers, permits: Arc::new(Semaphore::new(LISTS_MAX)) }, queries)
    }

    /// Begins to list the connections that the filter takes, or with `ends` to end so many of them.
    /// The slices end when each worker has looked at its whole table. `None`: [`LISTS_MAX`] lists
    /// are being made.
    pub fn ask(&self, filter: Filter, ends: Option<usize>) -> Option<Receiver<Slice>> {
        let permit = Arc::new(self.permits.clone().try_acquire_owned().ok()?);
        let (slices, answer) = channel(SLICES_MAX);
        let (filter, ends) = (Arc::new(filter), ends.map(|most| Arc::new(most.into())));
        // All, also for one id: a connection keeps it when an upgrade gives it to another worker.
        for worker in &self.workers {
            let (filter, ends, slices) = (filter.clone(), ends.clone(), slices.clone());
            // A worker that has ended has no connections.
            let _ = worker.try_send(Query { filter, ends, slices, _permit: permit.clone() });
        }
        Some(answer)
    }
}

/// Answers queries as long as the worker lives.
pub async fn answer(worker: Rc<Worker>, mut queries: Queries) {
    while let Some(query) = queries.recv().await {
        tokio::task::spawn_local(sweep(worker.clone(), query));
    }
}

/// Looks at each slot once, in ascending order: a connection keeps its slot for life, so that none
/// is shown twice. So it does with the flows of QUIC then.
async fn sweep(worker: Rc<Worker>, query: Query) {
    let step = if query.ends.is_some() { ENDING_SLOTS } else { SLICE_SLOTS };
    for of_flows in [false, true] {
        let mut begin = 0;
        loop {
            // Who asked may be gone.
            let Ok(room) = query.slices.reserve().await else { return };
            let slots = match of_flows {
                false => worker.table.borrow().slots(),
                true => worker.flows.table.borrow().slots(),
            };
            let end = slots.min(begin + step);
            if begin >= end {
                break;
            }
            let (slice, end) = match of_flows {
                false => look(&worker, &query, begin..end),
                true => (
                    passing::look(&worker, (&query.filter, query.ends.as_deref()), begin..end),
                    end,
                ),
            };
            if slice != Slice::default() {
                room.send(slice);
            } else {
                drop(room);
            }
            begin = end;
            // The event loop has its iteration.
            tokio::task::yield_now().await;
        }
    }
}

/// Looks at these slots, as long as few streams rest in them. Returns where it goes on, too.
fn look(worker: &Rc<Worker>, query: &Query, slots: std::ops::Range<u32>) -> (Slice, u32) {
    let now_unix_ms = worker.now_unix_ms();
    let (mut slice, mut streams, through) = (Slice::default(), 0, slots.end);
    for index in slots {
        if streams >= SLICE_STREAMS {
            return (slice, index);
        }
        let Some(key) = worker.table.borrow().key_at(index) else { continue };
        if let Some(ends) = &query.ends {
            let is_asked = |shown: &ConnectionView<'_>| {
                streams += shown.resting.all();
                query.filter.takes(shown, now_unix_ms) && passing::takes_one(ends)
            };
            if show(worker, key, is_asked) == Some(true) {
                worker.guarded(key, || end(worker, key));
                slice.ended += 1;
            }
        } else {
            let listed = show(worker, key, |shown| {
                streams += shown.resting.all();
                let takes = query.filter.takes(shown, now_unix_ms);
                takes.then(|| Listed::new(shown, now_unix_ms))
            });
            slice.listed.extend(listed.flatten());
        }
    }
    (slice, through)
}

/// Calls `then` with what a slot shows of its connection. A lingering one shows nothing: it has its
/// access line.
fn show<T>(worker: &Worker, key: Key, then: impl FnOnce(&ConnectionView<'_>) -> T) -> Option<T> {
    let mut table = worker.table.borrow_mut();
    let wait = match &mut table.slot(key)?.state {
        SlotState::Parked { info, relay } => rest::idle_for(worker, relay, info.is_settled()),
        SlotState::Active { seen, .. } => return seen.as_ref().map(|seen| seen.shown(then)),
        SlotState::Lingering => return None,
    };
    let idle_ms = table.since_due_in(key, wait).as_millis() as u64;
    let Slot { upstream, state: SlotState::Parked { info, relay }, .. } = table.slot(key)? else {
        return None;
    };
    let shared = worker.shared.borrow();
    let has_exchange = relay.served_flow().is_some_and(|flow| flow.exchange().is_some());
    let upstreams = (upstream.is_some(), worker.resting_streams(relay));
    let kind = match relay {
        Relay::Cleartext(_) => ConnectionKind::Cleartext,
        Relay::Held(_) => ConnectionKind::Held,
        Relay::Splice(_) => ConnectionKind::Spliced,
        Relay::Terminate(terminated) if terminated.is_originated() => ConnectionKind::Originated,
        Relay::Terminate(terminated) if terminated.flow.is_websocket() => ConnectionKind::WebSocket,
        Relay::Terminate(_) if upstream.is_some() && !has_exchange => ConnectionKind::Tcp,
        Relay::Terminate(_) if info.decided(&shared)?.http2 => ConnectionKind::Http2,
        Relay::Terminate(_) => ConnectionKind::Http1,
    };
    let state = match relay.flow().is_quiet() {
        true if park::held::is_held(relay) => State::Held,
        true => State::Parked,
        false => State::Moving,
    };
    let mut view = ConnectionView::parked(info, &shared, (state, kind), idle_ms, upstreams)?;
    view.requests = match relay {
        Relay::Held(held) => held.key().and_then(held_request).into_iter().collect(),
        _ => worker.resting_requests(relay),
    };
    let Relay::Splice(spliced) = relay else { return Some(then(&view)) };
    // It keeps these itself.
    let address = spliced.upstream();
    (view.sni, view.upstream) = (spliced.sni(), address.map(Cow::Owned).or(view.upstream));
    Some(then(&view))
}

/// The request of a question. `None`: that is about a connection.
fn held_request(HoldKey { request, .. }: &HoldKey) -> Option<ListedRequest> {
    let RequestKey { method, path } = request.as_deref()?;
    Some(ListedRequest::new(StreamKind::Held, Some(method), Some(path), None))
}

/// Ends a connection, in the way of its state.
fn end(worker: &Rc<Worker>, key: Key) {
    let mut table = worker.table.borrow_mut();
    let Some(slot) = table.slot(key) else { return };
    let SlotState::Active { waits, end, .. } = &mut slot.state else {
        drop(table);
        return park::close(worker, key, Reason::Ended);
    };
    *end = (*end).max(Some(EndCause::Ended));
    // Its future logs the end.
    worker.run_queue.wake(waits, key);
    worker.ending.has_operator_ended.set(true);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashSet;

    use super::*;
    use crate::park::tests::{EACH_STREAMS, Faulty, parked, terminated, with_exchange};
    use crate::testing::{SETTINGS, worker};
    use crate::worker::WaitError;
    use crate::worker::{Handle, Settings};
    use eyelet_relay::Flow;
    use eyelet_relay::splice::Spliced;
    use eyelet_table::Phase;
    use eyelet_telemetry::info::Decided;
    use eyelet_telemetry::listing::ConnectionId;

    const CROWD: u32 = 5 * SLICE_SLOTS;

    /// Runs `test` beside a worker that answers.
    fn with_worker<F: Future<Output = ()>>(test: impl FnOnce(Rc<Worker>, Connections) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let tasks = tokio::task::LocalSet::new();
        // Ids begin with 1, and the worker has the first queue: so it is after an upgrade that
        // gave it the connections of another one. The second has ended: its queue is dropped.
        let (connections, queries) = Connections::new(2);
        let (worker, queries) = (worker(), queries.into_iter().next().unwrap());
        tasks.spawn_local(answer(worker.clone(), queries));
        tasks.block_on(&runtime, test(worker, connections));
    }

    async fn all(mut slices: Receiver<Slice>) -> (Vec<Listed>, u64) {
        let (mut listed, mut ended) = (Vec::new(), 0);
        while let Some(slice) = slices.recv().await {
            listed.extend(slice.listed);
            ended += slice.ended;
        }
        (listed, ended)
    }

    #[test]
    fn each_connection_is_listed_once_while_others_come_and_go() {
        with_worker(async |worker, connections| {
            let keys: Vec<Key> = (0..CROWD).map(|_| terminated(&worker)).collect();
            let mut slices = connections.ask(Filter::default(), None).unwrap();
            let first = slices.recv().await.unwrap();
            assert_eq!(first.listed.len() as u32, SLICE_SLOTS);
            // Slots that were looked at are used again, and others are freed.
            for key in keys.iter().take(100).chain(keys.iter().rev().take(100)) {
                park::close(&worker, *key, Reason::Ended);
            }
            (0..100).for_each(|_| _ = terminated(&worker));
            let (rest, ended) = all(slices).await;
            let listed = first.listed.iter().chain(&rest);
            let ids: HashSet<ConnectionId> = listed.clone().map(|listed| listed.id).collect();
            assert_eq!((ids.len(), ended), (listed.count(), 0));
            // The worker may have been two slices ahead of what was read.
            let expected = CROWD as usize - 100..=CROWD as usize;
            assert!(expected.contains(&ids.len()), "{}", ids.len());
            assert!(rest.iter().all(|listed| listed.state == State::Parked));
        });
    }

    #[test]
    fn thousands_of_connections_are_listed_while_half_of_them_end() {
        // Other tests of this program need descriptors meanwhile.
        const ALL: u64 = 4_000;
        with_worker(async |worker, connections| {
            let keys: Vec<Key> = (0..ALL).map(|_| terminated(&worker)).collect();
            let mut slices = connections.ask(Filter::default(), None).unwrap();
            let mut ending = keys.iter().step_by(2);
            let (mut ids, mut listed) = (HashSet::new(), 0);
            while let Some(slice) = slices.recv().await {
                listed += slice.listed.len();
                ids.extend(slice.listed.iter().map(|listed| listed.id.to_string()));
                for key in ending.by_ref().take(ALL as usize / 20) {
                    park::close(&worker, *key, Reason::Ended);
                }
            }
            assert_eq!(ids.len(), listed, "one is listed twice");
            // Those that stay: their ids count from 1.
            assert!((2..=ALL).step_by(2).all(|count| ids.contains(&format!("1-{count}"))));
            assert!((ALL / 2..ALL).contains(&(listed as u64)), "{listed}");
        });
    }

    #[test]
    fn a_reader_that_reads_nothing_stops_the_worker_and_holds_one_list() {
        with_worker(async |worker, connections| {
            (0..CROWD).for_each(|_| _ = terminated(&worker));
            let unread: Vec<_> =
                (0..LISTS_MAX).map(|_| connections.ask(Filter::default(), None).unwrap()).collect();
            for _ in 0..10 * CROWD / SLICE_SLOTS {
                tokio::task::yield_now().await;
            }
            assert!(unread.iter().all(|slices| slices.len() == SLICES_MAX));
            assert!(connections.ask(Filter::default(), None).is_none());
            drop(unread);
            let slices = loop {
                tokio::task::yield_now().await;
                if let Some(slices) = connections.ask(Filter::default(), None) {
                    break slices;
                }
            };
            assert_eq!(all(slices).await.0.len() as u32, CROWD);
        });
    }

    /// A slice ends behind many streams, and the next one goes on there.
    #[test]
    fn each_connection_is_listed_once_with_what_rests_on_it() {
        const ALL: u32 = 3 * SLICE_STREAMS / EACH_STREAMS;
        with_worker(async |worker, connections| {
            let program = Rc::new(Faulty { is_logging: false });
            worker.serve(&program);
            let kept: Vec<_> = (0..ALL).map(|_| with_exchange(&worker)).collect();
            let mut slices = connections.ask(Filter::default(), None).unwrap();
            let (mut ids, mut largest) = (HashSet::new(), 0);
            while let Some(slice) = slices.recv().await {
                largest = largest.max(slice.listed.len());
                for listed in slice.listed {
                    assert_eq!(listed.resting.all(), EACH_STREAMS);
                    assert!(ids.insert(listed.id), "one is listed twice");
                }
            }
            assert_eq!((ids.len(), kept.len()), (ALL as usize, ALL as usize));
            assert!(largest <= (SLICE_STREAMS / EACH_STREAMS + 1) as usize, "{largest}");
        });
    }

    #[test]
    fn only_what_a_filter_takes_is_ended() {
        with_worker(async |worker, connections| {
            let (first, last) = (terminated(&worker), terminated(&worker));
            let spliced = Spliced::new(Flow::default(), &mut Decided::default());
            let (pair, _peer) = parked(&worker, Relay::Splice(spliced));
            let kinds = all(connections.ask(Filter::default(), None).unwrap()).await.0;
            let kinds = kinds.iter().map(|listed| (listed.id.to_string(), listed.kind));
            let kinds: Vec<_> = kinds.collect();
            let [http, spliced] = [ConnectionKind::Http1, ConnectionKind::Spliced].map(Some);
            let ids = ["1-1", "1-2", "1-3"].map(String::from);
            let [one, two, three] = ids;
            assert_eq!(kinds, [(one, http), (two, http), (three, spliced)]);
            let id = |text| Filter { id: ConnectionId::parse(text), ..Filter::default() };
            for (filter, ended) in [(id("1-2"), 1), (id("1-2"), 0), (id("0-1"), 0), (id("9-1"), 0)]
            {
                let found = all(connections.ask(filter, Some(usize::MAX)).unwrap()).await;
                assert_eq!(found, (vec![], ended));
            }
            let mut is_open = |key| worker.table.borrow_mut().slot(key).is_some();
            assert_eq!([first, last, pair].map(&mut is_open), [true, false, true]);
            for (most, ended) in [(0, 0), (1, 1), (usize::MAX, 1)] {
                let slices = connections.ask(Filter::default(), Some(most)).unwrap();
                assert_eq!(all(slices).await, (vec![], ended), "at most {most}");
            }
            assert!(worker.table.borrow().is_empty());
        });
    }

    /// No later deadline brings a connection back that an operator has ended.
    #[test]
    fn an_active_connection_that_is_ended_stays_so() {
        let worker = worker();
        let (client, _peer) = eyelet_sys::socket::pair().unwrap();
        let key = worker.table.borrow_mut().insert(client, false);
        worker.process.open.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let handle = Handle::new(worker.clone(), key);
        worker.enters(key, Phase::Busy);
        let info = worker.info(0, ([127, 0, 0, 1], 5000).into());
        // Nobody may ask: nothing is copied.
        let listed = worker.settings.replace(Settings { may_list: false, ..SETTINGS });
        handle.note_state(State::Peeking, &info);
        assert_eq!(show(&worker, key, |_| ()), None);
        worker.settings.set(listed);
        handle.note_state(State::Dialling, &info);
        assert_eq!(show(&worker, key, |shown| shown.state), Some(State::Dialling));
        assert!(handle.in_time().is_ok() && !handle.is_to_end());
        end(&worker, key);
        handle.due_in(std::time::Duration::from_secs(60));
        assert!(matches!(handle.in_time(), Err(WaitError::Ended)));
        assert_eq!(handle.why_end(), Some(Reason::Ended));
    }
}

//! Implements `Program` for the event loop: an accepted connection, a wake, a tick, a reload, an
//! end.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use eyelet_engine::departure::Departure;
use eyelet_engine::links::{AttachedStreams, DetachedLink, DetachedLinks, Partners, StreamRef};
use eyelet_engine::park;
use eyelet_engine::relay::{KeptExchanges, Relay};
use eyelet_engine::table::KeptStreams;
use eyelet_engine::worker::{Handle, Program, Settings, Task, Update};
use eyelet_http::{WokenConnection, check};
use eyelet_memory::budget::{Counted, HTTP2_BYTES};
use eyelet_memory::packed::PackedBytes;
use eyelet_memory::slab::Key;
use eyelet_telemetry::info::{ConnectionInfo, Decided, End};
use eyelet_telemetry::labels::Labels;
use eyelet_telemetry::listing::streams::StreamCounts;
use eyelet_telemetry::reason::Reason;

use crate::path::connection::connection;
use crate::snapshot::published::{Published, SnapshotUpdate};
use crate::snapshot::worker::Worker;

/// The program of one event loop. New connections get the newest configuration.
pub struct Service {
    index: usize,
    worker: RefCell<Rc<Worker>>,
    published: Arc<Published>,
    /// A newer snapshot that no connection is served by yet.
    pending: RefCell<Option<SnapshotUpdate>>,
    /// Where the search for connections whose rule is gone goes on in the table.
    removal: Cell<Option<u32>>,
}

impl Service {
    /// The program of the worker with this index, which has warmed up.
    pub fn new(index: usize, worker: Worker, published: Arc<Published>) -> Self {
        let worker = RefCell::new(worker.publish());
        let (pending, removal) = (RefCell::default(), Cell::default());
        Self { index, worker, published, pending, removal }
    }

    fn worker(&self) -> Rc<Worker> {
        self.worker.borrow().clone()
    }

    /// Ends parked connections whose rule the newest configuration lacks, in a part of the table.
    /// An active one ends with its next request.
    fn end_removed(&self) {
        let Some(begin) = self.removal.get() else { return };
        let (worker, cursor) = (self.worker(), Cell::new(begin));
        let rules = worker.snapshot.config.rules.iter().map(|rule| rule.name);
        let rules: HashSet<&str> = rules.collect();
        let is_over =
            park::end_where(&worker.engine, &cursor, &Reason::RuleGone, |labels, rule| {
                rule.is_some_and(|rule| !rules.contains(labels.rule(rule)))
            });
        self.removal.set((!is_over).then(|| cursor.get()));
    }
}

impl Program for Service {
    fn labels(&self) -> Labels {
        self.worker.borrow().labels().clone()
    }

    fn accepted(self: Rc<Self>, handle: Handle, info: ConnectionInfo) -> Task {
        Box::pin(connection(self.worker(), handle, Box::new(info)))
    }

    fn woken(
        self: Rc<Self>,
        handle: Handle,
        info: ConnectionInfo,
        relay: Relay,
        counted: Counted,
    ) -> Task {
        let worker = self.worker();
        match relay {
            Relay::Terminate(terminated) => {
                let woken = WokenConnection { handle, info, counted };
                eyelet_http::serve(worker.http.clone(), woken, terminated)
            }
            Relay::Cleartext(flow) => {
                let woken = WokenConnection { handle, info, counted };
                eyelet_http::serve_cleartext(worker.http.clone(), woken, flow)
            }
            Relay::Splice(_) => {
                let reason = Reason::Internal("a spliced connection without an upstream");
                worker.engine.emit(&info, &End::failed(reason));
                Box::pin(std::future::ready(()))
            }
        }
    }

    fn answer(&self, state: &mut [u8], bytes: &[u8], out: &mut Vec<u8>) -> usize {
        eyelet_http::answer_parked(state, bytes, out)
    }

    fn last_bytes(&self, kept: KeptExchanges<'_>) -> Vec<u8> {
        eyelet_http::last_bytes(kept)
    }

    fn close_upstreams(&self, resting: KeptExchanges<'_>, send: &mut dyn FnMut(usize, &[u8])) {
        eyelet_http::close_upstreams(resting, send);
    }

    fn resting_streams(&self, resting: KeptExchanges<'_>) -> StreamCounts {
        eyelet_http::resting_streams(resting)
    }

    fn ends_with_rule(&self, exchange: &[u8]) -> bool {
        eyelet_http::has_switched(exchange)
    }

    fn rest_wait(&self, resting: KeptExchanges<'_>, settings: &Settings) -> Duration {
        eyelet_http::rest_wait(resting, settings)
    }

    fn upstream_bytes(&self, resting: KeptExchanges<'_>) -> usize {
        eyelet_http::upstream_bytes(resting)
    }

    fn end_resting(&self, info: ConnectionInfo, resting: KeptExchanges<'_>, end: &End) {
        eyelet_http::end_resting(self.worker().http.clone(), info, resting, &end.reason);
    }

    fn pack_state(
        &self,
        decided: &Decided,
        state: &[u8],
        streams: (usize, usize),
    ) -> Option<PackedBytes> {
        let pieces = &self.worker.borrow().engine.pieces;
        decided.http2.then(|| eyelet_http::pack_state(state, streams, pieces)).flatten()
    }

    fn reads_exchange(&self, decided: &Decided, exchange: &[u8], is_shared: bool) -> bool {
        !decided.http2 && eyelet_http::is_exchange(exchange, is_shared)
    }

    fn find_partners(&self, kept: &KeptStreams, found: &mut Partners) -> bool {
        eyelet_http::find_partners(kept, found)
    }

    fn detach_links(&self, kept: Vec<KeptStreams>) -> Option<DetachedLinks> {
        eyelet_http::detach_links(kept)
    }

    fn reads_links(
        &self,
        links: &[DetachedLink],
        connections: &[(KeptExchanges<'_>, &[StreamRef])],
    ) -> bool {
        let budget = &self.worker.borrow().engine.process.budget;
        eyelet_http::reads_links(budget, links, connections)
    }

    fn attach_links(
        &self,
        links: Vec<DetachedLink>,
        connections: &[(Key, Vec<StreamRef>)],
    ) -> Vec<AttachedStreams> {
        let engine = self.worker.borrow().engine.clone();
        eyelet_http::attach_links(&engine, links, connections)
    }

    fn update(&self) -> Option<Update> {
        let served = self.worker.borrow().snapshot.generation;
        let pending = self.published.newer_than(served)?;
        let update = pending.of_worker(self.index);
        *self.pending.borrow_mut() = Some(pending);
        Some(update)
    }

    fn apply_update(&self) {
        let Some(SnapshotUpdate { snapshot, lines, .. }) = self.pending.take() else { return };
        let generation = snapshot.generation;
        let worker = self.worker().reloaded(snapshot);
        worker.log.borrow_mut().write_to(lines);
        let worker = worker.publish();
        *self.worker.borrow_mut() = worker.clone();
        if worker.snapshot.config.reload_ends_removed {
            self.removal.set(Some(0));
            self.end_removed();
        }
        self.published.note_served(self.index, generation);
    }

    fn departure(&self) -> Option<Departure> {
        self.published.departure(self.index)
    }

    fn task_bytes(&self, decided: &Decided) -> usize {
        if decided.http2 { HTTP2_BYTES } else { 0 }
    }

    fn is_logging(&self) -> bool {
        self.worker.borrow().log.borrow().is_on()
    }

    fn log(&self, info: &ConnectionInfo, end: &End) {
        let worker = self.worker.borrow();
        let measured = info.measured(worker.engine.now_unix_ms());
        let mut log = worker.log.borrow_mut();
        if info.decided.labels.is_known() {
            return log.line(&info.decided, &measured, end, None);
        }
        // It was shed before a configuration decided it.
        let decided = Decided { labels: worker.labels().clone(), ..info.decided.clone() };
        log.line(&decided, &measured, end, None);
    }

    fn flush_log(&self, ahead_ms: i64) {
        let worker = self.worker.borrow();
        let mut log = worker.log.borrow_mut();
        log.follow(ahead_ms);
        log.flush();
    }

    fn tick(&self) {
        let worker = self.worker.borrow();
        worker.http.compressors.recount();
        let coding_ns = worker.http.compressors.spent().as_nanos();
        worker.engine.counters.coding_ns.set(u64::try_from(coding_ns).unwrap_or(u64::MAX));
        // The first worker checks for all.
        if self.index == 0 {
            check::begin(&worker.http);
        }
        let budget = worker.engine.process.budget.clone();
        drop(worker);
        eyelet_http::forget_unused(&budget);
        self.end_removed();
    }

    fn is_resting(&self) -> bool {
        self.worker.borrow().http.compressors.is_idle()
    }

    fn release_caches(&self) {
        self.worker.borrow().http.compressors.rest();
    }

    fn close(&self) {
        self.worker.borrow().http.pool.close();
    }
}

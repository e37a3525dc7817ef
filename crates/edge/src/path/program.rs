//! Implements `Program` for the event loop: an accepted connection, a wake, a tick, a reload, an
//! end.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use eyelet_engine::departure::Departure;
use eyelet_engine::held;
use eyelet_engine::links::{AttachedStreams, DetachedLink, DetachedLinks, Partners, StreamRef};
use eyelet_engine::park;
use eyelet_engine::table::KeptStreams;
use eyelet_engine::worker::{Handle, Program, Settings, Task, Update};
use eyelet_handover::guard::DatagramGuard;
use eyelet_hold::{HoldKey, HoldPlace};
use eyelet_http::WokenConnection;
use eyelet_memory::budget::{Counted, HTTP2_BYTES};
use eyelet_memory::packed::PackedBytes;
use eyelet_memory::slab::Key;
use eyelet_relay::held::HeldConnection;
use eyelet_relay::{KeptExchanges, Relay};
use eyelet_telemetry::info::{ConnectionInfo, Decided, End};
use eyelet_telemetry::labels::Labels;
use eyelet_telemetry::listing::ListedRequest;
use eyelet_telemetry::listing::streams::StreamCounts;
use eyelet_telemetry::reason::Reason;
use eyelet_upstream::check;

use crate::path::action::hold;
use crate::path::connection::{connection, resume};
use crate::path::flow;
use crate::path::upstream;
use crate::snapshot::edge::Edge;
use crate::snapshot::published::{Published, SnapshotUpdate};

/// The program of one event loop. New connections get the newest configuration.
pub struct Service {
    index: usize,
    edge: RefCell<Rc<Edge>>,
    published: Arc<Published>,
    /// A newer snapshot that no connection is served by yet.
    pending: RefCell<Option<SnapshotUpdate>>,
    /// The position in the table at which the search for connections whose rule is gone goes on.
    removal: Cell<Option<u32>>,
}

impl Service {
    /// The program of the worker with this index, which has warmed up.
    pub fn new(index: usize, edge: Edge, published: Arc<Published>) -> Self {
        let edge = RefCell::new(edge.publish());
        let (pending, removal) = (RefCell::default(), Cell::default());
        Self { index, edge, published, pending, removal }
    }

    fn edge(&self) -> Rc<Edge> {
        self.edge.borrow().clone()
    }

    /// Has the newest rules decide held connections whose rule they lack.
    fn decide_held_anew(&self) {
        let edge = self.edge();
        if edge.snapshot.holds.held().0 == 0 {
            return;
        }
        let rules = edge.snapshot.config.rules.iter();
        let rules = rules.filter(|rule| rule.action.hold().is_some()).map(|rule| rule.name);
        let rules: HashSet<&str> = rules.collect();
        held::decide_anew(&edge.engine, |key| !rules.contains(&*key.rule));
    }

    /// Ends parked connections whose rule the newest configuration lacks, in a part of the table.
    /// An active one ends with its next request.
    fn end_removed(&self) {
        let Some(begin) = self.removal.get() else { return };
        let (edge, cursor) = (self.edge(), Cell::new(begin));
        let rules = edge.snapshot.config.rules.iter().map(|rule| rule.name);
        let rules: HashSet<&str> = rules.collect();
        let is_over = park::end_where(&edge.engine, &cursor, &Reason::RuleGone, |labels, rule| {
            rule.is_some_and(|rule| !rules.contains(labels.rule(rule)))
        });
        self.removal.set((!is_over).then(|| cursor.get()));
    }
}

impl Program for Service {
    fn labels(&self) -> Labels {
        self.edge.borrow().labels().clone()
    }

    fn accepted(self: Rc<Self>, handle: Handle, info: ConnectionInfo) -> Task {
        Box::pin(connection(self.edge(), handle, Box::new(info)))
    }

    fn flow_begun(self: Rc<Self>, handle: Handle, info: ConnectionInfo, key: Key) -> Task {
        Box::pin(flow::flow(self.edge(), handle, Box::new(info), key))
    }

    fn import_guard(&self, bytes: &[u8]) -> Option<Box<dyn DatagramGuard>> {
        let edge = self.edge();
        let hello_bytes_max = edge.snapshot.config.limits.hello_bytes_max;
        flow::import_guard(bytes, hello_bytes_max, &edge.snapshot.budget)
    }

    fn taken_over(
        &self,
        info: &mut ConnectionInfo,
        relay: &mut Relay,
        upstreams: &[BorrowedFd<'_>],
    ) {
        let (edge, decided) = (self.edge(), &mut info.decided);
        decided.counted_at = upstream::moved::count(&edge.snapshot, decided, relay, upstreams);
    }

    fn woken(
        self: Rc<Self>,
        handle: Handle,
        info: ConnectionInfo,
        relay: Relay,
        counted: Counted,
    ) -> Task {
        let edge = self.edge();
        match relay {
            Relay::Terminate(terminated) => {
                let woken = WokenConnection { handle, info, counted };
                eyelet_http::serve(edge.http.clone(), woken, terminated)
            }
            Relay::Cleartext(flow) => {
                let woken = WokenConnection { handle, info, counted };
                eyelet_http::serve_cleartext(edge.http.clone(), woken, flow)
            }
            Relay::Held(held) if held.session().is_some() => {
                let woken = WokenConnection { handle, info, counted };
                match eyelet_http::serve_held(edge.http.clone(), woken, held) {
                    Ok(served) => served,
                    Err(info) => {
                        let reason = Reason::Internal("a request that is held has no TLS");
                        edge.engine.emit(&info, &End::failed(reason));
                        Box::pin(std::future::ready(()))
                    }
                }
            }
            Relay::Held(held) => Box::pin(resume(edge, handle, Box::new(info), held, counted)),
            Relay::Splice(_) => {
                let reason = Reason::Internal("a spliced connection without an upstream");
                edge.engine.emit(&info, &End::failed(reason));
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

    fn resting_requests(&self, resting: KeptExchanges<'_>) -> Vec<ListedRequest> {
        eyelet_http::resting_requests(resting)
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
        eyelet_http::end_resting(self.edge().http.clone(), info, resting, &end.reason);
    }

    fn pack_state(
        &self,
        decided: &Decided,
        state: &[u8],
        streams: (usize, usize),
    ) -> Option<PackedBytes> {
        let pieces = &self.edge.borrow().engine.pieces;
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
        let budget = &self.edge.borrow().engine.process.budget;
        eyelet_http::reads_links(budget, links, connections)
    }

    fn attach_links(
        &self,
        links: Vec<DetachedLink>,
        connections: &[(Key, Vec<StreamRef>)],
    ) -> Vec<AttachedStreams> {
        let engine = self.edge.borrow().engine.clone();
        eyelet_http::attach_links(&engine, links, connections)
    }

    fn end_held(&self, info: ConnectionInfo, held: &HeldConnection, end: &End) {
        eyelet_http::end_held(self.edge().http.clone(), info, held, end);
    }

    fn ask_again(&self, info: &ConnectionInfo, key: HoldKey, bytes: usize) -> Option<HoldPlace> {
        hold::ask_again(&self.edge.borrow(), info, key, bytes)
    }

    fn update(&self) -> Option<Update> {
        let served = self.edge.borrow().snapshot.generation;
        let pending = self.published.newer_than(served)?;
        let update = pending.of_worker(self.index);
        *self.pending.borrow_mut() = Some(pending);
        Some(update)
    }

    fn apply_update(&self) {
        let Some(SnapshotUpdate { snapshot, lines, .. }) = self.pending.take() else { return };
        let generation = snapshot.generation;
        let edge = self.edge().reloaded(snapshot);
        edge.log.borrow_mut().write_to(lines);
        let edge = edge.publish();
        *self.edge.borrow_mut() = edge.clone();
        if edge.snapshot.config.reload_ends_removed {
            self.removal.set(Some(0));
            self.end_removed();
        }
        self.decide_held_anew();
        self.published.note_served(self.index, generation);
    }

    fn departure(&self) -> Option<Departure> {
        self.published.departure(self.index)
    }

    fn task_bytes(&self, decided: &Decided) -> usize {
        if decided.http2 { HTTP2_BYTES } else { 0 }
    }

    fn is_logging(&self) -> bool {
        self.edge.borrow().log.borrow().is_on()
    }

    fn log(&self, info: &ConnectionInfo, end: &End) {
        let edge = self.edge.borrow();
        let measured = info.measured(edge.engine.now_unix_ms());
        let mut log = edge.log.borrow_mut();
        if info.decided.labels.is_known() {
            return log.line(&info.decided, &measured, end, None);
        }
        // It was shed before a configuration decided it.
        let decided = Decided { labels: edge.labels().clone(), ..info.decided.clone() };
        log.line(&decided, &measured, end, None);
    }

    fn flush_log(&self, ahead_ms: i64) {
        let edge = self.edge.borrow();
        let mut log = edge.log.borrow_mut();
        log.follow(ahead_ms);
        log.flush();
    }

    fn tick(&self) {
        let edge = self.edge.borrow();
        edge.http.compressors.recount();
        let coding_ns = edge.http.compressors.spent().as_nanos();
        edge.engine.counters.coding_ns.set(u64::try_from(coding_ns).unwrap_or(u64::MAX));
        // The first worker checks for all.
        if self.index == 0 {
            let current = edge.http.current();
            let newest = move || Some(current.http()?.dialler.clone());
            check::begin(&edge.http.dialler, newest);
        }
        let budget = edge.engine.process.budget.clone();
        drop(edge);
        eyelet_http::forget_unused(&budget);
        budget.count_free_blocks();
        self.end_removed();
    }

    fn is_resting(&self) -> bool {
        self.edge.borrow().http.compressors.is_idle()
    }

    fn release_caches(&self) {
        self.edge.borrow().http.compressors.rest();
    }

    fn close(&self) {
        self.edge.borrow().http.pool.close();
    }
}

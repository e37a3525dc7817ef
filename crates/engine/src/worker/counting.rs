//! Counts of a worker's connections, and their log lines at their end.

use std::sync::atomic::Ordering::Relaxed;

use crate::worker::Worker;
use eyelet_memory::budget::Account;
use eyelet_relay::{Flow, Relay};
use eyelet_table::{Removed, Slot};
use eyelet_telemetry::cell::Cell;
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome, Parked};
use eyelet_telemetry::listing::ListedRequest;
use eyelet_telemetry::listing::streams::{StreamCounts, StreamKind};
use eyelet_telemetry::reason::{Class, Reason};

impl Worker {
    /// Logs the end of a connection and counts its outcome.
    pub fn emit(&self, info: &ConnectionInfo, end: &End) {
        self.count(end, info.bytes_to_client, info.bytes_to_upstream);
        if let Some(counted_at) = &info.decided.counted_at {
            counted_at.closed();
        }
        if let Some(program) = self.program() {
            program.log(info, end);
        }
    }

    /// Counts a parked connection.
    pub(crate) fn emit_parked(&self, info: &Parked, relay: &Relay, end: &End) {
        if self.logs() {
            let mut info = info.info(&self.shared.borrow());
            if let Relay::Splice(spliced) = relay {
                spliced.restore(&mut info.decided);
            }
            self.emit(&info, end);
        } else {
            self.count(end, info.bytes_to_client, info.bytes_to_upstream);
            let shared = self.shared.borrow();
            let counted_at = info.decided(&shared).and_then(|decided| decided.counted_at.as_ref());
            if let Some(counted_at) = counted_at {
                counted_at.closed();
            }
        }
        self.shared.borrow_mut().forget(info);
    }

    /// Counts an end that lack of memory caused.
    pub fn count_shed(&self, reason: &Reason) {
        if reason.class() == Class::Shed {
            self.counters.shed.up();
        }
    }

    fn count(&self, end: &End, to_client: u64, to_upstream: u64) {
        self.count_shed(&end.reason);
        self.counters.fault(end);
        self.counters.bytes_to_client.add(to_client);
        self.counters.bytes_to_upstream.add(to_upstream);
        if let Some(ended) = self.counters.ended.get(end.reason.class() as usize) {
            ended.up();
        }
        match end.outcome {
            Outcome::Failed => self.counters.failed.up(),
            Outcome::Left => self.counters.left.up(),
            Outcome::Originated => self.counters.originated.up(),
            Outcome::Redirected => self.counters.redirected.up(),
            Outcome::Refused => self.counters.refused.up(),
            Outcome::Spliced => self.counters.spliced.up(),
            Outcome::Terminated => self.counters.terminated.up(),
        }
    }

    /// Counts a slot as freed. Dropping it closes its sockets.
    pub(crate) fn closed(&self, removed: Option<Removed>) {
        if let Some(removed) = removed {
            self.uncount(&removed);
        }
    }

    /// Counts a slot as freed whose sockets may stay open.
    pub(crate) fn uncount(&self, removed: &Removed) {
        let slot = &removed.slot;
        self.process.open.fetch_sub(1, Relaxed);
        self.process.budget.give(Account::Connections, slot.active_bytes());
        self.process.descriptors.fetch_sub(removed.descriptors(), Relaxed);
        self.counters.connections.down();
        self.count_state(&slot.state, Cell::down);
    }

    /// Counts a connection that is parked. `further` are the bytes of its further sockets.
    pub(crate) fn count_parked(&self, info: &Parked, relay: &mut Relay, further: usize) {
        self.counters.parked.up();
        self.holds(0, size_of::<Slot>() + further);
        self.keeps(0, relay.held_bytes());
        self.shedding.sources.add(info.client_ip(), charged_bytes(info, relay, further));
        self.count_resting(relay, further, Cell::add);
    }

    /// Undoes what [`Self::count_parked`] counted.
    pub(crate) fn uncount_parked(&self, info: &Parked, relay: &mut Relay, further: usize) {
        self.counters.parked.down();
        self.holds(size_of::<Slot>() + further, 0);
        self.keeps(relay.held_bytes(), 0);
        self.shedding.sources.remove(info.client_ip(), charged_bytes(info, relay, further));
        self.count_resting(relay, further, Cell::sub);
    }

    /// Counts what rests on a parked connection, and its bytes, but for those in transit.
    fn count_resting(&self, relay: &mut Relay, further: usize, count: impl Fn(&Cell, u64)) {
        let streams = self.resting_streams(relay);
        if streams == StreamCounts::default() {
            return;
        }
        for (kind, streams) in streams.iter() {
            if let Some(cell) = self.counters.resting_streams.get(kind as usize) {
                count(cell, streams.into());
            }
        }
        count(&self.counters.resting_connections, 1);
        let bytes = size_of::<Slot>() + further + relay.flow().program_bytes();
        count(&self.counters.resting_bytes, bytes as u64);
    }

    /// The requests and streams that rest on a parked connection.
    pub(crate) fn resting_streams(&self, relay: &Relay) -> StreamCounts {
        let Some(flow) = relay.served_flow() else { return Default::default() };
        if flow.is_websocket() {
            return StreamCounts::one(StreamKind::WebSocket);
        }
        let resting = flow.resting().zip(self.program());
        resting.map(|(resting, program)| program.resting_streams(resting)).unwrap_or_default()
    }

    /// The held streams of a connection that is to be parked, and knows none of them yet.
    pub(crate) fn held_on(&self, relay: &Relay) -> u32 {
        let kept = relay.served_flow().and_then(Flow::kept_by_program).zip(self.program());
        kept.map_or(0, |(kept, program)| program.resting_streams(kept).of(StreamKind::Held))
    }

    /// The first requests and streams that rest on a parked connection, as a list shows them.
    pub(crate) fn resting_requests(&self, relay: &Relay) -> Vec<ListedRequest> {
        let resting = relay.served_flow().and_then(Flow::resting).zip(self.program());
        resting.map(|(resting, program)| program.resting_requests(resting)).unwrap_or_default()
    }

    /// Counts descriptors that connections took, or returned where `n` is negative. An active
    /// connection counts two from the start, because it may dial.
    pub(crate) fn uses_descriptors(&self, n: isize) {
        self.process.descriptors.fetch_add(n.cast_unsigned(), Relaxed);
    }

    /// Notes that the bytes in transit of one connection changed from `before` to `after`.
    pub(crate) fn keeps(&self, before: usize, after: usize) {
        self.holds(before, after);
        if after > before {
            self.process.budget.take(Account::Relayed, after - before);
        } else if before > after {
            self.process.budget.give(Account::Relayed, before - after);
        }
    }

    /// Notes that a parked connection held so many bytes in transit before. `further` are those of
    /// its further sockets: its source is charged for all at once.
    pub(crate) fn recount(&self, info: &Parked, relay: &mut Relay, held: usize, further: usize) {
        let holds = relay.held_bytes();
        // Most wakes leave nothing behind.
        if holds != held {
            self.keeps(held, holds);
            let charged = charged_bytes(info, relay, further);
            self.shedding.sources.update(info.client_ip(), charged - holds + held, charged);
        }
    }

    /// Notes that a parked connection's memory changed from `before` to `after` bytes.
    pub(crate) fn holds(&self, before: usize, after: usize) {
        let bytes = self.counters.parked_bytes.value().wrapping_add(after as u64);
        self.counters.parked_bytes.set(bytes.wrapping_sub(before as u64));
    }
}

/// Bytes that the source of a parked connection is charged for. Its part of the shared info is in
/// whole steps, so that it changes no difference that a wake makes to them.
fn charged_bytes(info: &Parked, relay: &mut Relay, further: usize) -> usize {
    info.shared_bytes() + relay.charged_bytes() + further
}

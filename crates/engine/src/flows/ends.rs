//! Flows end: by time, by their upstream, for lack of room, or with the process.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use eyelet_flows::table::{Due, FlowTraffic, QuicFlow, State};
use eyelet_flows::unanswered::UNANSWERED_MAX;
use eyelet_memory::slab::Key;
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome, Parked};
use eyelet_telemetry::reason::{Limit, Reason, Shed};

use crate::worker::flow_state::Passage;
use crate::worker::inbox::FirstToShed;
use crate::worker::{Settings, Worker};
use eyelet_handover::quic_move::QuicMove;

/// A draining worker ends flows that were not used for so long.
const DRAINED_IDLE_MS: u64 = 500;

impl Worker {
    /// Ends the flows whose time is over.
    pub(crate) fn end_due_flows(self: &Rc<Self>) {
        let (now_ms, idle) = (self.now_unix_ms(), self.settings.get().quic_idle_timeout);
        if self.flows.awaits.get() && !self.process.inboxes.awaits_flows() {
            if self.process.inboxes.has_open_flows() {
                tracing::error!("an earlier process does not say that all flows of QUIC have come");
            }
            self.read_awaited();
        }
        let idle_ms = match self.is_draining() {
            true => DRAINED_IDLE_MS,
            false => u64::try_from(idle.as_millis()).unwrap_or(u64::MAX),
        };
        loop {
            let due = self.flows.table.borrow_mut().next_due(now_ms, idle_ms);
            let Some((key, due)) = due else { break };
            match due {
                Due::Idle if self.is_draining() => self.end_flow(key, Reason::Drained(None)),
                Due::Idle | Due::Forgotten => {
                    self.end_flow(key, Reason::Timeout(Limit::Idle, None));
                }
                Due::Unanswered => {
                    self.end_without_upstream(key, Reason::Timeout(Limit::Connect, None));
                }
            }
        }
        self.tidy_datagram_sockets();
        self.note_first_to_shed();
    }

    /// Tells other workers which flows end first here.
    pub(super) fn note_first_to_shed(&self) {
        self.process.inboxes.note_first_to_shed(self.index, self.first_to_shed());
    }

    pub(super) fn first_to_shed(&self) -> FirstToShed {
        let table = self.flows.table.borrow();
        let idle_since_ms = table.idle_since_ms().unwrap_or(u64::MAX);
        FirstToShed { unanswered: table.unanswered(), idle_since_ms }
    }

    /// Ends flows, because other workers have begun new ones beyond a limit. Those that have ended
    /// meanwhile may have made the room. By now another worker may have a flow that ends before
    /// those here: it gets the debt. While only too many are unanswered no answered flow ends: the
    /// next new one pays.
    pub(super) fn shed_flows(self: &Rc<Self>, count: usize) {
        let Settings { connections_max, descriptors_max, .. } = self.settings.get();
        let process = &self.process;
        let is_crowded = || {
            process.open.load(Relaxed) > connections_max
                || process.descriptors.load(Relaxed) > descriptors_max
        };
        let is_beyond = || is_crowded() || process.unanswered.all() > UNANSWERED_MAX;
        for _ in 0..count {
            if !is_beyond() {
                break;
            }
            // Else the other one would give it back.
            self.note_first_to_shed();
            if process.inboxes.shed_elsewhere(self.index, self.first_to_shed()) {
                continue;
            }
            let next = self.flows.table.borrow().next_to_shed();
            let Some(next) = next else { break };
            let is_answered = |flow: &mut QuicFlow<Passage>| flow.is_answered();
            let is_answered = self.flows.table.borrow_mut().flow(next).is_some_and(is_answered);
            if is_answered && !is_crowded() {
                break;
            }
            self.end_flow(next, Reason::Shed(Shed::New));
        }
        self.note_first_to_shed();
    }

    /// Ends all flows: the process ends, or another one reads their datagrams.
    pub(crate) fn end_all_flows(self: &Rc<Self>) {
        let keys = self.flows.table.borrow().keys();
        for key in keys {
            self.end_flow(key, Reason::Drained(None));
        }
    }

    /// Ends a flow whose upstream is not there. If no server has answered its client, that is told,
    /// so that it does not ask until it gives up.
    pub(super) fn end_without_upstream(self: &Rc<Self>, key: Key, reason: Reason) {
        let guard = {
            let mut table = self.flows.table.borrow_mut();
            let flow = table.flow(key).filter(|flow| !flow.is_answered());
            flow.and_then(|flow| flow.payload.guard.take())
        };
        // The guard is the program's code, so nothing is borrowed meanwhile.
        let answer = guard.map_or(Vec::new(), |guard| guard.refusal(&reason));
        let line = {
            let mut table = self.flows.table.borrow_mut();
            let flow = table.flow(key).filter(|_| !answer.is_empty());
            flow.and_then(|flow| Some((flow.payload.info.take()?, flow.moved)))
        };
        let Some((parked, moved)) = line else { return self.end_flow(key, reason) };
        self.refuse_flow(key, answer);
        self.log_parked(parked, &moved, false, reason);
    }

    /// Ends a flow. One that is being decided has its task end, which writes its access line.
    pub(crate) fn end_flow(self: &Rc<Self>, key: Key, reason: Reason) {
        let removed = self.flows.table.borrow_mut().remove(key);
        let Some((mut flow, goes_on)) = removed else { return };
        if !matches!(flow.state, State::Refused { .. }) {
            self.counters.flows.down();
        }
        if flow.payload.upstream.is_some() {
            self.process.descriptors.fetch_sub(1, Relaxed);
        }
        if let Some(task) = flow.payload.task {
            self.shed_deciding(task);
        }
        if let Some(other) = goes_on {
            let info = flow.payload.info.take();
            if let Some(other) = self.flows.table.borrow_mut().flow(other) {
                other.payload.info = other.payload.info.take().or(info);
            }
            return;
        }
        self.log_flow(flow, reason);
    }

    fn log_flow(self: &Rc<Self>, flow: QuicFlow<Passage>, reason: Reason) {
        let is_answered = flow.is_answered();
        let (moved, passage) = (flow.moved, flow.payload);
        if let Some(parked) = passage.info {
            self.log_parked(parked, &moved, is_answered, reason);
        }
    }

    fn log_parked(&self, parked: Parked, moved: &FlowTraffic, is_answered: bool, reason: Reason) {
        self.process.open.fetch_sub(1, Relaxed);
        let info = parked.info(&self.shared.borrow());
        self.emit_flow(info, moved, is_answered, reason);
        self.shared.borrow_mut().forget(&parked);
    }

    /// Ends a flow that is out of its worker.
    pub(super) fn end_moving(&self, moving: QuicMove, reason: Reason) {
        let is_answered = moving.is_answered();
        self.emit_flow(moving.info, &moving.flow.moved, is_answered, reason);
    }

    pub(super) fn emit_flow(
        &self,
        mut info: ConnectionInfo,
        moved: &FlowTraffic,
        is_answered: bool,
        reason: Reason,
    ) {
        info.bytes_to_upstream = moved.bytes_to_upstream;
        info.bytes_to_client = moved.bytes_to_client;
        info.is_quic = true;
        info.datagrams = [moved.datagrams_to_upstream, moved.datagrams_to_client];
        let end = match is_answered {
            true => End { outcome: Outcome::Spliced, reason },
            false => End::failed(reason),
        };
        self.emit(&info, &end);
    }

    /// Closes the upstream of a flow that is refused, and forgets its task.
    pub(super) fn close_passage(&self, key: Key) {
        let mut table = self.flows.table.borrow_mut();
        let Some(flow) = table.flow(key) else { return };
        (flow.payload.task, flow.payload.guard) = (None, None);
        if flow.payload.upstream.take().is_some() {
            self.process.descriptors.fetch_sub(1, Relaxed);
        }
    }
}

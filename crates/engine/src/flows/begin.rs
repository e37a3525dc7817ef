//! A flow begins: it gets a slot and a future that reads its hello and decides, as a connection
//! does.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use eyelet_flows::peer::Peer;
use eyelet_flows::table::QuicFlow;
use eyelet_memory::slab::Key;
use eyelet_sys::socket::datagram;
use eyelet_telemetry::reason::{Limit, Reason, Shed};

use crate::iteration::accept::Accepted;
use crate::worker::flow_state::{DatagramSocket, Passage};
use crate::worker::{Settings, Worker};

/// Flows that end for one new one, at most.
const SHED_A_NEW_ONE: usize = 4;

impl Worker {
    /// Begins a flow with its first datagram, unless there is no room.
    pub(super) fn begin_flow(
        self: &Rc<Self>,
        via: &Rc<DatagramSocket>,
        peer: Peer,
        dcid: &[u8],
        (first, ecn): (&[u8], u8),
    ) {
        let check_new = || self.flows.table.borrow().check_new(&peer);
        let has_room =
            || check_new().is_ok() && self.make_flow_room() && self.make_room(peer.client().ip());
        if self.is_ending() || self.is_retired() || !has_room() {
            return self.counters.flows_not_begun.up();
        }
        // One of its own, which it has mostly closed: nobody can see that.
        if let Ok(Some(own)) = check_new() {
            self.end_flow(own, Reason::Shed(Shed::New));
        }
        let now_ms = self.now_unix_ms();
        let begun = self.flows.table.borrow_mut().begin(peer, dcid, now_ms, Passage::new(via));
        let Ok(flow) = begun else { return self.counters.flows_not_begun.up() };
        self.flows.table.borrow_mut().hold(flow, first, ecn);
        self.counters.flows_begun.up();
        self.counters.flows.up();
        self.start_deciding(flow);
    }

    /// Has the program decide a flow anew, because its server has asked its client to begin anew.
    pub(super) fn decide_anew(self: &Rc<Self>, flow: Key, (first, ecn): (&[u8], u8)) {
        let now_ms = self.now_unix_ms();
        let is_listening = |flow: &mut QuicFlow<Passage>| flow.payload.via.is_listening.get();
        if !self.flows.table.borrow_mut().flow(flow).is_some_and(is_listening) {
            // Its listener is gone, and so are the rules for it.
            return self.end_flow(flow, Reason::Drained(None));
        }
        {
            let mut table = self.flows.table.borrow_mut();
            if !table.reopen(flow, now_ms) {
                return;
            }
            table.hold(flow, first, ecn);
            let Some(flow) = table.flow(flow) else { return };
            flow.payload.begins_anew = false;
            flow.payload.guard = None;
            if let Some(info) = flow.payload.info.take() {
                self.shared.borrow_mut().forget(&info);
                // It counts as a connection by the slot of its task now.
                self.process.open.fetch_sub(1, Relaxed);
            }
        }
        self.start_deciding(flow);
    }

    fn start_deciding(self: &Rc<Self>, flow: Key) {
        let Some((peer, listener)) = self
            .flows
            .table
            .borrow_mut()
            .flow(flow)
            .map(|flow| (flow.peer, flow.payload.via.listener.get()))
        else {
            return;
        };
        let client = match datagram::never_ready() {
            Ok(client) => client,
            Err(error) => return self.end_flow(flow, Reason::Unregistered((&error).into())),
        };
        self.process.open.fetch_add(1, Relaxed);
        self.uses_descriptors(2);
        self.begin_deciding(Accepted { listener, client, peer: peer.client() }, (flow, peer));
    }

    /// Makes room for one more flow at the limit of connections, descriptors or unanswered flows.
    /// Flows without an answer of their server end first, then the longest idle, on whichever
    /// worker they are.
    fn make_flow_room(self: &Rc<Self>) -> bool {
        let Settings { connections_max, descriptors_max, .. } = self.settings.get();
        let process = &self.process;
        let is_crowded = || {
            process.open.load(Relaxed) >= connections_max
                || process.descriptors.load(Relaxed) + 2 > descriptors_max
        };
        let is_full = || is_crowded() || process.unanswered.is_full();
        let mut ended_unanswered = false;
        for _ in 0..SHED_A_NEW_ONE {
            if !is_full() || process.inboxes.shed_elsewhere(self.index, self.first_to_shed()) {
                return true;
            }
            let next = self.flows.table.borrow().next_to_shed();
            let Some(next) = next else { break };
            let (task, is_answered) = {
                let mut table = self.flows.table.borrow_mut();
                let Some(flow) = table.flow(next) else { break };
                (flow.payload.task, flow.is_answered())
            };
            if is_answered && (ended_unanswered || !is_crowded()) {
                break;
            }
            ended_unanswered = !is_answered;
            self.end_flow(next, Reason::Shed(Shed::New));
            if task.is_some() {
                // It gives its place back as soon as its task runs.
                return true;
            }
        }
        !is_full()
    }

    /// Notes the slot of the task that decides a flow.
    pub(crate) fn note_deciding(&self, flow: Key, slot: Key) {
        if let Some(flow) = self.flows.table.borrow_mut().flow(flow) {
            flow.payload.task = Some(slot);
        }
    }

    /// Adds a client's new address to a flow that its server has answered, if the rules could not
    /// say anything else of it. `at`: the listener that it came to.
    pub(super) fn add_address(self: &Rc<Self>, of: Key, peer: &Peer, at: u16) -> Option<Key> {
        let (passage, to) = {
            let mut table = self.flows.table.borrow_mut();
            let flow = table.flow(of).filter(|flow| flow.is_answered())?;
            let same =
                flow.payload.may_change_address || flow.peer.client().ip() == peer.client().ip();
            let via = &flow.payload.via;
            if !same || via.listener.get() != at || flow.peer.local() != peer.local() {
                return None;
            }
            let mut passage = Passage::new(via);
            passage.may_change_address = flow.payload.may_change_address;
            passage.is_from_client = flow.payload.is_from_client;
            // A hello from there is a new flow's.
            passage.hello_is_over = flow.payload.hello_is_over || flow.payload.guard.is_some();
            (passage, flow.payload.upstream.as_ref()?.1)
        };
        // It is no connection more, but a descriptor.
        let has_room = self.process.descriptors.load(Relaxed) < self.settings.get().descriptors_max;
        let source = passage.is_from_client.then(|| peer.client().ip());
        let upstream = has_room.then(|| datagram::connect(to, source))?.ok()?;
        let now_ms = self.now_unix_ms();
        let added = self.flows.table.borrow_mut().add_address(of, *peer, now_ms, passage);
        let (key, least) = added.ok()?;
        self.counters.flow_moves.up();
        self.counters.flows.up();
        if let Err(error) = self.give_upstream(key, upstream, to) {
            self.end_flow(key, Reason::Unregistered((&error).into()));
            return None;
        }
        if let Some(least) = least {
            self.end_flow(least, Reason::Timeout(Limit::Idle, None));
        }
        Some(key)
    }
}

//! Flows leave for another process, and come from one. A flow has no secret and no state that two
//! processes could spoil, so the one that gives it keeps a copy until the other serves for good. Of
//! one that is recorded for a restart it keeps none.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use eyelet_flows::moving::{FlowAddress, MovingFlow};
use eyelet_flows::table::QuicFlow;
use eyelet_memory::slab::Key;
use eyelet_telemetry::reason::{Reason, Shed};

use crate::departure::{BATCH_BYTES, BATCH_DESCRIPTORS_MAX};
use crate::ready::Token;
use crate::worker::flow_state::{DatagramSocket, Passage};
use crate::worker::inbox::Placed;
use crate::worker::{Settings, Worker};
use eyelet_handover::flows::{FlowBatch, FlowsRead, encode, flow_bytes};
use eyelet_handover::own;
use eyelet_handover::quic_move::{MovingGuard, MovingPassage, QuicMove};

/// Flows that leave in one iteration: about a millisecond. With an address each they fit one
/// message.
pub(super) const FLOWS_AT_ONCE: usize = BATCH_DESCRIPTORS_MAX;

/// A flow that its worker does not serve.
enum Unplaced {
    /// The table has no room for it, or its listener is gone. It is still to be ended.
    NoRoom(Box<QuicMove>),
    /// The system refuses it. It has ended.
    Ended(io::Error),
}

impl Worker {
    /// Takes a flow out of the worker. `None`: its datagrams wait, or its client is in the middle
    /// of its hello. It is here still then.
    pub(super) fn take_flow(&self, key: Key) -> Option<QuicMove> {
        let mut flow = {
            let mut table = self.flows.table.borrow_mut();
            let exports = |flow: &QuicFlow<Passage>| match &flow.payload.guard {
                Some(guard) => guard.export().is_some(),
                None => true,
            };
            table.flow(key).filter(|flow| exports(flow))?;
            table.take(key)?
        };
        let via = flow.addresses.first()?.payload.via.cookie;
        let passages = || flow.addresses.iter().map(|address| &address.payload);
        let (is_from_client, may_change_address) =
            passages().next().map(|it| (it.is_from_client, it.may_change_address))?;
        let parked = flow.addresses.iter_mut().find_map(|address| address.payload.info.take())?;
        let info = parked.info(&self.shared.borrow());
        self.shared.borrow_mut().forget(&parked);
        self.process.open.fetch_sub(1, Relaxed);
        let MovingFlow { first_id, server_id, moved, addresses } = flow;
        let addresses = addresses.into_iter().filter_map(|address| self.take_address(address));
        let flow = MovingFlow { first_id, server_id, moved, addresses: addresses.collect() };
        Some(QuicMove { via, info, is_from_client, may_change_address, flow })
    }

    fn take_address(&self, address: FlowAddress<Passage>) -> Option<FlowAddress<MovingPassage>> {
        let FlowAddress { peer, is_answered, since_ms, payload } = address;
        self.counters.flows.down();
        let (socket, to) = payload.upstream?;
        self.process.descriptors.fetch_sub(1, Relaxed);
        // The other process has the socket, too, so closing it would leave it registered. An error
        // means that it is not registered, which is the aim.
        let _ = self.table.borrow().epoll.remove(&socket);
        let guard = match payload.guard {
            Some(guard) => {
                let form = guard.export()?;
                MovingGuard::Reads(guard, form)
            }
            None if payload.hello_is_over => MovingGuard::HelloIsOver,
            None => MovingGuard::Free,
        };
        let begins_anew = payload.begins_anew;
        let payload = MovingPassage { socket: Arc::new(socket), to, guard, begins_anew };
        Some(FlowAddress { peer, is_answered, since_ms, payload })
    }

    /// Lets the next flows leave that are to. Those that cannot end: their clients repeat what was
    /// not answered, and begin anew. Returns the messages for the others, with so many descriptors
    /// each at most, and whether these were the last.
    pub(crate) fn leave_some_flows(
        self: &Rc<Self>,
        descriptors_max: usize,
    ) -> (Vec<FlowBatch>, bool) {
        let (next, are_last) = {
            let left = &mut self.flows.leaving.borrow_mut().left;
            let next = left.split_off(left.len().saturating_sub(FLOWS_AT_ONCE));
            (next, left.is_empty())
        };
        let mut moving = Vec::new();
        for (key, moves) in next {
            match if moves { self.take_flow(key) } else { None } {
                Some(flow) => moving.push(flow),
                // It may have left with another address of its client.
                None => self.end_flow(key, Reason::Drained(None)),
            }
        }
        moving.sort_by_key(|moving| moving.via);
        let batches = self.batches(&moving, descriptors_max);
        self.flows.leaving.borrow_mut().give(moving);
        (batches, are_last)
    }

    fn batches(&self, moving: &[QuicMove], descriptors_max: usize) -> Vec<FlowBatch> {
        let now_ms = self.now_unix_ms();
        let (mut batches, mut begin) = (Vec::new(), 0);
        while let Some(first) = moving.get(begin) {
            let (mut end, mut sockets, mut bytes) = (begin, 0, 0);
            while let Some(next) = moving.get(end).filter(|next| next.via == first.via) {
                let more = next.flow.addresses.len();
                let is_full = sockets + more > descriptors_max || bytes >= BATCH_BYTES;
                if end > begin && is_full {
                    break;
                }
                (end, sockets, bytes) = (end + 1, sockets + more, bytes + flow_bytes(next));
            }
            batches.extend(encode(moving.get(begin..end).unwrap_or_default(), now_ms));
            begin = end;
        }
        batches
    }

    /// Ends the flows of some of the last batches, for which nobody has room.
    pub(crate) fn end_refused_flows(&self, batches: &[usize], refused: &[usize]) {
        let mut leaving = self.flows.leaving.borrow_mut();
        let mut end = leaving.given();
        let mut ended = Vec::new();
        for (index, flows) in batches.iter().enumerate().rev() {
            let begin = end.saturating_sub(*flows);
            if refused.contains(&index) {
                ended.extend(leaving.take_back(begin..end));
            }
            end = begin;
        }
        drop(leaving);
        ended.into_iter().for_each(|moving| self.end_moving(moving, Reason::Drained(None)));
    }

    /// Serves flows again that the other process has not got, because it has died.
    pub(crate) fn take_flows_back(self: &Rc<Self>) {
        let given = self.take_given_flows();
        self.find_sockets_again();
        for moving in given {
            if let Err(why) = self.place_flow(moving) {
                self.end_unplaced(why, Reason::Drained(None));
            }
        }
        self.flows.table.borrow_mut().restore_order();
    }

    /// Gives flows that have not left yet the sockets that the worker reads again.
    fn find_sockets_again(&self) {
        let sockets = self.flows.sockets.borrow();
        let keys = self.flows.table.borrow().keys();
        for key in keys {
            let mut table = self.flows.table.borrow_mut();
            let Some(flow) = table.flow(key) else { continue };
            let via = &mut flow.payload.via;
            if let Some(known) = sockets.iter().flatten().find(|known| known.cookie == via.cookie) {
                *via = known.clone();
            }
        }
    }

    /// Ends flows that no process serves any more.
    pub(crate) fn end_given_flows(&self) {
        let given = self.take_given_flows();
        given.into_iter().for_each(|moving| self.end_moving(moving, Reason::Drained(None)));
    }

    /// Forgets the flows that were given so far: they are recorded, and nobody gives them back.
    pub(crate) fn forget_recorded_flows(&self) {
        self.flows.leaving.borrow_mut().take_all();
    }

    /// The other process serves for good: its flows are forgotten here.
    pub(crate) fn forget_given_flows(&self) {
        self.take_given_flows();
    }

    fn take_given_flows(&self) -> Vec<QuicMove> {
        let mut leaving = self.flows.leaving.borrow_mut();
        leaving.left.clear();
        leaving.take_all()
    }

    /// Serves flows of another process, as far as there is room for them. The others end.
    pub(super) fn admit_flows(self: &Rc<Self>, read: FlowsRead) -> Placed {
        let FlowsRead { flows, unread, fault } = read;
        let mut placed = Placed { served: 0, ended: unread };
        if let Some(fault) = fault {
            tracing::error!("{unread} flows of QUIC end: {fault}");
        }
        let mut fault = None;
        for moving in flows {
            let done = match self.has_flow_room(&moving) {
                true => self.place_flow(moving),
                false => Err(Unplaced::NoRoom(Box::new(moving))),
            };
            match done {
                Ok(()) => placed.served += 1,
                Err(why) => {
                    placed.ended += 1;
                    fault = fault.or(self.end_unplaced(why, Reason::Shed(Shed::New)));
                }
            }
        }
        if let Some(fault) = fault {
            tracing::error!("a flow of QUIC ends, or several: {fault}");
        }
        if !self.flows.awaits.get() {
            // Nobody does it later: they have come too late.
            self.flows.table.borrow_mut().restore_order();
        }
        placed
    }

    /// Ends a flow that cannot be placed. Returns the system's error, if it has ended by one.
    fn end_unplaced(&self, unplaced: Unplaced, reason: Reason) -> Option<io::Error> {
        match unplaced {
            Unplaced::NoRoom(moving) => {
                self.end_moving(*moving, reason);
                None
            }
            Unplaced::Ended(error) => Some(error),
        }
    }

    fn has_flow_room(&self, moving: &QuicMove) -> bool {
        let Settings { connections_max, descriptors_max, .. } = self.settings.get();
        let process = &self.process;
        let descriptors = process.descriptors.load(Relaxed) + moving.flow.addresses.len();
        process.open.load(Relaxed) < connections_max
            && descriptors <= descriptors_max
            && !process.budget.is_over(flow_bytes(moving))
    }

    /// Puts a flow into the table.
    ///
    /// # Errors
    /// [`Unplaced`].
    fn place_flow(&self, moving: QuicMove) -> Result<(), Unplaced> {
        let via = {
            let sockets = self.flows.sockets.borrow();
            sockets.iter().flatten().find(|known| known.cookie == moving.via).cloned()
        };
        let Some(via) = via else { return Err(Unplaced::NoRoom(Box::new(moving))) };
        if self.flows.table.borrow().check_moving(&moving.flow).is_err() {
            return Err(Unplaced::NoRoom(Box::new(moving)));
        }
        let QuicMove { info, is_from_client, may_change_address, flow, .. } = moving;
        let MovingFlow { first_id, server_id, moved, addresses } = flow;
        let all_answered = addresses.iter().all(|address| address.is_answered);
        let mut passages = Vec::with_capacity(addresses.len());
        for FlowAddress { peer, is_answered, since_ms, payload } in addresses {
            let mut passage = match passage(&via, payload) {
                Ok(passage) => passage,
                Err(error) => {
                    // Somebody else has its socket, and no descriptor is free.
                    self.emit_flow(info, &moved, all_answered, Reason::Shed(Shed::New));
                    return Err(Unplaced::Ended(error));
                }
            };
            (passage.is_from_client, passage.may_change_address) =
                (is_from_client, may_change_address);
            passages.push(FlowAddress { peer, is_answered, since_ms, payload: passage });
        }
        if let Some(newest) = passages.last_mut() {
            newest.payload.info = Some(info.park(&mut self.shared.borrow_mut()));
        }
        let flow = MovingFlow { first_id, server_id, moved, addresses: passages };
        let restored = self.flows.table.borrow_mut().restore(flow);
        // Checked above.
        let keys = restored.map_err(|_| Unplaced::Ended(io::ErrorKind::QuotaExceeded.into()))?;
        self.process.open.fetch_add(1, Relaxed);
        for key in keys {
            self.counters.flows.up();
            self.process.descriptors.fetch_add(1, Relaxed);
            let mut table = self.flows.table.borrow_mut();
            let Some(flow) = table.flow(key) else { continue };
            let Some((socket, _)) = &flow.payload.upstream else { continue };
            let registered =
                self.table.borrow().epoll.add_listener(socket, Token::Flow(key).encode());
            if let Err(error) = registered {
                // It ends when its time is over.
                tracing::error!("a flow of QUIC hears nothing of its server: {error}");
            }
        }
        Ok(())
    }
}

fn passage(via: &Rc<DatagramSocket>, moving: MovingPassage) -> io::Result<Passage> {
    let MovingPassage { socket, to, guard, begins_anew } = moving;
    let mut passage = Passage::new(via);
    // It keeps its options.
    passage.upstream = Some((own(socket)?, to));
    passage.begins_anew = begins_anew;
    match guard {
        MovingGuard::Free => {}
        MovingGuard::HelloIsOver => passage.hello_is_over = true,
        MovingGuard::Reads(guard, _) => passage.guard = Some(guard),
    }
    Ok(passage)
}

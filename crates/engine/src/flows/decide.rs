//! The program's part in a flow that it decides: it reads the datagrams that wait, lets them pass
//! to an upstream, or refuses them.

use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use eyelet_flows::table::State;
use eyelet_flows::waiting::Datagram;
use eyelet_memory::slab::Key;
use eyelet_sys::socket::datagram;
use eyelet_telemetry::info::ConnectionInfo;
use quinn_udp::EcnCodepoint;

use crate::flows::clients::Turn;
use crate::ready::{CLIENT, READ};
use crate::worker::flow_state::FlowPass;
use crate::worker::{Handle, WaitError, Worker};

impl Handle {
    /// A copy of a datagram of a flow that waits. `None`: it has not come yet.
    pub fn waiting_datagram(&self, flow: Key, nth: usize) -> Option<Datagram> {
        let mut table = self.worker.flows.table.borrow_mut();
        let State::Undecided(waiting) = &table.flow(flow)?.state else { return None };
        waiting.datagrams().get(nth).cloned()
    }

    /// Drops a datagram that must not pass.
    pub fn drop_datagram(&self, flow: Key, nth: usize) {
        self.worker.flows.table.borrow_mut().drop_held(flow, nth);
    }

    /// Waits until another datagram of a flow has come.
    ///
    /// # Errors
    /// The deadline has passed, or the flow has ended.
    pub async fn next_datagram(&self, flow: Key) -> Result<(), WaitError> {
        if self.worker.flows.table.borrow_mut().flow(flow).is_none() {
            return Err(WaitError::Shed);
        }
        self.ready(&[CLIENT], READ).await?;
        if let Some(slot) = self.worker.table.borrow_mut().slot(self.key()) {
            slot.ready.clear(CLIENT, READ);
        }
        Ok(())
    }

    /// Lets the datagrams of a flow pass to an upstream. Its task is to end then.
    ///
    /// # Errors
    /// The kernel's: there is no socket for it.
    pub fn pass_flow(&self, flow: Key, info: ConnectionInfo, pass: FlowPass) -> io::Result<()> {
        self.worker.pass_flow(flow, info, pass)
    }

    /// Refuses a flow with this datagram; empty: silently. Does nothing to one that passes.
    pub fn refuse_flow(&self, flow: Key, answer: Vec<u8>) {
        let worker = &self.worker;
        let is_undecided = {
            let mut table = worker.flows.table.borrow_mut();
            table.flow(flow).is_some_and(|it| matches!(it.state, State::Undecided(_)))
        };
        if is_undecided {
            worker.refuse_flow(flow, answer);
            worker.counters.flows_refused.up();
        }
    }
}

impl Worker {
    /// Refuses a flow that no server has answered.
    pub(super) fn refuse_flow(&self, flow: Key, answer: Vec<u8>) {
        let now_ms = self.now_unix_ms();
        let (may_send, forgotten) =
            self.flows.table.borrow_mut().refuse(flow, answer.into(), now_ms);
        self.counters.flows.down();
        self.close_passage(flow);
        if may_send {
            self.send_answer(flow);
        }
        if let Some(forgotten) = forgotten {
            self.flows.table.borrow_mut().remove(forgotten);
        }
        self.note_first_to_shed();
    }

    fn pass_flow(
        self: &Rc<Self>,
        key: Key,
        info: ConnectionInfo,
        FlowPass { to, is_from_client, may_change_address, guard, seen }: FlowPass,
    ) -> io::Result<()> {
        let has_upstream = {
            let mut table = self.flows.table.borrow_mut();
            let flow = table.flow(key).ok_or(io::ErrorKind::ConnectionAborted)?;
            // After a Retry the server expects the client at the same address.
            flow.payload.upstream.as_ref().is_some_and(|(_, known)| *known == to)
        };
        if !has_upstream {
            let source = is_from_client.then(|| info.client.ip());
            let socket = datagram::connect(to, source)?;
            self.give_upstream(key, socket, to)?;
        }
        let info = info.park(&mut self.shared.borrow_mut());
        let waiting = {
            let mut table = self.flows.table.borrow_mut();
            let waiting = table.pass(key, self.now_unix_ms());
            if let Some(flow) = table.flow(key) {
                flow.payload.info = Some(info);
                flow.payload.is_from_client = is_from_client;
                flow.payload.may_change_address = may_change_address;
                flow.payload.task = None;
                // Also what tells the client that its upstream is gone: the next datagram may say.
                flow.payload.guard = guard;
            }
            waiting
        };
        self.process.open.fetch_add(1, Relaxed);
        for (nth, datagram) in waiting.into_datagrams().into_iter().enumerate() {
            let is_seen = nth < seen;
            if is_seen || matches!(self.take_guarded(key, &datagram.bytes), Turn::Passes(_)) {
                let ecn = EcnCodepoint::from_bits(datagram.ecn);
                self.send_upstream(key, &datagram.bytes, datagram.bytes.len(), ecn);
            }
        }
        Ok(())
    }
}

//! Flows of QUIC: datagrams between clients' sockets, which all clients of a listener share, and
//! connected upstream sockets, one for each address of a client.

use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use eyelet_sys::epoll::Events;
use quinn_udp::{RecvMeta, UdpSocketState};

use crate::ready::Token;
use crate::worker::Worker;
use crate::worker::flow_state::{BATCH, BUFFER_BYTES};
use crate::worker::inbox::{FlowNews, Inbox};

mod begin;
mod clients;
mod decide;
mod ends;
mod listen;
mod moving;
mod upstream;

#[cfg(test)]
mod tests;

/// Batches that are read from one socket before others have their turn.
const BATCHES: usize = 4;

/// Takes what other workers receive, and flows of an earlier process, as long as the worker lives.
pub async fn receive(worker: Rc<Worker>, inbox: Inbox) {
    let Inbox { mut datagrams, mut flows, shedding } = inbox;
    loop {
        tokio::select! {
            handed = datagrams.recv() => {
                // The process ends.
                let Some(handed) = handed else { break };
                if !survives(|| worker.take_handed(&handed)) {
                    worker.counters.flow_datagrams_dropped.up();
                }
            }
            Some(news) = flows.recv() => {
                // The process that waits for the answer hears that there is none.
                survives(|| {
                    worker.take_flow_news(news);
                    false
                });
            }
            () = shedding.asked() => {
                survives(|| {
                    worker.shed_flows(shedding.take_owed());
                    false
                });
            }
        }
    }
}

impl Worker {
    /// Takes news of an earlier process's flows.
    pub fn take_flow_news(self: &Rc<Self>, news: FlowNews) {
        match news {
            FlowNews::Message { body, sockets, placed } => {
                let import = |bytes: &[u8]| self.program()?.import_guard(bytes);
                let read =
                    eyelet_handover::flows::decode(&body, sockets, self.now_unix_ms(), import);
                let said = read.map(|read| self.admit_flows(read));
                // Who waits for it has given up, if this fails.
                let _ = placed.try_send(said.map_err(|error| error.to_string()));
            }
            FlowNews::All => self.read_awaited(),
        }
    }

    /// Reads the UDP sockets that are ready: upstreams before clients, so that each peer wakes
    /// once. Returns whether more may be there.
    pub(crate) fn read_datagrams(self: &Rc<Self>, events: &Events) -> bool {
        let (mut left, mut has_read) = (false, false);
        for event in events.iter() {
            if let Token::Flow(key) = Token::decode(event.token) {
                left |= survives(|| self.read_upstream(key));
                has_read = true;
            }
        }
        if has_read {
            self.note_first_to_shed();
        }
        for event in events.iter() {
            if let Token::Datagrams(index) = Token::decode(event.token) {
                left |= survives(|| self.read_clients(index));
                self.note_first_to_shed();
            }
        }
        left
    }
}

/// A panic loses the datagrams of one read and no flow, or flows of one message.
fn survives(read: impl FnOnce() -> bool) -> bool {
    std::panic::catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        tracing::error!("internal error: some datagrams or flows are lost");
        false
    })
}

/// Reads a batch. Returns what each part of the buffer has.
fn receive_batch(
    state: &UdpSocketState,
    socket: &OwnedFd,
    buffer: &mut [u8],
) -> io::Result<([RecvMeta; BATCH], usize)> {
    let mut metas = [RecvMeta::default(); BATCH];
    let mut parts = buffer.chunks_mut(BUFFER_BYTES);
    let mut parts: [IoSliceMut<'_>; BATCH] =
        std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
    let count = state.recv(socket.into(), &mut parts, &mut metas)?;
    Ok((metas, count))
}

/// The datagrams of a part of the buffer. All but the last have one length.
fn datagrams<'a>(meta: &RecvMeta, part: &'a [u8]) -> std::slice::Chunks<'a, u8> {
    part.get(..meta.len).unwrap_or_default().chunks(meta.stride.max(1))
}

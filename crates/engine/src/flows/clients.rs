//! Datagrams of clients: read, sorted by flow, and passed on.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use eyelet_flows::id::Header;
use eyelet_flows::peer::Peer;
use eyelet_flows::table::{FoundFlow, State};
use eyelet_memory::slab::Key;
use eyelet_wire::quic::{LongKind, QuicHeader, packets};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit};

use crate::flows::{BATCHES, datagrams, receive_batch};
use crate::ready::{CLIENT, READ};
use crate::worker::Worker;
use crate::worker::flow_state::{BATCH, BUFFER_BYTES, DatagramSocket};
use crate::worker::inbox::HandedDatagram;
use eyelet_handover::guard::GuardTurn;

/// The way of a client's datagram.
pub(super) enum Turn {
    /// It passes now.
    Passes(Key),
    /// It waits, or is dropped.
    Done,
}

impl Worker {
    /// Reads what has come to a listening socket. Returns whether more may be there.
    pub(crate) fn read_clients(self: &Rc<Self>, index: u16) -> bool {
        let socket = self.flows.sockets.borrow().get(usize::from(index)).cloned().flatten();
        let Some(socket) = socket else { return false };
        let mut buffer = self.flows.take_buffer();
        let mut has_more = true;
        for _ in 0..BATCHES {
            match receive_batch(&socket.state, &socket.socket, &mut buffer) {
                Ok((metas, count)) => {
                    for (meta, part) in metas.iter().take(count).zip(buffer.chunks(BUFFER_BYTES)) {
                        self.take_clients(&socket, meta, part);
                    }
                    has_more = count == BATCH;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // It is empty; or an ICMP error about a client, which concerns no flow for sure.
                Err(_) => has_more = false,
            }
            if !has_more {
                break;
            }
        }
        *self.flows.buffer.borrow_mut() = buffer;
        has_more
    }

    /// Takes datagrams of one client that came together.
    fn take_clients(self: &Rc<Self>, socket: &Rc<DatagramSocket>, meta: &RecvMeta, part: &[u8]) {
        // No client has it, and an answer to it would turn off GSO and ECN for all others.
        if meta.addr.port() == 0 {
            return self.counters.flow_datagrams_dropped.up();
        }
        let local = meta.dst_ip.unwrap_or(socket.address.ip());
        let peer = Peer::new(meta.addr, SocketAddr::new(local, socket.address.port()));
        let mut run: Option<(Key, usize, usize)> = None;
        let mut at = 0;
        for datagram in datagrams(meta, part) {
            let end = at + datagram.len();
            let passes = match self.take_client(socket, &peer, datagram, meta.ecn) {
                Turn::Passes(key) => Some(key),
                Turn::Done => None,
            };
            match (&mut run, passes) {
                (Some((key, _, to)), Some(other)) if *key == other => *to = end,
                _ => {
                    if let Some((key, from, to)) = run {
                        self.send_upstream(key, &part[from..to], meta.stride, meta.ecn);
                    }
                    run = passes.map(|key| (key, at, end));
                }
            }
            at = end;
        }
        if let Some((key, from, to)) = run {
            self.send_upstream(key, &part[from..to], meta.stride, meta.ecn);
        }
    }

    fn take_client(
        self: &Rc<Self>,
        socket: &Rc<DatagramSocket>,
        peer: &Peer,
        datagram: &[u8],
        ecn: Option<EcnCodepoint>,
    ) -> Turn {
        let Some(header) = header(datagram) else { return self.drop_unknown() };
        let found = self.flows.table.borrow().find(peer, &header);
        match found {
            FoundFlow::Flow(key) => self.take_of_flow(key, datagram, &header, ecn),
            FoundFlow::Moved(key) => self.move_flow(key, peer, socket.listener.get()),
            FoundFlow::New if socket.is_listening.get() => {
                let Header::Long { dcid, .. } = header else { return Turn::Done };
                self.begin_flow(socket, *peer, dcid, (datagram, bits(ecn)));
                Turn::Done
            }
            FoundFlow::Unknown if matches!(header, Header::Short(_)) => {
                // Its client may have moved, and its flow is another worker's.
                let came = (*peer, socket.listener.get());
                match self.process.inboxes.hand_on(self.index, came, datagram, bits(ecn)) {
                    true => Turn::Done,
                    false => self.drop_unknown(),
                }
            }
            FoundFlow::New | FoundFlow::Unknown => self.drop_unknown(),
        }
    }

    /// Takes a datagram that another worker has received, if it is of a flow here.
    pub(crate) fn take_handed(self: &Rc<Self>, handed: &HandedDatagram) -> bool {
        let HandedDatagram { peer, listener, bytes, ecn } = handed;
        let Some(header) = header(bytes) else { return false };
        let ecn = EcnCodepoint::from_bits(*ecn);
        let found = self.flows.table.borrow().find(peer, &header);
        let turn = match found {
            FoundFlow::Flow(key) => self.take_of_flow(key, bytes, &header, ecn),
            FoundFlow::Moved(key) => self.move_flow(key, peer, *listener),
            FoundFlow::New | FoundFlow::Unknown => return false,
        };
        if let Turn::Passes(key) = turn {
            self.send_upstream(key, bytes, bytes.len(), ecn);
        }
        true
    }

    fn drop_unknown(&self) -> Turn {
        self.counters.flow_datagrams_dropped.up();
        Turn::Done
    }

    fn take_of_flow(
        self: &Rc<Self>,
        key: Key,
        datagram: &[u8],
        header: &Header<'_>,
        ecn: Option<EcnCodepoint>,
    ) -> Turn {
        let mut table = self.flows.table.borrow_mut();
        let Some(flow) = table.flow(key) else { return Turn::Done };
        flow.note_named(header);
        match &flow.state {
            State::Refused { .. } => {
                if flow.take_answer(datagram.len()) {
                    drop(table);
                    self.send_answer(key);
                }
                Turn::Done
            }
            State::Undecided(_) => {
                let task = flow.payload.task;
                let is_tight = self.process.budget.is_tight(datagram.len());
                if is_tight || !table.hold(key, datagram, bits(ecn)) {
                    self.counters.flow_datagrams_dropped.up();
                }
                drop(table);
                if let Some(task) = task {
                    self.table.borrow_mut().note(task, CLIENT, READ);
                    self.dispatch(task);
                }
                Turn::Done
            }
            State::Passing { .. } => {
                if flow.payload.begins_anew && matches!(header, Header::Long { begins: true, .. }) {
                    drop(table);
                    self.decide_anew(key, (datagram, bits(ecn)));
                    return Turn::Done;
                }
                drop(table);
                self.take_guarded(key, datagram)
            }
        }
    }

    /// Takes a datagram of a flow that passes: nothing passes that may have an unread hello.
    pub(super) fn take_guarded(self: &Rc<Self>, key: Key, datagram: &[u8]) -> Turn {
        let has = Packets::of(datagram);
        let (guard, server_id) = {
            let mut table = self.flows.table.borrow_mut();
            let Some(flow) = table.flow(key) else { return Turn::Done };
            if flow.payload.hello_is_over {
                drop(table);
                return if has.may_have_hello { self.drop_unknown() } else { Turn::Passes(key) };
            }
            // The guard is the program's code, so nothing is borrowed meanwhile.
            (flow.payload.guard.take(), flow.server_id())
        };
        let Some(mut guard) = guard else { return Turn::Passes(key) };
        let turn = match has.may_have_hello {
            true => guard.read(datagram, server_id.as_ref().map(|id| id.as_bytes())),
            false => GuardTurn::Passes,
        };
        if let Some(flow) = self.flows.table.borrow_mut().flow(key) {
            // Its last Initial packet may come with its first Handshake packet.
            let is_over = has.later && flow.is_answered() && matches!(turn, GuardTurn::Passes);
            flow.payload.hello_is_over = is_over;
            flow.payload.guard = (!is_over).then_some(guard);
        }
        match turn {
            GuardTurn::Passes => Turn::Passes(key),
            GuardTurn::Drops => self.drop_unknown(),
            GuardTurn::Ends(reason) => {
                self.end_flow(key, reason);
                self.drop_unknown()
            }
        }
    }

    /// Passes a flow at a client's new address: by a new socket, so that the server sees the move
    /// and validates the address (RFC 9000 section 9.3). By the old one it would not, and the
    /// client could have it send to somebody else.
    fn move_flow(self: &Rc<Self>, key: Key, peer: &Peer, at: u16) -> Turn {
        match self.add_address(key, peer, at) {
            Some(moved) => Turn::Passes(moved),
            None => self.drop_unknown(),
        }
    }

    /// Sends the answer of a refused flow.
    pub(crate) fn send_answer(&self, key: Key) {
        let mut table = self.flows.table.borrow_mut();
        let Some(flow) = table.flow(key) else { return };
        let State::Refused { answer, .. } = &flow.state else { return };
        let via = &flow.payload.via;
        let transmit = Transmit {
            destination: flow.peer.client(),
            ecn: None,
            contents: answer,
            segment_size: None,
            src_ip: Some(flow.peer.local().ip()),
        };
        // Lost, it is sent again when the client does so.
        let _ = via.state.try_send((&*via.socket).into(), &transmit);
    }
}

/// The kinds of packets in a client's datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Packets {
    /// One that a server may read a hello from, now or later.
    may_have_hello: bool,
    /// One that only a client with the handshake's keys sends.
    later: bool,
}

impl Packets {
    fn of(datagram: &[u8]) -> Self {
        let mut has = Self::default();
        for (nth, packet) in packets(datagram).enumerate() {
            match packet.map(|packet| packet.header) {
                // Behind another packet it may be padding: zeros. Behind one of the handshake it
                // says nothing new.
                Ok(QuicHeader::Short { .. }) => has.later |= nth == 0,
                Ok(QuicHeader::Long(long)) if long.kind == LongKind::Handshake => has.later = true,
                Ok(QuicHeader::Long(_)) | Err(_) => has.may_have_hello = true,
            }
        }
        has
    }
}

pub(super) fn bits(ecn: Option<EcnCodepoint>) -> u8 {
    ecn.map_or(0, |ecn| ecn as u8)
}

/// The header of a datagram's first packet. `None`: no server should take the datagram.
fn header(datagram: &[u8]) -> Option<Header<'_>> {
    Some(match packets(datagram).next()?.ok()?.header {
        QuicHeader::Short { id_and_rest } => Header::Short(id_and_rest),
        QuicHeader::Long(long) => {
            let begins = matches!(
                long.kind,
                LongKind::Initial { .. } | LongKind::ZeroRtt | LongKind::OtherVersion
            );
            // Also one with a packet for another connection, whose hello nobody has read.
            if packets(datagram).any(|packet| packet.is_err()) {
                return None;
            }
            Header::Long { dcid: long.dcid, begins, datagram_bytes: datagram.len() }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::Packets;

    /// A long header of version 1, with a payload of 20 bytes.
    fn long(first: u8) -> Vec<u8> {
        // No token, if it is an Initial packet.
        let token: &[u8] = if first == 0xc0 { &[0] } else { &[] };
        [&[first, 0, 0, 0, 1, 1, 7, 1, 8], token, &[20], &[0xff; 20]].concat()
    }

    #[test]
    fn padding_is_no_packet_of_a_client_with_keys() {
        const INITIAL: u8 = 0xc0;
        const HANDSHAKE: u8 = 0xe0;
        let (hello, later) = (true, true);
        for (datagram, may_have_hello, later) in [
            (long(INITIAL), hello, false),
            // aioquic pads the datagram, not the packet.
            ([long(INITIAL), vec![0; 600]].concat(), hello, false),
            ([long(INITIAL), long(HANDSHAKE)].concat(), hello, later),
            ([long(INITIAL), long(HANDSHAKE), vec![0x40; 30]].concat(), hello, later),
            (long(HANDSHAKE), false, later),
            (vec![0x40; 30], false, later),
        ] {
            assert_eq!(Packets::of(&datagram), Packets { may_have_hello, later }, "{datagram:?}");
        }
    }
}

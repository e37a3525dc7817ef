//! Datagrams of upstreams: read, looked at until the client has the handshake's keys, passed on.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use eyelet_memory::slab::Key;
use eyelet_sys::socket::datagram;
use eyelet_telemetry::reason::Reason;
use eyelet_wire::quic::{LongKind, QuicHeader, packets};
use quinn_udp::{EcnCodepoint, Transmit, UdpSocketState};

use crate::flows::{BATCHES, receive_batch};
use crate::ready::Token;
use crate::worker::Worker;
use crate::worker::flow_state::{BATCH, BUFFER_BYTES};

/// The news of a server's datagram about its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Said {
    /// It asks the client to begin anew: a Retry or a Version Negotiation.
    begins_anew: bool,
}

impl Worker {
    /// Makes a connected socket the upstream of a flow.
    pub(super) fn give_upstream(
        &self,
        key: Key,
        socket: OwnedFd,
        to: SocketAddr,
    ) -> io::Result<()> {
        self.table.borrow().epoll.add_listener(&socket, Token::Flow(key).encode())?;
        let mut table = self.flows.table.borrow_mut();
        let flow = table.flow(key).ok_or(io::ErrorKind::NotConnected)?;
        if flow.payload.upstream.replace((socket, to)).is_none() {
            self.process.descriptors.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Sends datagrams of a client on. All but the last have `stride` bytes.
    pub(super) fn send_upstream(
        self: &Rc<Self>,
        key: Key,
        bytes: &[u8],
        stride: usize,
        ecn: Option<EcnCodepoint>,
    ) {
        let now_ms = self.now_unix_ms();
        let sent = {
            let mut table = self.flows.table.borrow_mut();
            let Some(flow) = table.flow(key) else { return };
            let Some((socket, to)) = &flow.payload.upstream else { return };
            let sent = if bytes.len() <= stride && ecn.is_none() {
                // Nothing is said beside it, so the kernel uses the socket's route.
                datagram::send(socket, bytes)
            } else {
                let transmit = Transmit {
                    destination: *to,
                    ecn,
                    contents: bytes,
                    segment_size: Some(stride),
                    src_ip: None,
                };
                send_all(&flow.payload.via.state, socket, &transmit, stride)
            };
            let (bytes, datagrams) = (bytes.len(), bytes.len().div_ceil(stride.max(1)));
            table.note_client(key, bytes, datagrams, now_ms);
            sent
        };
        self.check_sent(key, sent);
    }

    fn check_sent(self: &Rc<Self>, key: Key, sent: io::Result<()>) {
        match sent {
            // Full, or a datagram is longer than the way takes: both are what a router would do.
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.counters.flow_datagrams_dropped.up();
            }
            Err(error) if quinn_udp::is_msg_size_err(&error) => {}
            Err(error) if is_gone(&error) => {
                self.end_without_upstream(key, Reason::upstream_io(&error));
            }
            // A route or a filter that changes, or a card that cannot cut: it is lost on its way.
            Err(_) => self.counters.flow_datagrams_dropped.up(),
        }
    }

    /// Reads what has come from a flow's upstream. Returns whether more may be there.
    pub(crate) fn read_upstream(self: &Rc<Self>, key: Key) -> bool {
        let mut buffer = self.flows.take_buffer();
        let mut has_more = true;
        for _ in 0..BATCHES {
            let read = {
                let mut table = self.flows.table.borrow_mut();
                let Some(flow) = table.flow(key) else { break };
                let Some((socket, _)) = &flow.payload.upstream else { break };
                receive_batch(&flow.payload.via.state, socket, &mut buffer)
            };
            match read {
                Ok((metas, count)) => {
                    for (meta, part) in metas.iter().take(count).zip(buffer.chunks(BUFFER_BYTES)) {
                        let part = part.get(..meta.len).unwrap_or_default();
                        self.send_client(key, part, meta.stride, meta.ecn);
                    }
                    has_more = count == BATCH;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => has_more = false,
                // A router has said that a datagram was too long: the client finds a shorter one.
                Err(error) if quinn_udp::is_msg_size_err(&error) => {}
                Err(error) => {
                    if is_gone(&error) {
                        self.end_without_upstream(key, Reason::upstream_io(&error));
                    }
                    has_more = false;
                }
            }
            if !has_more {
                break;
            }
        }
        *self.flows.buffer.borrow_mut() = buffer;
        has_more
    }

    /// Sends datagrams of a server on.
    fn send_client(
        self: &Rc<Self>,
        key: Key,
        bytes: &[u8],
        stride: usize,
        ecn: Option<EcnCodepoint>,
    ) {
        let now_ms = self.now_unix_ms();
        let stride = stride.max(1);
        let mut table = self.flows.table.borrow_mut();
        let is_guarded =
            table.flow(key).is_some_and(|flow| !flow.is_answered() || flow.payload.guard.is_some());
        let mut begins_anew = false;
        if is_guarded {
            for one in bytes.chunks(stride) {
                let said = said(one, |scid| table.note_server_id(key, scid));
                begins_anew |= said.begins_anew;
                if let Some(flow) = table.flow(key) {
                    flow.payload.begins_anew |= said.begins_anew && !flow.is_answered();
                }
            }
        }
        let Some(flow) = table.flow(key) else { return };
        let via = flow.payload.via.clone();
        let transmit = Transmit {
            destination: flow.peer.client(),
            ecn,
            contents: bytes,
            segment_size: Some(stride),
            src_ip: Some(flow.peer.local().ip()),
        };
        let count = bytes.len().div_ceil(stride);
        match begins_anew {
            true => table.note_unanswering(key, bytes.len(), count),
            false => table.note_server(key, bytes.len(), count, now_ms),
        }
        drop(table);
        // A client that cannot be reached is like one that does not answer.
        if send_all(&via.state, &via.socket, &transmit, stride).is_err() {
            self.counters.flow_datagrams_dropped.up();
        }
    }
}

/// True if an ICMP error says that nobody listens there.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable)
}

/// Reads the headers of a server's datagram. `note` takes its source id.
fn said(datagram: &[u8], mut note: impl FnMut(&[u8])) -> Said {
    let mut said = Said::default();
    for packet in packets(datagram).map_while(Result::ok) {
        match packet.header {
            QuicHeader::Long(long) => match long.kind {
                LongKind::VersionNegotiation => said.begins_anew = true,
                LongKind::Retry => {
                    said.begins_anew = true;
                    note(long.scid);
                }
                LongKind::Initial { .. } | LongKind::ZeroRtt | LongKind::Handshake => {
                    note(long.scid);
                }
                // Its ids lie where all versions have them, and nothing else can be read.
                LongKind::OtherVersion => note(long.scid),
            },
            QuicHeader::Short { .. } => break,
        }
    }
    said
}

fn is_full_or_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || is_gone(error)
}

/// Sends datagrams of one length in as few calls as the kernel allows.
fn send_all(
    state: &UdpSocketState,
    socket: &OwnedFd,
    transmit: &Transmit<'_>,
    stride: usize,
) -> io::Result<()> {
    let most = stride.max(1) * state.max_gso_segments().max(1);
    let mut result = Ok(());
    for contents in transmit.contents.chunks(most) {
        let part = Transmit { contents, ..transmit.clone() };
        result = match state.try_send(socket.into(), &part) {
            // The card may not be able to cut them: one by one.
            Err(error) if contents.len() > stride && !is_full_or_gone(&error) => {
                let mut one_by_one = contents.chunks(stride.max(1));
                one_by_one.try_for_each(|contents| {
                    let one = Transmit { contents, segment_size: None, ..transmit.clone() };
                    state.try_send(socket.into(), &one)
                })
            }
            sent => sent.and(result),
        };
    }
    result
}

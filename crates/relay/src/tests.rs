//! Resets of TCP sockets: none is passed on as the end of a whole stream, by whatever call it was
//! found.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;

use eyelet_memory::budget::Budget;
use eyelet_record::{Keys, Role, Session, Suite};
use eyelet_sys::epoll::ENDED;
use eyelet_telemetry::info::{ConnectionInfo, Decided, Parked, SharedInfo};
use eyelet_telemetry::reason::Reason;

use super::ready::{CLIENT, READ, Ready, UPSTREAM, WRITE};
use super::splice::Spliced;
use super::terminate::Terminated;
use super::{Buffers, Flow, Progress, Relay, SHARE_BYTES, Sockets, exchange, socket};

/// A socket of the edge, and its peer's.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let edge = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    edge.set_nonblocking(true).unwrap();
    (edge, listener.accept().unwrap().0)
}

/// The peer of this socket says half of its stream and resets, behind a FIN or not.
fn reset(edge: &TcpStream, mut peer: TcpStream, has_ended: bool) {
    peer.write_all(b"half").unwrap();
    if has_ended {
        peer.shutdown(Shutdown::Write).unwrap();
    }
    socket::reset_on_close(&peer).unwrap();
    drop(peer);
    while socket::is_connected(edge) {
        std::thread::yield_now();
    }
}

fn all_ready() -> Ready {
    let mut ready = Ready::default();
    ready.add(CLIENT, READ | WRITE);
    ready.add(UPSTREAM, READ | WRITE | ENDED);
    ready
}

/// The program reads the half, and then the reset.
#[test]
fn an_exchange_that_rests_leaves_a_reset_to_its_program() {
    let ((client, _client_peer), (mut upstream, peer)) = (pair(), pair());
    reset(&upstream, peer, false);
    for read in [Ok(4), Err(ErrorKind::ConnectionReset)] {
        let mut ready = all_ready();
        let mut sockets = Sockets::new(client.as_fd(), Some(upstream.as_fd()), &mut ready);
        let mut buffers = Buffers::new(SHARE_BYTES);
        let progress = exchange::run(&mut Flow::default(), &mut sockets, &mut buffers);
        assert_eq!(progress, Progress::Dial);
        assert_eq!(upstream.read(&mut [0; 8]).map_err(|error| error.kind()), read);
    }
}

/// Moves what the client said to an upstream that has reset. Returns what the client has got, and
/// whether that has ended.
fn moved(relay: &mut Relay, said: &[u8], has_ended: bool) -> (Vec<u8>, bool) {
    let ((client, mut client_peer), (upstream, peer)) = (pair(), pair());
    client_peer.write_all(said).unwrap();
    reset(&upstream, peer, has_ended);
    while !socket::is_readable(&client).unwrap() {
        std::thread::yield_now();
    }
    let info = ConnectionInfo::new(0, 0, ([127, 0, 0, 1], 1).into());
    let mut shared = SharedInfo::new(&Arc::new(Budget::new(64 << 20, 0)));
    let mut info: Parked = info.park(&mut shared);
    let mut ready = all_ready();
    let mut sockets = Sockets::new(client.as_fd(), Some(upstream.as_fd()), &mut ready);
    let mut buffers = Buffers::new(SHARE_BYTES);
    let progress = super::run(relay, &mut sockets, &mut info, &mut buffers, &|_, _, _| 0);
    let Progress::Reset(end) = progress else { panic!("{progress:?}") };
    assert_eq!(end.reason, Reason::UpstreamReset);
    client_peer.set_nonblocking(true).unwrap();
    let mut heard = Vec::new();
    let is_over = client_peer.read_to_end(&mut heard).is_ok();
    (heard, is_over)
}

/// A write finds the reset first, and the kernel's next read returns the end.
#[test]
fn a_client_gets_no_end_from_an_upstream_that_has_reset() {
    for has_ended in [false, true] {
        let mut relay = Relay::Splice(Spliced::new(Flow::default(), &mut Decided::default()));
        assert_eq!(moved(&mut relay, b"more", has_ended), (b"half".to_vec(), has_ended));

        let session =
            |role| Session::tls13(role, Suite::Aes128Gcm, &[1; 32], &[2; 32], 0, 0).unwrap();
        let (mut own, mut keys) = (session(Role::Client), Keys::new());
        let mut record = vec![0; own.record_len(4)];
        let sealed = own.seal(&mut keys, &mut record, 4).unwrap();
        let terminated = Terminated { session: session(Role::Server), flow: Flow::default() };
        let mut relay = Relay::Terminate(terminated);
        let (mut heard, is_over) = moved(&mut relay, &record[..sealed], has_ended);
        let mut opened = Vec::new();
        own.open_all(&mut keys, &mut heard, |input, data| opened.extend_from_slice(&input[data]))
            .unwrap();
        assert_eq!((&opened[..], own.read_closed(), is_over), (&b"half"[..], has_ended, has_ended));
    }
}

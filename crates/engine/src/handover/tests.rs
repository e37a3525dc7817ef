//! A connection leaves one worker and is parked in another, as it would in two processes.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use eyelet_record::{Keys, Session, Suite};
use eyelet_sys::epoll::Events;

use super::*;
use crate::accept::Accepting;
use crate::relay::Flow;
use crate::relay::splice::Spliced;
use crate::relay::terminate::Terminated;
use crate::shed::tests::worker;
use crate::worker::Handle;
use eyelet_memory::budget::ACTIVE_BYTES;
use eyelet_telemetry::info::ConnectionInfo;

mod format;

/// The edge's sockets of a connection, and its two peers.
fn sockets() -> ((OwnedFd, OwnedFd), UnixStream, UnixStream) {
    let pair = || {
        let (edge, peer) = eyelet_sys::socket::pair().unwrap();
        let peer = UnixStream::from(peer);
        peer.set_nonblocking(false).unwrap();
        (edge, peer)
    };
    let ((client, far_client), (upstream, far_upstream)) = (pair(), pair());
    ((client, upstream), far_client, far_upstream)
}

fn park_one(
    worker: &Rc<Worker>,
    (client, upstream): (OwnedFd, Option<OwnedFd>),
    relay: impl FnOnce(&mut ConnectionInfo) -> Relay,
) -> Key {
    let key = worker.table.borrow_mut().insert(client, false);
    worker.process.open.fetch_add(1, Relaxed);
    worker.uses_descriptors(2);
    worker.process.budget.take(Account::Connections, ACTIVE_BYTES);
    worker.counters.connections.up();
    if let Some(upstream) = upstream {
        worker.table.borrow_mut().set_connected(key, upstream);
    }
    let mut info = worker.info(0, ([192, 0, 2, 7], 5000).into());
    info.decided.sni = Some("a.example".into());
    let relay = relay(&mut info);
    park::park(&Handle::new(worker.clone(), key), &mut info, relay);
    key
}

fn spliced(info: &mut ConnectionInfo) -> Relay {
    Relay::Splice(Spliced::new(Flow::default(), &mut info.decided))
}

fn iterate(worker: &Rc<Worker>) {
    let mut accepting = Accepting::new(Vec::new());
    let mut events = Events::with_capacity(16);
    for _ in 0..4 {
        worker.iteration(&mut events, &mut accepting).unwrap();
    }
}

/// The sockets of a message as the other process receives them.
fn received(detached: &Detached) -> Vec<OwnedFd> {
    detached.sockets().map(|socket| socket.try_clone_to_owned().unwrap()).collect()
}

fn hand_over(from: &Rc<Worker>, to: &Rc<Worker>, key: Key) {
    let detached = detach(from, key).unwrap();
    let (bytes, sockets) = (detached.encode(), received(&detached));
    drop(detached);
    attach(to, Detached::decode(&bytes, sockets).unwrap()).unwrap();
}

#[track_caller]
fn check_empty(worker: &Worker) {
    assert!(worker.table.borrow().is_empty());
    assert_eq!(worker.process.open.load(Relaxed), 0);
    assert_eq!(worker.process.descriptors.load(Relaxed), 0);
    assert_eq!(worker.counters.connections.value(), 0);
    assert_eq!(worker.counters.parked.value(), 0);
    assert_eq!(worker.counters.parked_bytes.value(), 0);
    assert_eq!(worker.process.budget.used_by(Account::Relayed), 0);
    assert!(worker.shared.borrow().is_empty() && worker.sources.is_empty());
}

#[test]
fn a_spliced_pair_goes_on_in_another_worker() {
    let (old, new) = (worker(), worker());
    let ((client, upstream), mut far_client, mut far_upstream) = sockets();
    let key = park_one(&old, (client, Some(upstream)), spliced);
    far_client.write_all(b"before ").unwrap();
    iterate(&old);
    // Not read by the old worker: the new one's registration reports it.
    far_client.write_all(b"unread").unwrap();
    hand_over(&old, &new, key);
    check_empty(&old);
    far_upstream.write_all(b"answer").unwrap();
    iterate(&old);
    iterate(&new);
    let mut heard = [0; 13];
    far_upstream.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"before unread");
    let mut heard = [0; 6];
    far_client.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"answer");
    drop(far_client);
    drop(far_upstream);
    iterate(&new);
    check_empty(&new);
}

#[test]
fn a_terminated_connection_goes_on_in_another_worker() {
    let (old, new) = (worker(), worker());
    let ((client, upstream), mut far_client, mut far_upstream) = sockets();
    let session = |role| Session::tls13(role, Suite::Aes128Gcm, &[1; 32], &[2; 32], 0, 0).unwrap();
    let mut tls = session(eyelet_record::Role::Client);
    let mut seal = |text: &[u8]| {
        let mut record = vec![0; tls.record_len(text.len())];
        record[tls.prefix_len()..][..text.len()].copy_from_slice(text);
        tls.seal(&mut Keys::new(), &mut record, text.len()).unwrap();
        record
    };
    let (one, two) = (seal(b"one "), seal(b"two"));
    let terminated = |_: &mut ConnectionInfo| {
        let session = session(eyelet_record::Role::Server);
        Relay::Terminate(Terminated { session, flow: Flow::default() })
    };
    let key = park_one(&old, (client, Some(upstream)), terminated);
    far_client.write_all(&one).unwrap();
    far_client.write_all(&two[..9]).unwrap();
    iterate(&old);
    hand_over(&old, &new, key);
    check_empty(&old);
    far_client.write_all(&two[9..]).unwrap();
    iterate(&old);
    iterate(&new);
    let mut heard = [0; 7];
    far_upstream.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"one two");
    drop(far_client);
    drop(far_upstream);
    iterate(&new);
    check_empty(&new);
}

//! Flows of QUIC from a message, in a worker that reads the socket which they came by.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use eyelet_handover::flows::via;
use eyelet_sys::socket::datagram;

use crate::worker::inbox::{FlowNews, Placed};
use crate::worker::{ListenerSocket, Worker};

/// Has a worker serve the flows of a message as of a socket that it reads. Then they leave, and are
/// gone. Returns what became of them, or `None` if the message cannot be read.
pub fn come_and_go(worker: &Rc<Worker>, body: &[u8], sockets: Vec<OwnedFd>) -> Option<Placed> {
    let listener = datagram::bind_shared("127.0.0.1:0".parse().unwrap(), false).unwrap();
    let listener = Arc::new(listener);
    worker.listen_datagrams(&[ListenerSocket::of_datagrams(0, listener.clone())]);
    let body = by_way_of(body, datagram::cookie(&listener).unwrap());
    let (placed, said) = sync_channel(1);
    worker.take_flow_news(FlowNews::Message { body, sockets, placed });
    let placed = said.try_recv().unwrap().ok();
    let again = worker.leave_datagrams(from_ref(&listener), true);
    let (batches, are_last) = worker.leave_some_flows(100);
    let left: usize = batches.iter().map(|batch| batch.flows).sum();
    assert!(are_last && left == placed.map_or(0, |placed| placed.served), "what came leaves");
    worker.forget_given_flows();
    drop(again);
    placed
}

/// A message as if its flows had come by another socket.
fn by_way_of(body: &[u8], mut cookie: u64) -> Vec<u8> {
    if via(body).is_err() {
        return body.to_vec();
    }
    let (version, rest) = body.split_at(2);
    let behind = 1 + rest.iter().position(|byte| *byte < 0x80).unwrap();
    let mut written = version.to_vec();
    // A number of postcard: seven bits a byte, the last ones first.
    while cookie >= 0x80 {
        written.push(cookie as u8 | 0x80);
        cookie >>= 7;
    }
    written.push(cookie as u8);
    written.extend(&rest[behind..]);
    written
}

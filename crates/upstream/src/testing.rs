//! An event loop and sockets for tests, of this crate and of those that serve by it.
#![allow(clippy::unwrap_used, missing_docs)]

use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use eyelet_engine::ready::Token;
use eyelet_engine::worker::{Process, Settings, Worker};
use eyelet_memory::budget::Budget;
use eyelet_resolve::connect::Connected;
use eyelet_sys::epoll::Events;

use super::plain::Plain;

/// An event loop that does not run: epoll reports nothing before [`look`].
pub fn worker() -> Rc<Worker> {
    let settings = Settings {
        idle_timeout: Duration::from_secs(300),
        state_idle_timeout: Duration::from_secs(300),
        quic_idle_timeout: Duration::from_secs(60),
        body_timeout: Duration::from_secs(300),
        upstream_timeout: Duration::from_secs(300),
        shed_idle: false,
        drain_timeout: Duration::from_secs(1),
        connections_max: 10,
        descriptors_max: 10,
        may_list: false,
    };
    let process = Process::new(Arc::new(Budget::new(64 << 20, 0)));
    Rc::new(Worker::new(0, settings, Arc::new(process), Arc::default()).unwrap())
}

/// An upstream's socket and the socket to it.
pub fn connected(worker: &Rc<Worker>) -> (UnixStream, Plain) {
    let (upstream, socket) = UnixStream::pair().unwrap();
    upstream.set_nonblocking(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    let socket = socket.into();
    let connected = Connected::new(None, socket);
    (upstream, Plain::new(worker, connected).unwrap())
}

/// Takes the events that epoll reports.
pub fn look(worker: &Worker) {
    let mut events = Events::with_capacity(8);
    let mut table = worker.table.borrow_mut();
    table.epoll.poll(&mut events).unwrap();
    for event in events.iter() {
        if let Token::Shared(key) = Token::decode(event.token) {
            table.note_shared(key, event.ready);
        }
    }
}

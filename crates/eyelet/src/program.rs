//! The program as the event loop calls it: an accepted connection, one that wakes, a tick, an end.
//! It must not know how a connection is served.

use std::rc::Rc;

use eyelet_engine::relay::Relay;
use eyelet_engine::worker::{Handle, Program, Task};
use eyelet_http::head;
use eyelet_memory::budget::{Counted, HTTP2_BYTES};
use eyelet_telemetry::info::{ConnectionInfo, Decided, End};

use crate::action::terminate;
use crate::connection::connection;
use crate::connection_handle::ConnectionHandle;
use crate::worker::Worker;

impl Program for Worker {
    fn accepted(self: Rc<Self>, handle: Handle, info: ConnectionInfo) -> Task {
        Box::pin(connection(ConnectionHandle::new(self, handle), info))
    }

    fn woken(
        self: Rc<Self>,
        handle: Handle,
        info: ConnectionInfo,
        relay: Relay,
        counted: Counted,
    ) -> Task {
        Box::pin(terminate::dial_later(ConnectionHandle::new(self, handle), info, relay, counted))
    }

    fn task_bytes(&self, decided: &Decided) -> usize {
        if decided.http2 { HTTP2_BYTES } else { 0 }
    }

    fn is_logging(&self) -> bool {
        self.log.borrow().is_on()
    }

    fn log(&self, info: &ConnectionInfo, end: &End) {
        let measured = info.measured(self.now_unix_ms());
        let mut log = self.log.borrow_mut();
        log.line(&self.edge.config, &info.decided, &measured, end, None);
    }

    fn flush_log(&self, ahead_ms: i64) {
        let mut log = self.log.borrow_mut();
        log.follow(ahead_ms);
        log.flush();
    }

    fn tick(&self) {
        self.http.compressors.recount();
    }

    fn is_resting(&self) -> bool {
        self.http.compressors.is_idle()
    }

    fn release_caches(&self) {
        self.http.compressors.rest();
        head::forget_given_back();
    }

    fn close(&self) {
        self.http.pool.close();
    }
}

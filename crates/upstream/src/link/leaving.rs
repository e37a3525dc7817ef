//! A link whose streams all rest: it keeps little, and may leave its worker with them and go on in
//! another one.

use std::collections::VecDeque;
use std::sync::Arc;

use eyelet_engine::worker::ParkedWaker;
use eyelet_h2::{H2Connection, H2Role, ParkedConnection};
use eyelet_memory::budget::Budget;
use eyelet_memory::slab::Key;
use eyelet_multiplex::{FrameQueue, StreamRole};

use super::Link;
use crate::link_stream::LinkStream;
use crate::windows::Windows;

impl Link {
    /// True if it may leave with its streams: all of them rest with parked connections, and nothing
    /// is under way. Adds the keys of those connections.
    pub fn may_leave(&self, keys: &mut Vec<Key>) -> bool {
        let is_still = self.end.is_none()
            && !(self.is_unused || self.is_given_up || self.is_ping_open || self.is_paused)
            && self.mux.out.is_empty()
            && self.rest.is_empty()
            && self.windows.told == self.mux.h2.stream_window()
            && self.mux.h2.rests().is_ok();
        // A stream that has ended waits for its exchange.
        let open = self.mux.h2.open_streams().map(|stream| stream.id);
        is_still
            && open.eq(self.mux.streams.iter().map(|stream| stream.base().id))
            && self.mux.streams.iter().all(|stream| {
                keys.extend(stream.parked());
                stream.parked().is_some()
            })
    }

    /// Has a stream rest with the connection that this wakes. Once all of them rest, the connection
    /// keeps no memory for what is under way.
    pub fn rests(&mut self, id: u32, waker: ParkedWaker) {
        match self.mux.find(id) {
            Some(stream) => stream.rests(waker),
            None => return waker.wake(),
        }
        if self.mux.streams.iter().all(|stream| stream.parked().is_some()) {
            self.mux.shrink();
            self.blocked = VecDeque::new();
            self.rest.shrink_to_fit();
            self.recount();
        }
    }

    /// Returns the state of the protocol, and gives it no more streams: it goes on elsewhere.
    pub fn leave_worker(&mut self) -> Option<ParkedConnection> {
        let parked = self.mux.h2.export().ok()?;
        self.retire();
        self.mux.driver.wake();
        Some(parked)
    }

    /// The streams whose exchanges rest with no connection.
    pub fn unclaimed(&self) -> Vec<u32> {
        let unclaimed = self.mux.streams.iter().filter(|stream| stream.parked().is_none());
        unclaimed.map(|stream| stream.base().id).collect()
    }

    /// A link of another worker, which gets no more streams. `None`: no link has such a state.
    pub fn resumed(budget: Arc<Budget>, parked: &ParkedConnection) -> Option<Self> {
        // Its own clock begins now.
        let h2 = H2Connection::import(parked, 0).ok()?;
        let windows = Windows::resumed(budget, h2.stream_window())?;
        if h2.role() != H2Role::Client || h2.open_streams().any(|stream| stream.has_peer_ended) {
            return None;
        }
        let ids: Vec<u32> = h2.open_streams().map(|stream| stream.id).collect();
        let mut link = Self::of(h2, FrameQueue::default(), windows);
        link.mux.streams = ids.into_iter().map(|id| LinkStream::new(id, None)).collect();
        link.is_retired = true;
        link.recount();
        Some(link)
    }
}

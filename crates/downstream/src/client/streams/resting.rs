//! Streams that rest. A stream's task says when nothing moves any more. Once all of a connection
//! say so, they are asked to leave what they know, and end. If one goes on instead, the others rest
//! on where their upstreams' sockets are watched.

use std::mem;
use std::os::fd::OwnedFd;
use std::task::Context;

use bytes::{Bytes, BytesMut};
use eyelet_h2::OpenStream;
use eyelet_hold::HoldPlace;
use eyelet_multiplex::StreamRole;

use super::{State, Streams};
use crate::client::resting_stream::{RestingStream, StreamUpstream};
use crate::client::state::{Left, StreamRest, StreamState};
use eyelet_resting::kind::has_upstream_ended;

impl Streams {
    // The tasks of streams.

    /// True if the client's side of a stream may rest.
    pub fn may_rest(&self, id: u32) -> bool {
        let state = &mut *self.state.borrow_mut();
        let sealed = state.sent();
        state.mux.find(id).is_some_and(|stream| stream.may_rest(sealed))
    }

    /// True if the deadline of a stream has passed.
    pub fn is_late(&self, id: u32) -> bool {
        self.state.borrow_mut().mux.find(id).is_some_and(|stream| stream.is_late)
    }

    /// True if a stream's task has said that nothing moves.
    pub fn is_quiet(&self, id: u32) -> bool {
        let mut state = self.state.borrow_mut();
        state.mux.find(id).is_some_and(|stream| !matches!(stream.rest, StreamRest::No))
    }

    /// Notes whether nothing of a stream moves. Returns whether its task is to leave it now.
    pub fn set_quiet(&self, id: u32, is_quiet: bool) -> bool {
        let state = &mut *self.state.borrow_mut();
        let Some(stream) = state.mux.find(id) else { return false };
        match (&stream.rest, is_quiet) {
            (StreamRest::Asked, true) => return true,
            (StreamRest::No, true) => stream.rest = StreamRest::Quiet,
            (StreamRest::Quiet | StreamRest::Asked, false) => stream.rest = StreamRest::No,
            _ => return false,
        }
        state.mux.driver.wake();
        false
    }

    /// Keeps what the task of a stream leaves.
    pub fn leave(&self, id: u32, resting: RestingStream) {
        let state = &mut *self.state.borrow_mut();
        if let Some(stream) = state.mux.find(id) {
            stream.rests(resting);
            state.due_ms = state.due_ms.min(stream.due_ms);
            state.resting += stream.resting_bytes();
        }
        state.mux.driver.wake();
    }

    /// Adds a stream that rested with its connection, and rests on.
    pub fn resume(&self, open: OpenStream, resting: RestingStream) {
        let mut stream = StreamState::new(open.id, open.has_peer_ended);
        (stream.has_run, stream.is_answered) = (true, open.has_begun);
        stream.has_ended = open.has_ended;
        stream.rests(resting);
        let state = &mut *self.state.borrow_mut();
        state.due_ms = state.due_ms.min(stream.due_ms);
        state.resting += stream.resting_bytes();
        state.mux.streams.push(stream);
    }

    // The connection's task.

    /// True if all streams say that nothing moves, and there are some.
    pub fn all_quiet(&self) -> bool {
        let state = self.state.borrow();
        let sealed = state.sent();
        !state.mux.streams.is_empty() && !state.mux.streams.iter().any(|it| it.is_moving(sealed))
    }

    /// Notes that the upstream of a stream that rests has something to be read.
    pub fn call(&self, id: u32) {
        if let Some(stream) = self.state.borrow_mut().mux.find(id) {
            stream.wake();
        }
    }

    /// Notes that the socket of a stream reports something at its place. Returns false if that is
    /// the end of an upstream, and the client has got it.
    pub fn call_by_upstream(&self, id: u32) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(stream) = state.mux.find(id) else { return true };
        if let StreamRest::Rests { stream: resting, .. } = &stream.rest
            && has_upstream_ended(&resting.form)
        {
            return false;
        }
        stream.wake();
        true
    }

    /// Has all streams that rest go on.
    pub fn call_all(&self) {
        for stream in &mut self.state.borrow_mut().mux.streams {
            if let StreamRest::Rests { is_called, .. } = &mut stream.rest {
                *is_called = true;
            }
        }
    }

    /// Asks the streams to rest if all are quiet and the connection `may` rest with them. Otherwise
    /// returns those that rest and have to go on: see [`StreamState::must_go_on`].
    pub fn settle(
        &self,
        may: bool,
        mut keep: impl FnMut(u32, OwnedFd) -> Result<(), OwnedFd>,
    ) -> Vec<u32> {
        let state = &mut *self.state.borrow_mut();
        let (sealed, streams) = (state.sent(), &mut state.mux.streams);
        if may && !streams.iter().any(|stream| stream.is_moving(sealed) || stream.is_called()) {
            for stream in streams.iter_mut() {
                if matches!(stream.rest, StreamRest::Quiet) {
                    stream.rest = StreamRest::Asked;
                    stream.wake();
                }
            }
            return Vec::new();
        }
        let going = streams.iter_mut().filter_map(|stream| {
            let id = stream.base.id;
            stream.must_go_on(&mut keep).then_some(id)
        });
        going.collect()
    }

    /// True if a resting stream that has to go on may wait for memory: nothing ends it, and unread
    /// bytes stay in its upstream's socket.
    pub fn may_wait(&self, id: u32) -> bool {
        let state = &mut *self.state.borrow_mut();
        state.mux.find(id).is_some_and(|stream| match &stream.rest {
            StreamRest::Rests { stream: resting, .. } => {
                let is_kept = matches!(resting.upstream, StreamUpstream::Kept(_));
                !is_kept && stream.left.is_none() && !stream.is_late
            }
            StreamRest::No | StreamRest::Quiet | StreamRest::Asked => false,
        })
    }

    /// Has held streams go on that have their verdict. The connection's task waits for those of the
    /// others.
    pub fn call_decided(&self, task: &Context<'_>) {
        for stream in &mut self.state.borrow_mut().mux.streams {
            if let StreamRest::Rests { stream: resting, is_called } = &mut stream.rest
                && let StreamUpstream::Held(place) = &resting.upstream
            {
                let is_decided = |place: &HoldPlace| place.poll_decision(task).is_ready();
                *is_called |= place.as_ref().is_none_or(is_decided);
            }
        }
    }

    /// True if held streams rest.
    pub fn holds(&self) -> bool {
        self.state.borrow().mux.streams.iter().any(StreamState::is_held_at_rest)
    }

    /// Has all held streams that rest go on.
    pub fn call_held(&self) {
        let streams = &mut self.state.borrow_mut().mux.streams;
        for stream in streams.iter_mut().filter(|stream| stream.is_held_at_rest()) {
            stream.wake();
        }
    }

    /// Takes the whole body of a request that is to be held, if it has come, is short and has no
    /// fields behind it. Its windows open again. `None`: there is more of it, here or to come.
    pub fn take_whole_body(&self, id: u32, bytes_max: usize) -> Option<Bytes> {
        let state = &mut *self.state.borrow_mut();
        let stream = state.mux.find(id)?;
        let is_short = stream.base.unreleased() <= bytes_max;
        if !stream.has_body_ended || stream.trailers.is_some() || !is_short {
            return None;
        }
        let mut body = BytesMut::new();
        while let Some(part) = state.mux.take(id) {
            body.extend_from_slice(&part);
        }
        state.release(|mux| mux.release(id, body.len()));
        state.recount();
        Some(body.freeze())
    }

    /// True if nothing of a request's body has come, and more is to come.
    pub fn awaits_body(&self, id: u32) -> bool {
        let mut state = self.state.borrow_mut();
        let stream = state.mux.find(id);
        stream.is_some_and(|stream| !stream.has_body_ended && stream.base.is_clear())
    }

    /// Takes a stream that rests, for a task that goes on with it.
    pub fn take_rested(&self, id: u32) -> Option<RestingStream> {
        let state = &mut *self.state.borrow_mut();
        let stream = state.mux.find(id)?;
        let bytes = stream.resting_bytes();
        let resting = stream.goes_on()?;
        state.resting -= bytes;
        Some(resting)
    }

    /// Has all tasks of streams run.
    pub fn wake_all(&self) {
        let streams = &mut self.state.borrow_mut().mux.streams;
        streams.iter_mut().for_each(|stream| stream.base.task.wake());
    }

    /// True if all streams rest, or there are none.
    pub fn all_rest(&self) -> bool {
        self.state.borrow().all_rest()
    }

    /// Takes the exchanges that rest of a connection that has ended, and why each has.
    pub fn take_ended(&self) -> Vec<(Left, RestingStream)> {
        let streams = &mut self.state.borrow_mut().mux.streams;
        let ended = streams.iter_mut().filter_map(|stream| {
            let left = stream.left.unwrap_or(Left::Closed);
            Some((left, stream.goes_on()?))
        });
        ended.collect()
    }

    /// Takes the streams, which all rest, in the order of their identifiers.
    pub fn take_resting(&self) -> Vec<(u32, RestingStream)> {
        let streams = mem::take(&mut self.state.borrow_mut().mux.streams);
        streams
            .into_iter()
            .filter_map(|mut stream| Some((stream.base.id, stream.goes_on()?)))
            .collect()
    }
}

impl State {
    pub(super) fn all_rest(&self) -> bool {
        let rests = |stream: &StreamState| {
            matches!(stream.rest, StreamRest::Rests { is_called: false, .. })
        };
        self.mux.streams.iter().all(rests)
    }
}

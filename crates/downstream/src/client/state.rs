//! The results of what an HTTP/2 connection reads, and the state of one stream that is served.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Context;

use eyelet_h2::{ErrorCode, MessageHead};
use eyelet_telemetry::reason::Http2Failure;
use http::header::HeaderMap;
use http::response;

use super::resting_stream::{RestingStream, StreamUpstream};
use crate::clock::now_ms;
use eyelet_http1::write_queue::WriteQueue;
use eyelet_multiplex::{StreamBase, StreamRole};
use eyelet_upstream::RestingUpstream;
use eyelet_upstream::plain::Plain;

/// A request that has arrived.
pub struct Arrived {
    /// Its stream.
    pub id: u32,
    /// Its head.
    pub head: Box<MessageHead>,
    /// True if it has no body.
    pub is_last: bool,
}

/// The result of reading.
pub enum ReadStep {
    /// Something that was done here.
    Done,
    /// A request.
    Request(Arrived),
    /// The client ends the connection.
    GoAway(ErrorCode),
    /// Nothing more before other bytes arrive.
    NeedMore,
    /// Nothing more before the output is written.
    OutputFull,
}

/// The reason why a stream's response is not waited for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The connection has ended.
    Closed,
    /// The client has ended its stream before the request's body.
    Cut,
    /// The stream was reset, or the connection has failed.
    Failed(Http2Failure),
    /// The client has ended its stream, and the window is shut.
    NoWindow,
    /// All of it was written.
    Written,
}

/// A response's head that waits to be written.
pub struct FinalHead {
    /// The head.
    pub parts: response::Parts,
    /// True if the response ends with it.
    pub ends: bool,
}

/// The upstream's socket that takes a request's body.
pub struct BodyTarget {
    /// The socket.
    pub socket: Plain,
    /// Bytes that it has taken, until the stream's task has counted them.
    pub written: Rc<Cell<usize>>,
}

/// The upstream's socket that the rest of a response's body comes from.
pub struct BodySource {
    /// The socket. It may be readable.
    pub socket: Plain,
    /// Bytes of the body that are not read.
    pub left: u64,
    /// Counts bytes of the body.
    pub sent: Rc<Cell<u64>>,
}

/// The stage of a stream on its way to rest.
pub enum StreamRest {
    /// Its task does not say that it may.
    No,
    /// Its task says that nothing has moved for a while.
    Quiet,
    /// Its task is asked to leave what it knows, because all other streams are quiet, too.
    Asked,
    /// It has no task.
    Rests {
        /// The exchange that its task left. Boxed: streams are moved.
        stream: Box<RestingStream>,
        /// Something has happened to it since.
        is_called: bool,
    },
}

/// A stream, until its task drops it.
pub struct StreamState {
    /// The part of the request's body that has arrived, and its task.
    pub base: StreamBase,
    /// True if its task has run.
    pub has_run: bool,
    /// True if its client reset it before that.
    pub is_reset: bool,
    /// The reason of its end before its response.
    pub left: Option<Left>,
    /// True if its task reads the body.
    pub wants_body: bool,
    /// True if the body has arrived to its end.
    pub has_body_ended: bool,
    /// The fields that follow the body.
    pub trailers: Option<Box<HeaderMap>>,
    /// Heads that are not written yet. Boxed, as all that few streams have: streams are moved.
    pub interim: Option<Box<response::Parts>>,
    /// The final one.
    pub head: Option<FinalHead>,
    /// True if that was written.
    pub is_answered: bool,
    /// The response's body, and its end if that is known.
    pub queue: WriteQueue,
    /// Trailers, or none.
    pub end: Option<Option<Box<HeaderMap>>>,
    /// True if the end was written.
    pub has_ended: bool,
    /// Position in the output behind its last head or end.
    pub mark: u64,
    /// True if it is in the queue of heads and ends.
    pub is_ready: bool,
    /// The body of the request, which the connection's task writes.
    pub upload: Option<BodyTarget>,
    /// True if its client may send more ahead than on others.
    pub is_wide: bool,
    /// The body of the response, which the connection's task reads.
    pub download: Option<BodySource>,
    /// True if the upstream ended before that body.
    pub is_cut: bool,
    /// True if its task waits for the window.
    pub waits_for_room: bool,
    /// The stage of its exchange on its way to rest.
    pub rest: StreamRest,
    /// Its deadline, and whether that has passed.
    pub due_ms: u64,
    /// See `due_ms`.
    pub is_late: bool,
}

impl StreamRole for StreamState {
    fn base(&self) -> &StreamBase {
        &self.base
    }

    fn base_mut(&mut self) -> &mut StreamBase {
        &mut self.base
    }

    fn wake(&mut self) {
        if let StreamRest::Rests { is_called, .. } = &mut self.rest {
            *is_called = true;
        }
        self.base.task.wake();
    }
}

impl StreamState {
    /// A stream that has begun. `is_last`: its request has no body.
    pub fn new(id: u32, is_last: bool) -> Self {
        Self {
            base: StreamBase::new(id),
            has_run: false,
            is_reset: false,
            left: None,
            wants_body: true,
            has_body_ended: is_last,
            trailers: None,
            interim: None,
            head: None,
            is_answered: false,
            queue: WriteQueue::default(),
            end: None,
            has_ended: false,
            mark: 0,
            is_ready: false,
            upload: None,
            is_wide: false,
            download: None,
            is_cut: false,
            waits_for_room: false,
            rest: StreamRest::No,
            due_ms: u64::MAX,
            is_late: false,
        }
    }

    /// Notes the task that waits.
    pub fn waits(&mut self, task: &Context<'_>) {
        self.base.task.waits(task);
    }

    /// Notes that it has ended before its response.
    pub fn leaves(&mut self, how: Left) {
        self.left.get_or_insert(how);
        self.wake();
    }

    /// True if nothing of it is held here and the client has all so far, the end too if there is
    /// one, so that its exchange may rest.
    pub fn may_rest(&self, sealed: u64) -> bool {
        self.left.is_none()
            && self.download.is_none()
            && self.base.is_clear()
            && self.trailers.is_none()
            && self.is_sent(sealed)
            && self.mark <= sealed
            && !self.waits_for_room
    }

    /// True if it does not rest, and would not: its task has not said that nothing moves, or
    /// something has happened since.
    pub fn is_moving(&self, sealed: u64) -> bool {
        match self.rest {
            StreamRest::No => true,
            StreamRest::Quiet | StreamRest::Asked => !self.may_rest(sealed),
            StreamRest::Rests { .. } => false,
        }
    }

    /// True if something has happened to it since it rests.
    pub fn is_called(&self) -> bool {
        matches!(self.rest, StreamRest::Rests { is_called: true, .. })
    }

    /// True if its request is held, and rests.
    pub fn is_held_at_rest(&self) -> bool {
        match &self.rest {
            StreamRest::Rests { stream, .. } => {
                matches!(stream.upstream, StreamUpstream::Held(_))
            }
            StreamRest::No | StreamRest::Quiet | StreamRest::Asked => false,
        }
    }

    /// Notes what its task has left: there is none any more, until it is due.
    pub fn rests(&mut self, stream: RestingStream) {
        (self.due_ms, self.is_late) = (now_ms().saturating_add(stream.left_ms()), false);
        self.rest = StreamRest::Rests { stream: Box::new(stream), is_called: false };
        self.base.task.forget();
        (self.waits_for_room, self.upload) = (false, None);
    }

    /// Bytes that it holds while it has no task, which counts them otherwise.
    pub fn resting_bytes(&self) -> usize {
        match &self.rest {
            StreamRest::Rests { stream, .. } => {
                size_of::<Self>() + size_of::<RestingStream>() + stream.form.capacity()
            }
            StreamRest::No | StreamRest::Quiet | StreamRest::Asked => 0,
        }
    }

    /// True if it cannot go on resting where others do not: something has happened to it, or it has
    /// no place where its upstream's socket is watched. `keep` puts the socket there.
    pub fn must_go_on(
        &mut self,
        keep: &mut impl FnMut(u32, OwnedFd) -> Result<(), OwnedFd>,
    ) -> bool {
        let id = self.base.id;
        match &mut self.rest {
            StreamRest::No | StreamRest::Quiet => false,
            // Its task is not needed to leave any more.
            StreamRest::Asked => {
                self.rest = StreamRest::Quiet;
                false
            }
            StreamRest::Rests { is_called: true, .. } => true,
            StreamRest::Rests { stream, .. } => {
                let kept = std::mem::replace(&mut stream.upstream, StreamUpstream::AtPlace);
                let StreamUpstream::Kept(RestingUpstream::Socket(socket)) = kept else {
                    // Nothing watches a shared one while its connection is served.
                    let must = matches!(kept, StreamUpstream::Kept(_));
                    stream.upstream = kept;
                    return must;
                };
                let kept = keep(id, socket).map_err(RestingUpstream::Socket);
                kept.map_err(|kept| stream.upstream = StreamUpstream::Kept(kept)).is_err()
            }
        }
    }

    /// Takes what its task has left, so that another goes on with it.
    pub fn goes_on(&mut self) -> Option<RestingStream> {
        match std::mem::replace(&mut self.rest, StreamRest::No) {
            StreamRest::Rests { stream, .. } => {
                self.due_ms = u64::MAX;
                Some(*stream)
            }
            rest @ (StreamRest::No | StreamRest::Quiet | StreamRest::Asked) => {
                self.rest = rest;
                None
            }
        }
    }

    /// True if a part of its body waits for the client's window.
    pub fn wants_room(&self) -> bool {
        let has_more = !self.queue.is_empty() || self.download.is_some() || self.waits_for_room;
        self.is_answered && !self.has_ended && has_more
    }

    /// True if all that was queued is sealed, also the end if it was queued.
    pub fn is_sent(&self, sealed: u64) -> bool {
        let is_written = self.interim.is_none() && self.head.is_none() && self.end.is_none();
        let has_no_more = self.queue.is_empty() && is_written;
        // The middle of a body does not wait for its head to be sealed.
        has_no_more && (self.mark <= sealed || self.is_answered && !self.has_ended)
    }

    /// Writes data of the body to the upstream's socket, behind all that came before. Returns how
    /// many bytes it has taken.
    pub fn write_up(&mut self, data: &[u8]) -> usize {
        match &self.upload {
            // What its task holds is not written yet.
            Some(upload) if self.base.is_clear() => {
                let written = upload.socket.write_now(data);
                upload.written.update(|before| before + written);
                written
            }
            _ => 0,
        }
    }
}

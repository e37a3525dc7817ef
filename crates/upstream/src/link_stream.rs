//! A stream of a connection to an upstream: what has arrived for it and its exchange has not taken.

use std::num::NonZeroU64;
use std::task::{Context, Poll};

use eyelet_h2::{ConnectionFault, ErrorCode, FieldSpan, HeaderFields, MessageHead, StreamFault};

use eyelet_engine::worker::ParkedWaker;
use eyelet_http1::head::RESPONSE_HEAD_BYTES_MAX;
use eyelet_memory::slab::Key;
use eyelet_multiplex::{StreamBase, StreamRole};

/// Most bytes of memory of heads that wait: the final one and one like it before. More interim
/// responses than fit are a flood.
const HEADS_BYTES_MAX: usize = 4 * RESPONSE_HEAD_BYTES_MAX;

/// The way in which a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The response is whole.
    Whole,
    /// The upstream has ended the connection by this TLS alert.
    Alert(u8),
    /// The upstream has broken the protocol of the connection.
    Broken(ConnectionFault),
    /// The upstream has broken the protocol of the stream.
    Failed(StreamFault),
    /// More interim responses than are kept.
    Interim,
    /// The connection was lost.
    Lost,
    /// The upstream has reset it.
    Reset(ErrorCode),
    /// The upstream has left it out by GOAWAY, or nothing of it was written.
    Unprocessed,
}

pub struct LinkStream {
    base: StreamBase,
    /// The position behind its first byte in the connection's output. `None`: another worker has
    /// sent it.
    begun: Option<NonZeroU64>,
    /// Heads, and whether the message ends there. Mostly it is one.
    heads: Vec<(MessageHead, bool)>,
    /// The trailers of a response that is whole. Boxed, because a stream at rest has none.
    pub trailers: Option<Box<HeaderFields>>,
    /// The way in which it has ended. What has arrived before can still be taken.
    end: Option<StreamEnd>,
    /// True if the upstream takes no more of the request.
    pub is_cut: bool,
    /// True if it waits until it may send data.
    pub is_blocked: bool,
    /// Bytes of memory of the heads.
    heads_held: usize,
    /// Wakes its client's connection, which is parked, for whatever comes.
    parked: Option<ParkedWaker>,
}

impl StreamRole for LinkStream {
    fn base(&self) -> &StreamBase {
        &self.base
    }

    fn base_mut(&mut self) -> &mut StreamBase {
        &mut self.base
    }

    fn wake(&mut self) {
        self.base.task.wake();
        if let Some(parked) = self.parked.take() {
            parked.wake();
        }
    }
}

impl LinkStream {
    /// A stream that begins at this position of the output, or has begun in another worker.
    pub fn new(id: u32, begin: Option<u64>) -> Self {
        Self {
            base: StreamBase::new(id),
            begun: begin.and_then(|begin| NonZeroU64::MIN.checked_add(begin)),
            heads: Vec::new(),
            trailers: None,
            end: None,
            is_cut: false,
            is_blocked: false,
            heads_held: 0,
            parked: None,
        }
    }

    /// True if nothing of it waits for its exchange.
    pub fn is_clear(&self) -> bool {
        self.base.is_clear() && self.heads.is_empty() && self.end.is_none()
    }

    /// Notes that its exchange rests on the connection that `waker` wakes, and wakes it at once if
    /// something has come meanwhile.
    pub fn rests(&mut self, waker: ParkedWaker) {
        self.base.task.forget();
        self.parked = Some(waker);
        if !self.is_clear() {
            self.wake();
        }
    }

    /// True if a part of its request is among the first `taken` bytes of the output.
    pub fn is_sent(&self, taken: u64) -> bool {
        self.begun.is_none_or(|begun| begun.get() <= taken)
    }

    /// The parked connection of its exchange, if nothing has come for that.
    pub fn parked(&self) -> Option<Key> {
        self.parked.as_ref().filter(|_| self.is_clear()).map(ParkedWaker::key)
    }

    /// Notes that its exchange has a task again.
    pub fn goes_on(&mut self) {
        self.parked = None;
    }

    /// Notes the task of the exchange.
    pub fn waits(&mut self, task: &Context<'_>) {
        self.base.task.waits(task);
    }

    /// Ends it. The request of a response that is whole may go on, and may be cut later.
    pub fn ends(&mut self, end: StreamEnd) {
        self.is_cut |= end != StreamEnd::Whole;
        self.end.get_or_insert(end);
        self.wake();
    }

    /// Bytes of memory of heads and trailers that wait.
    pub fn held(&self) -> usize {
        self.heads_held + self.trailers.as_deref().map_or(0, fields_held)
    }

    /// Adds a head. Returns whether there was room for it.
    pub fn push_head(&mut self, head: MessageHead, is_last: bool) -> bool {
        let held = head_held(&head);
        if !self.heads.is_empty() && self.heads_held + held > HEADS_BYTES_MAX {
            self.ends(StreamEnd::Interim);
            return false;
        }
        self.heads_held += held;
        self.heads.push((head, is_last));
        if is_last {
            self.ends(StreamEnd::Whole);
        }
        true
    }

    /// Adds the trailers, which end the response.
    pub fn push_trailers(&mut self, fields: HeaderFields) {
        self.trailers = Some(Box::new(fields));
        self.ends(StreamEnd::Whole);
    }

    pub fn take_head(
        &mut self,
        task: &Context<'_>,
    ) -> Poll<Result<(MessageHead, bool), StreamEnd>> {
        if !self.heads.is_empty() {
            let (head, is_last) = self.heads.remove(0);
            self.heads_held -= head_held(&head);
            if self.heads.is_empty() {
                // Most responses have one head. The room for it would stay with the stream.
                self.heads = Vec::new();
            }
            return Poll::Ready(Ok((head, is_last)));
        }
        match self.end {
            Some(end) => Poll::Ready(Err(end)),
            None => {
                self.waits(task);
                Poll::Pending
            }
        }
    }

    /// Ready with how it has ended, behind all that has arrived.
    pub fn poll_end(&mut self, task: &Context<'_>) -> Poll<StreamEnd> {
        if self.end.is_none() {
            self.waits(task);
        }
        self.end.map_or(Poll::Pending, Poll::Ready)
    }
}

fn head_held(head: &MessageHead) -> usize {
    size_of::<MessageHead>() + fields_held(&head.fields)
}

fn fields_held(fields: &HeaderFields) -> usize {
    fields.text.capacity() + fields.fields.capacity() * size_of::<FieldSpan>()
}

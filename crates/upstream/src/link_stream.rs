//! A stream of a connection to an upstream: what has arrived for it and its exchange has not taken.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use eyelet_h2::{ConnectionFault, ErrorCode, FieldSpan, HeaderFields, MessageHead, StreamFault};

use eyelet_http1::head::RESPONSE_HEAD_BYTES_MAX;

/// Most bytes of memory of heads that wait: the final one and one like it before. More interim
/// responses than fit are a flood.
const HEADS_BYTES_MAX: usize = 4 * RESPONSE_HEAD_BYTES_MAX;
/// Data of fewer bytes is copied behind the data before it, so that small frames take no more
/// memory than their bytes.
const SMALL_BYTES: usize = 1 << 10;
/// But not behind so many: each part is taken as a whole.
const PART_BYTES: usize = 16 << 10;

/// How a stream has ended.
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
    /// Its identifier.
    pub id: u32,
    /// Position of its first byte in the connection's output.
    pub begin: u64,
    /// Heads, and whether the message ends there.
    heads: VecDeque<(MessageHead, bool)>,
    data: VecDeque<Vec<u8>>,
    /// The trailers of a response that is whole.
    pub trailers: Option<HeaderFields>,
    /// How it has ended. What has arrived before can still be taken.
    end: Option<StreamEnd>,
    /// Whether the upstream takes no more of the request.
    pub is_cut: bool,
    /// Whether it waits until it may send data.
    pub is_blocked: bool,
    /// Bytes of memory of the heads, and of the data.
    heads_held: usize,
    data_held: usize,
    waker: Option<Waker>,
    is_waiting: bool,
}

impl LinkStream {
    /// A new stream that begins at this position of the output.
    pub fn new(id: u32, begin: u64) -> Self {
        Self {
            id,
            begin,
            heads: VecDeque::new(),
            data: VecDeque::new(),
            trailers: None,
            end: None,
            is_cut: false,
            is_blocked: false,
            heads_held: 0,
            data_held: 0,
            waker: None,
            is_waiting: false,
        }
    }

    /// Notes the task of the exchange.
    pub fn waits(&mut self, task: &Context<'_>) {
        self.is_waiting = true;
        if !self.waker.as_ref().is_some_and(|known| known.will_wake(task.waker())) {
            self.waker = Some(task.waker().clone());
        }
    }

    /// Wakes the task of the exchange if it waits.
    pub fn wake(&mut self) {
        if std::mem::take(&mut self.is_waiting)
            && let Some(waker) = &self.waker
        {
            waker.wake_by_ref();
        }
    }

    /// Ends it. The request of a response that is whole may go on, and may be cut later.
    pub fn ends(&mut self, end: StreamEnd) {
        self.is_cut |= end != StreamEnd::Whole;
        self.end.get_or_insert(end);
        self.wake();
    }

    /// Bytes of memory of what waits.
    pub fn held(&self) -> usize {
        self.heads_held + self.data_held + self.trailers.as_ref().map_or(0, fields_held)
    }

    /// Bytes of data that wait.
    pub fn bytes(&self) -> u32 {
        self.data.iter().map(|data| data.len() as u32).sum()
    }

    /// Adds a head. Returns whether there was room for it.
    pub fn push_head(&mut self, head: MessageHead, is_last: bool) -> bool {
        let held = head_held(&head);
        if !self.heads.is_empty() && self.heads_held + held > HEADS_BYTES_MAX {
            self.ends(StreamEnd::Interim);
            return false;
        }
        self.heads_held += held;
        self.heads.push_back((head, is_last));
        if is_last {
            self.ends(StreamEnd::Whole);
        }
        true
    }

    /// Adds data.
    pub fn push_data(&mut self, data: &[u8], is_last: bool) {
        match self.data.back_mut() {
            _ if data.is_empty() => {}
            Some(last) if is_joined(last, data) => {
                self.data_held -= last.capacity();
                last.extend_from_slice(data);
                self.data_held += last.capacity();
            }
            _ => {
                self.data_held += data.len();
                self.data.push_back(data.to_vec());
            }
        }
        if is_last {
            self.ends(StreamEnd::Whole);
        }
    }

    /// Adds the trailers, which end the response.
    pub fn push_trailers(&mut self, fields: HeaderFields) {
        self.trailers = Some(fields);
        self.ends(StreamEnd::Whole);
    }

    pub fn take_head(
        &mut self,
        task: &Context<'_>,
    ) -> Poll<Result<(MessageHead, bool), StreamEnd>> {
        match (self.heads.pop_front(), self.end) {
            (Some((head, is_last)), _) => {
                self.heads_held -= head_held(&head);
                Poll::Ready(Ok((head, is_last)))
            }
            (None, Some(end)) => Poll::Ready(Err(end)),
            (None, None) => {
                self.waits(task);
                Poll::Pending
            }
        }
    }

    /// Takes data. `None` at the end of a response that is whole.
    pub fn take_data(&mut self, task: &Context<'_>) -> Poll<Result<Option<Vec<u8>>, StreamEnd>> {
        match (self.data.pop_front(), self.end) {
            (Some(data), _) => {
                self.data_held -= data.capacity();
                Poll::Ready(Ok(Some(data)))
            }
            (None, Some(StreamEnd::Whole)) => Poll::Ready(Ok(None)),
            (None, Some(end)) => Poll::Ready(Err(end)),
            (None, None) => {
                self.waits(task);
                Poll::Pending
            }
        }
    }
}

/// Whether data goes behind the data before it.
fn is_joined(last: &[u8], data: &[u8]) -> bool {
    let is_small = data.len() < SMALL_BYTES || last.len() < SMALL_BYTES;
    is_small && last.len() + data.len() <= PART_BYTES
}

fn head_held(head: &MessageHead) -> usize {
    size_of::<MessageHead>() + fields_held(&head.fields)
}

fn fields_held(fields: &HeaderFields) -> usize {
    fields.text.capacity() + fields.fields.capacity() * size_of::<FieldSpan>()
}

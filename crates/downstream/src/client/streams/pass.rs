//! Bodies that pass between an upstream's socket and the records of an HTTP/2 connection without a
//! copy. A stream's task lends the socket, and the connection's task reads and writes it: the
//! priorities of the streams and the order of the output stay as they are.

use std::cell::Cell;
use std::io::IoSliceMut;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use eyelet_h2::{ConnectionFault, FRAME_BYTES_MAX, FRAME_HEAD_BYTES};
use eyelet_multiplex::StreamRole;

use super::{CONNECTION_WINDOW_BYTES, State, Streams};
use crate::client::io::PASSED_RECORDS_MAX;
use crate::client::state::{BodySource, BodyTarget, ReadStep, StreamState};
use eyelet_upstream::plain::Plain;

/// Bytes that a client may send ahead on a stream whose upstream keeps up. With less, every second
/// read of a fast client would have to be answered by a WINDOW_UPDATE.
const WIDE_WINDOW_BYTES: u32 = 256 << 10;
/// Streams that have such a window at once. Their uploads may stall, so the windows leave half of
/// the connection's to the others.
const WIDE_STREAMS_MAX: usize = (CONNECTION_WINDOW_BYTES / 2 / WIDE_WINDOW_BYTES) as usize;

/// The rest of a response's body, which the task of the connection reads.
pub struct LentBody<'a> {
    /// The socket from which it comes.
    pub socket: &'a Plain,
    /// Its bytes.
    pub left: u64,
    /// Counts what the client was sent of it.
    pub sent: &'a Rc<Cell<u64>>,
}

impl Streams {
    // The tasks of streams.

    /// Has the connection's task write a request's body to this socket as it arrives, and count it.
    /// All that the stream's task has taken of the body must be written.
    pub fn write_to(&self, id: u32, socket: &Plain, written: &Rc<Cell<usize>>) {
        if let Some(stream) =
            self.state.borrow_mut().mux.find(id).filter(|stream| stream.wants_body)
        {
            let (socket, written) = (socket.clone(), written.clone());
            stream.upload = Some(BodyTarget { socket, written });
        }
    }

    /// Has the rest of a request's body wait for the stream's task.
    pub fn keep_body(&self, id: u32) {
        if let Some(stream) = self.state.borrow_mut().mux.find(id) {
            stream.upload = None;
        }
    }

    /// True if the next bytes of a response's body may come from a socket: its head is written, and
    /// nothing is queued.
    pub fn may_pass(&self, id: u32) -> bool {
        let state = &mut *self.state.borrow_mut();
        state.mux.find(id).is_some_and(|stream| {
            stream.is_answered && stream.queue.is_empty() && stream.end.is_none()
        })
    }

    /// Has the connection's task read the rest of a response's body as the client takes it. The
    /// stream's task is woken where the socket has no more, where the client's window is shut, and
    /// at the body's end. Ready if the upstream has ended before that.
    pub fn poll_read_from(
        &self,
        id: u32,
        task: &mut Context<'_>,
        LentBody { socket, left, sent }: LentBody<'_>,
    ) -> Poll<()> {
        let state = &mut *self.state.borrow_mut();
        let is_shut = state.mux.h2.window(id) == 0;
        let Some(stream) = state.mux.find(id) else { return Poll::Pending };
        // Its task notes that it does not stall any more.
        stream.waits_for_room = is_shut;
        if stream.is_cut {
            return Poll::Ready(());
        }
        stream.waits(task);
        if stream.download.is_none() {
            ready!(socket.poll_readable(task));
            stream.download = Some(BodySource { socket: socket.clone(), left, sent: sent.clone() });
            state.downloads += 1;
            state.mux.h2.set_wants_to_send(id, true);
            state.mux.driver.wake();
        }
        Poll::Pending
    }

    /// True if the client's window for a stream is shut.
    pub fn is_shut(&self, id: u32) -> bool {
        self.state.borrow_mut().mux.h2.window(id) == 0
    }

    // The connection's task.

    /// True if a request's body is written to its upstream as it arrives.
    pub fn writes_up(&self) -> bool {
        self.state.borrow().mux.streams.iter().any(|stream| stream.upload.is_some())
    }

    /// Reads data that is only lent. It stops behind another event, which is left in `step`.
    /// Returns how many bytes were read.
    pub fn receive_lent(
        &self,
        input: &[u8],
        now_ms: u64,
        step: &mut Option<Result<ReadStep, ConnectionFault>>,
    ) -> usize {
        let mut read = 0;
        // The caller judges resets, one after the other.
        while step.is_none() && self.resets() == 0 {
            match self.receive(input.get(read..).unwrap_or_default(), now_ms) {
                Ok((consumed, ReadStep::NeedMore)) => {
                    read += consumed;
                    self.state.borrow_mut().widen();
                    return read;
                }
                Ok((consumed, other)) => {
                    read += consumed;
                    *step = Some(Ok(other)).filter(|step| !matches!(step, Ok(ReadStep::Done)));
                }
                Err(fault) => *step = Some(Err(fault)),
            }
        }
        read
    }

    /// True if the next bytes to send are those of a body that is read from a socket.
    pub fn is_passing(&self) -> bool {
        let state = &mut *self.state.borrow_mut();
        let is_next = state.downloads > 0 && state.mux.out.is_empty() && state.ready.is_empty();
        is_next && state.mux.h2.next_to_send().is_some_and(|(id, _)| state.passes(id))
    }

    /// Reads such a body into the places of records, a frame of data each. Returns how many bytes
    /// are written, the frames' headers included.
    pub fn fill_records(&self, places: &mut [IoSliceMut<'_>]) -> usize {
        let state = &mut *self.state.borrow_mut();
        let Some((id, _)) = state.mux.h2.next_to_send() else { return 0 };
        let window = state.mux.h2.window(id);
        let Some(StreamState { download: Some(source), is_cut, .. }) = state.mux.find(id) else {
            return 0;
        };
        let most = usize::try_from(source.left).unwrap_or(usize::MAX).min(window);
        let read = source.socket.read_now(&mut payloads(places, most));
        *is_cut = read.is_none();
        let read = read.unwrap_or_default();
        source.left -= read as u64;
        source.sent.update(|sent| sent + read as u64);
        let is_over = source.left == 0;
        let is_drained = is_over || *is_cut || !source.socket.has_event();
        let filled = state.write_heads(id, places, (read, is_over));
        state.note_read(id, is_drained, is_over, read == window);
        filled
    }
}

/// The payloads of frames in the places of records, `most` bytes in all.
fn payloads<'a>(
    places: &'a mut [IoSliceMut<'_>],
    most: usize,
) -> [IoSliceMut<'a>; PASSED_RECORDS_MAX] {
    let (mut left, mut places) = (most, places.iter_mut());
    std::array::from_fn(|_| {
        let place = places.next().and_then(|place| place.get_mut(FRAME_HEAD_BYTES..));
        let place = place.unwrap_or_default();
        let len = place.len().min(FRAME_BYTES_MAX).min(left);
        left -= len;
        IoSliceMut::new(place.get_mut(..len).unwrap_or_default())
    })
}

impl State {
    /// True if the data of a stream is read from a socket.
    pub(super) fn passes(&mut self, id: u32) -> bool {
        self.downloads > 0 && self.mux.find(id).is_some_and(|stream| stream.download.is_some())
    }

    /// Takes a part of a request's body: writes it to the upstream, or keeps it for the stream's
    /// task.
    pub(super) fn take_data(&mut self, id: u32, data: &[u8], is_last: bool) {
        let Some(stream) = self.mux.find(id).filter(|stream| stream.wants_body) else {
            if let Some(stream) = self.mux.find(id) {
                stream.has_body_ended |= is_last;
            }
            let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
            return self.mux.h2.release_connection(bytes, self.mux.out.frames());
        };
        let written = stream.write_up(data);
        let data = data.get(written..).unwrap_or_default();
        stream.has_body_ended |= is_last;
        if !data.is_empty() || is_last {
            stream.upload.take_if(|_| is_last);
            self.mux.keep(id, data);
        }
        if written > 0 {
            self.note_written(id, written);
        }
    }

    /// Widens the windows of streams whose upstreams have taken all that came.
    fn widen(&mut self) {
        let takes_all =
            |stream: &&mut StreamState| stream.upload.is_some() && stream.base.is_clear();
        // A window is not narrowed again, so a stream that stalls counts until its body has ended.
        let is_wide = |stream: &&StreamState| stream.is_wide && !stream.has_body_ended;
        let mut wide = self.mux.streams.iter().filter(is_wide).count();
        for stream in self.mux.streams.iter_mut().filter(takes_all) {
            if !stream.is_wide {
                if wide >= WIDE_STREAMS_MAX {
                    continue;
                }
                wide += 1;
                stream.is_wide = true;
            }
            self.mux.h2.widen(stream.base.id, WIDE_WINDOW_BYTES);
            // Says so at once where much of it is open.
            self.mux.h2.release(stream.base.id, 0, self.mux.out.frames());
        }
    }

    /// Notes that bytes of a request's body are written to the upstream: the client may send as
    /// many more.
    fn note_written(&mut self, id: u32, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.mux.h2.release(id, bytes, self.mux.out.frames());
    }

    /// Writes the headers of frames in front of their payloads, `read` bytes in all.
    fn write_heads(
        &mut self,
        id: u32,
        places: &mut [IoSliceMut<'_>],
        (read, is_over): (usize, bool),
    ) -> usize {
        let (mut left, mut filled) = (read, 0);
        for place in places {
            let room = place.len().saturating_sub(FRAME_HEAD_BYTES).min(FRAME_BYTES_MAX);
            let len = left.min(room);
            left -= len;
            if len == 0 {
                break;
            }
            // It fails only for more than the window, which bounded what was read.
            let Ok(head) = self.mux.h2.data(id, len, is_over && left == 0) else { break };
            if let Some(place) = place.get_mut(..FRAME_HEAD_BYTES) {
                place.copy_from_slice(&head);
            }
            filled += FRAME_HEAD_BYTES + len;
        }
        filled
    }

    fn note_read(&mut self, id: u32, is_drained: bool, is_over: bool, is_shut: bool) {
        let mark = self.mux.out.end_position();
        let Some(stream) = self.mux.find(id) else { return };
        let ends = is_drained && stream.download.take().is_some();
        if is_over {
            (stream.has_ended, stream.mark) = (true, mark);
        }
        if is_drained || is_shut {
            stream.wake();
        }
        if ends {
            self.downloads -= 1;
            self.mux.h2.set_wants_to_send(id, false);
        }
    }
}

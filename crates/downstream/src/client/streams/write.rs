//! Writes what streams have queued as frames of their connection: heads, data and ends, in the
//! order of their priorities.

use eyelet_h2::OUTPUT_BYTES_MAX;
use eyelet_multiplex::StreamRole;
use eyelet_multiplex::fields::header_fields;

use super::State;
use crate::client::head::response_fields;
use crate::client::state::FinalHead;
use eyelet_http1::head::give_back;

/// Bytes of output that no stream waits for. The socket's buffer holds many times as many for a
/// client that reads nothing.
const SMALL_BYTES: usize = 4 << 10;

impl State {
    /// Position up to which the bytes of streams count as sent: behind the sealed ones, or behind
    /// all if these are few. Otherwise each small response would have its task run once more.
    pub(super) fn sent(&self) -> u64 {
        let out = &self.mux.out;
        if self.stays_small(0) { out.end_position() } else { out.taken() }
    }

    /// True if so many bytes more would be little.
    fn stays_small(&self, bytes: usize) -> bool {
        self.mux.out.len() + bytes <= SMALL_BYTES
    }

    /// True if more may be written without waiting for the client.
    pub(super) fn has_room(&self) -> bool {
        self.mux.out.len() < OUTPUT_BYTES_MAX
    }

    /// Writes the next head, end, or piece of data. `false`: there is none, or the client must
    /// take data first.
    pub(super) fn write_next(&mut self) -> bool {
        if let Some(id) = self.ready.pop_front() {
            self.write_ready(id);
            return true;
        }
        match self.mux.h2.next_to_send() {
            // The connection's task reads it into the records.
            Some((id, _)) if self.passes(id) => false,
            Some((id, room)) => {
                self.write_data(id, room);
                true
            }
            None => false,
        }
    }

    /// Writes a small response behind the little that is on its way, if its head was queued last.
    /// Its task then need not run once more behind the connection's.
    pub(super) fn write_small(&mut self, id: u32) {
        if self.ready.back() != Some(&id) {
            return;
        }
        let Some(stream) = self.mux.find(id) else { return };
        let is_whole = match &stream.head {
            Some(head) => head.ends || matches!(stream.end, Some(None)),
            None => false,
        };
        let bytes = stream.queue.len();
        if !is_whole || !self.stays_small(bytes) {
            return;
        }
        self.ready.pop_back();
        self.write_ready(id);
        // The connection's task sends data that the client's window does not fit.
        while let room @ 1.. = self.mux.h2.room(id)
            && self.write_data(id, room)
        {}
    }

    /// Writes the heads of a stream, and its end if no data is left. A fault means that the stream
    /// has ended, which its task sees.
    pub(super) fn write_ready(&mut self, id: u32) {
        let Ok(at) = self.mux.streams.binary_search_by_key(&id, |stream| stream.base.id) else {
            return;
        };
        let Some(stream) = self.mux.streams.get_mut(at) else { return };
        let (h2, out) = (&mut self.mux.h2, self.mux.out.frames());
        stream.is_ready = false;
        if let Some(interim) = stream.interim.take() {
            let _ = h2.inform(id, response_fields(&interim), out);
        }
        if let Some(FinalHead { parts, ends }) = stream.head.take() {
            let _ = h2.respond(id, response_fields(&parts), ends, out);
            give_back(parts.headers);
            (stream.is_answered, stream.has_ended) = (true, ends);
            h2.set_wants_to_send(id, !stream.queue.is_empty());
            if stream.waits_for_room {
                stream.wake();
            }
        }
        if stream.is_answered
            && stream.queue.is_empty()
            && let Some(end) = stream.end.take()
        {
            stream.has_ended = true;
            match end {
                Some(trailers) => _ = h2.trailers(id, header_fields(&trailers), out),
                None => {
                    if let Ok(frame) = h2.data(id, 0, true) {
                        out.extend_from_slice(&frame);
                    }
                }
            }
        }
        stream.mark = self.mux.out.end_position();
        self.marks.push_back((stream.mark, id));
    }

    /// Writes a piece of data. Returns whether there was one.
    pub(super) fn write_data(&mut self, id: u32, room: usize) -> bool {
        let Ok(at) = self.mux.streams.binary_search_by_key(&id, |stream| stream.base.id) else {
            self.mux.h2.set_wants_to_send(id, false);
            return false;
        };
        let Some(stream) = self.mux.streams.get_mut(at) else { return false };
        let Some(piece) = stream.queue.take(room) else {
            self.mux.h2.set_wants_to_send(id, false);
            return false;
        };
        let is_empty = stream.queue.is_empty();
        let is_last = is_empty && matches!(stream.end, Some(None));
        let Ok(head) = self.mux.h2.data(id, piece.len(), is_last) else {
            self.mux.h2.set_wants_to_send(id, false);
            return false;
        };
        self.mux.out.push_data(head, piece);
        if is_last {
            (stream.end, stream.has_ended) = (None, true);
            stream.mark = self.mux.out.end_position();
            self.marks.push_back((stream.mark, id));
        } else if is_empty {
            let has_trailers = stream.end.is_some();
            stream.wake();
            self.mux.h2.set_wants_to_send(id, false);
            if has_trailers {
                self.enqueue(id);
            }
        }
        true
    }
}

//! What waits to be written to an upstream that speaks HTTP/2: frames in their order. Data of a
//! request is shared with its source.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use eyelet_h2::FRAME_HEAD_BYTES;
use tokio::io::AsyncWrite;

use super::socket::Socket;

/// Most bytes that wait while requests may add data: a socket takes about as much at once.
const DATA_WAITING_MAX: usize = 64 << 10;
/// While so many bytes wait, nothing is read, so that an upstream that reads nothing gets no more
/// answers. It is above data and ordinary heads: an upstream may read only after it has written.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Data of fewer bytes is copied behind its frame's header.
const COPIED_BYTES: usize = 1 << 10;
/// The newest frames are sealed at this length: HTTP/2's state reads nothing at four times as much.
const TAIL_BYTES: usize = 16 << 10;
/// An empty buffer of at most this capacity is kept for the next frames.
const KEPT_BYTES: usize = 1 << 10;
/// Pieces given to one vectored write.
const SLICES: usize = 16;

/// Bytes that wait.
#[derive(Default)]
pub struct Output {
    pieces: VecDeque<SealedPiece>,
    /// Bytes of the pieces, and their memory.
    pieces_len: usize,
    pieces_held: usize,
    /// The newest frames, behind the pieces.
    tail: Vec<u8>,
    /// Bytes of `tail` that were written.
    tail_written: usize,
    /// Bytes that were written of all that ever waited.
    written: u64,
}

/// Bytes that nothing is appended to.
struct SealedPiece {
    bytes: Bytes,
    /// Bytes of memory.
    held: usize,
}

impl Output {
    /// The buffer that frames are appended to.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        if self.tail.len() >= TAIL_BYTES {
            self.seal();
        }
        &mut self.tail
    }

    /// Adds a frame of data.
    pub fn push_data(&mut self, head: [u8; FRAME_HEAD_BYTES], data: Bytes) {
        let tail = self.tail();
        tail.extend_from_slice(&head);
        if data.len() < COPIED_BYTES {
            return tail.extend_from_slice(&data);
        }
        self.seal();
        let held = data.len();
        self.push(data, held);
    }

    /// Turns the newest frames into a piece.
    fn seal(&mut self) {
        let mut bytes = std::mem::take(&mut self.tail);
        let written = std::mem::take(&mut self.tail_written);
        if bytes.len() > written {
            bytes.shrink_to_fit();
            let held = bytes.len();
            let mut bytes = Bytes::from(bytes);
            bytes.advance(written);
            self.push(bytes, held);
        }
    }

    fn push(&mut self, bytes: Bytes, held: usize) {
        self.pieces_len += bytes.len();
        self.pieces_held += held;
        self.pieces.push_back(SealedPiece { bytes, held });
    }

    /// The number of bytes that wait.
    pub fn len(&self) -> usize {
        self.pieces_len + self.tail.len() - self.tail_written
    }

    /// Position behind what waits, among all bytes of the connection.
    pub fn end_position(&self) -> u64 {
        self.written + self.len() as u64
    }

    /// Says if the byte at a position was written. Bytes that were dropped were not.
    pub fn has_written(&self, position: u64) -> bool {
        position < self.written
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether so much waits that nothing is read.
    pub fn is_full(&self) -> bool {
        self.len() >= WAITING_BYTES_MAX
    }

    /// How many bytes of data may be added.
    pub fn data_room(&self) -> usize {
        DATA_WAITING_MAX.saturating_sub(self.len())
    }

    /// Bytes of memory.
    pub fn held(&self) -> usize {
        self.pieces_held + self.tail.capacity() + self.pieces.capacity() * size_of::<SealedPiece>()
    }

    /// Drops all that waits: nobody reads it.
    pub fn clear(&mut self) {
        *self = Self { written: self.written, ..Self::default() };
    }

    /// Writes all that waits.
    pub fn poll_write(
        &mut self,
        task: &mut Context<'_>,
        socket: &mut Socket,
    ) -> Poll<io::Result<()>> {
        let mut socket = Pin::new(socket);
        while !self.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.slices(&mut slices);
            match ready!(socket.as_mut().poll_write_vectored(task, &slices[..count]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.advance(written),
            }
        }
        socket.poll_flush(task)
    }

    /// Takes all that waits, as the upstream would read it.
    #[cfg(test)]
    pub fn take_all(&mut self) -> Vec<u8> {
        self.seal();
        let all: Vec<u8> = self.pieces.iter().flat_map(|piece| &piece.bytes[..]).copied().collect();
        self.written += all.len() as u64;
        self.clear();
        all
    }

    fn slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let tail = self.tail.get(self.tail_written..).filter(|tail| !tail.is_empty());
        let pieces = self.pieces.iter().map(|piece| &piece.bytes[..]).chain(tail);
        let mut count = 0;
        for (slice, piece) in into.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    /// Drops bytes that were written.
    fn advance(&mut self, mut written: usize) {
        self.written += written as u64;
        while let Some(piece) = self.pieces.front_mut() {
            let len = piece.bytes.len().min(written);
            piece.bytes.advance(len);
            written -= len;
            self.pieces_len -= len;
            if !piece.bytes.is_empty() {
                return;
            }
            self.pieces_held -= piece.held;
            self.pieces.pop_front();
        }
        self.tail_written += written;
        if self.tail_written >= self.tail.len() {
            self.tail_written = 0;
            self.tail.clear();
            if self.tail.capacity() > KEPT_BYTES {
                self.tail = Vec::new();
            }
        }
        if self.pieces.is_empty() {
            self.pieces = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: [u8; FRAME_HEAD_BYTES] = [9; FRAME_HEAD_BYTES];

    /// All that waits, as a vectored write would take it.
    fn waiting(output: &Output) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 64];
        let count = output.slices(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect()
    }

    /// Frames, small and large data, whatever part of it is written at once.
    #[test]
    fn order_is_kept_and_memory_is_given_back() {
        for step in [1, 7, 1000, 5000, usize::MAX] {
            let (mut output, mut wanted, mut written) = (Output::default(), vec![], vec![]);
            for n in 0..8_u8 {
                output.tail().extend_from_slice(&[n; 30]);
                wanted.extend_from_slice(&[n; 30]);
                let data = vec![n; if n % 2 == 0 { 10 } else { COPIED_BYTES }];
                output.push_data(HEAD, data.clone().into());
                wanted.extend_from_slice(&HEAD);
                wanted.extend_from_slice(&data);
                let now = step.min(output.len());
                written.extend_from_slice(&waiting(&output)[..now]);
                output.advance(now);
            }
            assert!(output.held() >= output.len());
            written.extend_from_slice(&waiting(&output));
            output.advance(output.len());
            assert_eq!(written, wanted, "{step}");
            assert!(output.is_empty() && output.held() <= KEPT_BYTES, "{}", output.held());
        }
    }

    /// Bytes that are dropped were never written, and those after them are not either.
    #[test]
    fn it_is_known_what_was_written() {
        let mut output = Output::default();
        output.tail().extend_from_slice(&[1; 30]);
        output.push_data(HEAD, vec![0; COPIED_BYTES].into());
        let begin = output.end_position();
        output.tail().extend_from_slice(&[2; 30]);
        assert!(!output.has_written(0));
        output.advance(begin as usize);
        assert!(output.has_written(0) && output.has_written(begin - 1));
        assert!(!output.has_written(begin));
        output.clear();
        assert!(output.has_written(begin - 1) && !output.has_written(output.end_position()));
        output.tail().push(3);
        output.advance(1);
        assert!(output.has_written(begin));
    }

    #[test]
    fn data_waits_for_its_room_and_a_long_wait_stops_reading() {
        let mut output = Output::default();
        output.push_data(HEAD, vec![0; DATA_WAITING_MAX - 100].into());
        assert_eq!(output.data_room(), 100 - FRAME_HEAD_BYTES);
        output.push_data(HEAD, vec![0; 90].into());
        assert_eq!((output.data_room(), output.is_full()), (0, false));
        for _ in 0..WAITING_BYTES_MAX / TAIL_BYTES {
            output.tail().extend_from_slice(&[0; TAIL_BYTES]);
        }
        assert!(output.is_full());
        output.advance(output.len());
        assert!(output.is_empty() && output.data_room() == DATA_WAITING_MAX);
    }
}

//! The bytes of a connection on their way to its peer, in the order in which they are sent. Data is
//! shared with its source.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::io::Write;

use bytes::{Buf, Bytes};
use eyelet_h2::FRAME_HEAD_BYTES;

/// The newest frames are sealed at this length: HTTP/2's state reads nothing at four times as much.
const TAIL_BYTES: usize = 16 << 10;
/// An empty buffer of at most this capacity is kept for the next frames.
const KEPT_BYTES: usize = 4 << 10;
/// Data of fewer bytes is copied behind the frames before it, into a buffer that is mostly there.
const COPIED_BYTES: usize = KEPT_BYTES;
/// Pieces whose memory is kept: a list of any has room for so many.
const PIECES_KEPT: usize = 4;

/// Frames that wait.
#[derive(Default)]
pub struct FrameQueue {
    pieces: VecDeque<Piece>,
    /// Bytes of the pieces, and their memory.
    pieces_len: usize,
    pieces_held: usize,
    /// The newest frames, behind the pieces.
    tail: Vec<u8>,
    /// Bytes of `tail` that were taken.
    tail_taken: usize,
    /// Bytes that were taken since the connection began.
    taken: u64,
}

/// Frames that nothing is appended to, or one frame of data.
struct Piece {
    /// The header of the frame of data: its last `head_left` bytes are left.
    head: [u8; FRAME_HEAD_BYTES],
    head_left: usize,
    bytes: Bytes,
    /// Bytes of memory.
    held: usize,
}

impl Piece {
    fn len(&self) -> usize {
        self.head_left + self.bytes.len()
    }

    fn chunks(&self) -> [&[u8]; 2] {
        let head = self.head.get(FRAME_HEAD_BYTES - self.head_left..);
        [head.unwrap_or_default(), &self.bytes]
    }

    fn advance(&mut self, bytes: usize) {
        let of_head = bytes.min(self.head_left);
        self.head_left -= of_head;
        self.bytes.advance(bytes - of_head);
    }
}

impl FrameQueue {
    /// Begins with these frames.
    pub fn new(frames: Vec<u8>) -> Self {
        Self { tail: frames, ..Self::default() }
    }

    /// The buffer that frames are appended to.
    pub fn frames(&mut self) -> &mut Vec<u8> {
        if self.tail_taken > 0 {
            self.tail.drain(..self.tail_taken);
            self.tail_taken = 0;
        }
        &mut self.tail
    }

    /// The buffer that frames are appended to, after another one if that is long: HTTP/2's state
    /// never finds it full.
    pub fn short_frames(&mut self) -> &mut Vec<u8> {
        if self.tail.len() >= TAIL_BYTES {
            self.seal();
        }
        self.frames()
    }

    /// Adds a frame of data. A small one is copied if others wait, behind few: what waits in the
    /// buffer is moved where a part of it was taken.
    pub fn push_data(&mut self, head: [u8; FRAME_HEAD_BYTES], data: Bytes) {
        if data.len() < COPIED_BYTES && !self.is_empty() {
            let frames = self.short_frames();
            frames.extend_from_slice(&head);
            return frames.extend_from_slice(&data);
        }
        self.seal();
        let held = data.len();
        self.push(Piece { head, head_left: FRAME_HEAD_BYTES, bytes: data, held });
    }

    /// Turns the newest frames into a piece.
    fn seal(&mut self) {
        if self.tail.len() > self.tail_taken {
            let mut frames = std::mem::take(self.frames());
            frames.shrink_to_fit();
            let (head, held) = ([0; FRAME_HEAD_BYTES], frames.len());
            self.push(Piece { head, head_left: 0, bytes: frames.into(), held });
        }
    }

    fn push(&mut self, piece: Piece) {
        self.pieces_len += piece.len();
        self.pieces_held += piece.held;
        self.pieces.push_back(piece);
    }

    /// The number of bytes that wait.
    pub fn len(&self) -> usize {
        self.pieces_len + self.tail.len() - self.tail_taken
    }

    /// True if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Position behind what waits, among all bytes of the connection.
    pub fn end_position(&self) -> u64 {
        self.taken + self.len() as u64
    }

    /// Bytes that were taken since the connection began. Those that were dropped were not.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Bytes of memory.
    pub fn held(&self) -> usize {
        self.pieces_held + self.tail.capacity() + self.pieces.capacity() * size_of::<Piece>()
    }

    /// Gives up the memory that is kept for the next frames, if nothing waits.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            self.clear();
        }
    }

    /// Drops all that waits: nobody reads it.
    pub fn clear(&mut self) {
        *self = Self { taken: self.taken, ..Self::default() };
    }

    fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        let tail = self.tail.get(self.tail_taken..).unwrap_or_default();
        let pieces = self.pieces.iter().flat_map(Piece::chunks);
        pieces.chain([tail]).filter(|chunk| !chunk.is_empty())
    }

    /// Fills `slices` with what waits, for one vectored write. Returns how many there are.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slice, chunk) in slices.iter_mut().zip(self.chunks()) {
            *slice = IoSlice::new(chunk);
            count += 1;
        }
        count
    }

    /// Moves bytes into `room`. Returns how many.
    pub fn take(&mut self, mut room: &mut [u8]) -> usize {
        let bytes = room.len();
        for chunk in self.chunks() {
            // A slice takes what fits, and never fails.
            if room.write(chunk).unwrap_or_default() < chunk.len() {
                break;
            }
        }
        let taken = bytes - room.len();
        self.advance(taken);
        taken
    }

    /// Drops bytes that the peer is sent.
    pub fn advance(&mut self, mut bytes: usize) {
        self.taken += bytes as u64;
        while let Some(piece) = self.pieces.front_mut() {
            let len = piece.len().min(bytes);
            piece.advance(len);
            bytes -= len;
            self.pieces_len -= len;
            if piece.len() > 0 {
                return;
            }
            self.pieces_held -= piece.held;
            self.pieces.pop_front();
        }
        if self.pieces.capacity() > PIECES_KEPT {
            self.pieces = VecDeque::new();
        }
        self.tail_taken += bytes;
        if self.tail_taken >= self.tail.len() {
            self.tail_taken = 0;
            self.tail.clear();
            if self.tail.capacity() > KEPT_BYTES {
                self.tail = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: [u8; FRAME_HEAD_BYTES] = [9; FRAME_HEAD_BYTES];

    /// All that waits, as a vectored write would take it.
    fn waiting(queue: &FrameQueue) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 64];
        let count = queue.slices(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect()
    }

    /// Frames, small and large data, whatever part of it is taken at once, by copies or without.
    #[test]
    fn order_is_kept_and_memory_is_given_back() {
        for (step, copies) in
            [1, 7, 9, 1000, 5000, usize::MAX].into_iter().flat_map(|s| [(s, true), (s, false)])
        {
            let mut queue = FrameQueue::new(b"first".to_vec());
            let (mut wanted, mut taken) = (b"first".to_vec(), vec![]);
            for n in 0..8_u8 {
                let data = vec![n; if n % 2 == 0 { 10 } else { COPIED_BYTES }];
                queue.push_data(HEAD, data.clone().into());
                wanted.extend_from_slice(&HEAD);
                wanted.extend_from_slice(&data);
                queue.short_frames().extend_from_slice(&[n; 30]);
                wanted.extend_from_slice(&[n; 30]);
                let now = step.min(queue.len());
                if copies {
                    let at = taken.len();
                    taken.resize(at + now, 0);
                    assert_eq!(queue.take(&mut taken[at..]), now);
                } else {
                    taken.extend_from_slice(&waiting(&queue)[..now]);
                    queue.advance(now);
                }
                assert_eq!(queue.taken(), taken.len() as u64);
                assert_eq!(queue.end_position(), wanted.len() as u64);
            }
            assert!(queue.held() >= queue.len());
            taken.extend_from_slice(&waiting(&queue));
            queue.advance(queue.len());
            assert!(taken == wanted, "{step}");
            let kept = KEPT_BYTES + PIECES_KEPT * size_of::<Piece>();
            assert!(queue.is_empty() && queue.held() <= kept, "{}", queue.held());
        }
    }

    /// Data that comes first is not copied, however small it is.
    #[test]
    fn the_first_data_is_shared() {
        let (mut queue, data) = (FrameQueue::default(), Bytes::from_static(b"shared"));
        queue.push_data(HEAD, data.clone());
        let mut slices = [IoSlice::new(&[]); 2];
        assert_eq!(queue.slices(&mut slices), 2);
        assert_eq!(slices[1].as_ptr(), data.as_ptr());
    }

    /// Bytes that are dropped were never taken, and those after them are not either.
    #[test]
    fn it_is_known_what_was_taken() {
        let mut queue = FrameQueue::default();
        queue.frames().extend_from_slice(&[1; 30]);
        queue.push_data(HEAD, vec![0; COPIED_BYTES].into());
        let begin = queue.end_position();
        queue.frames().extend_from_slice(&[2; 30]);
        queue.advance(begin as usize);
        assert_eq!(queue.taken(), begin);
        queue.clear();
        assert_eq!((queue.taken(), queue.end_position()), (begin, begin));
        queue.frames().push(3);
        queue.advance(1);
        assert_eq!(queue.taken(), begin + 1);
    }

    /// Small data goes behind short frames, too: with each piece that is taken, the rest of them is
    /// moved.
    #[test]
    fn small_data_makes_no_long_frames() {
        let mut queue = FrameQueue::new(b"first".to_vec());
        for _ in 0..64 {
            queue.push_data(HEAD, vec![0; COPIED_BYTES - 1].into());
            queue.advance(1);
            let newest = queue.tail.len();
            assert!(newest < TAIL_BYTES + FRAME_HEAD_BYTES + COPIED_BYTES, "{newest}");
        }
    }

    /// A peer that reads nothing does not stop the reader of its frames.
    #[test]
    fn short_frames_are_never_full() {
        let mut queue = FrameQueue::default();
        for _ in 0..64 {
            let frames = queue.short_frames();
            assert!(frames.len() < TAIL_BYTES);
            frames.extend_from_slice(&[0; TAIL_BYTES]);
        }
        assert_eq!(queue.len(), 64 * TAIL_BYTES);
    }
}

//! Bytes that wait to be written, in pieces: a message's head, and what comes behind it.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};
use zeroize::{Zeroize, Zeroizing};

use super::spare_heads::{give_back, recycle};

/// Pieces that wait to be written. Large ones are shared with their source. Small ones are copied
/// together: a peer that sends single bytes must not cost us a hundred for each.
#[derive(Debug, Default)]
pub struct WriteQueue {
    /// A head, and small pieces right behind it.
    head: BytesMut,
    /// The next piece, without a list for it: most messages have one.
    first: Piece,
    /// Pieces behind it. Boxed: few messages have it, and all pay for the size.
    behind: Option<Box<Behind>>,
    bytes: usize,
    /// Memory of the pieces, but for the head and small ones.
    pieces_held: usize,
}

/// Pieces behind the first one.
#[derive(Debug, Default)]
struct Behind {
    /// Pieces. None if there is no first one.
    more: VecDeque<Piece>,
    /// Small pieces behind them.
    small: BytesMut,
}

/// Bytes that nothing is appended to.
#[derive(Debug, Default)]
struct Piece {
    bytes: Bytes,
    /// Bytes of memory. What was taken off the front stays with the rest.
    held: usize,
}

/// Makes a piece of a coder's output. The coder has reserved room for more, which would wait with
/// it.
pub fn coded_piece(mut out: Vec<u8>) -> Bytes {
    // A small one is copied.
    if out.len() >= SMALL_BYTES {
        out.shrink_to_fit();
    }
    out.into()
}

/// A piece with fewer bytes is a small one.
const SMALL_BYTES: usize = 1 << 10;
/// Size of the buffers that they are copied to. A buffer that grew would hold up to twice its
/// content.
const GATHERED_BYTES: usize = 8 << 10;

impl WriteQueue {
    /// Adds a piece.
    pub fn push(&mut self, piece: impl Into<Bytes>) {
        let piece = piece.into();
        self.bytes += piece.len();
        if piece.len() >= SMALL_BYTES {
            self.gather();
            let held = piece.len();
            return self.push_piece(piece, held);
        }
        let small = self.small().len();
        if !self.first.bytes.is_empty() || small > 0 {
            if small + piece.len() > GATHERED_BYTES {
                self.gather();
            }
            self.behind.get_or_insert_default().small.extend_from_slice(&piece);
        } else if self.head.is_empty() || self.head.len() + piece.len() > GATHERED_BYTES {
            self.push_piece(Bytes::copy_from_slice(&piece), piece.len());
        } else {
            self.head.extend_from_slice(&piece);
        }
        recycle(piece);
    }

    /// Adds a head. It is not copied if the queue is empty.
    pub fn push_head(&mut self, head: BytesMut) {
        if self.is_empty() {
            self.bytes = head.len();
            self.head = head;
        } else {
            self.push(head);
        }
    }

    /// Has the memory of a head wiped when it is written or dropped. Nothing is behind it yet.
    pub fn wipe_head(&mut self) {
        let mut head = std::mem::take(&mut self.head);
        if head.is_empty() {
            return;
        }
        let wiped = Bytes::from_owner(Zeroizing::new(head.to_vec()));
        head.as_mut().zeroize();
        let held = wiped.len();
        self.push_piece(wiped, held);
    }

    fn push_piece(&mut self, bytes: Bytes, held: usize) {
        self.pieces_held += held;
        let piece = Piece { bytes, held };
        if self.first.bytes.is_empty() {
            self.first = piece;
        } else {
            self.behind.get_or_insert_default().more.push_back(piece);
        }
    }

    /// Takes the whole of the first piece.
    fn pop_piece(&mut self) -> Bytes {
        let next = self.behind.as_mut().and_then(|behind| behind.more.pop_front());
        let next = next.unwrap_or_default();
        let Piece { bytes, held } = std::mem::replace(&mut self.first, next);
        self.pieces_held -= held;
        bytes
    }

    /// Makes one piece of the small ones.
    fn gather(&mut self) {
        if let Some(behind) = &mut self.behind
            && !behind.small.is_empty()
        {
            let small = std::mem::take(&mut behind.small);
            let held = small.capacity();
            self.push_piece(small.freeze(), held);
        }
    }

    /// The small pieces behind all others.
    fn small(&self) -> &[u8] {
        self.behind.as_ref().map_or(&[], |behind| &behind.small)
    }

    /// Takes a piece of at most `bytes_max` bytes off the front.
    pub fn take(&mut self, bytes_max: usize) -> Option<Bytes> {
        if !self.head.is_empty() {
            let head = self.head.split_to(self.head.len().min(bytes_max)).freeze();
            self.bytes -= head.len();
            return Some(head);
        }
        if self.first.bytes.is_empty() {
            self.gather();
        }
        if self.first.bytes.is_empty() {
            return None;
        }
        let piece = match self.first.bytes.len() <= bytes_max {
            true => self.pop_piece(),
            false => self.first.bytes.split_to(bytes_max),
        };
        self.bytes -= piece.len();
        Some(piece)
    }

    /// The number of bytes in it.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Bytes of memory.
    pub fn held(&self) -> usize {
        let small = self.behind.as_ref().map_or(0, |behind| behind.small.capacity());
        self.head.capacity() + self.pieces_held + small
    }

    /// True if it is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// All of it, if it is in one piece at its front, as most messages are.
    pub fn only(&self) -> Option<&[u8]> {
        (self.head.len() == self.bytes).then_some(&self.head)
    }

    /// Copies bytes from the front to `room`. Returns how many.
    pub fn fill(&mut self, room: &mut [u8]) -> usize {
        let mut filled = 0;
        if let Some(only) = self.only() {
            filled = only.len().min(room.len());
            room[..filled].copy_from_slice(&only[..filled]);
            self.advance(filled);
            return filled;
        }
        for part in self.parts() {
            let len = part.len().min(room.len() - filled);
            room[filled..filled + len].copy_from_slice(&part[..len]);
            filled += len;
            if filled == room.len() {
                break;
            }
        }
        self.advance(filled);
        filled
    }

    /// Returns its parts, in their order.
    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let more = self.behind.iter().flat_map(|behind| &behind.more);
        let pieces = more.map(|piece| &piece.bytes[..]);
        let parts = [&self.head[..], &self.first.bytes].into_iter().chain(pieces);
        parts.chain([self.small()]).filter(|part| !part.is_empty())
    }

    /// The pieces as a vectored write takes them.
    pub fn slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slice, piece) in into.iter_mut().zip(self.parts()) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    /// Drops bytes that were written.
    pub fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        let of_head = written.min(self.head.len());
        written -= of_head;
        if of_head < self.head.len() {
            self.head.advance(of_head);
        } else if of_head > 0 {
            give_back(std::mem::take(&mut self.head));
        }
        while !self.first.bytes.is_empty() {
            if written < self.first.bytes.len() {
                return self.first.bytes.advance(written);
            }
            written -= self.pop_piece().len();
        }
        if let Some(behind) = &mut self.behind {
            behind.small.advance(written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However they are pushed and taken, bytes keep their order.
    #[test]
    fn bytes_keep_their_order() {
        let sizes = [1, 2_000, 3, 0, 700, 1_500, 8_000, 9_000, 5, 1_023, 1_024, 600, 8_192];
        for step in [1, 7, 100, 1_000, 5_000, 100_000] {
            for with_head in [false, true] {
                let (mut queue, mut wanted, mut taken) =
                    (WriteQueue::default(), Vec::new(), Vec::new());
                let mut byte = 0_u8;
                let mut piece = |len: usize| {
                    let piece: Vec<u8> = (0..len).map(|at| byte.wrapping_add(at as u8)).collect();
                    byte = byte.wrapping_add(31);
                    wanted.extend_from_slice(&piece);
                    piece
                };
                if with_head {
                    queue.push_head(BytesMut::from(&piece(300)[..]));
                }
                for (at, size) in sizes.iter().cycle().take(60).enumerate() {
                    queue.push(piece(*size));
                    match at % 3 {
                        0 => taken.extend_from_slice(&queue.take(step).unwrap_or_default()),
                        1 => {
                            let mut room = vec![0; step];
                            let len = queue.fill(&mut room);
                            taken.extend_from_slice(&room[..len]);
                        }
                        _ => {
                            let mut slices = [IoSlice::new(&[]); 3];
                            let count = queue.slices(&mut slices);
                            let parts = slices[..count].iter();
                            let bytes: Vec<u8> = parts.flat_map(|part| part.to_vec()).collect();
                            let len = bytes.len().min(step);
                            taken.extend_from_slice(&bytes[..len]);
                            queue.advance(len);
                        }
                    }
                    assert!(queue.held() >= queue.len());
                }
                while let Some(piece) = queue.take(step) {
                    assert!(piece.len() <= step && !piece.is_empty());
                    taken.extend_from_slice(&piece);
                }
                assert_eq!(taken, wanted, "by {step}");
                assert!(queue.is_empty());
                assert_eq!(queue.pieces_held, 0);
            }
        }
    }

    #[test]
    fn a_piece_is_held_until_its_last_byte_is_taken() {
        let mut queue = WriteQueue::default();
        queue.push(vec![1; 60_000]);
        queue.push(vec![2; 20_000]);
        for way in 0..3 {
            let taken = match way {
                0 => queue.take(9_000).map_or(0, |part| part.len()),
                1 => queue.fill(&mut [0; 9_000]),
                _ => {
                    queue.advance(9_000);
                    9_000
                }
            };
            assert_eq!((taken, queue.held()), (9_000, 80_000), "{way}");
        }
        queue.advance(60_000 - 3 * 9_000);
        assert_eq!(queue.held(), 20_000);
        queue.advance(20_000);
        assert_eq!(queue.held(), 0);
    }

    #[test]
    fn a_coded_piece_has_no_spare_memory() {
        for (len, bound) in [(3_000, 3_000), (16 << 10, 16 << 10)] {
            let mut out = Vec::with_capacity(32 << 10);
            out.resize(len, b'x');
            let memory = Vec::from(coded_piece(out)).capacity();
            assert!((len..=bound).contains(&memory), "{memory}");
        }
    }
}

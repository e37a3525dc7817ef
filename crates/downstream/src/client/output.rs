//! The bytes of an HTTP/2 connection on their way to its client, in the order in which they are
//! sent.

use bytes::{Buf, Bytes};
use eyelet_h2::{FRAME_HEAD_BYTES, OUTPUT_BYTES_MAX};

/// A buffer with more memory is freed as soon as it is empty.
const KEPT_BYTES: usize = 4 << 10;
/// Bytes of output that no stream waits for: as many as the buffer keeps. The socket's buffer holds
/// many times as many for a client that reads nothing.
const SMALL_BYTES: usize = KEPT_BYTES;

/// Frames that are written, and the frame of data before them whose payload is shared.
pub struct SealedOutput {
    /// Whole frames, which come behind the data.
    pub frames: Vec<u8>,
    /// A frame of data: what is left of its header, and of its payload.
    head: [u8; FRAME_HEAD_BYTES],
    head_left: usize,
    data: Bytes,
    /// How many bytes were taken since the connection began.
    pub sealed: u64,
}

impl SealedOutput {
    /// Begins with these frames.
    pub fn new(frames: Vec<u8>) -> Self {
        let head = [0; FRAME_HEAD_BYTES];
        Self { frames, head, head_left: 0, data: Bytes::new(), sealed: 0 }
    }

    fn len(&self) -> usize {
        self.head_left + self.data.len() + self.frames.len()
    }

    /// Whether nothing is left to take.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether more may be written without waiting for the client.
    pub fn has_room(&self) -> bool {
        self.len() < OUTPUT_BYTES_MAX
    }

    /// The position behind all that was written.
    pub fn position(&self) -> u64 {
        self.sealed + self.len() as u64
    }

    /// The position up to which streams count their bytes as sent: behind what is sealed, or behind
    /// all if that is little. Otherwise each small response would have its task run once more.
    pub fn sent(&self) -> u64 {
        if self.len() <= SMALL_BYTES { self.position() } else { self.sealed }
    }

    /// Whether so many bytes more would be little.
    pub fn stays_small(&self, bytes: usize) -> bool {
        self.len() + bytes <= SMALL_BYTES
    }

    /// Memory of the frames, and the data before them.
    pub fn held(&self) -> usize {
        self.frames.capacity() + self.data.len()
    }

    /// Adds a frame of data. It is copied only if other bytes come first.
    pub fn put_data(&mut self, head: [u8; FRAME_HEAD_BYTES], data: Bytes) {
        if self.is_empty() {
            (self.head, self.head_left, self.data) = (head, FRAME_HEAD_BYTES, data);
        } else {
            self.frames.extend_from_slice(&head);
            self.frames.extend_from_slice(&data);
        }
    }

    /// Moves bytes into `room`. Returns how many.
    pub fn take(&mut self, room: &mut [u8]) -> usize {
        let head_at = FRAME_HEAD_BYTES - self.head_left;
        let head = copy(self.head.get(head_at..).unwrap_or_default(), room);
        self.head_left -= head;
        let data = copy(&self.data, room.get_mut(head..).unwrap_or_default());
        self.data.advance(data);
        if self.data.is_empty() {
            // Otherwise an empty slice would keep the buffer.
            self.data = Bytes::new();
        }
        let frames = copy(&self.frames, room.get_mut(head + data..).unwrap_or_default());
        if frames == self.frames.len() {
            self.frames.clear();
            if self.frames.capacity() > KEPT_BYTES {
                self.frames = Vec::new();
            }
        } else {
            self.frames.drain(..frames);
        }
        let taken = head + data + frames;
        self.sealed += taken as u64;
        taken
    }
}

fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let len = from.len().min(to.len());
    if let (Some(to), Some(from)) = (to.get_mut(..len), from.get(..len)) {
        to.copy_from_slice(from);
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However small the records are, the bytes come out in the order of the calls.
    #[test]
    fn bytes_keep_their_order() {
        for size in 1..40 {
            let mut output = SealedOutput::new(b"first".to_vec());
            let mut taken = Vec::new();
            let mut room = vec![0; size];
            let mut take = |output: &mut SealedOutput, taken: &mut Vec<u8>| {
                let len = output.take(&mut room);
                taken.extend_from_slice(&room[..len]);
            };
            output.put_data(*b"aaaaaaaaa", Bytes::from_static(b"copied"));
            while !output.is_empty() {
                take(&mut output, &mut taken);
            }
            output.put_data(*b"bbbbbbbbb", Bytes::from_static(b"shared"));
            take(&mut output, &mut taken);
            output.frames.extend_from_slice(b"last");
            assert_eq!(output.position(), 5 + 15 + 15 + 4);
            while !output.is_empty() {
                take(&mut output, &mut taken);
            }
            assert_eq!(taken, b"firstaaaaaaaaacopiedbbbbbbbbbsharedlast", "{size}");
            assert_eq!(output.sealed, taken.len() as u64);
        }
    }
}

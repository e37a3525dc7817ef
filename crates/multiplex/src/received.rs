//! Data of a message that has arrived and was not taken.

use std::collections::VecDeque;

use bytes::Bytes;

/// Data of fewer bytes is copied behind the data before it, so that small frames take no more
/// memory than their bytes.
const SMALL_BYTES: usize = 1 << 10;
/// Most bytes that data is copied behind: each part is taken as a whole.
const PART_BYTES: usize = 16 << 10;

/// Data in the order in which it came.
#[derive(Default)]
pub struct ReceivedData {
    parts: VecDeque<Vec<u8>>,
    /// Bytes of the parts: a slow client may leave thousands of them.
    len: usize,
    /// Bytes of memory of the parts.
    memory: usize,
}

impl ReceivedData {
    /// Adds data.
    pub fn push(&mut self, data: &[u8]) {
        self.len += data.len();
        match self.parts.back_mut() {
            _ if data.is_empty() => {}
            Some(last) if is_joined(last, data) => {
                self.memory -= last.capacity();
                last.extend_from_slice(data);
                self.memory += last.capacity();
            }
            _ => {
                let part = data.to_vec();
                self.memory += part.capacity();
                self.parts.push_back(part);
            }
        }
    }

    /// Takes the first part, without spare memory.
    pub fn take(&mut self) -> Option<Bytes> {
        let mut part = self.parts.pop_front()?;
        self.memory -= part.capacity();
        self.len -= part.len();
        if self.parts.is_empty() {
            self.parts = VecDeque::new();
        }
        part.shrink_to_fit();
        Some(part.into())
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        self.memory
    }
}

/// True if data goes behind the data before it.
fn is_joined(last: &[u8], data: &[u8]) -> bool {
    let is_small = data.len() < SMALL_BYTES || last.len() < SMALL_BYTES;
    is_small && last.len() + data.len() <= PART_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of any size take about the memory of their bytes, and come out in order.
    #[test]
    fn frames_keep_their_order_and_little_memory() {
        for frame in [1, 10, 100, 1000, 1 << 14] {
            let mut data = ReceivedData::default();
            let all: Vec<u8> = (0..48_000 / frame * frame).map(|n| (n % 251) as u8).collect();
            all.chunks(frame).for_each(|frame| data.push(frame));
            data.push(&[]);
            assert_eq!(data.len(), all.len());
            assert!((all.len()..3 * all.len()).contains(&data.memory()), "{}", data.memory());
            let mut taken = Vec::new();
            while let Some(part) = data.take() {
                assert!(!part.is_empty() && part.len() <= PART_BYTES);
                taken.extend_from_slice(&part);
            }
            assert!(taken == all, "frames of {frame}");
            assert_eq!((data.len(), data.memory()), (0, 0));
        }
    }
}

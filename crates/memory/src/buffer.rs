//! Memory that a buffer of received bytes holds: more than its bytes, because what was taken off
//! its front stays until it is freed.

use bytes::BytesMut;

/// A buffer with more memory than this for few bytes frees it. A small message's buffer does not.
const MUCH_BYTES: usize = 8 << 10;
/// The ratio of that memory to its bytes.
const MANY_TIMES: usize = 4;

/// Bytes of memory that a buffer of received bytes holds. It held `before` at the last call; since
/// then bytes were added, or taken off the front. Its capacity does not tell: the memory before its
/// front stays until the buffer is freed. If few bytes are left in much memory, they move to a
/// buffer of their own.
pub fn held_by(buffer: &mut BytesMut, before: usize) -> usize {
    if buffer.is_empty() {
        *buffer = BytesMut::new();
        return 0;
    }
    let held = before.max(buffer.capacity());
    if held <= MUCH_BYTES || buffer.len().saturating_mul(MANY_TIMES) >= held {
        return held;
    }
    *buffer = BytesMut::from(&buffer[..]);
    buffer.capacity()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a body or a head was taken, the rest does not keep its memory.
    #[test]
    fn the_rest_of_a_buffer_counts_all_its_memory() {
        for (len, taken, least, most) in [
            (64 << 10, (64 << 10) - 1, 1, 64),
            (61 << 10, 60 << 10, 1 << 10, 2 << 10),
            // Copying it would cost more than the memory is worth.
            (64 << 10, 32 << 10, 64 << 10, 64 << 10),
            (2 << 10, (2 << 10) - 1, 2 << 10, 2 << 10),
            (64 << 10, 64 << 10, 0, 0),
        ] {
            let mut buffer = BytesMut::from(&vec![7; len][..]);
            let before = held_by(&mut buffer, 0);
            assert_eq!(before, len);
            let piece = buffer.split_to(taken);
            let held = held_by(&mut buffer, before);
            assert!((least..=most).contains(&held), "{held} behind {taken} of {len}");
            assert_eq!((piece.len(), buffer.len()), (taken, len - taken));
            assert!(buffer.capacity() <= held, "{} of {held}", buffer.capacity());
        }
    }
}

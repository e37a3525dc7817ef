//! Buffers for heads that are written, which a worker keeps for its next messages.

use std::cell::RefCell;

use bytes::BytesMut;

/// Bytes that most heads take, with a small body after them.
pub const HEAD_BYTES: usize = 512;
/// Bytes of the largest buffer that is kept.
const SPARE_BYTES_MAX: usize = 2 * HEAD_BYTES;
/// Buffers that are kept: those of the heads that one turn of a busy worker writes. They take at
/// most 32 KiB.
const SPARE_MAX: usize = 32;

thread_local! {
    static SPARE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer for a head. Its memory is that of an earlier one, if there is one.
pub fn spare_head() -> BytesMut {
    let spare = SPARE.with_borrow_mut(Vec::pop);
    spare.unwrap_or_else(|| BytesMut::with_capacity(HEAD_BYTES))
}

/// Keeps the memory of a head that was written. It saves an allocation for each message.
pub(super) fn give_back(mut head: BytesMut) {
    head.clear();
    // Its memory before the bytes that were written comes back.
    if !head.try_reclaim(HEAD_BYTES) || head.capacity() > SPARE_BYTES_MAX {
        return;
    }
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < SPARE_MAX {
            spare.push(head);
        }
    });
}

#[cfg(test)]
mod tests {
    use bytes::Buf;

    use super::*;

    #[test]
    fn a_written_heads_memory_is_used_again() {
        let mut head = spare_head();
        head.extend_from_slice(&[7; 300]);
        let place = head.as_ptr();
        head.advance(300);
        give_back(head);
        let again = spare_head();
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        assert!(again.capacity() >= HEAD_BYTES);
    }

    #[test]
    fn little_memory_is_kept() {
        give_back(BytesMut::with_capacity(SPARE_BYTES_MAX + 1));
        give_back(BytesMut::with_capacity(HEAD_BYTES - 1));
        assert!(SPARE.with_borrow(Vec::is_empty));
        (0..2 * SPARE_MAX).for_each(|_| give_back(BytesMut::with_capacity(HEAD_BYTES)));
        assert_eq!(SPARE.with_borrow(Vec::len), SPARE_MAX);
    }
}

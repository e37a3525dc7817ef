//! Buffers of heads that were read or written, which a worker keeps for its next messages: once
//! they are there, a small message needs no memory of its own.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};
use eyelet_memory::spares::Spares;

/// Bytes that most heads take, with a small body after them.
pub const HEAD_BYTES: usize = 512;
/// Bytes of the largest buffer that is kept.
const SPARE_BYTES_MAX: usize = 2 * HEAD_BYTES;
/// Buffers that are kept: those of forty exchanges of one turn, each with a request, a response
/// and its head. They take at most 128 KiB, until no message has needed them for a tick.
const SPARE_MAX: usize = 128;

thread_local! {
    static SPARE: RefCell<Spares<BytesMut>> = const { RefCell::new(Spares::new()) };
}

/// An empty buffer for a head. Its memory is that of an earlier one, if there is one.
pub fn spare_head() -> BytesMut {
    SPARE.with_borrow_mut(Spares::pop).unwrap_or_else(|| {
        let mut head = BytesMut::with_capacity(HEAD_BYTES);
        // Its memory has a count from now on. One that is made where it is frozen is an allocation
        // each time.
        drop(head.split_off(HEAD_BYTES));
        head
    })
}

/// Appends what was read. The first of it has the memory of an earlier head, if there is one.
pub fn append(into: &mut BytesMut, read: &[u8]) {
    if into.capacity() == 0
        && (1..=SPARE_BYTES_MAX).contains(&read.len())
        && let Some(spare) = SPARE.with_borrow_mut(Spares::pop)
    {
        *into = spare;
    }
    into.extend_from_slice(read);
}

/// Keeps the memory of what was read and passed on, if nothing else needs it.
pub(super) fn recycle(read: Bytes) {
    if let Ok(memory) = read.try_into_mut() {
        give_back(memory);
    }
}

/// Frees the buffers that no message has needed since the last call. Returns the most bytes that
/// the others take.
pub(super) fn forget_unused() -> usize {
    SPARE.with_borrow_mut(|spare| {
        drop(spare.take_unused());
        spare.count() * SPARE_BYTES_MAX
    })
}

/// Keeps the memory of a head that was written. It saves an allocation for each message.
pub(super) fn give_back(mut head: BytesMut) {
    head.clear();
    // Asked for a byte more than is left of its memory, what is before the bytes that were written
    // comes back: the capacity is then that of all its memory.
    let wanted = head.capacity() + 1;
    let is_kept = match head.try_reclaim(wanted) && head.capacity() == wanted {
        false => (HEAD_BYTES..=SPARE_BYTES_MAX).contains(&head.capacity()),
        // It may be a part of a large memory.
        true => !head.try_reclaim(SPARE_BYTES_MAX + 1) && head.try_reclaim(HEAD_BYTES),
    };
    if !is_kept {
        return;
    }
    SPARE.with_borrow_mut(|spare| {
        if spare.count() < SPARE_MAX {
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
        let mut large = BytesMut::zeroed(64 << 10);
        large.advance((64 << 10) - HEAD_BYTES);
        give_back(large);
        assert_eq!(SPARE.with_borrow(Spares::count), 0);
        (0..2 * SPARE_MAX).for_each(|_| give_back(BytesMut::with_capacity(HEAD_BYTES)));
        assert_eq!(SPARE.with_borrow(Spares::count), SPARE_MAX);
        assert_eq!(forget_unused(), SPARE_MAX * SPARE_BYTES_MAX, "they came since the last tick");
        assert_eq!(forget_unused(), 0);
    }

    #[test]
    fn what_was_read_leaves_its_memory() {
        give_back(spare_head());
        let mut received = BytesMut::new();
        append(&mut received, b"a head and a body");
        let place = received.as_ptr();
        let head = received.split_to(6).freeze();
        let body = received.freeze();
        recycle(body.clone());
        recycle(body);
        assert_eq!(SPARE.with_borrow(Spares::count), 0, "the head needs it");
        recycle(head);
        let again = spare_head();
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
    }

    #[test]
    fn large_reads_have_memory_of_their_own() {
        give_back(spare_head());
        let mut received = BytesMut::new();
        append(&mut received, b"");
        assert_eq!((SPARE.with_borrow(Spares::count), received.capacity()), (1, 0));
        append(&mut received, &[7; SPARE_BYTES_MAX + 1]);
        assert_eq!((SPARE.with_borrow(Spares::count), received.len()), (1, SPARE_BYTES_MAX + 1));
    }
}

//! An allocator for small values that live long, in pages of their own. In the common heap each of
//! them lies where a burst had its buffers, and keeps a page of those: 3 KiB for a value of 100
//! bytes.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::any::Any;
use std::ptr::{NonNull, slice_from_raw_parts_mut, with_exposed_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use allocator_api2::alloc::{AllocError, Allocator, Global};

/// A box in pages for what lives long. A value of more than [`BLOCK_BYTES_MAX`] bytes is in the
/// common heap: it fills pages of its own there.
pub type LongBox<T> = allocator_api2::boxed::Box<T, LongLived>;

/// A vector in such pages.
pub type LongVec<T> = allocator_api2::vec::Vec<T, LongLived>;

/// Keeps a value of any type in such pages.
pub fn long_any<T: Any>(value: T) -> LongBox<dyn Any> {
    let (value, pages) = LongBox::into_raw_with_allocator(LongBox::new_in(value, LongLived));
    // SAFETY: the value was in a box of this allocator, and nobody else has it. The pointer stays
    // where it is, and gets the type's table.
    unsafe { LongBox::from_raw_in(value as *mut dyn Any, pages) }
}

/// Allocates in pages for what lives long.
#[derive(Clone, Copy, Debug, Default)]
pub struct LongLived;

/// Bytes of a chunk, which has blocks of one size, and begins at a multiple of this. The common
/// heap maps it separately ([`crate::memory`]), and its pages are touched as blocks are used.
const CHUNK_BYTES: usize = 128 << 10;
/// Bytes of the largest block.
pub const BLOCK_BYTES_MAX: usize = 2048;
/// Bytes of the smallest block: a free one has the address of the next.
const BLOCK_BYTES_MIN: usize = 16;
/// Alignment of all blocks, and of what is allocated here.
const ALIGN: usize = 16;
/// Sizes from one power of two to the next: a block is at most a quarter larger than its value.
const STEPS: usize = 4;
/// Sizes: each 16 bytes up to 64, and then by steps.
const SIZES: usize = STEPS + (BLOCK_BYTES_MAX / (STEPS * ALIGN)).ilog2() as usize * STEPS;
/// Bytes at the beginning of a chunk, which are no blocks.
const HEAD_BYTES: usize = 64;

/// The beginning of a chunk.
struct Chunk {
    /// The chunk before and the one behind in the list of those with room, or 0.
    before: usize,
    behind: usize,
    /// The first free block that was used before, or 0.
    free: usize,
    /// The place at which the blocks begin that were never used.
    unused: usize,
    used: usize,
    block_bytes: usize,
}

const _: () = assert!(size_of::<Chunk>() <= HEAD_BYTES && HEAD_BYTES.is_multiple_of(ALIGN));

/// For each size the first chunk with room, or 0. All chunks are behind this lock.
static WITH_ROOM: Mutex<[usize; SIZES]> = Mutex::new([0; SIZES]);

/// See [`unused_bytes`].
static UNUSED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes of blocks that were used before, and are free: the process holds them beside its values.
pub fn unused_bytes() -> usize {
    UNUSED_BYTES.load(Relaxed)
}

/// Finds the size for so many bytes: its index, and the bytes of its blocks.
const fn size_of_block(bytes: usize) -> (usize, usize) {
    let units = if bytes <= BLOCK_BYTES_MIN { 1 } else { bytes.div_ceil(ALIGN) };
    if units <= STEPS {
        return (units - 1, units * ALIGN);
    }
    // The power of two below `units`, and how many of its quarters are above it.
    let power = (units - 1).ilog2() as usize;
    let quarter = (1 << power) / STEPS;
    let step = (units - (1 << power)).div_ceil(quarter);
    ((power - 1) * STEPS + step - 1, ((1 << power) + step * quarter) * ALIGN)
}

/// The chunk at this address, or of a block in it.
fn chunk_at(address: usize) -> *mut Chunk {
    with_exposed_provenance_mut(address & !(CHUNK_BYTES - 1))
}

fn chunk_layout() -> Option<Layout> {
    Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES).ok()
}

/// Maps a chunk for blocks of a size, and puts it before the list.
///
/// # Safety
/// `first` is 0 or the address of a chunk, and nobody else reads or writes chunks meanwhile.
unsafe fn add_chunk(first: &mut usize, block_bytes: usize) -> Option<()> {
    let layout = chunk_layout()?;
    // SAFETY: the layout has a size. The chunk's head fits, and is written before it is read.
    unsafe {
        let chunk = alloc(layout).cast::<Chunk>();
        if chunk.is_null() {
            return None;
        }
        let address = chunk.expose_provenance();
        let unused = address + HEAD_BYTES;
        chunk.write(Chunk { before: 0, behind: *first, free: 0, unused, used: 0, block_bytes });
        if *first != 0 {
            (*chunk_at(*first)).before = address;
        }
        *first = address;
    }
    Some(())
}

/// Takes a block out of the first chunk with room.
///
/// # Safety
/// As for [`add_chunk`]; `first` is not 0, and its chunk has room.
unsafe fn take_block(first: &mut usize) -> usize {
    // SAFETY: the chunk is in the list, so it is one, and has a block that nobody uses. A free
    // block begins with the address of the next one.
    unsafe {
        let chunk = &mut *chunk_at(*first);
        let block = if chunk.free == 0 {
            chunk.unused += chunk.block_bytes;
            chunk.unused - chunk.block_bytes
        } else {
            let block = chunk.free;
            chunk.free = with_exposed_provenance_mut::<usize>(block).read();
            UNUSED_BYTES.fetch_sub(chunk.block_bytes, Relaxed);
            block
        };
        chunk.used += 1;
        if !has_room(chunk) {
            *first = chunk.behind;
            if chunk.behind != 0 {
                (*chunk_at(chunk.behind)).before = 0;
            }
            chunk.behind = 0;
        }
        block
    }
}

fn has_room(chunk: &Chunk) -> bool {
    let end = std::ptr::from_ref(chunk).addr() + CHUNK_BYTES;
    chunk.free != 0 || chunk.unused + chunk.block_bytes <= end
}

/// Puts a block back, and unmaps its chunk if that is empty and another has room.
///
/// # Safety
/// As for [`add_chunk`]; the block was taken from a chunk of this list's size, and is free now.
unsafe fn put_block(first: &mut usize, block: usize) {
    // SAFETY: the block is in a chunk, and nobody uses it, so its first bytes are free. A chunk
    // without a used block is in no list after this, and nobody knows it.
    unsafe {
        let address = chunk_at(block).addr();
        let chunk = &mut *chunk_at(block);
        let was_full = !has_room(chunk);
        with_exposed_provenance_mut::<usize>(block).write(chunk.free);
        chunk.free = block;
        chunk.used -= 1;
        UNUSED_BYTES.fetch_add(chunk.block_bytes, Relaxed);
        if was_full {
            (chunk.before, chunk.behind) = (0, *first);
            if *first != 0 {
                (*chunk_at(*first)).before = address;
            }
            *first = address;
        }
        let (before, behind) = (chunk.before, chunk.behind);
        if chunk.used > 0 || before == 0 && behind == 0 {
            return;
        }
        match before {
            0 => *first = behind,
            before => (*chunk_at(before)).behind = behind,
        }
        if behind != 0 {
            (*chunk_at(behind)).before = before;
        }
        UNUSED_BYTES.fetch_sub(chunk.unused - address - HEAD_BYTES, Relaxed);
        if let Some(layout) = chunk_layout() {
            dealloc(with_exposed_provenance_mut(address), layout);
        }
    }
}

fn is_small(layout: Layout) -> bool {
    layout.size() <= BLOCK_BYTES_MAX && layout.align() <= ALIGN
}

// SAFETY: a block stays where it is, and belongs to nobody else, until it is deallocated. Copies of
// the allocator are alike. Which of the two heaps has a block depends on its layout alone.
unsafe impl Allocator for LongLived {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 || !is_small(layout) {
            return Global.allocate(layout);
        }
        let (size, block_bytes) = size_of_block(layout.size());
        let mut lists = WITH_ROOM.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let first = lists.get_mut(size).ok_or(AllocError)?;
        // SAFETY: the lock is held, and all in the list are chunks with room.
        let block = unsafe {
            if *first == 0 && add_chunk(first, block_bytes).is_none() {
                drop(lists);
                handle_alloc_error(layout)
            }
            take_block(first)
        };
        let block = slice_from_raw_parts_mut(with_exposed_provenance_mut(block), layout.size());
        NonNull::new(block).ok_or(AllocError)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if layout.size() == 0 || !is_small(layout) {
            // SAFETY: it was allocated there.
            return unsafe { Global.deallocate(block, layout) };
        }
        let (size, _) = size_of_block(layout.size());
        let mut lists = WITH_ROOM.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(first) = lists.get_mut(size) {
            // SAFETY: the lock is held. The caller gives up a block that was taken for this layout.
            unsafe { put_block(first, block.as_ptr().expose_provenance()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn boxed(bytes: &[u8]) -> LongBox<[u8]> {
        let mut all = LongVec::with_capacity_in(bytes.len(), LongLived);
        all.extend_from_slice(bytes);
        all.into_boxed_slice()
    }

    #[test]
    fn sizes_grow_by_a_quarter_at_most_and_fit() {
        let mut last = (0, 0);
        for bytes in 1..=BLOCK_BYTES_MAX {
            let (size, block) = size_of_block(bytes);
            assert!(block >= bytes && block.is_multiple_of(ALIGN), "{bytes}: {block}");
            assert!(block <= (bytes + bytes / 4).next_multiple_of(ALIGN), "{bytes}: {block}");
            assert!(size == last.0 && block == last.1 || size == last.0 + 1 || last.1 == 0);
            assert!(size < SIZES && (size == last.0) == (block == last.1) || last.1 == 0);
            last = (size, block);
        }
        assert_eq!(last, (SIZES - 1, BLOCK_BYTES_MAX));
    }

    #[test]
    fn blocks_are_apart_and_are_used_again() {
        let (count, bytes_max) = if cfg!(miri) { (30, 300) } else { (4_000, 3_000) };
        let mut held = BTreeMap::new();
        let mut seed = 1_u64;
        for turn in 0..4 * count {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (key, len) = ((seed >> 33) as usize % count, (seed >> 20) as usize % bytes_max);
            let value = (turn % 251) as u8;
            held.insert(key, (value, boxed(&vec![value; len])));
        }
        for (value, bytes) in held.values() {
            assert!(bytes.iter().all(|byte| byte == value));
        }
    }

    #[test]
    fn a_value_of_any_type_is_dropped_once_and_found_again() {
        let shared = std::rc::Rc::new(7_u64);
        let (kept, dropped) = (long_any(shared.clone()), long_any(shared.clone()));
        assert!(kept.downcast_ref::<u64>().is_none());
        drop(dropped);
        assert_eq!(std::rc::Rc::strong_count(&shared), 2);
        let found = kept.downcast::<std::rc::Rc<u64>>().map(LongBox::into_inner);
        assert!(found.is_ok_and(|found| *found == 7));
        assert_eq!(std::rc::Rc::strong_count(&shared), 1);
    }

    /// Chunks of a size that no other test uses.
    #[test]
    fn a_chunk_without_values_is_unmapped() {
        #[repr(align(16))]
        struct Large(#[expect(dead_code)] [u8; BLOCK_BYTES_MAX]);
        let each = (CHUNK_BYTES - HEAD_BYTES) / BLOCK_BYTES_MAX;
        let new = || LongBox::new_in(Large([7; BLOCK_BYTES_MAX]), LongLived);
        let mut held: Vec<_> = (0..3 * each).map(|_| new()).collect();
        let chunks = |held: &[LongBox<Large>]| {
            let places = held.iter().map(|value| std::ptr::from_ref(&**value).addr() / CHUNK_BYTES);
            places.collect::<std::collections::BTreeSet<_>>().len()
        };
        let before = chunks(&held);
        assert!(before >= 3, "{before}");
        held.truncate(each / 2);
        held.extend((0..each).map(|_| new()));
        assert!(chunks(&held) < before);
    }
}

//! Memory of brotli's encoders, kept for reuse. Their tables are megabytes: getting them from the
//! system, page by page, takes several times as long as coding a short body.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;

use brotli::enc::{Allocator, CombiningAllocator, SliceWrapper, SliceWrapperMut, StandardAlloc};

/// The large blocks of finished encoders, for the next one. Clones share them.
#[derive(Clone, Default)]
pub struct BrMemory {
    bytes: Blocks<u8>,
    cells: Blocks<u32>,
}

impl BrMemory {
    /// Bytes of memory kept for reuse.
    pub fn bytes(&self) -> usize {
        self.bytes.resting() + self.cells.resting()
    }

    pub(super) fn allocator(&self) -> Alloc {
        // The library needs an allocator for each type; only two types are large.
        let other = StandardAlloc::default();
        CombiningAllocator::new(
            self.bytes.clone(),
            other,
            other,
            self.cells.clone(),
            other,
            other,
            other,
            other,
            other,
            other,
            other,
            other,
            other,
            other,
            other,
            other,
            other,
            other,
        )
    }
}

/// Bytes: input and output. Cells: hash tables.
pub(super) type Alloc = CombiningAllocator<
    Blocks<u8>,
    StandardAlloc,
    StandardAlloc,
    Blocks<u32>,
    StandardAlloc,
    StandardAlloc,
    StandardAlloc,
    StandardAlloc,
    StandardAlloc,
    StandardAlloc,
    StandardAlloc,
    StandardAlloc,
    StandardAlloc,
    StandardAlloc,
    StandardAlloc,
    StandardAlloc,
    StandardAlloc,
    StandardAlloc,
>;

/// Free blocks of one type.
#[derive(Clone, Default)]
pub(super) struct Blocks<T> {
    resting: Rc<RefCell<Vec<Vec<T>>>>,
}

impl<T> Blocks<T> {
    fn resting(&self) -> usize {
        self.resting.borrow().iter().map(|block| size_of_val(&block[..])).sum()
    }
}

impl<T: Copy + Default> Allocator<T> for Blocks<T> {
    type AllocatedMemory = Block<T>;

    fn alloc_cell(&mut self, len: usize) -> Block<T> {
        let mut resting = self.resting.borrow_mut();
        let found = resting.iter().position(|block| block.len() == len);
        let items = match found.map(|at| resting.swap_remove(at)) {
            Some(mut items) => {
                items.fill(T::default());
                items
            }
            None => {
                // The free blocks are of another size, and too large to keep as well.
                if len * size_of::<T>() >= BLOCK_BYTES_MIN {
                    resting.clear();
                }
                vec![T::default(); len]
            }
        };
        Block { items, home: Some(self.resting.clone()) }
    }

    fn free_cell(&mut self, _: Block<T>) {}
}

/// A block in use. It returns to the free blocks when dropped.
pub(super) struct Block<T> {
    items: Vec<T>,
    home: Option<Rc<RefCell<Vec<Vec<T>>>>>,
}

impl<T> Default for Block<T> {
    fn default() -> Self {
        Self { items: Vec::new(), home: None }
    }
}

impl<T> SliceWrapper<T> for Block<T> {
    fn slice(&self) -> &[T] {
        &self.items
    }
}

impl<T> SliceWrapperMut<T> for Block<T> {
    fn slice_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}

impl<T> Drop for Block<T> {
    fn drop(&mut self) {
        let size = size_of_val(&self.items[..]);
        if let Some(home) = &self.home
            && size >= BLOCK_BYTES_MIN
        {
            let mut resting = home.borrow_mut();
            if resting.len() == BLOCKS_MAX {
                resting.remove(0);
            }
            resting.push(mem::take(&mut self.items));
        }
    }
}

/// Smaller blocks are left to the system's allocator.
const BLOCK_BYTES_MIN: usize = 64 << 10;
/// Blocks kept of each type: an encoder has one or two large ones.
const BLOCKS_MAX: usize = 2;

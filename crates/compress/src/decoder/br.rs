//! brotli (RFC 7932). The window is at most 16 MiB, and grows with the body.

use std::cell::Cell;
use std::rc::Rc;

use brotli::{
    Allocator, BrotliDecompressStream, BrotliResult, BrotliState, SliceWrapper, SliceWrapperMut,
};

use super::step::{DecodingFault, STEP_BYTES_MAX};

/// The state is used up to its end, and then no more.
pub(super) struct Unbr {
    state: BrotliState<Tally, Tally, Tally>,
    tally: Tally,
    is_done: bool,
}

impl Unbr {
    pub(super) fn new() -> Self {
        let tally = Tally::default();
        // Strict: no windows beyond RFC 7932.
        let state = BrotliState::new_strict(tally.clone(), tally.clone(), tally.clone());
        Self { state, tally, is_done: false }
    }

    /// With raw content (RFC 9842 section 4).
    pub(super) fn with_dictionary(dictionary: &[u8]) -> Option<Self> {
        let mut unbr = Self::new();
        let mut cells = unbr.tally.alloc_cell(dictionary.len());
        cells.items.copy_from_slice(dictionary);
        unbr.state.attach_dictionary(cells).then_some(unbr)
    }

    pub(super) fn step(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), DecodingFault> {
        if self.is_done {
            // Nothing may follow the stream.
            return if input.is_empty() { Ok(()) } else { Err(DecodingFault::Malformed) };
        }
        let mut room = [0; STEP_BYTES_MAX];
        let (mut left, mut taken) = (input.len(), 0);
        let (mut free, mut given) = (room.len(), 0);
        let result = BrotliDecompressStream(
            &mut left,
            &mut taken,
            input,
            &mut free,
            &mut given,
            &mut room,
            &mut 0,
            &mut self.state,
        );
        match result {
            BrotliResult::ResultFailure => return Err(DecodingFault::Malformed),
            BrotliResult::ResultSuccess => self.is_done = true,
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {}
        }
        *input = input.get(taken..).unwrap_or_default();
        out.extend_from_slice(room.get(..given).unwrap_or_default());
        Ok(())
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    pub(super) fn bytes(&self) -> usize {
        self.tally.0.get() + size_of::<Self>()
    }
}

/// The system's memory, counted.
#[derive(Clone, Default)]
struct Tally(Rc<Cell<usize>>);

impl<T: Clone + Default> Allocator<T> for Tally {
    type AllocatedMemory = Cells<T>;

    fn alloc_cell(&mut self, len: usize) -> Cells<T> {
        self.0.update(|bytes| bytes + len * size_of::<T>());
        Cells { items: vec![T::default(); len], tally: self.clone() }
    }

    fn free_cell(&mut self, _: Cells<T>) {}
}

/// Memory that is no longer counted when it is dropped.
struct Cells<T> {
    items: Vec<T>,
    tally: Tally,
}

impl<T> Default for Cells<T> {
    fn default() -> Self {
        Self { items: Vec::new(), tally: Tally::default() }
    }
}

impl<T> SliceWrapper<T> for Cells<T> {
    fn slice(&self) -> &[T] {
        &self.items
    }
}

impl<T> SliceWrapperMut<T> for Cells<T> {
    fn slice_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}

impl<T> Drop for Cells<T> {
    fn drop(&mut self) {
        self.tally.0.update(|bytes| bytes - self.items.len() * size_of::<T>());
    }
}

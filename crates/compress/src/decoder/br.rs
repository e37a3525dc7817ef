//! brotli (RFC 7932). The window is at most 16 MiB, and grows with the body where there is room.

use std::cell::Cell;
use std::rc::Rc;

use brotli::{
    Allocator, BrotliDecompressStream, BrotliResult, BrotliState, SliceWrapper, SliceWrapperMut,
};

use super::step::{DecodingFault, STEP_BYTES_MAX};

/// A window of this size is always allocated. The library's context maps are smaller: 256 types of
/// 64 contexts (RFC 7932 section 7.3).
const ALWAYS_BYTES: usize = 64 << 10;

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

    /// A decoder with raw content (RFC 9842 section 4).
    pub(super) fn with_dictionary(dictionary: &[u8]) -> Option<Self> {
        let mut unbr = Self::new();
        let mut cells = unbr.tally.alloc_cell(dictionary.len());
        cells.items.copy_from_slice(dictionary);
        unbr.state.attach_dictionary(cells).then_some(unbr)
    }

    /// Takes a piece of the body. A window that needs more than `room_bytes` is not allocated.
    pub(super) fn step(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        room_bytes: usize,
    ) -> Result<(), DecodingFault> {
        if self.is_done {
            // Nothing may follow the stream.
            return if input.is_empty() { Ok(()) } else { Err(DecodingFault::Malformed) };
        }
        self.tally.0.window_max.set(room_bytes.max(ALWAYS_BYTES));
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
            BrotliResult::ResultFailure if self.tally.0.has_refused.get() => {
                return Err(DecodingFault::NoRoom);
            }
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
        self.tally.0.bytes.get() + size_of::<Self>()
    }
}

/// The system's memory, counted.
#[derive(Clone, Default)]
struct Tally(Rc<Held>);

struct Held {
    bytes: Cell<usize>,
    window_max: Cell<usize>,
    has_refused: Cell<bool>,
}

impl Default for Held {
    fn default() -> Self {
        let (bytes, has_refused) = (Cell::default(), Cell::default());
        Self { bytes, window_max: Cell::new(usize::MAX), has_refused }
    }
}

impl<T: Clone + Default> Allocator<T> for Tally {
    type AllocatedMemory = Cells<T>;

    /// Nothing, where there is no room for a window: the library then fails.
    fn alloc_cell(&mut self, len: usize) -> Cells<T> {
        let bytes = len * size_of::<T>();
        // Windows are the only bytes of which the library takes so many.
        if size_of::<T>() == 1 && bytes > self.0.window_max.get() {
            self.0.has_refused.set(true);
            return Cells { items: Vec::new(), tally: self.clone() };
        }
        self.0.bytes.update(|held| held + bytes);
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
        self.tally.0.bytes.update(|held| held - self.items.len() * size_of::<T>());
    }
}

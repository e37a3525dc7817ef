//! brotli (RFC 7932), plain or with a raw dictionary (shared brotli). The library has no reset:
//! an encoder is made for each body, of memory that outlives it. Must not know the dcb header,
//! which is the caller's to write.

mod memory;

use brotli::enc::BrotliEncoderParams;
use brotli::enc::encode::{
    BrotliEncoderOperation, BrotliEncoderParameter, BrotliEncoderStateStruct,
};

use super::step::{CodingError, Effort, Step};
use memory::Alloc;
pub use memory::BrMemory;

/// An encoder, for one body.
pub struct Br {
    state: BrotliEncoderStateStruct<Alloc>,
    memory: BrMemory,
}

impl Br {
    /// A few kilobytes until the first byte. `length` where it is known: the tables fit it.
    #[must_use]
    pub fn new(effort: Effort, length: Option<u64>, memory: BrMemory) -> Self {
        let state = state(quality(effort, length), window_log(length), length, &memory);
        Self { state, memory }
    }

    /// What the next encoder may be made of.
    #[must_use]
    pub fn into_memory(self) -> BrMemory {
        let Self { state, memory } = self;
        drop(state);
        memory
    }

    /// With a raw dictionary, and brotli's own `quality`, 2 to 11.
    #[must_use]
    pub fn with_dictionary(quality: u32, dictionary: &[u8], length: Option<u64>) -> Self {
        // The dictionary lies in the window, before the body.
        let reach = length.map(|length| length + dictionary.len() as u64);
        let window_log =
            reach.map_or(WINDOW_LOG_MAX, wanted_log).clamp(WINDOW_LOG_MIN, WINDOW_LOG_MAX);
        let memory = BrMemory::default();
        let mut state = state(quality, window_log, length, &memory);
        state.set_custom_dictionary(dictionary.len(), dictionary);
        Self { state, memory }
    }

    /// Takes a piece of the body.
    ///
    /// # Errors
    /// The library's.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.step(piece, out, Step::More)
    }

    /// Makes everything so far decodable.
    ///
    /// # Errors
    /// The library's.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.step(&[], out, Step::Flush)
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// The library's.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.step(&[], out, Step::Finish)
    }

    /// Bytes of memory that one encoder comes to hold at most, measured.
    #[must_use]
    pub fn bytes(effort: Effort, length: Option<u64>) -> usize {
        let tables = match effort {
            Effort::Fast | Effort::Even => 300 << 10,
            Effort::Small => 850 << 10,
        };
        tables + (4 << window_log(length))
    }

    fn step(&mut self, piece: &[u8], out: &mut Vec<u8>, step: Step) -> Result<(), CodingError> {
        let operation = match step {
            Step::More => BrotliEncoderOperation::BROTLI_OPERATION_PROCESS,
            Step::Flush => BrotliEncoderOperation::BROTLI_OPERATION_FLUSH,
            Step::Finish => BrotliEncoderOperation::BROTLI_OPERATION_FINISH,
        };
        let (mut left, mut at) = (piece.len(), 0);
        loop {
            // No room is offered: what comes out is taken from the encoder's own buffer below.
            let went = self.state.compress_stream(
                operation,
                &mut left,
                piece,
                &mut at,
                &mut 0,
                &mut [],
                &mut 0,
                &mut None,
                &mut |_, _, _, _| (),
            );
            if !went {
                return Err(BROKEN);
            }
            let mut taken = 0;
            // What is given reaches to the end of the buffer; `taken` bytes of it are output.
            let given = self.state.take_output(&mut taken);
            out.extend_from_slice(given.get(..taken).unwrap_or_default());
            let done = match step {
                Step::More | Step::Flush => left == 0 && !self.state.has_more_output(),
                Step::Finish => self.state.is_finished(),
            };
            if done && taken == 0 {
                return Ok(());
            }
        }
    }
}

fn state(
    quality: u32,
    window_log: u32,
    length: Option<u64>,
    memory: &BrMemory,
) -> BrotliEncoderStateStruct<Alloc> {
    let mut state = BrotliEncoderStateStruct::new(memory.allocator());
    state.params = BrotliEncoderParams::default();
    state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_QUALITY, quality);
    state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_LGWIN, window_log);
    let hint = length.and_then(|length| u32::try_from(length).ok()).unwrap_or(0);
    state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_SIZE_HINT, hint);
    state
}

fn quality(effort: Effort, length: Option<u64>) -> u32 {
    match effort {
        Effort::Fast | Effort::Even => 4,
        Effort::Small if length.is_some_and(|length| length <= LENGTH_SMALL_MAX) => 5,
        Effort::Small => 6,
    }
}

fn window_log(length: Option<u64>) -> u32 {
    length.map_or(WINDOW_LOG, |length| wanted_log(length).clamp(WINDOW_LOG_MIN, WINDOW_LOG))
}

/// The window that reaches over `length` bytes; brotli's window is 2^n - 16.
fn wanted_log(length: u64) -> u32 {
    u64::BITS - (length + 15).leading_zeros()
}

const BROKEN: CodingError = CodingError { coder: "br", why: "the stream is in no state to go on" };

/// Bytes: for shorter bodies 6 finds 0.2 % more than 5 does, with tables twice as large to clear.
const LENGTH_SMALL_MAX: u64 = 16 << 10;
/// 1 MiB: a tenth fewer bytes of long bodies than 2^18, and memory is taken as a body grows; more
/// is not worth it.
const WINDOW_LOG: u32 = 20;
/// Below 2^17, qualities from 5 up fall into a match finder that takes five times as long.
const WINDOW_LOG_MIN: u32 = 17;

/// 16 MiB, the most that RFC 9842 section 4 allows.
const WINDOW_LOG_MAX: u32 = 24;

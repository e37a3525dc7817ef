//! The parts that all decoders share: the room of a step's output, and the fault.

/// Most bytes that one step puts out: a TLS record. The receiver takes them before the next step.
pub const STEP_BYTES_MAX: usize = 16 << 10;

/// The reason why a coded body cannot be decoded. All but the last are the fault of who coded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodingFault {
    /// The bytes are not of that coding, or a checksum is wrong, or the window is too large.
    #[error("malformed content coding")]
    Malformed,
    /// The body has ended before the coding has.
    #[error("content coding cut short")]
    Cut,
    /// It is coded with another dictionary than the one that was named.
    #[error("coded with another dictionary")]
    Dictionary,
    /// Its window is larger than there is room for. It was not allocated.
    #[error("no memory for the window of a content coding")]
    NoRoom,
}

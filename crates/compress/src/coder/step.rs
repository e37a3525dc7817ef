//! The parts that all coders share: steps, efforts, and the error.

/// A coder failed, which is never the peer's fault. The response must be cut, not ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{coder}: {why}")]
pub struct CodingError {
    /// The library's name for itself.
    pub coder: &'static str,
    /// Its message.
    pub why: &'static str,
}

/// The effort of a coder: bytes against CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effort {
    /// For long streams and busy times: a third of gzip-6's CPU.
    Fast,
    /// The default: no more bytes than gzip-6 at half of its CPU.
    Even,
    /// The fewest bytes at a speed that a response can wait for.
    Small,
}

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodingStep {
    /// More follows: the coder may hold bytes back.
    More,
    /// Everything so far must be decodable.
    Flush,
    /// The body has ended.
    Finish,
}

/// Bytes of output buffer that a coder gets at a time: a TLS record, so that a piece is sent at
/// once.
pub(super) const ROOM_BYTES: usize = 16 << 10;

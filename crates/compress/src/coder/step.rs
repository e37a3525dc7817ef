//! What every coder is asked and answers: a step, how hard to try, and how it fails.
//! It must not know any coder.

/// A coder that failed: never the peer's fault. The response must be cut, not ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{coder}: {why}")]
pub struct CodingError {
    /// The library's name for itself.
    pub coder: &'static str,
    /// What it said.
    pub why: &'static str,
}

/// How hard a coder tries: bytes against CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effort {
    /// For long streams and busy moments: a third of gzip-6's CPU.
    Fast,
    /// The default: no more bytes than gzip-6 at half of its CPU.
    Even,
    /// Fewest bytes that a response can wait for.
    Small,
}

/// What the coder is asked for beside the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Keep what compresses better together.
    More,
    /// Everything so far must be decodable.
    Flush,
    /// The body has ended.
    Finish,
}

/// Bytes of room that a coder is offered at a time: a TLS record, so that a piece is sent at once.
pub(super) const ROOM_BYTES: usize = 16 << 10;

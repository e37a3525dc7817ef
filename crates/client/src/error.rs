//! The reasons why a request has no answer, and an error in one line.

use std::error::Error;
use std::io;
use std::time::Duration;

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The body breaks off or has too many bytes.
    #[error(transparent)]
    Body(Box<dyn Error + Send + Sync>),
    /// The connection ends, or what comes is no HTTP.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// No connection, or no handshake of TLS.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The time is over.
    #[error("no answer within {} s", .0.as_secs_f32())]
    Late(Duration),
}

impl ClientError {
    /// Says a fault of the connection by the caller's words for it: rustls has its own for TLS.
    pub fn in_words(self, words: impl FnOnce(&io::Error) -> String) -> Self {
        match self {
            Self::Io(error) => Self::Io(io::Error::new(error.kind(), words(&error))),
            other => other,
        }
    }
}

/// Writes an error and what it comes from in one line.
pub fn with_sources(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

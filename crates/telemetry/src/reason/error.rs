//! Errors of sockets and libraries, as values that telemetry can hold without depending on the
//! library.

use std::fmt;
use std::io;

use crate::clip::clip;
use eyelet_h2::ErrorCode;

/// A library's text about an error, for people. The type can only be displayed, so no code can
/// depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail(Box<str>);

impl Detail {
    /// The text of an error, cut if it is long: it may have what a peer has said.
    pub fn of(error: impl fmt::Display) -> Self {
        Self(clip(error))
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An `io::Error` that can be compared and copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoFailure {
    /// A kind alone.
    Kind(io::ErrorKind),
    /// The system's error number.
    Os(i32),
    /// A library's error with a kind. Boxed, so that a reason stays small.
    Other(Box<(io::ErrorKind, Detail)>),
}

impl IoFailure {
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Kind(kind) => *kind,
            Self::Os(code) => io::Error::from_raw_os_error(*code).kind(),
            Self::Other(other) => other.0,
        }
    }

    /// True if the peer reset the connection.
    pub fn is_reset(&self) -> bool {
        matches!(self.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
    }
}

impl From<&io::Error> for IoFailure {
    fn from(error: &io::Error) -> Self {
        match (error.raw_os_error(), error.get_ref()) {
            (Some(code), _) => Self::Os(code),
            (None, Some(inner)) => Self::Other(Box::new((error.kind(), Detail::of(inner)))),
            (None, None) => Self::Kind(error.kind()),
        }
    }
}

impl fmt::Display for IoFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "{}", io::Error::from(*kind)),
            Self::Os(code) => write!(f, "{}", io::Error::from_raw_os_error(*code)),
            Self::Other(other) => write!(f, "{}", other.1),
        }
    }
}

/// The reason why no address of this host can be dialled from, with the cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortLack {
    /// Others have all local ports, and may leave one.
    #[error("{0}")]
    InUse(Detail),
    /// An address of `source_addresses` is not this host's.
    #[error("{0}")]
    Faulty(Detail),
}

impl PortLack {
    /// True if waiting may help.
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::InUse(_))
    }
}

/// An HTTP/2 connection or stream that ended by an error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Failure {
    /// The code (RFC 9113 section 7).
    pub code: u32,
    /// True if the peer sent it. Otherwise it was detected here.
    pub received: bool,
}

impl Http2Failure {
    /// True if the peer wanted no more: NO_ERROR or CANCEL, as a browser sends for a closed tab.
    pub fn is_leave(self) -> bool {
        self.received && matches!(self.code, 0 | 8)
    }
}

impl fmt::Display for Http2Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HTTP/2: ")?;
        match ErrorCode(self.code).name() {
            Some(name) => f.write_str(name)?,
            None => write!(f, "error {:#x}", self.code)?,
        }
        f.write_str(if self.received { " received" } else { " detected" })
    }
}

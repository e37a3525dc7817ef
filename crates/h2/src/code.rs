//! Error codes (RFC 9113 section 7). A peer may send any number, so a code is a number with names.

use std::fmt;

/// The reason of RST_STREAM and GOAWAY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// No error.
    pub const NO_ERROR: Self = Self(0x0);
    /// The peer does not follow the protocol.
    pub const PROTOCOL_ERROR: Self = Self(0x1);
    /// An internal error of the sender.
    pub const INTERNAL_ERROR: Self = Self(0x2);
    /// More data than the window allows.
    pub const FLOW_CONTROL_ERROR: Self = Self(0x3);
    /// SETTINGS were not acknowledged in time.
    pub const SETTINGS_TIMEOUT: Self = Self(0x4);
    /// A frame after the end of its stream.
    pub const STREAM_CLOSED: Self = Self(0x5);
    /// A frame of the wrong length.
    pub const FRAME_SIZE_ERROR: Self = Self(0x6);
    /// The stream was not processed: it may be sent again.
    pub const REFUSED_STREAM: Self = Self(0x7);
    /// The stream is not needed any more.
    pub const CANCEL: Self = Self(0x8);
    /// The tables of fields do not agree.
    pub const COMPRESSION_ERROR: Self = Self(0x9);
    /// The connection of a CONNECT request failed.
    pub const CONNECT_ERROR: Self = Self(0xa);
    /// The peer causes too much load.
    pub const ENHANCE_YOUR_CALM: Self = Self(0xb);
    /// The connection's security is not sufficient.
    pub const INADEQUATE_SECURITY: Self = Self(0xc);
    /// The request must be sent by HTTP/1.1.
    pub const HTTP_1_1_REQUIRED: Self = Self(0xd);
}

impl ErrorCode {
    /// The name, if RFC 9113 has one.
    pub fn name(self) -> Option<&'static str> {
        NAMES.get(usize::try_from(self.0).ok()?).copied()
    }
}

/// The names of the codes, in their order.
const NAMES: [&str; 14] = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

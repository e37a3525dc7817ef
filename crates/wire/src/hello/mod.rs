//! The ClientHello. [`HelloReader`] finds, frames and checks it; [`Hello`] reads it in place.

mod extensions;
mod facts;
mod not_tls;
mod parse;
mod peek;
mod reader;
mod sni;
mod spans;
mod view;

pub use crate::fault::{Fault, Field, Malformed};
pub use facts::{HelloFacts, HelloName};
pub use peek::{NotTls, Peek};
pub use reader::{HelloReader, peek_message, raw_bytes_max};
pub use sni::{HOST_NAME_BYTES_MAX, HostName, LABEL_BYTES_MAX, Sni, SniFault};
pub use view::{Hello, ProtocolName, Transport, is_grease, protocol_names};

/// Parts that the ServerHello's reader shares.
pub(crate) mod parts {
    pub(crate) use super::extensions::{Few, Many, SUPPORTED_VERSIONS};
    pub(crate) use super::parse::{extension_list, session_id};
    pub(crate) use super::sni::SERVER_NAME;
    pub(crate) use super::spans::ALPN;
}

#[cfg(test)]
mod tests;

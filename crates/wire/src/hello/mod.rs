//! The ClientHello: found, framed and checked ([`HelloReader`]), and then read in place
//! ([`Hello`]). It must not know what is decided by it.

mod extensions;
mod not_tls;
mod parse;
mod peek;
mod reader;
mod sni;
mod spans;
mod view;

pub use crate::fault::{Fault, Field, Malformed};
pub use peek::{NotTls, Peek};
pub use reader::{HelloReader, raw_bytes_max};
pub use sni::{HOST_NAME_BYTES_MAX, HostName, LABEL_BYTES_MAX, Sni, SniFault};
pub use view::{Hello, ProtocolName, is_grease};

/// What the reader of the other side's hello shares with this one.
pub(crate) mod parts {
    pub(crate) use super::extensions::{Few, Many, SUPPORTED_VERSIONS};
    pub(crate) use super::parse::{extension_list, session_id};
    pub(crate) use super::sni::SERVER_NAME;
    pub(crate) use super::spans::ALPN;
}

#[cfg(test)]
mod tests;

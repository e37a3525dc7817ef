//! QUIC's Initial packets, for an edge that reads the hello and passes the datagrams on: it opens
//! the client's ([`InitialReader`]) and writes those that refuse a client ([`refusal`]).
//!
//! An Initial packet is protected with keys that anybody can derive from the connection id (RFC
//! 9001 5.2). rustls derives them. `eyelet-wire` reads headers, frames and the hello. There is no
//! clock and no socket here.

mod export;
mod keys;
mod open;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod reader;
mod refusal;
mod seal;

pub use reader::{DATAGRAMS_MAX, InitialRead, InitialReader};
pub use refusal::{crypto_error, refusal};

#[cfg(test)]
mod tests;

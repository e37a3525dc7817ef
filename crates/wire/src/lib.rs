//! Bytes to values: TLS records, hellos, alerts, JA4, QUIC packets and frames, PROXY and CONNECT
//! heads, SOCKS. Sans-IO, `no_std`, without dependencies. Nothing in it can panic on a peer's
//! bytes. The readers borrow the received bytes; they copy only a hello that lies in several
//! records, and a name with upper-case letters.
//!
//! All readers work alike. [`hello::HelloReader::feed`] gets everything received so far and returns
//! one of *need more*, *not TLS*, *a hello* or *malformed*. Incomplete input is a value, not an
//! error. The three ways to have no name (no TLS, no `server_name`, a broken `server_name`) are
//! three different answers.
//!
//! We frame the whole hello, and check every extension that the next TLS stack will decode. So
//! rules and that stack see one name. `docs/conformance.md` says where we are stricter than rustls.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(any(test, feature = "testing"))]
extern crate std;

pub mod alert;
pub mod connect;
pub mod hello;
pub mod ja4;
pub mod local_peer;
pub mod proxy;
pub mod quic;
pub mod record;
pub mod server_hello;
pub mod socks;
pub mod traceparent;
pub mod version;
pub mod websocket;

mod cursor;
mod fault;
mod handshake;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

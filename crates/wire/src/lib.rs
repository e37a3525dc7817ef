//! Bytes to values: TLS records, hellos, alerts, JA4, PROXY and CONNECT heads. Sans-IO, and every
//! reader borrows what was received: copied are only a hello that lies in several records, and a
//! name with upper-case letters. It must not know sockets, clocks, rules or configuration, and
//! nothing in it can panic on what a peer sends.
//!
//! The readers share one shape. [`hello::HelloReader::feed`] is given everything received so far
//! and answers with exactly one of *need more*, *not TLS*, *a hello* or *malformed*: incomplete
//! input is a value and not an error, and the three ways of not having a name (no TLS, no
//! `server_name`, a broken `server_name`) are three different answers.
//!
//! We frame the whole hello and check the form of every extension that the next TLS stack will
//! decode, so that the name we decide by is the name that stack sees. Where we are stricter than
//! rustls, `docs/conformance.md` says so.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(test)]
extern crate std;

// `testing` is compiled into the fuzz targets too, and names this crate as they do.
#[cfg(test)]
extern crate self as eyelet_wire;

pub mod alert;
pub mod connect;
pub mod hello;
pub mod ja4;
pub mod proxy;
pub mod record;
pub mod server_hello;
pub mod version;

mod cursor;
mod fault;
mod handshake;

#[cfg(test)]
mod testing;

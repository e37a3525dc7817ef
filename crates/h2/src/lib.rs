//! HTTP/2 frames, HPACK and the state of a connection, in both roles. Sans-IO: bytes and time in,
//! bytes and events out. No socket, no clock, no thread.

#![forbid(unsafe_code)]

pub mod hpack;

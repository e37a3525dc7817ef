//! HTTP/1.1 as bytes and values: heads, bodies and their framing, with one reading only; the fields
//! that a gateway adds and takes away; bytes that wait to be written.
//!
//! Sans-IO: no socket, clock or thread.

#![forbid(unsafe_code)]

pub mod authority;
pub mod body;
pub mod boundary;
pub mod fault;
pub mod fields;
pub mod framing;
pub mod head;
pub mod head_bytes;
pub mod head_lines;
pub mod lines;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod request_line;
pub mod spare_heads;
pub mod spares;
pub mod write_queue;

//! System calls that the program makes, as few safe functions on descriptors.
//! The only crate that may say `unsafe`; it must not know TLS, rules or tokio.

pub mod epoll;
pub mod file;
pub mod interfaces;
pub mod memory;
pub mod pipe;
pub mod process;
pub mod socket;
pub mod transparent;
pub mod waker;

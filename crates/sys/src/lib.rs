//! The program's system calls as safe functions on descriptors. No other crate may contain
//! `unsafe`.

pub mod channel;
pub mod child;
pub mod confine;
pub mod epoll;
pub mod file;
pub mod inotify;
pub mod interfaces;
pub mod memory;
pub mod pipe;
pub mod process;
pub mod recording;
pub mod service;
pub mod socket;
pub mod socket_file;
pub mod time;
pub mod transparent;
pub mod waker;

pub use rustix::io::Errno;

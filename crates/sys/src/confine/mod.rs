//! A process that confines itself: namespaces, signals that it waits for, numbers of system calls.

pub mod calls;
pub mod namespace;
pub mod signals;

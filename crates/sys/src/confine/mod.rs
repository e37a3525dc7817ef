//! A process that confines itself: namespaces, mounts, signals that it waits for, numbers
//! of system calls.

pub mod calls;
pub mod mount;
pub mod namespace;
pub mod refused;
pub mod signals;

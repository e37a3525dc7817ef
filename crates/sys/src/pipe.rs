//! splice(2) through a pipe: bytes move between sockets without a copy in this process. The caller
//! counts the bytes in a pipe.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, OFlags};
use rustix::pipe::{PipeFlags, SpliceFlags};

/// A kernel pipe, created empty.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

const MOVE: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

impl Pipe {
    /// A pipe that holds up to about `capacity` bytes, or less if the system's limit for pipes is
    /// reached.
    pub fn new(capacity: usize) -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // pipe-user-pages-soft may forbid this to an ordinary user: the default of 64 KiB will do.
        let _ = rustix::pipe::fcntl_setpipe_size(&write, capacity);
        Ok(Self { read, write })
    }

    /// Moves at most `len` bytes from a socket into the pipe. 0 is the end of the stream.
    pub fn fill(&self, from: impl AsFd, len: usize) -> io::Result<usize> {
        Ok(rustix::pipe::splice(from, None, &self.write, None, len, MOVE)?)
    }

    /// Moves at most `len` bytes from the pipe into a socket.
    pub fn empty(&self, to: impl AsFd, len: usize) -> io::Result<usize> {
        Ok(rustix::pipe::splice(&self.read, None, to, None, len, MOVE)?)
    }

    /// Copies bytes out of the pipe, for a connection that leaves this process.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.read, into)?)
    }
}

/// Has reads of this end of a pipe fail with `WouldBlock` where they would wait. The other end is
/// as it was.
pub fn never_wait(end: impl AsFd) -> io::Result<()> {
    let flags = fs::fcntl_getfl(&end)?;
    Ok(fs::fcntl_setfl(&end, flags | OFlags::NONBLOCK)?)
}

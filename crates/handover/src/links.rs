//! Upstream connections that exchanges of several connections rest on: links, outside of a worker,
//! and the streams on them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use zeroize::Zeroizing;

/// A stream at rest of a connection that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamRef {
    /// The index of its link among those of its group.
    pub link: u16,
    /// Its identifier there.
    pub stream: u32,
    /// Bits that only the program reads.
    pub bits: u8,
}

/// A link outside of any worker.
pub struct DetachedLink {
    /// Its socket, which is registered nowhere.
    pub socket: Arc<OwnedFd>,
    /// Its state in the program's form, which is secret.
    pub state: Zeroizing<Vec<u8>>,
}

/// Returns a socket alone. Whoever sent it to another process has dropped it by now.
///
/// # Errors
/// Somebody else has it, and no descriptor is free.
pub fn own(socket: Arc<OwnedFd>) -> io::Result<OwnedFd> {
    Arc::try_unwrap(socket).or_else(|shared| shared.try_clone())
}

impl DetachedLink {
    /// Its socket and its state.
    ///
    /// # Errors
    /// Somebody else has the socket, and no descriptor is free.
    pub fn into_parts(self) -> io::Result<(OwnedFd, Zeroizing<Vec<u8>>)> {
        Ok((own(self.socket)?, self.state))
    }
}

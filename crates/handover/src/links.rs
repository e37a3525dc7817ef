//! Upstream connections that exchanges of several connections rest on: links. The connections of a
//! group and their links move whole. The program knows what a link is, and this is how it and the
//! event loop speak of one.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use eyelet_memory::slab::Key;
use eyelet_table::KeptStreams;
use foldhash::fast::RandomState;
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

/// The links of a group, and the streams of each of its connections, in their order.
pub struct DetachedLinks {
    /// The links.
    pub links: Vec<DetachedLink>,
    /// The streams.
    pub streams: Vec<Vec<StreamRef>>,
}

/// The streams of a connection that has arrived, in a worker. `None`: it could not be taken.
pub type AttachedStreams = Option<KeptStreams>;

/// The connections and links of a group that were found so far.
pub struct Partners {
    /// The connections in the order in which they were found.
    pub keys: Vec<Key>,
    known: HashSet<Key, RandomState>,
    links: HashSet<usize, RandomState>,
    has_earlier: bool,
}

impl Partners {
    /// A group that begins with this connection.
    pub fn of(first: Key) -> Self {
        let (known, links) = (HashSet::from_iter([first]), HashSet::default());
        Self { keys: vec![first], known, links, has_earlier: false }
    }

    /// Adds a connection, unless it was found before.
    pub fn add(&mut self, key: Key) {
        if self.known.insert(key) {
            self.has_earlier |= self.keys.first().is_some_and(|first| key.index < first.index);
            self.keys.push(key);
        }
    }

    /// True if a connection has an earlier slot than the first one: nothing more need be found.
    pub fn has_earlier(&self) -> bool {
        self.has_earlier
    }

    /// Adds a link by a number that no other one has. Returns whether it is new.
    pub fn add_link(&mut self, number: usize) -> bool {
        self.links.insert(number)
    }

    /// The number of links.
    pub fn links(&self) -> usize {
        self.links.len()
    }
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

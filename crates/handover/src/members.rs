//! The message of a group: the messages of its connections, and its links.
//! crates/handover/README.md describes it.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::detached::MovedConnection;
use crate::format::{ImportError, MESSAGE_BYTES_MAX, VERSION_BYTES, VERSION_GROUP, take, to_bytes};
use crate::links::{DetachedLink, StreamRef};
use eyelet_relay::export::STATE_BYTES_MAX;
use eyelet_relay::ready::FURTHER_MAX;

/// The connections of a group, and its links.
pub type GroupMembers<R> = (Vec<MovedConnection<R>>, Vec<DetachedLink>);

/// Version 7. Its types never change.
#[derive(Deserialize, Serialize)]
struct GroupV7<'a> {
    #[serde(borrow)]
    connections: Vec<MemberV7<'a>>,
    /// The state of each link.
    #[serde(borrow)]
    links: Vec<&'a [u8]>,
}

/// A connection of a group.
#[derive(Deserialize, Serialize)]
struct MemberV7<'a> {
    /// The number of its sockets.
    sockets: u8,
    /// Its message, of an earlier version.
    message: &'a [u8],
    streams: Vec<StreamV7>,
}

/// [`StreamRef`].
#[derive(Clone, Copy, Deserialize, Serialize)]
struct StreamV7 {
    link: u16,
    stream: u32,
    bits: u8,
}

/// True if a message is that of a group.
pub fn is_group(bytes: &[u8]) -> bool {
    bytes.first_chunk::<VERSION_BYTES>().is_some_and(|it| u16::from_be_bytes(*it) == VERSION_GROUP)
}

/// The message of a group, without its sockets: those of each connection, and then the links'. It
/// holds secrets, and is wiped when it is dropped.
pub fn encode_members<R>(
    connections: &[MovedConnection<R>],
    links: &[DetachedLink],
) -> Zeroizing<Vec<u8>> {
    let messages: Vec<_> = connections.iter().map(MovedConnection::encode).collect();
    let members = connections.iter().zip(&messages).map(|(connection, message)| MemberV7 {
        sockets: u8::try_from(connection.sockets().count()).unwrap_or(u8::MAX),
        message,
        streams: connection.streams.iter().map(StreamV7::of).collect(),
    });
    let links = links.iter().map(|link| &link.state[..]).collect();
    to_bytes(VERSION_GROUP, &GroupV7 { connections: members.collect(), links })
}

/// The members of a group by its message and its sockets. The caller wipes the message.
///
/// # Errors
/// The message is not one, or one of its connections is none. All sockets are then closed.
pub fn decode_members<R>(
    bytes: &[u8],
    sockets: Vec<OwnedFd>,
) -> Result<GroupMembers<R>, ImportError> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(ImportError::TooLong(bytes.len()));
    }
    let behind = bytes.get(VERSION_BYTES..).ok_or(ImportError::Malformed)?;
    let (group, behind): (GroupV7<'_>, _) = take(behind)?;
    if !behind.is_empty() {
        return Err(ImportError::Trailing(behind.len()));
    }
    let of_connections = group.connections.iter().map(|one| usize::from(one.sockets));
    let (expected, got) = (of_connections.sum::<usize>() + group.links.len(), sockets.len());
    if expected != got {
        return Err(ImportError::Sockets { expected, got });
    }
    if !group.is_whole() {
        return Err(ImportError::Group);
    }
    let mut sockets = sockets.into_iter();
    let mut connections = Vec::with_capacity(group.connections.len());
    for MemberV7 { sockets: count, message, streams } in group.connections {
        let own = sockets.by_ref().take(count.into()).collect();
        let streams = streams.into_iter().map(StreamV7::stream).collect();
        let connection = MovedConnection::decode_with(message, own, streams)?;
        // Streams rest on it, in its state or as its exchange.
        connection.kept().ok_or(ImportError::Group)?;
        connections.push(connection);
    }
    let links = group.links.into_iter().zip(sockets).map(|(state, socket)| DetachedLink {
        socket: Arc::new(socket),
        state: Zeroizing::new(state.to_vec()),
    });
    Ok((connections, links.collect()))
}

impl GroupV7<'_> {
    /// True if each connection has streams, each link has one of them at least, and no stream is
    /// that of two.
    fn is_whole(&self) -> bool {
        let (mut links, mut streams) = (HashSet::new(), HashSet::new());
        let all = self.connections.iter().flat_map(|one| &one.streams);
        let is_once = all.into_iter().all(|one| {
            links.insert(one.link);
            usize::from(one.link) < self.links.len() && streams.insert((one.link, one.stream))
        });
        is_once
            && !self.connections.is_empty()
            && links.len() == self.links.len()
            && self.connections.iter().all(|one| !one.streams.is_empty())
            && self.links.iter().all(|link| (1..=STATE_BYTES_MAX).contains(&link.len()))
    }
}

/// The sockets of each connection have a number.
const _: () = assert!(FURTHER_MAX < u8::MAX as usize);

impl StreamV7 {
    fn of(&StreamRef { link, stream, bits }: &StreamRef) -> Self {
        Self { link, stream, bits }
    }

    fn stream(self) -> StreamRef {
        let Self { link, stream, bits } = self;
        StreamRef { link, stream, bits }
    }
}

#[cfg(test)]
mod tests;

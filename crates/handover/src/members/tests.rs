//! The message of a group, and messages that are none.
#![allow(clippy::unwrap_used)]

use zeroize::Zeroizing;

use super::*;
use crate::format::tests::{from_hex, received, stored, to_hex};

type Members = GroupMembers<()>;
type Detached = MovedConnection<()>;

/// A group as releases since version 7 have written it.
const STORED: &str = include_str!("../v7/group.hex");
const GROUP_SOCKETS: usize = 4;

fn stream(link: u16, stream: u32, bits: u8) -> StreamRef {
    StreamRef { link, stream, bits }
}

fn link(state: &[u8]) -> DetachedLink {
    let (socket, _) = eyelet_sys::socket::pair().unwrap();
    DetachedLink { socket: Arc::new(socket), state: Zeroizing::new(state.to_vec()) }
}

/// A connection of HTTP/2 with streams on both links, and an exchange of HTTP/1.1 on the second.
fn group() -> Members {
    let (mut two, mut one) = (stored("http2"), stored("resting"));
    two.streams = vec![stream(0, 1, 1), stream(1, 3, 5)];
    one.upstream = None;
    one.streams = vec![stream(1, 5, 0)];
    (vec![two, one], vec![link(b"a link"), link(b"another")])
}

fn decoded(bytes: &[u8], sockets: usize) -> Result<Members, ImportError> {
    let sockets = (0..sockets).map(|_| eyelet_sys::socket::pair().unwrap().0).collect();
    decode_members(bytes, sockets)
}

#[test]
fn a_stored_group_is_read_for_ever() {
    let (connections, links) = group();
    let written = encode_members(&connections, &links);
    assert!(
        *written == from_hex(STORED),
        "its version has changed. It must not; this would be its bytes:\n{}",
        to_hex(&written)
    );
    let (connections, links) = decoded(&written, GROUP_SOCKETS).unwrap();
    assert_eq!(*encode_members(&connections, &links), *written);
    assert!(is_group(&written) && connections[1].exchange().is_some());
    for len in 2..written.len() {
        let fault = decoded(&written[..len], GROUP_SOCKETS).err();
        assert_eq!(fault, Some(ImportError::Malformed), "{len} bytes");
    }
    let longer = decoded(&[&written[..], &[0]].concat(), GROUP_SOCKETS);
    assert_eq!(longer.err(), Some(ImportError::Trailing(1)));
    for got in [0, GROUP_SOCKETS - 1, GROUP_SOCKETS + 1] {
        let expected = Some(ImportError::Sockets { expected: GROUP_SOCKETS, got });
        assert_eq!(decoded(&written, got).err(), expected);
    }
    // Without its group it is none.
    let alone = Detached::decode(&connections[1].encode(), received(&connections[1]));
    assert_eq!(alone.err(), Some(ImportError::Exchange));
    assert_eq!(
        Detached::decode(&written, Vec::new()).err(),
        Some(ImportError::Version(VERSION_GROUP))
    );
}

#[test]
fn what_is_no_group_is_refused_whole() {
    type Change = fn(&mut Members);
    let cases: [(&str, Change, ImportError); 9] = [
        ("no connection", |it| it.0.clear(), ImportError::Group),
        ("a stream of two", |it| it.0[1].streams[0] = stream(1, 3, 0), ImportError::Group),
        ("an index out of range", |it| it.0[0].streams[0].link = 2, ImportError::Group),
        ("a link without a stream", |it| it.1.push(link(b"it")), ImportError::Group),
        ("a connection without one", |it| it.0[1].streams.clear(), ImportError::Group),
        ("an empty link", |it| it.1[0].state.clear(), ImportError::Group),
        (
            "a link that is too long",
            |it| it.1[0].state.resize(STATE_BYTES_MAX + 1, 7),
            ImportError::Group,
        ),
        (
            "an exchange with two streams",
            |it| it.0[1].streams.push(stream(0, 9, 0)),
            ImportError::Exchange,
        ),
        (
            "a connection on which nothing rests",
            |it| {
                it.0[0] = stored("spliced");
                it.0[0].streams = vec![stream(0, 1, 0)];
            },
            ImportError::Group,
        ),
    ];
    for (name, change, fault) in cases {
        let mut members = group();
        change(&mut members);
        let (connections, links) = members;
        let sockets: usize = connections.iter().map(|one| one.sockets().count()).sum();
        let message = encode_members(&connections, &links);
        assert_eq!(decoded(&message, sockets + links.len()).err(), Some(fault), "{name}");
    }
}

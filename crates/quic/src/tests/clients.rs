//! The first datagrams of real clients, recorded on a loopback socket that did not answer.

use super::{HELLO_BYTES_MAX, hex_parts, name};
use crate::{InitialRead, InitialReader};
use eyelet_wire::hello::{Hello, Transport};
use eyelet_wire::ja4::ja4;
use eyelet_wire::quic::QuicVersion;

/// X25519MLKEM768, whose share alone is longer than a datagram.
const POST_QUANTUM: u16 = 0x11ec;

/// Reads the datagrams in this order. Returns the hello, and how many of them it took.
fn hello_of(datagrams: &[Vec<u8>], version: QuicVersion) -> (Hello<'static>, usize) {
    let mut reader = InitialReader::new(&datagrams[0], HELLO_BYTES_MAX).unwrap();
    assert_eq!(reader.version(), version);
    for (at, datagram) in datagrams.iter().enumerate() {
        match reader.feed(datagram) {
            InitialRead::NeedMore => {}
            InitialRead::Hello(hello) => {
                for datagram in datagrams {
                    let again = reader.feed(datagram);
                    assert!(matches!(again, InitialRead::Known), "{again:?}");
                }
                return (hello, at + 1);
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("no hello in {} datagrams", datagrams.len());
}

#[test]
fn hellos_of_clients() {
    let (v1, v2) = (QuicVersion::V1, QuicVersion::V2);
    for (text, version, host, took, is_post_quantum) in [
        (include_str!("bytes/aioquic.hex"), v1, "aioquic.example", 1, false),
        (include_str!("bytes/aioquic-v2.hex"), v2, "aioquic.example", 1, false),
        (include_str!("bytes/chromium.hex"), v1, "chromium.example", 2, true),
        (include_str!("bytes/quic-go.hex"), v1, "quic-go.example", 2, true),
        (include_str!("bytes/quic-go-v2.hex"), v2, "quic-go.example", 2, true),
        (include_str!("bytes/quinn.hex"), v1, "quinn.example", 2, true),
    ] {
        let mut datagrams = hex_parts(text);
        let (hello, count) = hello_of(&datagrams, version);
        assert_eq!((name(&hello), count), (host.to_owned(), took));
        assert_eq!(hello.transport(), Transport::Quic);
        assert_eq!(hello.key_share_groups().any(|group| group == POST_QUANTUM), is_post_quantum);
        assert!(hello.alpn().any(|name| name.as_ref() == b"h3"), "{host}");
        let fingerprint = ja4(&hello, |_| [0; 32]);
        assert!(fingerprint.as_str().starts_with("q13d"), "{fingerprint}");
        // The last one may come first.
        datagrams.reverse();
        assert_eq!(hello_of(&datagrams, version).0.message(), hello.message());
    }
}

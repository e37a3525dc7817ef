//! The examples of RFC 9001 appendix A and RFC 9369 appendix A.

use eyelet_wire::quic::{QuicId, QuicVersion};

use super::{hex_parts, name, read_first};
use crate::InitialRead;
use crate::keys::initial_keys;
use crate::seal::seal;

const RFC_9001: &str = include_str!("bytes/rfc9001.hex");
const RFC_9369: &str = include_str!("bytes/rfc9369.hex");
/// The destination id of both RFCs' client.
const CLIENT_DCID: [u8; 8] = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];

#[test]
fn the_clients_packets_of_the_rfcs_are_read() {
    for (text, version) in [(RFC_9001, QuicVersion::V1), (RFC_9369, QuicVersion::V2)] {
        let packet = hex_parts(text).remove(0);
        assert_eq!(packet.len(), 1200);
        let (mut reader, read) = read_first(&packet);
        let InitialRead::Hello(hello) = read else { panic!("{version:?}: {read:?}") };
        assert_eq!(name(&hello), "example.com");
        assert_eq!(reader.version(), version);
        assert_eq!(reader.client_dcid().as_bytes(), CLIENT_DCID);
        let again = reader.feed(&packet);
        assert!(matches!(again, InitialRead::Known), "{again:?}");
    }
}

#[test]
fn the_servers_packets_of_the_rfcs_are_made() {
    for (text, version) in [(RFC_9001, QuicVersion::V1), (RFC_9369, QuicVersion::V2)] {
        let [_, header, payload, protected] = hex_parts(text).try_into().unwrap();
        let keys = initial_keys(version, &QuicId::new(&CLIENT_DCID).unwrap()).unwrap();
        let number_at = header.len() - 2;
        let sealed = seal(&keys.local, header, number_at, 1, payload).unwrap();
        assert_eq!(sealed, protected, "{version:?}");
    }
}

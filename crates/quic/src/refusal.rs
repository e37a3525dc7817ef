//! Writes the datagram that refuses a client: CONNECTION_CLOSE in an Initial packet, as the server
//! would send it (RFC 9000 10.2.3, 17.2.2).

use eyelet_wire::alert::AlertDescription;
use eyelet_wire::quic::{CRYPTO_ERROR, QuicId, QuicVersion, put_varint};

use crate::keys::initial_keys;
use crate::seal::seal;

/// Long header, fixed bit, Initial of v1, packet number of one byte.
const FIRST_BYTE: u8 = 0xc0;
/// The only packet of the server. Each repetition has the same bytes, so no nonce is used for two
/// messages.
const PACKET_NUMBER: u8 = 0;
/// CONNECTION_CLOSE of the transport, and the frame that is to blame: CRYPTO (RFC 9000 19.19).
const CONNECTION_CLOSE: u8 = 0x1c;
const CRYPTO: u8 = 0x06;
/// Bytes of AES-GCM's tag.
const TAG_BYTES: usize = 16;

/// The transport error code that carries a TLS alert (RFC 9001 4.8).
pub const fn crypto_error(alert: AlertDescription) -> u64 {
    CRYPTO_ERROR + alert.code() as u64
}

/// The datagram that ends a connection with `code`, a transport error code.
///
/// `client_dcid` and `client_scid` are the ids of the client's first packet. It has at most 90
/// bytes. A client's first datagram has 1,200, so three times that many are never sent (RFC 9000
/// 8.1) if each datagram of the client gets at most one. `None` never happens: the suite seals it.
pub fn refusal(
    version: QuicVersion,
    client_dcid: &QuicId,
    client_scid: &QuicId,
    code: u64,
) -> Option<Vec<u8>> {
    let keys = initial_keys(version, client_dcid)?.local;
    let mut payload = vec![CONNECTION_CLOSE];
    put_varint(code, &mut payload);
    // No reason in words.
    payload.extend([CRYPTO, 0]);

    let mut packet = vec![FIRST_BYTE | version.initial_bits()];
    packet.extend(version.number().to_be_bytes());
    // The server's id is one that the client has chosen: no packet will come to it.
    for id in [client_scid, client_dcid] {
        packet.push(id.as_bytes().len() as u8);
        packet.extend(id.as_bytes());
    }
    put_varint(0, &mut packet); // no token
    put_varint((1 + payload.len() + TAG_BYTES) as u64, &mut packet);
    let number_at = packet.len();
    packet.push(PACKET_NUMBER);
    seal(&keys, packet, number_at, PACKET_NUMBER.into(), payload)
}

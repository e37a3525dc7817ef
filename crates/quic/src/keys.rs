//! The keys of Initial packets (RFC 9001 5.2, RFC 9369 3.3), from rustls.

use eyelet_wire::quic::{QuicId, QuicVersion};
use rustls::Side;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{Keys, Version};

/// Both sides' keys, for the destination id of the client's first packet. As the server:
/// `remote` opens what the client sends.
///
/// ring derives them, because a derivation is a few blocks of SHA-256; so it is for handshakes.
/// `None` never happens: the suite has QUIC.
pub(crate) fn initial_keys(version: QuicVersion, client_dcid: &QuicId) -> Option<Keys> {
    let version = match version {
        QuicVersion::V1 => Version::V1,
        QuicVersion::V2 => Version::V2,
    };
    let suite = TLS13_AES_128_GCM_SHA256.tls13()?.quic_suite()?;
    Some(suite.keys(client_dcid.as_bytes(), Side::Server, version))
}

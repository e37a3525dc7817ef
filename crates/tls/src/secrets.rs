//! rustls' suites and secrets as the record layer takes them.

use eyelet_record::Suite;
use rustls::{CipherSuite, ConnectionTrafficSecrets, SupportedCipherSuite};

/// The suite of a TLS 1.3 connection.
pub fn tls13_suite(suite: SupportedCipherSuite) -> Option<Suite> {
    match suite.suite() {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Suite::Aes128Gcm),
        CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Suite::Aes256Gcm),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(Suite::ChaCha20Poly1305),
        _ => None,
    }
}

/// The suite, the key and the iv of one direction.
pub fn parts(secrets: &ConnectionTrafficSecrets) -> Option<(Suite, &[u8], &[u8])> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => {
            Some((Suite::Aes128Gcm, key.as_ref(), iv.as_ref()))
        }
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
            Some((Suite::Aes256Gcm, key.as_ref(), iv.as_ref()))
        }
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            Some((Suite::ChaCha20Poly1305, key.as_ref(), iv.as_ref()))
        }
        _ => None,
    }
}

//! Parts of a session: version, cipher suite, role, and the secret of one direction.

pub use eyelet_wire::version::Version;
use zeroize::Zeroize;

/// The AEAD and hash of the connection: those of TLS 1.3's suites. TLS 1.2's ECDHE suites count by
/// their AEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// AES-128-GCM; SHA-256 in TLS 1.3.
    Aes128Gcm,
    /// AES-256-GCM; SHA-384 in TLS 1.3.
    Aes256Gcm,
    /// ChaCha20-Poly1305; SHA-256 in TLS 1.3.
    ChaCha20Poly1305,
}

/// The end of the connection that this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// We accepted the connection.
    Server,
    /// We dialled the connection.
    Client,
}

/// Bytes for a direction's secret. The longest is SHA-384's traffic secret, 48 bytes; a TLS 1.2 key
/// of 32 bytes and its iv of 12 need 44.
pub(crate) const SECRET_BYTES: usize = 48;
/// Offset of the iv in a TLS 1.2 direction's secret.
pub(crate) const TLS12_IV_AT: usize = 32;
/// Bytes of an AEAD nonce, and of the iv that it is made from.
pub(crate) const IV_BYTES: usize = 12;

/// One direction. In TLS 1.3 the secret is the current generation's traffic secret (32 or 48
/// bytes); in TLS 1.2 it is the key at 0.. and the 12-byte iv at 32... See `keys.rs`.
pub(crate) struct Direction {
    pub(crate) secret: [u8; SECRET_BYTES],
    pub(crate) seq: u64,
}

impl Direction {
    pub(crate) fn wipe(&mut self) {
        self.secret.zeroize();
        self.seq.zeroize();
    }
}

pub(crate) const fn key_len(suite: Suite) -> usize {
    match suite {
        Suite::Aes128Gcm => 16,
        Suite::Aes256Gcm | Suite::ChaCha20Poly1305 => 32,
    }
}

pub(crate) const fn hash_len(suite: Suite) -> usize {
    match suite {
        Suite::Aes128Gcm | Suite::ChaCha20Poly1305 => 32,
        Suite::Aes256Gcm => 48,
    }
}

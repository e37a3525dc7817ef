//! From a parked secret to AEAD keys: HKDF-Expand-Label, key expansion, nonces, key generations.

use std::fmt;

use ring::hmac;
use zeroize::{Zeroize, Zeroizing};

use crate::aead::Aead;
use crate::fault::RecordFault;
use crate::suite::{
    Direction, IV_BYTES, SECRET_BYTES, Suite, TLS12_IV_AT, Version, hash_len, key_len,
};

/// Bytes of every suite's tag.
pub(crate) const TAG_BYTES: usize = 16;
/// Bytes of the nonce that TLS 1.2's AES-GCM sends with each record (RFC 5288 section 3).
pub(crate) const EXPLICIT_NONCE_BYTES: usize = 8;

const KEY_BYTES_MAX: usize = 32;

/// The expanded AEAD keys of a connection that is awake, about 1.1 KiB. They live on a worker's
/// stack, never in a parked connection. Each direction is expanded at its first record.
///
/// Keys belong to the session that filled them. For another session use new ones, or call
/// [`Keys::clear`]. The ivs are wiped, and aws-lc-rs wipes its expanded keys. ring cannot: the
/// bytes of its keys stay in place until the next key overwrites them.
#[derive(Default)]
pub struct Keys {
    pub(crate) open: Option<DirectionKey>,
    pub(crate) seal: Option<DirectionKey>,
}

impl Keys {
    /// No key is expanded yet. Costs nothing.
    pub const fn new() -> Keys {
        Keys { open: None, seal: None }
    }

    /// Drops both keys, so that another session may use this value.
    pub fn clear(&mut self) {
        self.open = None;
        self.seal = None;
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// One direction's expanded key and its iv.
pub(crate) struct DirectionKey {
    pub(crate) aead: Aead,
    iv: [u8; IV_BYTES],
}

impl DirectionKey {
    /// Returns the key in `place`. If there is none, expands it from the direction's secret.
    pub(crate) fn wake<'k>(
        place: &'k mut Option<DirectionKey>,
        suite: Suite,
        version: Version,
        direction: &Direction,
    ) -> Result<&'k DirectionKey, RecordFault> {
        if place.is_none() {
            let material = Material::derive(suite, version, &direction.secret);
            let aead = Aead::expand(suite, material.key())?;
            *place = Some(DirectionKey { aead, iv: material.iv });
        }
        place.as_ref().ok_or(RecordFault::Provider)
    }

    /// The nonce of a record: iv xor sequence number (RFC 8446 section 5.3, RFC 7905 section 2).
    pub(crate) fn nonce(&self, seq: u64) -> [u8; IV_BYTES] {
        let mut nonce = self.iv;
        for (byte, seq) in nonce[IV_BYTES - 8..].iter_mut().zip(seq.to_be_bytes()) {
            *byte ^= seq;
        }
        nonce
    }

    /// The nonce of a record that carries the last 8 bytes itself (RFC 5288 section 3).
    pub(crate) fn explicit_nonce(&self, sent: [u8; EXPLICIT_NONCE_BYTES]) -> [u8; IV_BYTES] {
        let mut nonce = self.iv;
        nonce[IV_BYTES - EXPLICIT_NONCE_BYTES..].copy_from_slice(&sent);
        nonce
    }
}

impl Drop for DirectionKey {
    fn drop(&mut self) {
        self.iv.zeroize();
    }
}

/// Key and iv of one direction, before expansion.
pub(crate) struct Material {
    key: Zeroizing<[u8; KEY_BYTES_MAX]>,
    key_len: usize,
    pub(crate) iv: [u8; IV_BYTES],
}

impl Material {
    /// Key and iv from a direction's secret (RFC 8446 section 7.3). One HMAC key serves both
    /// expansions: this hashes six blocks instead of eight.
    pub(crate) fn derive(suite: Suite, version: Version, secret: &[u8; SECRET_BYTES]) -> Material {
        let key_len = key_len(suite);
        let mut key = Zeroizing::new([0; KEY_BYTES_MAX]);
        let mut iv = [0; IV_BYTES];
        match version {
            Version::Tls13 => {
                let prk = prk(suite, secret);
                expand_label(&prk, b"key", &mut key[..key_len]);
                expand_label(&prk, b"iv", &mut iv);
            }
            Version::Tls12 => {
                key[..key_len].copy_from_slice(&secret[..key_len]);
                iv.copy_from_slice(&secret[TLS12_IV_AT..TLS12_IV_AT + IV_BYTES]);
            }
        }
        Material { key, key_len, iv }
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key[..self.key_len]
    }
}

/// Switches a TLS 1.3 direction to its next generation (RFC 8446 section 7.2): next secret,
/// sequence number 0, no expanded key.
pub(crate) fn next_generation(
    suite: Suite,
    direction: &mut Direction,
    place: &mut Option<DirectionKey>,
) {
    let prk = prk(suite, &direction.secret);
    expand_label(&prk, b"traffic upd", &mut direction.secret[..hash_len(suite)]);
    direction.seq = 0;
    *place = None;
}

/// Most records that one key may seal. AES-GCM: 2^24, below the limit of 2^24.5 full-size records
/// in RFC 8446 section 5.5. ChaCha20-Poly1305 has no such limit; there the sequence number must not
/// wrap, with room left for an alert.
pub(crate) const fn records_max(suite: Suite) -> u64 {
    match suite {
        Suite::Aes128Gcm | Suite::Aes256Gcm => 1 << 24,
        Suite::ChaCha20Poly1305 => u64::MAX - (1 << 16),
    }
}

fn prk(suite: Suite, secret: &[u8; SECRET_BYTES]) -> hmac::Key {
    let algorithm = match suite {
        Suite::Aes128Gcm | Suite::ChaCha20Poly1305 => hmac::HMAC_SHA256,
        Suite::Aes256Gcm => hmac::HMAC_SHA384,
    };
    hmac::Key::new(algorithm, &secret[..hash_len(suite)])
}

/// HKDF-Expand-Label with an empty context (RFC 8446 section 7.1), for outputs no longer than the
/// hash. HKDF-Expand is then its first block alone, HMAC(prk, info | 1) (RFC 5869 2.3).
fn expand_label(prk: &hmac::Key, label: &[u8], out: &mut [u8]) {
    const PREFIX: &[u8] = b"tls13 ";
    // 2 length + 1 label length + 6 prefix + at most 11 label + 1 context length + 1 counter.
    let mut info = [0; 22];
    let label_end = 3 + PREFIX.len() + label.len();
    info[1] = out.len() as u8;
    info[2] = (PREFIX.len() + label.len()) as u8;
    info[3..3 + PREFIX.len()].copy_from_slice(PREFIX);
    info[3 + PREFIX.len()..label_end].copy_from_slice(label);
    info[label_end + 1] = 1;
    let tag = hmac::sign(prk, &info[..label_end + 2]);
    out.copy_from_slice(&tag.as_ref()[..out.len()]);
}

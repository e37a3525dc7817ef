//! Sealed values: what is in the store can be neither read nor exchanged by who only has the store.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use zeroize::Zeroizing;

/// First byte of a sealed value.
const VERSION: u8 = 1;
/// Bytes before the ciphertext.
const HEAD_BYTES: usize = 1 + NONCE_LEN;
const KEY_BYTES: usize = 32;

/// The reason why a sealed value does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It was sealed with another secret or under another name, or has changed since.
    #[error("it was sealed with another secret, or was changed")]
    Forged,
    /// It is too short.
    #[error("it is cut")]
    Short,
    /// Another version of Eyelet wrote it.
    #[error("it has version {0}, and this Eyelet reads version {VERSION}")]
    Version(u8),
}

/// Seals and opens values with the key of a fleet.
pub struct Sealer(RandomizedNonceKey);

impl Sealer {
    /// Derives the key from the fleet's secret (HKDF-SHA-256, RFC 5869).
    ///
    /// # Errors
    /// If the library fails.
    pub fn new(secret: &[u8]) -> Result<Self, Unspecified> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        derive(secret, &[b"store AES-256-GCM-SIV"], &mut *key)?;
        // GCM-SIV, because nonces are random and edges that share a key do not know of each other.
        RandomizedNonceKey::new(&AES_256_GCM_SIV, &*key).map(Self)
    }

    /// Seals a value for its name.
    ///
    /// # Errors
    /// If the library fails.
    pub fn seal(&self, name: &str, value: &[u8]) -> Result<Vec<u8>, Unspecified> {
        let mut sealed = vec![0; HEAD_BYTES];
        sealed.extend_from_slice(value);
        let (head, body) = sealed.split_at_mut(HEAD_BYTES);
        let (nonce, tag) = self.0.seal_in_place_separate_tag(aad(name), body)?;
        head[0] = VERSION;
        head[1..].copy_from_slice(nonce.as_ref());
        sealed.extend_from_slice(tag.as_ref());
        Ok(sealed)
    }

    /// Opens a value that was sealed for this name.
    pub fn open(&self, name: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        let (head, body) = sealed.split_at_checked(HEAD_BYTES).ok_or(OpenError::Short)?;
        let (version, nonce) = head.split_first().ok_or(OpenError::Short)?;
        if *version != VERSION {
            return Err(OpenError::Version(*version));
        }
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| OpenError::Short)?;
        let mut value = Zeroizing::new(body.to_vec());
        let opened = self.0.open_in_place(nonce, aad(name), &mut value);
        let len = opened.map_err(|_| OpenError::Forged)?.len();
        value.truncate(len);
        Ok(value)
    }
}

/// True if bytes have the form of a sealed value of this version.
pub fn is_sealed(bytes: &[u8]) -> bool {
    bytes.first() == Some(&VERSION) && bytes.len() >= HEAD_BYTES + AES_256_GCM_SIV.tag_len()
}

/// A name for the fleet with this secret and this store, which says nothing of the secret.
///
/// # Errors
/// If the library fails.
pub fn id(secret: &[u8], store: &str) -> Result<[u8; 16], Unspecified> {
    let mut id = [0; 16];
    derive(secret, &[b"id ", store.as_bytes()], &mut id)?;
    Ok(id)
}

fn derive(secret: &[u8], purpose: &[&[u8]], derived: &mut [u8]) -> Result<(), Unspecified> {
    struct Len(usize);
    impl KeyType for Len {
        fn len(&self) -> usize {
            self.0
        }
    }
    let prk = Salt::new(HKDF_SHA256, b"eyelet fleet").extract(secret);
    prk.expand(purpose, Len(derived.len()))?.fill(derived)
}

/// The version and the name: a value opens under its own name only.
fn aad(name: &str) -> Aad<Vec<u8>> {
    Aad::from([&[VERSION], name.as_bytes()].concat())
}

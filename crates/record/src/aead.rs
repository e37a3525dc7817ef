//! The AEAD, by the one of two libraries that is faster on this processor.

use ring::aead::{Aad, LessSafeKey, Nonce, UnboundKey};

use crate::fault::RecordFault;
use crate::suite::{IV_BYTES, Suite};

/// An expanded key. README.md has the measurements: with AVX-512, aws-lc-rs seals AES-GCM twice as
/// fast as ring; with VAES alone, ring is 1.8 times as fast. Expanding a key costs the same in
/// both. The program needs both anyway: aws-lc-rs does the handshake.
#[allow(clippy::large_enum_variant)] // on a worker's stack; boxing ring's key would cost a malloc
pub(crate) enum Aead {
    /// 544 bytes inline.
    Ring(LessSafeKey),
    /// 24 bytes inline and 600 from malloc, wiped when freed.
    AwsLc(aws_lc_rs::aead::LessSafeKey),
}

impl Aead {
    /// Expands a key. It must be as long as the suite requires.
    pub(crate) fn expand(suite: Suite, key: &[u8]) -> Result<Aead, RecordFault> {
        if suite != Suite::ChaCha20Poly1305 && has_avx512() {
            Aead::expand_aws_lc(suite, key)
        } else {
            Aead::expand_ring(suite, key)
        }
    }

    fn expand_ring(suite: Suite, key: &[u8]) -> Result<Aead, RecordFault> {
        let algorithm = match suite {
            Suite::Aes128Gcm => &ring::aead::AES_128_GCM,
            Suite::Aes256Gcm => &ring::aead::AES_256_GCM,
            Suite::ChaCha20Poly1305 => &ring::aead::CHACHA20_POLY1305,
        };
        let key = UnboundKey::new(algorithm, key).map_err(|_| RecordFault::Provider)?;
        Ok(Aead::Ring(LessSafeKey::new(key)))
    }

    fn expand_aws_lc(suite: Suite, key: &[u8]) -> Result<Aead, RecordFault> {
        use aws_lc_rs::aead::{self, LessSafeKey, UnboundKey};
        let algorithm = match suite {
            Suite::Aes128Gcm => &aead::AES_128_GCM,
            Suite::Aes256Gcm => &aead::AES_256_GCM,
            Suite::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        };
        let key = UnboundKey::new(algorithm, key).map_err(|_| RecordFault::Provider)?;
        Ok(Aead::AwsLc(LessSafeKey::new(key)))
    }

    /// Opens ciphertext and tag in place. Returns the length of the plaintext, which is the first
    /// part of `sealed`.
    pub(crate) fn open(
        &self,
        nonce: [u8; IV_BYTES],
        aad: &[u8],
        sealed: &mut [u8],
    ) -> Result<usize, RecordFault> {
        let plain = match self {
            Aead::Ring(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.open_in_place(nonce, Aad::from(aad), sealed)
                    .map_err(|_| RecordFault::BadRecordMac)
            }
            Aead::AwsLc(key) => {
                use aws_lc_rs::aead::{Aad, Nonce};
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.open_in_place(nonce, Aad::from(aad), sealed)
                    .map_err(|_| RecordFault::BadRecordMac)
            }
        };
        plain.map(|plain| plain.len())
    }

    /// Seals `plain` in place and writes its tag of 16 bytes.
    pub(crate) fn seal(
        &self,
        nonce: [u8; IV_BYTES],
        aad: &[u8],
        plain: &mut [u8],
        tag: &mut [u8],
    ) -> Result<(), RecordFault> {
        match self {
            Aead::Ring(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                let sealed = key
                    .seal_in_place_separate_tag(nonce, Aad::from(aad), plain)
                    .map_err(|_| RecordFault::Provider)?;
                tag.copy_from_slice(sealed.as_ref());
            }
            Aead::AwsLc(key) => {
                use aws_lc_rs::aead::{Aad, Nonce};
                let nonce = Nonce::assume_unique_for_key(nonce);
                let sealed = key
                    .seal_in_place_separate_tag(nonce, Aad::from(aad), plain)
                    .map_err(|_| RecordFault::Provider)?;
                tag.copy_from_slice(sealed.as_ref());
            }
        }
        Ok(())
    }
}

/// True if aws-lc's AES-GCM for AVX-512 runs on this processor: it checks the same features.
#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    std::is_x86_feature_detected!("avx512f")
        && std::is_x86_feature_detected!("avx512dq")
        && std::is_x86_feature_detected!("avx512bw")
        && std::is_x86_feature_detected!("avx512vl")
        && std::is_x86_feature_detected!("vaes")
        && std::is_x86_feature_detected!("vpclmulqdq")
}

#[cfg(not(target_arch = "x86_64"))]
const fn has_avx512() -> bool {
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Both libraries seal to the same bytes: the processor chooses the library.
    #[test]
    fn both_libraries_make_the_same_bytes() {
        for suite in [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
            let key = &[5; 32][..crate::suite::key_len(suite)];
            let (ring, aws_lc) =
                (Aead::expand_ring(suite, key).unwrap(), Aead::expand_aws_lc(suite, key).unwrap());
            for len in [0, 1, 16, 100, 255, 256, 257, 16_384, 16_385] {
                let mut sealed = [vec![8; len + 16], vec![8; len + 16]];
                for (aead, sealed) in [&ring, &aws_lc].into_iter().zip(&mut sealed) {
                    let (plain, tag) = sealed.split_at_mut(len);
                    aead.seal([3; 12], b"head", plain, tag).unwrap();
                }
                let [by_ring, by_aws_lc] = &mut sealed;
                assert_eq!(by_ring, by_aws_lc, "{suite:?} {len}");
                assert_eq!(ring.open([3; 12], b"head", by_aws_lc), Ok(len));
                assert_eq!(aws_lc.open([3; 12], b"head", by_ring), Ok(len));
                assert_eq!(by_ring[..len], vec![8; len]);
                assert_eq!(by_ring, by_aws_lc);
            }
            for aead in [ring, aws_lc] {
                assert_eq!(aead.open([3; 12], b"", &mut [0; 20]), Err(RecordFault::BadRecordMac));
                assert_eq!(aead.open([3; 12], b"", &mut [0; 15]), Err(RecordFault::BadRecordMac));
            }
        }
    }
}

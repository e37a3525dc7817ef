//! Compression dictionaries (RFC 9842): who may use which, how they are announced, and how they are
//! stored.

pub mod available;
pub mod learned;
pub mod offer;
pub mod pattern;
pub mod store;
pub mod train;
pub mod use_as;

use std::fmt;

use crate::accept::Coding;

/// SHA-256 of a dictionary: its decoded content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub [u8; 32]);

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Hash {
    /// Reads 64 lower-case hexadecimal digits, the only accepted spelling.
    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 64 || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return None;
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| !pair.starts_with('+'))?;
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        Some(Self(hash))
    }
}

/// Appends what precedes the coded bytes: the dictionary's hash in a frame that plain decoders skip
/// (dcz, RFC 9842 section 5) or do not know (dcb, section 4). Nothing for other codings.
pub fn header(coding: Coding, dictionary: Hash, out: &mut Vec<u8>) {
    match coding {
        Coding::Dcz => out.extend_from_slice(&DCZ_MAGIC),
        Coding::Dcb => out.extend_from_slice(&DCB_MAGIC),
        Coding::Zstd | Coding::Br | Coding::Gzip => return,
    }
    out.extend_from_slice(&dictionary.0);
}

/// The header of a skippable zstd frame of 32 bytes.
const DCZ_MAGIC: [u8; 8] = [0x5E, 0x2A, 0x4D, 0x18, 0x20, 0, 0, 0];
const DCB_MAGIC: [u8; 4] = [0xFF, 0x44, 0x43, 0x42];

/// Most bytes of one dictionary: clients still store it, and a delta takes about a second.
pub const DICTIONARY_BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_the_rfc() {
        let hash = Hash([7; 32]);
        for (coding, magic) in [
            (Coding::Dcz, &[0x5E, 0x2A, 0x4D, 0x18, 0x20, 0x00, 0x00, 0x00][..]),
            (Coding::Dcb, &[0xFF, 0x44, 0x43, 0x42]),
        ] {
            let mut out = Vec::new();
            header(coding, hash, &mut out);
            assert_eq!(out, [magic, &[7; 32]].concat());
        }
    }

    #[test]
    fn a_hash_has_one_spelling() {
        let hash = Hash(std::array::from_fn(|at| at as u8 * 7));
        assert_eq!(Hash::from_hex(&hash.to_string()), Some(hash));
        let text = hash.to_string();
        for wrong in [&text[1..], &text.to_uppercase(), &text.replacen("00", "+0", 1), ""] {
            assert_eq!(Hash::from_hex(wrong), None, "{wrong}");
        }
    }
}

//! JA4, FoxIO's fingerprint of a TLS client (`technical_details/JA4.md` in their repository; JA4
//! itself is BSD-licensed). SHA-256 is the caller's: this crate must know no cryptography, and
//! must not know what a fingerprint is good for.

use crate::hello::parts::{ALPN, SERVER_NAME};
use crate::hello::{Hello, Sni, is_grease};
use core::fmt;

/// Characters of a fingerprint: 10, `_`, 12, `_`, 12.
pub const JA4_LEN: usize = 36;

/// Most cipher suites, extensions, and signature algorithms, each, that are hashed. All code
/// points that IANA has ever assigned would fit (some 350 suites are the most); the sorting
/// buffers are on the stack.
pub const LIST_LEN_MAX: usize = 512;

/// In place of a hash, where a list has more than [`LIST_LEN_MAX`] entries. As good as no SHA-256
/// begins like this, so such a hello matches no fingerprint that was seen in the wild.
pub const OVERFLOW: [u8; HASH_LEN] = *b"ffffffffffff";

/// In place of a hash, where a list has no entry ("this makes it clear to the user when a field
/// has no values").
const NONE: [u8; HASH_LEN] = *b"000000000000";

/// Characters of each hash that are kept.
const HASH_LEN: usize = 12;

/// "If there's > 99, which there should never be, then output 99."
const COUNT_MAX: usize = 99;

/// Bytes of the longest text that is hashed: two lists of four hex digits and a separator each.
const TEXT_LEN_MAX: usize = 2 * LIST_LEN_MAX * 5;

/// A JA4 fingerprint, such as `t13d1516h2_8daaf6152771_e5627efa2ab1`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ja4([u8; JA4_LEN]);

/// The fingerprint of this hello, as of a client over TCP. `sha256` is called at most twice.
pub fn ja4(hello: &Hello<'_>, sha256: impl Fn(&[u8]) -> [u8; 32]) -> Ja4 {
    let mut text = Text { bytes: [0; JA4_LEN], len: 0 };
    text.push(b"t");
    text.push(version(hello));
    text.push(if matches!(hello.sni(), Sni::Absent) { b"i" } else { b"d" });
    text.push_count(plain(hello.cipher_suites()).count());
    text.push_count(plain(hello.extensions()).count());
    text.push(&alpn_characters(hello));
    text.push(b"_");
    text.push(&cipher_hash(hello, &sha256));
    text.push(b"_");
    text.push(&extension_hash(hello, &sha256));
    Ja4(text.bytes)
}

/// "The program needs to ignore GREASE values anywhere it sees them."
fn plain(values: impl Iterator<Item = u16>) -> impl Iterator<Item = u16> {
    values.filter(|&value| !is_grease(value))
}

/// "If extension 0x002b exists (supported_versions), then the version is the highest value in the
/// extension."
fn version(hello: &Hello<'_>) -> &'static [u8] {
    match plain(hello.versions()).max() {
        Some(0x0304) => b"13",
        Some(0x0303) => b"12",
        Some(0x0302) => b"11",
        Some(0x0301) => b"10",
        Some(0x0300) => b"s3",
        Some(0x0002) => b"s2",
        Some(0xfeff) => b"d1",
        Some(0xfefd) => b"d2",
        Some(0xfefc) => b"d3",
        _ => b"00",
    }
}

/// First and last character of the first protocol, or of its hex digits unless both characters
/// are alphanumeric.
fn alpn_characters(hello: &Hello<'_>) -> [u8; 2] {
    let first_name = hello.alpn().next();
    let Some((&first, &last)) =
        first_name.and_then(|name| name.as_bytes().first().zip(name.as_bytes().last()))
    else {
        return *b"00";
    };
    if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
        [first, last]
    } else {
        [hex_digit(first >> 4), hex_digit(last & 0xf)]
    }
}

fn cipher_hash(hello: &Hello<'_>, sha256: impl Fn(&[u8]) -> [u8; 32]) -> [u8; HASH_LEN] {
    let mut text = Text { bytes: [0; TEXT_LEN_MAX], len: 0 };
    let mut sorted = [0; LIST_LEN_MAX];
    let Some(sorted) = sort(plain(hello.cipher_suites()), &mut sorted) else { return OVERFLOW };
    text.push_list(sorted);
    hash(&text, sha256)
}

/// Sorted extensions but SNI and ALPN, which part a has already, then the signature algorithms
/// as they come. Without extensions there is nothing to hash: the algorithms are in one.
fn extension_hash(hello: &Hello<'_>, sha256: impl Fn(&[u8]) -> [u8; 32]) -> [u8; HASH_LEN] {
    let mut text = Text { bytes: [0; TEXT_LEN_MAX], len: 0 };
    let mut list = [0; LIST_LEN_MAX];
    let others = plain(hello.extensions()).filter(|t| !matches!(*t, SERVER_NAME | ALPN));
    let Some(sorted) = sort(others, &mut list) else { return OVERFLOW };
    text.push_list(sorted);
    let Some(algorithms) = fill(plain(hello.signature_algorithms()), &mut list) else {
        return OVERFLOW;
    };
    if !algorithms.is_empty() {
        text.push(b"_");
        text.push_list(algorithms);
    }
    hash(&text, sha256)
}

/// The values in `into`, or `None` if they do not fit.
fn fill(values: impl Iterator<Item = u16>, into: &mut [u16; LIST_LEN_MAX]) -> Option<&mut [u16]> {
    let mut len = 0;
    for value in values {
        *into.get_mut(len)? = value;
        len += 1;
    }
    into.get_mut(..len)
}

fn sort(values: impl Iterator<Item = u16>, into: &mut [u16; LIST_LEN_MAX]) -> Option<&[u16]> {
    let list = fill(values, into)?;
    list.sort_unstable();
    Some(list)
}

/// The first digits of the text's SHA-256 in lower-case hex.
fn hash(text: &Text<TEXT_LEN_MAX>, sha256: impl Fn(&[u8]) -> [u8; 32]) -> [u8; HASH_LEN] {
    let text = text.bytes.get(..text.len).unwrap_or_default();
    if text.is_empty() {
        return NONE;
    }
    let digest = sha256(text);
    let mut hex = [0; HASH_LEN];
    for (pair, byte) in hex.chunks_exact_mut(2).zip(digest) {
        pair.copy_from_slice(&[hex_digit(byte >> 4), hex_digit(byte & 0xf)]);
    }
    hex
}

const fn hex_digit(nibble: u8) -> u8 {
    b"0123456789abcdef"[(nibble & 0xf) as usize]
}

/// ASCII of bounded length, written from the front. The bounds are such that all fits.
struct Text<const MAX: usize> {
    bytes: [u8; MAX],
    len: usize,
}

impl<const MAX: usize> Text<MAX> {
    fn push(&mut self, ascii: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + ascii.len()) {
            room.copy_from_slice(ascii);
            self.len += ascii.len();
        }
    }

    /// Two decimal digits.
    fn push_count(&mut self, count: usize) {
        let count = count.min(COUNT_MAX);
        self.push(&[hex_digit((count / 10) as u8), hex_digit((count % 10) as u8)]);
    }

    /// Four hex digits each, with commas between.
    fn push_list(&mut self, values: &[u16]) {
        for (i, value) in values.iter().enumerate() {
            if i > 0 {
                self.push(b",");
            }
            let [high, low] = value.to_be_bytes();
            self.push(&[high >> 4, high, low >> 4, low].map(hex_digit));
        }
    }
}

impl Ja4 {
    /// The fingerprint as text.
    pub fn as_str(&self) -> &str {
        // ASCII by construction, which the compiler cannot see: the fallback is never taken.
        core::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl AsRef<str> for Ja4 {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Ja4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Ja4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests;

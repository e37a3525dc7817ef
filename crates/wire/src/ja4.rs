//! JA4, FoxIO's fingerprint of a TLS client (`technical_details/JA4.md` in their repository; JA4
//! itself is BSD-licensed). SHA-256 is the caller's: this crate must know no cryptography, and
//! must not know what a fingerprint is good for.

use crate::hello::parts::{ALPN, SERVER_NAME};
use crate::hello::{Hello, Sni, is_grease};
use core::fmt;

/// Characters of a fingerprint: 10, `_`, 12, `_`, 12.
pub const JA4_LEN: usize = 36;

/// Most cipher suites, extensions, and signature algorithms, each, that are hashed. All code
/// points that IANA has ever assigned would fit (some 350 suites are the most); the buffers are
/// on the stack.
pub const LIST_LEN_MAX: usize = 512;

/// Longer lists than clients send: up to here the buffers are a tenth, and so is clearing them,
/// which cost more than all the rest.
const LIST_LEN_USUAL: usize = 64;

/// In place of a hash, where a list has more than [`LIST_LEN_MAX`] entries. As good as no SHA-256
/// begins like this, so such a hello matches no fingerprint that was seen in the wild.
pub const OVERFLOW: [u8; HASH_LEN] = *b"ffffffffffff";

/// In place of a hash, where a list has no entry ("this makes it clear to the user when a field
/// has no values").
const NONE: [u8; HASH_LEN] = *b"000000000000";

/// Characters of each hash that are kept.
const HASH_LEN: usize = 12;

/// The highest count that two digits tell.
const COUNT_MAX: usize = 99;

/// A JA4 fingerprint, such as `t13d1516h2_8daaf6152771_e5627efa2ab1`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ja4([u8; JA4_LEN]);

/// A list of the hello: how many values it has, and the hash of what is hashed of it, or `None`
/// if it is longer than the buffers.
type Part = (usize, Option<[u8; HASH_LEN]>);

/// A value in hex, and what divides it from the next.
type Item = [u8; 5];

/// The fingerprint of this hello, as of a client over TCP. `sha256` is called at most twice.
pub fn ja4(hello: &Hello<'_>, sha256: impl Fn(&[u8]) -> [u8; 32]) -> Ja4 {
    let suites = match suites::<LIST_LEN_USUAL>(hello, &sha256) {
        (_, None) => long_suites(hello, &sha256),
        usual => usual,
    };
    let extensions = match extensions::<LIST_LEN_USUAL>(hello, &sha256) {
        (_, None) => long_extensions(hello, &sha256),
        usual => usual,
    };
    let mut text = Text { bytes: [0; JA4_LEN], len: 0 };
    text.push(b"t");
    text.push(version(hello));
    text.push(if matches!(hello.sni(), Sni::Absent) { b"i" } else { b"d" });
    text.push(&count_digits(suites.0));
    text.push(&count_digits(extensions.0));
    text.push(&alpn_characters(hello));
    text.push(b"_");
    text.push(&suites.1.unwrap_or(OVERFLOW));
    text.push(b"_");
    text.push(&extensions.1.unwrap_or(OVERFLOW));
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
        first_name.as_ref().and_then(|name| name.as_bytes().first().zip(name.as_bytes().last()))
    else {
        return *b"00";
    };
    if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
        [first, last]
    } else {
        [hex_digit(first >> 4), hex_digit(last & 0xf)]
    }
}

fn suites<const MAX: usize>(hello: &Hello<'_>, sha256: impl Fn(&[u8]) -> [u8; 32]) -> Part {
    let mut list = List::<MAX>::of(plain(hello.cipher_suites()));
    let count = list.len;
    let Some(suites) = list.whole() else { return (count, None) };
    suites.sort_unstable();
    let mut text = [Item::default(); MAX];
    write(suites, &mut text);
    (count, Some(hash(text.get(..count).unwrap_or_default(), sha256)))
}

/// Sorted extensions but SNI and ALPN, which part a has already, then the signature algorithms
/// as they come. Without extensions there is nothing to hash: the algorithms are in one.
fn extensions<const MAX: usize>(hello: &Hello<'_>, sha256: impl Fn(&[u8]) -> [u8; 32]) -> Part {
    let mut count = 0;
    let all = plain(hello.extensions()).inspect(|_| count += 1);
    let mut list = List::<MAX>::of(all.filter(|t| !matches!(*t, SERVER_NAME | ALPN)));
    let mut text = [[Item::default(); MAX]; 2];
    let text = text.as_flattened_mut();
    let Some(others) = list.whole() else { return (count, None) };
    others.sort_unstable();
    write(others, text);
    let mut len = others.len();
    let mut list = List::<MAX>::of(plain(hello.signature_algorithms()));
    let Some(algorithms) = list.whole() else { return (count, None) };
    if let Some((before, room)) = text.split_at_mut_checked(len)
        && let [.., [.., divider]] = before
        && !algorithms.is_empty()
    {
        *divider = b'_';
        write(algorithms, room);
        len += algorithms.len();
    }
    (count, Some(hash(text.get(..len).unwrap_or_default(), sha256)))
}

#[cold]
#[inline(never)]
fn long_suites(hello: &Hello<'_>, sha256: impl Fn(&[u8]) -> [u8; 32]) -> Part {
    suites::<LIST_LEN_MAX>(hello, sha256)
}

#[cold]
#[inline(never)]
fn long_extensions(hello: &Hello<'_>, sha256: impl Fn(&[u8]) -> [u8; 32]) -> Part {
    extensions::<LIST_LEN_MAX>(hello, sha256)
}

/// Values as they come; those that do not fit are counted only.
struct List<const MAX: usize> {
    values: [u16; MAX],
    len: usize,
}

impl<const MAX: usize> List<MAX> {
    #[inline(always)]
    fn of(values: impl Iterator<Item = u16>) -> Self {
        let mut list = Self { values: [0; MAX], len: 0 };
        for value in values {
            if let Some(place) = list.values.get_mut(list.len) {
                *place = value;
            }
            list.len += 1;
        }
        list
    }

    /// The values, or `None` if not all are there.
    fn whole(&mut self) -> Option<&mut [u16]> {
        self.values.get_mut(..self.len)
    }
}

/// Four hex digits each, with a comma behind.
fn write(values: &[u16], text: &mut [Item]) {
    for (item, value) in text.iter_mut().zip(values) {
        let [a, b, c, d] = hex(*value);
        *item = [a, b, c, d, b','];
    }
}

/// Four digits at once: each nibble in a byte of its own, then `a` is as far from `0` as 10 and
/// 39 more. Six more than 9 carry into the fifth bit, and that tells the letters.
const fn hex(value: u16) -> [u8; 4] {
    let value = value as u32;
    let nibbles = (value & 0xf000) << 12 | (value & 0xf00) << 8 | (value & 0xf0) << 4 | value & 0xf;
    let letters = ((nibbles + 0x0606_0606) >> 4) & 0x0101_0101;
    (nibbles + 0x3030_3030 + letters * 39).to_be_bytes()
}

/// The first digits of the text's SHA-256 in lower-case hex.
fn hash(text: &[Item], sha256: impl Fn(&[u8]) -> [u8; 32]) -> [u8; HASH_LEN] {
    // The last divider divides nothing.
    let [text @ .., _] = text.as_flattened() else { return NONE };
    let digest = sha256(text);
    let [a, b, c, d, e, f, ..] = digest;
    let mut digits = [0; HASH_LEN];
    for (four, pair) in digits.as_chunks_mut().0.iter_mut().zip([[a, b], [c, d], [e, f]]) {
        *four = hex(u16::from_be_bytes(pair));
    }
    digits
}

/// "If there's > 99, which there should never be, then output 99."
fn count_digits(count: usize) -> [u8; 2] {
    let count = count.min(COUNT_MAX);
    [hex_digit((count / 10) as u8), hex_digit((count % 10) as u8)]
}

const fn hex_digit(nibble: u8) -> u8 {
    b"0123456789abcdef"[(nibble & 0xf) as usize]
}

/// The fingerprint while it is written, from the front. Its parts are such that all fits.
struct Text {
    bytes: [u8; JA4_LEN],
    len: usize,
}

impl Text {
    fn push(&mut self, ascii: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + ascii.len()) {
            room.copy_from_slice(ascii);
            self.len += ascii.len();
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

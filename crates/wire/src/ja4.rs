//! JA4, FoxIO's fingerprint of a TLS client (`technical_details/JA4.md` in their repository; JA4
//! itself is BSD-licensed). The caller provides SHA-256, because this crate has no dependencies.

use crate::hello::parts::{ALPN, SERVER_NAME};
use crate::hello::{Hello, Sni, Transport, is_grease};
use crate::version::{SSL30, TLS10, TLS11, TLS12, TLS13};
use core::fmt;

/// Characters of a fingerprint: 10, `_`, 12, `_`, 12.
pub const JA4_LEN: usize = 36;

/// Most cipher suites, extensions, or signature algorithms that are hashed. All code points that
/// IANA has ever assigned would fit (the most are some 350 suites). The buffers are on the stack.
pub const LIST_LEN_MAX: usize = 512;

/// Longer than any client's lists. Buffers for these have an eighth of the size; clearing the large
/// ones costs more than everything else.
const LIST_LEN_USUAL: usize = 64;

/// Separates extensions from signature algorithms. A GREASE value, which neither list contains.
const DIVIDER: u16 = 0x0a0a;

/// Replaces a hash if a list has more than [`LIST_LEN_MAX`] entries. A SHA-256 hardly ever begins
/// like this, so such a hello matches no fingerprint that was seen in the wild.
pub const OVERFLOW: [u8; HASH_LEN] = *b"ffffffffffff";

/// Replaces a hash if a list is empty ("this makes it clear to the user when a field has no
/// values").
const NONE: [u8; HASH_LEN] = *b"000000000000";

/// Characters of each hash that are kept.
const HASH_LEN: usize = 12;

/// The highest count in two digits.
const COUNT_MAX: usize = 99;

/// A JA4 fingerprint, such as `t13d1516h2_8daaf6152771_e5627efa2ab1`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ja4([u8; JA4_LEN]);

/// The first hex digits of a SHA-256. A fingerprint contains two of these.
pub type HashPrefix = [u8; HASH_LEN];

/// A list of the hello: its length, and its hash, or `None` if it is longer than the buffers.
type Part = (usize, Option<HashPrefix>);

/// A value in hex, and the separator after it.
type Item = [u8; 5];

/// The fingerprint of this hello. `sha256` is called at most twice.
pub fn ja4(hello: &Hello<'_>, sha256: impl Fn(&[u8]) -> [u8; 32]) -> Ja4 {
    ja4_by_lists(hello, |list| list_hash(list, &sha256))
}

/// Makes the JA4 from hashes that the caller may know already: `hash` must return the [`list_hash`]
/// of at most two lists. Most clients send the same lists in all hellos.
pub fn ja4_by_lists(hello: &Hello<'_>, mut hash: impl FnMut(&[u16]) -> HashPrefix) -> Ja4 {
    let suites = match suites::<LIST_LEN_USUAL>(hello, &mut hash) {
        (_, None) => long_suites(hello, &mut hash),
        usual => usual,
    };
    let extensions = match extensions::<LIST_LEN_USUAL>(hello, &mut hash) {
        (_, None) => long_extensions(hello, &mut hash),
        usual => usual,
    };
    let mut text = Text { bytes: [0; JA4_LEN], len: 0 };
    text.push(match hello.transport() {
        Transport::Tcp => b"t",
        Transport::Quic => b"q",
    });
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

/// The hash of a list for [`ja4_by_lists`]: of its values as text.
pub fn list_hash(list: &[u16], sha256: impl Fn(&[u8]) -> [u8; 32]) -> HashPrefix {
    if list.len() <= 2 * LIST_LEN_USUAL {
        text_hash(list, &mut [Item::default(); 2 * LIST_LEN_USUAL], sha256)
    } else {
        long_list_hash(list, sha256)
    }
}

/// "The program needs to ignore GREASE values anywhere it sees them."
fn plain(values: impl Iterator<Item = u16>) -> impl Iterator<Item = u16> {
    values.filter(|&value| !is_grease(value))
}

/// "If extension 0x002b exists (supported_versions), then the version is the highest value in the
/// extension."
fn version(hello: &Hello<'_>) -> &'static [u8] {
    match plain(hello.versions()).max() {
        Some(TLS13) => b"13",
        Some(TLS12) => b"12",
        Some(TLS11) => b"11",
        Some(TLS10) => b"10",
        Some(SSL30) => b"s3",
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

fn suites<const MAX: usize>(hello: &Hello<'_>, hash: impl FnMut(&[u16]) -> HashPrefix) -> Part {
    let mut list = [0; MAX];
    let count = fill(plain(hello.cipher_suites()), &mut list);
    let Some(list) = list.get_mut(..count) else { return (count, None) };
    list.sort_unstable();
    (count, Some(hash_of(list, hash)))
}

/// The sorted extensions without SNI and ALPN, which part a covers, then the signature algorithms
/// in their order. Without extensions there is nothing to hash: the algorithms are in one.
fn extensions<const MAX: usize>(hello: &Hello<'_>, hash: impl FnMut(&[u16]) -> HashPrefix) -> Part {
    let mut count = 0;
    let all = plain(hello.extensions()).inspect(|_| count += 1);
    let mut lists = [[0; MAX]; 3];
    let [others, ..] = &mut lists;
    let len = fill(all.filter(|t| !matches!(*t, SERVER_NAME | ALPN)), others);
    let Some(others) = others.get_mut(..len) else { return (count, None) };
    others.sort_unstable();
    let Some([divider, rest @ ..]) = lists.as_flattened_mut().get_mut(len..) else {
        return (count, None);
    };
    *divider = DIVIDER;
    let algorithms = fill(plain(hello.signature_algorithms()), rest);
    if algorithms > MAX {
        return (count, None);
    }
    let len = if algorithms > 0 { len + 1 + algorithms } else { len };
    (count, Some(hash_of(lists.as_flattened().get(..len).unwrap_or_default(), hash)))
}

#[cold]
#[inline(never)]
fn long_suites(hello: &Hello<'_>, hash: impl FnMut(&[u16]) -> HashPrefix) -> Part {
    suites::<LIST_LEN_MAX>(hello, hash)
}

#[cold]
#[inline(never)]
fn long_extensions(hello: &Hello<'_>, hash: impl FnMut(&[u16]) -> HashPrefix) -> Part {
    extensions::<LIST_LEN_MAX>(hello, hash)
}

#[cold]
#[inline(never)]
fn long_list_hash(list: &[u16], sha256: impl Fn(&[u8]) -> [u8; 32]) -> HashPrefix {
    text_hash(list, &mut [Item::default(); 2 * LIST_LEN_MAX], sha256)
}

/// Writes the values as far as there is room. Returns how many there are.
fn fill(values: impl Iterator<Item = u16>, into: &mut [u16]) -> usize {
    let mut count = 0;
    for value in values {
        if let Some(place) = into.get_mut(count) {
            *place = value;
        }
        count += 1;
    }
    count
}

fn hash_of(list: &[u16], mut hash: impl FnMut(&[u16]) -> HashPrefix) -> HashPrefix {
    if list.is_empty() { NONE } else { hash(list) }
}

/// Four hex digits per value with commas between, and an underscore at the divider.
fn text_hash(list: &[u16], text: &mut [Item], sha256: impl Fn(&[u8]) -> [u8; 32]) -> HashPrefix {
    let mut len = 0;
    for value in list {
        if *value == DIVIDER {
            if let Some([.., [.., behind]]) = text.get_mut(..len) {
                *behind = b'_';
            }
            continue;
        }
        let Some(item) = text.get_mut(len) else { return OVERFLOW };
        let [high, low] = value.to_be_bytes();
        let [a, b, c, d] = [high >> 4, high, low >> 4, low].map(hex_digit);
        *item = [a, b, c, d, b','];
        len += 1;
    }
    // The last value has no separator after it.
    let [text @ .., _] = text.get(..len).unwrap_or_default().as_flattened() else { return NONE };
    let mut hex = [0; HASH_LEN];
    for (pair, byte) in hex.chunks_exact_mut(2).zip(sha256(text)) {
        pair.copy_from_slice(&[hex_digit(byte >> 4), hex_digit(byte & 0xf)]);
    }
    hex
}

/// "If there's > 99, which there should never be, then output 99."
fn count_digits(count: usize) -> [u8; 2] {
    let count = count.min(COUNT_MAX);
    [hex_digit((count / 10) as u8), hex_digit((count % 10) as u8)]
}

const fn hex_digit(nibble: u8) -> u8 {
    b"0123456789abcdef"[(nibble & 0xf) as usize]
}

/// The fingerprint while it is written. Its parts always fit.
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
    /// Reads a fingerprint from text. `None` unless it has 36 characters, each an ASCII letter, a
    /// digit or `_`.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes().try_into().ok()?;
        let is_one = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_one.then_some(Self(bytes))
    }

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

// They need SHA-256, whose C miri does not run.
#[cfg(all(test, not(miri)))]
mod tests;

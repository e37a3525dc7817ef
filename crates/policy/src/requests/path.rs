//! The normal form of a request's path. A path that two origins could read in different ways has
//! none: so no origin serves another path than the one that a rule was asked about.

use std::borrow::Cow;
use std::fmt;

/// The fault of a path without a normal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathFault {
    /// `\` or `%5C`: Windows reads a slash.
    Backslash,
    /// An encoded control character, such as `%00`: some origins end the path there.
    Control,
    /// A segment `.` or `..`, encoded or not: some origins leave the folder, others do not.
    DotSegment,
    /// `%25` before two hexadecimal digits, or before `u` and one (`%u002e`, which some origins
    /// decode): what is decoded twice becomes something else.
    DoubleEncoding,
    /// `//`: some origins merge the slashes.
    EmptySegment,
    /// `%2F`: some origins read a slash.
    EncodedSlash,
    /// `%` without two hexadecimal digits behind it.
    Malformed,
    /// It is no path: it does not begin with a slash.
    NoPath,
    /// Encoded bytes that are not UTF-8.
    NotUtf8,
    /// `;` or `%3B`: some origins drop what follows it in its segment.
    Parameter,
    /// A character that a path does not have without encoding (RFC 3986 section 3.3).
    Unencoded,
}

impl PathFault {
    /// The fault as the reason of a refusal.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Backslash => "ambiguous path: a backslash",
            Self::Control => "ambiguous path: an encoded control character",
            Self::DotSegment => "ambiguous path: a segment \".\" or \"..\"",
            Self::DoubleEncoding => "ambiguous path: an encoding of an encoding",
            Self::EmptySegment => "ambiguous path: two slashes in a row",
            Self::EncodedSlash => "ambiguous path: an encoded slash",
            Self::Malformed => "ambiguous path: a percent sign that encodes nothing",
            Self::NoPath => "ambiguous path: it does not begin with a slash",
            Self::NotUtf8 => "ambiguous path: encoded bytes that are not UTF-8",
            Self::Parameter => "ambiguous path: a semicolon",
            Self::Unencoded => "ambiguous path: a character that must be encoded",
        }
    }
}

impl fmt::Display for PathFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for PathFault {}

/// The class of a byte of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteClass {
    /// It stands for itself, encoded or not.
    Plain,
    Dot,
    Slash,
    Percent,
    Semicolon,
    Backslash,
    Control,
    /// It is always written encoded: a space, a quote, `#`, `?`, a byte of a longer character.
    Encoded,
}

/// A table by byte: each request's path is looked through.
const CLASSES: [ByteClass; 256] = {
    let mut classes = [ByteClass::Encoded; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => ByteClass::Plain,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' => ByteClass::Plain,
            b'=' | b':' | b'@' => ByteClass::Plain,
            b'.' => ByteClass::Dot,
            b'/' => ByteClass::Slash,
            b'%' => ByteClass::Percent,
            b';' => ByteClass::Semicolon,
            b'\\' => ByteClass::Backslash,
            0..=0x1f | 0x7f => ByteClass::Control,
            _ => ByteClass::Encoded,
        };
        byte += 1;
    }
    classes
};

fn class(byte: u8) -> ByteClass {
    CLASSES[usize::from(byte)]
}

/// Returns the normal form of a path, which is without its query. Mostly that is the path itself.
///
/// In the normal form a character that may stand unencoded does, but for `#` and `?`, and all
/// others are encoded with upper-case digits. It has neither empty segments nor dot segments.
///
/// # Errors
/// Origins could read it in different ways.
pub fn normalize_path(path: &str) -> Result<Cow<'_, str>, PathFault> {
    if !path.starts_with('/') {
        return Err(PathFault::NoPath);
    }
    normalize_text(path)
}

/// True if all bytes are letters, digits, `-`, `_`, or slashes and dots that do not follow a slash:
/// the normal form of most paths. Each request has one, so it looks at eight bytes at once.
fn is_simple(bytes: &[u8]) -> bool {
    let is_simple = |word: [u8; WORD_BYTES]| is_simple_word(u64::from_le_bytes(word));
    let Some(last) = bytes.last_chunk() else {
        let mut word = [b'a'; WORD_BYTES];
        word[..bytes.len()].copy_from_slice(bytes);
        return is_simple(word);
    };
    // Each word begins with the last byte of the one before.
    let mut rest = bytes;
    while let Some(word) = rest.first_chunk() {
        if !is_simple(*word) {
            return false;
        }
        rest = &rest[WORD_BYTES - 1..];
    }
    is_simple(*last)
}

const WORD_BYTES: usize = size_of::<u64>();
/// The highest bit of each byte of a word.
const HIGH_BITS: u64 = each(0x80);

/// A word of eight such bytes.
const fn each(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; WORD_BYTES])
}

/// Marks the bytes of a word from `first` to `last` in their highest bits. No byte of the word has
/// that bit, so no sum carries over.
const fn within(word: u64, first: u8, last: u8) -> u64 {
    let (reaches, exceeds) = (each(0x80 - first), each(0x7f - last));
    word.wrapping_add(reaches) & !word.wrapping_add(exceeds) & HIGH_BITS
}

const fn is_simple_word(word: u64) -> bool {
    // From `-` to `9` there are no others than `.`, `/` and digits.
    let plain = within(word, b'-', b'9')
        | within(word | each(b'a' ^ b'A'), b'a', b'z')
        | within(word, b'_', b'_');
    let (slashes, dots_too) = (within(word, b'/', b'/'), within(word, b'.', b'/'));
    word & HIGH_BITS == 0 && plain == HIGH_BITS && (slashes << 8) & dots_too == 0
}

/// Normalizes a path, or a part of a glob.
pub(super) fn normalize_text(text: &str) -> Result<Cow<'_, str>, PathFault> {
    if is_simple(text.as_bytes()) {
        return Ok(Cow::Borrowed(text));
    }
    normalize_any(text)
}

/// Normalizes any text, byte by byte.
fn normalize_any(text: &str) -> Result<Cow<'_, str>, PathFault> {
    let (bytes, mut before) = (text.as_bytes(), 0);
    for (at, byte) in bytes.iter().enumerate() {
        match class(*byte) {
            ByteClass::Plain => {}
            ByteClass::Slash if before == b'/' => return Err(PathFault::EmptySegment),
            ByteClass::Slash => {}
            ByteClass::Dot if before == b'/' && is_dot_segment(&bytes[at..]) => {
                return Err(PathFault::DotSegment);
            }
            ByteClass::Dot => {}
            ByteClass::Percent => return decode(bytes, at).map(Cow::Owned),
            ByteClass::Semicolon => return Err(PathFault::Parameter),
            ByteClass::Backslash => return Err(PathFault::Backslash),
            ByteClass::Control | ByteClass::Encoded => return Err(PathFault::Unencoded),
        }
        before = *byte;
    }
    Ok(Cow::Borrowed(text))
}

/// True if a text begins with a segment `.` or `..`.
fn is_dot_segment(text: &[u8]) -> bool {
    let rest = text.strip_prefix(b"..").or_else(|| text.strip_prefix(b"."));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

/// Normalizes a path whose first percent sign is at `first`.
fn decode(bytes: &[u8], first: usize) -> Result<String, PathFault> {
    let mut normal = Vec::with_capacity(bytes.len());
    normal.extend_from_slice(&bytes[..first]);
    // The bytes that stay encoded, to see if they are whole characters.
    let mut encoded = Vec::new();
    let mut rest = &bytes[first..];
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        let (byte, is_encoded) = match (class(*byte), behind) {
            (ByteClass::Percent, [high, low, behind @ ..]) => {
                let digits = digit(*high).zip(digit(*low)).ok_or(PathFault::Malformed)?;
                rest = behind;
                (digits.0 << 4 | digits.1, true)
            }
            (ByteClass::Percent, _) => return Err(PathFault::Malformed),
            _ => (*byte, false),
        };
        if !is_encoded || byte.is_ascii() {
            check_utf8(&mut encoded)?;
        }
        match (class(byte), is_encoded) {
            (ByteClass::Plain, _) | (ByteClass::Dot, _) | (ByteClass::Slash, false) => {
                normal.push(byte);
            }
            (ByteClass::Slash, true) => return Err(PathFault::EncodedSlash),
            (ByteClass::Backslash, _) => return Err(PathFault::Backslash),
            (ByteClass::Semicolon, _) => return Err(PathFault::Parameter),
            (ByteClass::Control, true) => return Err(PathFault::Control),
            (ByteClass::Control | ByteClass::Encoded, false) => return Err(PathFault::Unencoded),
            (ByteClass::Percent, _) if is_encoding(rest) => return Err(PathFault::DoubleEncoding),
            (ByteClass::Percent | ByteClass::Encoded, _) => {
                if !byte.is_ascii() {
                    encoded.push(byte);
                }
                let digits = [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
                normal.extend_from_slice(&[b'%', digits[0], digits[1]]);
            }
        }
    }
    check_utf8(&mut encoded)?;
    let normal = String::from_utf8(normal).map_err(|_| PathFault::NotUtf8)?;
    check_segments(&normal)?;
    Ok(normal)
}

/// Checks that the encoded bytes between two others are whole characters.
fn check_utf8(encoded: &mut Vec<u8>) -> Result<(), PathFault> {
    let checked = std::str::from_utf8(encoded).map(|_| ()).map_err(|_| PathFault::NotUtf8);
    encoded.clear();
    checked
}

/// True if what follows a percent sign would be decoded with it, also where its own digits are
/// encoded.
fn is_encoding(rest: &[u8]) -> bool {
    let first = |rest: &[u8]| match rest {
        [b'%', high, low, behind @ ..] => {
            let byte = digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low);
            (byte, rest.len() - behind.len())
        }
        [byte, ..] => (Some(*byte), 1),
        [] => (None, 0),
    };
    let (high, length) = first(rest);
    let (low, _) = first(rest.get(length..).unwrap_or_default());
    let is_begun = high.is_some_and(|high| matches!(high, b'u' | b'U') || digit(high).is_some());
    is_begun && low.and_then(digit).is_some()
}

fn check_segments(path: &str) -> Result<(), PathFault> {
    let (bytes, mut before) = (path.as_bytes(), 0);
    for (at, byte) in bytes.iter().enumerate() {
        match (before, byte) {
            (b'/', b'/') => return Err(PathFault::EmptySegment),
            (b'/', b'.') if is_dot_segment(&bytes[at..]) => return Err(PathFault::DotSegment),
            _ => {}
        }
        before = *byte;
    }
    Ok(())
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::path_has_one_reading;

    #[test]
    fn a_path_has_one_form_or_none() {
        for (path, normal) in [
            ("/", Ok("/")),
            ("/a/b.txt", Ok("/a/b.txt")),
            ("/a/", Ok("/a/")),
            ("/.well-known/x", Ok("/.well-known/x")),
            ("/...", Ok("/...")),
            ("/a/..b", Ok("/a/..b")),
            ("/a/.b./c..", Ok("/a/.b./c..")),
            ("/%61%2Ftest", Err(PathFault::EncodedSlash)),
            ("/%61", Ok("/a")),
            ("/%7euser", Ok("/~user")),
            ("/%40scope/x", Ok("/@scope/x")),
            ("/a%20b%c3%a9", Ok("/a%20b%C3%A9")),
            ("/c%23/%3f", Ok("/c%23/%3F")),
            ("/100%25", Ok("/100%25")),
            ("/100%25x", Ok("/100%25x")),
            ("/%2525", Err(PathFault::DoubleEncoding)),
            ("/%252e%252e/x", Err(PathFault::DoubleEncoding)),
            ("/%25%32%65", Err(PathFault::DoubleEncoding)),
            ("/%25%32e", Err(PathFault::DoubleEncoding)),
            ("/%25u002e", Err(PathFault::DoubleEncoding)),
            ("/%25%55002e", Err(PathFault::DoubleEncoding)),
            ("/100%25used", Ok("/100%25used")),
            ("/.", Err(PathFault::DotSegment)),
            ("/..", Err(PathFault::DotSegment)),
            ("/a/./b", Err(PathFault::DotSegment)),
            ("/a/../b", Err(PathFault::DotSegment)),
            ("/a/%2e%2E/b", Err(PathFault::DotSegment)),
            ("/a/.%2e", Err(PathFault::DotSegment)),
            ("/%2e", Err(PathFault::DotSegment)),
            ("//a", Err(PathFault::EmptySegment)),
            ("/a//", Err(PathFault::EmptySegment)),
            ("/%61//", Err(PathFault::EmptySegment)),
            ("/a%2fb", Err(PathFault::EncodedSlash)),
            ("/a\\b", Err(PathFault::Backslash)),
            ("/a%5Cb", Err(PathFault::Backslash)),
            ("/a%00", Err(PathFault::Control)),
            ("/a%0d%0ab", Err(PathFault::Control)),
            ("/a;b", Err(PathFault::Parameter)),
            ("/..;/b", Err(PathFault::Parameter)),
            ("/a%3Bb", Err(PathFault::Parameter)),
            ("/a%", Err(PathFault::Malformed)),
            ("/a%2", Err(PathFault::Malformed)),
            ("/%u002e", Err(PathFault::Malformed)),
            ("/%+1", Err(PathFault::Malformed)),
            ("/%c0%af", Err(PathFault::NotUtf8)),
            ("/%c3a%a9", Err(PathFault::NotUtf8)),
            ("/%ff", Err(PathFault::NotUtf8)),
            ("/a b", Err(PathFault::Unencoded)),
            ("/\u{e9}", Err(PathFault::Unencoded)),
            ("/%61\u{e9}", Err(PathFault::Unencoded)),
            ("/a|b", Err(PathFault::Unencoded)),
            ("/a#b", Err(PathFault::Unencoded)),
            ("*", Err(PathFault::NoPath)),
            ("", Err(PathFault::NoPath)),
        ] {
            assert_eq!(normalize_path(path).as_deref(), normal.as_ref().copied(), "{path}");
            // However it lies across the bytes that are looked at together.
            for (before, behind) in [("/seven77", ""), ("", "x/1234567"), ("/a/b/c/d-e_f.g", "zz")]
            {
                let longer = format!("{before}{path}{behind}");
                assert_eq!(normalize_text(&longer), normalize_any(&longer), "{longer}");
            }
        }
    }

    proptest::proptest! {
        /// Looking at eight bytes at once finds nothing simple that is not.
        #[test]
        fn a_simple_path_is_its_normal_form(path in "[a-z_9~%é./-]{0,24}|.{0,12}") {
            let by_bytes = normalize_any(&path);
            proptest::prop_assert_eq!(normalize_text(&path), by_bytes);
        }
    }

    /// All pairs of bytes, at all places.
    #[test]
    fn each_byte_is_simple_or_not_at_any_place() {
        for (first, second) in (0..=127_u8).flat_map(|one| (0..=127_u8).map(move |two| (one, two)))
        {
            let pair = [first, second];
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
            let is_pair = pair.iter().all(|byte| is_plain(*byte))
                && !(first == b'/' && b"/.".contains(&second));
            for before in 0..WORD_BYTES + 2 {
                let text = [&b"abcdefghij"[..before], &pair, b"x"].concat();
                assert_eq!(is_simple(&text), is_pair, "{pair:?} behind {before}");
            }
        }
        assert!(!is_simple("/caf\u{e9}".as_bytes()));
    }

    #[test]
    fn a_usual_path_is_not_copied() {
        for path in ["/", "/a/b-c_d.e", "/@scope/pkg/-/pkg-1.0.0.tgz"] {
            assert!(matches!(normalize_path(path), Ok(Cow::Borrowed(_))), "{path}");
        }
    }

    /// Origins decode a path once, twice, or not at all. Those that have a normal form lead none of
    /// them out of a folder. Each path of four of these pieces is tried.
    #[test]
    fn a_path_with_a_normal_form_has_one_reading() {
        const PIECES: [&str; 23] = [
            "/", "//", ".", "..", "%2e", "%2f", "%5c", "\\", ";", "%3b", "%00", "%25", "2", "e",
            "f", "%32", "%65", "a", "%61", "%", "%c3", "%a9", "%20",
        ];
        let mut normals = 0;
        for number in 0..PIECES.len().pow(4) {
            let mut path = String::from("/");
            let mut left = number;
            for _ in 0..4 {
                path.push_str(PIECES[left % PIECES.len()]);
                left /= PIECES.len();
            }
            normals += usize::from(path_has_one_reading(&path));
        }
        assert!(normals > 1_000, "{normals}");
    }
}

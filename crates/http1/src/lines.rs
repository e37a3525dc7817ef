//! Field lines of HTTP/1.1 heads (RFC 9112 5), read in one pass. A known name takes no memory, and
//! a value is a range of the head.

use std::ops::Range;

use http::header::HeaderName;
use memchr::memchr;

use super::framing::is_hop_by_hop;

/// A field line.
#[derive(Debug)]
pub struct FieldLine {
    /// The name of its field.
    pub name: HeaderName,
    /// Its meaning to the head's reader.
    pub role: FieldRole,
    /// The place of its value in the head, without white space around it. It is not checked yet.
    pub value: Range<usize>,
    /// True if it ends in CRLF, and not in LF alone.
    pub has_crlf: bool,
}

/// The meaning of a field to the reader of its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldRole {
    /// It is passed on, and its name is a common one.
    Common,
    /// It is passed on.
    Other,
    /// `Host`.
    Host,
    /// `Content-Length`.
    ContentLength,
    /// `Connection`.
    Connection,
    /// Another field for the next hop only.
    HopByHop,
    /// `Cookie`.
    Cookie,
    /// `Date`.
    Date,
    /// `Content-Type`.
    ContentType,
    /// `Content-Encoding`.
    ContentEncoding,
    /// `Cache-Control`.
    CacheControl,
    /// `ETag`.
    Etag,
}

/// The roles of the fields in a head's map. A look-up that they spare would hash a name. A field
/// that was removed later may still count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldRoles(u16);

impl FieldRoles {
    /// Those of a head that was not read here: it may have any.
    pub const UNKNOWN: Self = Self(u16::MAX);

    /// Adds the role of a field.
    pub fn add(&mut self, role: FieldRole) {
        self.0 |= 1 << role as u8;
    }

    /// True if the head has a field of this role. `None`: it is not known.
    pub fn has(self, role: FieldRole) -> Option<bool> {
        (self != Self::UNKNOWN).then_some(self.may_have(role))
    }

    /// False if the head has no field of this role.
    pub fn may_have(self, role: FieldRole) -> bool {
        self.0 & (1 << role as u8) != 0
    }

    /// False if the head has no field for the next hop only.
    pub fn may_have_hop_by_hop(self) -> bool {
        self.may_have(FieldRole::Connection) || self.may_have(FieldRole::HopByHop)
    }
}

/// A line is no field line.
#[derive(Debug, PartialEq, Eq)]
pub struct BadLine;

/// The field lines of a head.
pub struct FieldLines<'h> {
    head: &'h [u8],
    at: usize,
    spaces: bool,
}

impl<'h> FieldLines<'h> {
    /// The lines from `at` to the end of the head, which is an empty line. With `spaces`, white
    /// space before a colon is dropped, as a proxy must do in responses (RFC 9112 5.1).
    pub fn new(head: &'h [u8], at: usize, spaces: bool) -> Self {
        Self { head, at, spaces }
    }

    /// Reads a line, up to its end.
    #[inline]
    fn read_line(&mut self, rest: &[u8]) -> Result<FieldLine, BadLine> {
        let (name, role, mut from) = match begins_known(rest) {
            Some(known) => (known.name.clone(), known.role, known.len + 1),
            None => self.read_name(rest)?,
        };
        let lf = from + find_lf(&rest[from..]).ok_or(BadLine)?;
        let (begin, mut to) = (self.at, lf);
        self.at = begin + lf + 1;
        let has_crlf = rest[..to].ends_with(b"\r");
        to -= usize::from(has_crlf);
        while from < to && is_blank(&rest[from]) {
            from += 1;
        }
        while from < to && is_blank(&rest[to - 1]) {
            to -= 1;
        }
        let value = begin + from..begin + to.max(from);
        Ok(FieldLine { name, role, value, has_crlf })
    }

    /// Reads a name that is not common, or has white space behind it, and the colon.
    #[cold]
    fn read_name(&self, rest: &[u8]) -> Result<(HeaderName, FieldRole, usize), BadLine> {
        let len = rest.iter().take_while(|byte| is_token(byte)).count();
        let mut colon = len;
        while self.spaces && rest.get(colon).is_some_and(is_blank) {
            colon += 1;
        }
        if rest.get(colon) != Some(&b':') {
            return Err(BadLine);
        }
        let name = &rest[..len];
        if let Some(known) = known(name) {
            return Ok((known.name.clone(), known.role, colon + 1));
        }
        let role = if is_hop_by_hop(name) { FieldRole::HopByHop } else { FieldRole::Other };
        let name = HeaderName::from_bytes(name).map_err(|_| BadLine)?;
        Ok((name, role, colon + 1))
    }
}

impl Iterator for FieldLines<'_> {
    type Item = Result<FieldLine, BadLine>;

    /// The next line. None is asked for behind a bad one.
    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.head.get(self.at..)?;
        match rest {
            b"\n" | b"\r\n" => None,
            _ => Some(self.read_line(rest)),
        }
    }
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// True if a byte may be in a token (RFC 9110 5.6.2).
pub fn is_token(byte: &u8) -> bool {
    TOKEN_BYTES[usize::from(*byte)]
}

/// The bytes of tokens.
static TOKEN_BYTES: [bool; 256] = alphanumerics_and(b"!#$%&'*+-.^_`|~");

/// A table that is true for letters, digits and these marks.
pub(crate) const fn alphanumerics_and(marks: &[u8]) -> [bool; 256] {
    let (mut bytes, mut byte) = ([false; 256], 0);
    while byte < 256 {
        bytes[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < marks.len() {
        bytes[marks[at] as usize] = true;
        at += 1;
    }
    bytes
}

/// Words of eight bytes that are looked at one by one. Lines are mostly shorter than that, and a
/// search by vectors takes as long to begin as this takes for all of them.
const WORDS_MAX: usize = 8;

/// The place of the first LF.
#[inline]
pub fn find_lf(bytes: &[u8]) -> Option<usize> {
    let (words, _) = bytes.as_chunks();
    let words = &words[..words.len().min(WORDS_MAX)];
    for (at, word) in words.iter().enumerate() {
        if let Some(found) = first_of(u64::from_le_bytes(*word), b'\n') {
            return Some(8 * at + found);
        }
    }
    let from = 8 * words.len();
    memchr(b'\n', &bytes[from..]).map(|found| from + found)
}

pub(crate) const fn all(byte: u8) -> u64 {
    byte as u64 * 0x0101_0101_0101_0101
}

/// The place of the first byte that is this one.
#[inline]
fn first_of(word: u64, byte: u8) -> Option<usize> {
    let zero = word ^ all(byte);
    // Above a zero the borrow may make others look like zeros. The first of them is one.
    let found = zero.wrapping_sub(all(1)) & !zero & all(0x80);
    (found != 0).then(|| found.trailing_zeros() as usize / 8)
}

/// Letters in lower case. No other byte becomes a letter or a dash, which common names consist of.
const fn to_lower(word: u64) -> u64 {
    word | (word & all(0x40)) >> 1
}

/// A common name. The `http` crate takes several times as long to read one, and copies those that
/// it has no constant for.
pub(crate) struct Known {
    pub(crate) name: HeaderName,
    pub(crate) role: FieldRole,
    pub(crate) len: usize,
    text: NameText,
    /// The bits of the name in the text.
    mask: NameText,
}

/// A name in lower case, with zeros behind it.
type NameText = [u64; NAME_WORDS];

/// Words of the longest common name.
const NAME_WORDS: usize = 4;

impl Known {
    const fn new(name: &'static str, role: FieldRole) -> Self {
        let (bytes, mut at) = (name.as_bytes(), 0);
        let (mut text, mut mask) = ([0; NAME_WORDS], [0; NAME_WORDS]);
        while at < bytes.len() {
            assert!(bytes[at].is_ascii_lowercase() || bytes[at] == b'-', "see `to_lower`");
            text[at / 8] |= (bytes[at] as u64) << (8 * (at % 8));
            mask[at / 8] |= 0xff << (8 * (at % 8));
            at += 1;
        }
        Self { name: HeaderName::from_static(name), role, len: bytes.len(), text, mask }
    }
}

/// The common name that a line begins with, if a colon follows it.
#[inline]
fn begins_known(line: &[u8]) -> Option<&'static Known> {
    known_at(line).map(|(_, known)| known)
}

/// Finds such a name, with its place among them, which is below 64.
#[inline]
pub(crate) fn known_at(line: &[u8]) -> Option<(usize, &'static Known)> {
    match line.first_chunk() {
        Some(begin) => find_known(begin),
        None => find_known(&padded(line)?),
    }
}

/// Finds such a name, likewise, and turns it into lower case.
#[inline]
pub(crate) fn take_known(line: &mut [u8]) -> Option<(usize, &'static Known)> {
    let (index, known) = known_at(line)?;
    match line.first_chunk_mut::<{ 8 * NAME_WORDS }>() {
        Some(begin) => {
            let words = begin.as_chunks_mut().0.iter_mut();
            for (word, (text, mask)) in words.zip(known.text.iter().zip(&known.mask)) {
                *word = (u64::from_le_bytes(*word) & !mask | text).to_le_bytes();
            }
        }
        None => line[..known.len].make_ascii_lowercase(),
    }
    Some((index, known))
}

/// A common name.
fn known(name: &[u8]) -> Option<&'static Known> {
    let mut begin = padded(name)?;
    *begin.get_mut(name.len())? = b':';
    find_known(&begin).map(|(_, known)| known)
}

fn padded(begin: &[u8]) -> Option<[u8; 8 * NAME_WORDS]> {
    let mut padded = [0; 8 * NAME_WORDS];
    padded.get_mut(..begin.len())?.copy_from_slice(begin);
    Some(padded)
}

#[inline]
fn find_known(begin: &[u8; 8 * NAME_WORDS]) -> Option<(usize, &'static Known)> {
    let mut text = [0; NAME_WORDS];
    for (at, word) in begin.as_chunks().0.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let Some(colon) = first_of(word, b':') else {
            text[at] = to_lower(word);
            continue;
        };
        text[at] = to_lower(word & ((1 << (8 * colon)) - 1));
        let len = 8 * at + colon;
        let index = usize::from(PLACES[place(&text, len)]);
        let known = KNOWN.get(index)?;
        // A zero in the line is not the zeros behind a name.
        return (known.text == text && known.len == len).then_some((index, known));
    }
    None
}

/// Returns the place of a name in the table, if it is there. No two names have the same place.
const fn place(text: &NameText, len: usize) -> usize {
    /// Found by trying random odd numbers.
    const FACTOR: u64 = 0x4d18_c238_6b75_cfd9;
    let key = text[0] ^ text[1].rotate_left(29) ^ len as u64;
    (key.wrapping_mul(FACTOR) >> 56) as usize
}

/// For each place, the index of the name there.
static PLACES: [u8; 256] = {
    let (mut places, mut index) = ([u8::MAX; 256], 0);
    while index < KNOWN.len() {
        let place = place(&KNOWN[index].text, KNOWN[index].len);
        assert!(places[place] == u8::MAX, "two names have one place: try another factor");
        places[place] = index as u8;
        index += 1;
    }
    places
};

const _: () = assert!(KNOWN.len() <= 64);
static KNOWN: [Known; 46] = [
    Known::new("host", FieldRole::Host),
    Known::new("connection", FieldRole::Connection),
    Known::new("content-length", FieldRole::ContentLength),
    Known::new("accept", FieldRole::Common),
    Known::new("accept-encoding", FieldRole::Common),
    Known::new("accept-language", FieldRole::Common),
    Known::new("accept-ranges", FieldRole::Common),
    Known::new("access-control-allow-origin", FieldRole::Common),
    Known::new("age", FieldRole::Common),
    Known::new("alt-svc", FieldRole::Common),
    Known::new("authorization", FieldRole::Common),
    Known::new("cache-control", FieldRole::CacheControl),
    Known::new("content-encoding", FieldRole::ContentEncoding),
    Known::new("content-security-policy", FieldRole::Common),
    Known::new("content-type", FieldRole::ContentType),
    Known::new("cookie", FieldRole::Cookie),
    Known::new("date", FieldRole::Date),
    Known::new("etag", FieldRole::Etag),
    Known::new("expires", FieldRole::Common),
    Known::new("if-modified-since", FieldRole::Common),
    Known::new("if-none-match", FieldRole::Common),
    Known::new("last-modified", FieldRole::Common),
    Known::new("link", FieldRole::Common),
    Known::new("location", FieldRole::Common),
    Known::new("origin", FieldRole::Common),
    Known::new("pragma", FieldRole::Common),
    Known::new("priority", FieldRole::Common),
    Known::new("range", FieldRole::Common),
    Known::new("referer", FieldRole::Common),
    Known::new("referrer-policy", FieldRole::Common),
    Known::new("sec-ch-ua", FieldRole::Common),
    Known::new("sec-ch-ua-mobile", FieldRole::Common),
    Known::new("sec-ch-ua-platform", FieldRole::Common),
    Known::new("sec-fetch-dest", FieldRole::Common),
    Known::new("sec-fetch-mode", FieldRole::Common),
    Known::new("sec-fetch-site", FieldRole::Common),
    Known::new("sec-fetch-user", FieldRole::Common),
    Known::new("server", FieldRole::Common),
    Known::new("set-cookie", FieldRole::Common),
    Known::new("strict-transport-security", FieldRole::Common),
    Known::new("upgrade-insecure-requests", FieldRole::Common),
    Known::new("user-agent", FieldRole::Common),
    Known::new("vary", FieldRole::Common),
    Known::new("via", FieldRole::Common),
    Known::new("x-content-type-options", FieldRole::Common),
    Known::new("x-frame-options", FieldRole::Common),
];

#[cfg(test)]
mod tests;

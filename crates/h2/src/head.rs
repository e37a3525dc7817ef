//! Heads and trailers: the fields of a message as they are decoded, checked one by one (RFC 9113
//! sections 8.1 to 8.3).

use std::fmt;

use crate::fault::{MalformedMessage, StreamFault};
use crate::hpack::HeaderField;
use crate::priority::Priority;

/// Bytes that most heads take.
const HEAD_BYTES: usize = 512;
/// Fields that most heads have.
const HEAD_FIELDS: usize = 16;
/// Fields whose room is kept for the next head: more than browsers send.
const HEAD_FIELDS_KEPT: usize = 2 * HEAD_FIELDS;
/// Digits of a length that any number has room for.
const LENGTH_DIGITS_MAX: usize = 18;

/// A range of a head's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextSpan {
    /// The index of its first byte.
    pub start: u32,
    /// Its bytes.
    pub len: u32,
}

impl TextSpan {
    /// Its bytes in the text.
    pub fn of(self, text: &[u8]) -> &[u8] {
        let start = self.start as usize;
        text.get(start..start + self.len as usize).unwrap_or_default()
    }
}

/// A field of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldSpan {
    /// Its name.
    pub name: TextSpan,
    /// Its value.
    pub value: TextSpan,
    /// True if no table may hold it (RFC 7541 7.1.3).
    pub sensitive: bool,
}

/// Fields in their order. All texts are in one buffer: `bytes::Bytes` can share its parts.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HeaderFields {
    /// The texts.
    pub text: Vec<u8>,
    /// The fields.
    pub fields: Vec<FieldSpan>,
}

/// The texts may be secrets.
impl fmt::Debug for HeaderFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fields, text) = (self.fields.len(), self.text.len());
        f.debug_struct("HeaderFields").field("fields", &fields).field("text", &text).finish()
    }
}

impl HeaderFields {
    /// The fields in their order.
    pub fn iter(&self) -> impl Iterator<Item = HeaderField<'_>> {
        self.fields.iter().map(|field| HeaderField {
            name: field.name.of(&self.text),
            value: field.value.of(&self.text),
            sensitive: field.sensitive,
        })
    }

    /// The first value of a name.
    pub fn value(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|field| field.name == name).map(|field| field.value)
    }

    fn push_text(&mut self, text: &[u8]) -> TextSpan {
        // A head has at most `head_bytes_max` bytes, a `u32`.
        let start = self.text.len() as u32;
        self.text.extend_from_slice(text);
        TextSpan { start, len: text.len() as u32 }
    }
}

/// The head of a request or of a response. Its pseudo-headers are texts of `fields`, too, but no
/// fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageHead {
    /// The fields.
    pub fields: HeaderFields,
    /// The value of its `content-length`. CONNECT and a success that answers it have none.
    pub length: Option<u64>,
    /// True if a request exceeds `head_bytes_max`. Then fields are missing: it is to be answered
    /// with 431, and nothing else of it counts. Responses and trailers fail instead:
    /// [`StreamFault::HeadTooLarge`].
    pub is_too_large: bool,
    /// The status of a response. Below 200 another head follows.
    pub status: u16,
    /// The value of a request's `priority` field.
    pub priority: Option<Priority>,
    pseudo: [Option<TextSpan>; PSEUDO.len()],
}

/// The pseudo-headers. Their places are those of the accessors.
const PSEUDO: [&[u8]; 6] =
    [b":method", b":scheme", b":authority", b":path", b":protocol", b":status"];
const METHOD: usize = 0;
const SCHEME: usize = 1;
const AUTHORITY: usize = 2;
const PATH: usize = 3;
const PROTOCOL: usize = 4;
const STATUS: usize = 5;

impl MessageHead {
    /// An empty head with the room for fields of this one. `None` if that is too much to keep.
    pub(crate) fn emptied(mut self: Box<Self>) -> Option<Box<Self>> {
        let mut fields = std::mem::take(&mut self.fields.fields);
        if fields.capacity() > HEAD_FIELDS_KEPT {
            return None;
        }
        fields.clear();
        *self = Self::default();
        self.fields.fields = fields;
        Some(self)
    }

    fn span(&self, which: usize) -> Option<TextSpan> {
        self.pseudo.get(which).copied().flatten()
    }

    fn pseudo(&self, which: usize) -> Option<&[u8]> {
        Some(self.span(which)?.of(&self.fields.text))
    }

    /// The method of a request.
    pub fn method(&self) -> &[u8] {
        self.pseudo(METHOD).unwrap_or_default()
    }

    /// The scheme of a request. `CONNECT` has none.
    pub fn scheme(&self) -> Option<&[u8]> {
        self.pseudo(SCHEME)
    }

    /// The authority of a request.
    pub fn authority(&self) -> Option<&[u8]> {
        self.pseudo(AUTHORITY)
    }

    /// The path of a request. `CONNECT` has none.
    pub fn path(&self) -> Option<&[u8]> {
        self.pseudo(PATH)
    }

    /// Returns the place of the authority in the text of the fields.
    pub fn authority_span(&self) -> Option<TextSpan> {
        self.span(AUTHORITY)
    }

    /// Returns the place of the path in the text of the fields.
    pub fn path_span(&self) -> Option<TextSpan> {
        self.span(PATH)
    }

    /// The protocol of an extended CONNECT (RFC 8441).
    pub fn protocol(&self) -> Option<&[u8]> {
        self.pseudo(PROTOCOL)
    }
}

/// The kind of a header block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadKind {
    /// A block of a stream that has ended. It is decoded, for the table, and dropped.
    Dropped,
    /// A request, and whether it may be an extended CONNECT.
    Request {
        connect_protocol: bool,
    },
    Response,
    Trailers,
}

/// Takes the fields of one header block.
#[derive(Debug)]
pub(crate) struct HeadReader {
    kind: HeadKind,
    head: Box<MessageHead>,
    /// Bytes as limits count them.
    size: usize,
    size_max: usize,
    has_fields: bool,
    fault: Option<MalformedMessage>,
}

impl HeadReader {
    /// `spare` is an emptied head.
    pub(crate) fn new(kind: HeadKind, size_max: usize, spare: Option<Box<MessageHead>>) -> Self {
        let mut head = spare.unwrap_or_default();
        if !matches!(kind, HeadKind::Dropped) {
            head.fields.text.reserve(HEAD_BYTES);
            head.fields.fields.reserve(HEAD_FIELDS);
        }
        Self { kind, head, size: 0, size_max, has_fields: false, fault: None }
    }

    /// Bytes of memory that the fields take.
    pub(crate) fn held(&self) -> usize {
        let fields = &self.head.fields;
        fields.text.capacity() + fields.fields.capacity() * size_of::<FieldSpan>()
    }

    /// Takes a field. After the limit, fields are dropped.
    pub(crate) fn take(&mut self, field: HeaderField<'_>) {
        self.size = self.size.saturating_add(field.size());
        self.head.is_too_large = self.size > self.size_max;
        if self.head.is_too_large || self.fault.is_some() || self.kind == HeadKind::Dropped {
            return;
        }
        let taken = match field.name.first() {
            Some(b':') => self.take_pseudo(field),
            _ => self.take_field(field),
        };
        self.fault = taken.err();
    }

    fn take_pseudo(&mut self, field: HeaderField<'_>) -> Result<(), MalformedMessage> {
        let which =
            PSEUDO.iter().position(|name| *name == field.name).ok_or(MalformedMessage::Pseudo)?;
        let is_expected = match self.kind {
            HeadKind::Request { .. } => which != STATUS,
            HeadKind::Response => which == STATUS,
            HeadKind::Trailers | HeadKind::Dropped => false,
        };
        let slot = self.head.pseudo.get_mut(which).ok_or(MalformedMessage::Pseudo)?;
        if !is_expected || self.has_fields || slot.is_some() {
            return Err(MalformedMessage::Pseudo);
        }
        if !is_value(field.value) {
            return Err(MalformedMessage::Value);
        }
        *slot = Some(self.head.fields.push_text(field.value));
        Ok(())
    }

    fn take_field(&mut self, field: HeaderField<'_>) -> Result<(), MalformedMessage> {
        self.has_fields = true;
        if !is_name(field.name) {
            return Err(MalformedMessage::Name);
        }
        if !is_value(field.value) {
            return Err(MalformedMessage::Value);
        }
        match field.name {
            b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding"
            | b"upgrade" => return Err(MalformedMessage::ConnectionField),
            b"te" if field.value != b"trailers" => return Err(MalformedMessage::ConnectionField),
            // In trailers it has no meaning, and is the caller's to drop.
            b"content-length" if self.kind != HeadKind::Trailers => {
                let length = read_length(field.value).ok_or(MalformedMessage::Length)?;
                if self.head.length.replace(length).is_some() {
                    return Err(MalformedMessage::Length);
                }
            }
            b"priority" => self.head.priority = Some(Priority::read(field.value)),
            _ => {}
        }
        let fields = &mut self.head.fields;
        let (name, value) = (fields.push_text(field.name), fields.push_text(field.value));
        fields.fields.push(FieldSpan { name, value, sensitive: field.sensitive });
        Ok(())
    }

    /// The whole head. A request that is too large is not checked further: it is refused anyway.
    /// Responses and trailers with missing fields would mean something else.
    pub(crate) fn end(mut self) -> Result<Box<MessageHead>, StreamFault> {
        if let Some(fault) = self.fault {
            return Err(StreamFault::Malformed(fault));
        }
        match self.kind {
            HeadKind::Request { .. } if self.head.is_too_large => {}
            _ if self.head.is_too_large => return Err(StreamFault::HeadTooLarge),
            HeadKind::Request { connect_protocol } => {
                self.check_request(connect_protocol).map_err(StreamFault::Malformed)?;
                if self.head.method() == b"CONNECT" {
                    // What follows has no length (RFC 9110 section 9.3.6).
                    self.head.length = None;
                }
            }
            HeadKind::Response => {
                self.head.status = self.read_status().map_err(StreamFault::Malformed)?;
            }
            HeadKind::Trailers | HeadKind::Dropped => {}
        }
        Ok(self.head)
    }

    /// RFC 9113 sections 8.3.1 and 8.5, RFC 8441 section 4.
    fn check_request(&self, connect_protocol: bool) -> Result<(), MalformedMessage> {
        let head = &self.head;
        let method = head.pseudo(METHOD).ok_or(MalformedMessage::Pseudo)?;
        if !is_token(method) {
            return Err(MalformedMessage::Method);
        }
        if head.authority().is_some_and(|authority| !is_authority(authority)) {
            return Err(MalformedMessage::Authority);
        }
        if head.protocol().is_some_and(|protocol| !is_token(protocol)) {
            return Err(MalformedMessage::Protocol);
        }
        let is_connect = method == b"CONNECT";
        if head.protocol().is_some() && !(is_connect && connect_protocol) {
            return Err(MalformedMessage::Protocol);
        }
        if is_connect && head.protocol().is_none() {
            let has_more = head.scheme().is_some() || head.path().is_some();
            return match head.authority() {
                Some(authority) if !has_more && authority.contains(&b'@') => {
                    Err(MalformedMessage::Authority)
                }
                Some(_) if !has_more => Ok(()),
                _ => Err(MalformedMessage::Pseudo),
            };
        }
        let (Some(scheme), Some(path)) = (head.scheme(), head.path()) else {
            return Err(MalformedMessage::Pseudo);
        };
        if !is_scheme(scheme) {
            return Err(MalformedMessage::Scheme);
        }
        // A scheme has no case (RFC 3986 section 3.1).
        let is_http = [&b"http"[..], b"https"].iter().any(|s| scheme.eq_ignore_ascii_case(s));
        if is_http && head.authority().is_some_and(|authority| authority.contains(&b'@')) {
            return Err(MalformedMessage::Authority);
        }
        let is_target = match path.first() {
            Some(b'/') => true,
            Some(b'*') => path.len() == 1 && method == b"OPTIONS",
            // Other schemes may have another form.
            Some(_) => !is_http,
            None => false,
        };
        let is_path = path.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#');
        if is_target && is_path { Ok(()) } else { Err(MalformedMessage::Path) }
    }

    fn read_status(&self) -> Result<u16, MalformedMessage> {
        let text = self.head.pseudo(STATUS).ok_or(MalformedMessage::Pseudo)?;
        match *text {
            // HTTP/2 has no 101 (RFC 9113 8.6).
            [b'1', b'0', b'1'] => Err(MalformedMessage::Status),
            [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
                Ok([a, b, c].iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0')))
            }
            _ => Err(MalformedMessage::Status),
        }
    }
}

/// True if all bytes may stand in an authority (RFC 3986 section 3.2).
fn is_authority(authority: &[u8]) -> bool {
    are_all(authority, &AUTHORITY_BYTES)
}

/// True if all bytes are in a set. The loop has no early end, so it has no branch for each byte.
fn are_all(text: &[u8], set: &[bool; 256]) -> bool {
    text.iter().fold(true, |all, byte| all & set[usize::from(*byte)])
}

/// True if bytes are a scheme (RFC 3986 section 3.1).
fn is_scheme(scheme: &[u8]) -> bool {
    scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
}

/// True if bytes are a token (RFC 9110 section 5.6.2).
fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && are_all(text, &TOKEN)
}

/// True if bytes are a field's name: a token in lower case (RFC 9113 section 8.2.1).
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && are_all(name, &NAME)
}

static TOKEN: [bool; 256] = letters_digits_and(TOKEN_MARKS, true);
static NAME: [bool; 256] = letters_digits_and(TOKEN_MARKS, false);
static AUTHORITY_BYTES: [bool; 256] = letters_digits_and(b"-._~%!$&'()*+,;=:[]@", true);
const TOKEN_MARKS: &[u8] = b"!#$%&'*+-.^_`|~";

const fn letters_digits_and(marks: &[u8], upper: bool) -> [bool; 256] {
    let (mut table, mut byte) = ([false; 256], 0);
    while byte < 256 {
        let of = byte as u8;
        table[byte] = of.is_ascii_alphanumeric() && (upper || !of.is_ascii_uppercase());
        byte += 1;
    }
    let mut at = 0;
    while at < marks.len() {
        table[marks[at] as usize] = true;
        at += 1;
    }
    table
}

/// True if bytes are a field's value: no control character but the tab (RFC 9110 section 5.5), and
/// no blank at an end (RFC 9113 section 8.2.1).
fn is_value(value: &[u8]) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    !is_blank(value.first())
        && !is_blank(value.last())
        // Without an early end, the compiler may compare several bytes at once.
        && value.iter().fold(true, |all, byte| {
            all & ((*byte >= b' ') & (*byte != 0x7f) | (*byte == b'\t'))
        })
}

/// A number without sign or blank (RFC 9110 section 8.6).
fn read_length(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > LENGTH_DIGITS_MAX || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "https"), (":authority", "a.example"), (":path", "/")];
    const CONNECT: [(&str, &str); 2] = [(":method", "CONNECT"), (":authority", "a.example:443")];
    const WEBSOCKET: [(&str, &str); 5] = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "a.example"),
        (":path", "/chat"),
    ];
    const REQUEST: HeadKind = HeadKind::Request { connect_protocol: true };

    fn read(kind: HeadKind, fields: &[&[(&str, &str)]]) -> Result<MessageHead, MalformedMessage> {
        let mut reader = HeadReader::new(kind, 1000, None);
        for (name, value) in fields.concat() {
            reader.take(HeaderField::new(name.as_bytes(), value.as_bytes()));
        }
        reader.end().map(|head| *head).map_err(|fault| match fault {
            StreamFault::Malformed(malformed) => malformed,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn good_heads_are_read() {
        let head = read(REQUEST, &[&GET, &[("te", "trailers"), ("a", ""), ("priority", "u=1")]]);
        let head = head.unwrap_or_default();
        assert_eq!((head.method(), head.scheme()), (&b"GET"[..], Some(&b"https"[..])));
        assert_eq!((head.path(), head.authority()), (Some(&b"/"[..]), Some(&b"a.example"[..])));
        assert_eq!(head.priority.map(|priority| priority.urgency), Some(1));
        assert_eq!(head.fields.iter().count(), 3);
        for (fields, why) in [
            (&CONNECT[..], "CONNECT"),
            (&WEBSOCKET[..], "extended CONNECT"),
            (&[(":method", "OPTIONS"), (":scheme", "https"), (":path", "*")], "the server"),
            (&[(":method", "GET"), (":scheme", "x"), (":path", "y")], "another scheme"),
            (
                &[
                    (":method", "GET"),
                    (":scheme", "x"),
                    (":authority", "u@[::1]:8"),
                    (":path", "/"),
                ],
                "a user of another scheme",
            ),
        ] {
            assert!(read(REQUEST, &[fields]).is_ok(), "{why}");
        }
        let response = [(":status", "204"), ("content-length", "0"), ("x", "a\u{e9}\tb")];
        let response = read(HeadKind::Response, &[&response]).unwrap_or_default();
        assert_eq!((response.status, response.length), (204, Some(0)));
    }

    #[test]
    fn malformed_requests_are_refused() {
        use MalformedMessage::*;
        let to = |scheme, authority| {
            [(":method", "GET"), (":scheme", scheme), (":authority", authority)]
        };
        let without = |name: &str| GET.iter().copied().filter(|f| f.0 != name).collect::<Vec<_>>();
        for (fields, fault) in [
            (without(":method"), Pseudo),
            (without(":scheme"), Pseudo),
            (without(":path"), Pseudo),
            ([&GET[..], &[(":path", "/")]].concat(), Pseudo),
            ([&GET[..], &[(":status", "200")]].concat(), Pseudo),
            ([&GET[..], &[(":other", "1")]].concat(), Pseudo),
            ([&[("a", "b")], &GET[..]].concat(), Pseudo),
            ([&GET[..], &[(":protocol", "websocket")]].concat(), Protocol),
            ([&CONNECT[..], &[(":path", "/")]].concat(), Pseudo),
            (vec![(":method", "CONNECT")], Pseudo),
            ([&without(":method")[..], &[(":method", "G T")]].concat(), Method),
            ([&without(":method")[..], &[(":method", "")]].concat(), Method),
            ([&without(":path")[..], &[(":path", "")]].concat(), Path),
            ([&without(":path")[..], &[(":path", "a")]].concat(), Path),
            ([&without(":path")[..], &[(":path", "?a")]].concat(), Path),
            ([&without(":path")[..], &[(":path", "*")]].concat(), Path),
            ([&without(":path")[..], &[(":path", "/#a")]].concat(), Path),
            ([&without(":path")[..], &[(":path", "/a b")]].concat(), Path),
            ([&without(":path")[..], &[(":path", "/\u{e9}")]].concat(), Path),
            ([&to("HTTPS", "a")[..], &[(":path", "a")]].concat(), Path),
            ([&to("https", "u:p@a")[..], &[(":path", "/")]].concat(), Authority),
            ([&to("HTTP", "u@a")[..], &[(":path", "/")]].concat(), Authority),
            ([&to("x", "a/b")[..], &[(":path", "/")]].concat(), Authority),
            ([&to("x", "a b")[..], &[(":path", "/")]].concat(), Authority),
            ([&to("x", "a\u{e9}")[..], &[(":path", "/")]].concat(), Authority),
            ([&to("", "a")[..], &[(":path", "/")]].concat(), Scheme),
            ([&to("1x", "a")[..], &[(":path", "/")]].concat(), Scheme),
            ([&to("x:", "a")[..], &[(":path", "/")]].concat(), Scheme),
            (vec![(":method", "CONNECT"), (":authority", "u@a:443")], Authority),
            (
                [&without(":method")[..], &[(":method", "CONNECT"), (":protocol", "a b")]].concat(),
                Protocol,
            ),
        ] {
            assert_eq!(read(REQUEST, &[&fields]), Err(fault), "{fields:?}");
        }
        let plain = HeadKind::Request { connect_protocol: false };
        assert_eq!(read(plain, &[&WEBSOCKET]), Err(Protocol));
    }

    #[test]
    fn malformed_fields_are_refused_everywhere() {
        use MalformedMessage::*;
        for (name, value, fault) in [
            ("", "a", Name),
            ("A", "a", Name),
            ("a b", "a", Name),
            ("a:", "a", Name),
            ("a\u{e9}", "a", Name),
            ("a\0", "a", Name),
            ("a", " a", Value),
            ("a", "a\t", Value),
            ("a", "a\nb", Value),
            ("a", "a\rb", Value),
            ("a", "a\0b", Value),
            ("a", "a\x7fb", Value),
            ("connection", "close", ConnectionField),
            ("proxy-connection", "close", ConnectionField),
            ("keep-alive", "1", ConnectionField),
            ("transfer-encoding", "chunked", ConnectionField),
            ("upgrade", "h2c", ConnectionField),
            ("te", "gzip", ConnectionField),
        ] {
            for (kind, begin) in [
                (REQUEST, &GET[..]),
                (HeadKind::Response, &[(":status", "200")]),
                (HeadKind::Trailers, &[]),
            ] {
                assert_eq!(read(kind, &[begin, &[(name, value)]]), Err(fault), "{name}: {value}");
            }
        }
        for lengths in [&["x"][..], &["-1"], &["+1"], &[""], &["1", "1"], &["9999999999999999999"]]
        {
            let fields: Vec<_> = lengths.iter().map(|length| ("content-length", *length)).collect();
            assert_eq!(read(REQUEST, &[&GET, &fields]), Err(Length), "{lengths:?}");
        }
        for pseudo in PSEUDO {
            let name = str::from_utf8(pseudo).unwrap_or_default();
            assert_eq!(read(HeadKind::Trailers, &[&[(name, "200")]]), Err(Pseudo), "{name}");
        }
    }

    #[test]
    fn malformed_responses_are_refused() {
        for status in ["", "99", "20", "2000", "2x0", "101", "+20", "020"] {
            let got = read(HeadKind::Response, &[&[(":status", status)]]);
            assert_eq!(got, Err(MalformedMessage::Status), "{status}");
        }
        assert_eq!(read(HeadKind::Response, &[]), Err(MalformedMessage::Pseudo));
        let two = [(":status", "200"), (":method", "GET")];
        assert_eq!(read(HeadKind::Response, &[&two]), Err(MalformedMessage::Pseudo));
    }

    #[test]
    fn texts_are_not_shown() {
        let head = read(REQUEST, &[&GET, &[("cookie", "secret")]]).unwrap_or_default();
        let shown = format!("{head:?}");
        assert!(shown.contains("fields: 1") && !shown.contains("secret"), "{shown}");
        assert!(!shown.contains("115, 101, 99"), "{shown}");
    }

    #[test]
    fn what_exceeds_the_limit_is_dropped() {
        let long = "x".repeat(900);
        let head = read(REQUEST, &[&GET, &[("a", &long), ("b", "c")]]).unwrap_or_default();
        assert!(head.is_too_large && head.fields.text.len() < 100);
    }
}

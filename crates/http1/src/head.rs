//! Heads of HTTP/1.1 messages (RFC 9112): turns bytes into `http` types, strictly, and finds where
//! the body ends.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use eyelet_compress::fields::lists;
use eyelet_memory::budget::{Budget, Counted, CountedBuffer};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, StatusCode, Uri, Version, request, response};
use memchr::memchr;

use super::fault::{RequestFault, ResponseFault};
use super::framing::{is_framing_alias, is_hop_by_hop};
use eyelet_memory::spares::Spares;

/// Most fields of a request: Apache and hyper allow as many.
pub const FIELDS_MAX: usize = 100;
/// Most fields of a response. An application that sets a hundred cookies works behind nginx, so it
/// must work here. They are read into 8 KiB of stack.
pub const RESPONSE_FIELDS_MAX: usize = 256;
/// Fields that Eyelet adds to a head. Growing the map would rehash all fields. A small message's
/// map stays below what the allocator has cached.
const FIELDS_ADDED: usize = 3;
/// Bytes of a request target: browsers stop at 32 KiB at most, most servers at 8.
pub const TARGET_BYTES_MAX: usize = 16 << 10;
/// A response with so much memory is not divided: a head of its own would cost two allocations. A
/// stream's count has room for it.
const SMALL_RESPONSE_BYTES: usize = 2 << 10;
/// Bytes of a response's head.
pub const RESPONSE_HEAD_BYTES_MAX: usize = 64 << 10;

/// Field maps that a worker keeps for its next messages: those of five hundred requests in progress
/// and of their responses, until no message has needed them for a tick. With 256, one map was made
/// for each request of 32 clients with ten streams each. While memory is short, none is added.
const SPARE_MAX: usize = 1_000;
/// Bytes that each counts: 24 fields and the index of their names.
const SPARE_MAP_BYTES: usize = 5 << 9;
/// See [`give_back`].
pub const SPARE_FIELDS_MAX: usize = 24;

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// There is none.
    Empty,
    /// After this many bytes.
    Known(u64),
    /// After the last chunk.
    Chunked,
    /// At the end of the connection: responses only.
    UntilClose,
}

/// A request's head.
#[derive(Debug)]
pub struct Request {
    /// Method, target and fields, all as received. The URI has the target's authority, or else
    /// Host. Its scheme is `http` only if the target has it.
    pub parts: request::Parts,
    /// Where its body ends.
    pub length: Length,
    /// Whether the client keeps the connection open after it.
    pub keep_alive: bool,
}

/// A response's head.
#[derive(Debug)]
pub struct Response {
    /// Status and fields as they came.
    pub parts: response::Parts,
    /// Where its body ends.
    pub length: Length,
    /// Whether the upstream keeps its connection open after it.
    pub keep_alive: bool,
}

/// Finds where a head ends, whatever the sizes of the reads.
#[derive(Debug, Default)]
pub struct Scanner {
    at: usize,
    line: usize,
}

/// A line that ends in LF alone. Readers differ on whether it ends a field (RFC 9112 2.2).
#[derive(Debug, PartialEq, Eq)]
pub struct BareLf;

impl Scanner {
    /// The length of the head, or `None` if more bytes are needed. `bytes` extends the last call's.
    pub fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, BareLf> {
        while let Some(offset) = memchr(b'\n', &bytes[self.at..]) {
            let lf = self.at + offset;
            if lf == self.line || bytes[lf - 1] != b'\r' {
                return Err(BareLf);
            }
            let empty = lf == self.line + 1;
            // One empty line before a request line is ignored (RFC 9112 2.2).
            if empty && self.line > 0 {
                return Ok(Some(lf + 1));
            }
            (self.at, self.line) = (lf + 1, lf + 1);
        }
        self.at = bytes.len();
        Ok(None)
    }

    /// The same, but LF alone also ends a line, as RFC 9112 2.2 permits.
    pub fn lenient_end(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(offset) = memchr(b'\n', &bytes[self.at..]) {
            let lf = self.at + offset;
            let is_empty = matches!(bytes[self.line..lf], [] | [b'\r']);
            if is_empty && self.line > 0 {
                return Some(lf + 1);
            }
            (self.at, self.line) = (lf + 1, lf + 1);
        }
        self.at = bytes.len();
        None
    }
}

/// Takes a request's head off the front of `buffer`; `None` if it is incomplete.
pub fn take_request(
    buffer: &mut BytesMut,
    scanner: &mut Scanner,
    head_bytes_max: usize,
) -> Result<Option<Request>, RequestFault> {
    let Some(end) = request_end(buffer, scanner, head_bytes_max)? else { return Ok(None) };
    *scanner = Scanner::default();
    let mut head = split_to(buffer, end);
    as_known_version(&mut head);
    read_request(head.freeze()).map(Some)
}

/// Reads a request's head of this length where it is. The memory of `received` counts as long as
/// the request lives.
pub fn counted_request(mut received: CountedBuffer, end: usize) -> Result<Request, RequestFault> {
    as_known_version(&mut received[..end]);
    read_request(received.into_bytes().slice(..end))
}

/// The length of a request's head; `None` if it is incomplete. `begun` extends the last call's.
pub fn request_end(
    begun: &[u8],
    scanner: &mut Scanner,
    head_bytes_max: usize,
) -> Result<Option<usize>, RequestFault> {
    let end = scanner.end(begun).map_err(|BareLf| RequestFault::BareLf)?;
    if end.unwrap_or(begun.len()) > head_bytes_max {
        let lines = begun.strip_prefix(b"\r\n").unwrap_or(begun);
        let line_is_whole = lines[..head_bytes_max.min(lines.len())].contains(&b'\n');
        return Err(if line_is_whole {
            RequestFault::TooLong
        } else {
            RequestFault::TargetTooLong
        });
    }
    match end {
        // Refused at once: bytes that are no request must not be waited for.
        None => early_fault(begun).map_or(Ok(None), Err),
        end => Ok(end),
    }
}

/// Whether an incomplete head can become valid: its method is a token, and its line ends in a
/// version.
fn early_fault(begun: &[u8]) -> Option<RequestFault> {
    let begun = begun.strip_prefix(b"\r\n").unwrap_or(begun);
    let method = begun.split(|byte| *byte == b' ').next().unwrap_or_default();
    let whole = method.len() < begun.len();
    let partial_crlf = begun == b"\r";
    let fits = method.len() <= METHOD_BYTES_MAX && method.iter().all(is_token);
    if !(fits && (!whole || !method.is_empty()) || partial_crlf) {
        return Some(RequestFault::Line);
    }
    let line = &begun[..begun.iter().position(|byte| *byte == b'\n')?];
    // An HTTP/0.9 request is only this line, and its client waits for the answer.
    let version = line.split(|byte| *byte == b' ').nth(2).unwrap_or_default();
    (!version.starts_with(b"HTTP/")).then_some(RequestFault::Line)
}

/// Whether a byte may be in a token (RFC 9110 5.6.2).
pub fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

/// Reads a later minor version as HTTP/1.1 (RFC 9110 2.5).
fn as_known_version(buffer: &mut [u8]) {
    let begin = if buffer.starts_with(b"\r\n") { 2 } else { 0 };
    let line = &mut buffer[begin..];
    let end = line.iter().position(|byte| *byte == b'\r').unwrap_or(0);
    if let [.., b' ', b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor @ b'2'..=b'9'] =
        &mut line[..end]
    {
        *minor = b'1';
    }
}

fn read_request(head: Bytes) -> Result<Request, RequestFault> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(&head, &mut fields) {
        Ok(httparse::Status::Complete(len)) if len == head.len() => {}
        Ok(_) => return Err(RequestFault::Line),
        Err(httparse::Error::TooManyHeaders) => return Err(RequestFault::TooMany),
        Err(httparse::Error::Version) => return Err(version_fault(&head)),
        Err(httparse::Error::Token) => return Err(RequestFault::Line),
        Err(_) => return Err(RequestFault::Field),
    }
    let (Some(method), Some(target), Some(minor)) = (parsed.method, parsed.path, parsed.version)
    else {
        return Err(RequestFault::Line);
    };
    if target.len() > TARGET_BYTES_MAX {
        return Err(RequestFault::TargetTooLong);
    }
    if method.len() > METHOD_BYTES_MAX {
        return Err(RequestFault::Line);
    }
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| RequestFault::Line)?;
    if parsed.headers.iter().any(|field| is_framing_alias(field.name.as_bytes())) {
        return Err(RequestFault::Field);
    }
    let fields = read_fields(&head, parsed.headers, is_rewritten).ok_or(RequestFault::Field)?;
    let version = if minor == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
    let uri = read_target(&method, &head, target, read_host(&head, version, &fields.map)?)?;
    let length = request_length(version, &fields)?;
    let keep_alive = keep_alive(version, &fields);
    let (mut parts, ()) = http::Request::new(()).into_parts();
    (parts.method, parts.uri, parts.version, parts.headers) = (method, uri, version, fields.map);
    Ok(Request { parts, length, keep_alive })
}

/// `HTTP/` digit `.` digit is an unsupported version. Anything else is no request line.
fn version_fault(head: &[u8]) -> RequestFault {
    let head = head.strip_prefix(b"\r\n").unwrap_or(head);
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    match (words.nth(2), words.next()) {
        (Some([b'H', b'T', b'T', b'P', b'/', major, b'.', minor]), None)
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            RequestFault::Version
        }
        _ => RequestFault::Line,
    }
}

/// Takes bytes off the front. Taking all of them leaves no second owner and no reference count.
pub fn split_to(buffer: &mut BytesMut, len: usize) -> BytesMut {
    if len == buffer.len() { std::mem::take(buffer) } else { buffer.split_to(len) }
}

/// Takes a head off the front, without sharing much memory with the bytes behind it, or with heads
/// that were before it. A response's values share the memory of its head, and an HTTP/2 stream
/// holds them until they are written. `held` is what the buffer's memory had when it was read into.
fn take_alone(buffer: &mut BytesMut, held: usize, len: usize) -> BytesMut {
    // The capacity is only what is left of the memory behind what was taken before.
    let held = held.max(buffer.capacity());
    if len == buffer.len() && held <= 2 * len {
        return std::mem::take(buffer);
    }
    if held <= SMALL_RESPONSE_BYTES {
        return buffer.split_to(len);
    }
    let head = BytesMut::from(&buffer[..len]);
    buffer.advance(len);
    head
}

/// Keeps the memory of unused fields for the next message. It saves two allocations each, which a
/// small request would notice.
pub fn give_back(mut fields: HeaderMap) {
    // The capacity does not count repeated names, which also keep memory.
    let is_small = fields.len() <= SPARE_FIELDS_MAX && fields.capacity() <= SPARE_FIELDS_MAX;
    if !is_small || fields.capacity() == 0 {
        return;
    }
    fields.clear();
    SPARE.with_borrow_mut(|spare| {
        let count = spare.maps.count() + 1;
        // Those since the last tick are not counted yet. Before the first tick none is kept.
        let fits = |counted: &Counted| counted.may_be(count * SPARE_MAP_BYTES);
        if count <= SPARE_MAX && spare.counted.as_ref().is_some_and(fits) {
            spare.maps.push(fields);
        }
    });
}

/// An empty map with room for so many fields, and for those that Eyelet adds. Its memory is that of
/// an earlier message, if there is one.
pub fn spare_fields(count: usize) -> HeaderMap {
    let mut map = SPARE.with_borrow_mut(|spare| spare.maps.pop()).unwrap_or_default();
    // A map that cannot be so large refuses the field that does not fit.
    let _ = map.try_reserve(count + FIELDS_ADDED);
    map
}

/// Frees the kept maps that no message has needed since the last call: they lie in pages of an
/// earlier burst and pin them. Counts the others.
pub fn forget_unused(budget: &Arc<Budget>) {
    SPARE.with_borrow_mut(|spare| {
        drop(spare.maps.take_unused());
        let bytes = spare.maps.count() * SPARE_MAP_BYTES;
        spare.counted.get_or_insert_with(|| Counted::new(budget, 0)).set(bytes);
    });
}

/// Maps that are kept for the next messages.
struct SpareMaps {
    maps: Spares<HeaderMap>,
    /// As many as there were at the last tick.
    counted: Option<Counted>,
}

thread_local! {
    static SPARE: RefCell<SpareMaps> =
        const { RefCell::new(SpareMaps { maps: Spares::new(), counted: None }) };
}

/// Reads the fields in their order, except that fields which are not passed on come last:
/// hop-by-hop fields and the `removed` ones. The map fills the gap of a removed field with its last
/// one. That would change the order of the others. Most `Connection` fields are only noted.
fn read_fields(
    head: &Bytes,
    fields: &[httparse::Header<'_>],
    removed: fn(&[u8]) -> bool,
) -> Option<Fields> {
    let mut map = spare_fields(fields.len());
    let mut append = |field: &httparse::Header<'_>| {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(field.value)).ok()?;
        map.append(name, value);
        Some(())
    };
    let (mut has_removed, mut has_hop_by_hop) = (false, false);
    let (mut says_close, mut says_keep_alive) = (false, false);
    for field in fields {
        let is_hop_by_hop = is_hop_by_hop(field.name.as_bytes());
        match ConnectionOption::alone_in(field) {
            Some(ConnectionOption::Close) if is_hop_by_hop => says_close = true,
            Some(ConnectionOption::KeepAlive) if is_hop_by_hop => says_keep_alive = true,
            _ if is_hop_by_hop || removed(field.name.as_bytes()) => {
                has_removed = true;
                has_hop_by_hop |= is_hop_by_hop;
            }
            _ => append(field)?,
        }
    }
    if has_removed {
        let is_removed = |field: &&httparse::Header<'_>| {
            let name = field.name.as_bytes();
            (is_hop_by_hop(name) || removed(name)) && ConnectionOption::alone_in(field).is_none()
        };
        fields.iter().filter(is_removed).try_for_each(append)?;
    }
    Some(Fields { map, has_hop_by_hop, says_close, says_keep_alive })
}

/// What most `Connection` fields say, and nothing else: they name no other field. Such a field does
/// not enter the map, where it would be hashed to be added, to be found, and to be removed.
enum ConnectionOption {
    Close,
    KeepAlive,
}

impl ConnectionOption {
    /// The only element of a `Connection` field.
    fn alone_in(field: &httparse::Header<'_>) -> Option<Self> {
        let is_it = |element: &[u8]| {
            field.value.eq_ignore_ascii_case(element)
                && field.name.as_bytes().eq_ignore_ascii_case(b"connection")
        };
        match field.value.len() {
            5 if is_it(b"close") => Some(Self::Close),
            10 if is_it(b"keep-alive") => Some(Self::KeepAlive),
            _ => None,
        }
    }
}

/// The fields of a head.
struct Fields {
    map: HeaderMap,
    /// Whether the map has hop-by-hop fields. Most have none; looking up each name would hash it.
    has_hop_by_hop: bool,
    /// What `Connection` fields say that did not enter the map.
    says_close: bool,
    says_keep_alive: bool,
}

/// Names of fields that Eyelet sets anew in every request.
fn is_rewritten(name: &[u8]) -> bool {
    match name.len() {
        4 => name.eq_ignore_ascii_case(b"host"),
        14 => name.eq_ignore_ascii_case(b"content-length"),
        _ => false,
    }
}

/// The only Host, which only HTTP/1.0 may lack (RFC 9112 3.2). It shares the memory of the head.
fn read_host(
    head: &Bytes,
    version: Version,
    headers: &HeaderMap,
) -> Result<Option<Authority>, RequestFault> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => {
            let host = Authority::from_maybe_shared(head.slice_ref(host.as_bytes()));
            Ok(Some(as_host(host.map_err(|_| RequestFault::Host)?)?))
        }
        (None, None) if version == Version::HTTP_10 => Ok(None),
        _ => Err(RequestFault::Host),
    }
}

/// The target in its four forms (RFC 9112 3.2), as a URI with its authority. Both share the memory
/// of the head.
fn read_target(
    method: &Method,
    head: &Bytes,
    target: &str,
    host: Option<Authority>,
) -> Result<Uri, RequestFault> {
    if *method == Method::CONNECT {
        return Err(RequestFault::Connect);
    }
    // http::Uri would drop a fragment, which no target may have. It also accepts bytes beyond ASCII
    // (RFC 3986 2).
    if target.contains('#') || !target.is_ascii() {
        return Err(RequestFault::Target);
    }
    if target.starts_with('/') || (target == "*" && *method == Method::OPTIONS) {
        return build(Scheme::HTTPS, host, head.slice_ref(target.as_bytes()));
    }
    let uri: Uri = target.parse().map_err(|_| RequestFault::Target)?;
    let known = |scheme: &&Scheme| **scheme == Scheme::HTTPS || **scheme == Scheme::HTTP;
    let scheme = uri.scheme().filter(known).ok_or(RequestFault::Target)?.clone();
    let authority = uri.authority().ok_or(RequestFault::Target)?;
    // RFC 9112 3.2.2: the target's own authority replaces Host.
    let authority = as_host(authority.clone())?;
    // RFC 9112 3.2.4: without a path, OPTIONS is for the server as a whole.
    let pathless = target.splitn(3, '/').nth(2).is_some_and(|rest| !rest.contains(['/', '?']));
    if pathless && *method == Method::OPTIONS {
        return build(scheme, Some(authority), Bytes::from_static(b"*"));
    }
    match uri.path_and_query().map_or("/", PathAndQuery::as_str) {
        // RFC 9112 3.2.1: an empty path is sent as `/`.
        query if query.starts_with('?') => {
            build(scheme, Some(authority), format!("/{query}").into())
        }
        path => build(scheme, Some(authority), Bytes::copy_from_slice(path.as_bytes())),
    }
}

fn build(scheme: Scheme, authority: Option<Authority>, path: Bytes) -> Result<Uri, RequestFault> {
    let mut parts = http::uri::Parts::default();
    let path = PathAndQuery::from_maybe_shared(path).map_err(|_| RequestFault::Target)?;
    parts.path_and_query = Some(path);
    if authority.is_some() {
        (parts.scheme, parts.authority) = (Some(scheme), authority);
    }
    Uri::from_parts(parts).map_err(|_| RequestFault::Target)
}

/// `uri-host [ ":" port ]`, without user information.
pub fn read_authority(text: &[u8]) -> Result<Authority, RequestFault> {
    as_host(Authority::try_from(text).map_err(|_| RequestFault::Host)?)
}

/// The same, which shares the memory of its text.
pub fn read_shared_authority(text: Bytes) -> Result<Authority, RequestFault> {
    as_host(Authority::from_maybe_shared(text).map_err(|_| RequestFault::Host)?)
}

fn as_host(authority: Authority) -> Result<Authority, RequestFault> {
    // This also refuses user information: it ends in `@`, or the port begins in it.
    let (host, port) = split_port(authority.as_str());
    let port_fits = match port.strip_prefix(':') {
        None => port.is_empty(),
        Some(digits) => {
            digits.bytes().all(|byte| byte.is_ascii_digit())
                && (digits.is_empty() || digits.parse::<u16>().is_ok())
        }
    };
    // One trailing dot is the root of a full name (RFC 1034 section 3.1). No other label may be
    // empty: a reader that drops empty labels would see another name.
    let bytes = host.as_bytes();
    let is_label_empty = bytes.first() == Some(&b'.') || bytes.windows(2).any(|two| two == b"..");
    // The loop has no early end, so it has no branch for each byte.
    let is_plain = bytes.iter().fold(true, |all, byte| all & HOST_BYTES[usize::from(*byte)]);
    if host.is_empty() || !port_fits || is_label_empty || !is_plain {
        return Err(RequestFault::Host);
    }
    Ok(authority)
}

/// What a host may consist of.
static HOST_BYTES: [bool; 256] = {
    let (mut bytes, mut byte) = ([false; 256], 0);
    while byte < 256 {
        let is_mark = matches!(byte as u8, b'-' | b'.' | b'_' | b'~' | b':' | b'[' | b']');
        bytes[byte] = (byte as u8).is_ascii_alphanumeric() || is_mark;
        byte += 1;
    }
    bytes
};

/// The host of an authority without user information, and the rest: a port behind its colon.
pub fn split_port(authority: &str) -> (&str, &str) {
    // Bytes, because a search for a `char` costs more than all of a short text.
    let at = |wanted: u8| authority.bytes().position(|byte| byte == wanted);
    let end = if authority.starts_with('[') { at(b']').map(|at| at + 1) } else { at(b':') };
    authority.split_at(end.unwrap_or(authority.len()))
}

/// RFC 9112 6.3, but stricter: a request that two readers could read in two ways is refused.
fn request_length(version: Version, fields: &Fields) -> Result<Length, RequestFault> {
    let known = content_length(&fields.map).map_err(|NoLength| RequestFault::Length)?;
    match coding(fields) {
        None => Ok(known.map_or(Length::Empty, Length::Known)),
        Some(_) if version == Version::HTTP_10 || known.is_some() => Err(RequestFault::Length),
        Some(Coding::Chunked) => Ok(Length::Chunked),
        Some(Coding::Unknown) => Err(RequestFault::Coding),
        Some(Coding::Malformed) => Err(RequestFault::Length),
    }
}

/// Content-Length gives no reliable length.
#[derive(Debug, PartialEq, Eq)]
pub struct NoLength;

/// The length that a message gives, if it is unambiguous.
pub fn content_length(headers: &HeaderMap) -> Result<Option<u64>, NoLength> {
    let mut values = headers.get_all(header::CONTENT_LENGTH).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            let digits = value.as_bytes();
            // str::parse would accept a plus sign.
            if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                return Err(NoLength);
            }
            let length = value.to_str().map_err(|_| NoLength)?.parse();
            // The next reader may use signed numbers (RFC 9110 8.6).
            let fits = |length: &u64| i64::try_from(*length).is_ok();
            length.ok().filter(fits).map(Some).ok_or(NoLength)
        }
        (Some(_), Some(_)) => Err(NoLength),
    }
}

enum Coding {
    Chunked,
    Unknown,
    Malformed,
}

fn coding(fields: &Fields) -> Option<Coding> {
    if !fields.has_hop_by_hop {
        return None;
    }
    let mut values = fields.map.get_all(header::TRANSFER_ENCODING).iter();
    Some(match (values.next()?, values.next()) {
        (value, None) if value.as_bytes().eq_ignore_ascii_case(b"chunked") => Coding::Chunked,
        (value, None) => {
            let value = value.as_bytes().to_ascii_lowercase();
            let names = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            let names: Vec<_> = names.collect();
            let known = |name: &&[u8]| !name.is_empty() && name.iter().all(is_token);
            match names[..] {
                // RFC 9112 6.1: chunked, but with an unknown coding before it.
                [ref others @ .., b"chunked"]
                    if others.iter().all(known) && !others.contains(&&b"chunked"[..]) =>
                {
                    Coding::Unknown
                }
                _ => Coding::Malformed,
            }
        }
        (_, Some(_)) => Coding::Malformed,
    })
}

fn keep_alive(version: Version, fields: &Fields) -> bool {
    let says = |option| fields.has_hop_by_hop && lists(&fields.map, &header::CONNECTION, option);
    let closes = fields.says_close || says("close");
    let is_kept = || fields.says_keep_alive || says("keep-alive");
    !closes && (version == Version::HTTP_11 || is_kept())
}

/// Takes a response's head off the front of `buffer`; `None` if it is incomplete. The buffer holds
/// `held` bytes of memory, of which some may be before its front.
pub fn take_response(
    buffer: &mut BytesMut,
    held: usize,
    scanner: &mut Scanner,
    method: &Method,
) -> Result<Option<Response>, ResponseFault> {
    if buffer.is_empty() {
        return Ok(None);
    }
    // The client gets CRLF whatever the upstream sent, so later readers cannot differ.
    let end = scanner.lenient_end(buffer);
    if end.unwrap_or(buffer.len()) > RESPONSE_HEAD_BYTES_MAX {
        return Err(ResponseFault::TooLong);
    }
    let Some(end) = end else {
        let begun = &buffer[..buffer.len().min(5)];
        // Bytes that are not HTTP need not be read to their end.
        return if b"HTTP/".starts_with(begun) { Ok(None) } else { Err(ResponseFault::Line) };
    };
    *scanner = Scanner::default();
    let mut head = take_alone(buffer, held, end);
    // Reads a later minor version as HTTP/1.1 (RFC 9110 2.5).
    if let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor @ b'2'..=b'9', b' ', ..] = &mut head[..]
    {
        *minor = b'1';
    }
    read_response(head.freeze(), method).map(Some)
}

fn read_response(head: Bytes, method: &Method) -> Result<Response, ResponseFault> {
    let mut fields = [const { MaybeUninit::uninit() }; RESPONSE_FIELDS_MAX];
    if !head.starts_with(b"HTTP/") {
        return Err(ResponseFault::Line);
    }
    let mut parsed = httparse::Response::new(&mut []);
    // RFC 9112 5.1: a proxy removes white space before a response's colons.
    let mut reader = httparse::ParserConfig::default();
    reader.allow_spaces_after_header_name_in_responses(true);
    match reader.parse_response_with_uninit_headers(&mut parsed, &head, &mut fields) {
        Ok(httparse::Status::Complete(len)) if len == head.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(ResponseFault::TooMany),
        Err(httparse::Error::HeaderName | httparse::Error::HeaderValue) => {
            return Err(ResponseFault::Field);
        }
        _ => return Err(ResponseFault::Line),
    }
    let (Some(code), Some(minor)) = (parsed.code, parsed.version) else {
        return Err(ResponseFault::Line);
    };
    let status = StatusCode::from_u16(code).map_err(|_| ResponseFault::Line)?;
    let fields = read_fields(&head, parsed.headers, |_| false).ok_or(ResponseFault::Field)?;
    let version = if minor == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
    let length = response_length(version, status, &fields, method)?;
    let keep_alive = keep_alive(version, &fields) && length != Length::UntilClose;
    let (mut parts, ()) = http::Response::new(()).into_parts();
    (parts.status, parts.version, parts.headers) = (status, version, fields.map);
    Ok(Response { parts, length, keep_alive })
}

fn response_length(
    version: Version,
    status: StatusCode,
    fields: &Fields,
    method: &Method,
) -> Result<Length, ResponseFault> {
    let known = content_length(&fields.map).map_err(|NoLength| ResponseFault::Length)?;
    let coding = coding(fields);
    if coding.is_some() && (known.is_some() || version == Version::HTTP_10) {
        return Err(ResponseFault::Length);
    }
    if *method == Method::HEAD || has_no_body(status) {
        return Ok(Length::Empty);
    }
    match (coding, known) {
        (None, Some(0)) => Ok(Length::Empty),
        (None, Some(known)) => Ok(Length::Known(known)),
        (None, None) => Ok(Length::UntilClose),
        (Some(Coding::Chunked), _) => Ok(Length::Chunked),
        (Some(_), _) => Err(ResponseFault::Coding),
    }
}

/// Statuses whose responses end with their head (RFC 9110 6.4.1).
pub fn has_no_body(status: StatusCode) -> bool {
    status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
}

/// In bytes: `UPDATEREDIRECTREF`, the longest registered method, has 17.
pub const METHOD_BYTES_MAX: usize = 32;

#[cfg(test)]
mod tests;

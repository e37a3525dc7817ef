//! Heads of HTTP/1.1 messages (RFC 9112): turns bytes into `http` types, strictly, and finds where
//! the body ends.

mod scanner;

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use eyelet_compress::fields::lists;
use eyelet_memory::budget::CountedBuffer;
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, StatusCode, Uri, Version, request, response};
use memchr::memchr_iter;

use super::authority::{checked, read_host_text};
use super::fault::{RequestFault, ResponseFault};
use super::framing::is_framing_alias;
use super::lines::{BadLine, FieldLine, FieldLines, find_lf};
pub use super::request_line::TARGET_BYTES_MAX;
use super::request_line::{RequestLine, read_common};
use super::spare_heads::recycle;

pub use super::authority::{read_authority, read_shared_authority, split_port};
pub use super::lines::{FieldRole, FieldRoles, is_token};
pub use super::spares::{FIELDS_ADDED, SPARE_FIELDS_MAX, forget_unused, give_back, spare_fields};
pub use scanner::{BareLf, Scanner};

/// Most fields of a request: Apache and hyper allow as many.
pub const FIELDS_MAX: usize = 100;
/// Most fields of a response. An application that sets a hundred cookies works behind nginx, so it
/// must work here.
pub const RESPONSE_FIELDS_MAX: usize = 256;
/// A response with so much memory is not divided: a head of its own would cost two allocations. A
/// stream's count has room for it.
const SMALL_RESPONSE_BYTES: usize = 2 << 10;
/// Bytes of a common field line of a request: a head has about so many lines.
const LINE_BYTES: usize = 40;
/// Bytes of a response's head.
pub const RESPONSE_HEAD_BYTES_MAX: usize = 64 << 10;

/// The way in which the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// There is none.
    Empty,
    /// After this many bytes.
    Known(u64),
    /// After the last chunk.
    Chunked,
    /// The body ends at the end of the connection: responses only.
    UntilClose,
}

/// A request's head.
#[derive(Debug)]
pub struct Request {
    /// Method, target and fields, all as received. The URI has the target's authority, or else
    /// Host, which is not among the fields. Its scheme is `http` only if the target has it.
    pub parts: request::Parts,
    /// The end of its body.
    pub length: Length,
    /// True if the client keeps the connection open after it.
    pub keep_alive: bool,
    /// The roles of its fields.
    pub roles: FieldRoles,
    /// Its head as it came, which its parts share. Bytes behind it may share the memory, too.
    head: Bytes,
}

impl Request {
    /// One that was not read yet.
    pub fn empty() -> Self {
        let (parts, ()) = http::Request::new(()).into_parts();
        let (length, head) = (Length::Empty, Bytes::new());
        Self { parts, length, keep_alive: false, roles: FieldRoles::default(), head }
    }

    /// Its head as it came.
    pub fn raw(&self) -> &[u8] {
        &self.head
    }

    /// Gives the memory of a request that was served to a later message, unless something still
    /// needs a part of it.
    pub fn give_back(&mut self) {
        self.parts.uri = Uri::default();
        // Mostly its fields were taken.
        if !self.parts.headers.is_empty() {
            self.parts.headers = HeaderMap::new();
        }
        recycle(std::mem::take(&mut self.head));
    }

    /// Takes a request's head off the front of `buffer`, in the place of an earlier request: a move
    /// of all of it would be a copy. Returns false if it is incomplete. After a fault, nothing in
    /// it counts.
    pub fn take(
        &mut self,
        buffer: &mut BytesMut,
        scanner: &mut Scanner,
        head_bytes_max: usize,
    ) -> Result<bool, RequestFault> {
        if scanner.is_new() && buffer.len() <= head_bytes_max && self.take_whole(buffer) {
            return Ok(true);
        }
        let Some(end) = request_end(buffer, scanner, head_bytes_max)? else { return Ok(false) };
        let lines = std::mem::take(scanner).lines;
        let mut head = split_to(buffer, end);
        as_known_version(&mut head);
        self.head = head.freeze();
        self.read(lines).map(|()| true)
    }

    /// Takes a head that is all of `buffer`, as most are: its end is not searched before it is
    /// read. False: nothing was taken, and why is found by the line. An empty line before the end
    /// is that of another request, and no field line.
    fn take_whole(&mut self, buffer: &mut BytesMut) -> bool {
        let line = read_common(buffer).filter(|_| buffer.ends_with(b"\r\n\r\n"));
        let Some(line) = line else { return false };
        let lines = (buffer.len() / LINE_BYTES).min(SPARE_FIELDS_MAX - FIELDS_ADDED);
        self.head = std::mem::take(buffer).freeze();
        let is_read = self.read_behind(line, lines).is_ok();
        if !is_read {
            *buffer = std::mem::take(&mut self.head).into();
        }
        is_read
    }

    /// Reads its head.
    fn read(&mut self, lines: usize) -> Result<(), RequestFault> {
        if let Some(line) = read_common(&self.head) {
            return self.read_behind(line, lines);
        }
        let head = &self.head;
        let line_end = first_line_end(head).ok_or(RequestFault::Line)?;
        let mut parsed = httparse::Request::new(&mut []);
        match parsed.parse(&head[..line_end]) {
            // The fields are read here, because httparse would only find them.
            Ok(_) => {}
            Err(httparse::Error::Version) => return Err(version_fault(head)),
            Err(httparse::Error::Token) => return Err(RequestFault::Line),
            Err(_) => return Err(RequestFault::Field),
        }
        let (Some(method), Some(target), Some(minor)) =
            (parsed.method, parsed.path, parsed.version)
        else {
            return Err(RequestFault::Line);
        };
        let mut fields = Fields::new(&mut self.parts.headers);
        let read = fields.read(head, (line_end, lines), HeadKind::Request);
        read.map_err(BadFields::of_request)?;
        if target.len() > TARGET_BYTES_MAX {
            return Err(RequestFault::TargetTooLong);
        }
        if method.len() > METHOD_BYTES_MAX {
            return Err(RequestFault::Line);
        }
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| RequestFault::Line)?;
        let version = if minor == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
        self.parts.uri = read_target(&method, head, target, read_host(head, version, &fields)?)?;
        (self.parts.method, self.parts.version) = (method, version);
        self.length = request_length(version, &fields)?;
        (self.keep_alive, self.roles) = (keep_alive(version, &fields), fields.roles);
        Ok(())
    }

    /// Reads what is behind a common line.
    #[inline]
    fn read_behind(&mut self, line: RequestLine, lines: usize) -> Result<(), RequestFault> {
        let RequestLine { method, path, end } = line;
        let (head, version) = (&self.head, Version::HTTP_11);
        let mut fields = Fields::new(&mut self.parts.headers);
        fields.read(head, (end, lines), HeadKind::Request).map_err(BadFields::of_request)?;
        let host = read_host(head, version, &fields)?;
        self.parts.uri = build(Scheme::HTTPS, host, head.slice(path))?;
        (self.parts.method, self.parts.version) = (method, version);
        self.length = request_length(version, &fields)?;
        (self.keep_alive, self.roles) = (keep_alive(version, &fields), fields.roles);
        Ok(())
    }
}

/// A response's head.
#[derive(Debug)]
pub struct Response {
    /// Status and fields as they came.
    pub parts: response::Parts,
    /// The end of its body.
    pub length: Length,
    /// True if the upstream keeps its connection open after it.
    pub keep_alive: bool,
    /// The roles of its fields.
    pub roles: FieldRoles,
}

/// Takes a request's head off the front of `buffer`; `None` if it is incomplete.
pub fn take_request(
    buffer: &mut BytesMut,
    scanner: &mut Scanner,
    head_bytes_max: usize,
) -> Result<Option<Request>, RequestFault> {
    let mut request = Request::empty();
    Ok(request.take(buffer, scanner, head_bytes_max)?.then_some(request))
}

/// Reads a request's head of this length where it is. The memory of `received` counts as long as
/// the request lives.
pub fn counted_request(mut received: CountedBuffer, end: usize) -> Result<Request, RequestFault> {
    as_known_version(&mut received[..end]);
    let mut request = Request::empty();
    request.head = received.into_bytes().slice(..end);
    let lines = memchr_iter(b'\n', &request.head).count();
    request.read(lines).map(|()| request)
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

/// Says if an incomplete head can become valid: its method is a token, and its line ends in a
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

/// The end of a head's first line. One empty line may be before that of a request (RFC 9112 2.2).
fn first_line_end(head: &[u8]) -> Option<usize> {
    let begin = if head.starts_with(b"\r\n") { 2 } else { 0 };
    Some(begin + find_lf(&head[begin..])? + 1)
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

/// The head that fields are of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeadKind {
    Request,
    Response,
}

/// The reason why fields are refused.
enum BadFields {
    TooMany,
    Malformed,
}

impl BadFields {
    fn of_request(self) -> RequestFault {
        match self {
            Self::TooMany => RequestFault::TooMany,
            Self::Malformed => RequestFault::Field,
        }
    }

    fn of_response(self) -> ResponseFault {
        match self {
            Self::TooMany => ResponseFault::TooMany,
            Self::Malformed => ResponseFault::Field,
        }
    }
}

impl From<BadLine> for BadFields {
    fn from(BadLine: BadLine) -> Self {
        Self::Malformed
    }
}

/// The fields of a head.
struct Fields<'m> {
    map: &'m mut HeaderMap,
    roles: FieldRoles,
    /// True if a `Connection` field that did not enter the map says `close`.
    says_close: bool,
    says_keep_alive: bool,
    /// The `Host` of a request, and how many there are.
    host: Range<usize>,
    hosts: usize,
    /// The length that `Content-Length` says.
    length: Result<Option<u64>, NoLength>,
}

impl<'m> Fields<'m> {
    /// None yet. They enter this map.
    #[inline]
    fn new(map: &'m mut HeaderMap) -> Self {
        Self {
            map,
            roles: FieldRoles::default(),
            says_close: false,
            says_keep_alive: false,
            host: 0..0,
            hosts: 0,
            length: Ok(None),
        }
    }

    /// Reads the fields in their order, except that fields which are not passed on come last:
    /// hop-by-hop fields, and the length of a request, which is written anew. The map fills the gap
    /// of a removed field with its last one. That would change the order of the others. `Host` and
    /// most `Connection` fields are only noted. The fields begin at `at`, and there are about as
    /// many as lines.
    fn read(
        &mut self,
        head: &Bytes,
        (at, lines): (usize, usize),
        kind: HeadKind,
    ) -> Result<(), BadFields> {
        let is_request = kind == HeadKind::Request;
        let count_max = if is_request { FIELDS_MAX } else { RESPONSE_FIELDS_MAX };
        *self.map = spare_fields(lines.saturating_sub(1).min(count_max));
        let mut last = Vec::new();
        for (index, line) in FieldLines::new(head, at, !is_request).enumerate() {
            let FieldLine { name, role, value, has_crlf } = line?;
            if index == count_max {
                return Err(BadFields::TooMany);
            }
            if is_request && !has_crlf {
                return Err(BadFields::Malformed);
            }
            let text = &head[value.clone()];
            let is_last = match role {
                FieldRole::Other => {
                    if is_request && is_framing_alias(name.as_str().as_bytes()) {
                        return Err(BadFields::Malformed);
                    }
                    false
                }
                FieldRole::Host if is_request => {
                    self.note_host(head, value)?;
                    continue;
                }
                FieldRole::ContentLength => {
                    self.note_length(text);
                    is_request
                }
                FieldRole::Connection if self.notes_option(text) => continue,
                FieldRole::Connection | FieldRole::HopByHop => true,
                _ => false,
            };
            self.roles.add(role);
            let value = HeaderValue::from_maybe_shared(head.slice(value));
            let value = value.map_err(|_| BadFields::Malformed)?;
            if is_last {
                last.push((name, value));
            } else {
                self.map.append(name, value);
            }
        }
        for (name, value) in last {
            self.map.append(name, value);
        }
        Ok(())
    }

    /// Notes a `Host` field. It does not enter the map: the URI has it.
    fn note_host(&mut self, head: &[u8], value: Range<usize>) -> Result<(), BadFields> {
        let is_text = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
        if !head[value.clone()].iter().all(is_text) {
            return Err(BadFields::Malformed);
        }
        self.host = value;
        self.hosts += 1;
        Ok(())
    }

    /// Notes a `Content-Length` field. Two of them are ambiguous.
    fn note_length(&mut self, text: &[u8]) {
        self.length = match self.length {
            Ok(None) => read_length(text).map(Some),
            _ => Err(NoLength),
        };
    }

    /// Notes what most `Connection` fields say, and nothing else: they name no other field. Such a
    /// field does not enter the map, where it would be hashed to be added, to be found, and to be
    /// removed. Returns whether the field is one of them.
    fn notes_option(&mut self, text: &[u8]) -> bool {
        match text.len() {
            5 if text.eq_ignore_ascii_case(b"close") => self.says_close = true,
            10 if text.eq_ignore_ascii_case(b"keep-alive") => self.says_keep_alive = true,
            _ => return false,
        }
        true
    }
}

/// The only Host, which only HTTP/1.0 may lack (RFC 9112 3.2).
fn read_host(
    head: &Bytes,
    version: Version,
    fields: &Fields<'_>,
) -> Result<Option<Authority>, RequestFault> {
    match fields.hosts {
        1 => read_host_text(head, fields.host.clone()).map(Some),
        0 if version == Version::HTTP_10 => Ok(None),
        _ => Err(RequestFault::Host),
    }
}

/// The target in its four forms (RFC 9112 3.2), as a URI with its authority. Its path shares the
/// memory of the head.
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
    let authority = checked(authority.clone())?;
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

/// RFC 9112 6.3, but stricter: a request that two readers could read in two ways is refused.
fn request_length(version: Version, fields: &Fields<'_>) -> Result<Length, RequestFault> {
    let known = fields.length.map_err(|NoLength| RequestFault::Length)?;
    match coding(fields) {
        None => Ok(known.map_or(Length::Empty, Length::Known)),
        Some(_) if version == Version::HTTP_10 || known.is_some() => Err(RequestFault::Length),
        Some(Coding::Chunked) => Ok(Length::Chunked),
        Some(Coding::Unknown) => Err(RequestFault::Coding),
        Some(Coding::Malformed) => Err(RequestFault::Length),
    }
}

/// Content-Length gives no reliable length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoLength;

/// The length that a message gives, if it is unambiguous.
pub fn content_length(headers: &HeaderMap) -> Result<Option<u64>, NoLength> {
    let mut values = headers.get_all(header::CONTENT_LENGTH).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => read_length(value.as_bytes()).map(Some),
        (Some(_), Some(_)) => Err(NoLength),
    }
}

/// Reads digits. `str::parse` would accept a plus sign.
pub(super) fn read_length(digits: &[u8]) -> Result<u64, NoLength> {
    let longer = |length: u64, digit: &u8| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        length.checked_mul(10)?.checked_add(digit)
    };
    let length = digits.iter().try_fold(0, longer).filter(|_| !digits.is_empty());
    // The next reader may use signed numbers (RFC 9110 8.6).
    let fits = |length: &u64| i64::try_from(*length).is_ok();
    length.filter(fits).ok_or(NoLength)
}

enum Coding {
    Chunked,
    Unknown,
    Malformed,
}

fn coding(fields: &Fields<'_>) -> Option<Coding> {
    if !fields.roles.may_have_hop_by_hop() {
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

fn keep_alive(version: Version, fields: &Fields<'_>) -> bool {
    let has_options = fields.roles.may_have(FieldRole::Connection);
    let says = |option| has_options && lists(fields.map, &header::CONNECTION, option);
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
    let lines = std::mem::take(scanner).lines;
    let mut head = take_alone(buffer, held, end);
    // Reads a later minor version as HTTP/1.1 (RFC 9110 2.5).
    if let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor @ b'2'..=b'9', b' ', ..] = &mut head[..]
    {
        *minor = b'1';
    }
    read_response(head.freeze(), lines, method).map(Some)
}

pub(super) fn read_response(
    head: Bytes,
    lines: usize,
    method: &Method,
) -> Result<Response, ResponseFault> {
    if !head.starts_with(b"HTTP/") {
        return Err(ResponseFault::Line);
    }
    let line_end = first_line_end(&head).ok_or(ResponseFault::Line)?;
    let mut parsed = httparse::Response::new(&mut []);
    parsed.parse(&head[..line_end]).map_err(|_| ResponseFault::Line)?;
    let (Some(code), Some(minor)) = (parsed.code, parsed.version) else {
        return Err(ResponseFault::Line);
    };
    let (mut parts, ()) = http::Response::new(()).into_parts();
    let mut fields = Fields::new(&mut parts.headers);
    let read = fields.read(&head, (line_end, lines), HeadKind::Response);
    read.map_err(BadFields::of_response)?;
    let status = StatusCode::from_u16(code).map_err(|_| ResponseFault::Line)?;
    let version = if minor == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
    let length = response_length(version, status, &fields, method)?;
    let keep_alive = keep_alive(version, &fields) && length != Length::UntilClose;
    let roles = fields.roles;
    (parts.status, parts.version) = (status, version);
    Ok(Response { parts, length, keep_alive, roles })
}

fn response_length(
    version: Version,
    status: StatusCode,
    fields: &Fields<'_>,
    method: &Method,
) -> Result<Length, ResponseFault> {
    let known = fields.length.map_err(|NoLength| ResponseFault::Length)?;
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

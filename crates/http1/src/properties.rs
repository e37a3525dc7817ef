//! Properties of heads and bodies, for any bytes. Fuzz targets and property tests assert them.

// A broken property is a finding of the test or the fuzz target that asked for it.
#![allow(clippy::expect_used, clippy::panic)]

use bytes::BytesMut;
use http::{HeaderMap, Method, Version, header};

use super::body::{BadFraming, Decoder, Piece};
use super::fault::{RequestFault, ResponseFault};
use super::fields::{to_client, to_upstream};
use super::head::{
    FIELDS_MAX, FieldRoles, Length, RESPONSE_FIELDS_MAX, Request, Response, Scanner,
    TARGET_BYTES_MAX, take_request, take_response,
};

/// Small, so that inputs reach the limit.
const HEAD_BYTES_MAX: usize = 2048;

/// A request's head reads the same in one piece and byte by byte. Written again, it means the same
/// to a reader that only knows lines.
///
/// # Panics
///
/// Where that does not hold.
pub fn request_is_stable(bytes: &[u8]) {
    let mut whole = BytesMut::from(bytes);
    let at_once = take_request(&mut whole, &mut Scanner::default(), HEAD_BYTES_MAX);
    let mut scanner = Scanner::default();
    let mut cut = BytesMut::new();
    let mut taken = Ok(None);
    for byte in bytes {
        cut.extend_from_slice(&[*byte]);
        taken = take_request(&mut cut, &mut scanner, HEAD_BYTES_MAX);
        if !matches!(taken, Ok(None)) {
            break;
        }
    }
    let Ok(Some(request)) = at_once else {
        let taken = !matches!(taken, Ok(Some(_)));
        assert!(taken, "byte by byte it is a request");
        return;
    };
    let Ok(Some(again)) = taken else { panic!("byte by byte it is no request: {taken:?}") };
    assert_eq!(summary(&request), summary(&again));
    let head = &bytes[..bytes.len() - whole.len()];
    let strict = head.split_inclusive(|byte| *byte == b'\n').all(|line| line.ends_with(b"\r\n"));
    assert!(strict, "{}", head.escape_ascii());
    lines_agree(head, &request.parts.headers, true);
    assert!(request.parts.headers.len() <= FIELDS_MAX);
    hold(&request);
    let passed = |roles| {
        let mut parts = request.parts.clone();
        to_upstream(&mut parts, request.length, None, roles);
        parts.headers
    };
    assert_eq!(passed(request.roles), passed(FieldRoles::UNKNOWN));
    let written = write(&request);
    let rewritten = take_request(&mut written.clone(), &mut Scanner::default(), usize::MAX);
    let Ok(Some(rewritten)) = rewritten else {
        panic!("written again it is {rewritten:?}: {}", written.escape_ascii());
    };
    // An upstream is asked for a path: the target's scheme is not written.
    let without_scheme = |request: &Request| {
        let (method, uri, fields, length, keep_alive) = summary(request);
        let rest = uri.split_once("://").map_or(uri.clone(), |(_, rest)| rest.to_owned());
        (method, rest, fields, length, keep_alive)
    };
    assert_eq!(without_scheme(&request), without_scheme(&rewritten));
}

/// A response's head reads the same in one piece and byte by byte.
///
/// # Panics
///
/// Where that does not hold.
pub fn response_is_stable(bytes: &[u8]) {
    for method in [Method::GET, Method::HEAD] {
        let mut whole = BytesMut::from(bytes);
        let at_once = take_response(&mut whole, 0, &mut Scanner::default(), &method);
        let mut scanner = Scanner::default();
        let mut cut = BytesMut::new();
        let mut taken: Result<Option<Response>, ResponseFault> = Ok(None);
        for byte in bytes {
            cut.extend_from_slice(&[*byte]);
            taken = take_response(&mut cut, 0, &mut scanner, &method);
            if !matches!(taken, Ok(None)) {
                break;
            }
        }
        let (Ok(Some(response)), Ok(Some(again))) = (&at_once, &taken) else {
            let same = matches!(at_once, Ok(Some(_))) == matches!(taken, Ok(Some(_)));
            assert!(same, "{at_once:?}, byte by byte {taken:?}");
            continue;
        };
        assert_eq!(response.length, again.length);
        assert_eq!(response.keep_alive, again.keep_alive);
        assert_eq!(response.parts.status, again.parts.status);
        lines_agree(&bytes[..bytes.len() - whole.len()], &response.parts.headers, false);
        let passed = |roles| {
            let mut parts = response.parts.clone();
            to_client(&mut parts, roles);
            parts.headers
        };
        assert_eq!(passed(response.roles), passed(FieldRoles::UNKNOWN));
        let bodiless = method == Method::HEAD || response.parts.status.is_informational();
        assert!(!bodiless || response.length == Length::Empty);
        assert!(response.length != Length::UntilClose || !response.keep_alive);
    }
}

/// Bytes as a head of either kind.
pub fn head_is_stable(bytes: &[u8]) {
    request_is_stable(bytes);
    response_is_stable(bytes);
}

/// A body reads the same in one piece and byte by byte. A reader that only knows chunk sizes finds
/// the same body.
///
/// # Panics
///
/// Where that does not hold.
pub fn body_is_stable(bytes: &[u8]) {
    let known = bytes.first().map_or(0, |first| u64::from(*first));
    for length in [Length::Chunked, Length::Known(known), Length::UntilClose] {
        let (at_once, cut) = (decode(length, bytes, usize::MAX), decode(length, bytes, 1));
        let (at_once, cut) = match (at_once, cut) {
            (Ok(at_once), Ok(cut)) => (at_once, cut),
            (at_once, cut) => {
                assert_eq!(at_once.is_err(), cut.is_err(), "{}", bytes.escape_ascii());
                continue;
            }
        };
        assert_eq!(at_once, cut, "{}", bytes.escape_ascii());
        let Decoded { data, done, left } = at_once;
        let (taken, _) = bytes.split_at(bytes.len() - left);
        match length {
            Length::Chunked if done => assert_eq!(by_sizes(taken), Some(data)),
            Length::Chunked => {}
            _ => assert_eq!(data, taken),
        }
    }
}

#[derive(Debug, PartialEq)]
struct Decoded {
    data: Vec<u8>,
    done: bool,
    left: usize,
}

fn decode(length: Length, bytes: &[u8], step: usize) -> Result<Decoded, BadFraming> {
    let (mut decoder, mut buffer, mut data) = (Decoder::new(length), BytesMut::new(), Vec::new());
    for piece in bytes.chunks(step) {
        buffer.extend_from_slice(piece);
        while !decoder.is_done()
            && let Some(piece) = decoder.next(&mut buffer)?
        {
            if let Piece::Data(piece) = piece {
                assert!(!piece.is_empty());
                data.extend_from_slice(&piece);
            }
        }
    }
    Ok(Decoded { data, done: decoder.is_done(), left: buffer.len() })
}

/// The data of chunks that end with these bytes.
fn by_sizes(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    loop {
        let line = bytes.windows(2).position(|two| two == b"\r\n")?;
        let size = bytes[..line].split(|byte| *byte == b';').next()?;
        let size = usize::from_str_radix(std::str::from_utf8(size).ok()?, 16).ok()?;
        bytes = &bytes[line + 2..];
        if size == 0 {
            let is_whole = bytes == b"\r\n" || bytes.ends_with(b"\r\n\r\n");
            return is_whole.then_some(data);
        }
        data.extend_from_slice(bytes.get(..size)?);
        bytes = bytes.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

type Summary = (Method, String, HeaderMap, Length, bool);

fn summary(request: &Request) -> Summary {
    let parts = &request.parts;
    let uri = parts.uri.to_string();
    (parts.method.clone(), uri, parts.headers.clone(), request.length, request.keep_alive)
}

/// Every line is a field, and no line contains a byte at which another reader would end it.
fn lines_agree(head: &[u8], headers: &HeaderMap, is_request: bool) {
    let head = head.strip_prefix(b"\r\n").unwrap_or(head);
    let lines = head.split(|byte| *byte == b'\n');
    let lines: Vec<&[u8]> = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line)).collect();
    let [lines @ .., b"", b""] = &lines[..] else { panic!("no end: {}", head.escape_ascii()) };
    // Noted only: `Host` of a request, and a `Connection` with one of two options.
    let is_apart = |line: &&&[u8]| {
        let mut halves = line.splitn(2, |byte| *byte == b':');
        let (Some(name), Some(value)) = (halves.next(), halves.next()) else { return false };
        let value = value.trim_ascii();
        let is_option =
            value.eq_ignore_ascii_case(b"close") || value.eq_ignore_ascii_case(b"keep-alive");
        is_option && name.eq_ignore_ascii_case(b"connection")
            || is_request && name.eq_ignore_ascii_case(b"host")
    };
    let fields = lines.len() - 1 - lines.iter().filter(is_apart).count();
    assert_eq!(fields, headers.len(), "{}", head.escape_ascii());
    for line in lines {
        assert!(!line.is_empty() && !line.contains(&b'\r') && !line.contains(&0));
        assert!(!line.starts_with(b" ") && !line.starts_with(b"\t"));
    }
    assert!(headers.len() <= RESPONSE_FIELDS_MAX);
}

/// The reader's promises about a request.
fn hold(request: &Request) {
    let parts = &request.parts;
    let count = |name| parts.headers.get_all(name).iter().count();
    let old = parts.version == Version::HTTP_10;
    assert_eq!(count(header::HOST), 0, "the URI has it");
    assert_eq!(parts.uri.authority().is_none(), old && parts.uri.scheme().is_none());
    assert!(parts.method != Method::CONNECT);
    let path = parts.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str);
    assert!(path.starts_with('/') || (path == "*" && parts.method == Method::OPTIONS));
    assert!(parts.uri.path().len() <= TARGET_BYTES_MAX);
    match request.length {
        Length::Chunked => {
            assert!(!old && count(header::TRANSFER_ENCODING) == 1);
            assert_eq!(count(header::CONTENT_LENGTH), 0);
        }
        Length::Known(_) => {
            assert_eq!(count(header::CONTENT_LENGTH), 1);
            assert_eq!(count(header::TRANSFER_ENCODING), 0);
        }
        Length::Empty => {
            assert_eq!(count(header::CONTENT_LENGTH) + count(header::TRANSFER_ENCODING), 0);
        }
        Length::UntilClose => panic!("{:?} for a request", RequestFault::Length),
    }
}

/// True if a `Connection` field of the map has this option.
fn lists(headers: &HeaderMap, option: &str) -> bool {
    let values = headers.get_all(header::CONNECTION).iter();
    let mut options = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    options.any(|listed| listed.trim_ascii().eq_ignore_ascii_case(option.as_bytes()))
}

/// The request in a form in which every reader sees its authority.
fn write(request: &Request) -> BytesMut {
    let parts = &request.parts;
    let path = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let target = match parts.uri.authority() {
        Some(authority) if path != "*" => format!("https://{authority}{path}"),
        Some(authority) => format!("https://{authority}"),
        None => path.to_owned(),
    };
    let minor = if parts.version == Version::HTTP_10 { 0 } else { 1 };
    let mut out = BytesMut::new();
    out.extend_from_slice(format!("{} {target} HTTP/1.{minor}\r\n", parts.method).as_bytes());
    // An option that stood alone in its field is not in the map.
    let (option, other) =
        if request.keep_alive { ("keep-alive", "close") } else { ("close", "keep-alive") };
    let is_default = request.keep_alive == (minor == 1);
    if !lists(&parts.headers, option) && (!is_default || lists(&parts.headers, other)) {
        out.extend_from_slice(format!("connection: {option}\r\n").as_bytes());
    }
    if let Some(authority) = parts.uri.authority() {
        out.extend_from_slice(format!("host: {authority}\r\n").as_bytes());
    }
    for (name, value) in &parts.headers {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out
}

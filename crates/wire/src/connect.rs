//! The head of an HTTP CONNECT request (RFC 9110 9.3.6, RFC 9112 3.2.3), read strictly: the target
//! has one spelling, and nothing else in the head may name another one.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

use crate::hello::{HostName, SniFault};

/// Longest head, from the method to the empty line. Clients send a few hundred bytes;
/// `Proxy-Authorization` adds at most a Kerberos ticket of some kilobytes.
pub const CONNECT_HEAD_BYTES_MAX: usize = 8192;

/// Reads a head as it arrives. It keeps its progress, so that a head that arrives byte by byte
/// costs no more than a whole one.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectReader {
    /// Bytes that were read.
    seen: usize,
    /// The beginning of the line in which they end.
    line: usize,
}

/// The answer of [`ConnectReader::feed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// It lives on the stack while the connection is decided.
#[allow(clippy::large_enum_variant)]
pub enum ConnectPeek {
    /// The head is incomplete.
    NeedMore,
    /// A complete head.
    Connect(Connect),
    /// The head of an HTTP request with another method.
    OtherMethod,
    /// The head of a request for an `http://` URL (absolute-form, RFC 9112 3.2.2).
    PlainHttp,
    /// The first bytes begin no HTTP request.
    NotHttp,
    /// A CONNECT request that breaks the RFCs, or a limit.
    Malformed(ConnectFault),
}

/// A CONNECT request that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Bytes of the head. What follows is for the target.
    pub len: usize,
    /// The target.
    pub target: Target,
    /// The place of the value of its `Proxy-Authorization` field, if it has one.
    pub authorization: Option<(usize, usize)>,
}

/// `host:port`, the authority-form of RFC 9112 3.2.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The host.
    pub host: TargetHost,
    /// The port, never 0.
    pub port: u16,
}

/// The host of a [`Target`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)]
pub enum TargetHost {
    /// A name, spelled as in a hello.
    Name(HostName),
    /// An address. An IPv4-mapped IPv6 address is an IPv4 address here.
    Ip(IpAddr),
}

/// The fault of a CONNECT request. Always the client's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectFault {
    /// No empty line within [`CONNECT_HEAD_BYTES_MAX`].
    TooLong,
    /// An LF without a CR before it. Some readers accept it as the end of a line.
    BareLf,
    /// A CR without an LF after it. Some readers accept it as the end of a line.
    BareCr,
    /// A byte that is not allowed in a head (RFC 9110 5.5).
    Control(u8),
    /// Not `CONNECT target HTTP/1.x` with single spaces.
    RequestLine,
    /// A version other than HTTP/1.0 or HTTP/1.1.
    Version,
    /// A target without a port, or with something before or after `host:port`.
    Target,
    /// A host that is neither a name nor an address.
    Host(SniFault),
    /// A port that is not a number from 1 to 65535 in its shortest spelling.
    Port,
    /// A line that continues the one before (obs-fold, RFC 9112 5.2).
    Folded,
    /// A field without a name or without a colon, or with a blank in or after its name.
    FieldName,
    /// HTTP/1.1 without a `Host` field (RFC 9112 3.2).
    HostMissing,
    /// More than one `Host` field.
    HostTwice,
    /// A `Host` field that names no host (RFC 9112 3.2).
    HostMalformed,
    /// More than one `Proxy-Authorization` field.
    AuthorizationTwice,
    /// `Content-Length` or `Transfer-Encoding`: a CONNECT has no content (RFC 9110 9.3.6), and what
    /// follows the head is for the target.
    Content,
}

impl ConnectReader {
    /// A reader at the first byte.
    #[must_use]
    pub const fn new() -> Self {
        Self { seen: 0, line: 0 }
    }

    /// `raw` is everything received so far. Each call's `raw` must extend the last one's.
    pub fn feed(&mut self, raw: &[u8]) -> ConnectPeek {
        if !raw.starts_with(METHOD) {
            let start = raw.get(..METHOD_BYTES_MAX).unwrap_or(raw);
            return match start.iter().position(|&b| !is_token(b)) {
                _ if METHOD.starts_with(raw) => ConnectPeek::NeedMore,
                Some(at) if at > 0 && raw.get(at) == Some(&b' ') => plain_http(raw, at + 1),
                None if raw.len() < METHOD_BYTES_MAX => ConnectPeek::NeedMore,
                _ => ConnectPeek::NotHttp,
            };
        }
        match self.end(raw) {
            Ok(Some(len)) => match read(raw.get(..len).unwrap_or(raw)) {
                Ok((target, authorization)) => {
                    ConnectPeek::Connect(Connect { len, target, authorization })
                }
                Err(fault) => ConnectPeek::Malformed(fault),
            },
            Ok(None) => ConnectPeek::NeedMore,
            Err(fault) => ConnectPeek::Malformed(fault),
        }
    }

    /// The length of the head, once its empty line has arrived. A byte that no head may contain is
    /// a fault at once: with bare LFs the end might never come.
    fn end(&mut self, raw: &[u8]) -> Result<Option<usize>, ConnectFault> {
        let head = raw.get(..CONNECT_HEAD_BYTES_MAX).unwrap_or(raw);
        while let Some(&byte) = head.get(self.seen) {
            let before = self.seen.checked_sub(1).and_then(|at| head.get(at));
            let after_cr = before == Some(&b'\r');
            match byte {
                b'\n' if !after_cr => return Err(ConnectFault::BareLf),
                _ if after_cr && byte != b'\n' => return Err(ConnectFault::BareCr),
                b'\t' | b'\r' => {}
                b'\n' => {
                    // CR and LF alone: the empty line.
                    if self.seen == self.line + 1 {
                        return Ok(Some(self.seen + 1));
                    }
                    self.line = self.seen + 1;
                }
                0..b' ' | 0x7f => return Err(ConnectFault::Control(byte)),
                _ => {}
            }
            self.seen += 1;
        }
        if raw.len() >= CONNECT_HEAD_BYTES_MAX { Err(ConnectFault::TooLong) } else { Ok(None) }
    }
}

/// Tells if the target, which begins at `at`, is an `http://` URL. Schemes have no case (RFC 3986
/// 3.1).
fn plain_http(raw: &[u8], at: usize) -> ConnectPeek {
    let target = raw.get(at..).unwrap_or_default();
    let begun = target.get(..PLAIN_SCHEME.len()).unwrap_or(target);
    match PLAIN_SCHEME.get(..begun.len()).is_some_and(|same| same.eq_ignore_ascii_case(begun)) {
        true if begun.len() == PLAIN_SCHEME.len() => ConnectPeek::PlainHttp,
        true => ConnectPeek::NeedMore,
        false => ConnectPeek::OtherMethod,
    }
}

/// Parses a complete head: lines end in CR LF, and the last one is empty.
fn read(head: &[u8]) -> Result<(Target, Option<(usize, usize)>), ConnectFault> {
    let lines = head.split(|&b| b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut lines = lines.take_while(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let (target, is_http_11) = request_line(first)?;
    let (mut host, mut authorization) = (None, None);
    let mut next = first.len() + CRLF_BYTES;
    for line in lines {
        let end = next + line.len();
        next = end + CRLF_BYTES;
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            return Err(ConnectFault::Folded);
        }
        let colon = line.iter().position(|&b| b == b':').ok_or(ConnectFault::FieldName)?;
        let (name, value) = line.split_at(colon);
        if name.is_empty() || !name.iter().all(|&b| is_token(b)) {
            return Err(ConnectFault::FieldName);
        }
        if CONTENT_FIELDS.iter().any(|field| name.eq_ignore_ascii_case(field)) {
            return Err(ConnectFault::Content);
        }
        if name.eq_ignore_ascii_case(b"proxy-authorization") {
            let blanks = value.iter().skip(1).take_while(|b| matches!(b, b' ' | b'\t')).count();
            let start = end - value.len() + 1 + blanks;
            if authorization.replace((start, end)).is_some() {
                return Err(ConnectFault::AuthorizationTwice);
            }
        }
        if name.eq_ignore_ascii_case(b"host") {
            let value = value.strip_prefix(b":").unwrap_or(value);
            if host.replace(value.trim_ascii()).is_some() {
                return Err(ConnectFault::HostTwice);
            }
        }
    }
    match host {
        None if is_http_11 => Err(ConnectFault::HostMissing),
        // The target alone decides (RFC 9112 3.3), and nobody else reads this head: Node names the
        // proxy here unless it is told otherwise.
        Some(value) if self::target(value).is_err() && self::host(value).is_err() => {
            Err(ConnectFault::HostMalformed)
        }
        _ => Ok((target, authorization)),
    }
}

/// The target, and whether the version is 1.1.
fn request_line(line: &[u8]) -> Result<(Target, bool), ConnectFault> {
    let mut words = line.split(|&b| b == b' ');
    let (Some(_), Some(authority), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(ConnectFault::RequestLine);
    };
    let is_http_11 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return Err(ConnectFault::Version),
    };
    Ok((target(authority)?, is_http_11))
}

fn target(authority: &[u8]) -> Result<Target, ConnectFault> {
    let colon = authority.iter().rposition(|&b| b == b':').ok_or(ConnectFault::Target)?;
    let (host, port) = authority.split_at(colon);
    let port = port.get(1..).and_then(port_number).ok_or(ConnectFault::Port)?;
    Ok(Target { host: self::host(host)?, port })
}

fn host(text: &[u8]) -> Result<TargetHost, ConnectFault> {
    let utf8 = core::str::from_utf8(text).map_err(|_| ConnectFault::Target)?;
    if let Some(address) = utf8.strip_prefix('[') {
        let address = address.strip_suffix(']').and_then(|text| text.parse::<Ipv6Addr>().ok());
        let address = address.ok_or(ConnectFault::Target)?;
        return Ok(TargetHost::Ip(IpAddr::V6(address).to_canonical()));
    }
    // A colon here means an IPv6 address without brackets, or a user and a password.
    if utf8.contains([':', '@', '/']) || utf8.is_empty() {
        return Err(ConnectFault::Target);
    }
    if let Ok(address) = utf8.parse() {
        return Ok(TargetHost::Ip(IpAddr::V4(address)));
    }
    HostName::new(text).map(TargetHost::Name).map_err(ConnectFault::Host)
}

fn port_number(text: &[u8]) -> Option<u16> {
    let shortest = text.iter().all(u8::is_ascii_digit) && !text.starts_with(b"0");
    core::str::from_utf8(text).ok().filter(|_| shortest)?.parse().ok()
}

/// `tchar` of RFC 9110 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

impl Target {
    /// Reads the `host:port` of a request.
    ///
    /// # Errors
    /// `Target`, `Host` or `Port`.
    pub fn new(authority: &[u8]) -> Result<Self, ConnectFault> {
        target(authority)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            TargetHost::Name(name) => write!(f, "{name}:{}", self.port),
            TargetHost::Ip(IpAddr::V4(address)) => write!(f, "{address}:{}", self.port),
            TargetHost::Ip(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
        }
    }
}

impl fmt::Display for ConnectFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => return write!(f, "head over {CONNECT_HEAD_BYTES_MAX} bytes"),
            Self::BareLf => "LF without CR",
            Self::BareCr => "CR without LF",
            Self::Control(byte) => return write!(f, "byte {byte:#04x} in the head"),
            Self::RequestLine => "request line is not CONNECT host:port HTTP/1.1",
            Self::Version => "not HTTP/1.0 or HTTP/1.1",
            Self::Target => "target is not host:port",
            Self::Host(fault) => return write!(f, "target: {fault}"),
            Self::Port => "port is not 1 to 65535",
            Self::Folded => "folded field",
            Self::FieldName => "field without a valid name",
            Self::HostMissing => "no Host field",
            Self::HostTwice => "two Host fields",
            Self::HostMalformed => "the Host field names no host",
            Self::AuthorizationTwice => "two Proxy-Authorization fields",
            Self::Content => "CONNECT with content",
        })
    }
}

impl core::error::Error for ConnectFault {}

const METHOD: &[u8] = b"CONNECT ";

const PLAIN_SCHEME: &[u8] = b"http://";

/// Longest method in bytes; UPDATEREDIRECTREF is the longest registered one.
const METHOD_BYTES_MAX: usize = 24;

/// Fields that announce content (RFC 9112 6).
const CONTENT_FIELDS: [&[u8]; 2] = [b"content-length", b"transfer-encoding"];

/// Bytes of the end of a line.
const CRLF_BYTES: usize = 2;

#[cfg(test)]
mod tests;

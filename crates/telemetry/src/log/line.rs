//! Formats one line of the access log straight into the batch: constant pieces, numbers, and
//! strings, which hardly ever need an escape.

use std::fmt::Display;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, UNIX_EPOCH};

use crate::info::Measured;
use crate::info::{Alpn, Decided, Outcome, TlsCompression, UpstreamName};
use crate::reason::Reason;
use crate::request::{Coded, RequestInfo, TraceIds};
use crate::upstream_tls::UpstreamTlsInfo;
use eyelet_wire::ja4::Ja4;
use eyelet_wire::local_peer::LocalPeer;
use eyelet_wire::traceparent::hex;
use eyelet_wire::version;

/// The contents of one line. Tests compare its form with serde's, field by field. Every connection
/// pays for its line, and serde costs ten times as much.
pub struct Line<'a> {
    /// The decision about the connection.
    pub decided: &'a Decided,
    /// Its measurements.
    pub measured: &'a Measured,
    /// The way in which it ended, or what its rule does with it.
    pub outcome: Outcome,
    /// The reason why it ended. `None`: it was decided, and goes on.
    pub reason: Option<&'a Reason>,
    /// The request, if the line is about one.
    pub http: Option<&'a RequestInfo<'a>>,
}

/// The beginning of a line, which is the same for all lines of one second.
pub struct Opening {
    /// The milliseconds by which the wall clock is ahead of the steady one.
    pub ahead_ms: i64,
    unix_s: u64,
    text: [u8; OPENING_LEN],
}

/// The fields of a connection that is no flow of QUIC.
const OVER_TCP: &[u8] =
    br#","transport":"tcp","datagrams_to_upstream":null,"datagrams_to_client":null"#;
const OPENING_LEN: usize = 29;
/// Offset of the time in it.
const TIME_AT: usize = 9;
/// Bytes of a time with milliseconds.
const TIME_LEN: usize = 24;
/// The last second of the year 9999, the last year that RFC 3339 can write.
const UNIX_S_MAX: u64 = 253_402_300_799;

impl Line<'_> {
    /// Writes the line.
    pub fn write(&self, out: &mut Vec<u8>, opening: &mut Opening) {
        let Self { measured, decided, .. } = self;
        opening.write(out, measured.started_unix_ms);
        number(out, measured.id >> 48);
        out.push(b'-');
        number(out, measured.id & ((1 << 48) - 1));
        out.extend_from_slice(br#"","listener":"#);
        text(out, decided.labels.listener(decided.listener));
        out.extend_from_slice(br#","client":"#);
        client(out, measured.client);
        out.extend_from_slice(br#","destination":"#);
        or_null(out, decided.destination, address);
        self.write_verdict(out);
        self.write_hello(out);
        out.extend_from_slice(br#","upstream":"#);
        match self.http {
            Some(request) => or_null(out, request.upstream, text),
            None => or_null(out, decided.upstream.as_ref(), upstream),
        }
        out.extend_from_slice(br#","bytes_to_upstream":"#);
        number(out, measured.bytes_to_upstream);
        out.extend_from_slice(br#","bytes_to_client":"#);
        number(out, measured.bytes_to_client);
        out.extend_from_slice(br#","duration_ms":"#);
        number(out, measured.duration_ms);
        out.extend_from_slice(br#","connect":"#);
        or_null(out, decided.connect.as_deref(), text);
        out.extend_from_slice(br#","tls_compression":"#);
        or_null(out, decided.tls_compression.map(TlsCompression::name), plain);
        self.write_evidence(out);
        match self.http {
            Some(info) => request(out, info),
            None => out.extend_from_slice(NO_REQUEST),
        }
        out.extend_from_slice(br#","client_ip":""#);
        match LocalPeer::of(measured.client.ip()) {
            // Writing into a Vec cannot fail.
            Some(peer) => _ = write!(out, "{}", peer.user()),
            None => ip(out, measured.client.ip()),
        }
        out.extend_from_slice(br#"","event":""#);
        out.extend_from_slice(self.event().as_bytes());
        match self.http.and_then(|request| request.trace) {
            Some(ids) => trace(out, &ids),
            None => out.extend_from_slice(NO_TRACE),
        }
        out.extend_from_slice(br#","upstream_tls":"#);
        let tls = match self.http {
            Some(request) => request.upstream_tls,
            None => decided.upstream_tls.as_deref(),
        };
        or_null(out, tls, upstream_tls);
        out.extend_from_slice(br#","identity":"#);
        or_null(out, decided.requester.as_deref(), |out, requester| {
            // Few connections have one. Writing into a Vec cannot fail.
            let _ = serde_json::to_writer(out, requester);
        });
        out.extend_from_slice(br#","held":"#);
        let of_request = self.http.and_then(|request| request.held);
        or_null(out, of_request.or(self.decided.held), |out, held| {
            // As above.
            let _ = serde_json::to_writer(out, &held);
        });
        transport(out, measured);
        out.extend_from_slice(b"}\n");
    }

    /// The name of what the line is about.
    pub fn event(&self) -> &'static str {
        match (self.reason, self.http) {
            (None, _) => "decided",
            (Some(_), Some(_)) => "request",
            (Some(_), None) => "end",
        }
    }

    fn write_verdict(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(br#","outcome":"#);
        plain(out, self.outcome.name());
        out.extend_from_slice(br#","rule":"#);
        or_null(out, self.decided.rule.map(|rule| self.decided.labels.rule(rule)), text);
        out.extend_from_slice(br#","reason":"#);
        or_null(out, self.reason, |out, reason| match reason.fixed_text() {
            Some(fixed) => text(out, fixed),
            None => display(out, reason),
        });
    }

    fn write_hello(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(br#","sni":"#);
        or_null(out, self.decided.sni.as_deref(), text);
        out.extend_from_slice(br#","alpn":"#);
        or_null(out, self.decided.alpn.as_ref(), protocols);
        out.extend_from_slice(br#","tls_version":"#);
        or_null(out, self.decided.tls_version.and_then(version_name), plain);
        out.extend_from_slice(br#","ja4":"#);
        or_null(out, self.decided.ja4.as_ref().map(Ja4::as_str), plain);
    }

    fn write_evidence(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(br#","evidence":"#);
        or_null(out, self.decided.evidence.as_ref(), |out, evidence| {
            // Few connections have evidence, and its structure is deep. Writing into a Vec cannot
            // fail.
            let _ = serde_json::to_writer(out, &evidence.line(self.measured.started_unix_ms));
        });
        out.extend_from_slice(br#","shadow":"#);
        let mut shadows = shadows(self.decided, self.http).peekable();
        let is_any = shadows.peek().is_some();
        or_null(out, is_any.then_some(shadows), |out, shadows| {
            list(out, shadows, |out, (rule, outcome)| {
                out.extend_from_slice(br#"{"rule":"#);
                text(out, rule);
                out.extend_from_slice(br#","outcome":"#);
                plain(out, outcome.name());
                out.push(b'}');
            });
        });
    }
}

/// The rules in shadow of a connection and of its request, and what they would have done.
pub fn shadows<'a>(
    decided: &'a Decided,
    http: Option<&'a RequestInfo<'_>>,
) -> impl Iterator<Item = (&'a str, Outcome)> {
    let of_connection = decided.shadow.iter();
    let of_connection = of_connection.map(|(rule, would)| (decided.labels.rule(*rule), *would));
    let of_request = http.map_or(&[][..], |request| request.shadow).iter();
    of_connection.chain(of_request.map(|(rule, would)| (&**rule, *would)))
}

/// The fields of a line that is not about a request.
const NO_REQUEST: &[u8] =
    br#","http":null,"coding":null,"bytes_identity":null,"bytes_sent":null,"why_not":null"#;

/// The fields of a line that is not about a traced request.
const NO_TRACE: &[u8] = b"\",\"trace_id\":null,\"span_id\":null";

fn trace(out: &mut Vec<u8>, ids: &TraceIds) {
    out.extend_from_slice(br#"","trace_id":""#);
    out.extend_from_slice(&hex::<32>(&ids.trace_id));
    out.extend_from_slice(br#"","span_id":""#);
    out.extend_from_slice(&hex::<16>(&ids.span_id));
    out.push(b'"');
}

fn upstream_tls(out: &mut Vec<u8>, tls: &UpstreamTlsInfo) {
    let UpstreamTlsInfo { version, cipher_suite, group, alpn, resumed } = tls;
    out.extend_from_slice(br#"{"version":"#);
    or_null(out, version::number(*version), plain);
    out.extend_from_slice(br#","cipher_suite":"#);
    plain(out, cipher_suite);
    out.extend_from_slice(br#","group":"#);
    or_null(out, group.as_deref(), plain);
    out.extend_from_slice(br#","alpn":"#);
    or_null(out, alpn.as_deref(), text);
    out.extend_from_slice(br#","resumed":"#);
    out.extend_from_slice(if *resumed { b"true}" } else { b"false}" });
}

fn request(out: &mut Vec<u8>, info: &RequestInfo<'_>) {
    let RequestInfo { method, path, status, upstream_ms, coded, .. } = *info;
    let Coded { coding, bytes_identity, bytes_sent, why_not } = coded;
    out.extend_from_slice(br#","http":{"method":"#);
    text(out, method);
    out.extend_from_slice(br#","path":"#);
    text(out, path);
    out.extend_from_slice(br#","status":"#);
    or_null(out, status.map(u64::from), number);
    out.extend_from_slice(br#","upstream_ms":"#);
    or_null(out, upstream_ms, number);
    out.extend_from_slice(br#"},"coding":"#);
    or_null(out, coding, text);
    out.extend_from_slice(br#","bytes_identity":"#);
    number(out, bytes_identity);
    out.extend_from_slice(br#","bytes_sent":"#);
    number(out, bytes_sent);
    out.extend_from_slice(br#","why_not":"#);
    or_null(out, why_not, text);
}

impl Default for Opening {
    fn default() -> Self {
        Self { ahead_ms: 0, unix_s: 0, text: *br#"{"time":"1970-01-01T00:00:00."# }
    }
}

impl Opening {
    /// The time of a line, as RFC 3339 writes it.
    pub(super) fn write_time(&mut self, out: &mut Vec<u8>, steady_ms: u64) {
        let at = out.len();
        self.write(out, steady_ms);
        out.drain(at..at + TIME_AT);
        out.truncate(at + TIME_LEN);
    }

    fn write(&mut self, out: &mut Vec<u8>, steady_ms: u64) {
        let unix_ms = steady_ms.saturating_add_signed(self.ahead_ms);
        let (unix_s, ms) = (unix_ms / 1000, (unix_ms % 1000) as u16);
        if unix_s != self.unix_s {
            self.set(unix_s);
        }
        out.extend_from_slice(&self.text);
        let [a, b, c] = [ms / 100, ms / 10 % 10, ms % 10].map(|digit| b'0' + digit as u8);
        out.extend_from_slice(&[a, b, c, b'Z', b'"', b',', b'"', b'i', b'd', b'"', b':', b'"']);
    }

    #[cold]
    fn set(&mut self, unix_s: u64) {
        self.unix_s = unix_s;
        let time = UNIX_EPOCH + Duration::from_secs(unix_s.min(UNIX_S_MAX));
        let time = humantime::format_rfc3339_seconds(time);
        // The time fits exactly.
        let _ = write!(&mut self.text[TIME_AT..], "{time}");
        self.text[OPENING_LEN - 1] = b'.';
    }
}

#[inline(always)]
fn or_null<T>(out: &mut Vec<u8>, value: Option<T>, write: impl FnOnce(&mut Vec<u8>, T)) {
    match value {
        Some(value) => write(out, value),
        None => out.extend_from_slice(b"null"),
    }
}

fn list<T>(out: &mut Vec<u8>, items: impl IntoIterator<Item = T>, write: impl Fn(&mut Vec<u8>, T)) {
    out.push(b'[');
    for (n, item) in items.into_iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

fn protocols(out: &mut Vec<u8>, alpn: &Alpn) {
    list(out, alpn.names(), |out, name| text(out, &name));
}

fn upstream(out: &mut Vec<u8>, upstream: &UpstreamName) {
    match upstream {
        UpstreamName::Address(to) => address(out, *to),
        UpstreamName::Name(name) => text(out, name),
    }
}

/// The fields of the transport.
fn transport(out: &mut Vec<u8>, measured: &Measured) {
    match measured.datagrams {
        None => out.extend_from_slice(OVER_TCP),
        Some([to_upstream, to_client]) => {
            out.extend_from_slice(br#","transport":"quic","datagrams_to_upstream":"#);
            number(out, to_upstream);
            out.extend_from_slice(br#","datagrams_to_client":"#);
            number(out, to_client);
        }
    }
}

/// A client of a Unix socket has a user and a process in place of an address.
fn client(out: &mut Vec<u8>, client: SocketAddr) {
    match LocalPeer::of(client.ip()) {
        // Writing into a Vec cannot fail.
        Some(peer) => _ = write!(out, "\"{peer}\""),
        None => address(out, client),
    }
}

fn address(out: &mut Vec<u8>, address: SocketAddr) {
    out.push(b'"');
    match address {
        SocketAddr::V4(v4) => {
            ip(out, (*v4.ip()).into());
            out.push(b':');
            number(out, v4.port().into());
        }
        // Writing into a Vec cannot fail.
        SocketAddr::V6(v6) => _ = write!(out, "{v6}"),
    }
    out.push(b'"');
}

fn ip(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            number(out, a.into());
            for octet in [b, c, d] {
                out.push(b'.');
                number(out, octet.into());
            }
        }
        // Writing into a Vec cannot fail.
        IpAddr::V6(v6) => _ = write!(out, "{v6}"),
    }
}

/// A decimal number. Half of a line's numbers are parts of addresses, with three digits at most.
fn number(out: &mut Vec<u8>, number: u64) {
    let digit = |n: u64| b'0' + (n % 10) as u8;
    match number {
        0..10 => out.push(digit(number)),
        10..100 => out.extend_from_slice(&[digit(number / 10), digit(number)]),
        100..1000 => {
            out.extend_from_slice(&[digit(number / 100), digit(number / 10), digit(number)]);
        }
        _ => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
    }
}

/// A constant string of ours, without escapes.
fn plain(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

fn text(out: &mut Vec<u8>, text: &str) {
    if is_plain(text.as_bytes()) { plain(out, text) } else { escaped(out, text) }
}

/// The text of a value. It is written in place, and again if a byte needs an escape.
fn display(out: &mut Vec<u8>, value: &impl Display) {
    let at = out.len();
    // Writing into a Vec cannot fail.
    let _ = write!(out, "\"{value}\"");
    if !is_plain(&out[at + 1..out.len() - 1]) {
        out.truncate(at);
        escaped(out, &value.to_string());
    }
}

#[cold]
fn escaped(out: &mut Vec<u8>, text: &str) {
    // Writing a string into a Vec cannot fail.
    let _ = serde_json::to_writer(out, text);
}

/// True if no byte needs an escape (RFC 8259 7): no control character, `"` or `\`.
fn is_plain(text: &[u8]) -> bool {
    let (words, _) = text.as_chunks();
    match text.last_chunk() {
        // The last word overlaps the one before.
        Some(last) => words.iter().chain([last]).all(is_plain_word),
        None => text.iter().all(|byte| *byte >= b' ' && *byte != b'"' && *byte != b'\\'),
    }
}

/// True if none of eight bytes needs an escape: a subtraction borrows from the top bit of a smaller
/// byte.
fn is_plain_word(word: &[u8; 8]) -> bool {
    const ONES: u64 = u64::MAX / 255;
    let word = u64::from_ne_bytes(*word);
    let less = |word: u64, than: u8| word.wrapping_sub(ONES * u64::from(than)) & !word;
    let is = |byte: u8| less(word ^ (ONES * u64::from(byte)), 1);
    (less(word, b' ') | is(b'"') | is(b'\\')) & (ONES << 7) == 0
}

fn version_name(version: u16) -> Option<&'static str> {
    match version {
        version::SSL30 => Some("ssl3"),
        code => version::number(code),
    }
}

#[cfg(test)]
mod tests;

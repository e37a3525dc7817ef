//! The answer of a proxy to a client that it refuses or cannot serve: a status, a line of
//! `Proxy-Status` (RFC 9209), and a few lines of text.

use std::fmt::{self, Write};
use std::io::ErrorKind;

use bytes::Bytes;
use eyelet_telemetry::info::{ConnectionInfo, Outcome};
use eyelet_telemetry::reason::{Class, Limit, Peer, Reason, Stage, When};
use eyelet_wire::socks::Reply;
use http::header::{HeaderName, HeaderValue, PROXY_AUTHENTICATE};
use http::{Method, StatusCode, response};

use super::page::text_page;
use eyelet_http1::head::Length;

/// The scheme by which a client may name its user (RFC 7617).
const CHALLENGE: &str = "Basic realm=\"eyelet\", charset=\"UTF-8\"";

const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
/// Most characters of a reason in a field or a status line. A name has 253 at most.
const SHOWN_MAX: usize = 400;

/// A refusal, or a failure to reach the upstream.
pub struct ProxyRefusal<'a> {
    /// The target that the client asked for: `host:port`.
    pub target: &'a str,
    /// A rule or a limit refused it, or it has failed.
    pub outcome: Outcome,
    /// The reason of the refusal.
    pub reason: &'a Reason,
    /// The rule that decided.
    pub rule: Option<&'a str>,
    /// The id of the connection, as in the access log.
    pub id: u64,
    /// The rule's `message`.
    pub message: Option<&'a str>,
}

impl<'a> ProxyRefusal<'a> {
    /// The refusal of the connection's target.
    pub fn new(
        info: &'a ConnectionInfo,
        outcome: Outcome,
        reason: &'a Reason,
        message: Option<&'a str>,
    ) -> Self {
        let target = info.decided.connect.as_deref().unwrap_or("this request");
        let rule = info.decided.rule.map(|rule| info.decided.labels.rule(rule));
        Self { target, outcome, reason, rule, id: info.id, message }
    }

    pub fn status(&self) -> StatusCode {
        match self.outcome {
            _ if matches!(self.reason, Reason::NoUser(_)) => {
                StatusCode::PROXY_AUTHENTICATION_REQUIRED
            }
            Outcome::Refused => StatusCode::FORBIDDEN,
            // RFC 9110 section 15.6.5.
            _ if self.reason.class() == Class::Timeout => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_GATEWAY,
        }
    }

    /// The code of the answer to a client that asked by SOCKS (RFC 1928 section 6).
    pub fn socks_reply(&self) -> Reply {
        match self.outcome {
            Outcome::Refused => Reply::NotAllowed,
            _ => socks_reply(self.reason),
        }
    }

    /// The value of `Proxy-Status`.
    pub fn proxy_status(&self) -> String {
        let mut value = format!("eyelet; error={}; details=\"", error_type(self.reason));
        for byte in visible(&self.summary()).bytes() {
            if matches!(byte, b'"' | b'\\') {
                value.push('\\');
            }
            value.push(byte.into());
        }
        value.push('"');
        value
    }

    /// The lines of text for people.
    pub fn text(&self) -> String {
        let verb = match self.outcome {
            Outcome::Refused => "does not allow",
            _ => "cannot reach",
        };
        let mut text = match self.reason {
            Reason::Unlisted(lists) => {
                format!("This proxy {verb} {}: it is {lists}.\n", self.target)
            }
            reason => format!("This proxy {verb} {}: {reason}.\n", self.target),
        };
        // Writing into a String cannot fail.
        let _ = writeln!(text, "Rule: {}", self.rule.unwrap_or("none"));
        let _ = writeln!(text, "Connection: {}", Id(self.id));
        if let Some(message) = self.message {
            let _ = writeln!(text, "{message}");
        }
        text
    }

    /// A whole response to a CONNECT. The connection ends after it. Many clients show the status
    /// line and drop the text, so the line says why, too.
    pub fn response(&self) -> Vec<u8> {
        let (status, text) = (self.status(), self.text());
        let phrase = status.canonical_reason().unwrap_or("Error");
        let summary = visible(&self.summary());
        let mut fields = format!("Proxy-Status: {}\r\n", self.proxy_status());
        if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            // Writing into a String cannot fail.
            let _ = write!(fields, "Proxy-Authenticate: {CHALLENGE}\r\n");
        }
        whole_response(&format!("{} {phrase} ({summary})", status.as_str()), &fields, &text)
    }

    /// The response to a request for an `http://` URL, which may keep its connection. `status` is
    /// for a malformed request, or for one without memory.
    pub fn page(&self, status: StatusCode, method: &Method) -> (response::Parts, Length, Bytes) {
        let status = match self.reason.class() {
            Class::Protocol | Class::Shed => status,
            _ if *self.reason == Reason::Trace => status,
            _ => self.status(),
        };
        let body = Bytes::from(self.text());
        let (mut head, length, body) = text_page(status, method, body);
        if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            head.headers.insert(PROXY_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
        }
        if let Ok(value) = HeaderValue::from_str(&self.proxy_status()) {
            head.headers.insert(PROXY_STATUS, value);
        }
        (head, length, body)
    }

    /// Reason, rule and connection in one line.
    fn summary(&self) -> String {
        let rule = self.rule.map_or_else(String::new, |rule| match rule.starts_with("rule ") {
            true => format!(", {rule}"),
            false => format!(", rule {rule}"),
        });
        let id = Id(self.id);
        match self.reason {
            Reason::Unlisted(lists) => format!("{} is {lists}{rule}, connection {id}", self.target),
            reason => format!("{reason}{rule}, connection {id}"),
        }
    }
}

/// A whole response of text, after which the connection ends.
pub fn whole_response(status: &str, fields: &str, text: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n{fields}\
         Content-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    )
    .into_bytes()
}

/// A connection's id, as the access log writes it.
pub struct Id(pub u64);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0 >> 48, self.0 & ((1 << 48) - 1))
    }
}

/// The text with `?` for every character that a status line or a quoted string may not have (RFC
/// 9112 section 4, RFC 8941 section 3.3.3). A rule's name may be any text.
pub fn visible(text: &str) -> String {
    let visible = text.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' });
    visible.take(SHOWN_MAX).collect()
}

/// The reply for an upstream that was not reached. RFC 1928 names no code for a name without an
/// address or for an upstream that is silent; these are the nearest ones.
fn socks_reply(reason: &Reason) -> Reply {
    match reason {
        Reason::Io(Peer::Upstream, failure) => match failure.kind() {
            ErrorKind::ConnectionRefused => Reply::Refused,
            ErrorKind::NetworkUnreachable => Reply::NetworkUnreachable,
            ErrorKind::HostUnreachable => Reply::HostUnreachable,
            ErrorKind::TimedOut => Reply::TtlExpired,
            _ => Reply::Failure,
        },
        Reason::Dns(_)
        | Reason::NoAddress
        | Reason::Timeout(Limit::Connect, Some(When::During(Stage::Dns))) => Reply::HostUnreachable,
        Reason::Timeout(Limit::Connect, _) => Reply::TtlExpired,
        Reason::LacksFacts(lacks) => socks_reply(&lacks.refusal),
        _ => Reply::Failure,
    }
}

/// The error type of RFC 9209 section 2.3.
fn error_type(reason: &Reason) -> &'static str {
    match reason {
        Reason::Guarded(_) => "destination_ip_prohibited",
        Reason::Loop(_) => "proxy_loop_detected",
        Reason::Timeout(Limit::Connect, Some(When::During(Stage::Dns))) => "dns_timeout",
        Reason::Timeout(Limit::Connect, _) => "connection_timeout",
        Reason::Dns(_) | Reason::NoAddress => "dns_error",
        Reason::Io(Peer::Upstream, _) => "destination_unavailable",
        Reason::UpstreamAlert(_) => "tls_alert_received",
        Reason::UpstreamTls(_) => "tls_protocol_error",
        Reason::UpstreamUntrusted(_) => "tls_certificate_error",
        Reason::Response(_) => "http_protocol_error",
        Reason::LacksFacts(lacks) => error_type(&lacks.refusal),
        other => match other.class() {
            Class::Refused => "http_request_denied",
            Class::Timeout => "http_response_timeout",
            Class::Unreachable => "destination_unavailable",
            Class::Protocol => "http_request_error",
            _ => "proxy_internal_error",
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use eyelet_telemetry::reason::{Detail, IoFailure};

    use super::*;

    fn refusal<'a>(reason: &'a Reason, rule: Option<&'a str>) -> ProxyRefusal<'a> {
        ProxyRefusal {
            target: "nobody.example:443",
            outcome: Outcome::Refused,
            reason,
            rule,
            id: (2 << 48) + 17,
            message: Some("Ask build@corp.example."),
        }
    }

    #[test]
    fn a_missing_target_says_what_to_change() {
        let reason = Reason::Unlisted("not in allow.txt".into());
        let refusal = refusal(&reason, None);
        assert_eq!(refusal.summary(), "nobody.example:443 is not in allow.txt, connection 2-17");
        let text = refusal.text();
        let first = "This proxy does not allow nobody.example:443: it is not in allow.txt.\n";
        assert!(text.starts_with(first), "{text}");
    }

    #[test]
    fn a_refusal_names_rule_target_connection_and_message() {
        let reason = Reason::Refused("refused by name");
        let response = String::from_utf8(refusal(&reason, Some("games")).response()).unwrap();
        assert_eq!(
            response,
            "HTTP/1.1 403 Forbidden (refused by name, rule games, connection 2-17)\r\n\
             Content-Type: text/plain; charset=utf-8\r\n\
             Proxy-Status: eyelet; error=http_request_denied; \
             details=\"refused by name, rule games, connection 2-17\"\r\n\
             Content-Length: 116\r\nConnection: close\r\n\r\n\
             This proxy does not allow nobody.example:443: refused by name.\n\
             Rule: games\nConnection: 2-17\nAsk build@corp.example.\n"
        );
    }

    /// A rule's name is any text. It must not end the line, or the string.
    #[test]
    fn a_name_of_a_rule_adds_no_field() {
        let reason = Reason::Refused("refused by name");
        for rule in ["a\r\nSet-Cookie: x", "a\"; error=x", "a\\", "b\u{fc}cher", "\0"] {
            let refusal = refusal(&reason, Some(rule));
            let status = refusal.proxy_status();
            let quoted = status.split_once("details=\"").unwrap().1.strip_suffix('"').unwrap();
            let plain = quoted.replace("\\\\", "").replace("\\\"", "");
            assert!(!plain.contains(['"', '\\']), "{status}");
            let response = refusal.response();
            let head = response.split(|byte| *byte == b'\n').take(6).map(<[u8]>::trim_ascii_end);
            assert_eq!(head.filter(|line| !line.is_empty()).count(), 5, "{rule:?}");
        }
    }

    #[test]
    fn each_kind_of_reason_has_its_reply_of_socks() {
        let io = |number| Reason::upstream_io(&std::io::Error::from_raw_os_error(number));
        for (reason, expected) in [
            (Reason::Io(Peer::Upstream, IoFailure::Os(111)), Reply::Refused),
            (io(101), Reply::NetworkUnreachable),
            (io(113), Reply::HostUnreachable),
            (io(110), Reply::TtlExpired),
            (Reason::NoAddress, Reply::HostUnreachable),
            (Reason::Dns(Detail::of("why")), Reply::HostUnreachable),
            (
                Reason::Timeout(Limit::Connect, Some(When::During(Stage::Dns))),
                Reply::HostUnreachable,
            ),
            (Reason::Timeout(Limit::Connect, None), Reply::TtlExpired),
            (Reason::MixedFamilies, Reply::Failure),
        ] {
            let refusal = ProxyRefusal { outcome: Outcome::Failed, ..refusal(&reason, None) };
            assert_eq!(refusal.socks_reply(), expected, "{reason}");
        }
        let reason = Reason::Refused("refused by name");
        assert_eq!(refusal(&reason, None).socks_reply(), Reply::NotAllowed);
    }

    #[test]
    fn each_kind_of_reason_has_its_error_type() {
        for (reason, expected) in [
            (Reason::Refused("no rule for this name"), "http_request_denied"),
            (Reason::NoAddress, "dns_error"),
            (Reason::Timeout(Limit::Connect, None), "connection_timeout"),
            (Reason::Timeout(Limit::Connect, Some(When::During(Stage::Dns))), "dns_timeout"),
            (Reason::Internal("a panic"), "proxy_internal_error"),
        ] {
            assert_eq!(error_type(&reason), expected, "{reason}");
        }
    }
}

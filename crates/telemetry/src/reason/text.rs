//! The texts of reasons, as the access log has them.

use std::fmt;

use eyelet_wire::alert::AlertDescription;

use super::{LacksFacts, Peer, Reason};

impl Reason {
    /// Its text, where that is always the same.
    pub fn fixed_text(&self) -> Option<&'static str> {
        Some(match self {
            Self::Answered => "answered by Eyelet",
            Self::ClosedAfterResponse => "closed after a response",
            Self::CodingFailed => "the coding failed",
            Self::Complete => "complete",
            Self::Cut => "the last exchange was cut",
            Self::Ended => "ended by an operator",
            Self::Held(end) => end.name(),
            Self::MixedFamilies => "upstream: it is not of the client's address family",
            Self::NoAddress => "upstream: the name has no address",
            Self::NoDestination => "no destination to splice to",
            Self::NoProxyHeader => "no PROXY header",
            Self::Rate(limit) => limit.name(),
            Self::Redirected => "http_redirect",
            Self::Refused(by) | Self::RefusedRequest(by) => by,
            Self::RuleGone => "no rule serves this connection since a reload",
            Self::StreamReset => "client: reset before the request was served",
            Self::SwitchedProtocols => "switched protocols",
            Self::Trace => "TRACE is not passed on",
            Self::Truncated => "client closed without close_notify",
            Self::UpstreamClosed => "upstream closed",
            Self::Validated => "an ACME server validated the name",
            Self::UpstreamReset => "upstream reset",
            Self::UpstreamUnread => "upstream: the request was not taken",
            Self::UpstreamWantsHttp1 => "upstream: it wants HTTP/1.1",
            _ => return None,
        })
    }

    /// Says what it is about, without what differs from one connection to another.
    pub fn summary(&self) -> &'static str {
        match self {
            Self::AcmeUpstream(_) => "acme_upstream: no answer",
            Self::ClientAlert(_) => "client sent an alert",
            Self::Dns(_) => "upstream: DNS",
            Self::EvidenceBusy(_) => "too much evidence is being gathered",
            Self::Guarded(_) => "the name leads to an internal address",
            Self::Handshake(fault, _) => fault.text(),
            Self::Http2(Peer::Client, _) => "client: HTTP/2",
            Self::Http2(Peer::Upstream, _) => "upstream: HTTP/2",
            Self::Io(Peer::Client, _) => "client: its socket failed",
            Self::Io(Peer::Upstream, _) => "upstream: its socket failed",
            Self::LacksFacts(lacks) => lacks.refusal.summary(),
            Self::Loop(_) => "the connection would come back to this edge",
            Self::MalformedConnect(_) => "malformed CONNECT",
            Self::MalformedHello(_) => "malformed hello",
            Self::MalformedQuic(_) => "malformed QUIC",
            Self::MalformedName(_) => "malformed name",
            Self::MalformedProxyHeader(_) => "malformed PROXY header",
            Self::MalformedSocks(_) => "malformed SOCKS",
            Self::Misdirected(_) => "the host does not lead to this rule",
            Self::Unlisted(_) => "no list has the target",
            Self::NoCertificate(_) => "no certificate",
            Self::NoLocalPort(_) => "no local port for the upstream",
            Self::NotConnect(_) => "no CONNECT request",
            Self::NotTls(_) => "no TLS",
            Self::NoUser(lack) => lack.name(),
            Self::Placeholder(_) => "a placeholder of a secret where none may stand",
            Self::Record(_) => "client: a malformed record",
            Self::Reflected(_) => "upstream: the response shows a secret",
            Self::Request(..) => "client: a malformed request",
            Self::Response(_) => "upstream: a malformed response",
            Self::SecondHello(_) => "a second hello that may not pass",
            Self::Server(_) => "the server's answer may not pass",
            Self::StreamFlood(_) => "too many streams opened and dropped",
            Self::Unregistered(_) => "no descriptor left to watch",
            Self::UpstreamAlert(_) => "upstream sent an alert",
            Self::UpstreamNotTls | Self::UpstreamTls(_) | Self::UpstreamUntrusted(_) => {
                "upstream: TLS"
            }
            Self::Timeout(limit, _) => limit.name(),
            other => other.fixed_text().unwrap_or(other.class().name()),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fixed_text() {
            Some(text) => f.write_str(text),
            None => write_detailed(self, f),
        }
    }
}

impl std::error::Error for Reason {}

fn write_detailed(reason: &Reason, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (text, when) = match reason {
        Reason::ClientClosed(when) => ("client closed", when),
        Reason::ClientReset(when) => ("client reset", when),
        Reason::Drained(when) => ("drained", when),
        other => return write_error(other, f),
    };
    f.write_str(text)?;
    when.map_or(Ok(()), |when| write!(f, " {when}"))
}

fn write_error(reason: &Reason, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match reason {
        Reason::AcmeUpstream(error) => write!(f, "acme_upstream: {error}"),
        Reason::ClientAlert(code) => write_alert(Peer::Client, *code, f),
        Reason::Configuration(error) => write!(f, "configuration: {error}"),
        Reason::Dns(error) => write!(f, "upstream: DNS: {error}"),
        Reason::EvidenceBusy(why) => write!(f, "evidence: {why}"),
        Reason::Guarded(guarded) => write!(f, "{guarded}"),
        Reason::Handshake(_, error) => write!(f, "handshake: {error}"),
        Reason::Http2(peer, error) => write!(f, "{peer}: {error}"),
        Reason::Internal(what) => write!(f, "internal error: {what}"),
        Reason::Io(peer, error) => write!(f, "{peer}: {error}"),
        Reason::LacksFacts(lacks) => write_lacks_facts(lacks, f),
        Reason::Loop(how) => write!(f, "loop: {how}"),
        Reason::MalformedConnect(fault) => write!(f, "malformed CONNECT: {fault}"),
        Reason::MalformedHello(fault) => write!(f, "malformed hello: {fault}"),
        Reason::MalformedQuic(fault) => write!(f, "malformed QUIC: {fault}"),
        Reason::MalformedName(fault) => write!(f, "malformed name: {fault}"),
        Reason::MalformedProxyHeader(fault) => write!(f, "malformed PROXY header: {fault}"),
        Reason::MalformedSocks(fault) => write!(f, "malformed SOCKS: {fault}"),
        Reason::Misdirected(host) => write!(f, "{host} does not lead to this rule"),
        Reason::NoCertificate(lack) => write!(f, "no certificate: {lack}"),
        Reason::NoLocalPort(why) => write!(f, "no local port: {why}"),
        Reason::NotConnect(what) => write!(f, "{what}"),
        Reason::NotTls(what) => write!(f, "{what}"),
        Reason::NoUser(lack) => write!(f, "{lack}"),
        Reason::Placeholder(misuse) => write!(f, "secret: {misuse}"),
        Reason::Record(fault) => write!(f, "client: {fault}"),
        Reason::Reflected(field) => write!(f, "upstream: {field}"),
        Reason::Request(_, fault) => write!(f, "request: {fault}"),
        Reason::Response(fault) => write!(f, "upstream: {fault}"),
        Reason::SecondHello(fault) => write!(f, "{fault}"),
        Reason::Server(fault) => write!(f, "{fault}"),
        Reason::Shed(who) => write!(f, "{who}"),
        Reason::StreamFlood(flood) => write!(f, "{flood}"),
        Reason::Timeout(limit, None) => write!(f, "{limit}"),
        Reason::Timeout(limit, Some(when)) => write!(f, "{limit} {when}"),
        Reason::Unlisted(lists) => f.write_str(lists),
        Reason::Unregistered(error) => write!(f, "cannot be watched: {error}"),
        Reason::UpstreamAlert(code) => write_alert(Peer::Upstream, *code, f),
        Reason::UpstreamNotTls => f.write_str("upstream: TLS: the server speaks no TLS"),
        Reason::UpstreamTls(error) | Reason::UpstreamUntrusted(error) => {
            write!(f, "upstream: TLS: {error}")
        }
        // The texts of all others are constant.
        _ => Ok(()),
    }
}

fn write_alert(peer: Peer, code: u8, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match AlertDescription::from_code(code) {
        Some(alert) => write!(f, "{peer} sent alert {alert}"),
        None => write!(f, "{peer} sent alert {code}"),
    }
}

fn write_lacks_facts(lacks: &LacksFacts, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}", lacks.refusal)?;
    if let Some(why) = &lacks.no_destination {
        write!(f, "; no destination: {why}")?;
    }
    if !lacks.unknown.is_empty() {
        write!(f, " (unknown: {})", lacks.unknown.join(", "))?;
    }
    Ok(())
}

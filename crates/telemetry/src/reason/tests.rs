//! Every reason has its row in docs/access-log.md, with its class and its party.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;

use eyelet_wire::quic::QuicFault;

use super::*;

/// One match with the row of each reason, so that a new reason without a row does not compile.
macro_rules! rows {
    ($($pattern:pat $(if $guard:expr)? => $row:literal,)*) => {
        const ROWS: &[&str] = &[$($row),*];

        fn row(reason: &Reason) -> &'static str {
            match reason { $($pattern $(if $guard)? => $row),* }
        }
    };
}

// `…` stands for text that differs between connections. A row that does not begin with a text has
// examples only.
rows! {
    Reason::Complete => "`complete`",
    Reason::Answered => "`answered by Eyelet`",
    Reason::SwitchedProtocols => "`switched protocols`",
    Reason::Redirected => "`http_redirect`",
    Reason::Validated => "`an ACME server validated the name`",
    Reason::ClientClosed(None) => "`client closed`",
    Reason::UpstreamClosed => "`upstream closed`",
    Reason::ClosedAfterResponse => "`closed after a response`",
    Reason::Cut => "`the last exchange was cut`",
    Reason::ClientClosed(Some(_)) => "`client closed …`",
    Reason::Truncated => "`client closed without close_notify`",
    Reason::ClientReset(None) => "`client reset`",
    Reason::ClientReset(Some(_)) => "`client reset …`",
    Reason::StreamReset => "`client: reset before the request was served`",
    Reason::Io(Peer::Client, _) => "`client: …`",
    Reason::UpstreamReset => "`upstream reset`",
    Reason::Timeout(Limit::Hello, _) => "`hello_timeout …`",
    Reason::Timeout(Limit::Handshake, _) => "`handshake_timeout`",
    Reason::Timeout(Limit::Head, _) => "`head_timeout`",
    Reason::Timeout(Limit::RequestBody, _) => "`request: body_timeout`",
    Reason::Timeout(Limit::Taking, _) => "`client was too slow`",
    Reason::Timeout(Limit::Body, _) => "`body_timeout`",
    Reason::Timeout(Limit::Idle, _) => "`idle_timeout`",
    Reason::Timeout(Limit::Http2Idle, _) => "`http2_idle_timeout`",
    Reason::Timeout(Limit::Connect, None) => "`upstream: connect_timeout`",
    Reason::Timeout(Limit::Connect, Some(_)) => "`upstream: connect_timeout during DNS`",
    Reason::Timeout(Limit::Upstream, _) => "`upstream: upstream_timeout`",
    Reason::Timeout(Limit::UpstreamBody, _) => "`upstream: body_timeout`",
    Reason::Drained(None) => "`drained`",
    Reason::Drained(Some(_)) => "`drained …`",
    Reason::Ended => "`ended by an operator`",
    Reason::Shed(Shed::New) => "`shed: memory_max`",
    Reason::Shed(Shed::Excess) => "`shed: memory_max, and this source holds more than its share`",
    Reason::Shed(Shed::Unfinished(_)) => "`shed: memory_max, …`",
    Reason::Shed(Shed::Idle) => "`shed: memory_max, idle for longest`",
    Reason::Shed(Shed::Untaken) => "`shed: memory_max, and what was sent was not taken`",
    Reason::Shed(Shed::Stalled) => "`shed: memory_max, and no body moved`",
    Reason::Shed(Shed::RequestHead) => "`shed: memory_max, a request's head`",
    Reason::Shed(Shed::ResponseHead) => "`shed: memory_max, a response's head`",
    Reason::Shed(Shed::Upstream) => "`shed: memory_max, a connection to the upstream`",
    Reason::Shed(Shed::Stream) => "`shed: memory_max, a stream`",
    Reason::Refused("the rule has no plain_http") => "`the rule has no plain_http`",
    Reason::Refused("no rule with plain_http for this name") =>
        "`no rule with plain_http for this name`",
    Reason::Unlisted(_) => "`not in …`",
    Reason::NoUser(UserLack::Missing) => "`the rules ask for a user`",
    Reason::NoUser(UserLack::Wrong) => "`wrong user or password`",
    Reason::Held(HeldEnd::Refused) => "`held, and refused`",
    Reason::Held(HeldEnd::Undecided) => "`held, and nobody decided`",
    Reason::Held(HeldEnd::TooMany) => "`too many connections are held`",
    Reason::Held(HeldEnd::TooLong) => "`its path is too long to ask about`",
    Reason::Refused(_) => "a matcher, as in `refused by name`",
    Reason::RefusedRequest(_) => "of a request, as in `no rule for this request`",
    Reason::MalformedName(_) => "`malformed name: …`",
    Reason::LacksFacts(_) => "`… (unknown: …)`",
    Reason::EvidenceBusy(_) => "`evidence: …`",
    Reason::Guarded(_) => "`upstream: …, which upstream_allow does not list`",
    Reason::Loop(_) => "`loop: …`",
    Reason::Server(ServerFault::Compression) => "`the server chose TLS compression`",
    Reason::Server(ServerFault::NotTls) => "`the server speaks no TLS`",
    Reason::Server(ServerFault::Malformed(_)) => "`malformed hello of the server: …`",
    Reason::Server(ServerFault::ThirdHello) => "`the server asks for a third hello`",
    Reason::SecondHello(_) => "`… second hello …`",
    Reason::Misdirected(_) => "`… does not lead to this rule`",
    Reason::RuleGone => "`no rule serves this connection since a reload`",
    Reason::Trace => "`TRACE is not passed on`",
    Reason::Placeholder(_) => "`secret: …`",
    Reason::MalformedHello(_) => "`malformed hello: …`",
    Reason::MalformedQuic(_) => "`malformed QUIC: …`",
    Reason::NotTls(_) => "a protocol, as in `plain HTTP`",
    Reason::MalformedConnect(_) => "`malformed CONNECT: …`",
    Reason::NotConnect(NotConnect::Method) => "`another method than CONNECT`",
    Reason::NotConnect(NotConnect::NotHttp) => "`not HTTP where CONNECT was expected`",
    Reason::NotConnect(NotConnect::Tls) => "`TLS where CONNECT was expected`",
    Reason::MalformedSocks(_) => "`malformed SOCKS: …`",
    Reason::MalformedProxyHeader(_) => "`malformed PROXY header: …`",
    Reason::NoProxyHeader => "`no PROXY header`",
    Reason::Handshake(HandshakeFault::Internal, _) => "`handshake: …` (ours)",
    Reason::Handshake(_, _) => "`handshake: …`",
    Reason::ClientAlert(_) => "`client sent alert …`",
    Reason::Record(RecordFault::SequenceExhausted) => "`client: the keys are used up`",
    Reason::Record(fault) if fault.whose() == Whose::Ours => "`client: …` (ours)",
    Reason::Record(_) => "`client: …` (TLS)",
    Reason::Http2(Peer::Client, failure) if failure.is_leave() => "`client: HTTP/2: … received`",
    Reason::Http2(Peer::Client, _) => "`client: HTTP/2: …`",
    Reason::StreamFlood(_) => "`client: HTTP/2: ENHANCE_YOUR_CALM: …`",
    Reason::Request(_, _) => "`request: …`",
    Reason::AcmeUpstream(_) => "`acme_upstream: …`",
    Reason::Dns(_) => "`upstream: DNS: …`",
    Reason::NoAddress => "`upstream: the name has no address`",
    Reason::Rate(RateLimit::Process) => "`handshakes_per_second`",
    Reason::Rate(RateLimit::Source) => "`source_handshakes_per_second`",
    Reason::NoLocalPort(_) => "`no local port: …`",
    Reason::Io(Peer::Upstream, _) => "`upstream: …` (socket)",
    Reason::UpstreamAlert(_) => "`upstream sent alert …`",
    Reason::UpstreamNotTls => "`upstream: TLS: …`",
    Reason::UpstreamTls(_) | Reason::UpstreamUntrusted(_) => "`upstream: TLS: …`",
    Reason::UpstreamUnread => "`upstream: the request was not taken`",
    Reason::Response(_) => "`upstream: …` (response)",
    Reason::Reflected(_) => "`upstream: the field … shows the value of …`",
    Reason::Http2(Peer::Upstream, _) => "`upstream: HTTP/2: …`",
    Reason::UpstreamWantsHttp1 => "`upstream: it wants HTTP/1.1`",
    Reason::Configuration(_) => "`configuration: …`",
    Reason::NoCertificate(_) => "`no certificate: …`",
    Reason::NoDestination => "`no destination to splice to`",
    Reason::MixedFamilies => "`upstream: it is not of the client's address family`",
    Reason::CodingFailed => "`the coding failed`",
    Reason::Unregistered(_) => "`cannot be watched: …`",
    Reason::Internal(_) => "`internal error: …`",
}

const WHEN: Option<When> = Some(When::During(Stage::Hello));

fn address() -> Box<SocketAddr> {
    Box::new(SocketAddr::from(([192, 0, 2, 1], 443)))
}

fn malformed() -> Malformed {
    Malformed { at: 4, why: eyelet_wire::hello::Fault::EmptyRecord }
}

/// Returns at least one reason for each row.
fn examples() -> Vec<Reason> {
    [plain_examples(), detailed_examples(), grouped_examples()].concat()
}

fn plain_examples() -> Vec<Reason> {
    vec![
        Reason::Ended,
        Reason::Answered,
        Reason::ClosedAfterResponse,
        Reason::CodingFailed,
        Reason::Complete,
        Reason::Cut,
        Reason::MixedFamilies,
        Reason::NoAddress,
        Reason::NoDestination,
        Reason::NoProxyHeader,
        Reason::Redirected,
        Reason::StreamReset,
        Reason::SwitchedProtocols,
        Reason::Trace,
        Reason::Truncated,
        Reason::UpstreamClosed,
        Reason::UpstreamReset,
        Reason::UpstreamUnread,
        Reason::UpstreamWantsHttp1,
        Reason::Validated,
    ]
}

fn detailed_examples() -> Vec<Reason> {
    let detail = || Detail::of("why");
    let calm = |received| Http2Failure { code: 11, received };
    vec![
        Reason::AcmeUpstream(IoFailure::Os(111)),
        Reason::ClientAlert(48),
        Reason::ClientAlert(255),
        Reason::Configuration(detail()),
        Reason::Dns(detail()),
        Reason::EvidenceBusy(detail()),
        Reason::Guarded(Box::new(Guarded { ip: address().ip(), name: Some("a.example".into()) })),
        Reason::Guarded(Box::new(Guarded { ip: address().ip(), name: None })),
        Reason::Handshake(HandshakeFault::Alert(48), detail()),
        Reason::Handshake(HandshakeFault::Internal, detail()),
        Reason::Http2(Peer::Client, Http2Failure { code: 8, received: true }),
        Reason::Http2(Peer::Client, calm(false)),
        Reason::Http2(Peer::Upstream, calm(true)),
        Reason::Internal("a panic"),
        Reason::Io(Peer::Client, IoFailure::Os(110)),
        Reason::Io(Peer::Upstream, IoFailure::Os(111)),
        Reason::LacksFacts(Box::new(LacksFacts {
            refusal: Reason::Refused("no rule for this name"),
            no_destination: Some(Reason::NoAddress),
            unknown: ["dns: no answer in time".into()].into(),
        })),
        Reason::Rate(RateLimit::Process),
        Reason::Rate(RateLimit::Source),
        Reason::NoLocalPort(Box::new(PortLack::InUse(Detail::of("all are in use")))),
        Reason::MalformedConnect(ConnectFault::Content),
        Reason::MalformedHello(malformed()),
        Reason::MalformedQuic(QuicFault::NotInitial),
        Reason::MalformedName(SniFault::Nul),
        Reason::MalformedProxyHeader(ProxyFault::LineEnd),
        Reason::MalformedSocks(SocksFault::NoMethod),
        Reason::Misdirected("a.example".into()),
        Reason::NotTls(NotTls::Http),
        Reason::Placeholder(Detail::of("EYELET_SECRET_GITHUB may not stand in a URL")),
        Reason::RuleGone,
        Reason::Record(RecordFault::BadRecordMac),
        Reason::Record(RecordFault::Provider),
        Reason::Record(RecordFault::SequenceExhausted),
        Reason::Reflected(Detail::of("the field location shows the value of EYELET_SECRET")),
        Reason::Refused("no rule with plain_http for this name"),
        Reason::Refused("refused by name"),
        Reason::RefusedRequest("refused by request"),
        Reason::Refused("the rule has no plain_http"),
        Reason::Request(400, detail()),
        Reason::Response(detail()),
        Reason::Unlisted("not in allow.txt".into()),
        Reason::Unregistered(IoFailure::Os(28)),
        Reason::UpstreamAlert(48),
        Reason::UpstreamAlert(255),
        Reason::UpstreamNotTls,
        Reason::UpstreamTls(detail()),
        Reason::UpstreamUntrusted(detail()),
    ]
}

fn grouped_examples() -> Vec<Reason> {
    use Limit as L;
    let mut all = vec![
        Reason::Timeout(L::Hello, WHEN),
        Reason::Timeout(L::Connect, None),
        Reason::Timeout(L::Connect, Some(When::During(Stage::Dns))),
    ];
    for when in [None, WHEN] {
        all.extend([Reason::ClientClosed(when), Reason::ClientReset(when), Reason::Drained(when)]);
    }
    let limits = [
        L::Body,
        L::Handshake,
        L::Head,
        L::Http2Idle,
        L::Idle,
        L::RequestBody,
        L::Taking,
        L::Upstream,
        L::UpstreamBody,
    ];
    all.extend(limits.map(|limit| Reason::Timeout(limit, None)));
    let lacks = [
        CertificateLack::Busy,
        CertificateLack::Deep,
        CertificateLack::Expired,
        CertificateLack::Failed,
        CertificateLack::NotSent,
        CertificateLack::NoName,
        CertificateLack::Ordered,
        CertificateLack::Slow,
        CertificateLack::TooMany,
    ];
    all.extend(lacks.map(Reason::NoCertificate));
    let sheds = [
        Shed::Excess,
        Shed::Idle,
        Shed::New,
        Shed::RequestHead,
        Shed::ResponseHead,
        Shed::Stalled,
        Shed::Stream,
        Shed::Unfinished(When::During(Stage::Request)),
        Shed::Untaken,
        Shed::Upstream,
    ];
    all.extend(sheds.map(Reason::Shed));
    let loops = [Loop::Dialled, Loop::Handed(address()), Loop::Listener(address()), Loop::Own];
    all.extend(loops.map(Reason::Loop));
    all.extend([Loop::Returned, Loop::ToListener].map(Reason::Loop));
    let hellos = [SecondHello::Name("a.example".into()), SecondHello::MalformedName(SniFault::Nul)];
    all.extend(hellos.map(|why| Reason::SecondHello(Box::new(why))));
    let servers = [ServerFault::Compression, ServerFault::Malformed(malformed())];
    all.extend(servers.map(Reason::Server));
    all.extend([ServerFault::NotTls, ServerFault::ThirdHello].map(Reason::Server));
    let requests = [NotConnect::Method, NotConnect::NotHttp, NotConnect::Tls];
    all.extend(requests.map(Reason::NotConnect));
    let held = [HeldEnd::Refused, HeldEnd::Undecided, HeldEnd::TooMany, HeldEnd::TooLong];
    all.extend(held.map(Reason::Held));
    all.extend([UserLack::Missing, UserLack::Wrong].map(Reason::NoUser));
    all.extend([StreamFlood::Dropped, StreamFlood::Reset].map(Reason::StreamFlood));
    all
}

/// The list under the heading `Reasons`: class and party by text. An item may have several texts.
fn documented() -> BTreeMap<&'static str, [&'static str; 2]> {
    let page = include_str!("../../../../docs/access-log.md");
    let section = page.split("\n## Reasons\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    // A long item goes on in the next line. The texts live as long as those of the code.
    let section: &str = section.replace("\n  ", " ").leak();
    let mut found = BTreeMap::new();
    for item in section.split("\n- ").skip(1) {
        let parts = item.split_once("): ").and_then(|(head, _)| head.rsplit_once(" ("));
        let parts = parts.and_then(|(texts, of)| Some((texts, of.split_once(", ")?)));
        let Some((texts, (class, whose))) = parts else {
            panic!("- reason (class, whose): what to do: {item}");
        };
        for text in texts.split("; ") {
            assert_eq!(found.insert(text, [class, whose]), None, "{text} is there twice");
        }
    }
    found
}

#[test]
fn every_reason_is_documented_with_its_class_and_party() {
    let documented = documented();
    let in_docs: BTreeSet<&str> = documented.keys().copied().collect();
    let in_code: BTreeSet<&str> = ROWS.iter().copied().collect();
    assert_eq!(in_docs, in_code, "docs/access-log.md and rows! differ");
    let mut seen = BTreeSet::new();
    for reason in examples() {
        let row = row(&reason);
        seen.insert(row);
        let is = [reason.class().name(), reason.whose().name()];
        assert_eq!(documented[row], is, "{row}: {reason:?}");
    }
    let missing: Vec<_> = ROWS.iter().filter(|row| !seen.contains(*row)).collect();
    assert!(missing.is_empty(), "no example of {missing:?}");
}

/// Each text equals its row, apart from `…`.
#[test]
fn every_reason_reads_as_its_row() {
    for reason in examples() {
        let (row, text) = (row(&reason), reason.to_string());
        assert!(!text.is_empty(), "{reason:?}");
        let Some((pattern, _)) = row.strip_prefix('`').and_then(|row| row.split_once('`')) else {
            continue;
        };
        let mut rest = &text[..];
        for (n, part) in pattern.split('…').enumerate() {
            // The text after a `…` may also begin a sentence.
            let part = if n > 0 && pattern.starts_with('…') { part.trim() } else { part };
            let Some(at) = rest.find(part) else { panic!("{text:?} is not {row:?}") };
            assert!(n > 0 || at == 0, "{text:?} is not {row:?}");
            rest = &rest[at + part.len()..];
        }
        assert!(pattern.ends_with('…') || rest.is_empty(), "{text:?} is not {row:?}");
    }
}

#[test]
fn errors_keep_their_text_and_their_kind() {
    let refused = io::Error::from_raw_os_error(111);
    let other = io::Error::other("its own words");
    for error in [&refused, &other, &io::ErrorKind::UnexpectedEof.into()] {
        let failure = IoFailure::from(error);
        assert_eq!((failure.to_string(), failure.kind()), (error.to_string(), error.kind()));
    }
    let reset = io::Error::from_raw_os_error(104);
    assert_eq!(Reason::client_io(&reset, None), Reason::ClientReset(None));
    assert_eq!(Reason::upstream_io(&reset), Reason::UpstreamReset);
    let failure = Http2Failure { code: 11, received: true };
    assert_eq!(failure.to_string(), "HTTP/2: ENHANCE_YOUR_CALM received");
    let failure = Http2Failure { code: 0x99, received: false };
    assert_eq!(failure.to_string(), "HTTP/2: error 0x99 detected");
}

/// Alerts and statuses come from the type alone.
#[test]
fn answers_are_derived_from_reasons() {
    let timeout = |limit| Reason::Timeout(limit, None);
    let dial = Reason::Io(Peer::Upstream, IoFailure::Os(111));
    let statuses = [
        (Reason::Request(431, Detail::of("head too long")), 431),
        (Reason::Trace, 405),
        (Reason::RuleGone, 421),
        (Reason::Misdirected("a.example".into()), 421),
        (timeout(Limit::Head), 408),
        (timeout(Limit::RequestBody), 408),
        (timeout(Limit::Connect), 504),
        (timeout(Limit::Upstream), 504),
        (timeout(Limit::UpstreamBody), 504),
        (Reason::Shed(Shed::Stalled), 503),
        (dial.clone(), 503),
        (Reason::Dns(Detail::of("no answer")), 503),
        (Reason::UpstreamUnread, 503),
        (Reason::UpstreamUntrusted(Detail::of("expired")), 503),
        (Reason::UpstreamAlert(116), 502),
        (Reason::UpstreamWantsHttp1, 502),
        (Reason::Response(Detail::of("malformed chunk")), 502),
    ];
    for (reason, status) in statuses {
        assert_eq!(reason.status(), status, "{reason}");
    }
    let listener = Loop::Listener(Box::new(SocketAddr::from(([192, 0, 2, 1], 443))));
    let alerts = [
        (Reason::NotTls(NotTls::Http), None),
        (Reason::NotTls(NotTls::Ssh), None),
        (Reason::NotTls(NotTls::SslV2), Some(AlertDescription::ProtocolVersion)),
        (Reason::NotTls(NotTls::RecordType(0)), Some(AlertDescription::UnexpectedMessage)),
        (Reason::Loop(Loop::Own), None),
        (Reason::Loop(listener), Some(AlertDescription::AccessDenied)),
        (dial, Some(AlertDescription::InternalError)),
        (timeout(Limit::Connect), Some(AlertDescription::InternalError)),
        (Reason::NoDestination, Some(AlertDescription::InternalError)),
        (Reason::Record(RecordFault::RecordOverflow), Some(AlertDescription::RecordOverflow)),
        (Reason::ClientReset(None), None),
    ];
    for (reason, alert) in alerts {
        assert_eq!(reason.alert(), alert, "{reason}");
    }
}

/// A tag, two bytes and two words. It is on every task's stack.
#[test]
fn a_reason_is_small() {
    assert_eq!(size_of::<Reason>(), 24);
    assert_eq!(size_of::<crate::info::End>(), 32);
}

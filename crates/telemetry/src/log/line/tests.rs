//! Compares lines with serde's output byte for byte, for values that no example would have.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde::Serialize;

use eyelet_config::RuleNames;
use eyelet_memory::interner::Name;

use super::*;
use crate::evidence::{AddressEvidence, Evidence, EvidenceLine};
use crate::held::{HeldBy, HeldInfo, HeldVerdict};
use crate::info::KnownClient;
use crate::labels::Labels;
use crate::log::read::LoggedLine;
use crate::reason::{Detail, Reason};

/// The line for serde: every field in the order of docs/access-log.md.
#[derive(Serialize)]
struct Serial<'a> {
    time: String,
    id: String,
    listener: &'a str,
    client: SocketAddr,
    destination: Option<SocketAddr>,
    outcome: Outcome,
    rule: Option<&'a str>,
    reason: Option<String>,
    sni: Option<&'a str>,
    alpn: Option<Vec<Cow<'a, str>>>,
    tls_version: Option<&'static str>,
    ja4: Option<&'a str>,
    upstream: Option<Cow<'a, str>>,
    bytes_to_upstream: u64,
    bytes_to_client: u64,
    duration_ms: u64,
    connect: Option<&'a str>,
    tls_compression: Option<TlsCompression>,
    evidence: Option<EvidenceLine<'a>>,
    shadow: Option<Vec<Shadow<'a>>>,
    http: Option<&'a RequestInfo<'a>>,
    coding: Option<&'static str>,
    bytes_identity: Option<u64>,
    bytes_sent: Option<u64>,
    why_not: Option<&'static str>,
    client_ip: IpAddr,
    event: &'static str,
    trace_id: Option<String>,
    span_id: Option<String>,
    upstream_tls: Option<&'a UpstreamTlsInfo>,
    identity: Option<&'a KnownClient>,
    held: Option<HeldInfo>,
    transport: &'static str,
    datagrams_to_upstream: Option<u64>,
    datagrams_to_client: Option<u64>,
}

#[derive(Serialize)]
struct Shadow<'a> {
    rule: &'a str,
    outcome: Outcome,
}

fn serial(line: &Line<'_>) -> Vec<u8> {
    let Line { decided, measured, outcome, reason, http } = *line;
    let rule = |rule| decided.labels.rule(rule);
    let started = UNIX_EPOCH + Duration::from_millis(measured.started_unix_ms);
    let shadow = |&(n, outcome): &(u32, Outcome)| Shadow { rule: rule(n), outcome };
    let shadows: Vec<_> = decided.shadow.iter().map(shadow).collect();
    let trace = http.and_then(|request| request.trace);
    let digits = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect();
    let serial = Serial {
        time: humantime::format_rfc3339_millis(started).to_string(),
        id: format!("{}-{}", measured.id >> 48, measured.id & ((1 << 48) - 1)),
        listener: decided.labels.listener(decided.listener),
        client: measured.client,
        destination: decided.destination,
        outcome,
        rule: decided.rule.map(rule),
        reason: reason.map(ToString::to_string),
        sni: decided.sni.as_deref(),
        alpn: decided.alpn.as_ref().map(|alpn| alpn.names().collect()),
        tls_version: decided.tls_version.and_then(version_name),
        ja4: decided.ja4.as_ref().map(Ja4::as_str),
        upstream: match (http, &decided.upstream) {
            (Some(request), _) => request.upstream.map(Cow::Borrowed),
            (None, Some(UpstreamName::Address(address))) => Some(address.to_string().into()),
            (None, Some(UpstreamName::Name(name))) => Some(Cow::Borrowed(name)),
            (None, None) => None,
        },
        bytes_to_upstream: measured.bytes_to_upstream,
        bytes_to_client: measured.bytes_to_client,
        duration_ms: measured.duration_ms,
        connect: decided.connect.as_deref(),
        tls_compression: decided.tls_compression,
        evidence: decided.evidence.as_ref().map(|all| all.line(measured.started_unix_ms)),
        shadow: (!shadows.is_empty()).then_some(shadows),
        http,
        coding: http.and_then(|request| request.coded.coding),
        bytes_identity: http.map(|request| request.coded.bytes_identity),
        bytes_sent: http.map(|request| request.coded.bytes_sent),
        why_not: http.and_then(|request| request.coded.why_not),
        client_ip: measured.client.ip(),
        event: line.event(),
        trace_id: trace.map(|ids| digits(&ids.trace_id)),
        span_id: trace.map(|ids| digits(&ids.span_id)),
        upstream_tls: match http {
            Some(request) => request.upstream_tls,
            None => decided.upstream_tls.as_deref(),
        },
        identity: decided.requester.as_deref(),
        held: decided.held,
        transport: if measured.datagrams.is_some() { "quic" } else { "tcp" },
        datagrams_to_upstream: measured.datagrams.map(|[to_upstream, _]| to_upstream),
        datagrams_to_client: measured.datagrams.map(|[_, to_client]| to_client),
    };
    let mut bytes = serde_json::to_vec(&serial).unwrap();
    bytes.push(b'\n');
    bytes
}

const RULES: [&str; 4] = ["r0", "a \"quoted\" \\ rule", "Regel für \u{1f512}", "seventeen letters"];

static NAMES: LazyLock<Arc<RuleNames>> = LazyLock::new(|| {
    let rules: String = RULES
        .iter()
        .enumerate()
        .map(|(n, name)| {
            format!("[[rule]]\nname = {name:?}\nsni = \"{n}.test\"\naction = \"refuse\"\n")
        })
        .collect();
    let text = format!("[[listener]]\naddress = \"127.0.0.1:0\"\n{rules}");
    let file = std::env::temp_dir().join(format!("eyelet-line-{}.toml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let loaded = eyelet_config::load(&file, eyelet_config::Depth::Files);
    std::fs::remove_file(&file).unwrap();
    loaded.unwrap().config.rules.shared_names()
});

/// Words, characters that need escapes, and characters of several bytes.
fn string() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,40}",
        "[a-z.]{0,24}[\u{0}-\u{1f}\"\\\\/\u{7f}]?[a-z.]{0,24}",
        any::<String>(),
        Just(String::new()),
    ]
}

fn boxed() -> impl Strategy<Value = Box<str>> {
    string().prop_map(Into::into)
}

fn count() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), 0..2000_u64, any::<u64>()]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    use Outcome::{Failed, Left, Redirected, Refused, Spliced, Terminated};
    prop::sample::select(vec![Failed, Left, Redirected, Refused, Spliced, Terminated])
}

fn rule() -> impl Strategy<Value = u32> {
    0..RULES.len() as u32
}

fn evidence() -> impl Strategy<Value = Evidence> {
    let request = (vec(any::<IpAddr>(), 0..4), count());
    let dns = (any::<Option<bool>>(), option::of(request), option::of(boxed()));
    (dns, vec(string(), 0..3)).prop_map(|((agrees, request, fault), unknown)| {
        let request = request.map(|(addresses, at_unix_ms)| {
            Arc::new(AddressEvidence { addresses: addresses.into(), at_unix_ms })
        });
        let mut evidence = Evidence::default();
        evidence.note_dns(request, agrees, fault.as_deref());
        unknown.iter().for_each(|why| evidence.note_unknown(why));
        evidence
    })
}

fn upstream_tls() -> impl Strategy<Value = UpstreamTlsInfo> {
    let version = prop_oneof![0x02ff..0x0306_u16, any::<u16>()];
    let suite = prop::sample::select(vec!["TLS_AES_128_GCM_SHA256", ""]);
    let group = option::of(prop::sample::select(vec!["X25519MLKEM768", "secp256r1"]));
    (version, suite, group, option::of(boxed()), any::<bool>()).prop_map(
        |(version, cipher_suite, group, alpn, resumed)| UpstreamTlsInfo {
            version,
            cipher_suite: cipher_suite.into(),
            group: group.map(Into::into),
            alpn,
            resumed,
        },
    )
}

fn decided() -> impl Strategy<Value = Decided> {
    let upstream = prop_oneof![
        any::<SocketAddr>().prop_map(UpstreamName::Address),
        boxed().prop_map(UpstreamName::Name),
    ];
    let version = prop_oneof![0x02ff..0x0306_u16, any::<u16>()];
    use TlsCompression::{Chosen, None as Not, Offered};
    let hello = (
        option::of(boxed()),
        option::of(vec(string(), 0..4)),
        option::of("t1[23]d[0-9]{4}h2_[0-9a-f]{12}_[0-9a-f]{12}"),
        option::of(version),
        option::of(prop::sample::select(vec![Not, Offered, Chosen])),
    );
    let upstream = (option::of(upstream), option::of(upstream_tls()));
    let way = (option::of(boxed()), any::<Option<SocketAddr>>(), upstream);
    let verdict =
        (option::of(rule()), vec((rule(), outcome()), 0..3), option::of(evidence()), any::<bool>());
    let held = option::of(held());
    (hello, way, verdict, held).prop_map(|(hello, way, verdict, held)| {
        let (sni, alpn, ja4, tls_version, tls_compression) = hello;
        let (connect, destination, (upstream, upstream_tls)) = way;
        let (rule, shadow, evidence, http2) = verdict;
        Decided {
            labels: Labels::default(),
            listener: 0,
            is_handed: false,
            hop_count: 0,
            requester: connect
                .clone()
                .map(|user| Arc::new(KnownClient { user: Some(user), ..KnownClient::default() })),
            connect: connect.map(Name::from),
            destination,
            destination_source: crate::info::DestinationSource::Kernel,
            sni,
            alpn: alpn.and_then(|names| Alpn::new(names.into_iter())),
            ja4: ja4.and_then(|text| Ja4::parse(&text)),
            ech: false,
            sni_malformed: false,
            alpn_whole: false,
            client_roots: 0,
            client_certificate: None,
            tls_version,
            http2,
            rule,
            upstream,
            upstream_tls: upstream_tls.map(Arc::new),
            counted_at: None,
            tls_compression,
            shadow,
            evidence,
            held,
        }
    })
}

fn held() -> impl Strategy<Value = HeldInfo> {
    let verdict = prop::sample::select(HeldVerdict::ALL);
    let by = prop::sample::select(HeldBy::ALL);
    (any::<u32>(), verdict, by).prop_map(|(ms, verdict, by)| HeldInfo { ms, verdict, by })
}

fn measured() -> impl Strategy<Value = Measured> {
    let started = prop_oneof![
        0..(UNIX_S_MAX + 1) * 1000,
        1_700_000_000_000..1_700_000_003_000_u64,
        Just(UNIX_S_MAX * 1000 + 999),
    ];
    let bytes = (count(), count(), option::of([count(), count()]));
    (count(), started, count(), any::<SocketAddr>(), bytes).prop_map(
        |(
            id,
            started_unix_ms,
            duration_ms,
            client,
            (bytes_to_upstream, bytes_to_client, datagrams),
        )| Measured {
            id,
            started_unix_ms,
            duration_ms,
            client,
            bytes_to_upstream,
            bytes_to_client,
            datagrams,
        },
    )
}

/// A request with its method, path and upstream, which its info borrows.
fn requests() -> impl Strategy<Value = (Texts, RequestInfo<'static>)> {
    let word = || option::of(prop::sample::select(vec!["zstd", "a \"word\"", ""]));
    let coded = (word(), count(), count(), word()).prop_map(
        |(coding, bytes_identity, bytes_sent, why_not)| Coded {
            coding,
            bytes_identity,
            bytes_sent,
            why_not,
        },
    );
    let upstream = (option::of(string()), option::of(upstream_tls()));
    let texts = (string(), string(), upstream);
    let trace =
        any::<([u8; 16], [u8; 8])>().prop_map(|(trace_id, span_id)| TraceIds { trace_id, span_id });
    (texts, any::<Option<u16>>(), option::of(count()), coded, option::of(trace)).prop_map(
        |(texts, status, upstream_ms, coded, trace)| {
            let rest = RequestInfo {
                method: "",
                path: "",
                status,
                upstream_ms,
                upstream: None,
                upstream_tls: None,
                coded,
                trace,
                held: None,
                shadow: &[],
            };
            (texts, rest)
        },
    )
}

type Texts = (String, String, (Option<String>, Option<UpstreamTlsInfo>));

proptest! {
    /// Two lines one after the other: the second may have the same beginning as the first.
    #[test]
    fn a_line_equals_serdes(
        listener in string(),
        mut decided in decided(),
        measured in vec(measured(), 2),
        outcome in outcome(),
        reason in string(),
        is_over in any::<bool>(),
        http in option::of(requests()),
    ) {
        decided.labels = Labels::new(1, [listener.into()].into(), NAMES.clone());
        let reason = is_over.then(|| Reason::Response(Detail::of(reason)));
        let (mut written, mut expected) = (Vec::new(), Vec::new());
        let mut opening = Opening::default();
        for measured in &measured {
            let http = http.as_ref().map(|((method, path, (upstream, tls)), rest)| {
                let (upstream, upstream_tls) = (upstream.as_deref(), tls.as_ref());
                RequestInfo { method, path, upstream, upstream_tls, ..*rest }
            });
            let (reason, http) = (reason.as_ref(), http.as_ref());
            let line = Line { decided: &decided, measured, outcome, reason, http };
            line.write(&mut written, &mut opening);
            expected.extend(serial(&line));
        }
        prop_assert_eq!(String::from_utf8(written), String::from_utf8(expected));
    }

    /// Checks that a line is read back as it was written, and that no text makes the reader panic.
    #[test]
    fn a_line_is_read_back(
        decided in decided(),
        measured in measured(),
        local in option::of((any::<u32>(), any::<u32>())),
        text in string(),
    ) {
        let (mut decided, mut measured) = (decided, measured);
        if let Some((uid, pid)) = local {
            measured.client = LocalPeer { uid, pid }.address();
        }
        decided.labels = Labels::new(1, ["listener".into()].into(), NAMES.clone());
        let reason = Reason::Response(Detail::of(&text));
        let line = Line {
            decided: &decided,
            measured: &measured,
            outcome: Outcome::Refused,
            reason: Some(&reason),
            http: None,
        };
        let mut written = Vec::new();
        line.write(&mut written, &mut Opening::default());
        let read = LoggedLine::read(std::str::from_utf8(&written).unwrap()).unwrap();
        let place = |client: SocketAddr| (client.ip(), client.port());
        prop_assert_eq!(read.client.map(place), Some(place(measured.client)));
        prop_assert_eq!(read.sni.as_deref(), decided.sni.as_deref());
        prop_assert_eq!(read.connect.as_deref(), decided.connect.as_deref());
        prop_assert_eq!(read.reason, Some(reason.to_string()));
        let _ = LoggedLine::read(&text);
    }

    #[test]
    fn a_string_equals_serdes(string in string()) {
        let mut written = Vec::new();
        text(&mut written, &string);
        prop_assert_eq!(written, serde_json::to_vec(&string).unwrap());
    }
}

/// A byte that needs an escape is found at any position, and no other byte is.
#[test]
fn every_byte_at_every_place() {
    for len in 1..20 {
        for at in 0..len {
            for byte in 0..=u8::MAX {
                let mut text = vec![b'a'; len];
                text[at] = byte;
                let asks = byte < b' ' || byte == b'"' || byte == b'\\';
                assert_eq!(is_plain(&text), !asks, "{byte:#x} at {at} of {len}");
            }
        }
    }
}

#[test]
fn numbers_of_every_length() {
    let powers = std::iter::successors(Some(1_u64), |n| n.checked_mul(10));
    for number in powers.flat_map(|n| [n - 1, n, n + 1]).chain(0..1001).chain([u64::MAX]) {
        let mut written = Vec::new();
        super::number(&mut written, number);
        assert_eq!(written, number.to_string().into_bytes());
    }
}

/// A clock beyond the year 9999 still gives a line.
#[test]
fn a_year_that_cannot_be_written_does_no_harm() {
    let mut written = Vec::new();
    Opening::default().write(&mut written, u64::MAX);
    assert_eq!(written, br#"{"time":"9999-12-31T23:59:59.615Z","id":""#);
}

/// The wall clock may be set while the program runs, forwards or back.
#[test]
fn a_line_shows_the_wall_clock() {
    let mut opening = Opening::default();
    for (ahead_ms, time) in [
        (0, "1970-01-01T00:01:00.000Z"),
        (3_600_500, "1970-01-01T01:01:00.500Z"),
        (-59_000, "1970-01-01T00:00:01.000Z"),
        (-3_600_000, "1970-01-01T00:00:00.000Z"),
    ] {
        opening.ahead_ms = ahead_ms;
        let mut written = Vec::new();
        opening.write(&mut written, 60_000);
        assert_eq!(String::from_utf8_lossy(&written), format!(r#"{{"time":"{time}","id":""#));
    }
}

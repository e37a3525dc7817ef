//! Messages of each version that are stored as files, and messages that are none.
#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use eyelet_record::{EXPORT_BYTES, Role, Session, Suite};
use eyelet_telemetry::evidence::{AddressEvidence, CertificateEvidence, Evidence};
use eyelet_telemetry::export::{InfoFault, InfoV1};
use eyelet_telemetry::info::{
    Alpn, AskedBy, ConnectionInfo, Decided, KnownClient, NS_PER_MS, Outcome, TlsCompression,
    UpstreamName,
};
use eyelet_telemetry::labels::Labels;
use eyelet_telemetry::upstream_tls::UpstreamTlsInfo;
use eyelet_wire::ja4::Ja4;

use super::*;
use eyelet_hold::{HoldKey, RequestKey};
use eyelet_relay::export::{FlowFault, HELD_BYTES_MAX};
use eyelet_relay::held::{HeldConnection, HeldState};
use eyelet_relay::ready::{CLIENT, UPSTREAM};
use eyelet_relay::{Flow, Relay, WebSocketFrames};

/// A connection that no process has room for.
type Detached = MovedConnection<()>;

/// Sockets as they come with a message.
pub(crate) fn received(detached: &Detached) -> Vec<OwnedFd> {
    detached.sockets().map(|socket| socket.try_clone_to_owned().unwrap()).collect()
}

/// The stored messages of each version, by their names. An upgrade from any release that wrote the
/// version needs them to be read.
const STORED: [(&str, &str); 14] = [
    ("known", include_str!("../v12/known.hex")),
    ("held_request", include_str!("../v10/held_request.hex")),
    ("held", include_str!("../v9/held.hex")),
    ("resting", include_str!("../v6/resting.hex")),
    ("agreed", include_str!("../v5/agreed.hex")),
    ("originated", include_str!("../v4/originated.hex")),
    ("cleartext", include_str!("../v4/cleartext.hex")),
    ("certified", include_str!("../v3/certified.hex")),
    ("http2", include_str!("../v2/http2.hex")),
    ("spliced", include_str!("../v1/spliced.hex")),
    ("inspected", include_str!("../v1/inspected.hex")),
    ("tls13", include_str!("../v1/tls13.hex")),
    ("tls12", include_str!("../v1/tls12.hex")),
    ("websocket", include_str!("../v1/websocket.hex")),
];

/// The exchange of a test of `downstream`.
const EXCHANGE: &[u8] =
    b"\x01\x01\x90\xbf\x05\x01\x03GET\x01\x12/events?topic=news\x01\xc8\x01\x01\
    \x0c\xac\x02\xf0\xa2\x04\x00\x02\x00\x00\x01x\n\n\xe8\xfb\x03\x01\x0cnot accepted";

pub(crate) fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(40).map(|bytes| line(bytes) + "\n").collect()
}

fn info(decided: Decided) -> ConnectionInfo {
    ConnectionInfo {
        id: 3 << 48 | 77,
        started_unix_ns: (IMPORT_UNIX_MS - 86_400_123) * NS_PER_MS,
        client: "[2001:db8::7]:50123".parse().unwrap(),
        connect: None,
        owes_answer: None,
        is_decided: true,
        decided,
        bytes_to_upstream: 1_000,
        bytes_to_client: 5_000_000_000,
        is_quic: false,
        datagrams: [0; 2],
    }
}

fn decided() -> Decided {
    Decided {
        labels: Labels::imported((1, "public".into()), vec![(2, "api".into())]),
        listener: 1,
        sni: Some("www.a.example".into()),
        tls_version: Some(0x0304),
        rule: Some(2),
        ja4: Ja4::parse("t13d1516h2_8daaf6152771_b186095e22b6"),
        ..Decided::default()
    }
}

fn everything() -> Decided {
    let mut evidence = Evidence::default();
    let at_unix_ms = IMPORT_UNIX_MS - 86_400_123 - 500;
    let addresses = ["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse::<IpAddr>().unwrap()).into();
    evidence.note_dns(
        Some(Arc::new(AddressEvidence { addresses, at_unix_ms })),
        Some(true),
        Some("slow"),
    );
    evidence.note_certificate(Ok(Arc::new(CertificateEvidence {
        names: ["a.example".into(), "*.a.example".into()].into(),
        issuer: "CN=An Authority".into(),
        fault: Some("expired".into()),
        at_unix_ms,
    })));
    evidence.note_unknown("no permit");
    let rules = vec![(2, "api".into()), (9, "new rule".into())];
    Decided {
        labels: Labels::imported((1, "public".into()), rules),
        connect: Some("a.example:443".into()),
        is_handed: true,
        hop_count: 2,
        destination: Some(SocketAddr::from(([192, 0, 2, 1], 443))),
        sni_malformed: false,
        alpn: Alpn::new([&b"h2"[..], b"http/1.1", b"\xff"].into_iter()),
        alpn_whole: true,
        ech: true,
        upstream: Some(UpstreamName::Address(SocketAddr::from(([192, 0, 2, 1], 443)))),
        tls_compression: Some(TlsCompression::Chosen),
        shadow: vec![(9, Outcome::Refused)],
        evidence: Some(evidence),
        ..decided()
    }
}

/// The info of a connection, without name and addresses where the relay has them.
fn info_beside(relay: &Relay, decided: Decided) -> ConnectionInfo {
    let mut info = info(decided);
    if let Relay::Splice(_) = relay {
        (info.decided.sni, info.decided.destination) = (None, None);
        if let Some(UpstreamName::Address(_)) = info.decided.upstream {
            info.decided.upstream = None;
        }
    }
    info
}

fn http2(mut flow: Flow) -> (Decided, Relay) {
    let secrets = ([0x17; 32], [0x28; 32]);
    let suite = Suite::Aes128Gcm;
    let session = Session::tls13(Role::Server, suite, &secrets.0, &secrets.1, 9, 8).unwrap();
    flow.keep_state(PackedBytes::own(&(0..200).collect::<Vec<u8>>()));
    let decided = Decided { http2: true, ..decided() };
    (decided, Relay::Terminate(Terminated { session, flow }))
}

fn certified(flow: Flow) -> (Decided, Relay) {
    let (decided, relay) = http2(flow);
    let client_certificate = Some(Arc::new([0x30, 3, 2, 1, 7].into()));
    (Decided { client_roots: 77, client_certificate, ..decided }, relay)
}

fn websocket(mut flow: Flow) -> (Decided, Relay) {
    let secrets = ([0xe5; 32], [0xf6; 32]);
    let suite = Suite::ChaCha20Poly1305;
    let session = Session::tls13(Role::Server, suite, &secrets.0, &secrets.1, 4, 5);
    let mut frames = WebSocketFrames::default();
    frames.up.read(&[0x82, 0xfe, 1]);
    frames.down.read(&[0x81, 5, b'h', b'e']);
    flow.follow_websocket(frames);
    (decided(), Relay::Terminate(Terminated { session: session.unwrap(), flow }))
}

/// An exchange at rest: its first byte says how its client is framed, and the others are those of
/// `resting.rs` of `downstream`.
fn resting(mut flow: Flow) -> (Decided, Relay) {
    let secrets = ([0x5b; 32], [0x6c; 32]);
    let suite = Suite::Aes128Gcm;
    let session = Session::tls13(Role::Server, suite, &secrets.0, &secrets.1, 2, 9).unwrap();
    flow.keep_exchange(&[&[1][..], EXCHANGE].concat());
    let upstream = Some(UpstreamName::of("192.0.2.1:8080"));
    (Decided { upstream, ..decided() }, Relay::Terminate(Terminated { session, flow }))
}

fn cleartext(mut flow: Flow) -> (Decided, Relay) {
    flow.hold(CLIENT, b"the rest of a response");
    let decided = Decided { sni: None, tls_version: None, ja4: None, ..decided() };
    (decided, Relay::Cleartext(flow))
}

/// TLS is towards the upstream: what is sealed is for it, and what was opened for the client.
fn originated(mut flow: Flow) -> (Decided, Relay) {
    let secrets = ([0x39; 32], [0x4a; 32]);
    let suite = Suite::Aes128Gcm;
    let session = Session::tls13(Role::Client, suite, &secrets.0, &secrets.1, 6, 7).unwrap();
    flow.hold(UPSTREAM, b"opened, and not read by the client yet");
    flow.hold_partial(&[23, 3, 3, 1, 0, 9, 9]);
    let decided = Decided { sni: None, tls_version: None, ja4: None, ..decided() };
    (decided, Relay::Terminate(Terminated { session, flow }))
}

fn agreed(flow: Flow) -> (Decided, Relay) {
    let (decided, relay) = originated(flow);
    let upstream_tls = UpstreamTlsInfo {
        version: 0x0304,
        cipher_suite: "TLS_AES_128_GCM_SHA256".into(),
        group: Some("X25519MLKEM768".into()),
        alpn: Some("imap".into()),
        resumed: true,
    };
    (Decided { upstream_tls: Some(Arc::new(upstream_tls)), ..decided }, relay)
}

fn tls12(mut flow: Flow) -> (Decided, Relay) {
    let (key, iv) = ([0xc3; 16], [0xd4; 12]);
    let suite = Suite::Aes128Gcm;
    let session = Session::tls12(Role::Server, suite, &key, &iv, &key, &iv, 1, u64::MAX).unwrap();
    flow.hold_preface(b"PROXY TCP4 192.0.2.7 192.0.2.1 50123 443\r\n".to_vec());
    let upstream = Some(UpstreamName::of("unix:/run/app.sock"));
    let decided = Decided { upstream, http2: true, tls_version: Some(0x0303), ..decided() };
    (decided, Relay::Terminate(Terminated { session, flow }))
}

fn held() -> (Decided, Relay) {
    let key =
        HoldKey { rule: "ask".into(), name: "www.a.example".into(), port: 443, request: None };
    let question = HeldState::Moved(Box::new(key));
    let (bytes, wait) = ([22, 3, 1, 0, 2, 1, 0].into(), Duration::from_secs(60));
    let held = HeldConnection::new(bytes, Some(AskedBy::Socks), wait, question);
    (decided(), Relay::Held(held))
}

fn held_request() -> (Decided, Relay) {
    let (key, iv) = ([0xc3; 16], [0xd4; 12]);
    let suite = Suite::Aes128Gcm;
    let session = Session::tls12(Role::Server, suite, &key, &iv, &key, &iv, 1, 1).unwrap();
    let mut flow = Flow::default();
    flow.hold_partial(&[23, 3, 3, 1, 0, 9, 9]);
    let request = RequestKey::new("POST", "/a").map(Box::new);
    let (rule, name) = ("ask".into(), "www.a.example".into());
    let question = HeldState::Moved(Box::new(HoldKey { rule, name, port: 443, request }));
    let (bytes, wait) = (b"POST /a HTTP/1.1\r\n".as_slice().into(), Duration::from_secs(60));
    let held = HeldConnection::new(bytes, None, wait, question);
    let relay = Relay::Held(held.of_request(Terminated { session, flow }));
    (Decided { tls_version: Some(0x0303), ..decided() }, relay)
}

fn waiting(name: &str) -> (Decided, Relay) {
    if name == "held" { held() } else { held_request() }
}

/// A held one: the kinds differ in no way.
fn known() -> (Decided, Relay) {
    let (decided, relay) = held();
    let client = KnownClient {
        user: Some("alice".into()),
        certificate: None,
        cgroup: Some("/machine.slice/build".into()),
    };
    (Decided { requester: Some(Arc::new(client)), ..decided }, relay)
}

/// The values that the files have.
pub(crate) fn stored(name: &str) -> Detached {
    let [client, upstream] = [(); 2].map(|()| eyelet_sys::socket::pair().unwrap().0);
    let (mut upstream, mut flow) = (Some(upstream), Flow::default());
    let (decided, relay) = match name {
        "spliced" => {
            let mut decided = decided();
            (decided.clone(), Relay::Splice(Spliced::new(flow, &mut decided)))
        }
        "inspected" => {
            flow.inspect(true);
            flow.hold(CLIENT, b"bytes that the client does not read");
            flow.begin(b"bytes for the upstream");
            let mut chosen = false;
            // The beginning of a second hello, which must be whole before it passes.
            let passed = flow.pass(CLIENT, &[22, 3, 1, 0, 200, 1], None, &mut chosen).unwrap();
            assert_eq!(passed, 0);
            let mut decided = everything();
            (decided.clone(), Relay::Splice(Spliced::new(flow, &mut decided)))
        }
        "tls13" => {
            let secrets = ([0xa1; 48], [0xb2; 48]);
            let suite = Suite::Aes256Gcm;
            let session = Session::tls13(Role::Server, suite, &secrets.0, &secrets.1, 70_000, 3);
            let mut session = session.unwrap();
            session.request_key_update();
            flow.hold(CLIENT, b"a sealed record, of which the client has read a part");
            flow.hold_partial(&[23, 3, 3, 1, 0, 9, 9]);
            (decided(), Relay::Terminate(Terminated { session, flow }))
        }
        "http2" | "cleartext" => {
            upstream = None;
            if name == "http2" { http2(flow) } else { cleartext(flow) }
        }
        "certified" => {
            upstream = None;
            certified(flow)
        }
        "websocket" => websocket(flow),
        "resting" => resting(flow),
        "held" | "held_request" | "known" => {
            upstream = None;
            if name == "known" { known() } else { waiting(name) }
        }
        "originated" => originated(flow),
        "agreed" => agreed(flow),
        _ => {
            upstream = None;
            tls12(flow)
        }
    };
    Detached {
        client: Arc::new(client),
        upstream: upstream.map(Arc::new),
        streams: Vec::new(),
        holds: Vec::new(),
        further: Vec::new(),
        info: info_beside(&relay, decided),
        relay,
        rest: IdleState {
            is_settled: name != "spliced",
            idle_left: Duration::from_millis(3_599_900),
            idle: (name == "certified").then_some(Duration::from_millis(77_100)),
        },
        clock: DetachedClock::Import,
        counted: None,
        room: None,
    }
}

/// All of it as text, without its sockets.
fn shown(detached: &Detached) -> String {
    let Detached { info, relay, rest, upstream, .. } = detached;
    let (session, flow) = match relay {
        Relay::Cleartext(flow) => (String::new(), flow),
        Relay::Held(held) => {
            let (key, wait, owes) = (held.key(), held.wait(), held.owes_answer);
            let mut session = [0; EXPORT_BYTES];
            held.session().into_iter().for_each(|own| own.export(&mut session));
            let (bytes, session) = (held.bytes(), to_hex(&session));
            (format!("{bytes:?} {key:?} {wait:?} {owes:?} {session}"), &held.flow)
        }
        Relay::Splice(spliced) => {
            let mut decided = Decided::default();
            spliced.restore(&mut decided);
            (format!("{decided:?}"), &spliced.flow)
        }
        Relay::Terminate(terminated) => {
            let mut session = [0; EXPORT_BYTES];
            terminated.session.export(&mut session);
            (to_hex(&session), &terminated.flow)
        }
    };
    let upstream = upstream.is_some();
    let (flow, state) = (flow.export(), detached.state().map(PackedBytes::whole));
    let exchange = detached.exchange();
    let leaf = info.decided.client_certificate.as_deref();
    let tls = info.decided.upstream_tls.as_deref();
    let client = info.decided.requester.as_deref();
    let info = InfoV1::new(info, IMPORT_UNIX_MS);
    format!(
        "{info:?} {client:?} {leaf:?} {tls:?} {rest:?} {upstream} {session} {flow:?} {state:?} \
         {exchange:?}"
    )
}

/// A client without TLS has an upstream only while an exchange of it rests.
#[test]
fn a_client_without_tls_has_the_upstream_of_an_exchange() {
    let mut value = stored("cleartext");
    value.upstream = Some(Arc::new(eyelet_sys::socket::pair().unwrap().0));
    let alone = Detached::decode(&value.encode(), received(&value));
    assert_eq!(alone.err(), Some(ImportError::Cleartext));
    value.relay.flow().keep_exchange(EXCHANGE);
    let read = Detached::decode(&value.encode(), received(&value)).unwrap();
    assert_eq!((shown(&read), read.exchange()), (shown(&value), Some(EXCHANGE)));
    value.upstream = None;
    let without = Detached::decode(&value.encode(), received(&value));
    assert_eq!(without.err(), Some(ImportError::Exchange));
}

#[test]
fn the_largest_age_is_read_and_one_more_is_refused() {
    let info = ConnectionInfo { started_unix_ns: 0, ..info(decided()) };
    let mut written = InfoV1::new(&info, IMPORT_UNIX_MS);
    assert_eq!(written.age_ms, IMPORT_UNIX_MS);
    assert_eq!(written.info(IMPORT_UNIX_MS).unwrap().started_unix_ns, 0);
    // The youngest has the largest time.
    written.age_ms = 0;
    let youngest = written.info(IMPORT_UNIX_MS).unwrap();
    assert_eq!(youngest.started_unix_ms(), IMPORT_UNIX_MS);
    written.age_ms = IMPORT_UNIX_MS + 1;
    assert!(matches!(written.info(IMPORT_UNIX_MS), Err(InfoFault::Age)));
}

/// A file of an earlier release is read as it was meant, and this release writes the same.
#[test]
fn stored_messages_are_read_for_ever() {
    for (name, text) in STORED {
        let expected = stored(name);
        let written = expected.encode();
        let stored = from_hex(text);
        let newest = match stored[1] {
            // Versions 2, 3 and 5 are the one before, and then one, two and one optional values.
            // Version 4 has a kind more. Version 6 is written of an exchange at rest only.
            1 => [&[0, 5], &stored[2..], &[0, 0, 0, 0]].concat(),
            2 => [&[0, 5], &stored[2..], &[0, 0, 0]].concat(),
            3 | 4 => [&[0, 5], &stored[2..], &[0]].concat(),
            _ => stored,
        };
        assert!(
            *written == newest,
            "{name}: its version has changed. It must not; this would be its bytes:\n{}",
            to_hex(&written)
        );
        let read = Detached::decode(&from_hex(text), received(&expected)).unwrap();
        assert_eq!(shown(&read), shown(&expected), "{name}");
    }
}

/// A message is cut after any byte, or has one more.
#[test]
fn a_message_has_one_length() {
    for (name, text) in STORED {
        let expected = stored(name);
        let bytes = from_hex(text);
        for len in 0..bytes.len() {
            let fault = Detached::decode(&bytes[..len], received(&expected)).err();
            assert_eq!(fault, Some(ImportError::Malformed), "{name}: {len} bytes");
        }
        let longer = [&bytes[..], &[0, 0]].concat();
        let fault = Detached::decode(&longer, received(&expected)).err();
        assert_eq!(fault, Some(ImportError::Trailing(2)), "{name}");
        let huge = vec![0; MESSAGE_BYTES_MAX + 1];
        let fault = Detached::decode(&huge, received(&expected)).err();
        assert_eq!(fault, Some(ImportError::TooLong(MESSAGE_BYTES_MAX + 1)));
    }
}

#[test]
fn a_message_of_another_version_is_refused() {
    for version in [0_u16, 7, 256, u16::MAX] {
        let expected = stored("tls13");
        let mut bytes = expected.encode().to_vec();
        bytes[..2].copy_from_slice(&version.to_be_bytes());
        let fault = Detached::decode(&bytes, received(&expected)).err();
        assert_eq!(fault, Some(ImportError::Version(version)));
    }
}

#[test]
fn a_message_comes_with_its_sockets() {
    for (name, text) in STORED {
        let value = stored(name);
        let expected = value.sockets().count();
        for got in (0..4).filter(|got| *got != expected) {
            let sockets = (0..got).map(|_| eyelet_sys::socket::pair().unwrap().0).collect();
            let read = Detached::decode(&from_hex(text), sockets);
            let wanted = ImportError::Sockets { expected, got };
            // From version 6 on a state may have further ones.
            assert_eq!(read.err(), Some(wanted), "{name}");
        }
    }
}

/// Whatever single byte is changed, the answer is an error or a connection that can be written
/// again: no panic, and nothing that a wake could not take.
#[test]
fn any_changed_byte_is_an_error_or_a_connection() {
    for (name, text) in STORED {
        let value = stored(name);
        let bytes = from_hex(text);
        let mut read = 0;
        for at in 0..bytes.len() {
            for change in [1, 2, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                if let Ok(detached) = Detached::decode(&changed, received(&value)) {
                    read += 1;
                    let again = detached.encode();
                    let same = Detached::decode(&again, received(&value)).unwrap();
                    assert_eq!(shown(&same), shown(&detached), "{name}: byte {at}");
                }
            }
        }
        assert!(read > 0, "a changed byte of a text is another text");
    }
}

/// Values that postcard reads and no connection has.
#[test]
fn values_beyond_their_limits_are_refused() {
    let decode = |value: &Detached| Detached::decode(&value.encode(), received(value)).err();
    let with_flow = |name, change: &dyn Fn(&mut Flow)| {
        let mut value = stored(name);
        change(value.relay.flow());
        decode(&value)
    };
    let long = HELD_BYTES_MAX + 1;
    let too_long = |len| Some(ImportError::Flow(FlowFault::TooLong(len)));
    for name in ["spliced", "tls13"] {
        assert_eq!(with_flow(name, &|_| ()), None);
        for side in [CLIENT, UPSTREAM] {
            let held = with_flow(name, &|flow| flow.hold(side, &vec![0; HELD_BYTES_MAX]));
            assert!(held.is_none() || name == "tls13", "{held:?}");
            let fault = with_flow(name, &|flow| {
                *flow = Flow::default();
                flow.hold(side, &vec![0; long]);
            });
            assert_eq!(fault, too_long(long));
        }
        let fault = with_flow(name, &|flow| flow.hold_partial(&vec![0; long]));
        assert_eq!(fault, too_long(long));
        let fault = with_flow(name, &|flow| flow.hold_preface(vec![0; 70_000]));
        assert_eq!(fault, too_long(70_000));
    }
    let has_state = with_flow("tls13", &|flow| flow.keep_state(PackedBytes::own(&[7; 90])));
    assert_eq!(has_state, Some(ImportError::State), "it has an upstream");
    let has_state = with_flow("http2", &|flow| flow.keep_state(PackedBytes::own(&[7; 40 << 10])));
    assert_eq!(has_state, Some(ImportError::State), "it is too long");
    let is_long = with_flow("resting", &|flow| flow.keep_exchange(&[7; STATE_BYTES_MAX + 1]));
    assert_eq!(is_long, Some(ImportError::Exchange));
    for name in ["http2", "originated", "tls13"] {
        let fault = with_flow(name, &|flow| flow.keep_exchange(EXCHANGE));
        assert_eq!(fault, Some(ImportError::Exchange), "{name} has none");
    }
    let inspected = with_flow("tls13", &|flow| flow.inspect(false));
    assert_eq!(inspected, Some(ImportError::Flow(FlowFault::Mode)));

    let with_info = |name, change: &dyn Fn(&mut ConnectionInfo)| {
        let mut value = stored(name);
        change(&mut value.info);
        decode(&value)
    };
    let text: Box<str> = "x".repeat(70_000).into();
    let too_long = Some(ImportError::Info(InfoFault::TooLong));
    assert_eq!(with_info("tls13", &|info| info.decided.sni = Some(text.clone())), too_long);
    let connect = || Some(text.clone().into());
    assert_eq!(with_info("tls13", &|info| info.decided.connect = connect()), too_long);
    let rules = || vec![(2, text.clone())];
    let labels = |rules| Labels::imported((1, "public".into()), rules);
    assert_eq!(with_info("tls13", &|info| info.decided.labels = labels(rules())), too_long);
    let shadow = || vec![(9, Outcome::Refused); 5_000];
    assert_eq!(with_info("tls13", &|info| info.decided.shadow = shadow()), too_long);
    let count = Some(ImportError::Info(InfoFault::Count));
    assert_eq!(with_info("tls13", &|info| info.bytes_to_client = u64::MAX), count);
    assert_eq!(with_info("tls13", &|info| info.bytes_to_upstream = 1 << 63), count);
    // Six bytes of a second hello are held back, and count as read.
    let held_back = Some(ImportError::Counts);
    assert_eq!(with_info("inspected", &|info| info.bytes_to_upstream = 5), held_back);
}

/// It has an upstream and no TLS towards its client, and versions before 4 have no such kind.
#[test]
fn tls_towards_an_upstream_has_nothing_of_a_clients() {
    let fault = |change: &dyn Fn(&mut Detached)| {
        let mut value = stored("originated");
        change(&mut value);
        Detached::decode(&value.encode(), received(&value)).err()
    };
    assert_eq!(fault(&|_| ()), None);
    let refused = Some(ImportError::Role);
    assert_eq!(fault(&|value| value.info.decided.http2 = true), refused);
    assert_eq!(fault(&|value| value.info.decided.tls_version = Some(0x0304)), refused);
    assert_eq!(fault(&|value| value.upstream = None), refused);
    assert_eq!(fault(&|value| value.relay.flow().hold_preface(b"x".to_vec())), refused);
    let follow = |flow: &mut Flow| flow.follow_websocket(WebSocketFrames::default());
    assert_eq!(fault(&|value| follow(value.relay.flow())), refused);
    let certified = |value: &mut Detached| {
        value.info.decided.client_roots = 1;
        value.info.decided.client_certificate = Some(Arc::new([0x30].into()));
    };
    assert_eq!(fault(&certified), Some(ImportError::Certificate));
    let has_state = fault(&|value| value.relay.flow().keep_state(PackedBytes::own(&[7; 90])));
    assert_eq!(has_state, Some(ImportError::State));
    let value = stored("originated");
    let mut bytes = value.encode().to_vec();
    bytes[1] = 3;
    bytes.pop();
    assert_eq!(Detached::decode(&bytes, received(&value)).err(), refused);
}

/// A proxy's client may have any kind of connection, and is told in the bytes before it.
#[test]
fn each_kind_may_be_of_a_client_that_a_proxy_knows() {
    for (name, _) in STORED {
        let mut value = stored(name);
        value.info.decided.requester = None;
        let without = value.encode();
        let client = KnownClient { user: Some("alice".into()), ..KnownClient::default() };
        value.info.decided.requester = Some(Arc::new(client));
        let with = value.encode();
        assert_eq!(with[..2], VERSION.to_be_bytes(), "{name}");
        assert!(with.ends_with(&without), "{name}");
        let read = Detached::decode(&with, received(&value)).unwrap();
        assert_eq!(shown(&read), shown(&value), "{name}");
    }
    let mut value = stored("tls13");
    let decode = |bytes: &[u8]| Detached::decode(bytes, received(&stored("tls13"))).err();
    let unknown = [&VERSION.to_be_bytes()[..], &[0, 0, 0], &value.encode()].concat();
    assert_eq!(decode(&unknown), Some(ImportError::Malformed), "nothing is known of it");
    let text: Box<str> = "x".repeat(70_000).into();
    let client = KnownClient { cgroup: Some(text), ..KnownClient::default() };
    value.info.decided.requester = Some(Arc::new(client));
    assert_eq!(decode(&value.encode()), Some(ImportError::Info(InfoFault::TooLong)));
    let mut twice = vec![0, 12, 1, 1, b'a', 0, 0];
    twice.extend(from_hex(STORED[0].1));
    assert_eq!(decode(&twice), Some(ImportError::Version(VERSION)));
}

/// The agreement is that of a connection to a `tls://` upstream, in names that are registered.
#[test]
fn what_no_upstream_has_agreed_on_is_refused() {
    let agreed = stored("agreed").info.decided.upstream_tls.unwrap();
    let fault = |name: &str, change: &dyn Fn(&mut UpstreamTlsInfo)| {
        let (mut value, mut tls) = (stored(name), (*agreed).clone());
        change(&mut tls);
        value.info.decided.upstream_tls = Some(Arc::new(tls));
        Detached::decode(&value.encode(), received(&value)).err()
    };
    assert_eq!(fault("originated", &|_| ()), None);
    for name in ["tls13", "http2", "cleartext", "spliced", "websocket"] {
        assert_eq!(fault(name, &|_| ()), Some(ImportError::UpstreamTls), "{name}");
    }
    let refused = Some(ImportError::Info(InfoFault::Registered));
    for name in ["TLS\"", "a b", "\n", &"x".repeat(65)] {
        assert_eq!(fault("agreed", &|tls| tls.cipher_suite = name.to_owned().into()), refused);
        assert_eq!(fault("agreed", &|tls| tls.group = Some(name.to_owned().into())), refused);
    }
    let too_long = Some(ImportError::Info(InfoFault::TooLong));
    let long = || Some("x".repeat(70_000).into());
    assert_eq!(fault("agreed", &|tls| tls.alpn = long()), too_long);
}

/// TLS and an upstream are not for a client without TLS, and versions before 4 have no such kind.
#[test]
fn a_client_without_tls_has_nothing_of_it() {
    let fault = |change: &dyn Fn(&mut Detached)| {
        let mut value = stored("cleartext");
        change(&mut value);
        Detached::decode(&value.encode(), received(&value)).err()
    };
    assert_eq!(fault(&|_| ()), None);
    let refused = Some(ImportError::Cleartext);
    assert_eq!(fault(&|value| value.info.decided.http2 = true), refused);
    assert_eq!(fault(&|value| value.info.decided.tls_version = Some(0x0304)), refused);
    assert_eq!(fault(&|value| value.upstream = Some(value.client.clone())), refused);
    assert_eq!(fault(&|value| value.relay.flow().hold(UPSTREAM, b"x")), refused);
    assert_eq!(fault(&|value| value.relay.flow().hold_partial(b"x")), refused);
    assert_eq!(fault(&|value| value.relay.flow().hold_preface(b"x".to_vec())), refused);
    assert_eq!(fault(&|value| value.relay.flow().inspect(false)), refused);
    let value = stored("cleartext");
    let mut bytes = value.encode().to_vec();
    bytes[1] = 3;
    bytes.pop();
    let fault = Detached::decode(&bytes, received(&value)).err();
    assert_eq!(fault, Some(ImportError::Malformed));
}

/// It must be one that authorities may have vouched for.
#[test]
fn a_certificate_that_no_connection_has_is_refused() {
    let certificate = |bytes: usize| Some(Arc::new(vec![7; bytes].into()));
    for (name, bytes, roots, fault) in [
        ("tls13", CERTIFICATE_BYTES_MAX, 1, None),
        ("tls13", CERTIFICATE_BYTES_MAX + 1, 1, Some(ImportError::Certificate)),
        ("tls13", 0, 1, Some(ImportError::Certificate)),
        ("tls13", 900, 0, Some(ImportError::Certificate)),
        ("spliced", 900, 1, Some(ImportError::Certificate)),
    ] {
        let mut value = stored(name);
        value.info.decided.client_certificate = certificate(bytes);
        value.info.decided.client_roots = roots;
        let decoded = Detached::decode(&value.encode(), received(&value)).err();
        assert_eq!(decoded, fault, "{name}: {bytes} bytes of {roots}");
    }
}

/// A connection takes few bytes on its way. The time is printed, because it is the machine's.
#[test]
fn a_quiet_connection_is_a_small_message() {
    const CONNECTIONS: usize = 10_000;
    for name in ["spliced", "tls13"] {
        let mut value = stored(name);
        if let Relay::Terminate(terminated) = &mut value.relay {
            terminated.flow = Flow::default();
        }
        let len = value.encode().len();
        assert!(len <= 300, "{name}: {len} bytes");
        let began = std::time::Instant::now();
        for _ in 0..CONNECTIONS {
            let bytes = value.encode();
            drop(Detached::decode(&bytes, received(&value)).unwrap());
        }
        println!("{name}: {len} bytes; {CONNECTIONS} both ways took {:?}", began.elapsed());
    }
}

//! Forms of exchanges at rest: stored ones, their sizes, and what is not read.

#![allow(clippy::unwrap_used, clippy::panic)]
use std::time::Duration;

use super::kind::kind_of;
use super::origin::RESTING_ORIGIN_BYTES_MAX;
use super::timeout::RestTimeout;
use super::*;
use eyelet_hold::{HoldKey, RequestKey};
use eyelet_http1::head::Length;
use eyelet_record::{Keys, Role, Session, Suite, alert};
use eyelet_telemetry::held::{HeldBy, HeldInfo, HeldVerdict};
use eyelet_telemetry::info::Outcome;
use eyelet_telemetry::listing::streams::StreamKind;
use http::Request;

/// [`events`] in version 1.
const STORED: &[u8] = b"\x01\x01\x90\xbf\x05\x01\x03GET\x01\x12/events?topic=news\x01\xc8\x01\x01\
    \x0c\xac\x02\xf0\xa2\x04\x00\x02\x00\x00\x01x\n\n\xe8\xfb\x03\x01\x0cnot accepted\x00";

/// [`poll`] in version 1.
const STORED_POLL: &[u8] = b"\x01\x01\x90\xbf\x05\x01\x03GET\x01\x12/events?topic=news\x00\x00\
    \xac\x02\xf0\xa2\x04\x02\x00\x01\x0c\x01\xe9\x07\x00\xf5\x03\x00\x00\x00\x00\x01\x03GET";

/// [`translated`] in version 1.
const STORED_TRANSLATED: &[u8] = b"\x01\x01\x90\xbf\x05\x01\x03GET\x01\x12/events?topic=news\
    \x00\x00\xac\x02\xf0\xa2\x04\x07\x00\x01\x30\x01\xe9\x07\x00\xf5\x03\x00\x00\x00\x00\x01\x03GET\
    \x0elocalhost:8080\x0bapp.example";

const PATH: &str = "/events?topic=news";

fn events(path: &str) -> RestingExchange {
    let facts = RestingFacts {
        began_ms: Some(90_000),
        method: Some(Method::GET),
        path: Some(path.try_into().unwrap()),
        status: Some(200),
        upstream_ms: Some(12),
        bytes_to_upstream: 300,
        bytes_to_client: 70_000,
        is_grpc: false,
        ruling: None,
        trace: None,
    };
    let download = RestingDownload {
        place: (DecoderPlace::Size, 0),
        received: BytesMut::new(),
        events: Some(*b"x\n\n"),
        passed: 65_000,
        why_not: Some(WhyNot::NotAccepted),
    };
    let state = RestingState::PassesDown(RestingUpload::Sent, download);
    RestingExchange { facts, state, connection: KeptConnection::Own(None) }
}

fn poll_repeat() -> Option<Bytes> {
    Some(Bytes::from_static(b"GET"))
}

/// A request that waits for its response.
fn poll() -> RestingExchange {
    let facts = RestingFacts { status: None, upstream_ms: None, ..events(PATH).facts };
    let codings = RestingCodings::import((12, Some([1_001, 0, 501, 0, 0, 0, 0])));
    let wait =
        RestingWait { upload: RestingUpload::Sent, codings, repeat: poll_repeat(), origin: None };
    RestingExchange {
        facts,
        state: RestingState::AwaitsHead(wait),
        connection: KeptConnection::Own(None),
    }
}

/// A request of an originate rule that waits for its response, with codings of Eyelet's own.
fn translated() -> RestingExchange {
    let origin = RestingOrigin { client: "localhost:8080".into(), upstream: "app.example".into() };
    let codings = RestingCodings::import((48, Some([1_001, 0, 501, 0, 0, 0, 0])));
    let (upload, repeat) = (RestingUpload::Sent, poll_repeat());
    let wait = RestingWait { upload, codings, repeat, origin: Some(origin) };
    RestingExchange { state: RestingState::AwaitsHead(wait), ..poll() }
}

/// A session cannot be compared but by its form.
impl PartialEq for RestingExchange {
    fn eq(&self, other: &Self) -> bool {
        (&self.facts, &self.state) == (&other.facts, &other.state) && packed(self) == packed(other)
    }
}

fn packed(exchange: &RestingExchange) -> Vec<u8> {
    let mut form = Vec::new();
    exchange.pack(&mut form);
    form
}

/// Bytes of an event stream at rest. With its slot (240), what the slot points to (40) and what
/// the allocator adds to both, it stays below 400.
#[test]
fn an_event_stream_is_small() {
    assert_eq!(packed(&events(PATH)).len(), STORED.len());
    assert_eq!(STORED.len(), 66);
}

/// Another process may have written it, of any release since this version.
#[test]
fn the_stored_form_is_read_for_ever() {
    let exchange = events(PATH);
    assert_eq!(packed(&exchange), STORED, "version 1 has changed, which it must not");
    assert_eq!(RestingExchange::unpack(STORED), Some(exchange));
    assert_eq!(packed(&poll()), STORED_POLL, "version 1 has changed, which it must not");
    assert_eq!(RestingExchange::unpack(STORED_POLL), Some(poll()));
    assert_eq!(packed(&translated()), STORED_TRANSLATED);
    assert_eq!(RestingExchange::unpack(STORED_TRANSLATED), Some(translated()));
}

/// The counters of exchanges at rest read the kind alone.
#[test]
fn a_form_says_its_kind() {
    let kind = |state: RestingState| {
        let exchange = RestingExchange { state, ..poll() };
        assert_eq!(kind_of(&packed(&exchange)), Some(exchange.state.kind()));
        exchange.state.kind()
    };
    let upload = RestingUpload::Open(Encoder::Chunked);
    let wait = RestingWait { upload, codings: None, repeat: None, origin: None };
    assert_eq!(kind(poll().state), StreamKind::Waiting);
    assert_eq!(kind(translated().state), StreamKind::Waiting);
    assert_eq!(kind(RestingState::AwaitsHead(wait)), StreamKind::Upload);
    assert_eq!(kind(events(PATH).state), StreamKind::Events);
    let RestingState::PassesDown(_, download) = events(PATH).state else { panic!() };
    let download = RestingDownload { events: None, ..download };
    assert_eq!(kind(RestingState::PassesDown(upload, download)), StreamKind::Response);
    let frames = [FrameReader::default(); 2];
    let websocket = RestingWebSocket { frames, passed: 0, ended: None };
    assert_eq!(kind(RestingState::WebSocket(websocket)), StreamKind::WebSocket);
    assert_eq!(kind(RestingState::Switched(Some(frames))), StreamKind::WebSocket);
    assert_eq!(kind(RestingState::Switched(None)), StreamKind::Switched);
    assert_eq!(kind_of(&[]), None);
}

/// Its kind is a bit, and the rest of the form is that of its step.
#[test]
fn a_form_of_grpc_is_not_longer() {
    for exchange in [poll(), events(PATH)] {
        let form = packed(&exchange);
        let facts = RestingFacts { is_grpc: true, ..exchange.facts };
        let exchange = RestingExchange { facts, ..exchange };
        let of_grpc = packed(&exchange);
        assert_eq!((of_grpc[0], &of_grpc[1..]), (form[0] | IS_GRPC, &form[1..]));
        assert_eq!(kind_of(&of_grpc), Some(StreamKind::Grpc));
        assert_eq!(RestingExchange::unpack(&of_grpc), Some(exchange));
    }
}

/// The verdict and the rules in shadow go along, up to a bound.
#[test]
fn the_decisions_about_an_exchange_have_one_form() {
    let held = HeldInfo { ms: 4_210, verdict: HeldVerdict::Allow, by: HeldBy::Page };
    let shadow = |count: usize, name: &str| {
        let rule = (name.into(), Outcome::Refused);
        Some(vec![rule; count]).filter(|rules| !rules.is_empty())
    };
    for (held, shadow, kept) in [
        (Some(held), shadow(0, ""), 0),
        (None, shadow(2, "no writes"), 2),
        (Some(held), shadow(3, &"r".repeat(500)), 2),
    ] {
        let ruling = RestingRuling::of(held, shadow.as_deref());
        assert_eq!(ruling.as_ref().unwrap().shadow.as_ref().map_or(0, |all| all.len()), kept);
        let exchange = RestingExchange {
            facts: RestingFacts { ruling, ..events(PATH).facts },
            connection: KeptConnection::Shared(None),
            ..events(PATH)
        };
        let form = packed(&exchange);
        assert_eq!(RestingExchange::unpack(&form).as_ref(), Some(&exchange));
        for len in 0..form.len() {
            assert!(RestingExchange::unpack(&form[..len]).is_none(), "{len}");
        }
    }
    assert_eq!(RestingRuling::of(None, None), None);
    assert_eq!(RestingRuling::of(None, shadow(1, &"r".repeat(2_000)).as_deref()), None);
    let long = RestingRuling { held: None, shadow: shadow(1, &"r".repeat(2_000)).map(Into::into) };
    let facts = RestingFacts { ruling: Some(Box::new(long)), ..events(PATH).facts };
    let form = packed(&RestingExchange { facts, ..events(PATH) });
    assert!(RestingExchange::unpack(&form).is_none());
}

/// Bytes of a request that waits: with its slot (240), what the slot points to (40) and what
/// the allocator adds, a long poll stays far below 600.
#[test]
fn a_request_that_waits_is_small() {
    assert_eq!(packed(&poll()).len(), 56, "of which the head has 4");
}

#[test]
fn a_request_that_waits_has_one_form() {
    let wait = |change: &dyn Fn(&mut RestingWait)| {
        let mut exchange = poll();
        let RestingState::AwaitsHead(wait) = &mut exchange.state else { panic!() };
        change(wait);
        exchange
    };
    for upload in [
        RestingUpload::Sent,
        RestingUpload::Open(Encoder::Plain),
        RestingUpload::Open(Encoder::Chunked),
    ] {
        let repeat = || poll_repeat().filter(|_| upload == RestingUpload::Sent);
        for exchange in [
            wait(&|wait| (wait.upload, wait.repeat) = (upload, repeat())),
            wait(&|wait| (wait.upload, wait.repeat, wait.codings) = (upload, None, None)),
        ] {
            let form = packed(&exchange);
            assert_eq!(RestingExchange::unpack(&form), Some(exchange));
            for len in 0..form.len() {
                assert!(RestingExchange::unpack(&form[..len]).is_none(), "{len}");
            }
        }
    }
    let long = Some(Bytes::from_static(&[b'a'; REPEAT_BYTES_MAX + 1]));
    for exchange in [
        wait(&|wait| wait.upload = RestingUpload::Open(Encoder::Plain)),
        wait(&|wait| wait.repeat.clone_from(&long)),
    ] {
        assert!(RestingExchange::unpack(&packed(&exchange)).is_none());
    }
    let long = "a".repeat(RESTING_ORIGIN_BYTES_MAX + 1);
    for authority in ["", "two words", "a/b", &long] {
        let mut exchange = translated();
        let RestingState::AwaitsHead(wait) = &mut exchange.state else { panic!() };
        wait.origin.as_mut().unwrap().client = authority.into();
        assert!(RestingExchange::unpack(&packed(&exchange)).is_none(), "{authority:?}");
    }
    let answered = RestingFacts { status: Some(200), ..poll().facts };
    let unknown = RestingFacts { method: None, ..poll().facts };
    for facts in [answered, unknown] {
        let exchange = RestingExchange { facts, ..poll() };
        assert!(RestingExchange::unpack(&packed(&exchange)).is_none());
    }
}

#[test]
fn an_exchange_has_one_form_and_is_the_same_behind_it() {
    for place in [
        DecoderPlace::Left(1 << 40),
        DecoderPlace::UntilClose,
        DecoderPlace::Size,
        DecoderPlace::Chunk(7),
        DecoderPlace::ChunkEnd,
        DecoderPlace::Trailers,
    ] {
        let mut exchange = events("/");
        let RestingState::PassesDown(_, download) = &mut exchange.state else { panic!() };
        (download.place.0, download.received) = (place, BytesMut::from(&b"3;a"[..]));
        let form = packed(&exchange);
        assert_eq!(RestingExchange::unpack(&form).as_ref(), Some(&exchange));
        for len in 0..form.len() {
            assert!(RestingExchange::unpack(&form[..len]).is_none(), "{place:?}: {len}");
        }
        let longer = [&form[..], &[0]].concat();
        assert!(RestingExchange::unpack(&longer).is_none(), "{place:?}");
    }
}

#[test]
fn what_no_exchange_has_is_not_read() {
    let changes: [fn(&mut RestingExchange); 7] = [
        |one| one.facts.status = Some(99),
        |one| one.facts.status = Some(1000),
        |one| one.facts.bytes_to_client = MOVED_BYTES_MAX + 1,
        |one| one.facts.path = Some("/".repeat(PATH_BYTES_MAX + 1).try_into().unwrap()),
        |one| one.facts.method = Method::from_bytes(&[b'A'; METHOD_BYTES_MAX + 1]).ok(),
        |one| {
            let RestingState::PassesDown(_, download) = &mut one.state else { panic!() };
            download.place.0 = DecoderPlace::Chunk(u64::MAX);
        },
        |one| {
            let RestingState::PassesDown(_, download) = &mut one.state else { panic!() };
            download.received = BytesMut::zeroed(RECEIVED_BYTES_MAX + 1);
        },
    ];
    for (nth, change) in changes.into_iter().enumerate() {
        let mut exchange = events("/");
        change(&mut exchange);
        assert!(RestingExchange::unpack(&packed(&exchange)).is_none(), "{nth}");
    }
    let of_next = [&[VERSION | 0x80], &packed(&events("/"))[1..]].concat();
    assert!(RestingExchange::unpack(&of_next).is_none());
}

/// A WebSocket in the middle of a frame both ways, or between two.
#[test]
fn a_websocket_has_one_form() {
    let mut part = FrameReader::default();
    part.read(&[0x81, 0x85, 1]);
    for (frames, bytes) in [([FrameReader::default(); 2], 46), ([part; 2], 46 + 2 * EXPORT_BYTES)] {
        for ended in ENDED {
            let exchange = websocket(frames, 70_000, ended);
            let is_of_upstream = ended == Some(EndedSide::Upstream);
            assert_eq!(exchange.state.is_request_done(), ended == Some(EndedSide::Client));
            assert_eq!(exchange.state.has_upstream_ended(), is_of_upstream);
            let form = packed(&exchange);
            assert_eq!(kind::has_upstream_ended(&form), is_of_upstream);
            assert_eq!(RestTimeout::of(&form), Some(RestTimeout::Idle));
            assert_eq!(form.len(), bytes);
            assert_eq!(RestingExchange::unpack(&form), Some(exchange));
            for len in 0..form.len() {
                assert!(RestingExchange::unpack(&form[..len]).is_none(), "{len}");
            }
        }
    }
    for ended in ENDED {
        let exchange = websocket([part; 2], MOVED_BYTES_MAX + 1, ended);
        assert!(RestingExchange::unpack(&packed(&exchange)).is_none());
    }
}

/// The side of a WebSocket that has ended.
const ENDED: [Option<EndedSide>; 3] = [None, Some(EndedSide::Client), Some(EndedSide::Upstream)];

fn websocket(frames: [FrameReader; 2], passed: u64, ended: Option<EndedSide>) -> RestingExchange {
    let state = RestingState::WebSocket(RestingWebSocket { frames, passed, ended });
    let facts = events(PATH).facts;
    RestingExchange { facts, state, connection: KeptConnection::Own(None) }
}

/// TLS to the upstream has ended upwards if the client has ended, and downwards if the upstream
/// has.
#[test]
fn the_end_of_a_websocket_is_that_of_tls() {
    let session =
        |role| Session::tls13(role, Suite::Aes128Gcm, &[b'a'; 32], &[b'b'; 32], 0, 0).unwrap();
    for of_tls in ENDED {
        for ended in ENDED {
            let (mut client, mut keys) = (session(Role::Client), Keys::new());
            match of_tls {
                None => {}
                Some(EndedSide::Client) => _ = client.alert(&mut keys, alert::CLOSE_NOTIFY),
                Some(EndedSide::Upstream) => {
                    let said = session(Role::Server).alert(&mut keys, alert::CLOSE_NOTIFY);
                    client.open(&mut Keys::new(), &mut said.to_vec()).unwrap();
                    assert!(client.read_closed());
                }
            }
            let tls = Some(RestingTls { session: Box::new(client), info: None });
            let exchange = RestingExchange {
                connection: KeptConnection::Own(tls),
                ..websocket([FrameReader::default(); 2], 1, ended)
            };
            let is_read = RestingExchange::unpack(&packed(&exchange)).is_some();
            assert_eq!(is_read, of_tls == ended, "{of_tls:?} {ended:?}");
        }
    }
}

/// [`switched`] in version 1.
const STORED_SWITCHED: &[u8] = b"\x03\x00\x00\x00\x00\x00\x00\x00\x03\x01\x00\x00\x03\x01\x03\x02\
    \x20aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\x20bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\x09\x08\x00";

/// A connection that has switched protocols, with TLS to its upstream. It has no facts.
fn switched(frames: Option<[FrameReader; 2]>) -> RestingExchange {
    let (theirs, ours) = ([b'a'; 32], [b'b'; 32]);
    let session = Session::tls13(Role::Client, Suite::Aes128Gcm, &ours, &theirs, 9, 8).unwrap();
    let tls = Some(RestingTls { session: Box::new(session), info: None });
    let (state, connection) = (RestingState::Switched(frames), KeptConnection::Own(tls));
    RestingExchange { facts: RestingFacts::default(), state, connection }
}

#[test]
fn a_switched_connection_has_one_form() {
    let between = FrameReader::default();
    assert_eq!(packed(&switched(Some([between; 2]))), STORED_SWITCHED, "version 1 has changed");
    let mut part = between;
    part.read(&[0x81, 0x85, 1]);
    for frames in [None, Some([between; 2]), Some([between, part])] {
        let exchange = switched(frames);
        let form = packed(&exchange);
        assert_eq!(RestingExchange::unpack(&form).as_ref(), Some(&exchange));
        for len in 0..form.len() {
            assert!(RestingExchange::unpack(&form[..len]).is_none(), "{len}");
        }
        assert!(RestingExchange::unpack(&[&form[..], &[0]].concat()).is_none());
    }
}

/// A request that waits for a verdict, with so much of its body.
fn held(length: Length, body: (&'static [u8], bool)) -> RestingExchange {
    let request = Request::post("https://app.example/api/x?y=1").header("cookie", "a=b");
    let request = match length {
        Length::Known(bytes) => request.header("content-length", bytes),
        _ => request,
    };
    let (mut parts, ()) = request.body(()).unwrap().into_parts();
    parts.headers.get_mut("cookie").unwrap().set_sensitive(true);
    let request = RequestKey::new("POST", "/api/x").map(Box::new);
    let key = HoldKey { rule: "ask".into(), name: "app.example".into(), port: 443, request };
    let body = (Bytes::from_static(body.0), body.1);
    let hold = RestingHold::new(key, &parts, length, body, Duration::from_secs(60));
    RestingExchange {
        facts: RestingFacts { status: None, upstream_ms: None, ..events(PATH).facts },
        state: RestingState::Held(Box::new(hold)),
        connection: KeptConnection::Own(None),
    }
}

#[test]
fn a_held_request_has_one_form() {
    for (length, body) in [
        (Length::Known(5), (&b"hello"[..], true)),
        (Length::Known(5), (b"", false)),
        (Length::Chunked, (b"hello", true)),
        (Length::Empty, (b"", true)),
    ] {
        let exchange = held(length, body);
        assert_eq!(exchange.state.is_request_done(), body.1);
        let form = packed(&exchange);
        let read = RestingExchange::unpack(&form).unwrap();
        assert_eq!(read, exchange);
        assert!(RestingExchange::is_held(&form) && !RestingExchange::has_socket(&form));
        assert_eq!(RestTimeout::of(&form), Some(RestTimeout::Hold(Duration::from_secs(60))));
        let shown = kind::listed(&form, Some("192.0.2.1:80")).unwrap();
        let expected = (StreamKind::Held, Some("/api/x"), None);
        assert_eq!((shown.kind, shown.path.as_deref(), shown.upstream.as_deref()), expected);
        let RestingState::Held(hold) = read.state else { panic!() };
        let (parts, again) = hold.request();
        assert_eq!(
            (again, parts.uri.to_string()),
            (length, "https://app.example/api/x?y=1".into())
        );
        assert!(parts.headers["cookie"].is_sensitive());
        for len in 0..form.len() {
            assert!(RestingExchange::unpack(&form[..len]).is_none(), "{len}");
        }
        for bits in [form[0] & !IS_HELD, form[0] | IS_SHARED, form[0] | HAS_TLS] {
            assert!(RestingExchange::unpack(&[&[bits], &form[1..]].concat()).is_none());
        }
    }
    for (length, body) in [
        // It is too long, is a part, or is none although there is one.
        (Length::Chunked, (&[b'x'; hold::HOLD_BYTES_MAX][..], true)),
        (Length::Chunked, (b"hello", false)),
        (Length::Empty, (b"hello", true)),
        (Length::Empty, (b"", false)),
    ] {
        assert!(RestingExchange::unpack(&packed(&held(length, body))).is_none(), "{body:?}");
    }
    let of_other = [&[VERSION | IS_HELD], &packed(&poll())[1..]].concat();
    assert!(RestingExchange::unpack(&of_other).is_none());
}

/// One whose upstream connection others share. It has no socket, and TLS there has no secrets here.
#[test]
fn a_shared_stream_has_one_form() {
    let info = |alpn: &str| UpstreamTlsInfo {
        version: 0x0304,
        cipher_suite: "TLS_AES_128_GCM_SHA256".into(),
        group: Some("X25519".into()),
        alpn: Some(alpn.into()),
        resumed: false,
    };
    for (info, bytes) in [(None, 1), (Some(info("h2")), 12)] {
        let connection = KeptConnection::Shared(info.map(Arc::new));
        let exchange = RestingExchange { connection, ..events(PATH) };
        let form = packed(&exchange);
        assert_eq!(form.len(), STORED.len() + bytes);
        assert!(RestingExchange::is_shared(&form) && !RestingExchange::is_shared(STORED));
        let read = RestingExchange::unpack(&form).unwrap();
        assert_eq!(read.connection.tls_info(), exchange.connection.tls_info());
        assert_eq!(read, exchange);
        for len in 0..form.len() {
            assert!(RestingExchange::unpack(&form[..len]).is_none(), "{len}");
        }
        assert!(RestingExchange::unpack(&[&form[..], &[0]].concat()).is_none());
        // Nor has it a connection for itself.
        let both = [&[form[0] | HAS_TLS], &form[1..]].concat();
        assert!(RestingExchange::unpack(&both).is_none());
    }
}

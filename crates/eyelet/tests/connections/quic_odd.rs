//! Datagrams that no usual client sends, through the edge: hellos in many pieces, with gaps and
//! twice, early data before its hello, versions that nobody knows, packets of ended flows.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::Side;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::Version;
use serde_json::Value;

use crate::admin::{ADMIN, get, metrics};
use crate::quic_upgrade::{LATER, asks, echo};
use crate::support::{Edge, Folder, Hello, until};

/// The longest hello that is read.
const HELLO_BYTES_MAX: usize = 16 << 10;
const DCID: &[u8] = b"first-id";
const SCID: &[u8] = b"scid";
/// A version that is reserved for such tries (RFC 9000 section 15).
const OTHER_VERSION: [u8; 4] = [0x1a, 0x2a, 0x3a, 0x4a];

/// An edge with a server that sends back what comes.
struct Scene {
    edge: Edge,
    folder: Folder,
    is_over: Arc<AtomicBool>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Scene {
    /// With these rules before the one for `host.test`, and with more behind it.
    fn new(before: &str, behind: &str) -> Self {
        let (server, is_over) = echo();
        let folder = Folder::new();
        let config = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\nquic = true\n{ADMIN}{}\
             [[rule]]\nname = \"host\"\nsni = \"host.test\"\naction = \"splice\"\n\
             upstream = \"127.0.0.1:{server}\"\n{behind}",
            before.replace("SERVER", &format!("127.0.0.1:{server}"))
        );
        let edge = Edge::start_whole(&folder, &config, |_| ());
        Self { edge, folder, is_over }
    }

    fn client(&self) -> UdpSocket {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(self.edge.address()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client
    }

    fn dropped(&self) -> f64 {
        let socket = self.folder.path().join("admin.sock");
        metrics(&get(&socket, "/metrics").body)["eyelet_dropped_quic_datagrams_total"]
    }

    fn line(&self, outcome: &str) -> Value {
        self.edge.line(outcome, |line| line["transport"] == "quic" && line["outcome"] == outcome)
    }
}

/// The next datagram of the edge.
fn next(client: &UdpSocket) -> Vec<u8> {
    let mut bytes = [0; 2048];
    let len = client.recv(&mut bytes).unwrap();
    bytes[..len].to_vec()
}

/// A long header with both ids, before what its kind needs.
fn header(first: u8, version: [u8; 4]) -> Vec<u8> {
    let ids = [&[DCID.len() as u8][..], DCID, &[SCID.len() as u8], SCID].concat();
    [&[first][..], &version, &ids].concat()
}

/// Bytes of a CRYPTO frame at this place.
fn crypto(at: usize, bytes: &[u8]) -> Vec<u8> {
    let [at, len] = [at, bytes.len()].map(|number| (number as u16 | 0x4000).to_be_bytes());
    [&[6][..], &at, &len, bytes].concat()
}

/// An Initial packet of version 1 with these frames, padded to 1,200 bytes.
fn initial(number: u8, frames: &[u8]) -> Vec<u8> {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().unwrap().quic_suite().unwrap();
    let keys = suite.keys(DCID, Side::Client, Version::V1).local;
    let mut packet = header(0xc0, [0, 0, 0, 1]);
    packet.push(0); // no token
    let rest = 1200 - packet.len() - 2;
    packet.extend((rest as u16 | 0x4000).to_be_bytes());
    let number_at = packet.len();
    packet.push(number);
    let mut payload = frames.to_vec();
    payload.resize(rest - 1 - 16, 0);
    assert!(payload.len() >= frames.len(), "the frames fit");
    let tag = keys.packet.encrypt_in_place(number.into(), &packet, &mut payload).unwrap();
    packet.extend(payload);
    packet.extend(tag.as_ref());
    let (head, sealed) = packet.split_at_mut(number_at);
    let (number, sample) = sealed.split_at_mut(4);
    let sample = &sample[..keys.header.sample_len()];
    keys.header.encrypt_in_place(sample, &mut head[0], &mut number[..1]).unwrap();
    packet
}

/// Every other part first. All datagrams pass once the last one has come.
#[test]
fn a_hello_of_16_kib_comes_in_30_datagrams() {
    const PARTS: usize = 30;
    let limit = format!("[limits]\nhello_bytes_max = {HELLO_BYTES_MAX}\n");
    let scene = Scene::new("", &limit);
    let message = Hello::named("host.test").padded_to(HELLO_BYTES_MAX).message();
    let size = message.len().div_ceil(PARTS);
    let parts: Vec<(usize, &[u8])> = message.chunks(size).enumerate().collect();
    assert_eq!(parts.len(), PARTS);
    let order = parts.iter().step_by(2).chain(parts.iter().skip(1).step_by(2));
    let made = order.enumerate().map(|(number, (nth, part))| {
        let number = number as u8;
        initial(number, &crypto(nth * size, part))
    });
    let (client, sent) = (scene.client(), made.collect::<Vec<_>>());
    for datagram in &sent {
        client.send(datagram).unwrap();
    }
    for datagram in &sent {
        assert!(next(&client) == *datagram, "in their order");
    }
    let long = Hello::named("host.test").padded_to(HELLO_BYTES_MAX + 1).message();
    scene.client().send(&initial(0, &crypto(0, &long[..1000]))).unwrap();
    let line = scene.line("refused");
    assert!(line["reason"].as_str().unwrap().starts_with("malformed QUIC: "), "{line}");
}

#[test]
fn a_hello_with_a_gap_is_late() {
    let scene = Scene::new("", "");
    let message = Hello::named("host.test").message();
    let client = scene.client();
    client.send(&initial(0, &crypto(50, &message[50..]))).unwrap();
    let line = scene.line("failed");
    assert!(line["reason"].as_str().unwrap().contains("hello"), "{line}");
    assert!(line["sni"].is_null() && line["duration_ms"].as_u64().unwrap() >= 2_900, "{line}");
}

/// A second hello that differs from the first one: before the first is whole it ends the flow,
/// behind it does not pass.
#[test]
fn a_second_hello_does_not_pass() {
    let scene = Scene::new("", "");
    let message = Hello::named("host.test").message();
    let other = Hello::named("evil.test").message();
    let client = scene.client();
    client.send(&initial(0, &crypto(0, &message[..message.len() - 1]))).unwrap();
    client.send(&initial(1, &crypto(0, &other))).unwrap();
    let line = scene.line("refused");
    assert!(line["reason"].as_str().unwrap().starts_with("malformed QUIC: "), "{line}");
    // CONNECTION_CLOSE in a packet to the client's id.
    assert_eq!(next(&client)[5..][..5], [&[SCID.len() as u8], SCID].concat());

    let (client, first) = (scene.client(), initial(0, &crypto(0, &message)));
    assert!(asks(&client, &first));
    let before = scene.dropped();
    client.send(&initial(1, &crypto(0, &other))).unwrap();
    until("a datagram that is dropped", || (scene.dropped() > before).then_some(()));
    assert!(asks(&client, &first), "the first one may be repeated, and comes next");
}

/// 0-RTT waits for the Initial packet that it overtook, and passes before it.
#[test]
fn early_data_waits_for_its_hello() {
    let scene = Scene::new("", "");
    let mut early = header(0xd0, [0, 0, 0, 1]);
    let rest = 1200 - early.len() - 2;
    early.extend((rest as u16 | 0x4000).to_be_bytes());
    early.resize(1200, 7);
    let client = scene.client();
    let first = initial(0, &crypto(0, &Hello::named("host.test").message()));
    for datagram in [&early, &first] {
        client.send(datagram).unwrap();
    }
    assert!(next(&client) == early && next(&client) == first);
}

/// Forced negotiation is the server's business, if a rule lets it: one that asks for no hello, and
/// has none before it that does.
#[test]
fn another_version_is_passed_or_refused_by_rule() {
    let mut other = header(0xc0, OTHER_VERSION);
    other.resize(1200, 7);
    let all = "[[rule]]\nname = \"all\"\nclient = \"127.0.0.1\"\naction = \"splice\"\n\
               upstream = \"SERVER\"\n";
    let passes = Scene::new(all, "");
    assert!(asks(&passes.client(), &other));
    let refuses = Scene::new("", "");
    let client = refuses.client();
    client.send(&other).unwrap();
    let line = refuses.line("refused");
    assert!(line["sni"].is_null(), "{line}");
    client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(client.recv(&mut [0; 2048]).is_err(), "nobody knows the form of an answer");
}

/// A packet of a flow that has just ended is of no flow, and begins none.
#[test]
fn a_datagram_to_an_ended_flow_is_dropped() {
    let scene = Scene::new("", "[limits]\nquic_idle_timeout = \"1s\"\n");
    let client = scene.client();
    assert!(asks(&client, &initial(0, &crypto(0, &Hello::named("host.test").message()))));
    assert!(asks(&client, LATER));
    scene.line("spliced");
    let before = scene.dropped();
    client.send(LATER).unwrap();
    until("a datagram that is dropped", || (scene.dropped() > before).then_some(()));
    assert_eq!(scene.edge.lines().len(), 1, "{:#?}", scene.edge.lines());
}

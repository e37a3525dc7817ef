//! The PROXY protocol both ways: believed from those who must send it, sent to those who want it.
//! The headers are built and read here, without the project's own reader and writer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support;
use crate::support::client::{Offer, TLS12, TLS13, handshake};
use crate::support::edge::splice;
use crate::support::{Edge, End, Folder, Hello, Pki, SOON, Upstream, ending};

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// A PROXY v2 header as the upstream reads it.
struct Header {
    command: u8,
    family: u8,
    addresses: Vec<u8>,
    tlvs: Vec<(u8, Vec<u8>)>,
}

impl Header {
    fn read(stream: &mut TcpStream) -> Self {
        let mut start = [0; 16];
        stream.read_exact(&mut start).unwrap();
        assert_eq!(&start[..12], SIGNATURE);
        assert_eq!(start[12] >> 4, 2, "version 2");
        let mut rest = vec![0; usize::from(u16::from_be_bytes([start[14], start[15]]))];
        stream.read_exact(&mut rest).unwrap();
        let length = match start[13] {
            0x11 => 12,
            0x21 => 36,
            _ => 0,
        };
        let tlvs = tlvs(&rest[length..]);
        rest.truncate(length);
        Self { command: start[12] & 15, family: start[13], addresses: rest, tlvs }
    }

    fn tlv(&self, kind: u8) -> Option<&[u8]> {
        self.tlvs.iter().find(|(k, _)| *k == kind).map(|(_, value)| &value[..])
    }
}

fn tlvs(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut found = Vec::new();
    while let [kind, high, low, rest @ ..] = bytes {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        found.push((*kind, rest[..length].to_vec()));
        bytes = &rest[length..];
    }
    assert!(bytes.is_empty(), "half a TLV");
    found
}

fn v2_tcp4(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let ip = |address: SocketAddr| match address.ip() {
        std::net::IpAddr::V4(ip) => ip.octets(),
        std::net::IpAddr::V6(_) => unreachable!(),
    };
    let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    [&SIGNATURE[..], &[0x21, 0x11, 0, 12], &ip(from), &ip(to), &ports].concat()
}

#[test]
fn an_upstream_is_told_who_connected_and_how() {
    let pki = Pki::new();
    let upstream = Upstream::by_hand();
    let more = "proxy_protocol = \"v2\"\nalpn_select = \"xmpp-client\"";
    let rule = pki.terminate(&format!("tcp://{}", upstream.address), more);
    let edge = Edge::start(&pki.folder, &rule);
    let table = [(TLS13, "TLSv1.3", true), (TLS12, "TLSv1.2", true), (TLS13, "TLSv1.3", false)];
    for (versions, version, with_alpn) in table {
        let alpn: &[&str] = if with_alpn { &["xmpp-client"] } else { &[] };
        let offer = Offer { versions, alpn, ..Offer::new(&pki) };
        let mut client = offer.connect(edge.address(), "app.test");
        let mut stream = upstream.take();
        let header = Header::read(&mut stream);
        assert_eq!((header.command, header.family), (1, 0x11));
        let from = client.sock.local_addr().unwrap();
        assert_eq!(header.addresses, v2_tcp4(from, edge.address())[16..]);
        let expected = with_alpn.then_some(&b"xmpp-client"[..]);
        assert_eq!(header.tlv(0x01), expected, "PP2_TYPE_ALPN");
        assert_eq!(header.tlv(0x02), Some(&b"app.test"[..]), "PP2_TYPE_AUTHORITY");
        let ssl = header.tlv(0x20).expect("PP2_TYPE_SSL");
        assert_eq!(ssl[0] & 1, 1, "PP2_CLIENT_SSL");
        let parts = tlvs(&ssl[5..]);
        assert!(parts.contains(&(0x21, version.into())), "PP2_SUBTYPE_SSL_VERSION: {parts:?}");
        // What the client says comes behind it, and nothing in between.
        client.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
    }
}

/// Dialled late: the header still comes first.
#[test]
fn an_http_upstream_is_told_at_the_first_byte() {
    let pki = Pki::new();
    let upstream = Upstream::by_hand();
    let http = format!("http://{}", upstream.address);
    let edge = Edge::start(&pki.folder, &pki.terminate(&http, "proxy_protocol = \"v2\""));
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let mut stream = upstream.take();
    let header = Header::read(&mut stream);
    assert_eq!(header.tlv(0x02), Some(&b"app.test"[..]), "PP2_TYPE_AUTHORITY");
    let mut got = [0; 16];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"GET / HTTP/1.1\r\n");
}

#[test]
fn a_verified_client_is_named() {
    let pki = Pki::new();
    let alice = pki.client("alice");
    let upstream = Upstream::by_hand();
    let more = "proxy_protocol = \"v2\"\nclient_ca = \"ca.pem\"";
    let rule = pki.terminate(&format!("tcp://{}", upstream.address), more);
    let edge = Edge::start(&pki.folder, &rule);
    let offer = Offer { certificate: Some(&alice), ..Offer::new(&pki) };
    let _client = offer.connect(edge.address(), "app.test");
    let header = Header::read(&mut upstream.take());
    let ssl = header.tlv(0x20).expect("PP2_TYPE_SSL");
    // PP2_CLIENT_SSL, CERT_CONN and CERT_SESS; verified: zero.
    assert_eq!((ssl[0] & 3, &ssl[1..5]), (3, &[0; 4][..]));
    let parts = tlvs(&ssl[5..]);
    assert!(parts.contains(&(0x22, b"alice".to_vec())), "PP2_SUBTYPE_SSL_CN: {parts:?}");
}

#[test]
fn a_spliced_upstream_is_told_too() {
    let folder = Folder::new();
    let upstream = Upstream::by_hand();
    let rule = splice(upstream.address, "proxy_protocol = \"v2\"");
    let edge = Edge::start(&folder, &rule);
    let mut client = edge.connect();
    let hello = Hello::named("host.test").bytes();
    client.write_all(&hello).unwrap();
    let mut stream = upstream.take();
    let header = Header::read(&mut stream);
    let from = client.local_addr().unwrap();
    assert_eq!(header.addresses, v2_tcp4(from, edge.address())[16..]);
    let mut got = vec![0; hello.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, hello);
}

const BELIEVING: &str =
    "[[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol_from = [\"127.0.0.0/8\"]\n";

/// An edge that believes loopback, and has a rule for 192.0.2.0/24 alone.
fn believing() -> (Edge, Pki, Upstream) {
    let pki = Pki::new();
    let echo = Upstream::echo();
    let rules = pki.terminate(&format!("tcp://{}", echo.address), "client = \"192.0.2.0/24\"");
    let edge = Edge::start_whole(&pki.folder, &format!("{BELIEVING}{rules}"), |_| ());
    (edge, pki, echo)
}

#[test]
fn a_believed_header_says_who_the_client_is() {
    let (edge, pki, _echo) = believing();
    let from: SocketAddr = "192.0.2.7:5555".parse().unwrap();
    let to: SocketAddr = "198.51.100.1:443".parse().unwrap();
    let v1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 5555 443\r\n".to_vec();
    for (header, write_bytes) in
        [(v1.clone(), 99), (v1, 1), (v2_tcp4(from, to), 99), (v2_tcp4(from, to), 1)]
    {
        let before = edge.lines().len();
        let mut socket = edge.connect();
        for piece in header.chunks(write_bytes) {
            socket.write_all(piece).unwrap();
        }
        let mut client = handshake(Offer::new(&pki).config(), socket, "app.test").unwrap();
        support::client::echo(&mut client, b"hello");
        drop(client);
        let line = support::until("its line", || edge.lines().get(before).cloned());
        assert_eq!(line["client"], "192.0.2.7:5555", "{line}");
        assert_eq!(line["destination"], "198.51.100.1:443", "{line}");
        assert_eq!(line["rule"], "app", "{line}");
    }
}

#[test]
fn a_header_about_the_proxy_itself_leaves_the_client() {
    let (edge, _pki, _echo) = believing();
    let local = [&SIGNATURE[..], &[0x20, 0, 0, 0]].concat();
    for header in [b"PROXY UNKNOWN\r\n".to_vec(), local] {
        let mut socket = edge.connect();
        let address = socket.local_addr().unwrap();
        socket.write_all(&header).unwrap();
        socket.write_all(&Hello::named("app.test").bytes()).unwrap();
        assert_ne!(ending(&mut socket, SOON).1, End::Open);
        let line = edge.line_of(address);
        assert_eq!(line["outcome"], "refused", "no rule is for 127.0.0.1: {line}");
    }
}

#[test]
fn a_missing_or_malformed_header_closes() {
    let (edge, _pki, echo) = believing();
    let hello = Hello::named("app.test").bytes();
    let table: &[(&str, Vec<u8>)] = &[
        ("none", hello.clone()),
        ("v1 with a bad address", b"PROXY TCP4 192.0.2.300 198.51.100.1 5555 443\r\n".to_vec()),
        ("v1 with a bad port", b"PROXY TCP4 192.0.2.7 198.51.100.1 5555 99999\r\n".to_vec()),
        ("v1 without an end", [b"PROXY TCP4 ".to_vec(), vec![b'1'; 200]].concat()),
        ("v2 with a bad version", [&SIGNATURE[..], &[0x31, 0x11, 0, 12], &[0; 12]].concat()),
        ("v2 with addresses cut", [&SIGNATURE[..], &[0x21, 0x11, 0, 4], &[0; 4]].concat()),
        ("half, then the end", SIGNATURE[..6].to_vec()),
    ];
    for (label, bytes) in table {
        let mut socket = edge.connect();
        let address = socket.local_addr().unwrap();
        socket.write_all(bytes).unwrap();
        if label.starts_with("half") {
            socket.shutdown(std::net::Shutdown::Write).unwrap();
        } else {
            // A hello behind it must not save it. The edge may have closed already.
            let _ = socket.write_all(&hello);
        }
        let (answer, end) = ending(&mut socket, SOON);
        assert_ne!(end, End::Open, "{label}");
        assert!(answer.is_empty(), "{label}: {answer:?}");
        let line = edge.line_of(address);
        let outcome = if label.starts_with("half") { "left" } else { "failed" };
        assert_eq!(line["outcome"], outcome, "{label}: {line}");
        assert!(line["reason"].as_str().unwrap().contains("PROXY"), "{label}: {line}");
    }
    assert_eq!(echo.accepted(), 0);
}

/// From anyone else such a header is no TLS, and believed by nobody.
#[test]
fn a_header_of_a_stranger_is_not_believed() {
    let folder = Folder::new();
    let listener = BELIEVING.replace("127.0.0.0/8", "192.0.2.0/24");
    let rules = "[[rule]]\nclient = \"192.0.2.0/24\"\nsni = \"a.test\"\naction = \"refuse\"\n\
                 [[rule]]\nsni = \"b.test\"\naction = \"refuse\"";
    let edge = Edge::start_whole(&folder, &format!("{listener}{rules}"), |_| ());
    let mut socket = edge.connect();
    let address = socket.local_addr().unwrap();
    socket.write_all(b"PROXY TCP4 192.0.2.7 198.51.100.1 5555 443\r\n").unwrap();
    socket.write_all(&Hello::named("a.test").bytes()).unwrap();
    assert_ne!(ending(&mut socket, SOON).1, End::Open);
    let line = edge.line_of(address);
    assert!(line["rule"].is_null(), "{line}");
}

/// A rule that needs no hello, and one that does.
const BY_ADDRESS: &str = "[[rule]]\naction = \"splice\"\nupstream = \"destination\"\n";
const BY_NAME: &str =
    "[[rule]]\nsni = \"app.test\"\naction = \"splice\"\nupstream = \"destination\"\n";

/// Senders of a header may name any destination. It is guarded as that of a CONNECT is.
#[test]
fn a_destination_inside_is_refused() {
    let (folder, inside) = (Folder::new(), Upstream::by_hand());
    let port = inside.address.port();
    let mut from = SocketAddr::from(([192, 0, 2, 7], 5_000));
    for rule in [BY_ADDRESS, BY_NAME] {
        let edge = Edge::start_whole(&folder, &format!("{BELIEVING}{rule}"), |_| ());
        let mut is_refused = |label: &str, header: &dyn Fn(SocketAddr) -> Vec<u8>| {
            from.set_port(from.port() + 1);
            let mut client = edge.connect();
            client.write_all(&header(from)).unwrap();
            // Without a hello the edge may have closed already.
            let _ = client.write_all(&Hello::named("app.test").bytes());
            let (said, end) = ending(&mut client, SOON);
            assert_ne!(end, End::Open, "{label}");
            assert_eq!(said.is_empty(), rule == BY_ADDRESS, "{label}: {said:?}");
            let of = |line: &serde_json::Value| {
                let client = line["client"].as_str().unwrap_or_default();
                client.ends_with(&format!(":{}", from.port()))
            };
            let line = edge.line(label, of);
            assert_eq!(line["outcome"], "refused", "{label}: {line}");
            let reason = line["reason"].as_str().unwrap();
            assert!(reason.ends_with("which upstream_allow does not list"), "{label}: {line}");
        };
        for ip in ["127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "192.168.1.1", "100.64.0.1"] {
            let v1 = |from: SocketAddr| {
                format!("PROXY TCP4 192.0.2.7 {ip} {} {port}\r\n", from.port()).into_bytes()
            };
            is_refused(ip, &v1);
            let to = SocketAddr::new(ip.parse().unwrap(), port);
            is_refused(ip, &|from| v2_tcp4(from, to));
        }
        for ip in ["169.254.169.254", "168.63.129.16"] {
            let to = SocketAddr::new(ip.parse().unwrap(), 80);
            is_refused(ip, &|from| v2_tcp4(from, to));
        }
        for ip in ["::1", "::", "::ffff:127.0.0.1", "fe80::1", "fd00:ec2::254", "64:ff9b::a00:1"] {
            let v1 = |from: SocketAddr| {
                format!("PROXY TCP6 2001:db8::7 {ip} {} {port}\r\n", from.port()).into_bytes()
            };
            is_refused(ip, &v1);
        }
    }
    assert_eq!(inside.accepted(), 0);
}

#[test]
fn a_destination_inside_passes_where_a_rule_allows_it() {
    let (folder, echo) = (Folder::new(), Upstream::echo());
    let port = echo.address.port();
    for (rule, family, to) in [
        (BY_ADDRESS, "TCP4 192.0.2.7", "127.0.0.1"),
        (BY_NAME, "TCP4 192.0.2.7", "127.0.0.1"),
        (BY_NAME, "TCP6 2001:db8::7", "::ffff:127.0.0.1"),
    ] {
        let allow = "upstream_allow = \"127.0.0.0/8\"\n";
        let edge = Edge::start_whole(&folder, &format!("{BELIEVING}{rule}{allow}"), |_| ());
        let mut client = edge.connect();
        client.write_all(format!("PROXY {family} {to} 5000 {port}\r\n").as_bytes()).unwrap();
        let hello = Hello::named("app.test").bytes();
        client.write_all(&hello).unwrap();
        support::expect(&mut client, &hello);
    }
}

/// A client that may not reach the inside does not learn by our handshakes what is open there.
#[test]
fn no_certificate_is_asked_for_at_a_destination_inside() {
    let (folder, inside) = (Folder::new(), Upstream::by_hand());
    let rule = "[[rule]]\nsni_verified = true\nevidence = \"certificate\"\naction = \"splice\"\n\
                upstream = \"destination\"\n";
    let edge = Edge::start_whole(&folder, &format!("{BELIEVING}{rule}"), |_| ());
    let mut client = edge.connect();
    let to = inside.address;
    let header = format!("PROXY TCP4 192.0.2.7 {} 5000 {}\r\n", to.ip(), to.port());
    client.write_all(header.as_bytes()).unwrap();
    client.write_all(&Hello::named("app.test").bytes()).unwrap();
    assert_eq!(support::alert_of(&ending(&mut client, SOON).0), Some(49), "access_denied");
    let line = edge.line("the refusal", |line| line["event"] == "end");
    let unknown = "certificate: 127.0.0.1 is an internal address that upstream_allow does not list";
    assert_eq!(line["evidence"]["unknown"][0], unknown, "{line}");
    assert_eq!(inside.accepted(), 0);
}

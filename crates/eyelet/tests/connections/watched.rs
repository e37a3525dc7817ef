//! The first flights of spliced connections are inspected: a server that chooses TLS compression,
//! and second hellos. Both ends are the tests' own.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::support;
use crate::support::client::{Offer, TLS13, alert_in};
use crate::support::edge::splice;
use crate::support::pki::Kind;
use crate::support::{Edge, End, Folder, Hello, Pki, SOON, Upstream, alert_of, ending};

fn server_flight(compression: u8, retry: bool) -> Vec<u8> {
    const RETRY: [u8; 32] = [
        0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8,
        0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8,
        0x33, 0x9c,
    ];
    let random = if retry { RETRY } else { [9; 32] };
    let extensions: &[u8] = if retry { &[0, 6, 0, 43, 0, 2, 3, 4] } else { &[] };
    let body = [&[3, 3][..], &random, &[0, 0xc0, 0x2b, compression], extensions].concat();
    let message = [&[2, 0, 0, u8::try_from(body.len()).unwrap()][..], &body].concat();
    support::records(&message, &[])
}

/// A hello that offers DEFLATE beside null: its list of methods is the last `1, 0` before the
/// extensions.
fn compressing_hello() -> Vec<u8> {
    let mut message = Hello::named("host.test").tls12().message();
    // 4 header, 2 version, 32 random, 1 + 32 session id, 2 + 14 suites, then the methods.
    let at = 4 + 2 + 32 + 33 + 16;
    assert_eq!(message[at..at + 2], [1, 0]);
    message.splice(at..at + 2, [2, 1, 0]);
    let length = u32::try_from(message.len() - 4).unwrap().to_be_bytes();
    message[1..4].copy_from_slice(&length[1..]);
    support::records(&message, &[])
}

#[test]
fn a_server_that_chooses_compression_is_seen_and_stopped() {
    let folder = Folder::new();
    let upstream = Upstream::by_hand();
    let rule = |more: &str| splice(upstream.address, more);
    for (forbid, chosen, told) in
        [(true, 1, "chosen"), (true, 0, "offered"), (false, 1, "chosen"), (false, 0, "offered")]
    {
        for piece in [1, 1000] {
            let more = format!("forbid_tls_compression = {forbid}");
            let edge = Edge::start(&folder, &rule(&more));
            let mut client = edge.connect();
            client.write_all(&compressing_hello()).unwrap();
            let mut server = upstream.take();
            for bytes in server_flight(chosen, false).chunks(piece) {
                server.write_all(bytes).unwrap();
                thread::sleep(Duration::from_micros(200));
            }
            let address = client.local_addr().unwrap();
            if forbid && chosen == 1 {
                assert_eq!(ending(&mut client, SOON), (vec![], End::Rst));
                assert_eq!(ending(&mut server, SOON).1, End::Rst);
            } else {
                server.shutdown(std::net::Shutdown::Write).unwrap();
                let flight = server_flight(chosen, false);
                assert_eq!(ending(&mut client, SOON), (flight, End::Fin));
            }
            drop((client, server));
            let line = edge.line_of(address);
            assert_eq!(line["tls_compression"], told, "{line}");
            let stopped = forbid && chosen == 1;
            assert_eq!(line["outcome"], if stopped { "refused" } else { "spliced" }, "{line}");
            if stopped {
                assert_eq!(line["reason"], "the server chose TLS compression", "{line}");
                assert_eq!(line["bytes_to_client"], 0, "{line}");
            }
        }
    }
}

/// The option has the hello read where no matcher asks for it: what cannot be watched is not
/// passed.
#[test]
fn compression_is_forbidden_where_no_matcher_asks_for_the_hello() {
    let folder = Folder::new();
    let upstream = Upstream::by_hand();
    let splice = |matcher: &str| {
        format!(
            "[[rule]]\n{matcher}action = \"splice\"\nupstream = \"{}\"\n\
             forbid_tls_compression = true\n",
            upstream.address
        )
    };
    let named = "[[rule]]\nsni = \"x.test\"\naction = \"refuse\"\n";
    for rules in [splice(""), splice("client = \"127.0.0.0/8\"\n") + named] {
        let edge = Edge::start(&folder, &rules);
        for chosen in [1, 0] {
            let mut client = edge.connect();
            let address = client.local_addr().unwrap();
            client.write_all(&compressing_hello()).unwrap();
            let mut server = upstream.take();
            let flight = server_flight(chosen, false);
            server.write_all(&flight).unwrap();
            let (got, reason) = match chosen {
                1 => (vec![], "the server chose TLS compression"),
                _ => (flight, "upstream closed"),
            };
            // It may have been reset by now.
            let _ = server.shutdown(std::net::Shutdown::Write);
            assert_eq!(ending(&mut client, SOON).0, got, "{rules}");
            drop((client, server));
            assert_eq!(edge.line_of(address)["reason"], reason, "{rules}");
        }
        let mut other = edge.connect();
        other.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(ending(&mut other, SOON).0.starts_with(b"HTTP/1.1 400 "), "{rules}");
    }
}

/// A request for a second hello does not end the watch of its server: what it chooses comes behind.
#[test]
fn a_server_that_has_asked_for_a_second_hello_is_still_watched() {
    let folder = Folder::new();
    let upstream = Upstream::by_hand();
    let rule = splice(upstream.address, "forbid_tls_compression = true");
    let edge = Edge::start(&folder, &rule);
    let hello = Hello::named("host.test").bytes();
    for (then, reason) in [
        (server_flight(1, false), "the server chose TLS compression"),
        (server_flight(0, true), "the server asks for a third hello"),
    ] {
        let mut client = edge.connect();
        client.write_all(&hello).unwrap();
        let mut server = upstream.take();
        read_exactly(&mut server, &hello);
        let retry = [&server_flight(0, true)[..], &[20, 3, 3, 0, 1, 1]].concat();
        server.write_all(&retry).unwrap();
        read_exactly(&mut client, &retry);
        client.write_all(&hello).unwrap();
        read_exactly(&mut server, &hello);
        server.write_all(&then).unwrap();
        assert_eq!(ending(&mut client, SOON), (vec![], End::Rst));
        assert_eq!(ending(&mut server, SOON).1, End::Rst);
        let line = edge.line_of(client.local_addr().unwrap());
        assert_eq!((&line["outcome"], &line["reason"]), (&"refused".into(), &reason.into()));
    }
    // A server that goes on at once does not end the watch of its client.
    let mut client = edge.connect();
    client.write_all(&hello).unwrap();
    let mut server = upstream.take();
    read_exactly(&mut server, &hello);
    let both = [server_flight(0, true), server_flight(0, false)].concat();
    server.write_all(&both).unwrap();
    read_exactly(&mut client, &both);
    client.write_all(&Hello::named("evil.test").bytes()).unwrap();
    assert_eq!(ending(&mut server, SOON), (vec![], End::Rst));
    let line = edge.line_of(client.local_addr().unwrap());
    assert_eq!(line["reason"], "the second hello is for evil.test", "{line}");
}

#[test]
fn a_second_hello_has_the_name_of_the_first() {
    let folder = Folder::new();
    let upstream = Upstream::by_hand();
    let rule = splice(upstream.address, "");
    let edge = Edge::start(&folder, &rule);
    let ccs = [20, 3, 3, 0, 1, 1];
    let early = [&[23, 3, 3, 0, 32][..], &[7; 32]].concat();
    for (name, early, piece) in [
        ("host.test", &[][..], 10_000),
        ("host.test", &early, 7),
        ("evil.test", &[], 10_000),
        ("evil.test", &early, 1),
    ] {
        let mut client = edge.connect();
        let first = Hello::named("host.test").bytes();
        client.write_all(&[&first[..], early].concat()).unwrap();
        let mut server = upstream.take();
        read_exactly(&mut server, &[&first[..], early].concat());
        let retry = server_flight(0, true);
        server.write_all(&retry).unwrap();
        read_exactly(&mut client, &retry);
        let second = [early, &ccs, &Hello::named(name).bytes()].concat();
        for bytes in second.chunks(piece) {
            client.write_all(bytes).unwrap();
            thread::sleep(Duration::from_micros(100));
        }
        let address = client.local_addr().unwrap();
        if name == "host.test" {
            read_exactly(&mut server, &second);
            server.write_all(&server_flight(0, false)).unwrap();
            read_exactly(&mut client, &server_flight(0, false));
            drop((client, server));
            assert_eq!(edge.line_of(address)["outcome"], "spliced");
        } else {
            assert_eq!(ending(&mut client, SOON).1, End::Rst);
            let (got, end) = ending(&mut server, SOON);
            assert_eq!(end, End::Rst);
            assert!(!contains(&got, b"evil"), "the second hello was passed on");
            let line = edge.line_of(address);
            assert_eq!(line["outcome"], "refused", "{line}");
            assert_eq!(line["reason"], "the second hello is for evil.test", "{line}");
        }
    }
    // In advance, before anybody asked for it: a server would find it waiting.
    let mut client = edge.connect();
    let both = [Hello::named("host.test").bytes(), Hello::named("evil.test").bytes()].concat();
    client.write_all(&both).unwrap();
    let address = client.local_addr().unwrap();
    let (said, _) = ending(&mut client, SOON);
    assert!(matches!(alert_of(&said), Some(47) | None), "{said:?}");
    assert_eq!(edge.line_of(address)["outcome"], "refused");
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn read_exactly(stream: &mut TcpStream, bytes: &[u8]) {
    use std::io::Read;
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == bytes, "{} other bytes than were sent", bytes.len());
}

/// A real client and a real server that asks for a second hello go on as if nobody watched.
#[test]
fn a_real_retry_passes() {
    let pki = Pki::new();
    let leaf = pki.server("origin", &["host.test"], Kind::P256);
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.kx_groups.retain(|group| group.name() == rustls::NamedGroup::secp384r1);
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(TLS13)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.certificate], leaf.key)
        .unwrap();
    let config = Arc::new(config);
    let origin = Upstream::serve(move |stream| {
        let session = rustls::ServerConnection::new(config.clone()).unwrap();
        let mut tls = rustls::StreamOwned::new(session, stream);
        let _ = std::io::Read::read(&mut tls, &mut [0; 16]);
        assert_eq!(
            tls.conn.handshake_kind(),
            Some(rustls::HandshakeKind::FullWithHelloRetryRequest)
        );
        let _ = tls.write_all(b"fine");
        let _ = tls.flush();
    });
    let rule = splice(origin.address, "forbid_tls_compression = true");
    let edge = Edge::start(&pki.folder, &rule);
    let mut tls = Offer::new(&pki).connect(edge.address(), "host.test");
    tls.write_all(b"?").unwrap();
    let mut got = [0; 4];
    std::io::Read::read_exact(&mut tls, &mut got).unwrap();
    assert_eq!(&got, b"fine");
    assert_eq!(alert_in(&std::io::Error::other("none")), None);
}

//! WebSockets, by HTTP/2 (RFC 8441) and by HTTP/1.1: what the edge checks of the upstream's 101,
//! and the end of one direction while the other goes on.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::Request;
use rustix::process::Signal;

use crate::support::pki::Kind;
use crate::support::two::{Two, beside, run};
use crate::support::upstream::{ServerTls, server_config};
use crate::support::web::{Web, answer, head, hear, switched};
use crate::support::{A_WHILE, Edge, Pki, SOON, Upstream, expect, until};

const CHAT: &str = "GET /chat HTTP/1.1\r\nHost: app.test\r\nConnection: Upgrade\r\n\
                    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Asks for a WebSocket. Returns the status, and both directions.
async fn chat(
    two: &mut Two,
    fields: &[(&str, &str)],
) -> (http::response::Parts, RecvStream, SendStream<Bytes>) {
    let mut looks = 0;
    while !two.send.is_extended_connect_protocol_enabled() {
        assert!(looks < 1000, "its SETTINGS do not say so");
        looks += 1;
        tokio::time::sleep(SOON / 1000).await;
    }
    let mut ask = Request::connect("https://app.test/chat");
    for (name, value) in fields {
        ask = ask.header(*name, *value);
    }
    let mut ask = ask.body(()).unwrap();
    ask.extensions_mut().insert(h2::ext::Protocol::from_static("websocket"));
    two.send = two.send.clone().ready().await.unwrap();
    let (response, send) = two.send.send_request(ask, false).unwrap();
    let (parts, receive) = response.await.unwrap().into_parts();
    (parts, receive, send)
}

/// The client has seen no key, and sees no field of the hop: nobody else can check them.
#[test]
fn a_101_is_checked_for_a_client_of_http2() {
    let upgrade = "Upgrade: websocket\r\n";
    let accept = "Sec-WebSocket-Accept:";
    for (from, to, status) in [
        ("", "", 200),
        (upgrade, "UPGRADE: WebSocket\r\n", 200),
        ("Connection: Upgrade", "Connection: keep-alive, upgrade", 200),
        (upgrade, "Upgrade: websocket\r\nContent-Length: 0\r\n", 200),
        (upgrade, "Upgrade: websocket\r\nSec-WebSocket-Protocol: two\r\n", 200),
        (upgrade, "Upgrade: websocket\r\nSec-WebSocket-Extensions: ext; a=1\r\n", 200),
        (upgrade, "", 502),
        (upgrade, "Upgrade: h2c\r\n", 502),
        (upgrade, "Upgrade: websocket, h2c\r\n", 502),
        (upgrade, "Upgrade: websocket\r\nUpgrade: websocket\r\n", 502),
        ("Connection: Upgrade\r\n", "", 502),
        ("Connection: Upgrade", "Connection: close", 502),
        (accept, "X-Accept:", 502),
        (accept, "Sec-WebSocket-Accept: x", 502),
        (accept, "Sec-WebSocket-Accept: x\r\nSec-WebSocket-Accept:", 502),
        (upgrade, "Upgrade: websocket\r\nSec-WebSocket-Protocol: three\r\n", 502),
        (upgrade, "Upgrade: websocket\r\nSec-WebSocket-Protocol: one, two\r\n", 502),
        (upgrade, "Upgrade: websocket\r\nSec-WebSocket-Extensions: ext, other\r\n", 502),
    ] {
        let web = Web::new(Upstream::serve(move |mut stream| {
            let said = switched(&head(&mut stream)).replace(from, to);
            stream.write_all(said.as_bytes()).unwrap();
            let _ = stream.read(&mut [0]);
        }));
        run(async {
            let mut two = web.connect_two().await;
            let fields = [
                ("sec-websocket-protocol", "one, two"),
                ("sec-websocket-extensions", "ext"),
                // That is ours to make.
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ];
            let (parts, ..) = chat(&mut two, &fields).await;
            assert_eq!(parts.status, status, "{to:?} for {from:?}");
            for gone in ["connection", "upgrade", "sec-websocket-accept", "content-length"] {
                let is_gone = !parts.headers.contains_key(gone);
                assert!(is_gone || status != 200, "{gone}: {to:?} for {from:?}");
            }
            assert!(parts.headers.contains_key("date"), "RFC 9110 6.6.1");
        });
    }
}

/// A response without a switch that says which protocol it would take, as a 426 must (RFC 9110
/// section 15.5.22), is the client's.
#[test]
fn a_refusal_that_names_websocket_reaches_a_client_of_http2() {
    for (said, status) in [("426 Upgrade Required", 426), ("403 Forbidden", 403)] {
        let web = Web::new(Upstream::serve(move |mut stream| {
            let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2";
            answer(&mut stream, &format!("HTTP/1.1 {said}\r\n{fields}\r\n\r\nno"));
        }));
        run(async {
            let mut two = web.connect_two().await;
            let (parts, mut receive, _send) = chat(&mut two, &[]).await;
            assert_eq!(parts.status, status);
            assert!(!parts.headers.contains_key("upgrade"), "RFC 9113 8.2.2");
            assert_eq!(rest(&mut receive).await, "no");
        });
    }
}

/// The other end of a WebSocket, by hand.
enum Peer {
    Plain(TcpStream),
    Tls(Box<ServerTls>),
}

impl Peer {
    fn write(&mut self, text: &str) {
        match self {
            Self::Plain(stream) => stream.write_all(text.as_bytes()).unwrap(),
            Self::Tls(tls) => {
                tls.write_all(text.as_bytes()).unwrap();
                tls.flush().unwrap();
            }
        }
    }

    /// Ends its direction.
    fn end(&mut self) {
        match self {
            Self::Plain(stream) => stream.shutdown(Shutdown::Write).unwrap(),
            Self::Tls(tls) => {
                tls.conn.send_close_notify();
                tls.flush().unwrap();
            }
        }
    }

    fn read_rest(&mut self) -> String {
        let mut rest = String::new();
        match self {
            Self::Plain(stream) => stream.read_to_string(&mut rest).unwrap(),
            Self::Tls(tls) => tls.read_to_string(&mut rest).unwrap(),
        };
        rest
    }
}

/// An application that answers a WebSocket's handshake and hands the connection out.
fn application(pki: &Pki, scheme: &str) -> (Upstream, Receiver<Peer>) {
    let (give, take): (Sender<Peer>, _) = channel();
    let give = Mutex::new(give);
    let leaf =
        (scheme == "https").then(|| pki.server("app", &["127.0.0.1", "app.test"], Kind::P256));
    let Some(leaf) = leaf else {
        let app = Upstream::serve(move |mut stream| {
            stream.set_read_timeout(Some(SOON)).unwrap();
            let said = switched(&head(&mut stream));
            stream.write_all(said.as_bytes()).unwrap();
            give.lock().unwrap().send(Peer::Plain(stream)).unwrap();
        });
        return (app, take);
    };
    let config = server_config(leaf, rustls::ALL_VERSIONS);
    let app = Upstream::serve(move |stream| {
        stream.set_read_timeout(Some(SOON)).unwrap();
        let session = rustls::ServerConnection::new(config.clone()).unwrap();
        let mut tls = ServerTls::new(session, stream);
        let said = switched(&head(&mut tls));
        tls.write_all(said.as_bytes()).unwrap();
        tls.flush().unwrap();
        give.lock().unwrap().send(Peer::Tls(Box::new(tls))).unwrap();
    });
    (app, take)
}

fn edge_to(scheme: &str) -> (Web, Receiver<Peer>) {
    let pki = Pki::new();
    let (app, peers) = application(&pki, scheme);
    let ca = if scheme == "https" { "upstream_ca = \"ca.pem\"" } else { "" };
    (Web::at(pki, scheme, app, ca, ""), peers)
}

/// Reads the rest of the stream as text.
async fn rest(receive: &mut RecvStream) -> String {
    let mut heard = Vec::new();
    while let Some(piece) = receive.data().await {
        heard.extend(piece.unwrap());
    }
    String::from_utf8(heard).unwrap()
}

/// The upstream's FIN is END_STREAM for the client, whose own direction goes on, and the other way
/// round.
#[test]
fn each_direction_of_a_websocket_by_http2_ends_by_itself() {
    for scheme in ["http", "https"] {
        let (web, peers) = edge_to(scheme);
        run(async {
            let mut two = web.connect_two().await;
            let (_, mut receive, mut send) = chat(&mut two, &[]).await;
            let mut peer = peers.recv_timeout(SOON).unwrap();
            peer.write("last words");
            peer.end();
            assert_eq!(rest(&mut receive).await, "last words", "{scheme}");
            // Long after the end of the upstream's direction.
            tokio::time::sleep(A_WHILE).await;
            send.send_data("late ".into(), false).unwrap();
            tokio::time::sleep(A_WHILE / 10).await;
            send.send_data("reply".into(), true).unwrap();
            let heard = beside(move || peer.read_rest()).await;
            assert_eq!(heard, "late reply", "{scheme}");

            let (_, mut receive, mut send) = chat(&mut two, &[]).await;
            let mut peer = peers.recv_timeout(SOON).unwrap();
            send.send_data("question".into(), true).unwrap();
            let heard = beside(move || {
                let heard = peer.read_rest();
                peer.write("answer");
                peer.end();
                heard
            });
            assert_eq!(heard.await, "question", "{scheme}");
            assert_eq!(rest(&mut receive).await, "answer", "{scheme}");
        });
        until("both lines", || {
            let is_done = |line: &serde_json::Value| {
                line["http"]["path"] == "/chat" && line["reason"] == "switched protocols"
            };
            (web.edge.count(is_done) == 2).then_some(())
        });
    }
}

/// A client that resets its stream, or leaves, behind the upstream's FIN lets its upstream go.
#[test]
fn a_client_of_http2_that_leaves_behind_the_end_lets_its_upstream_go() {
    let (web, peers) = edge_to("http");
    for resets in [true, false] {
        run(async {
            let mut two = web.connect_two().await;
            let (_, mut receive, mut send) = chat(&mut two, &[]).await;
            let mut peer = peers.recv_timeout(SOON).unwrap();
            peer.end();
            assert_eq!(rest(&mut receive).await, "");
            match resets {
                true => send.send_reset(h2::Reason::CANCEL),
                false => two.driven.abort(),
            }
            let heard = beside(move || peer.read_rest()).await;
            assert_eq!(heard, "");
        });
    }
}

/// Its client has sent a part of a frame, and nothing more comes: no close frame can end it. It
/// rests, so that the last part of the drain ends it.
#[test]
fn a_drain_ends_a_websocket_whose_upstream_has_ended() {
    // The beginning of a masked text of five bytes (RFC 6455 section 5.2).
    const PART: &str = "\u{1}\u{5}";
    let whole = "[limits]\ndrain_timeout = \"8s\"\n[http]\nbody_timeout = \"400ms\"\n";
    let pki = Pki::new();
    let (app, peers) = application(&pki, "http");
    let mut web = Web::at(pki, "http", app, "", whole);
    run(async {
        let mut two = web.connect_two().await;
        let (_, mut receive, mut send) = chat(&mut two, &[]).await;
        let mut peer = peers.recv_timeout(SOON).unwrap();
        peer.end();
        assert_eq!(rest(&mut receive).await, "");
        send.send_data(PART.into(), false).unwrap();
        // Longer than `body_timeout`: a client may pause where nothing ends.
        tokio::time::sleep(6 * A_WHILE).await;
        web.edge.signal(Signal::TERM);
        assert_eq!(beside(move || peer.read_rest()).await, PART);
    });
    assert!(web.edge.wait_exit().success());
    let line = web.request_line("/chat");
    assert_eq!(line["reason"], "body_timeout", "{line}");
}

/// By HTTP/1.1 likewise, as a pair of the connection table, or as a task if the upstream has TLS.
#[test]
fn each_direction_of_a_websocket_by_http1_ends_by_itself() {
    for scheme in ["http", "https"] {
        let (web, peers) = edge_to(scheme);
        let chat = || {
            let mut client = web.connect();
            client.write_all(CHAT.as_bytes()).unwrap();
            assert_eq!(hear(&mut client, "GET").status, 101);
            (client, peers.recv_timeout(SOON).unwrap())
        };
        let (mut client, mut peer) = chat();
        peer.write("last words");
        peer.end();
        let mut heard = String::new();
        client.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "last words", "{scheme}");
        client.write_all(b"late reply").unwrap();
        client.conn.send_close_notify();
        client.flush().unwrap();
        assert_eq!(peer.read_rest(), "late reply", "{scheme}");

        let (mut client, mut peer) = chat();
        client.write_all(b"question").unwrap();
        client.conn.send_close_notify();
        client.flush().unwrap();
        assert_eq!(peer.read_rest(), "question", "{scheme}");
        peer.write("answer");
        peer.end();
        let mut heard = String::new();
        client.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "answer", "{scheme}");
    }
}

/// A client without TLS, for which Eyelet begins TLS: a FIN is all that it can get.
#[test]
fn each_direction_of_a_websocket_without_tls_ends_by_itself() {
    let pki = Pki::new();
    let (app, peers) = application(&pki, "https");
    let config = format!(
        "workers = 1\n[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n\
         [[rule]]\naction = \"originate\"\nupstream = \"https://{}\"\n\
         upstream_name = \"app.test\"\nupstream_ca = \"ca.pem\"\n",
        app.address
    );
    let edge = Edge::start_whole(&pki.folder, &config, |_| ());
    let ask = CHAT.replace("app.test", &format!("127.0.0.1:{}", edge.port()));
    let chat = || {
        let mut client = edge.connect();
        client.write_all(ask.as_bytes()).unwrap();
        assert_eq!(hear(&mut client, "GET").status, 101);
        (client, peers.recv_timeout(SOON).unwrap())
    };
    let (mut client, mut peer) = chat();
    peer.write("last words");
    peer.end();
    expect(&mut client, b"last words");
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    client.write_all(b"late reply").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(peer.read_rest(), "late reply");

    let (mut client, mut peer) = chat();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(peer.read_rest(), "question");
    peer.write("answer");
    peer.end();
    expect(&mut client, b"answer");
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

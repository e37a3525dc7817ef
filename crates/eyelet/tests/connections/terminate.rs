//! Terminated connections: when the upstream is dialled, how each side ends, what is negotiated,
//! what the upstream is sent. The clients are rustls and raw sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::client::{Offer, TLS12, TLS13, Versions, alert_in, echo, handshake};
use crate::support::{
    A_WHILE, Edge, End, Pki, SOON, Tls, Upstream, ending, need, noise, output, until,
};

/// An edge that terminates app.test in front of an upstream that the test plays.
struct Front {
    edge: Edge,
    upstream: Upstream,
    pki: Pki,
}

impl Front {
    fn new(scheme: &str, more: &str) -> Self {
        Self::before(Upstream::by_hand(), scheme, more)
    }

    fn echo(more: &str) -> Self {
        Self::before(Upstream::echo(), "tcp", more)
    }

    fn before(upstream: Upstream, scheme: &str, more: &str) -> Self {
        let pki = Pki::new();
        let rule = pki.terminate(&format!("{scheme}://{}", upstream.address), more);
        let edge = Edge::start(&pki.folder, &rule);
        Self { edge, upstream, pki }
    }

    fn offer(&self) -> Offer<'_> {
        Offer::new(&self.pki)
    }

    fn connect(&self) -> Tls {
        self.offer().connect(self.edge.address(), "app.test")
    }

    fn connected(&self) -> (Tls, TcpStream) {
        let client = self.connect();
        (client, self.upstream.take())
    }
}

/// Each version that is spoken.
const VERSIONS: [Versions; 2] = [TLS13, TLS12];

fn read_exact(stream: &mut impl Read, text: &[u8]) {
    let mut got = vec![0; text.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == text, "other bytes");
}

/// Everything up to a close_notify; anything else is an error.
fn read_all(stream: &mut Tls) -> Vec<u8> {
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    got
}

#[test]
fn a_server_may_speak_first() {
    let front = Front::new("tcp", "");
    for versions in VERSIONS {
        let offer = Offer { versions, ..front.offer() };
        let mut client = offer.connect(front.edge.address(), "app.test");
        let mut upstream = front.upstream.take();
        upstream.write_all(b"220 hello\r\n").unwrap();
        read_exact(&mut client, b"220 hello\r\n");
        client.write_all(b"EHLO\r\n").unwrap();
        read_exact(&mut upstream, b"EHLO\r\n");
    }
}

#[test]
fn a_unix_upstream_may_speak_first_too() {
    let pki = Pki::new();
    let path = pki.text("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("unix:{path}"), ""));
    let accepting = thread::spawn(move || listener.accept().unwrap().0);
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    let mut upstream: UnixStream = accepting.join().unwrap();
    upstream.write_all(b"220 hello\r\n").unwrap();
    read_exact(&mut client, b"220 hello\r\n");
    client.write_all(b"EHLO\r\n").unwrap();
    read_exact(&mut upstream, b"EHLO\r\n");
    drop(upstream);
    assert_eq!(read_all(&mut client), b"");
    drop(client);
    let line = edge.only_line();
    assert!(line["upstream"].as_str().unwrap().contains("app.sock"), "{line}");
}

#[test]
fn an_http_upstream_is_dialled_at_the_first_byte() {
    let front = Front::new("http", "");
    for versions in VERSIONS {
        let before = front.upstream.accepted();
        let offer = Offer { versions, ..front.offer() };
        let mut client = offer.connect(front.edge.address(), "app.test");
        thread::sleep(A_WHILE);
        assert_eq!(front.upstream.accepted(), before, "dialled before the first byte");
        client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        read_exact(&mut front.upstream.take(), b"GET / HTTP/1.1\r\nhost: app.test\r\n");
    }
    // A client that leaves without a byte is never the upstream's affair.
    let before = front.upstream.accepted();
    let mut client = front.connect();
    let address = client.sock.local_addr().unwrap();
    client.conn.send_close_notify();
    client.flush().unwrap();
    assert_eq!(read_all(&mut client), b"");
    drop(client);
    let line = front.edge.line_of(address);
    assert_eq!(line["bytes_to_upstream"], 0, "{line}");
    assert_eq!(front.upstream.accepted(), before);
}

/// Bytes that are written before the handshake ends go out in the flight of the client's Finished.
#[test]
fn the_first_bytes_may_come_with_the_finished() {
    let request = b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n";
    let answer = b"HTTP/1.1 200 OK\r\n";
    for (scheme, upstream, said, heard) in [
        ("tcp", Upstream::echo(), &b"at once"[..], &b"at once"[..]),
        ("http", Upstream::http(), request, answer),
    ] {
        let front = Front::before(upstream, scheme, "");
        for versions in VERSIONS {
            let config = Offer { versions, ..front.offer() }.config();
            let name = "app.test".try_into().unwrap();
            let session = rustls::ClientConnection::new(config, name).unwrap();
            let mut client = Tls::new(session, front.edge.connect());
            client.conn.writer().write_all(said).unwrap();
            client.flush().unwrap();
            read_exact(&mut client, heard);
        }
    }
}

#[test]
fn a_hello_in_1_byte_records_is_terminated_too() {
    let front = Front::echo("");
    let name = "app.test".try_into().unwrap();
    let mut session = rustls::ClientConnection::new(front.offer().config(), name).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    let message = &hello[5..];
    let each: Vec<usize> = (1..message.len()).collect();
    let mut socket = front.edge.connect();
    for piece in support::records(message, &each).chunks(7) {
        socket.write_all(piece).unwrap();
    }
    let mut client = Tls::new(session, socket);
    echo(&mut client, b"cut to pieces");
}

#[test]
fn close_notify_ends_one_direction_at_a_time() {
    let front = Front::new("tcp", "");
    for versions in VERSIONS {
        let offer = Offer { versions, ..front.offer() };
        let tls13 = versions == TLS13;

        let mut client = offer.connect(front.edge.address(), "app.test");
        let mut upstream = front.upstream.take();
        client.write_all(b"last words").unwrap();
        client.conn.send_close_notify();
        client.flush().unwrap();
        assert_eq!(ending(&mut upstream, SOON), (b"last words".to_vec(), End::Fin));
        // RFC 8446 section 6.1: the other direction stays open in TLS 1.3. RFC 5246 section 7.2.1
        // wants an answer at once in TLS 1.2, whose clients read no further.
        if tls13 {
            upstream.write_all(b"an answer all the same").unwrap();
        }
        drop(upstream);
        let answer = read_all(&mut client);
        assert!(!tls13 || answer == b"an answer all the same", "{answer:?}");
        assert_eq!(ending(&mut client.sock, SOON), (vec![], End::Fin));

        let mut client = offer.connect(front.edge.address(), "app.test");
        let mut upstream = front.upstream.take();
        upstream.write_all(b"goodbye").unwrap();
        upstream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut client), b"goodbye");
        if tls13 {
            client.write_all(b"wait for me").unwrap();
            client.conn.send_close_notify();
            client.flush().unwrap();
            assert_eq!(ending(&mut upstream, SOON), (b"wait for me".to_vec(), End::Fin));
        }
    }
}

/// RFC 8446 section 6.1: what comes behind a close_notify is ignored. Unread it would make the
/// kernel answer our close with a reset, which throws away what the client has not read yet.
#[test]
fn bytes_behind_a_close_notify_cut_no_answer() {
    // The edge reads and drops such bytes for two seconds: a test that this machine has held up for
    // longer is begun again.
    until("no pause", || {
        let front = Front::new("tcp", "");
        let (mut client, mut upstream) = front.connected();
        client.conn.send_close_notify();
        client.flush().unwrap();
        assert_eq!(ending(&mut upstream, SOON), (vec![], End::Fin));
        client.sock.write_all(&[23; 1000]).unwrap();
        let sent = noise(256 << 10, 5);
        let answered = Instant::now();
        upstream.write_all(&sent).unwrap();
        drop(upstream);
        front.edge.only_line();
        let is_sent = client.sock.write_all(&[23; 1000]);
        thread::sleep(A_WHILE);
        if answered.elapsed() > Duration::from_secs(1) {
            return None;
        }
        is_sent.unwrap();
        assert!(read_all(&mut client) == sent, "the answer was cut");
        Some(())
    });
}

#[test]
fn truncation_is_seen_and_told() {
    let front = Front::new("tcp", "");
    for versions in VERSIONS {
        let offer = Offer { versions, ..front.offer() };
        let mut client = offer.connect(front.edge.address(), "app.test");
        let mut upstream = front.upstream.take();
        client.write_all(b"cut").unwrap();
        read_exact(&mut upstream, b"cut");
        let address = client.sock.local_addr().unwrap();
        client.sock.shutdown(Shutdown::Write).unwrap();
        assert_ne!(ending(&mut upstream, SOON).1, End::Open);
        drop(upstream);
        let line = front.edge.line_of(address);
        assert!(line["reason"].as_str().unwrap().contains("without close_notify"), "{line}");
    }
}

#[test]
fn a_reset_is_passed_on_as_a_reset() {
    let front = Front::new("tcp", "");
    let (client, mut upstream) = front.connected();
    support::reset(client.sock);
    assert_eq!(ending(&mut upstream, SOON).1, End::Rst);
    let (mut client, mut upstream) = front.connected();
    let address = client.sock.local_addr().unwrap();
    // A reset that comes while it is being dialled is an upstream that refuses.
    upstream.write_all(b"x").unwrap();
    read_exact(&mut client, b"x");
    support::reset(upstream);
    let (_, end) = ending(&mut client.sock, SOON);
    assert_eq!(end, End::Rst);
    assert!(front.edge.line_of(address)["reason"].as_str().unwrap().contains("reset"));
}

#[test]
fn an_upstream_that_refuses_is_told() {
    let pki = Pki::new();
    let (_socket, address) = support::upstream::nobody();
    let rule = pki.terminate(&format!("tcp://{address}"), "");
    let edge = Edge::start(&pki.folder, &rule);
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    let error = client.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(alert_in(&error), Some(80), "{error}");
    let line = edge.only_line();
    assert_eq!(line["outcome"], "failed", "{line}");
    assert!(line["reason"].as_str().unwrap().contains("refused"), "{line}");
}

#[test]
fn protocols_are_negotiated() {
    type Chosen = Result<Option<&'static str>, u8>;
    let table: &[(&str, &str, &[&str], Chosen)] = &[
        ("tcp", "", &["h2"], Ok(None)),
        ("tcp", "", &[], Ok(None)),
        ("tcp", "alpn_select = [\"h2\", \"http/1.1\"]", &["http/1.1", "h2"], Ok(Some("h2"))),
        ("tcp", "alpn_select = \"xmpp-client\"", &["xmpp-client"], Ok(Some("xmpp-client"))),
        ("tcp", "alpn_select = \"xmpp-client\"", &["h2"], Err(120)),
        ("tcp", "alpn_select = \"xmpp-client\"", &[], Ok(None)),
        ("http", "", &["http/1.1", "h2"], Ok(Some("h2"))),
        ("http", "", &["http/1.1"], Ok(Some("http/1.1"))),
        ("http", "", &["http/1.0"], Err(120)),
        ("http", "", &[], Ok(None)),
    ];
    for (scheme, more, alpn, chosen) in table {
        let front = Front::before(Upstream::echo(), scheme, more);
        let offer = Offer { alpn, ..front.offer() };
        match offer.try_connect(front.edge.address(), "app.test") {
            Ok(mut client) => {
                if *scheme == "tcp" {
                    echo(&mut client, b"hello");
                }
                let got = client.conn.alpn_protocol().map(|p| String::from_utf8_lossy(p));
                assert_eq!(Ok(got.as_deref()), *chosen, "{scheme} {more} {alpn:?}");
            }
            Err(e) => assert_eq!(Err(alert_in(&e).unwrap()), *chosen, "{scheme} {more} {alpn:?}"),
        }
    }
}

#[test]
fn tls_1_2_may_be_too_old() {
    let front = Front::echo("tls_version_min = \"1.3\"");
    let offer = Offer { versions: TLS12, ..front.offer() };
    let error = offer.try_connect(front.edge.address(), "app.test").unwrap_err();
    assert_eq!(alert_in(&error), Some(70), "{error}");
    let line = front.edge.only_line();
    assert!(line["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{line}");
    echo(&mut front.connect(), b"TLS 1.3 is not");
}

#[test]
fn post_quantum_key_exchange_is_preferred() {
    let front = Front::echo("");
    let client = front.connect();
    let group = client.conn.negotiated_key_exchange_group().unwrap().name();
    assert_eq!(group, rustls::NamedGroup::X25519MLKEM768);
}

#[test]
fn clients_show_their_certificates() {
    let front = Front::echo("client_ca = \"ca.pem\"");
    let good = front.pki.client("alice");
    let strangers = Pki::new();
    let stranger = strangers.client("mallory");
    // certificate_required, which TLS 1.2 does not know: there it is handshake_failure. For a
    // stranger's several would do; what must not happen is an echo.
    for (versions, required) in [(TLS13, 116), (TLS12, 40)] {
        for (certificate, alerts) in [
            (Some(&good), &[][..]),
            (None, &[required][..]),
            (Some(&stranger), &[48, 42, 46, 51][..]),
        ] {
            let offer = Offer { versions, certificate, ..front.offer() };
            let spoken = offer.try_connect(front.edge.address(), "app.test").and_then(|mut tls| {
                // In TLS 1.3 the client is done before the edge has seen its certificate.
                tls.write_all(b"it is me")?;
                let mut back = [0; 8];
                tls.read_exact(&mut back).map(|()| back)
            });
            match spoken {
                Ok(back) => assert!(&back == b"it is me" && alerts.is_empty()),
                Err(e) => {
                    let alert = alert_in(&e);
                    assert!(
                        alert.is_some_and(|a| alerts.contains(&a)),
                        "{versions:?} {alerts:?} {e}"
                    );
                }
            }
        }
    }
    assert_eq!(front.upstream.accepted(), 2, "only who showed a good one got through");
}

#[test]
fn much_is_echoed_unharmed() {
    let front = Front::echo("");
    for (versions, bytes) in [(TLS13, 64 << 20), (TLS12, 16 << 20)] {
        let offer = Offer { versions, ..front.offer() };
        let client = offer.connect(front.edge.address(), "app.test");
        let address = client.sock.local_addr().unwrap();
        let sent = noise(bytes, 11);
        both_ways(client, &sent);
        let line = front.edge.line_of(address);
        assert_eq!(line["bytes_to_upstream"], bytes, "{line}");
        assert_eq!(line["bytes_to_client"], bytes, "{line}");
    }
}

/// Writes and reads at once on one thread: what fits is written, what is there is read.
fn both_ways(mut client: Tls, sent: &[u8]) {
    client.sock.set_nonblocking(true).unwrap();
    let (mut written, mut read, mut piece) = (0, 0, vec![0; 64 * 1024]);
    let mut last = Instant::now();
    while read < sent.len() {
        let mut moved = false;
        if written < sent.len() {
            let end = sent.len().min(written + (1 << 16));
            if let Ok(length) = client.write(&sent[written..end]) {
                written += length;
                moved = true;
            }
        }
        // Of the last write, rustls may hold what the socket had no room for.
        while client.conn.wants_write()
            && client.conn.write_tls(&mut client.sock).is_ok_and(|length| length > 0)
        {
            moved = true;
        }
        match read_beside(&mut client, &mut piece) {
            Ok(length @ 1..) => {
                assert!(piece[..length] == sent[read..read + length], "differs after {read}");
                read += length;
                moved = true;
            }
            Ok(0) => panic!("ended after {read} of {} bytes", sent.len()),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(e) => panic!("{e} after {read} of {} bytes", sent.len()),
        }
        if moved {
            last = Instant::now();
        } else {
            assert!(last.elapsed() < SOON, "stuck: {written} written, {read} read");
            thread::yield_now();
        }
    }
    client.sock.set_nonblocking(false).unwrap();
    client.conn.send_close_notify();
    client.flush().unwrap();
    assert_eq!(read_all(&mut client), b"");
}

/// Reads what is there. `Stream::read` first writes what waits, and fails where that blocks: a
/// client and an edge whose buffers are all full would wait for each other.
fn read_beside(client: &mut Tls, piece: &mut [u8]) -> std::io::Result<usize> {
    match client.conn.reader().read(piece) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
        read => return read,
    }
    client.conn.read_tls(&mut client.sock)?;
    client.conn.process_new_packets().map_err(std::io::Error::other)?;
    client.conn.reader().read(piece)
}

/// Each direction has its own pace: a client that writes all before it reads anything, while the
/// upstream's answer fills every buffer on the way back, must get it all written.
#[test]
fn a_client_may_write_before_it_reads() {
    const MUCH: usize = 24 << 20;
    let front = Front::new("tcp", "");
    let (mut client, upstream) = front.connected();
    let mut answers = upstream.try_clone().unwrap();
    let answering = thread::spawn(move || answers.write_all(&noise(MUCH, 1)));
    let counting = thread::spawn(move || {
        let mut taken = vec![0; 64 << 10];
        let mut upstream = upstream;
        let mut all = 0;
        while all < MUCH {
            all += upstream.read(&mut taken).unwrap();
        }
    });
    // rustls' own stream would read while it writes; this one only writes.
    let mut sent = 0;
    let text = noise(64 << 10, 2);
    while sent < MUCH {
        sent += client.conn.writer().write(&text).unwrap();
        while client.conn.wants_write() {
            client.conn.write_tls(&mut client.sock).unwrap();
        }
    }
    counting.join().unwrap();
    let mut read = vec![0; MUCH];
    client.read_exact(&mut read).unwrap();
    assert!(read == noise(MUCH, 1));
    answering.join().unwrap().unwrap();
}

#[test]
fn keys_are_updated_again_and_again() {
    let front = Front::echo("");
    let mut client = front.connect();
    for round in 0..50_u32 {
        // rustls asks for the other side's too.
        client.conn.refresh_traffic_keys().unwrap();
        echo(&mut client, &noise(1000 + 700 * round as usize, u64::from(round) + 1));
    }
}

#[test]
fn a_client_that_does_not_read_costs_little_memory() {
    let front = Front::new("tcp", "");
    let (mut client, mut upstream) = front.connected();
    let before = front.edge.rss_bytes();
    let sent = noise(64 << 20, 21);
    thread::scope(|scope| {
        scope.spawn(|| {
            upstream.write_all(&sent).unwrap();
            upstream.shutdown(Shutdown::Write).unwrap();
        });
        thread::sleep(A_WHILE);
        let grown = front.edge.rss_bytes().saturating_sub(before);
        assert!(grown < 4 << 20, "{grown} bytes more for a stalled connection");
        assert!(read_all(&mut client) == sent, "the slow reader got other bytes");
    });
}

#[test]
fn an_upstream_that_does_not_read_costs_little_memory() {
    let front = Front::new("tcp", "");
    let (mut client, mut upstream) = front.connected();
    let before = front.edge.rss_bytes();
    let sent = noise(48 << 20, 22);
    thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&sent).unwrap();
            client.conn.send_close_notify();
            client.flush().unwrap();
        });
        thread::sleep(A_WHILE);
        let grown = front.edge.rss_bytes().saturating_sub(before);
        assert!(grown < 4 << 20, "{grown} bytes more for a stalled connection");
        assert!(ending(&mut upstream, SOON) == (sent.clone(), End::Fin));
    });
}

#[test]
fn an_idle_client_is_told_goodbye() {
    let front = Front::new("tcp", "[limits]\nidle_timeout = \"500ms\"");
    let (mut client, mut upstream) = front.connected();
    assert_eq!(read_all(&mut client), b"");
    assert!(ending(&mut upstream, SOON).1 != End::Open);
    let line = front.edge.only_line();
    assert!(line["reason"].as_str().unwrap().contains("idle"), "{line}");
}

#[test]
fn a_handshake_must_end_in_time() {
    let front = Front::new("tcp", "[limits]\nhandshake_timeout = \"300ms\"");
    let name = "app.test".try_into().unwrap();
    let mut session = rustls::ClientConnection::new(front.offer().config(), name).unwrap();
    let mut socket = front.edge.connect();
    session.write_tls(&mut socket).unwrap();
    let (_, end) = ending(&mut socket, SOON);
    assert_ne!(end, End::Open);
    let line = front.edge.only_line();
    assert_eq!(line["outcome"], "failed", "{line}");
    assert!(line["reason"].as_str().unwrap().contains("handshake"), "{line}");
    assert_eq!(front.upstream.accepted(), 0);
}

#[test]
fn garbage_after_the_hello_is_an_alert_and_a_line() {
    let front = Front::new("tcp", "");
    let name = "app.test".try_into().unwrap();
    let mut session = rustls::ClientConnection::new(front.offer().config(), name).unwrap();
    let mut socket = front.edge.connect();
    session.write_tls(&mut socket).unwrap();
    socket.write_all(&noise(4000, 31)).unwrap();
    let (_, end) = ending(&mut socket, SOON);
    assert_eq!(end, End::Fin);
    assert_eq!(front.edge.only_line()["outcome"], "failed");
}

#[test]
fn garbage_after_the_handshake_is_an_alert_and_a_line() {
    for record in [&[0x17, 3, 3, 0, 32][..], &[0x16, 3, 3, 0, 32], &[0x99, 9, 9, 9, 9]] {
        let front = Front::new("tcp", "");
        for versions in VERSIONS {
            let offer = Offer { versions, ..front.offer() };
            let mut client = offer.connect(front.edge.address(), "app.test");
            let mut upstream = front.upstream.take();
            let address = client.sock.local_addr().unwrap();
            client.sock.write_all(record).unwrap();
            client.sock.write_all(&noise(64, 3)).unwrap();
            let error = client.read_to_end(&mut Vec::new()).unwrap_err();
            assert!(alert_in(&error).is_some(), "{record:?}: {error}");
            let (rest, end) = ending(&mut upstream, SOON);
            assert!(rest.is_empty() && end != End::Open, "{record:?}: {rest:?} {end:?}");
            let line = front.edge.line_of(address);
            assert!(!line["reason"].as_str().unwrap().is_empty(), "{line}");
        }
    }
}

#[test]
fn a_second_connection_resumes() {
    let front = Front::echo("");
    for versions in VERSIONS {
        let config = Offer { versions, ..front.offer() }.config();
        for expected in [rustls::HandshakeKind::Full, rustls::HandshakeKind::Resumed] {
            let socket = front.edge.connect();
            let mut client = handshake(config.clone(), socket, "app.test").unwrap();
            // Tickets of TLS 1.3 are read with the first bytes.
            echo(&mut client, b"hello");
            assert_eq!(client.conn.handshake_kind(), Some(expected));
        }
    }
    until("four lines", || (front.edge.lines().len() == 4).then_some(()));
}

/// Files as other programs write them: a byte order mark, line ends of Windows, and a certificate
/// with OpenSSL's trust settings.
#[test]
fn files_that_other_programs_have_written() {
    const MARK: &str = "\u{feff}";
    if !need("openssl") {
        return;
    }
    let (pki, upstream) = (Pki::new(), Upstream::echo());
    let leaf = pki.client("client");
    let trust = ["x509", "-in", &pki.text("ca.pem"), "-trustout", "-addtrust", "clientAuth"];
    let said = output(Command::new("openssl").args(trust));
    assert!(said.text.contains("-----BEGIN TRUSTED CERTIFICATE-----"), "{}", said.text);
    pki.folder.write("trusted.pem", said.text);
    for name in ["edge.pem", "edge.key", "trusted.pem"] {
        let text = std::fs::read_to_string(pki.file(name)).unwrap();
        pki.folder.write(name, format!("{MARK}{}", text.trim_end().replace('\n', "\r\n")));
    }
    pki.folder.write("names.txt", format!("{MARK}app.test\r\nother.test"));
    let rule = pki.terminate(&format!("tcp://{}", upstream.address), "client_ca = \"trusted.pem\"");
    let rule = rule.replace("sni = \"app.test\"", "sni = { file = \"names.txt\" }");
    let config = format!("{MARK}[[listener]]\naddress = \"127.0.0.1:0\"\n{rule}");
    let edge = Edge::start_whole(&pki.folder, &config.replace('\n', "\r\n"), |_| {});
    let offer = Offer { certificate: Some(&leaf), ..Offer::new(&pki) };
    echo(&mut offer.connect(edge.address(), "app.test"), b"behind a mark");
}

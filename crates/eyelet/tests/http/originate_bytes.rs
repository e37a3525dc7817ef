//! `tls://` upstreams of plain listeners: any protocol, whoever speaks first, ends on either side,
//! and real clients that have no TLS.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use rustls::HandshakeKind;
use socket2::{Domain, Socket, Type};

use crate::originate::upgrade;
use crate::support::client::{End, ending};
use crate::support::edge;
use crate::support::pki::Kind;
use crate::support::{
    Edge, Pki, SOON, Talk, Upstream, expect, need, noise, output, settled, until, upstream,
};

/// The time that one of several tries may take.
const A_TRY: Duration = Duration::from_secs(5);
/// Clients that read nothing, many times what the least budget has room for.
const UNREAD_MAX: usize = 3_000;
/// Between eight of them. Who does not read is given up three seconds after memory is short.
const PAUSE: Duration = Duration::from_millis(50);

fn config(address: &str, more: &str) -> String {
    format!(
        "workers = 1\n[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n\
         [[rule]]\nname = \"out\"\naction = \"originate\"\nupstream = \"tls://{address}\"\n\
         upstream_name = \"app.test\"\nupstream_ca = \"ca.pem\"\n{more}"
    )
}

fn start(pki: &Pki, address: &str, more: &str) -> Edge {
    Edge::start_whole(&pki.folder, &config(address, more), |_| ())
}

fn app(pki: &Pki) -> Upstream {
    Upstream::tls_echo(pki.server("app", &["app.test"], Kind::P256))
}

/// State and kind of each connection.
fn states(pki: &Pki) -> Vec<String> {
    let mut curl = Command::new("curl");
    let socket = pki.text("admin.sock");
    curl.args(["-sS", "--unix-socket", &socket, "http://localhost/connections"]);
    let listed: Vec<serde_json::Value> =
        serde_json::from_str(&output(&mut curl).text).unwrap_or_default();
    let text = |member: &serde_json::Value| member.as_str().unwrap_or_default().to_owned();
    listed.iter().map(|one| text(&one["state"]) + " " + &text(&one["kind"])).collect()
}

/// Bytes come back, in small pieces, in large ones, and after a rest.
#[test]
fn bytes_of_any_protocol_pass_both_ways() {
    let pki = Pki::new();
    let app = app(&pki);
    let edge = start(&pki, &app.address.to_string(), "");
    let mut client = edge.connect();
    for piece in [&b"x"[..], b"a line\n", &noise(300_000, 3)] {
        let mut writer = client.try_clone().unwrap();
        let sent = piece.to_vec();
        let writing = std::thread::spawn(move || writer.write_all(&sent).unwrap());
        expect(&mut client, piece);
        writing.join().unwrap();
    }
    let address = client.local_addr().unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(ending(&mut client, SOON), (Vec::new(), End::Fin), "both ends are passed on");
    let line = edge.line_of(address);
    assert_eq!((&line["outcome"], &line["rule"]), (&"originated".into(), &"out".into()), "{line}");
    assert_eq!(line["reason"], "client closed", "{line}");
    assert_eq!(
        (&line["bytes_to_upstream"], &line["bytes_to_client"]),
        (&300_008.into(), &300_008.into())
    );
    assert_eq!(line["upstream"], app.address.to_string(), "{line}");
}

/// The client says nothing until it is greeted, and the server closes first.
#[test]
fn a_server_may_speak_first() {
    let pki = Pki::new();
    let leaf = pki.server("app", &["app.test"], Kind::P256);
    let app = Upstream::tls(leaf, |tls| {
        tls.write_all(b"220 ready\r\n").unwrap();
        tls.flush().unwrap();
        let mut said = [0; 6];
        tls.read_exact(&mut said).unwrap();
        tls.write_all(b"221 bye\r\n").unwrap();
    });
    let edge = start(&pki, &app.address.to_string(), "");
    let mut client = edge.connect();
    expect(&mut client, b"220 ready\r\n");
    client.write_all(b"QUIT\r\n").unwrap();
    assert_eq!(ending(&mut client, SOON), (b"221 bye\r\n".to_vec(), End::Fin));
    drop(client);
    let line = edge.only_line();
    assert_eq!(
        (&line["outcome"], &line["reason"]),
        (&"originated".into(), &"upstream closed".into()),
        "{line}"
    );
}

/// Nobody else is spoken to, and the client gets no byte.
#[test]
fn an_upstream_that_is_somebody_else_is_not_spoken_to() {
    let pki = Pki::new();
    let stranger = Upstream::tls_echo(Pki::new().server("app", &["app.test"], Kind::P256));
    let other = Upstream::tls_echo(pki.server("other", &["b.test"], Kind::P256));
    for app in [stranger, other] {
        let edge = start(&pki, &app.address.to_string(), "");
        let mut client = edge.connect();
        assert_eq!(ending(&mut client, SOON).0, b"");
        let line = edge.only_line();
        assert_eq!(line["outcome"], "failed", "{line}");
        assert!(line["reason"].as_str().unwrap().contains("certificate"), "{line}");
    }
}

/// Anybody on the way can end a TCP connection. Only close_notify says that this was all.
#[test]
fn a_cut_stream_is_not_passed_on_as_a_whole_one() {
    let pki = Pki::new();
    let leaf = pki.server("app", &["app.test"], Kind::P256);
    let app = Upstream::tls(leaf, |tls| {
        tls.write_all(b"a part").unwrap();
        tls.flush().unwrap();
        let mut said = [0; 1];
        let _ = tls.read_exact(&mut said);
        let _ = tls.sock.shutdown(Shutdown::Both);
    });
    let edge = start(&pki, &app.address.to_string(), "");
    let mut client = edge.connect();
    expect(&mut client, b"a part");
    client.write_all(b"x").unwrap();
    assert_eq!(ending(&mut client, SOON).1, End::Rst);
    let line = edge.only_line();
    assert!(line["reason"].as_str().unwrap().contains("close_notify"), "{line}");
}

/// By its first bytes, whichever length they would give a record.
#[test]
fn an_upstream_without_tls_is_named_so() {
    let pki = Pki::new();
    for said in [&b"SSH-2.0-x\r\n"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220\0\0 mail\r\n"] {
        let plain = Upstream::serve(move |mut stream| {
            _ = stream.write_all(said);
            _ = stream.read(&mut [0; 4096]);
        });
        let edge = start(&pki, &plain.address.to_string(), "");
        let _client = edge.connect();
        let line = edge.only_line();
        assert_eq!(line["reason"], "upstream: TLS: the server speaks no TLS", "{line}");
    }
}

/// The client sends without a pause, and the upstream never says a word: not even a ticket ends the
/// time that rustls stays.
#[test]
fn a_client_that_only_sends_is_parked() {
    if !need("curl") {
        return;
    }
    let pki = Pki::new();
    let leaf = pki.server("app", &["app.test"], Kind::P256);
    let app = Upstream::tls_with_tickets(leaf, 0, |tls| {
        let mut said = [0; 4096];
        while tls.read(&mut said).is_ok_and(|read| read > 0) {}
    });
    let edge = start(&pki, &app.address.to_string(), "[admin]\naddress = \"unix:admin.sock\"\n");
    let mut client = edge.connect();
    until("it to be parked while it sends", || {
        client.write_all(b"a measured value\n").unwrap();
        states(&pki).contains(&"parked originated".to_owned()).then_some(())
    });
}

/// An upstream that has said all before the client has: its end is passed on, and the client's
/// upload goes on.
#[test]
fn an_upstream_that_ends_early_still_gets_the_upload() {
    let pki = Pki::new();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = heard.clone();
    let leaf = pki.server("app", &["app.test"], Kind::P256);
    let app = Upstream::tls_with_tickets(leaf, 0, move |tls| {
        tls.flush().unwrap();
        tls.conn.send_close_notify();
        tls.flush().unwrap();
        tls.sock.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        tls.read_to_end(&mut all).unwrap();
        *hears.lock().unwrap() = all;
    });
    let edge = start(&pki, &app.address.to_string(), "");
    let mut client = edge.connect();
    assert_eq!(ending(&mut client, SOON), (Vec::new(), End::Fin));
    let upload = noise(300_000, 5);
    client.write_all(&upload).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let line = edge.only_line();
    assert_eq!(line["bytes_to_upstream"], 300_000, "{line}");
    until("the upload to be whole", || (*heard.lock().unwrap() == upload).then_some(()));
}

/// After the handshake nothing that fails may look like the end of a whole stream.
#[test]
fn an_upstream_that_fails_after_its_handshake_is_a_reset() {
    let pki = Pki::new();
    for tickets in [0, 1] {
        let leaf = pki.server("app", &["app.test"], Kind::P256);
        let app = Upstream::tls_with_tickets(leaf, tickets, |tls| {
            tls.flush().unwrap();
            let mut said = [0; 1];
            tls.read_exact(&mut said).unwrap();
            // A record that nobody has sealed.
            let forged = [&[23, 3, 3, 0, 64][..], &[7; 64]].concat();
            tls.sock.write_all(&forged).unwrap();
            let _ = tls.sock.read(&mut said);
        });
        let edge = start(&pki, &app.address.to_string(), "");
        let mut client = edge.connect();
        client.write_all(b"x").unwrap();
        assert_eq!(ending(&mut client, SOON), (Vec::new(), End::Rst), "{tickets} tickets");
        assert!(edge.only_line()["reason"].as_str().unwrap().contains("TLS"), "{}", edge.log());
    }
}

/// A key update of the upstream asks for none of ours.
#[test]
fn the_upstream_may_update_its_keys() {
    let pki = Pki::new();
    let app = Upstream::tls(pki.server("app", &["app.test"], Kind::P256), |tls| {
        let mut said = [0; 1];
        while tls.read_exact(&mut said).is_ok() {
            tls.conn.refresh_traffic_keys().unwrap();
            tls.write_all(&said).unwrap();
        }
    });
    let edge = start(&pki, &app.address.to_string(), "");
    let mut client = edge.connect();
    for said in b"several" {
        client.write_all(&[*said]).unwrap();
        expect(&mut client, &[*said]);
    }
}

/// It may do so at once, in place of a ticket or behind it, and the client may be sending.
#[test]
fn the_upstream_may_update_its_keys_at_once() {
    let pki = Pki::new();
    for tickets in [0, 2] {
        let leaf = pki.server("app", &["app.test"], Kind::P256);
        let app = Upstream::tls_with_tickets(leaf, tickets, |tls| {
            while tls.conn.is_handshaking() {
                tls.conn.complete_io(&mut tls.sock).unwrap();
            }
            tls.conn.refresh_traffic_keys().unwrap();
            tls.flush().unwrap();
            let mut said = [0; 1];
            while tls.read_exact(&mut said).is_ok() {
                tls.write_all(&said).unwrap();
                tls.flush().unwrap();
            }
        });
        let edge = start(&pki, &app.address.to_string(), "");
        for _ in 0..4 {
            let mut client = edge.connect();
            client.write_all(b"at once").unwrap();
            expect(&mut client, b"at once");
            for said in b"later" {
                client.write_all(&[*said]).unwrap();
                expect(&mut client, &[*said]);
            }
        }
    }
}

/// A client that reconnects does not cost the server a signature each time.
#[test]
fn sessions_are_resumed() {
    let pki = Pki::new();
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let seen = kinds.clone();
    let leaf = pki.server("app", &["app.test"], Kind::P256);
    let app = Upstream::tls(leaf, move |tls| {
        let mut said = [0; 1];
        while tls.read_exact(&mut said).is_ok() {
            seen.lock().unwrap().push(tls.conn.handshake_kind().unwrap());
            tls.write_all(&said).unwrap();
        }
    });
    let edge = start(&pki, &app.address.to_string(), "");
    for _ in 0..3 {
        let mut client = edge.connect();
        client.write_all(b"x").unwrap();
        expect(&mut client, b"x");
    }
    let kinds = kinds.lock().unwrap();
    assert_eq!(kinds[0], HandshakeKind::Full);
    assert_eq!(kinds[1..], [HandshakeKind::Resumed; 2]);
}

/// A connection at rest has no task: it is listed as parked, and goes on after that.
#[test]
fn a_pair_at_rest_is_parked() {
    if !need("curl") {
        return;
    }
    let pki = Pki::new();
    let app = app(&pki);
    let more = "[admin]\naddress = \"unix:admin.sock\"\n";
    let mut edge = start(&pki, &app.address.to_string(), more);
    let mut clients: Vec<TcpStream> = (0..20).map(|_| edge.connect()).collect();
    let say = |client: &mut TcpStream| {
        client.write_all(b"hello").unwrap();
        expect(client, b"hello");
    };
    // The others are silent, and so is their upstream.
    clients.iter_mut().take(10).for_each(say);
    until("all to be parked", || {
        let parked = states(&pki).iter().filter(|state| *state == "parked originated").count();
        (parked == 20).then_some(())
    });
    clients.iter_mut().for_each(say);
    edge.signal(Signal::TERM);
    for client in &mut clients {
        assert_eq!(ending(client, SOON).0, b"");
    }
    assert!(edge.wait_exit().success());
}

/// Pairs at rest, and one whose client does not read: bytes are in transit at both upgrades. The
/// upstream changes its keys before and after them.
#[test]
fn a_pair_moves_at_an_upgrade() {
    let pki = Pki::new();
    let app = Upstream::tls(pki.server("app", &["app.test"], Kind::P256), |tls| {
        let mut piece = vec![0; 16 << 10];
        // Not before the first bytes: until then rustls has the connection. Not in the middle of
        // much: its rustls would count the answers as a flood.
        let mut is_first = true;
        while let Ok(read @ 1..) = tls.read(&mut piece) {
            if !std::mem::take(&mut is_first) && piece[..read] == *b"a line\n" {
                tls.conn.refresh_traffic_keys().unwrap();
            }
            if tls.write_all(&piece[..read]).and_then(|()| tls.flush()).is_err() {
                return;
            }
        }
    });
    let file = pki.folder.write("edge.toml", config(&app.address.to_string(), ""));
    let command = |what: &str| {
        let mut command = edge::eyelet(&pki.folder);
        command.arg(what).arg(&file);
        command
    };
    let mut edge = Edge::spawn(command("serve"), 1);
    let mut clients: Vec<TcpStream> = (0..5).map(|_| edge.connect()).collect();
    let echo = |client: &mut TcpStream| {
        client.write_all(b"a line\n").unwrap();
        expect(client, b"a line\n");
    };
    let full = edge.connect();
    let (mut writer, mut reader) = (full.try_clone().unwrap(), full);
    echo(&mut reader);
    let sent = noise(32 << 20, 7);
    let sending = sent.clone();
    let writing = std::thread::spawn(move || writer.write_all(&sending).unwrap());
    let mut later = Vec::new();
    for _ in 0..2 {
        clients.iter_mut().for_each(echo);
        later.push(upgrade(&mut command("upgrade")));
        clients.iter_mut().for_each(echo);
    }
    assert!(edge.wait_exit_alone().success(), "the first process has none of them");
    expect(&mut reader, &sent);
    writing.join().unwrap();
    clients.iter_mut().for_each(echo);
    let address = reader.local_addr().unwrap();
    reader.shutdown(Shutdown::Write).unwrap();
    assert_eq!(ending(&mut reader, SOON), (Vec::new(), End::Fin));
    let line = edge.line_of(address);
    assert_eq!((&line["outcome"], &line["rule"]), (&"originated".into(), &"out".into()), "{line}");
    let tls = &line["upstream_tls"];
    // A ticket of another pair may have come before this one's handshake.
    assert!(tls["version"] == "1.3" && tls["resumed"].is_boolean(), "{line}");
    assert_eq!(tls["cipher_suite"].as_str().map(|name| &name[..4]), Some("TLS_"), "{line}");
    let bytes = sent.len() + 7;
    assert_eq!(
        (&line["bytes_to_upstream"], &line["bytes_to_client"]),
        (&bytes.into(), &bytes.into())
    );
}

/// Redis with TLS alone, and a redis-cli that is told nothing of it; by both versions of TLS.
#[test]
fn redis_cli_without_tls_speaks_to_a_redis_with_it() {
    if !need("redis-server") || !need("redis-cli") {
        return;
    }
    for version in ["TLSv1.2", "TLSv1.3"] {
        let pki = Pki::new();
        pki.server("app", &["app.test"], Kind::P256);
        pki.client("client");
        let [at] = upstream::vacant::<1>();
        let mut server = Command::new("redis-server");
        server.current_dir(pki.folder.path());
        server.args(["--port", "0", "--tls-port", &at.port().to_string(), "--save", ""]);
        server.args(["--tls-cert-file", "app.pem", "--tls-key-file", "app.key"]);
        server.args(["--tls-ca-cert-file", "ca.pem", "--tls-auth-clients", "yes"]);
        server.args(["--tls-protocols", version, "--bind", "127.0.0.1"]);
        let server = Talk::start(&mut server);
        until("redis to be ready", || server.said().contains("Ready to accept").then_some(()));
        let shown = "upstream_certificate = \"client.pem\"\nupstream_key = \"client.key\"\n";
        let edge = start(&pki, &at.to_string(), shown);
        let port = edge.port().to_string();
        let cli = |words: &[&str]| {
            let mut cli = Command::new("redis-cli");
            output(cli.args(["-p", &port]).args(words)).text
        };
        assert_eq!(cli(&["ping"]), "PONG\n", "{version}: {}", edge.log());
        let long = "x".repeat(100_000);
        assert_eq!(cli(&["set", "long", &long]), "OK\n", "{version}");
        assert_eq!(cli(&["get", "long"]), format!("{long}\n"), "{version}");
    }
}

/// OpenSSL's server with these arguments, and where it listens.
fn openssl_server(pki: &Pki, more: &[&str]) -> (Talk, String) {
    pki.server("app", &["app.test"], Kind::P256);
    let mut server = Command::new("openssl");
    server.current_dir(pki.folder.path());
    server.args(["s_server", "-accept", "127.0.0.1:0", "-cert", "app.pem", "-key", "app.key"]);
    let server = Talk::start(server.args(more));
    let address = until("openssl to listen", || {
        let said = server.said();
        let (_, rest) = said.split_once("ACCEPT ")?;
        Some(rest.split_once('\n')?.0.trim().to_owned())
    });
    (server, address)
}

/// OpenSSL's server as a pipe: what is typed there comes here.
#[test]
fn openssl_is_spoken_to_in_the_clear() {
    if !need("openssl") {
        return;
    }
    let pki = Pki::new();
    let (mut server, address) = openssl_server(&pki, &[]);
    let edge = start(&pki, &address, "");
    let mut client = edge.connect();
    client.write_all(b"from the client\n").unwrap();
    server.hear("from the client");
    server.say("from the server\n");
    expect(&mut client, b"from the server\n");
}

/// OpenSSL's server as a pipe, by both versions of TLS: it does not notice two upgrades.
#[test]
fn openssl_is_spoken_to_after_two_upgrades() {
    if !need("openssl") {
        return;
    }
    for version in ["-tls1_2", "-tls1_3"] {
        let pki = Pki::new();
        let (mut server, address) = openssl_server(&pki, &[version]);
        let file = pki.folder.write("edge.toml", config(&address, ""));
        let command = |what: &str| {
            let mut command = edge::eyelet(&pki.folder);
            command.arg(what).arg(&file);
            command
        };
        let mut edge = Edge::spawn(command("serve"), 1);
        let mut client = edge.connect();
        let mut later = Vec::new();
        for round in 0..3 {
            client.write_all(format!("question {round}\n").as_bytes()).unwrap();
            server.hear(&format!("question {round}"));
            let answer = format!("answer {round}\n");
            server.say(&answer);
            expect(&mut client, answer.as_bytes());
            if round < 2 {
                later.push(upgrade(&mut command("upgrade")));
            }
        }
        assert!(edge.wait_exit_alone().success(), "{version}: it is with the last process");
        let address = client.local_addr().unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let line = edge.line_of(address);
        assert_eq!(line["outcome"], "originated", "{version}: {line}");
    }
}

/// `k` updates its keys, and `K` asks for ours too, before any ticket.
#[test]
fn openssl_may_update_its_keys_at_once() {
    if !need("openssl") {
        return;
    }
    for update in ["k\n", "K\n"] {
        let pki = Pki::new();
        let (mut server, address) = openssl_server(&pki, &["-num_tickets", "0", "-tls1_3"]);
        let edge = start(&pki, &address, "");
        let mut client = edge.connect();
        server.hear("CIPHER is");
        for round in ["first", "second"] {
            server.say(update);
            // It looks at its terminal first, and takes what is typed in one go as one command. So
            // once it has this it has the command.
            client.write_all(format!("{round} of the client\n").as_bytes()).unwrap();
            server.hear(&format!("{round} of the client"));
            server.say("from the server\n");
            expect(&mut client, b"from the server\n");
        }
    }
}

/// A server of TLS 1.3 refuses a client without a certificate behind the handshake: the handshake's
/// last message is the client's. By TLS 1.2 it does so within.
#[test]
fn an_alert_of_the_upstream_is_the_reason() {
    if !need("openssl") {
        return;
    }
    for (version, tickets, alert) in [
        ("-tls1_3", "0", "certificate_required"),
        ("-tls1_3", "2", "certificate_required"),
        ("-tls1_2", "0", "handshake_failure"),
    ] {
        let pki = Pki::new();
        let more = [version, "-num_tickets", tickets, "-Verify", "1", "-CAfile", "ca.pem"];
        let (_server, address) = openssl_server(&pki, &more);
        let edge = start(&pki, &address, "");
        let mut client = edge.connect();
        assert_eq!(ending(&mut client, SOON).0, b"", "{version}");
        let line = edge.only_line();
        assert_eq!(line["reason"], format!("upstream sent alert {alert}"), "{version}: {line}");
    }
}

/// A server that tells protocols apart by ALPN gets the one that the rule says, and refuses others.
#[test]
fn the_protocol_of_the_rule_is_offered() {
    if !need("openssl") {
        return;
    }
    let pki = Pki::new();
    let (mut server, address) = openssl_server(&pki, &["-alpn", "imap,pop3"]);
    let edge = start(&pki, &address, "upstream_alpn = [\"managesieve\", \"imap\"]\n");
    let mut client = edge.connect();
    server.hear("ALPN protocols advertised by the client: managesieve, imap");
    server.hear("ALPN protocols selected: imap");
    client.write_all(b"a1 NOOP\n").unwrap();
    server.hear("a1 NOOP");
    drop(client);
    let line = edge.only_line();
    let tls = &line["upstream_tls"];
    assert_eq!((&tls["version"], &tls["alpn"]), (&"1.3".into(), &"imap".into()), "{line}");
    assert_eq!(
        (&tls["resumed"], &line["tls_version"]),
        (&false.into(), &serde_json::Value::Null),
        "{line}"
    );
    let (_server, address) = openssl_server(&pki, &["-alpn", "imap"]);
    let edge = start(&pki, &address, "upstream_alpn = \"xmpp-client\"\n");
    assert_eq!(ending(&mut edge.connect(), SOON).0, b"");
    let line = edge.only_line();
    assert_eq!(line["reason"], "upstream sent alert no_application_protocol", "{line}");
}

/// An upstream that sends more than its client reads is read no further, and nothing is lost.
#[test]
fn a_slow_client_holds_its_upstream_back() {
    const BYTES: usize = 64 << 20;
    let pki = Pki::new();
    let written = Arc::<AtomicUsize>::default();
    let count = written.clone();
    let leaf = pki.server("app", &["app.test"], Kind::P256);
    let app = Upstream::tls(leaf, move |tls| {
        for piece in noise(BYTES, 9).chunks(64 << 10) {
            tls.write_all(piece).unwrap();
            tls.flush().unwrap();
            count.fetch_add(piece.len(), Ordering::SeqCst);
        }
    });
    let edge = start(&pki, &app.address.to_string(), "");
    let mut client = edge.connect();
    until("the upstream to begin", || (written.load(Ordering::SeqCst) > 0).then_some(()));
    // The kernel's buffers of three sockets take a part of it.
    let stalled = settled(|| written.load(Ordering::SeqCst));
    assert!(stalled < BYTES / 2, "{stalled}");
    let (all, end) = ending(&mut client, SOON);
    assert_eq!((all.len(), end), (BYTES, End::Fin));
    assert!(all == noise(BYTES, 9));
}

/// Clients that read nothing hold what their upstreams have sent. While memory is short they end,
/// as ones that were cut off, and a client that reads is served.
#[test]
fn clients_that_do_not_read_are_shed() {
    let pki = Pki::new();
    let leaf = pki.server("app", &["app.test"], Kind::P256);
    let app = Upstream::tls(leaf, |tls| {
        let mut said = [0; 1];
        if tls.read_exact(&mut said).is_err() {
            return;
        }
        match said[0] {
            b'x' => {
                let _ = tls.write_all(b"x");
            }
            _ => while tls.write_all(&[7; 64 << 10]).is_ok() {},
        }
    });
    let edge = start(&pki, &app.address.to_string(), "[limits]\nmemory_max = \"16MiB\"\n");
    let is_shed = |line: &serde_json::Value| {
        line["reason"] == "shed: memory_max, and what was sent was not taken"
    };
    let mut clients: Vec<TcpStream> = Vec::new();
    until("a client to be shed", || {
        // A slow machine has all of them before the first is given up.
        let more = if clients.len() < UNREAD_MAX { 8 } else { 0 };
        for _ in 0..more {
            // A small window, so that few bytes lie in the kernel.
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_recv_buffer_size(4 << 10).unwrap();
            socket.connect(&edge.address().into()).unwrap();
            let mut client = TcpStream::from(socket);
            let _ = client.write_all(b"y");
            clients.push(client);
        }
        std::thread::sleep(PAUSE);
        (edge.count(is_shed) > 0).then_some(())
    });
    let line = edge.line("one to be shed", is_shed);
    let client = clients
        .iter_mut()
        .find(|client| line["client"] == client.local_addr().unwrap().to_string());
    assert_eq!(ending(client.unwrap(), SOON).1, End::Rst, "not as a whole stream");
    until("a client that reads to be served", || {
        let mut client = edge.connect();
        // A full listen queue may have dropped it, and the kernel repeats ever more slowly.
        client.set_read_timeout(Some(A_TRY)).unwrap();
        client.write_all(b"x").ok()?;
        let mut answer = [0; 1];
        (client.read_exact(&mut answer).is_ok() && answer == *b"x").then_some(())
    });
}

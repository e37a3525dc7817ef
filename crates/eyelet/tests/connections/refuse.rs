//! Refused connections: the alert that says why, in time to be read, and the access line. The tests
//! build and read the bytes by hand.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::Value;

use crate::support::{
    Edge, End, Folder, Hello, Pki, SOON, Upstream, alert_of, ending, noise, records,
};

/// A socket bound to another loopback address than the others'.
fn connect_from(ip: [u8; 4], to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from((ip, 0))).unwrap();
    connect(&socket, &to).unwrap();
    TcpStream::from(socket)
}

/// Sends, waits for the end, and gives what came and the access line.
fn sent(edge: &Edge, bytes: &[u8]) -> (Vec<u8>, Value) {
    sent_by(edge, edge.connect(), bytes)
}

fn sent_by(edge: &Edge, mut client: TcpStream, bytes: &[u8]) -> (Vec<u8>, Value) {
    let address = client.local_addr().unwrap();
    client.write_all(bytes).unwrap();
    let (answer, end) = ending(&mut client, SOON);
    assert_eq!(end, End::Fin, "a refusal is not a reset; {answer:?}");
    (answer, edge.line_of(address))
}

/// The rules that the table of alerts is about.
fn rules(upstream: &str) -> String {
    format!(
        r#"
        [[rule]]
        name = "stranger"
        client = "127.0.0.2"
        action = "refuse"
        [[rule]]
        name = "old"
        sni = "old.test"
        tls_version_max = "1.1"
        action = "refuse"
        [[rule]]
        name = "unwanted"
        sni = ["unwanted.test", "*.unwanted.test"]
        action = "refuse"
        [[rule]]
        name = "own words"
        sni = "own.test"
        action = "refuse"
        alert = "handshake_failure"
        [[rule]]
        name = "good"
        sni = "good.test"
        action = "splice"
        upstream = "{upstream}"
        [[rule]]
        name = "terminated"
        sni = "app.test"
        action = "terminate"
        certificate = "edge.pem"
        key = "edge.key"
        upstream = "tcp://{upstream}"
        "#
    )
}

struct Refusing {
    edge: Edge,
    upstream: Upstream,
    _pki: Pki,
}

impl Refusing {
    fn new(limits: &str) -> Self {
        let pki = Pki::new();
        let upstream = Upstream::echo();
        let rules = format!("{}\n{limits}", rules(&upstream.address.to_string()));
        Self { edge: Edge::start(&pki.folder, &rules), upstream, _pki: pki }
    }
}

fn named(name: impl AsRef<[u8]>) -> Hello {
    Hello::named(name)
}

#[test]
fn each_reason_has_its_alert() {
    let it = Refusing::new("");
    let table: &[(&str, Hello, u8, Option<&str>, &str)] = &[
        ("unknown name", named("nowhere.test"), 112, None, "no rule for this name"),
        ("near miss", named("sub.good.test"), 112, None, "no rule for this name"),
        ("by name", named("unwanted.test"), 112, Some("unwanted"), "refused by name"),
        ("by wildcard", named("a.b.unwanted.test"), 112, Some("unwanted"), "refused by name"),
        ("alert of the rule", named("own.test"), 40, Some("own words"), "refused by name"),
        ("too old", named("old.test").tls11(), 70, Some("old"), "too old"),
        ("too old to terminate", named("app.test").tls11(), 70, Some("terminated"), "too old"),
        ("no name", Hello::nameless(), 109, None, "no name"),
        ("no name, TLS 1.2", Hello::nameless().tls12(), 40, None, "no name"),
        ("empty name", named(""), 50, None, "malformed name"),
        ("trailing dot", named("good.test."), 50, None, "malformed name"),
        ("IP literal", named("127.0.0.1"), 50, None, "malformed name"),
        ("IPv6 literal", named("::1"), 50, None, "malformed name"),
        ("NUL", named("good.test\0.evil"), 50, None, "malformed name"),
        ("CR LF", named("good.test\r\nX: y"), 50, None, "malformed name"),
        ("not ASCII", named(b"\xff\xfe.test"), 50, None, "malformed name"),
        ("300 bytes", named("a.".repeat(148) + "test"), 50, None, "malformed name"),
        ("name twice", named("good.test").and_named("evil.test"), 50, None, "malformed"),
    ];
    for (label, hello, alert, rule, reason) in table {
        let (answer, line) = sent(&it.edge, &hello.bytes());
        let context = format!("{label}: {answer:?} {line}");
        // RFC 8446 section 4.2: an extension twice may also be illegal_parameter.
        let twice = label.ends_with("twice") && alert_of(&answer) == Some(47);
        assert!(twice || alert_of(&answer) == Some(*alert), "{context}");
        assert_eq!(line["rule"].as_str(), *rule, "{context}");
        assert!(line["reason"].as_str().unwrap().contains(reason), "{context}");
        assert_eq!(line["outcome"], "refused", "{context}");
        assert_eq!(line["bytes_to_upstream"], 0, "{context}");
    }
    assert_eq!(it.upstream.accepted(), 0, "nothing refused reaches the upstream");
}

#[test]
fn a_client_is_refused_by_its_address_before_it_speaks() {
    let it = Refusing::new("");
    let client = connect_from([127, 0, 0, 2], it.edge.address());
    let (answer, line) = sent_by(&it.edge, client, b"");
    assert_eq!(alert_of(&answer), Some(49), "{answer:?}");
    assert_eq!(line["rule"], "stranger", "{line}");
    assert_eq!(line["reason"], "refused by address", "{line}");
    let (_, line) = sent(&it.edge, &Hello::named("nowhere.test").bytes());
    assert!(line["rule"].is_null(), "another client is another matter: {line}");
}

#[test]
fn a_client_is_refused_by_its_fingerprint() {
    let it = Refusing::new("");
    let hello = Hello::named("nowhere.test").bytes();
    let (_, line) = sent(&it.edge, &hello);
    let ja4 = line["ja4"].as_str().unwrap();
    let rule = format!("[[rule]]\nname = \"print\"\nja4 = \"{ja4}\"\naction = \"refuse\"");
    let folder = Folder::new();
    let edge = Edge::start(&folder, &rule);
    let (answer, line) = sent(&edge, &hello);
    assert_eq!(alert_of(&answer), Some(49), "{answer:?} {line}");
    assert_eq!(line["rule"], "print", "{line}");
    // A longer list of versions is another client.
    let (answer, line) = sent(&edge, &Hello::named("nowhere.test").tls12().bytes());
    assert!(line["rule"].is_null(), "{answer:?} {line}");
}

#[test]
fn plain_http_gets_a_readable_answer() {
    let it = Refusing::new("");
    for request in ["GET / HTTP/1.1\r\nHost: good.test\r\n\r\n", "POST /x HTTP/1.0\r\n\r\n"] {
        let (answer, line) = sent(&it.edge, request.as_bytes());
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let length = format!("Content-Length: {}", body.len());
        assert!(head.lines().any(|line| line == length), "{length} is not in: {head}");
        assert!(body.contains("TLS"), "{body}");
        assert!(line["reason"].as_str().unwrap().contains("HTTP"), "{line}");
    }
}

fn random_bytes() -> Vec<u8> {
    let mut bytes = noise(500, 77);
    // A first byte that is no handshake's and no letter.
    bytes[0] = 0xc3;
    bytes
}

#[test]
fn what_is_no_tls_is_closed_and_told() {
    let it = Refusing::new("");
    let ssl_v2 =
        [&[0x80, 0x2e, 1, 3, 1, 0, 0x15, 0, 0, 0, 0x10, 0, 0, 0x35][..], &[7; 34]].concat();
    let record_too_long = [&[0x16, 3, 1, 0xff, 0xff][..], &[7; 500]].concat();
    let record_just_too_long = [&[0x16, 3, 1, 0x41, 0x01][..], &[7; 500]].concat();
    let table: &[(&str, Vec<u8>, &str)] = &[
        ("SSLv2", ssl_v2, "SSLv2"),
        ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), "SSH"),
        ("random bytes", random_bytes(), ""),
        (
            "a PROXY header from nobody in particular",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 5 443\r\n".to_vec(),
            "PROXY",
        ),
        ("an application data record", [&[0x17, 3, 3, 0, 32][..], &[0; 32]].concat(), ""),
        ("an alert", vec![0x15, 3, 3, 0, 2, 2, 40], ""),
        ("a record of 65535 bytes", record_too_long, "record"),
        ("a record over 2^14 + 256", record_just_too_long, "record"),
        ("a record of no bytes", vec![0x16, 3, 1, 0, 0, 0x16, 3, 1, 0, 0], "record"),
        ("another handshake message", records(&[&[2, 0, 0, 40][..], &[3; 40]].concat(), &[]), ""),
        (
            "a hello over 64 KiB",
            [&[0x16, 3, 1, 0x40, 0][..], &[1, 1, 0x20, 0], &[3; 16380]].concat(),
            "limit",
        ),
        ("a hello that is cut inside", records(&[1, 0, 0, 4, 3, 3, 9, 9], &[]), "malformed"),
    ];
    for (label, bytes, reason) in table {
        let (answer, line) = sent(&it.edge, bytes);
        let context = format!("{label}: {answer:?} {line}");
        assert!(answer.is_empty() || alert_of(&answer).is_some(), "{context}");
        assert_eq!(line["outcome"], "refused", "{context}");
        let told = line["reason"].as_str().unwrap();
        assert!(!told.is_empty() && told.contains(reason), "{context}");
    }
}

#[test]
fn half_a_hello_and_silence_end_in_time() {
    let it = Refusing::new("[limits]\nhello_timeout = \"300ms\"");
    let hello = Hello::named("good.test").bytes();
    for half in [&hello[..0], &hello[..1], &hello[..80], &hello[..hello.len() - 1]] {
        let began = std::time::Instant::now();
        let (_, line) = sent(&it.edge, half);
        assert!(began.elapsed().as_millis() >= 250, "{line}");
        assert_eq!(line["outcome"], "failed", "{line}");
        assert!(line["reason"].as_str().unwrap().contains("hello_timeout"), "{line}");
    }
}

/// The timeout runs from the start, not from the last byte.
#[test]
fn a_dripped_hello_ends_in_time_too() {
    let it = Refusing::new("[limits]\nhello_timeout = \"500ms\"");
    let hello = Hello::named("good.test").bytes();
    let mut client = it.edge.connect();
    let mut sent = 0;
    for byte in &hello {
        // Pacing, not synchronisation: the whole hello would take five seconds.
        std::thread::sleep(std::time::Duration::from_millis(20));
        if client.write_all(&[*byte]).is_err() || !it.edge.lines().is_empty() {
            break;
        }
        sent += 1;
    }
    assert!(sent < hello.len(), "a dripped byte extends the timeout");
    let line = it.edge.only_line();
    assert!(line["reason"].as_str().unwrap().contains("hello_timeout"), "{line}");
}

#[test]
fn half_a_hello_and_the_end_are_told() {
    let it = Refusing::new("");
    let hello = Hello::named("good.test").bytes();
    for half in [&hello[..0], &hello[..1], &hello[..80], &hello[..hello.len() - 1]] {
        let mut client = it.edge.connect();
        let address = client.local_addr().unwrap();
        client.write_all(half).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let (_, end) = ending(&mut client, SOON);
        assert_ne!(end, End::Open);
        let line = it.edge.line_of(address);
        assert_eq!(line["outcome"], "left", "{line}");
        assert!(line["reason"].as_str().unwrap().contains("client closed"), "{line}");
    }
}

/// RFC 1122 section 4.2.2.13: unread bytes would turn the close into a reset, which overtakes.
#[test]
fn an_alert_is_read_by_a_client_that_goes_on_sending() {
    let it = Refusing::new("");
    for _ in 0..20 {
        let mut bytes = Hello::named("nowhere.test").bytes();
        bytes.extend(noise(200_000, 5));
        let mut client = it.edge.connect();
        // The edge may stop reading at some point; the alert must be there all the same.
        let _ = client.write_all(&bytes);
        let (answer, _) = ending(&mut client, SOON);
        assert_eq!(alert_of(&answer), Some(112), "{answer:?}");
    }
}

#[test]
fn a_client_that_never_closes_is_closed() {
    let it = Refusing::new("");
    let before = it.edge.descriptors_at_rest();
    let mut held = Vec::new();
    for _ in 0..20 {
        let mut client = it.edge.connect();
        client.write_all(&Hello::named("nowhere.test").bytes()).unwrap();
        held.push(client);
    }
    // Lingering is bounded: the clients are still there, the descriptors are not.
    it.edge.wait_descriptors(before);
    drop(held);
}

/// The length is legal and the limit is ours: handshake_failure, from the header alone.
#[test]
fn a_hello_over_the_limit_is_refused_by_its_header() {
    let it = Refusing::new("[limits]\nhello_bytes_max = 512\n");
    let hello = named("good.test").padded_to(513).bytes();
    let (answer, line) = sent(&it.edge, &hello[..9]);
    assert_eq!(alert_of(&answer), Some(40), "{answer:?} {line}");
    assert_eq!(line["outcome"], "refused", "{line}");
}

/// Refused by address, before anything of it was needed: still told in HTTP.
#[test]
fn plain_http_that_is_refused_by_address_gets_a_400() {
    let folder = Folder::new();
    let edge = Edge::start(&folder, "[[rule]]\nclient = \"127.0.0.0/8\"\naction = \"refuse\"\n");
    let (answer, line) = sent(&edge, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");
    assert_eq!(line["outcome"], "refused", "{line}");
    let (answer, _) = sent(&edge, &named("a.test").bytes());
    assert_eq!(alert_of(&answer), Some(49), "{answer:?}");
}

/// `alert = "none"`: nor is a client told in HTTP, or waited for.
#[test]
fn plain_http_that_is_refused_without_a_word_hears_nothing() {
    let folder = Folder::new();
    let rule = "[[rule]]\nclient = \"127.0.0.0/8\"\naction = \"refuse\"\nalert = \"none\"\n";
    let edge = Edge::start(&folder, rule);
    for bytes in [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], &named("a.test").bytes(), b""] {
        let (answer, line) = sent(&edge, bytes);
        assert!(answer.is_empty(), "{answer:?}");
        assert_eq!(line["outcome"], "refused", "{line}");
    }
}

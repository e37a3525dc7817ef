//! The 36 odd connections that other proxies answer differently, and how each ends here.
//! The tests play both ends.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::hello::server_flight;
use crate::support::{
    A_WHILE, Edge, End, Folder, Hello, SOON, Upstream, alert_of, ending, expect, records, reset,
};

/// Two names, each with a server of its own, so that routing by name shows.
struct Scene {
    edge: Edge,
    origin: Upstream,
    other: Upstream,
    _folder: Folder,
}

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// The named server got every byte, and the client its flight.
    Spliced,
    /// A fatal alert and a FIN, at once.
    Alert(u8),
    /// A readable line of HTTP.
    Http400,
}

/// RFC 8446 section 6.2.
const RECORD_OVERFLOW: Came = Came::Alert(22);
const ILLEGAL_PARAMETER: Came = Came::Alert(47);
const DECODE_ERROR: Came = Came::Alert(50);
const PROTOCOL_VERSION: Came = Came::Alert(70);
const MISSING_EXTENSION: Came = Came::Alert(109);
const UNRECOGNIZED_NAME: Came = Came::Alert(112);

/// Longer than a test waits for a refusal: none of them comes by this.
const HELLO_TIMEOUT: &str = "[limits]\nhello_timeout = \"600s\"\n";

impl Scene {
    fn new(limits: &str) -> Self {
        let (folder, origin, other) = (Folder::new(), Upstream::by_hand(), Upstream::by_hand());
        let rule = |name: &str, to: &Upstream| {
            format!(
                "[[rule]]\nsni = \"{name}\"\naction = \"splice\"\nupstream = \"{}\"\n",
                to.address
            )
        };
        let rules = [rule("host-0.test", &origin), rule("host-1.test", &other), limits.into()];
        let edge = Edge::start(&folder, &rules.concat());
        Self { edge, origin, other, _folder: folder }
    }

    /// Sends in writes of so many bytes (0: in one), and sees what comes of it.
    fn probe(&self, bytes: &[u8], write_bytes: usize) -> Came {
        let mut client = self.edge.connect();
        let accepted = self.origin.accepted();
        for piece in bytes.chunks(if write_bytes == 0 { usize::MAX } else { write_bytes }) {
            // Who is refused at once may be so while it still writes.
            if client.write_all(piece).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(if write_bytes == 1 { 1 } else { 20 }));
        }
        let sent = Instant::now();
        while self.origin.accepted() == accepted {
            client.set_nonblocking(true).unwrap();
            let ended = client.peek(&mut [0; 1]).is_ok();
            client.set_nonblocking(false).unwrap();
            if ended {
                return refused(&mut client);
            }
            assert!(sent.elapsed() < SOON, "neither upstream nor answer");
            thread::sleep(Duration::from_millis(2));
        }
        let mut origin = self.origin.take();
        expect(&mut origin, bytes);
        origin.write_all(&server_flight()).unwrap();
        expect(&mut client, &server_flight());
        Came::Spliced
    }

    /// Both ends of a pair after hello and answer.
    fn pair(&self) -> (TcpStream, TcpStream) {
        let mut client = self.edge.connect();
        let hello = Hello::named("host-0.test").bytes();
        client.write_all(&hello).unwrap();
        let mut origin = self.origin.take();
        expect(&mut origin, &hello);
        origin.write_all(&server_flight()).unwrap();
        expect(&mut client, &server_flight());
        (client, origin)
    }
}

fn refused(client: &mut TcpStream) -> Came {
    let (got, end) = ending(client, SOON);
    assert_eq!(end, End::Fin);
    match alert_of(&got) {
        Some(alert) => Came::Alert(alert),
        None if got.starts_with(b"HTTP/1.1 400 ") => Came::Http400,
        None => panic!("{}", got.escape_ascii()),
    }
}

fn named(name: impl AsRef<[u8]>) -> Vec<u8> {
    Hello::named(name).bytes()
}

/// A hello of that many bytes, with its name first or last.
fn large(bytes: usize, name_first: bool) -> Vec<u8> {
    if name_first {
        return Hello::named("host-0.test").padded_to(bytes).bytes();
    }
    let name = b"host-0.test";
    let list = [&[0, 14, 0, 0, 11][..], name].concat();
    let padding = bytes - Hello::nameless().extension(0, &list).message().len() - 4;
    Hello::nameless().extension(21, &vec![0; padding]).extension(0, &list).bytes()
}

/// Post-quantum key shares and a grease ECH, as browsers send them.
fn browser_like() -> Vec<u8> {
    let ech = [&[0, 0, 1, 0, 1, 0x5c, 0, 32][..], &[0x45; 32], &[0, 144], &[0x46; 144]].concat();
    let hello = Hello::named("host-0.test").extension(0xfe0d, &ech);
    hello.extension(0x6a6a, &[7; 1252]).bytes()
}

#[test]
fn hellos_that_a_tls_stack_would_accept_are_routed_by_the_name_that_it_would_see() {
    let message = Hello::named("host-0.test").message();
    let name_at = message.windows(6).position(|six| six == b"host-0").unwrap();
    let each: Vec<usize> = (1..message.len()).collect();
    let early = [&[0x17, 3, 3, 0, 0x20][..], &[0x44; 32]].concat().repeat(2);
    let whole = records(&message, &[]);
    let scene = Scene::new(HELLO_TIMEOUT);
    for (probe, bytes, write_bytes) in [
        ("one write", whole.clone(), 0),
        ("1-byte writes", whole.clone(), 1),
        ("post-quantum and ECH grease, two writes", browser_like(), 1400),
        ("2 records, cut before the name", records(&message, &[60]), 0),
        ("2 records, cut inside the name", records(&message, &[name_at + 3]), 0),
        ("2 records, two writes", records(&message, &[60]), 65),
        ("1-byte records", records(&message, &each), 0),
        ("16 kB in one record", large(16_384, true), 4096),
        ("20 kB, name first", large(20_000, true), 4096),
        ("20 kB, name last", large(20_000, false), 4096),
        ("upper case", named("HOST-0.TEST"), 0),
        ("early data, one write", [&whole[..], &early].concat(), 0),
        ("early data, own writes", [&whole[..], &early].concat(), whole.len()),
    ] {
        assert_eq!(scene.probe(&bytes, write_bytes), Came::Spliced, "{probe}");
    }
    assert_eq!(scene.other.accepted(), 0, "none is misrouted");
}

#[test]
fn hellos_without_a_name_to_decide_by_are_refused_with_an_alert() {
    let label = |letter: &str, length| letter.repeat(length);
    let long = [label("a", 60), label("b", 60), label("c", 60), label("d", 60), label("e", 51)];
    let long = format!("{}.test", long.join("."));
    let mut overlong = Hello::named("host-0.test").bytes();
    overlong[3..5].copy_from_slice(&[0xff, 0xff]);
    let mut ssl2 = vec![0x80, 0x2e, 1, 3, 1, 0, 0x15, 0, 0, 0, 0x10, 0, 0, 0x35, 0, 0, 0x2f];
    ssl2.extend([0, 0, 10, 1, 0, 0x80]);
    ssl2.extend([0x43; 25]);
    let scene = Scene::new(HELLO_TIMEOUT);
    for (probe, bytes, came) in [
        ("no name", Hello::nameless().bytes(), MISSING_EXTENSION),
        ("trailing dot", named("host-0.test."), DECODE_ERROR),
        ("IP literal", named("127.1.0.1"), DECODE_ERROR),
        ("bytes ff fe", named(b"\xff\xfe.test"), DECODE_ERROR),
        ("NUL", named("host-0.test\0.evil"), DECODE_ERROR),
        ("CR LF", named("host-0.test\r\nX: y"), DECODE_ERROR),
        ("300 characters", named(&long), DECODE_ERROR),
        ("empty", named(""), DECODE_ERROR),
        ("unknown name", named("nowhere.test"), UNRECOGNIZED_NAME),
        (
            "two SNI extensions",
            Hello::named("host-0.test").and_named("host-1.test").bytes(),
            ILLEGAL_PARAMETER,
        ),
        ("SSLv2", ssl2, PROTOCOL_VERSION),
        ("plain HTTP", b"GET / HTTP/1.1\r\nHost: host-0.test\r\n\r\n".into(), Came::Http400),
        ("record length 0xffff", overlong, RECORD_OVERFLOW),
    ] {
        assert_eq!(scene.probe(&bytes, 0), came, "{probe}");
    }
    assert_eq!((scene.origin.accepted(), scene.other.accepted()), (0, 0));
}

#[test]
fn half_closed_connections_stay_useful() {
    let scene = Scene::new(HELLO_TIMEOUT);
    let (mut client, mut origin) = scene.pair();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(ending(&mut origin, SOON), (vec![], End::Fin));
    thread::sleep(A_WHILE);
    origin.write_all(b"after").unwrap();
    expect(&mut client, b"after");

    let (mut client, mut origin) = scene.pair();
    origin.shutdown(Shutdown::Write).unwrap();
    assert_eq!(ending(&mut client, SOON), (vec![], End::Fin));
    thread::sleep(A_WHILE);
    client.write_all(b"after").unwrap();
    expect(&mut origin, b"after");
}

#[test]
fn a_reset_is_passed_on_as_a_reset() {
    let scene = Scene::new(HELLO_TIMEOUT);
    let (client, mut origin) = scene.pair();
    reset(client);
    assert_eq!(ending(&mut origin, SOON), (vec![], End::Rst));
    let (mut client, origin) = scene.pair();
    reset(origin);
    assert_eq!(ending(&mut client, SOON), (vec![], End::Rst));
}

#[test]
fn silence_and_drip_are_cut_by_the_clock_from_the_start() {
    let scene = Scene::new("[limits]\nhello_timeout = \"1s\"\n");
    let hello = Hello::named("host-0.test").bytes();
    let mut silent = scene.edge.connect();
    let mut half = scene.edge.connect();
    half.write_all(&hello[..80]).unwrap();
    let mut drip = scene.edge.connect();
    // Each byte comes long before the timeout. One that put it off would have the hello arrive.
    for byte in &hello {
        if drip.write_all(&[*byte]).is_err() {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    for client in [&mut silent, &mut half, &mut drip] {
        let (got, end) = ending(client, SOON);
        assert!(got.is_empty() && end != End::Open, "{end:?}");
        let line = scene.edge.line_of(client.local_addr().unwrap());
        assert!(line["reason"].as_str().unwrap().starts_with("hello_timeout"), "{line}");
        let duration_ms = line["duration_ms"].as_u64().unwrap();
        assert!(duration_ms >= 1000, "{line}");
    }
    assert_eq!(scene.origin.accepted(), 0);
}

//! SOCKS 5 at the listener that CONNECT comes to: replies, early data, names and addresses. Both
//! ends are sockets of the tests, or programs that people use.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::admin::{ADMIN, get, metrics};
use crate::support::hello::server_flight;
use crate::support::pki::Kind;
use crate::support::upstream::{dns, nobody};
use crate::support::{
    Edge, End, Folder, Hello, Pki, SOON, Upstream, alert_of, ending, expect, need, output, until,
};

const GREETING: &[u8] = b"\x05\x01\x00";
const CHOSEN: &[u8] = b"\x05\x00";
const SUCCEEDED: &[u8] = b"\x05\x00\x00\x01\0\0\0\0\0\0";

/// The destination of whoever says host.test inside, on loopback.
const NAMED: &str = "[[rule]]\nname = \"named\"\nsni = \"host.test\"\naction = \"splice\"\n\
                     upstream = \"destination\"\nupstream_allow = \"127.0.0.0/8\"\n";

fn edge(folder: &Folder, rules: &str) -> Edge {
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"connect\"\n";
    Edge::start_whole(folder, &format!("{listener}{rules}"), |_| ())
}

/// A request for a name.
fn to(name: &str, port: u16) -> Vec<u8> {
    let len = [u8::try_from(name.len()).unwrap()];
    [&b"\x05\x01\x00\x03"[..], &len, name.as_bytes(), &port.to_be_bytes()].concat()
}

/// A request for an address of loopback.
fn to_loopback(port: u16) -> Vec<u8> {
    [&b"\x05\x01\x00\x01\x7f\x00\x00\x01"[..], &port.to_be_bytes()].concat()
}

/// Greets, and asks for the target.
fn ask(edge: &Edge, request: &[u8]) -> TcpStream {
    let mut client = edge.connect();
    client.write_all(GREETING).unwrap();
    expect(&mut client, CHOSEN);
    client.write_all(request).unwrap();
    client
}

/// The code of a reply after which the connection ends, and the access line.
fn refused(edge: &Edge, request: &[u8]) -> (u8, Value) {
    let mut client = ask(edge, request);
    let (got, end) = ending(&mut client, SOON);
    assert_eq!((end, got.len(), got.first()), (End::Fin, 10, Some(&5)), "{got:?}");
    (got[1], edge.line_of(client.local_addr().unwrap()))
}

#[test]
fn the_hello_is_peeked_inside() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    let edge = edge(&folder, NAMED);
    let mut client = ask(&edge, &to_loopback(origin.address.port()));
    expect(&mut client, SUCCEEDED);
    let hello = Hello::named("host.test").bytes();
    client.write_all(&hello).unwrap();
    let mut server = origin.take();
    expect(&mut server, &hello);
    server.write_all(&server_flight()).unwrap();
    expect(&mut client, &server_flight());
    let own = client.local_addr().unwrap();
    drop((client, server));
    let line = edge.line_of(own);
    let target = origin.address.to_string();
    for (field, expected) in [("outcome", "spliced"), ("connect", &target), ("upstream", &target)] {
        assert_eq!(line[field], expected, "{line}");
    }
    assert_eq!(line["bytes_to_upstream"], hello.len(), "the request is ours: {line}");
    assert_eq!(line["bytes_to_client"], server_flight().len(), "so are the answers: {line}");
}

/// A client may send all at once, and what is behind the request is for the target.
#[test]
fn bytes_behind_the_request_are_kept_however_they_are_cut() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    let port = origin.address.port();
    let blind = format!(
        "[[rule]]\nconnect = \"127.0.0.1:{port}\"\naction = \"splice\"\n\
         upstream = \"destination\"\nupstream_allow = \"127.0.0.0/8\"\n"
    );
    // Single bytes may take their time.
    let limits = "[limits]\nhello_timeout = \"60s\"\n";
    let edges =
        [edge(&folder, &format!("{blind}{limits}")), edge(&folder, &format!("{NAMED}{limits}"))];
    let hello = Hello::named("host.test").bytes();
    let inside = [&hello[..], b"early"].concat();
    let all = [GREETING, &to_loopback(port), &inside].concat();
    for edge in &edges {
        for first in [1, 2, 3, 4, 6, 7, 8, 12, 13, 14, all.len()] {
            let mut client = edge.connect();
            client.write_all(&all[..first]).unwrap();
            thread::sleep(Duration::from_millis(5));
            client.write_all(&all[first..]).unwrap();
            expect(&mut client, CHOSEN);
            expect(&mut client, SUCCEEDED);
            expect(&mut origin.take(), &inside);
        }
    }
}

#[test]
fn each_refusal_has_its_code() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    let (_held, closed) = nobody();
    let server = dns(&[("inside.test", &[[10, 0, 0, 1]]), ("empty.test", &[])]);
    let rules = format!(
        "[[rule]]\nname = \"no\"\nconnect = \"*.no.test:*\"\naction = \"refuse\"\n[[rule]]\n\
         connect = [\"*:9\", \"*:{}\"]\naction = \"splice\"\nupstream = \"destination\"\n\
         upstream_allow = \"127.0.0.1\"\n{NAMED}[dns]\nservers = \"{}\"\n",
        closed.port(),
        server.address
    );
    let edge = edge(&folder, &rules);
    let longest = "a".repeat(255);
    for (request, code, reason) in [
        (to("a.no.test", 443), 2, "refused by CONNECT target"),
        (to("other.test", 443), 2, "no rule for this name"),
        (to("inside.test", 9), 2, "upstream: inside.test resolves to 10.0.0.1"),
        (to("10.0.0.1", 9), 2, "upstream: 10.0.0.1, which upstream_allow does not list"),
        (to("empty.test", 9), 4, "upstream: DNS"),
        (to("nowhere.test", 9), 4, "upstream: DNS"),
        (to_loopback(closed.port()), 5, "upstream: Connection refused"),
        (b"\x05\x02\x00\x01\x7f\0\0\x01\0\x09".to_vec(), 7, "malformed SOCKS: BIND is not supp"),
        (b"\x05\x03\x00\x01\x7f\0\0\x01\0\x09".to_vec(), 7, "malformed SOCKS: UDP ASSOCIATE is"),
        (b"\x05\x01\x00\x02".to_vec(), 8, "malformed SOCKS: address of kind 2"),
        (to("", 443), 1, "malformed SOCKS: target: "),
        (to(&longest, 443), 1, "malformed SOCKS: target: "),
        (to("127.1", 9), 1, "malformed SOCKS: target: "),
        (to("a.test", 0), 1, "malformed SOCKS: port 0"),
    ] {
        let (got, line) = refused(&edge, &request);
        assert_eq!(got, code, "{line}");
        assert!(line["reason"].as_str().unwrap().starts_with(reason), "{reason}: {line}");
    }
    // After the reply an alert is understood.
    let mut client = ask(&edge, &to_loopback(origin.address.port()));
    expect(&mut client, SUCCEEDED);
    client.write_all(&Hello::named("other.test").bytes()).unwrap();
    assert_eq!(alert_of(&ending(&mut client, SOON).0), Some(112), "unrecognized_name");
    assert_eq!(origin.accepted(), 0);
}

#[test]
fn a_greeting_without_a_method_that_is_taken() {
    let folder = Folder::new();
    let edge = edge(&folder, NAMED);
    for (greeting, answer, reason) in [
        (&b"\x05\x00"[..], &b"\x05\xff"[..], "malformed SOCKS: a greeting without a method"),
        (b"\x05\x01\x02", b"\x05\xff", "malformed SOCKS: no method that this listener takes"),
        (b"\x05\x02\x01\x80", b"\x05\xff", "malformed SOCKS: no method that this listener takes"),
        (b"\x04\x01\x01\xbb", b"", "not HTTP where CONNECT was expected"),
    ] {
        let mut client = edge.connect();
        client.write_all(greeting).unwrap();
        assert_eq!(ending(&mut client, SOON), (answer.to_vec(), End::Fin), "{reason}");
        let line = edge.line_of(client.local_addr().unwrap());
        assert_eq!((&line["reason"], &line["outcome"]), (&reason.into(), &"refused".into()));
    }
}

#[test]
fn programs_of_the_world_get_through() {
    let pki = Pki::new();
    let web = Upstream::https(pki.server("web", &["web.test"], Kind::P256));
    let port = web.address.port();
    let server = dns(&[("web.test", &[[127, 0, 0, 1]])]);
    let named = NAMED.replace("host.test", "web.test");
    let edge = edge(&pki.folder, &format!("{named}[dns]\nservers = \"{}\"\n", server.address));
    let (proxy, url) = (edge.address().to_string(), format!("https://web.test:{port}/"));
    let ca = pki.text("ca.pem");
    let git = format!("http.proxy=socks5h://{proxy}");
    let curl = ["-sS", "--noproxy", "", "--cacert", &ca, "--socks5-hostname", &proxy, &url];
    let git = ["-c", &git, "-c", "http.sslVerify=false", "ls-remote", &url];
    // The server speaks no git: its answer shows that it was reached.
    for (program, arguments, said) in
        [("curl", &curl[..], "GET / HTTP/1.1"), ("git", &git[..], "not valid")]
    {
        if need(program) {
            let heard = output(Command::new(program).args(arguments));
            assert!(heard.text.contains(said), "{program}: {}", heard.text);
            let line = edge.line("web.test", |line| line["connect"] == format!("web.test:{port}"));
            assert_eq!(line["sni"], "web.test", "{line}");
        }
    }
    if need("curl") {
        let refused = "https://other.test/";
        let mut curl = Command::new("curl");
        let heard = output(curl.args(["-sS", "--socks5-hostname", &proxy, refused]));
        assert!(heard.text.contains("(2)"), "{}", heard.text);
    }
}

/// Established, it is spliced and parked as a CONNECT is: in the same bytes.
#[test]
fn it_rests_in_the_bytes_of_a_connect() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    let edge = edge(&folder, &format!("{NAMED}{ADMIN}"));
    let (socket, port) = (folder.path().join("admin.sock"), origin.address.port());
    let head = format!("CONNECT 127.0.0.1:{port} HTTP/1.0\r\n\r\n").into_bytes();
    let established = b"HTTP/1.1 200 Connection established\r\n\r\n";
    let hello = Hello::named("host.test").bytes();
    let parked = |count: f64| {
        until("parked connections", || {
            let shown = metrics(&get(&socket, "/metrics").body);
            let is_so = shown["eyelet_connections{state=\"parked\"}"] == count;
            is_so.then(|| shown["eyelet_parked_memory_bytes"])
        })
    };
    let at_rest = |client: &mut TcpStream| {
        client.write_all(&hello).unwrap();
        let mut server = origin.take();
        expect(&mut server, &hello);
        (parked(1.0), server)
    };
    let mut by_connect = edge.connect();
    by_connect.write_all(&head).unwrap();
    expect(&mut by_connect, established);
    let (connect_bytes, server) = at_rest(&mut by_connect);
    drop((by_connect, server));
    parked(0.0);
    let mut by_socks = ask(&edge, &to_loopback(port));
    expect(&mut by_socks, SUCCEEDED);
    let (socks_bytes, _server) = at_rest(&mut by_socks);
    assert!(connect_bytes > 0.0);
    assert_eq!(socks_bytes, connect_bytes);
}

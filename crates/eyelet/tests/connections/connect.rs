//! The explicit CONNECT proxy: its HTTP responses, the hello inside the tunnel, and which
//! destinations it allows. Both ends are sockets of the tests, or curl.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::client::{Offer, handshake};
use crate::support::edge::connect;
use crate::support::hello::server_flight;
use crate::support::pki::Kind;
use crate::support::upstream::{dns, nobody};
use crate::support::web::ask;
use crate::support::{
    A_WHILE, Edge, End, Folder, Hello, Pki, SOON, Upstream, alert_of, ending, expect, need, output,
    until,
};

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// The destination of whoever says host.test inside, on loopback.
const NAMED: &str = "[[rule]]\nname = \"named\"\nsni = \"host.test\"\naction = \"splice\"\n\
                     upstream = \"destination\"\nupstream_allow = \"127.0.0.0/8\"\n";

fn edge(folder: &Folder, rules: &str) -> Edge {
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"connect\"\n";
    Edge::start_whole(folder, &format!("{listener}{rules}"), |_| ())
}

fn head(target: impl std::fmt::Display) -> Vec<u8> {
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").into_bytes()
}

/// Sends, reads to the end: the status line without its explanation, the body, and the access
/// line.
fn answer(edge: &Edge, request: &[u8]) -> (String, String, Value) {
    let mut client = edge.connect();
    client.write_all(request).unwrap();
    let (got, end) = ending(&mut client, SOON);
    assert_eq!(end, End::Fin);
    let text = String::from_utf8(got).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let length = format!("Content-Length: {}\r\n", body.len());
    assert!(body.is_empty() || head.contains(&length), "{head}");
    let status = head.lines().next().unwrap_or("").split(" (").next().unwrap_or("").to_owned();
    (status, body.to_owned(), edge.line_of(client.local_addr().unwrap()))
}

/// A hello inside, there and back.
fn passes(edge: &Edge, origin: &Upstream, target: &str, hello: &[u8]) -> Value {
    let mut client = edge.connect();
    client.write_all(&head(target)).unwrap();
    expect(&mut client, ESTABLISHED);
    client.write_all(hello).unwrap();
    let mut server = origin.take();
    expect(&mut server, hello);
    server.write_all(&server_flight()).unwrap();
    expect(&mut client, &server_flight());
    let own = client.local_addr().unwrap();
    drop((client, server));
    edge.line_of(own)
}

#[test]
fn the_hello_is_peeked_inside() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    let edge = edge(&folder, NAMED);
    let target = origin.address.to_string();
    let hello = Hello::named("host.test").bytes();
    let line = passes(&edge, &origin, &target, &hello);
    assert_eq!(line["outcome"], "spliced", "{line}");
    assert_eq!(line["connect"], target, "{line}");
    assert_eq!(line["destination"], target, "{line}");
    assert_eq!(line["upstream"], target, "{line}");
    assert_eq!(line["sni"], "host.test", "{line}");
    assert_eq!(line["bytes_to_upstream"], hello.len(), "the head is ours: {line}");
    assert_eq!(line["bytes_to_client"], server_flight().len(), "so is the 200: {line}");
}

#[test]
fn bytes_behind_the_head_are_the_beginning_of_the_hello_however_they_are_cut() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    // Hundreds of writes may take their time.
    let edge = edge(&folder, &format!("{NAMED}[limits]\nhello_timeout = \"60s\"\n"));
    let hello = Hello::named("host.test").bytes();
    let head = head(origin.address);
    let all = [&head[..], &hello, b"early"].concat();
    for first in [1, 7, 8, head.len() - 1, head.len(), head.len() + 1, head.len() + 5, all.len()] {
        let mut client = edge.connect();
        client.write_all(&all[..first]).unwrap();
        thread::sleep(Duration::from_millis(5));
        client.write_all(&all[first..]).unwrap();
        expect(&mut client, ESTABLISHED);
        let mut server = origin.take();
        expect(&mut server, &all[head.len()..]);
    }
    let mut client = edge.connect();
    for byte in &all {
        client.write_all(&[*byte]).unwrap();
    }
    expect(&mut client, ESTABLISHED);
    expect(&mut origin.take(), &all[head.len()..]);
}

#[test]
fn what_is_no_connect_is_told_so_in_its_own_protocol() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    let edge = edge(&folder, NAMED);
    let to = |fields: &str| format!("CONNECT a.test:443 HTTP/1.1\r\n{fields}\r\n").into_bytes();
    let bad = "HTTP/1.1 400 Bad Request";
    for (request, status, reason) in [
        (to("Host: b c\r\n"), bad, "malformed CONNECT: the Host field names no host"),
        (to(""), bad, "malformed CONNECT: no Host field"),
        (to("Host: a.test:443\r\n x\r\n"), bad, "malformed CONNECT: folded field"),
        (to("Host: a.test:443\n"), bad, "malformed CONNECT: LF without CR"),
        (
            to("Host: a.test\r\nContent-Length: 4\r\n"),
            bad,
            "malformed CONNECT: CONNECT with content",
        ),
        (
            to("Host: a.test\r\nTransfer-Encoding: chunked\r\n"),
            bad,
            "malformed CONNECT: CONNECT with content",
        ),
        (
            [b"CONNECT ".to_vec(), vec![b'a'; 8192]].concat(),
            bad,
            "malformed CONNECT: head over 8192 bytes",
        ),
        (
            b"GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n".to_vec(),
            "HTTP/1.1 405 Method Not Allowed",
            "another method than CONNECT",
        ),
        (b"SSH-2.0-x\r\n".to_vec(), "", "not HTTP where CONNECT was expected"),
    ] {
        let (said, body, line) = answer(&edge, &request);
        assert_eq!((said.as_str(), &line["reason"]), (status, &reason.into()), "{line}");
        assert_eq!(line["outcome"], "refused", "{line}");
        assert_eq!(body.ends_with(".\n"), !status.is_empty(), "{body}");
    }
    let mut client = edge.connect();
    client.write_all(&Hello::named("host.test").bytes()).unwrap();
    assert_eq!(alert_of(&ending(&mut client, SOON).0), Some(10), "unexpected_message");
    let line = edge.line_of(client.local_addr().unwrap());
    assert_eq!(line["reason"], "TLS where CONNECT was expected", "{line}");
    assert_eq!(origin.accepted(), 0);
}

#[test]
fn before_the_200_a_refusal_is_http_and_after_it_an_alert() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    let refuse = "[[rule]]\nname = \"inside\"\nconnect = [\"*.inside.test:*\", \"*:25\"]\n\
                  action = \"refuse\"\n";
    let edge = edge(&folder, &format!("{refuse}{NAMED}"));
    for target in ["a.inside.test:443", "b.test:25", "127.0.0.1:25"] {
        let (status, body, line) = answer(&edge, &head(target));
        assert_eq!(status, "HTTP/1.1 403 Forbidden");
        let said = format!(
            "This proxy does not allow {target}: refused by CONNECT target.\nRule: inside\n"
        );
        assert_eq!(body, format!("{said}Connection: {}\n", line["id"].as_str().unwrap()));
        assert_eq!((&line["rule"], &line["connect"]), (&"inside".into(), &target.into()));
        assert_eq!(line["outcome"], "refused", "{line}");
    }
    let mut client = edge.connect();
    client.write_all(&head(origin.address)).unwrap();
    expect(&mut client, ESTABLISHED);
    client.write_all(&Hello::named("other.test").bytes()).unwrap();
    assert_eq!(alert_of(&ending(&mut client, SOON).0), Some(112), "unrecognized_name");
    let line = edge.line_of(client.local_addr().unwrap());
    assert_eq!(line["reason"], "no rule for this name", "{line}");
    assert_eq!(origin.accepted(), 0);
}

/// The names of a list refuse a CONNECT at once: no client understands an alert as well.
#[test]
fn a_target_that_no_rule_lists_is_refused_before_its_hello() {
    let folder = Folder::new();
    folder.write("allow.txt", "host.test\n.mirror.test\n");
    let rules = "[[rule]]\nname = \"games\"\nsni = \"*.games.test\"\naction = \"refuse\"\n\
                 message = \"Ask build@corp.example for a name.\"\n\
                 [[rule]]\nname = \"allowed\"\nconnect = \"*:443\"\n\
                 sni = { file = \"allow.txt\" }\naction = \"splice\"\nupstream = \"{sni}:443\"\n";
    let edge = edge(&folder, rules);
    for (target, rule, reason, message) in [
        ("x.games.test:443", "games", "refused by name", "Ask build@corp.example for a name.\n"),
        ("other.test:443", "", "no rule for this name", ""),
        ("host.test:80", "", "no rule for this name", ""),
    ] {
        let mut client = edge.connect();
        client.write_all(&head(target)).unwrap();
        let (got, end) = ending(&mut client, SOON);
        let (text, line) =
            (String::from_utf8(got).unwrap(), edge.line_of(client.local_addr().unwrap()));
        let id = line["id"].as_str().unwrap();
        let by = if rule.is_empty() { String::new() } else { format!(", rule {rule}") };
        let why = format!("{reason}{by}, connection {id}");
        assert_eq!(text.lines().next(), Some(&*format!("HTTP/1.1 403 Forbidden ({why})")));
        let status =
            format!("\r\nProxy-Status: eyelet; error=http_request_denied; details=\"{why}\"");
        assert!(text.contains(&status), "{text}");
        assert!(text.ends_with(&format!("Connection: {id}\n{message}")), "{text}");
        assert_eq!((end, &line["outcome"]), (End::Fin, &"refused".into()), "{line}");
        assert_eq!(line["rule"], if rule.is_empty() { Value::Null } else { rule.into() });
        assert_eq!((&line["reason"], &line["sni"]), (&reason.into(), &Value::Null), "{line}");
    }
    // A name of the list, and an address, which is no name: their hellos decide.
    for target in ["host.test:443", "a.mirror.test:443", "127.0.0.1:443"] {
        let mut client = edge.connect();
        client.write_all(&head(target)).unwrap();
        expect(&mut client, ESTABLISHED);
    }
}

/// A rule that needs no hello: it may be any protocol, and the server may speak first.
#[test]
fn a_target_that_is_not_tls_is_spliced_by_rule_only() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    let (_held, closed) = nobody();
    let port = origin.address.port();
    let blind = format!(
        "[[rule]]\nname = \"git\"\nconnect = [\"127.0.0.1:{port}\", \"127.0.0.1:{}\"]\n\
         action = \"splice\"\nupstream = \"destination\"\nupstream_allow = \"127.0.0.1\"\n",
        closed.port()
    );
    let rules = format!("{blind}{NAMED}");
    let impatient = edge(&folder, &format!("[limits]\nhello_timeout = \"2s\"\n{rules}"));
    let edge = edge(&folder, &rules);
    let mut client = edge.connect();
    client.write_all(&[head(origin.address), b"SSH-2.0-c\r\n".to_vec()].concat()).unwrap();
    let mut server = origin.take();
    expect(&mut client, ESTABLISHED);
    server.write_all(b"SSH-2.0-s\r\n").unwrap();
    expect(&mut client, b"SSH-2.0-s\r\n");
    expect(&mut server, b"SSH-2.0-c\r\n");
    drop((client, server));

    // The 200 says that the upstream has answered: a closed port is told in HTTP.
    let (status, body, line) = answer(&edge, &head(closed));
    assert_eq!(status, "HTTP/1.1 502 Bad Gateway");
    assert!(body.contains("Connection refused"), "{body}");
    assert_eq!(line["outcome"], "failed", "{line}");

    // Another port: the rule for hellos waits for one, and not for ever.
    let (client, end) = until("a head in time", || {
        let mut client = impatient.connect();
        client.write_all(&head("127.0.0.2:22")).ok()?;
        let (said, end) = ending(&mut client, SOON);
        // A client that this machine made late gets no answer.
        (said == ESTABLISHED).then_some((client, end))
    });
    assert_eq!(end, End::Fin);
    let line = impatient.line_of(client.local_addr().unwrap());
    assert_eq!(line["reason"], "hello_timeout before the hello", "{line}");
    assert_eq!(origin.accepted(), 1);
}

#[test]
fn silence_and_a_dripped_head_are_cut_by_the_clock() {
    let folder = Folder::new();
    let edge = edge(&folder, &format!("[limits]\nhello_timeout = \"2s\"\n{NAMED}"));
    let reason = |client: &mut TcpStream| {
        assert_eq!(ending(client, SOON).0, b"");
        edge.line_of(client.local_addr().unwrap())["reason"].clone()
    };
    let silent = "hello_timeout before the CONNECT request";
    assert_eq!(reason(&mut edge.connect()), silent);
    let dripped = until("a first byte in time", || {
        let began = Instant::now();
        let mut drip = edge.connect();
        let mut first_after = None;
        for byte in head("host.test:443") {
            if drip.write_all(&[byte]).is_err() {
                break;
            }
            first_after.get_or_insert_with(|| began.elapsed());
            thread::sleep(Duration::from_millis(60));
        }
        let reason = reason(&mut drip);
        // A client that this machine made late was silent.
        let is_late = first_after.is_none_or(|after| after > A_WHILE);
        (reason != silent || !is_late).then_some(reason)
    });
    assert_eq!(dripped, "hello_timeout during the CONNECT request");
}

#[test]
fn names_are_resolved_here_and_guarded() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    let server = dns(&[
        ("origin.test", &[[127, 0, 0, 1]]),
        ("mixed.test", &[[1, 2, 3, 4], [10, 0, 0, 1]]),
        ("empty.test", &[]),
        ("many.test", &[[127, 0, 0, 1]; 70]),
    ]);
    let port = origin.address.port();
    // The names inside are not those of the targets, which these rules name.
    let named = NAMED.replace("sni =", "connect = \"*.test:*\"\nsni =");
    let rules = format!(
        "[[rule]]\nname = \"blind\"\nconnect = \"*:9\"\naction = \"splice\"\n\
         upstream = \"destination\"\n{named}[[rule]]\nname = \"by address\"\n\
         connect = \"*.test:{port}\"\nsni = \"a.test\"\ndestination = \"127.0.0.0/8\"\n\
         action = \"splice\"\nupstream = \"destination\"\n\
         upstream_allow = \"127.0.0.0/8\"\n[dns]\nservers = \"{}\"\n",
        server.address
    );
    let edge = edge(&folder, &rules);
    let target = format!("origin.test:{port}");
    let hello = Hello::named("host.test").bytes();
    let line = passes(&edge, &origin, &target, &hello);
    assert_eq!(line["connect"], target, "{line}");
    assert_eq!(line["upstream"], origin.address.to_string(), "{line}");
    assert_eq!(line["destination"], Value::Null, "nobody asked: {line}");
    let line = passes(&edge, &origin, &target, &Hello::named("a.test").bytes());
    assert_eq!(line["rule"], "by address", "{line}");
    assert_eq!(line["destination"], origin.address.to_string(), "{line}");
    let line = passes(&edge, &origin, &format!("many.test:{port}"), &hello);
    assert_eq!(line["upstream"], origin.address.to_string(), "{line}");
    for (target, status, reason) in [
        ("mixed.test:9", "403 Forbidden", "mixed.test resolves to 10.0.0.1, which upstream_allow"),
        ("empty.test:9", "502 Bad Gateway", "DNS"),
        ("nowhere.test:9", "502 Bad Gateway", "DNS"),
        ("10.0.0.1:9", "403 Forbidden", "upstream: 10.0.0.1, which upstream_allow does not list"),
        ("[::1]:9", "403 Forbidden", "upstream: ::1, which upstream_allow does not list"),
        ("[64:ff9b::a00:1]:9", "403 Forbidden", "which upstream_allow does not list"),
        ("169.254.169.254:9", "403 Forbidden", "which upstream_allow does not list"),
        ("0.0.0.0:9", "403 Forbidden", "which upstream_allow does not list"),
    ] {
        let (said, body, line) = answer(&edge, &head(target));
        assert_eq!(said, format!("HTTP/1.1 {status}"), "{line}");
        assert!(line["reason"].as_str().unwrap().contains(reason), "{line}");
        assert!(body.contains(reason), "{body}");
    }
}

/// A name that leads inside is a 403 where the rule dials the name of the hello, which is still to
/// come. A rule that allows the network, or that expects another name inside, is waited for.
#[test]
fn a_name_that_leads_inside_is_refused_before_the_hello() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    let server = dns(&[
        ("inside.test", &[[10, 0, 0, 1]]),
        ("near.test", &[[127, 0, 0, 1]]),
        ("front.test", &[[10, 0, 0, 1]]),
    ]);
    let port = origin.address.port();
    let rules = format!(
        "[[rule]]\nname = \"near\"\nconnect = \"*:{port}\"\nsni = \"near.test\"\n\
         action = \"splice\"\nupstream = \"{{sni}}:{port}\"\nupstream_allow = \"127.0.0.0/8\"\n\
         [[rule]]\nname = \"front\"\nconnect = \"front.test:443\"\nsni = \"near.test\"\n\
         action = \"splice\"\nupstream = \"{{sni}}:{port}\"\nupstream_allow = \"127.0.0.0/8\"\n\
         [[rule]]\nname = \"names\"\nconnect = \"*:443\"\nsni = [\"inside.test\", \"near.test\", \
         \"nowhere.test\"]\naction = \"splice\"\nupstream = \"{{sni}}:443\"\n\
         [dns]\nservers = \"{}\"\n",
        server.address
    );
    let edge = edge(&folder, &rules);
    for (target, address) in [("inside.test:443", "10.0.0.1"), ("near.test:443", "127.0.0.1")] {
        let (said, body, line) = answer(&edge, &head(target));
        assert_eq!(said, "HTTP/1.1 403 Forbidden", "{line}");
        let reason = format!("resolves to {address}, which upstream_allow does not list");
        assert!(body.contains(&reason), "{body}");
        assert!(line["reason"].as_str().unwrap().contains(&reason), "{line}");
        assert_eq!((&line["rule"], &line["outcome"]), (&"names".into(), &"refused".into()));
    }
    let hello = Hello::named("near.test").bytes();
    for target in [format!("near.test:{port}"), "front.test:443".into()] {
        let line = passes(&edge, &origin, &target, &hello);
        assert_eq!(line["upstream"], origin.address.to_string(), "{line}");
    }
    // Another fault of the name is the dial's, behind the hello.
    let mut client = edge.connect();
    client.write_all(&head("nowhere.test:443")).unwrap();
    expect(&mut client, ESTABLISHED);
}

/// A client that may not reach the inside does not learn by our handshakes what is open there.
#[test]
fn no_certificate_is_asked_for_inside() {
    let (pki, inside) = (Pki::new(), Upstream::by_hand());
    let (_held, closed) = nobody();
    let server = dns(&[("inside.test", &[[127, 0, 0, 1]])]);
    let rules = format!(
        "[[rule]]\nsni_verified = true\nevidence = \"certificate\"\naction = \"splice\"\n\
         upstream = \"destination\"\n[dns]\nservers = \"{}\"\n[evidence]\nca = \"{}\"\n",
        server.address,
        pki.text("ca.pem")
    );
    let ask = |edge: &Edge, target: &str| {
        let mut client = edge.connect();
        client.write_all(&head(target)).unwrap();
        expect(&mut client, ESTABLISHED);
        client.write_all(&Hello::named("host.test").bytes()).unwrap();
        client
    };
    let port = inside.address.port();
    let closed_edge = edge(&pki.folder, &rules);
    for target in [
        inside.address.to_string(),
        closed.to_string(),
        format!("[::ffff:127.0.0.1]:{port}"),
        format!("inside.test:{port}"),
        closed_edge.address().to_string(),
    ] {
        let mut client = ask(&closed_edge, &target);
        assert_eq!(alert_of(&ending(&mut client, SOON).0), Some(49), "access_denied");
        let line = closed_edge.line_of(client.local_addr().unwrap());
        let unknown =
            "certificate: 127.0.0.1 is an internal address that upstream_allow does not list";
        let reason = format!("no rule for this connection (unknown: {unknown})");
        assert_eq!(line["reason"], reason, "{target}: {line}");
    }
    assert_eq!(inside.accepted(), 0);

    // Which rule will match is not known yet: what any of them allows is asked.
    let other = "[[rule]]\nsni = \"other.test\"\naction = \"splice\"\n\
                 upstream = \"destination\"\nupstream_allow = \"127.0.0.0/8\"\n";
    let open_edge = edge(&pki.folder, &format!("{other}{rules}"));
    let _client = ask(&open_edge, &inside.address.to_string());
    expect(&mut inside.take(), &[22, 3]);
}

/// A resolver that never answers, or says that there is nothing: refused, and the line says why.
#[test]
fn a_destination_that_cannot_be_resolved_fails_closed() {
    let folder = Folder::new();
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let empty = dns(&[]);
    let rules = "[limits]\nconnect_timeout = \"3s\"\nhello_timeout = \"2s\"\n\
                 [[rule]]\nname = \"inside\"\ndestination = \"10.0.0.0/8\"\naction = \"refuse\"\n\
                 [[rule]]\naction = \"splice\"\nupstream = \"destination\"\n";
    for (server, why) in [
        (silent.local_addr().unwrap(), "upstream: connect_timeout during DNS"),
        (empty.address, "upstream: DNS: "),
    ] {
        let edge = edge(&folder, &format!("{rules}[dns]\nservers = \"{server}\"\n"));
        // A head that this machine made late is refused before it is read.
        let (status, line) = until("a head in time", || {
            let (status, _, line) = answer(&edge, &head("a.test:443"));
            let late = "hello_timeout before the CONNECT request";
            (line["reason"] != late).then_some((status, line))
        });
        assert_eq!(status, "HTTP/1.1 403 Forbidden");
        assert_eq!(line["rule"], "inside", "{line}");
        let reason = format!("refused by address; no destination: {why}");
        assert!(line["reason"].as_str().unwrap().starts_with(&reason), "{line}");
    }
}

#[test]
fn a_proxy_is_not_its_own_target() {
    let folder = Folder::new();
    let blind = "[[rule]]\naction = \"splice\"\nupstream = \"destination\"\n\
                 upstream_allow = \"127.0.0.0/8\"\n";
    let edge = edge(&folder, blind);
    for target in [edge.address().to_string(), format!("127.0.0.1:{}", edge.port())] {
        let (status, _, line) = answer(&edge, &head(target));
        assert_eq!(status, "HTTP/1.1 403 Forbidden");
        let reason = format!("loop: {} is a listener of this edge", edge.address());
        assert_eq!(line["reason"], reason, "{line}");
    }
    assert_eq!(edge.lines().len(), 2, "{:#?}", edge.lines());
}

/// A load balancer in front tells the client, and its own idea of a destination is the proxy.
#[test]
fn a_proxy_header_names_the_client_and_not_the_target() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"connect\"\n\
                    proxy_protocol_from = \"127.0.0.0/8\"\n";
    let edge = Edge::start_whole(&folder, &format!("{listener}{NAMED}"), |_| ());
    let mut client: TcpStream = connect(edge.address());
    client.write_all(b"PROXY TCP4 192.0.2.7 192.0.2.8 5000 3128\r\n").unwrap();
    client.write_all(&head(origin.address)).unwrap();
    expect(&mut client, ESTABLISHED);
    client.write_all(&Hello::named("host.test").bytes()).unwrap();
    let server = origin.take();
    drop((client, server));
    let client: SocketAddr = "192.0.2.7:5000".parse().unwrap();
    let line = edge.line_of(client);
    assert_eq!(line["destination"], origin.address.to_string(), "{line}");
}

/// Each program says as much as it can, and those that can be told so try once.
#[test]
fn refused_clients_of_the_world_are_told() {
    let folder = Folder::new();
    let rules = "[[rule]]\nconnect = \"*:443\"\nsni = \"host.test\"\naction = \"splice\"\n\
                 upstream = \"{sni}:443\"\n[[rule]]\nname = \"rest\"\naction = \"refuse\"\n";
    let edge = edge(&folder, rules);
    let proxy = format!("http://{}", edge.address());
    let cache = folder.path().display();
    let url = "https://nobody.example";
    let why = "403 Forbidden (no rule for this name, rule rest, connection ";
    for (program, arguments, said, tries) in [
        ("curl", format!("-v --noproxy none.test --proxy {proxy} {url}/"), why, 1),
        ("git", format!("-c http.proxy={proxy} ls-remote {url}/x.git"), "response 403", 1),
        (
            "npm",
            format!(
                "view left-pad --registry {url}/ --proxy {proxy} --https-proxy {proxy} \
                     --cache {cache} --userconfig /dev/null --update-notifier=false"
            ),
            why,
            1,
        ),
        (
            "pip",
            format!(
                "--isolated --disable-pip-version-check --no-cache-dir --retries 1 \
                     --proxy {proxy} download --no-index --no-deps {url}/x-1.0-py3-none-any.whl"
            ),
            why,
            2,
        ),
    ] {
        if !need(program) {
            continue;
        }
        let before = edge.lines().len();
        let mut command = Command::new(program);
        let heard = output(command.args(arguments.split_whitespace()).current_dir(folder.path()));
        assert!(!heard.status.success(), "{program}: {}", heard.text);
        assert!(heard.text.contains(said), "{program}: {}", heard.text);
        let told = || (edge.lines().len() >= before + tries).then_some(());
        until(program, told);
        assert_eq!(edge.lines().len(), before + tries, "{program}: {}", heard.text);
    }
}

#[test]
fn clients_of_the_world_get_through() {
    let pki = Pki::new();
    let web = Upstream::https(pki.server("web", &["web.test"], Kind::P256));
    let port = web.address.port();
    let server = dns(&[("web.test", &[[127, 0, 0, 1]])]);
    let rules = format!(
        "{}[dns]\nservers = \"{}\"\n",
        NAMED.replace("host.test", "web.test"),
        server.address
    );
    let edge = edge(&pki.folder, &rules);
    let (proxy, url) = (format!("http://{}", edge.address()), format!("https://web.test:{port}/"));
    if need("curl") {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--noproxy", "", "--proxy", &proxy, &url]);
        let said = output(curl.args(["--cacert", &pki.text("ca.pem")]));
        assert!(said.text.contains("GET / HTTP/1.1"), "{}", said.text);
    }
    if need("python3") {
        let program = format!(
            "import http.client, ssl\n\
             c = http.client.HTTPSConnection('127.0.0.1', {}, timeout=20, \
             context=ssl.create_default_context(cafile='{}'))\n\
             c.set_tunnel('web.test', {port})\nc.request('GET', '/')\n\
             print(c.getresponse().read().decode())\n",
            edge.port(),
            pki.text("ca.pem")
        );
        let said = output(Command::new("python3").args(["-c", &program]));
        assert!(said.text.contains("GET / HTTP/1.1"), "{}", said.text);
    }
    let line = edge.line("web.test", |line| line["connect"] == format!("web.test:{port}"));
    assert_eq!(line["sni"], "web.test", "{line}");
}

/// By expressions in the configuration, and by those of a file. Nothing is resolved for them.
#[test]
fn a_target_is_taken_by_regular_expressions() {
    let (folder, origin) = (Folder::new(), Upstream::by_hand());
    folder.write("banks.txt", "(^|\\.)bank[0-9]*\\.test$\n");
    let edge = edge(
        &folder,
        &format!(
            "[[rule]]\nname = \"ads\"\nconnect = {{ regex = '^ads[0-9]+\\.', port = \"*\" }}\n\
             action = \"refuse\"\n[[rule]]\nname = \"banks\"\n\
             connect = {{ regex_file = \"banks.txt\", port = 443 }}\naction = \"splice\"\n\
             upstream = \"{}\"\n",
            origin.address
        ),
    );
    let hello = Hello::named("inside.test").bytes();
    for target in ["bank.test:443", "WWW.Bank7.test:443"] {
        let line = passes(&edge, &origin, target, &hello);
        assert_eq!((&line["rule"], &line["outcome"]), (&"banks".into(), &"spliced".into()));
    }
    let refused = |target: &str, rule: Value| {
        let (status, _, line) = answer(&edge, &head(target));
        assert_eq!(status, "HTTP/1.1 403 Forbidden", "{target}: {line}");
        assert_eq!(line["rule"], rule, "{target}: {line}");
    };
    for target in ["ads7.bank.test:443", "ADS12.test:8443"] {
        refused(target, "ads".into());
    }
    for target in ["bank.test:8443", "notbank.test:443", "bank.test.evil:443", "127.0.0.1:443"] {
        refused(target, Value::Null);
    }
    folder.write("banks.txt", "^vault\\.\n");
    edge.wait_log("banks.txt: its new contents are in use");
    refused("bank.test:443", Value::Null);
    passes(&edge, &origin, "vault.test:443", &hello);
}

/// A request for another name of the rule is served only if no earlier rule would take that name
/// with the same CONNECT.
#[test]
fn a_rule_on_connect_counts_for_each_host() {
    let pki = Pki::new();
    let app = Upstream::serve(|mut stream| {
        crate::support::web::head(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    });
    let served = pki.terminate(&format!("http://{}", app.address), "");
    let served = served.replace("\"app.test\"", "[\"app.test\", \"other.test\"]");
    for (connect, status) in [("*:443", 421), ("other.test:443", 421), ("*:8443", 200)] {
        let refuse = "[[rule]]\nsni = \"other.test\"\naction = \"refuse\"\n";
        let edge = edge(&pki.folder, &format!("{refuse}connect = \"{connect}\"\n{served}"));
        let mut client = edge.connect();
        client.write_all(&head("app.test:443")).unwrap();
        expect(&mut client, ESTABLISHED);
        let mut client = handshake(Offer::new(&pki).config(), client, "app.test").unwrap();
        let request = "GET / HTTP/1.1\r\nHost: other.test\r\n\r\n";
        assert_eq!(ask(&mut client, request).status, status, "{connect}");
    }
}

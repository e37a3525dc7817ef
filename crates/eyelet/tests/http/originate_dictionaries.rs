//! Dictionaries that an originate rule learns (RFC 9842): a pair of edges, and origins that do not
//! keep to it.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::originate_coded::{Near, field, said};
use crate::support::client::{End, ending};
use crate::support::pki::Kind;
use crate::support::web::{head, hear};
use crate::support::{Edge, Pki, SOON, Upstream, edge, until};

/// A bundle in a version.
pub fn bundle(version: usize) -> String {
    let line = |n: usize| {
        let number = if n == 700 { version } else { n };
        format!("export const value{n} = {:x};\n", (number * 7919).wrapping_mul(2_654_435_761))
    };
    (0..3000).map(line).collect()
}

pub fn application(stream: &mut TcpStream) {
    let mut byte = [0];
    while let Ok(1) = stream.peek(&mut byte) {
        let asked = head(stream);
        let version = asked.split(['.', ' ']).nth(2).and_then(|text| text.parse().ok());
        let fields = "Content-Type: text/javascript\r\nCache-Control: public, max-age=600\r\n";
        let said = said(fields, bundle(version.unwrap_or(0)).as_bytes());
        if stream.write_all(&said).is_err() {
            return;
        }
    }
}

fn near(pki: &Pki, far: &Edge) -> Edge {
    near_with(pki, far, "[dictionary]\npath = \"off\"\n")
}

fn near_with(pki: &Pki, far: &Edge, more: &str) -> Edge {
    Edge::spawn(near_command(pki, far, more), 1)
}

pub fn near_command(pki: &Pki, far: &Edge, more: &str) -> Command {
    let config = format!(
        "workers = 1\n[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n[[rule]]\n\
         name = \"out\"\naction = \"originate\"\nupstream = \"https://{}\"\n\
         upstream_name = \"app.test\"\nupstream_ca = \"ca.pem\"\n{more}",
        far.address()
    );
    // Beside the far edge's own file.
    let file = pki.folder.write("near.toml", config);
    let mut command = edge::eyelet(&pki.folder);
    command.arg("serve").arg(file);
    command
}

pub fn get(near: &Edge, path: &str) -> crate::support::web::Heard {
    let mut client = near.connect();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.write_all(request.as_bytes()).unwrap();
    hear(&mut client, "GET")
}

/// Two edges, and a client that knows no coding at all: what it asks for again travels as the
/// difference.
#[test]
fn a_second_version_travels_as_the_difference_between_two_edges() {
    let pki = Pki::new();
    let app = Upstream::serve(|mut stream| application(&mut stream));
    pki.server("edge", &["app.test"], Kind::P256);
    let rule = pki.terminate(&format!("http://{}", app.address), "dictionary = \"/app.*.js\"");
    let far = Edge::start(&pki.folder, &rule);
    let near = near(&pki, &far);
    for version in 1..=3 {
        let path = format!("/app.{version}.js");
        let heard = get(&near, &path);
        assert_eq!(heard.status, 200, "{heard:?}");
        assert!(heard.body == bundle(version).as_bytes(), "version {version}");
        for gone in ["content-encoding", "use-as-dictionary"] {
            assert_eq!(heard.field(gone), None, "{}", heard.head);
        }
        let of_path = |line: &serde_json::Value| line["http"]["path"] == *path;
        let (here, there) = (near.line(&path, of_path), far.line(&path, of_path));
        assert_eq!(here["bytes_sent"], bundle(version).len(), "{here}");
        if version == 1 {
            continue;
        }
        assert_eq!(here["why_not"], "decoded from dcz", "{here} {there}");
        let sent = there["bytes_sent"].as_u64().unwrap();
        assert!(sent < 500, "{sent} bytes of {}: {there}", bundle(version).len());
    }
    drop(near);
    // An edge that has lost its dictionaries is as one that never had any.
    let again = self::near(&pki, &far);
    assert!(get(&again, "/app.3.js").body == bundle(3).as_bytes());
    let line = again.line("the request", |line| line["http"]["path"] == "/app.3.js");
    assert_ne!(line["why_not"], "decoded from dcz", "{line}");
}

/// A far edge that has lost its store codes without it.
#[test]
fn a_far_edge_without_the_dictionary_is_plain_http() {
    let pki = Pki::new();
    let app = Upstream::serve(|mut stream| application(&mut stream));
    pki.server("edge", &["app.test"], Kind::P256);
    let rule = |keys: &str| pki.terminate(&format!("http://{}", app.address), keys);
    let file = pki
        .folder
        .write("far.toml", format!("{}{}", edge::LISTENER, rule("dictionary = \"/app.*.js\"")));
    let mut command = edge::eyelet(&pki.folder);
    command.arg("serve").arg(&file);
    let far = Edge::spawn(command, 1);
    let near = near(&pki, &far);
    assert!(get(&near, "/app.1.js").body == bundle(1).as_bytes());
    pki.folder.write("far.toml", format!("{}{}", edge::LISTENER, rule("")));
    let said = crate::support::program::output(edge::eyelet(&pki.folder).arg("reload").arg(&file));
    assert!(said.status.success(), "{}", said.text);
    until("the far edge to offer none", || {
        let body = get(&near, "/app.2.js").body;
        assert!(body == bundle(2).as_bytes());
        let lines = near.lines();
        let last = lines.iter().rfind(|line| line["http"]["path"] == "/app.2.js")?;
        (last["why_not"] != "decoded from dcz").then_some(())
    });
}

const PUBLIC: &str = "Cache-Control: public, max-age=600\r\n";

/// Each path says what its response is; `X-Seen` says which dictionary was named.
fn by_path(asked: &str) -> Vec<u8> {
    let path = asked.split(' ').nth(1).unwrap();
    let seen = field(asked, "available-dictionary").unwrap_or("none").to_owned();
    let fields = match path {
        "/private" => "Cache-Control: private, max-age=600\r\n".to_owned(),
        "/cookie" => format!("{PUBLIC}Set-Cookie: a=b\r\n"),
        "/vary" => format!("{PUBLIC}Vary: cookie\r\n"),
        "/credentials" => "Cache-Control: max-age=600\r\n".to_owned(),
        "/stale" => "Cache-Control: max-age=0\r\n".to_owned(),
        "/unsaid" => String::new(),
        _ => PUBLIC.to_owned(),
    };
    let fields = format!(
        "{fields}X-Seen: {seen}\r\nX-Id: {}\r\nUse-As-Dictionary: match=\"/*\", id=\"{path}\"\r\n",
        field(asked, "dictionary-id").unwrap_or("none")
    );
    let mut coded = vec![0x5E, 0x2A, 0x4D, 0x18, 0x20, 0, 0, 0];
    match path {
        "/wrong" if seen != "none" => {
            coded.extend([9; 60]);
            said(&format!("{fields}Content-Encoding: dcz\r\n"), &coded)
        }
        // The right header, and no frame behind it.
        "/broken" if seen != "none" => {
            coded.extend(STANDARD.decode(seen.trim_matches(':')).unwrap());
            coded.extend([9; 60]);
            said(&format!("{fields}Content-Encoding: dcz\r\n"), &coded)
        }
        _ => said(&fields, format!("{path} has these bytes\n").repeat(50).as_bytes()),
    }
}

#[test]
fn one_clients_response_is_no_dictionary_for_another() {
    let near = Near::new("", by_path);
    let cookie = "Cookie: session=1\r\n";
    for (path, fields) in [
        ("/private", ""),
        ("/cookie", ""),
        ("/vary", ""),
        ("/credentials", cookie),
        ("/credentials", "Authorization: Basic eA==\r\n"),
        ("/credentials", "Authorization: Bearer x\r\n"),
        ("/stale", ""),
        ("/unsaid", ""),
    ] {
        let heard = near.get(path, fields);
        assert_eq!(heard.field("x-seen"), Some("none"), "before {path}");
        assert_eq!(heard.field("use-as-dictionary"), None, "{path}");
    }
    // The upstream may know the client of the second request by its connection, as with NTLM.
    let mut client = near.edge.connect();
    let of = |fields: &str| format!("GET /credentials HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    let both = of("Authorization: Negotiate x\r\n") + &of("");
    client.write_all(both.as_bytes()).unwrap();
    for _ in 0..2 {
        assert_eq!(hear(&mut client, "GET").field("x-seen"), Some("none"));
    }
    assert_eq!(near.get("/public", "").field("x-seen"), Some("none"), "none was learned");
    let heard = near.get("/next", "");
    assert!(heard.field("x-seen").is_some_and(|seen| seen.starts_with(':')), "{}", heard.head);
    assert_eq!(heard.field("x-id"), Some("\"/public\""));
    // Not for a part, for what a page of another origin cannot read, or for an unsafe request.
    for fields in
        ["Range: bytes=0-9\r\n", "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\n"]
    {
        assert_eq!(near.get("/next", fields).field("x-seen"), Some("none"), "{fields}");
    }
    let heard = near.ask(&mut near.edge.connect(), "POST", "/next", "Content-Length: 0\r\n");
    assert_eq!(heard.field("x-seen"), Some("none"));
}

#[test]
fn a_response_of_another_dictionary_is_asked_for_once_more() {
    let near = Near::new("", by_path);
    near.get("/public", "");
    let heard = near.get("/wrong", "");
    assert_eq!((heard.status, heard.field("x-seen")), (200, Some("none")), "{}", heard.head);
    assert_eq!(heard.text(), "/wrong has these bytes\n".repeat(50));
    // The wrong dictionary is not named again, but what came later is.
    let heard = near.get("/next", "");
    assert_eq!(heard.field("x-seen"), Some("none"), "the repeat was made as the client did");
    let heard = near.get("/last", "");
    assert_eq!(heard.field("x-id"), Some("\"/next\""), "{}", heard.head);
}

/// Otherwise it would end each response in the middle for as long as it is fresh.
#[test]
fn a_dictionary_with_which_nothing_decodes_is_not_named_again() {
    let near = Near::new("", by_path);
    near.get("/public", "");
    let mut client = near.edge.connect();
    client.write_all(b"GET /broken HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let (_, end) = ending(&mut client, SOON);
    assert_ne!(end, End::Open);
    let line = near.edge.line("the request", |line| line["http"]["path"] == "/broken");
    let reason = line["reason"].as_str().unwrap();
    assert!(reason.contains("malformed content coding"), "{line}");
    let heard = near.get("/broken", "");
    assert_eq!((heard.status, heard.field("x-seen")), (200, Some("none")), "{}", heard.head);
    assert_eq!(heard.text(), "/broken has these bytes\n".repeat(50));
}

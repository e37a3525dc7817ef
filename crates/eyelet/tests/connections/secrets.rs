//! Secrets of a CONNECT listener that mints: real clients send placeholders, and origins get the
//! secrets that they stand for, where they may stand.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustix::process::{Signal, kill_process};

use crate::admin;
use crate::mint::{ALLOWED, CONNECT, EVIDENCE, MINT, Minting};
use crate::support::client::{Offer, handshake};
use crate::support::edge::eyelet;
use crate::support::pki::Kind;
use crate::support::{Edge, Pki, Upstream, expect, need, output, two, until};

/// Of a forge and of a vendor.
pub const TOKEN: &str = "ghp_0123456789abcdefghij";
const KEY: &str = "vendor-key-9876543210";
pub const GITHUB: &str = "EYELET_SECRET_GITHUB";
const VENDOR: &str = "EYELET_SECRET_VENDOR";
const SECRETS: &str = "[[secret]]\nplaceholder = \"EYELET_SECRET_GITHUB\"\nfile = \"token\"\n\
    names = [\"app.test\"]\nmethods = [\"GET\", \"POST\"]\n\
    [[secret]]\nplaceholder = \"EYELET_SECRET_VENDOR\"\ncommand = [\"cat\", \"vendor.key\"]\n\
    names = [\"*.test\"]\nheaders = [\"x-vendor-key\"]\nrefresh = \"10s\"\n";

/// The secrets, as bytes and in base64 behind a user.
fn forms() -> Vec<String> {
    let coded = |secret: &str| BASE64_STANDARD.encode(format!("me:{secret}"));
    vec![TOKEN.into(), KEY.into(), coded(TOKEN), coded(KEY)]
}

/// Fails if a text has a secret in any form.
pub fn assert_hidden(what: &str, text: &str) {
    for form in forms() {
        assert!(!text.contains(&form), "{what} has a secret: {text}");
    }
}

/// An edge with secrets, in front of these origins.
pub fn start(origins: Pki, more: &str) -> Minting {
    origins.folder.write("token", format!("{TOKEN}\n"));
    origins.folder.write("vendor.key", KEY);
    let config = format!("{more}{CONNECT}{MINT}{ALLOWED}{EVIDENCE}{SECRETS}");
    // The command is run in the edge's folder, as relative paths of files are read.
    let mint = Pki::new();
    mint.write_authority(&origins.folder, "mint");
    let folder = origins.folder.path().to_owned();
    let edge = Edge::start_whole(&origins.folder, &format!("workers = 1\n{config}"), |command| {
        _ = command.current_dir(folder)
    });
    Minting { edge, origins, mint }
}

/// An origin that says back what it was asked.
pub fn echo(origins: &Pki) -> Upstream {
    Upstream::https(origins.server("a", &["app.test", "other.test"], Kind::P256))
}

pub fn bearer() -> String {
    format!("Authorization: Bearer {GITHUB}")
}

/// The status of a curl's response, and its body.
fn ask(at: &Minting, origin: SocketAddr, name: &str, more: &[&str]) -> (String, String) {
    let all = [&["-w", "\n%{http_code}"], more].concat();
    let said = at.curl(origin, name, &all).text;
    let (body, status) = said.rsplit_once('\n').unwrap_or(("", &said));
    (status.to_owned(), body.to_owned())
}

#[test]
fn an_origin_gets_the_secret_that_a_client_never_has() {
    if !need("curl") {
        return;
    }
    let origins = Pki::new();
    let origin = echo(&origins);
    let at = start(origins, "");
    let basic = |user: &str| format!("Authorization: Basic {}", BASE64_STANDARD.encode(user));
    for version in ["--http1.1", "--http2"] {
        for (given, expected) in [
            (vec!["-H".to_owned(), bearer()], format!("Bearer {TOKEN}")),
            (vec!["-u".into(), format!("me:{GITHUB}")], basic(&format!("me:{TOKEN}"))),
            (vec!["-u".into(), format!("{GITHUB}:x")], basic(&format!("{TOKEN}:x"))),
            (vec!["-H".into(), format!("X-Vendor-Key: {VENDOR}")], KEY.to_owned()),
            (vec!["-d".into(), "a=b".into(), "-H".into(), bearer()], format!("Bearer {TOKEN}")),
        ] {
            let more: Vec<&str> = given.iter().map(String::as_str).chain([version]).collect();
            let (status, body) = ask(&at, origin.address, "app.test", &more);
            let expected = expected.trim_start_matches("Authorization: ");
            assert_eq!(status, "200", "{given:?}: {body}");
            assert!(body.contains(expected) && !body.contains("EYELET"), "{given:?}: {body}");
        }
    }
    let lines = at.edge.lines().iter().map(ToString::to_string).collect::<String>();
    assert_hidden("the access log", &lines);
    assert_hidden("the log", &at.edge.log());
}

#[test]
fn an_origin_of_http2_gets_the_secret_in_each_request() {
    if !need("curl") {
        return;
    }
    let origins = Pki::new();
    let leaf = origins.server("a", &["app.test"], Kind::P256);
    let origin = two::app(100, Some(leaf), |(request, mut respond)| {
        Box::pin(async move {
            let field = &request.headers()["authorization"];
            two::say(&mut respond, field.to_str().unwrap().to_owned());
        })
    });
    let at = start(origins, "");
    for _ in 0..2 {
        let (status, body) = ask(&at, origin.address, "app.test", &["--http2", "-H", &bearer()]);
        assert_eq!((&*status, &*body), ("200", &*format!("Bearer {TOKEN}")));
    }
}

#[test]
fn a_placeholder_elsewhere_is_refused_and_logged() {
    if !need("curl") {
        return;
    }
    let origins = Pki::new();
    let origin = echo(&origins);
    let leads = Upstream::tls(origins.server("r", &["app.test"], Kind::P256), |tls| {
        let mut piece = [0; 4096];
        let _ = tls.read(&mut piece);
        let _ = tls.write_all(
            b"HTTP/1.1 302 Found\r\nLocation: https://other.test/there\r\n\
            Content-Length: 0\r\nConnection: close\r\n\r\n",
        );
    });
    let at = start(origins, "");
    let field = format!("Cookie: a={GITHUB}");
    let twice = format!("Authorization: {GITHUB} {GITHUB}");
    let bearer = bearer();
    let query = format!("https://app.test/?token={GITHUB}");
    for (name, more, why) in [
        ("other.test", vec!["-H", &bearer], "in a request to other.test"),
        ("app.test", vec!["-H", &field], "in the field cookie"),
        ("app.test", vec!["-H", &twice], "twice in a field"),
        ("app.test", vec!["-X", "DELETE", "-H", &bearer], "in a request with DELETE"),
        ("app.test", vec!["-H", &bearer, "-H", "Host: other.test"], "in a request to other.test"),
    ] {
        for version in ["--http1.1", "--http2"] {
            let more = [&more[..], &[version]].concat();
            let (status, body) = ask(&at, origin.address, name, &more);
            if status == "421" {
                // The host does not lead to this rule: nothing was asked.
                continue;
            }
            assert_eq!(status, "403", "{more:?}: {body}");
            let expected = format!("{GITHUB} may not stand {why}");
            assert!(body.contains(&expected), "{more:?}: {body}");
            at.edge.line(why, |line| {
                line["reason"] == format!("secret: {expected}") && line["outcome"] == "refused"
            });
        }
    }
    // `curl` of the helper asks for its own path as well: the last URL's status comes last.
    let (_, body) = ask(&at, origin.address, "app.test", &[&query]);
    assert!(body.contains("may not stand in a URL"), "{body}");
    // A redirect to another host. curl sends a field of its caller's there, too.
    let followed = ["-L", "--http1.1", "-H", &bearer];
    let said = ask(&at, leads.address, "app.test", &followed);
    assert!(!said.1.contains(TOKEN), "{said:?}");
    let reached = at.edge.lines().iter().any(|line| line["sni"] == "other.test");
    assert!(reached, "the redirect was followed");
}

#[test]
fn a_placeholder_in_a_trailer_or_for_the_proxy_is_refused() {
    if !need("curl") {
        return;
    }
    let origins = Pki::new();
    let origin = echo(&origins);
    let at = start(origins, "");
    let proxy = ["--proxy-user", &format!("me:{GITHUB}")];
    let said = at.curl(origin.address, "app.test", &proxy);
    assert!(!said.status.success() && said.text.contains("403"), "{}", said.text);
    at.edge.line("credentials for the proxy", |line| {
        line["reason"] == format!("secret: {GITHUB} may not stand in credentials for a proxy")
    });
    let offer = Offer::new(&at.mint);
    let mut tunnel = at.edge.connect();
    let target = origin.address;
    write!(tunnel, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").unwrap();
    expect(&mut tunnel, b"HTTP/1.1 200 Connection established\r\n\r\n");
    let mut tls = handshake(offer.config(), tunnel, "app.test").unwrap();
    write!(
        tls,
        "POST / HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\
         Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX-Trailer: {GITHUB}\r\n\r\n"
    )
    .unwrap();
    let mut said = String::new();
    let _ = tls.read_to_string(&mut said);
    assert!(said.starts_with("HTTP/1.1 403"), "{said}");
    assert!(said.contains("may not stand behind the body"), "{said}");
}

#[test]
fn over_plain_http_a_placeholder_is_refused() {
    if !need("curl") {
        return;
    }
    let origins = Pki::new();
    let origin = Upstream::http();
    origins.folder.write("token", TOKEN);
    let config = format!(
        "workers = 1\n{CONNECT}[[rule]]\naction = \"splice\"\nplain_http = true\n\
         upstream = \"destination\"\n{ALLOWED}\
         [[secret]]\nplaceholder = \"{GITHUB}\"\nfile = \"token\"\n\
         names = \"app.test\"\n"
    );
    let edge = Edge::start_whole(&origins.folder, &config, |_| ());
    let proxy = format!("http://{}", edge.address());
    let url = &format!("http://{}/", origin.address);
    let ask = |more: &[&str]| {
        let mut curl = Command::new("curl");
        output(curl.args(["-sS", "--noproxy", "", "--proxy", &proxy, url]).args(more)).text
    };
    let plain = ask(&[]);
    assert!(plain.contains("host: 127.0.0.1"), "{plain}");
    let said = ask(&["-H", &bearer()]);
    let expected = format!("{GITHUB} may not stand in a request to a server without TLS");
    assert!(said.contains(&expected), "{said}");
    edge.line("the refusal", |line| line["reason"] == format!("secret: {expected}"));
}

#[test]
fn a_response_that_shows_a_secret_is_refused() {
    if !need("curl") {
        return;
    }
    let origins = Pki::new();
    let origin = Upstream::tls(origins.server("a", &["app.test"], Kind::P256), |tls| {
        let mut piece = [0; 4096];
        let read = tls.read(&mut piece).unwrap_or(0);
        let head = String::from_utf8_lossy(&piece[..read]).into_owned();
        let shown = head.lines().find_map(|line| line.strip_prefix("authorization: "));
        let shown = shown.unwrap_or("nothing");
        let way = head.lines().find_map(|line| line.strip_prefix("x-way: "));
        let answer = match way {
            Some("early") => format!(
                "HTTP/1.1 103 Early Hints\r\nLink: <{shown}>\r\n\r\n\
                 HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
            ),
            Some("late") => format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\
                 X-Shown: {shown}\r\n\r\n"
            ),
            _ => format!(
                "HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Length: 2\r\n\
                 X-Shown: {shown}\r\n\r\nab"
            ),
        };
        let _ = tls.write_all(answer.as_bytes());
    });
    let at = start(origins, "");
    let (status, body) = ask(&at, origin.address, "app.test", &["--http1.1"]);
    assert_eq!((&*status, &*body), ("200", "ab"), "a response without one passes");
    let (bearer, user) = (bearer(), format!("me:{GITHUB}"));
    for version in ["--http1.1", "--http2"] {
        for given in [["-H", &*bearer], ["-u", &*user]] {
            let more = [&given[..], &[version]].concat();
            let (status, body) = ask(&at, origin.address, "app.test", &more);
            assert_eq!(status, "502", "{body}");
            assert!(body.contains(&format!("shows the value of {GITHUB}")), "{body}");
            assert_hidden("the page", &body);
        }
        for way in ["X-Way: early", "X-Way: late"] {
            let more = ["-i", "-H", &bearer, "-H", way, version];
            let (_, said) = ask(&at, origin.address, "app.test", &more);
            assert_hidden(way, &said);
        }
    }
    let reason = format!("upstream: the field x-shown shows the value of {GITHUB}");
    at.edge.line("the reflection", |line| line["reason"] == reason.as_str());
}

#[test]
fn a_secret_is_nowhere_but_in_its_request() {
    if !need("curl") {
        return;
    }
    let origins = Pki::new();
    let origin = echo(&origins);
    let section = "[admin]\naddress = \"unix:admin.sock\"\n";
    let at = start(origins, section);
    let user = format!("me:{GITHUB}");
    for more in [["-u", &*user, "--http1.1"], ["-u", &*user, "--http2"]] {
        assert_eq!(ask(&at, origin.address, "app.test", &more).0, "200");
    }
    assert_eq!(ask(&at, origin.address, "other.test", &["-u", &user]).0, "403");
    let socket = at.origins.folder.path().join("admin.sock");
    for path in ["/metrics", "/rules", "/connections", "/listeners", "/upstreams", "/"] {
        let body = admin::get(&socket, path).body;
        assert_hidden(path, &body);
        if path == "/metrics" {
            for line in ["secret_requests_total 2", "placeholder_refusals_total 1"] {
                assert!(body.contains(line), "{line}: {body}");
            }
        }
    }
    let folder = &at.origins.folder;
    let file = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let file = file.into_iter().find(|path| path.extension().is_some_and(|end| end == "toml"));
    for verb in ["check", "explain"] {
        let mut command = eyelet(folder);
        command.current_dir(folder.path()).arg(verb).arg(file.as_ref().unwrap());
        let more: &[&str] = if verb == "explain" { &["--sni", "app.test"] } else { &[] };
        assert_hidden(verb, &output(command.args(more)).text);
    }
    kill_process(at.edge.pid(), Signal::TERM).unwrap();
    let lines = at.edge.lines().iter().map(ToString::to_string).collect::<String>();
    assert_hidden("the access log", &lines);
    assert_hidden("the log", &at.edge.log());
}

#[test]
fn a_changed_file_is_used_and_a_bad_one_is_not() {
    if !need("curl") {
        return;
    }
    let origins = Pki::new();
    let origin = echo(&origins);
    let at = start(origins, "");
    let sent = || ask(&at, origin.address, "app.test", &["-H", &bearer()]).1;
    assert!(sent().contains(&format!("Bearer {TOKEN}")));
    at.origins.folder.write("token", "ghp_another_token_of_it\n");
    until("the new token", || sent().contains("Bearer ghp_another_token_of_it").then_some(()));
    for (text, why) in [("", "it is empty"), ("two\nlines of it\n", "more than one line")] {
        at.origins.folder.write("token", text);
        at.edge.wait_log(why);
        assert!(sent().contains("Bearer ghp_another_token_of_it"));
    }
    let token = at.origins.folder.write("token", "ghp_readable_by_others\n");
    std::fs::set_permissions(&token, Permissions::from_mode(0o644)).unwrap();
    at.edge.wait_log("chmod 600");
    std::fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    until("the last token", || sent().contains("Bearer ghp_readable_by_others").then_some(()));
    // A reload with a command that fails keeps the value of its secret.
    std::fs::remove_file(at.origins.folder.path().join("vendor.key")).unwrap();
    kill_process(at.edge.pid(), Signal::HUP).unwrap();
    at.edge.wait_log("its value stays the same");
    let vendor = format!("X-Vendor-Key: {VENDOR}");
    let (_, body) = ask(&at, origin.address, "app.test", &["-H", &vendor]);
    assert!(body.contains(KEY), "{body}");
}

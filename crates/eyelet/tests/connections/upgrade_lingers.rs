//! Exchanges that cannot move at an upgrade, such as one in a chunk's first line, go on in the
//! earlier process until they end, over one upgrade and over many.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::support::program::need;
use crate::support::web::{chunks, head, switched};
use crate::support::{Talk, Tls, Upstream, expect, noise, until};
use crate::upgrade::Scene;

/// Far shorter than the streams of the tests last.
const DRAIN: Duration = Duration::from_secs(1);
const MORE: &str = "workers = 1\n[limits]\ndrain_timeout = \"1s\"\n";
/// `LINGERING_MAX` of `process/predecessors.rs`.
const LINGERING_MAX: usize = 8;
const EVENTS: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                      Transfer-Encoding: chunked\r\n\r\n";

fn scene() -> Scene {
    Scene::to(Upstream::by_hand(), MORE)
}

/// A client of an event stream, by the options of curl, and the stream's upstream.
fn events(scene: &Scene, version: &str) -> (Talk, TcpStream) {
    let client = Talk::start(curl(scene, version).arg("-N"));
    let mut app = scene.http.take();
    head(&mut app);
    app.write_all(EVENTS.as_bytes()).unwrap();
    (client, app)
}

fn curl(scene: &Scene, version: &str) -> Command {
    let port = scene.address().port();
    let mut command = Command::new("curl");
    command.args(["-sS", version, "--max-time", "300", "--cacert", &scene.pki.text("ca.pem")]);
    command.args(["--resolve", &format!("app.test:{port}:127.0.0.1")]);
    command.arg(format!("https://app.test:{port}/asked"));
    command
}

fn event(app: &mut TcpStream, client: &mut Talk, text: &str) {
    app.write_all(format!("{:x}\r\n{text}\n\r\n", text.len() + 1).as_bytes()).unwrap();
    client.hear(text);
}

/// The last chunk. What the client has got is whole.
fn end_events(mut app: TcpStream, client: Talk, wanted: &str) {
    app.write_all(b"0\r\n\r\n").unwrap();
    let said = client.finish();
    assert!(said.status.success() && said.text == wanted, "{said:?}");
}

/// An event stream in answer to a request that stops in the middle of a chunk's first line: it
/// cannot move.
fn stream(scene: &Scene) -> (Tls, TcpStream) {
    let mut client = scene.http();
    let asked = "POST /asked HTTP/1.1\r\nHost: app.test\r\nTransfer-Encoding: chunked\r\n\r\n5";
    client.write_all(asked.as_bytes()).unwrap();
    client.flush().unwrap();
    let mut app = scene.http.take();
    head(&mut app);
    app.write_all(EVENTS.as_bytes()).unwrap();
    assert!(head(&mut client).starts_with("HTTP/1.1 200"));
    (client, app)
}

fn asked(scene: &Scene) -> Tls {
    let mut client = scene.http();
    client.write_all(b"GET /asked HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    client.flush().unwrap();
    client
}

/// One chunk arrives as it was sent.
fn chunk(client: &mut Tls, app: &mut TcpStream) {
    app.write_all(b"5\r\nevent\r\n").unwrap();
    expect(client, b"5\r\nevent\r\n");
}

/// Says the next request on a connection, which the process that serves now answers.
fn next_request(scene: &Scene, client: &mut Tls) {
    client.write_all(b"GET /next HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    client.flush().unwrap();
    let mut app = scene.http.take();
    assert!(head(&mut app).starts_with("GET /next"));
    app.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    assert!(head(client).starts_with("HTTP/1.1 200"));
    expect(client, b"ok");
}

/// True if a process has a socket that listens at the edge's port.
fn listens(scene: &Scene, pid: Pid) -> bool {
    let at = format!(":{:04X}", scene.address().port());
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let listening = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields[1].ends_with(&at) && fields[3] == "0A").then(|| format!("socket:[{}]", fields[9]))
    });
    let inodes: Vec<String> = listening.collect();
    let held = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap();
    held.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .any(|link| inodes.iter().any(|inode| link.to_str() == Some(inode)))
}

/// Returns the answer of the process that serves.
fn admin(scene: &Scene, path: &str) -> String {
    let mut stream = UnixStream::connect(scene.pki.file("admin.sock")).unwrap();
    write!(stream, "GET /{path} HTTP/1.0\r\n\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said.split_once("\r\n\r\n").unwrap().1.to_owned()
}

fn has_ended(pid: Pid) -> bool {
    test_kill_process(pid).is_err()
}

/// The client of a WebSocket by HTTP/2, and its upstream.
fn websocket(scene: &Scene) -> (Talk, TcpStream) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/websocket2.js");
    let port = scene.address().port().to_string();
    let mut node = Command::new("node");
    let mut client = Talk::start(node.args([script, &port, "app.test", &scene.pki.text("ca.pem")]));
    let mut app = scene.http.take();
    let asked = head(&mut app);
    app.write_all(switched(&asked).as_bytes()).unwrap();
    client.hear("open");
    (client, app)
}

/// Clients of all kinds, each with its upstream.
struct Busy {
    sse: (Talk, TcpStream),
    sse_2: (Talk, TcpStream),
    /// It always stops in the middle of a chunk's first line.
    upload: (Tls, TcpStream),
    chat: (Talk, TcpStream),
    download: (Tls, TcpStream),
    poll: (Tls, TcpStream),
    body: Vec<u8>,
}

impl Busy {
    const HALF: usize = 100_000;

    fn new(scene: &Scene) -> Self {
        let mut sse = events(scene, "--http1.1");
        event(&mut sse.1, &mut sse.0, "one before");
        let mut sse_2 = events(scene, "--http2");
        event(&mut sse_2.1, &mut sse_2.0, "two before");
        let mut upload = scene.http();
        let asked_upload =
            "PUT /asked HTTP/1.1\r\nHost: app.test\r\nTransfer-Encoding: chunked\r\n\r\n";
        upload.write_all(format!("{asked_upload}7\r\nbefore\n\r\n8").as_bytes()).unwrap();
        upload.flush().unwrap();
        let mut upload_app = scene.http.take();
        assert!(head(&mut upload_app).starts_with("PUT /asked"));
        expect(&mut upload_app, b"7\r\nbefore\n\r\n");
        let chat = websocket(scene);
        let body = noise(2 * Self::HALF, 1);
        let mut download = (asked(scene), scene.http.take());
        head(&mut download.1);
        let said = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        download.1.write_all(said.as_bytes()).unwrap();
        download.1.write_all(&body[..Self::HALF]).unwrap();
        assert!(head(&mut download.0).starts_with("HTTP/1.1 200"));
        expect(&mut download.0, &body[..Self::HALF]);
        let mut poll = (asked(scene), scene.http.take());
        head(&mut poll.1);
        Self { sse, sse_2, upload: (upload, upload_app), chat, download, poll, body }
    }

    /// Something passes on each that may say something now.
    fn goes_on(&mut self, round: usize) {
        event(&mut self.sse.1, &mut self.sse.0, &format!("one in {round}"));
        event(&mut self.sse_2.1, &mut self.sse_2.0, &format!("two in {round}"));
        self.upload.0.write_all(format!("\r\nround {round}\n\r\n8").as_bytes()).unwrap();
        self.upload.0.flush().unwrap();
        expect(&mut self.upload.1, format!("8\r\nround {round}\n\r\n").as_bytes());
        let (client, app) = &mut self.chat;
        client.say(&format!("up {round}\n"));
        let frame = [&[0x81, 0x84, 0, 0, 0, 0][..], format!("up {round}").as_bytes()].concat();
        expect(app, &frame);
        app.write_all(&[&[0x81, 6][..], format!("down {round}").as_bytes()].concat()).unwrap();
        client.hear(&format!("down {round}"));
    }

    /// All end, the upload last. Returns connections that rest now.
    fn end(self, scene: &mut Scene) -> [Tls; 2] {
        let Self { mut poll, mut download, upload: (mut upload, mut upload_app), body, .. } = self;
        poll.1.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npolled").unwrap();
        assert!(head(&mut poll.0).starts_with("HTTP/1.1 200"));
        expect(&mut poll.0, b"polled");
        download.1.write_all(&body[Self::HALF..]).unwrap();
        expect(&mut download.0, &body[Self::HALF..]);
        let all = |name: &str| format!("{name} before\n{name} in 0\n{name} in 1\n{name} in 2\n");
        end_events(self.sse.1, self.sse.0, &all("one"));
        end_events(self.sse_2.1, self.sse_2.0, &all("two"));
        let (mut chat, app) = self.chat;
        drop(app);
        chat.hear("closed");
        assert!(!chat.said().contains("error"), "{}", chat.said());
        assert!(scene.edge.is_running(), "it has an upload");
        upload.write_all(b"\r\nthe end\n\r\n0\r\n\r\n").unwrap();
        upload.flush().unwrap();
        assert_eq!(chunks(&mut upload_app), b"the end\n");
        upload_app.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhave").unwrap();
        assert!(head(&mut upload).starts_with("HTTP/1.1 200"));
        expect(&mut upload, b"have");
        drop(upload);
        [poll.0, download.0]
    }
}

/// The log, the metrics and the status say what lingers, which has let its listeners go.
fn is_told(scene: &Scene, lingers: Pid) {
    let pid = lingers.as_raw_nonzero();
    let told = format!("process {pid} goes on with ");
    scene.edge.wait_log(&told);
    let log = scene.edge.log();
    let line = log.lines().find(|line| line.contains(&told)).unwrap();
    assert!(line.contains(" until they end or can move: ") && line.contains("1 upload"), "{line}");
    assert!(admin(scene, "metrics").contains("\neyelet_lingering_processes 1\n"));
    let status: Value = serde_json::from_str(&admin(scene, "status")).unwrap();
    assert_eq!(*status["lingering"].as_array().unwrap(), [pid.get()], "{status}");
    assert!(!listens(scene, lingers));
    assert!(listens(scene, *scene.later.last().unwrap()));
}

/// Nothing is cut and no byte is lost over three upgrades, each of them long after the drain's time
/// of the one before. What comes to rest moves.
#[test]
fn what_cannot_move_goes_on_over_three_upgrades() {
    if !need("curl") || !need("node") {
        return;
    }
    let admin = "workers = 1\n[admin]\naddress = \"unix:admin.sock\"\n";
    let more = MORE.replace("workers = 1\n", admin);
    let mut scene = Scene::to(Upstream::by_hand(), &more);
    let mut busy = Busy::new(&scene);
    let first = scene.edge.pid();
    for round in 0..3 {
        scene.upgrade();
        if round == 0 {
            is_told(&scene, first);
        }
        thread::sleep(DRAIN + DRAIN / 2);
        busy.goes_on(round);
        // Those of before have nothing, and have ended.
        if let [.., earlier, _] = scene.later[..] {
            until("the one between to end", || has_ended(earlier).then_some(()));
        }
    }
    let at_rest = busy.end(&mut scene);
    assert!(scene.edge.wait_exit_alone().success(), "it ends with its last connection");
    scene.edge.wait_log(&format!("process {} has ended", first.as_raw_nonzero()));
    // These have moved to the last of the four processes.
    for mut client in at_rest {
        next_request(&scene, &mut client);
    }
}

/// Each upgrade leaves one process with one stream. The oldest one drains when there are too many;
/// no upgrade waits or is refused. At the end all drain.
#[test]
fn beyond_the_bound_the_oldest_drains() {
    let mut scene = scene();
    let mut streams = Vec::new();
    for _ in 0..LINGERING_MAX {
        streams.push(stream(&scene));
        scene.upgrade();
    }
    thread::sleep(DRAIN + DRAIN / 2);
    for (client, app) in &mut streams {
        chunk(client, app);
    }
    assert!(scene.edge.is_running(), "{LINGERING_MAX} may linger");
    streams.push(stream(&scene));
    scene.upgrade();
    assert!(scene.edge.wait_exit_alone().success());
    let (mut oldest, _app) = streams.remove(0);
    assert!(oldest.read(&mut [0; 16]).is_err(), "it is cut, and not ended as if whole");
    for (client, app) in &mut streams {
        chunk(client, app);
    }
    scene.edge.wait_log(&format!("more than {LINGERING_MAX} processes linger"));
    kill_process(*scene.later.last().unwrap(), Signal::TERM).unwrap();
    for pid in &scene.later {
        until("all to end with the one that serves", || has_ended(*pid).then_some(()));
    }
}

#[test]
fn a_signal_to_an_earlier_process_drains_it_alone() {
    let mut scene = scene();
    let mut one = stream(&scene);
    scene.upgrade();
    let mut two = stream(&scene);
    scene.upgrade();
    thread::sleep(DRAIN + DRAIN / 2);
    chunk(&mut one.0, &mut one.1);
    scene.edge.signal(Signal::TERM);
    assert!(scene.edge.wait_exit_alone().success());
    chunk(&mut two.0, &mut two.1);
    next_request(&scene, &mut scene.http());
}

/// The processes that linger go on without the one that serves. A connection that comes to rest
/// ends then, and so does the process.
#[test]
fn the_end_of_the_new_process_leaves_the_earlier_ones() {
    let mut scene = scene();
    let one = stream(&scene);
    scene.upgrade();
    let two = stream(&scene);
    scene.upgrade();
    kill_process(scene.later[1], Signal::KILL).unwrap();
    thread::sleep(DRAIN + DRAIN / 2);
    for (mut client, mut app) in [one, two] {
        chunk(&mut client, &mut app);
        app.write_all(b"0\r\n\r\n").unwrap();
        expect(&mut client, b"0\r\n\r\n");
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "close_notify");
    }
    assert!(scene.edge.wait_exit_alone().success());
    until("the second to end", || has_ended(scene.later[0]).then_some(()));
}

/// The file that is rotated is the log of the processes that linger, too.
#[test]
fn a_rotated_log_gets_the_lines_of_an_earlier_process() {
    let more = "workers = 1\n[log]\naccess = \"access.log\"\n[limits]\ndrain_timeout = \"1s\"\n";
    let mut scene = Scene::to(Upstream::by_hand(), more);
    let log = scene.pki.file("access.log");
    let (mut client, mut app) = stream(&scene);
    let address = client.sock.local_addr().unwrap().to_string();
    scene.upgrade();
    fs::rename(&log, scene.pki.file("access.log.1")).unwrap();
    assert!(crate::support::output(&mut scene.command("reload")).status.success());
    let descriptors = format!("/proc/{}/fd", scene.edge.pid().as_raw_nonzero());
    until("the new file in the earlier process", || {
        let held = fs::read_dir(&descriptors).unwrap();
        held.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .any(|link| link == log)
            .then_some(())
    });
    chunk(&mut client, &mut app);
    drop((client, app));
    assert!(scene.edge.wait_exit_alone().success());
    until("its line", || fs::read_to_string(&log).unwrap().contains(&address).then_some(()));
}

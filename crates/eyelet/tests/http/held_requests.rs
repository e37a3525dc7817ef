//! Requests that are held until somebody decides, by both versions of HTTP. Others go on beside
//! them, and those that nobody decides about are refused.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::resting::listed;
use crate::support::client::Offer;
use crate::support::edge::{LISTENER, eyelet, with_long_deadlines};
use crate::support::program::{Said, need, output};
use crate::support::streams::Streams;
use crate::support::web::{Heard, head, hear};
use crate::support::{Edge, Pki, Tls, Upstream, expect, until};

/// The request lines that an application got, with the bytes of their bodies.
type Seen = Arc<Mutex<Vec<String>>>;

/// Sends a body slowly, until its reader has gone.
fn trickle(write: &mut TcpStream) {
    let _ = write.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
    while write.write_all(&[b'x'; 1_000]).is_ok() {
        thread::sleep(Duration::from_millis(50));
    }
}

/// An application that reads bodies by their length, and answers with what it got.
fn application() -> (Upstream, Seen) {
    let seen = Seen::default();
    let noted = seen.clone();
    let app = Upstream::serve(move |stream: TcpStream| {
        let mut read = BufReader::new(stream.try_clone().unwrap());
        let mut write = stream;
        loop {
            let (mut first, mut length) = (String::new(), 0);
            if read.read_line(&mut first).unwrap_or(0) == 0 {
                return;
            }
            loop {
                let mut line = String::new();
                if read.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                let line = line.trim_end().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length: ") {
                    length = value.parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            read.read_exact(&mut body).unwrap();
            if first.starts_with("GET /slow ") {
                return trickle(&mut write);
            }
            let first = first.trim_end().trim_end_matches(" HTTP/1.1");
            let said = format!("{first} with {length}");
            noted.lock().unwrap().push(said.clone());
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", said.len());
            if write.write_all(format!("{head}{said}").as_bytes()).is_err() {
                return;
            }
        }
    });
    (app, seen)
}

/// Reads pass, somebody is asked about writes below `/api`, and all else is refused.
fn rules(app: &Upstream, more: &str) -> String {
    let terminate = |name: &str, action: &str, more: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nsni = \"app.test\"\naction = \"{action}\"\n\
             certificate = \"edge.pem\"\nkey = \"edge.key\"\nupstream = \"http://{}\"\n{more}\n",
            app.address
        )
    };
    format!(
        "workers = 2\n{LISTENER}{}{}{more}",
        terminate("read", "terminate", "method = \"GET\""),
        terminate("ask", "hold", "method = [\"POST\", \"DELETE\"]\npath = \"/api/*\"")
    )
}

pub struct Scene {
    pub pki: Pki,
    pub edge: Edge,
    pub seen: Seen,
    _app: Upstream,
}

impl Scene {
    pub fn new(more: &str) -> Self {
        let (pki, (app, seen)) = (Pki::new(), application());
        let edge = Edge::start_whole(&pki.folder, &rules(&app, more), |_| ());
        Self { pki, edge, seen, _app: app }
    }

    /// An edge that an upgrade replaces, with its configuration.
    pub fn replaced(more: &str) -> (Self, PathBuf) {
        let (pki, (app, seen)) = (Pki::new(), application());
        let file = pki.folder.write("edge.toml", with_long_deadlines(&rules(&app, more)));
        let mut command = eyelet(&pki.folder);
        command.arg("serve").arg(&file);
        let edge = Edge::spawn(command, 1);
        (Self { pki, edge, seen, _app: app }, file)
    }

    pub fn reload(&self, file: &Path) -> Said {
        output(eyelet(&self.pki.folder).arg("reload").arg(file))
    }

    /// Has another process take over. Returns it.
    pub fn upgrade(&mut self, file: &Path) -> Pid {
        let upgrade = output(eyelet(&self.pki.folder).arg("upgrade").arg(file));
        assert_eq!(upgrade.status.code(), Some(0), "{upgrade:?}");
        assert!(self.edge.wait_exit_alone().success());
        let pid = upgrade.text.split("process ").nth(1).and_then(|rest| {
            rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
        });
        Pid::from_raw(pid.unwrap_or_else(|| panic!("{upgrade:?}"))).unwrap()
    }

    fn client(&self) -> Tls {
        Offer::new(&self.pki).connect(self.edge.address(), "app.test")
    }

    pub fn held(&self, arguments: &[&str]) -> Said {
        output(eyelet(&self.pki.folder).arg("held").args(arguments))
    }

    /// Waits until so many wait on this question.
    pub fn waiting(&self, question: &str, count: usize) {
        let line = format!("app.test:443 {question}  {count} waiting");
        until(&line, || self.held(&[]).text.contains(&line).then_some(()));
    }

    pub fn allow(&self, arguments: &[&str]) {
        let said = self.held(&[&["allow", "app.test"], arguments].concat());
        assert_eq!(said.status.code(), Some(0), "{said:?}");
    }
}

fn ask(client: &mut Tls, method: &str, path: &str, body: &[u8]) {
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: app.test\r\nContent-Length: {length}\r\n\r\n");
    client.write_all(&[head.as_bytes(), body].concat()).unwrap();
    client.flush().unwrap();
}

fn said(heard: &Heard) -> String {
    String::from_utf8(heard.body.clone()).unwrap()
}

#[test]
fn a_request_waits_and_its_connection_goes_on() {
    let scene = Scene::new("");
    let mut clients: Vec<_> = (0..3).map(|_| scene.client()).collect();
    for (nth, client) in clients.iter_mut().enumerate() {
        ask(client, "GET", "/before", b"");
        assert_eq!(said(&hear(client, "GET")), "GET /before with 0");
        // Two ask the same. The body is longer than what is read at once.
        let (method, body) = if nth < 2 { ("POST", 300_000) } else { ("DELETE", 0) };
        ask_in_parts(client, method, "/api/%41?token=x", body);
    }
    scene.waiting("POST /api/%41", 2);
    scene.waiting("DELETE /api/%41", 1);
    assert_eq!(scene.seen.lock().unwrap().len(), 3, "nothing was passed on");
    // The choices narrow it down.
    for wrong in [["--method", "GET"], ["--path", "/api/A"], ["--rule", "read"]] {
        let said = scene.held(&[&["allow", "app.test"][..], &wrong].concat());
        assert_eq!(said.status.code(), Some(1), "{said:?}");
    }
    scene.allow(&["--method", "POST", "--path", "/api/%41", "--rule", "ask"]);
    for client in &mut clients[..2] {
        assert_eq!(said(&hear(client, "POST")), "POST /api/%41?token=x with 300000");
    }
    let line = scene.edge.line("allowed", |line| line["http"]["method"] == "POST");
    assert_eq!((&line["rule"], &line["outcome"]), (&"ask".into(), &"terminated".into()), "{line}");
    let by = (&line["held"]["verdict"], &line["held"]["by"]);
    assert_eq!(by, (&"allow".into(), &"terminal".into()), "{line}");
    assert!(line["duration_ms"].as_u64() >= line["held"]["ms"].as_u64(), "{line}");
    // One that is refused goes on, too.
    let refused = scene.held(&["refuse", "app.test"]);
    assert!(refused.text.contains("DELETE /api/%41: 1 request waited"), "{refused:?}");
    let heard = hear(&mut clients[2], "DELETE");
    assert_eq!(heard.status, 403, "{heard:?}");
    assert!(said(&heard).contains("held, and refused") && said(&heard).contains("Rule: ask"));
    let line = scene.edge.line("refused", |line| line["http"]["method"] == "DELETE");
    assert_eq!(
        (&line["reason"], &line["outcome"]),
        (&"held, and refused".into(), &"refused".into())
    );
    for client in &mut clients {
        ask(client, "GET", "/after", b"");
        assert_eq!(said(&hear(client, "GET")), "GET /after with 0");
        // Once means once, and what no rule takes is asked of nobody.
        ask(client, "POST", "/other", b"");
        assert_eq!(hear(client, "POST").status, 403);
    }
    assert_eq!(scene.held(&[]).text, "nothing is held\n");
}

/// Sends a request with so many bytes from a thread, because nobody reads them yet.
fn ask_in_parts(client: &mut Tls, method: &str, path: &str, length: usize) {
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: app.test\r\nContent-Length: {length}\r\n\r\n");
    client.write_all(head.as_bytes()).unwrap();
    let body = vec![b'x'; length];
    client.write_all(&body).unwrap();
    client.flush().unwrap();
}

#[test]
fn nobody_decides_or_a_client_leaves_or_a_verdict_holds_for_a_time() {
    let scene = Scene::new("[hold]\ntimeout = \"1s\"\n");
    let mut client = scene.client();
    let began = Instant::now();
    ask(&mut client, "POST", "/api/late", b"x");
    let heard = hear(&mut client, "POST");
    assert_eq!(heard.status, 403, "{heard:?}");
    assert!(said(&heard).contains("held, and nobody decided"), "{}", said(&heard));
    assert!(began.elapsed() >= Duration::from_secs(1), "it was refused early");
    let line = scene.edge.line("late", |line| line["http"]["path"] == "/api/late");
    assert_eq!(line["held"]["by"], "timeout", "{line}");
    // One with a path that nobody reads.
    ask(&mut client, "POST", &format!("/api/{}", "a".repeat(3_000)), b"");
    let heard = hear(&mut client, "POST");
    assert!(heard.status == 403 && said(&heard).contains("too long to ask about"), "{heard:?}");
    let scene = Scene::new("");
    let mut leaves = scene.client();
    ask(&mut leaves, "POST", "/api/gone", b"x");
    scene.waiting("POST /api/gone", 1);
    drop(leaves);
    until("it has gone", || (scene.held(&[]).text == "nothing is held\n").then_some(()));
    // A verdict for one who has gone is for nobody.
    let late = scene.held(&["allow", "app.test", "--path", "/api/gone"]);
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    let line = scene.edge.line("gone", |line| line["http"]["path"] == "/api/gone");
    let reason = line["reason"].as_str().unwrap();
    assert!(reason.ends_with(" during the wait for a verdict"), "{line}");
    assert_eq!((&line["rule"], &line["outcome"]), (&"ask".into(), &"left".into()), "{line}");
    let mut client = scene.client();
    ask(&mut client, "POST", "/api/hour", b"x");
    scene.waiting("POST /api/hour", 1);
    let always = scene.held(&["allow", "app.test", "--always"]);
    assert!(always.text.contains("a list has names"), "{always:?}");
    scene.allow(&["--for", "1h"]);
    assert_eq!(hear(&mut client, "POST").status, 200);
    ask(&mut client, "POST", "/api/hour", b"x");
    assert_eq!(hear(&mut client, "POST").status, 200);
    ask(&mut client, "DELETE", "/api/hour", b"");
    scene.waiting("DELETE /api/hour", 1);
}

/// The other streams of its connection go on.
#[test]
fn a_stream_waits_beside_others() {
    if !need("node") {
        return;
    }
    let scene = Scene::new("");
    let mut client = Streams::new(scene.edge.port(), None, &scene.pki.text("ca.pem"));
    let asked: Vec<(&str, String)> =
        [("POST", "/api/one"), ("GET", "/read"), ("POST", "/api/two"), ("POST", "/private")]
            .map(|(method, path)| (method, path.to_owned()))
            .into();
    let answers = thread::scope(|scope| {
        let answers = scope.spawn(|| client.ask(&asked));
        scene.waiting("POST /api/one", 1);
        scene.waiting("POST /api/two", 1);
        let read = || scene.seen.lock().unwrap().contains(&"GET /read with 0".into());
        until("the other stream is served", || read().then_some(()));
        assert_eq!(
            scene.held(&["refuse", "app.test", "--path", "/api/two"]).status.code(),
            Some(0)
        );
        scene.allow(&["--path", "/api/one"]);
        answers.join().unwrap()
    });
    let statuses: Vec<u64> = answers.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [200, 200, 403, 403], "{answers:?}");
    assert!(answers[2].1.contains("held, and refused"), "{answers:?}");
    let line = scene.edge.line("one", |line| line["http"]["path"] == "/api/one");
    assert_eq!(line["held"]["verdict"], "allow", "{line}");
}

/// The times are shown, and not asserted: the machine may be busy.
#[test]
fn a_verdict_frees_each_request() {
    let scene = Scene::new("[admin]\naddress = \"unix:admin.sock\"\n");
    let mut client = scene.client();
    let mut times: Vec<Duration> = (0..15)
        .map(|nth| {
            let path = format!("/api/{nth}");
            ask(&mut client, "POST", &path, b"x");
            let mut id = None;
            until("its question", || {
                let shown: Value = serde_json::from_str(&admin(&scene, "GET /held")).ok()?;
                let one = &shown["listed"][0];
                let is_its = one["method"] == "POST" && one["path"] == *path;
                id = is_its.then(|| one["id"].as_u64()).flatten();
                id
            });
            let began = Instant::now();
            let request = format!("POST /held/{}?verdict=allow", id.unwrap());
            let verdict = admin(&scene, &request);
            assert!(verdict.contains("1 request waited"), "{verdict}");
            assert_eq!(hear(&mut client, "POST").status, 200);
            began.elapsed()
        })
        .collect();
    // Each was read and decided twice.
    let metrics = admin(&scene, "GET /metrics");
    assert!(metrics.contains("\neyelet_rule_hits_total{rule=\"ask\"} 15\n"), "{metrics}");
    times.sort_unstable();
    println!("verdict to response: {times:?}");
}

/// The body of an answer of the admin server.
fn admin(scene: &Scene, request: &str) -> String {
    let path = scene.pki.folder.path().join("admin.sock");
    let mut socket = std::os::unix::net::UnixStream::connect(path).unwrap();
    let head = format!("{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}

/// They wait on in the new process, with what was read of their bodies.
#[test]
fn an_upgrade_and_a_reload_keep_requests_that_wait() {
    let (mut scene, file) = Scene::replaced("");
    let mut clients: Vec<_> = (0..3).map(|_| scene.client()).collect();
    let mut early = scene.client();
    ask(&mut early, "POST", "/api/hour", b"x");
    scene.waiting("POST /api/hour", 1);
    scene.allow(&["--for", "1h"]);
    assert_eq!(hear(&mut early, "POST").status, 200);
    for client in &mut clients {
        ask_in_parts(client, "POST", "/api/x", 200_000);
    }
    scene.waiting("POST /api/x", 3);
    let again = scene.reload(&file);
    assert!(again.status.success(), "{again:?}");
    scene.waiting("POST /api/x", 3);
    let successor = scene.upgrade(&file);
    scene.waiting("POST /api/x", 3);
    // A verdict for a time holds on, for those who move as for those who come.
    for client in [&mut early, &mut scene.client()] {
        ask(client, "POST", "/api/hour", b"xx");
        assert_eq!(said(&hear(client, "POST")), "POST /api/hour with 2");
    }
    assert_eq!(scene.seen.lock().unwrap().len(), 3);
    scene.allow(&[]);
    for client in &mut clients {
        assert_eq!(said(&hear(client, "POST")), "POST /api/x with 200000");
        ask(client, "GET", "/after", b"");
        assert_eq!(said(&hear(client, "GET")), "GET /after with 0");
    }
    kill_process(successor, Signal::KILL).unwrap();
}

/// An application whose event streams end once they may.
fn event_source(may_end: Receiver<()>) -> Upstream {
    let may_end = Mutex::new(may_end);
    Upstream::serve(move |mut stream: TcpStream| {
        let fields = "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked";
        while let Ok(1..) = stream.peek(&mut [0]) {
            if head(&mut stream).starts_with("GET /read ") {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
                continue;
            }
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n").as_bytes()).unwrap();
            may_end.lock().unwrap().recv().unwrap();
            stream.write_all(b"1\r\n:\r\n0\r\n\r\n").unwrap();
        }
    })
}

/// Its connection goes on by the rule that it was asked about by. That lets nothing pass unasked.
#[test]
fn an_allowed_exchange_rests_and_the_next_request_is_asked_about() {
    let (end, may_end) = channel();
    let (pki, app) = (Pki::new(), event_source(may_end));
    let rule = |name: &str, more: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nsni = \"app.test\"\ncertificate = \"edge.pem\"\n\
             key = \"edge.key\"\nupstream = \"http://{}\"\n{more}\n",
            app.address
        )
    };
    let read = rule("read", "action = \"terminate\"\npath = \"/read\"");
    let read = read.replace("sni = \"app.test\"", "sni = { file = \"names.txt\" }");
    pki.folder.write("names.txt", "app.test\n");
    let shadow = "[[rule]]\nname = \"no events\"\nsni = \"app.test\"\naction = \"refuse\"\n\
                  path = \"/events/*\"\nshadow = true\n";
    let rules = format!("{read}{shadow}{}", rule("ask", "action = \"hold\""));
    let admin = "[admin]\naddress = \"unix:admin.sock\"\n";
    let edge = Edge::start_whole(&pki.folder, &format!("{LISTENER}{rules}{admin}"), |_| ());
    let scene = Scene { pki, edge, seen: Seen::default(), _app: app };
    let (mut client, mut ids) = (scene.client(), Vec::new());
    for round in 0..2 {
        let path = format!("/events/{round}");
        ask(&mut client, "GET", &path, b"");
        scene.waiting(&format!("GET {path}"), 1);
        scene.allow(&["--path", &path]);
        assert!(head(&mut client).starts_with("HTTP/1.1 200 "));
        let socket = scene.pki.folder.path().join("admin.sock");
        until("the response to rest", || {
            let one = listed(&socket)?.into_iter().next()?;
            (one["state"] == "parked" && !one["upstream"].is_null()).then_some(())
        });
        end.send(()).unwrap();
        expect(&mut client, b"1\r\n:\r\n0\r\n\r\n");
        let line = scene.edge.line("rested", |line| line["http"]["path"] == *path);
        assert_eq!((&line["rule"], &line["reason"]), (&"ask".into(), &"complete".into()), "{line}");
        // What a person and the rules in shadow said has rested with it.
        let by = (&line["held"]["verdict"], &line["held"]["by"]);
        assert_eq!(by, (&"allow".into(), &"terminal".into()), "{line}");
        assert_eq!(line["shadow"], json!([{"rule": "no events", "outcome": "refused"}]), "{line}");
        ids.push(line["id"].to_string());
        // The other rule still has its requests.
        ask(&mut client, "GET", "/read", b"");
        assert_eq!(said(&hear(&mut client, "GET")), "ok");
    }
    assert_eq!(ids[0], ids[1], "one connection for all");
    // The rule would ask about the whole connection now: its client has to open another.
    scene.pki.folder.write("names.txt", "other.test\n");
    scene.edge.wait_log("names.txt: its new contents are in use");
    ask(&mut client, "GET", "/read", b"");
    assert_eq!(hear(&mut client, "GET").status, 421);
}

#[test]
fn check_teaches_what_a_hold_rule_on_requests_needs() {
    let pki = Pki::new();
    let (app, _) = application();
    let whole = rules(&app, "");
    let check = |from: &str, to: &str| {
        assert!(whole.contains(from), "{from}");
        let file = pki.folder.write("checked.toml", whole.replace(from, to));
        output(eyelet(&pki.folder).arg("check").arg(file)).text
    };
    assert!(!check("hold", "hold").contains("error"));
    let key = "certificate = \"edge.pem\"\nkey = \"edge.key\"\n";
    pki.folder.write("names.txt", "");
    let (hold, to) = ("action = \"hold\"\n", format!("upstream = \"{}\"\n", app.address));
    let served = format!("{hold}{key}upstream = \"http://{}\"\n", app.address);
    for (from, to, expected) in [
        (&*served, &*format!("{hold}{to}"), "a hold rule without a `certificate` passes bytes on"),
        (
            "path = \"/api/*\"",
            "path = \"/api/*\"\nhold_file = \"names.txt\"",
            "a list has names, and `method` asks about requests",
        ),
    ] {
        let said = check(from, to);
        assert!(said.contains(expected), "{to}: {said}");
    }
}

/// A reload has another rule take the one that waited: its verdict is for no later one.
#[test]
fn a_verdict_that_is_not_taken_is_for_no_later_request() {
    let (scene, file) = Scene::replaced("");
    let reload = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let said = scene.reload(&file);
        assert!(said.status.success(), "{said:?}");
    };
    let text = std::fs::read_to_string(&file).unwrap();
    let by_path = text.replace("method = \"GET\"", "path = \"/read\"");
    let by_path = by_path.replace("method = [\"POST\", \"DELETE\"]\n", "");
    reload(&by_path);
    let mut client = scene.client();
    // The field is nothing to rules that ask for no methods.
    let head = "POST /api/one HTTP/1.1\r\nHost: app.test\r\nContent-Length: 0\r\n\
                X-HTTP-Method-Override: DELETE\r\n\r\n";
    client.write_all(head.as_bytes()).unwrap();
    client.flush().unwrap();
    scene.waiting("POST /api/one", 1);
    let refuse = "[[rule]]\nname = \"no\"\nsni = \"app.test\"\naction = \"refuse\"\n\
                  method = \"DELETE\"\n[[rule]]\nname = \"read\"";
    reload(&by_path.replace("[[rule]]\nname = \"read\"", refuse));
    scene.allow(&["--path", "/api/one"]);
    assert_eq!(hear(&mut client, "POST").status, 403);
    ask(&mut client, "POST", "/api/one", b"");
    scene.waiting("POST /api/one", 1);
    assert_eq!(*scene.seen.lock().unwrap(), [""; 0]);
    scene.allow(&["--path", "/api/one"]);
    assert_eq!(said(&hear(&mut client, "POST")), "POST /api/one with 0");
}

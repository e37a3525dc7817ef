//! The life of the process as an operator sees it: start and stop, signals, limits, check, explain.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use rustls::client::Resumption;

use crate::support::client::{Offer, echo};
use crate::support::crowd::{From, Manner, Multitude, many, permit, quick};
use crate::support::edge::{self, LISTENER, splice};
use crate::support::{
    A_WHILE, Edge, End, Folder, Hello, Pki, SOON, Tls, Upstream, ending, output, until,
};

fn eyelet() -> Command {
    Command::new(env!("CARGO_BIN_EXE_eyelet"))
}

fn echo_edge(limits: &str) -> (Edge, Pki, Upstream) {
    let pki = Pki::new();
    let upstream = Upstream::echo();
    let splice = splice(upstream.address, "");
    let terminate = pki.terminate(&format!("tcp://{}", upstream.address), "");
    let edge = Edge::start(&pki.folder, &format!("{splice}{terminate}{limits}"));
    (edge, pki, upstream)
}

#[test]
fn sigterm_drains() {
    let (mut edge, pki, _upstream) = echo_edge("[limits]\ndrain_timeout = \"600s\"");
    let mut idle = Offer::new(&pki).connect(edge.address(), "app.test");
    echo(&mut idle, b"before");
    let mut half = edge.connect();
    half.write_all(&Hello::named("host.test").bytes()[..50]).unwrap();
    edge.signal(Signal::TERM);

    // An idle one is told goodbye, not cut off.
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
    drop((idle, half));
    assert!(edge.wait_exit().success(), "{}", edge.log());
    assert!(TcpStream::connect(edge.address()).is_err(), "nobody listens any more");
    assert_eq!(edge.lines().len(), 2, "each has its line: {:#?}", edge.lines());
    let drained = edge.lines().iter().filter(|line| line["reason"] == "drained").count();
    let log = edge.log();
    assert!(drained > 0 && log.contains(&format!(" shed; {drained} drained; ")), "{log}");
}

#[test]
fn what_moves_is_drained_and_then_cut() {
    let (mut edge, pki, _upstream) = echo_edge("[limits]\ndrain_timeout = \"1500ms\"");
    let mut busy = Offer::new(&pki).connect(edge.address(), "app.test");
    echo(&mut busy, b"before");
    let (mut reader, stop) = (busy.sock.try_clone().unwrap(), Instant::now());
    // A client that always has something in flight: it sends and never reads.
    busy.sock.set_write_timeout(Some(A_WHILE)).unwrap();
    while busy.write_all(&[7; 16384]).is_ok() && stop.elapsed() < SOON {}
    edge.signal(Signal::TERM);
    let status = edge.wait_exit();
    assert!(status.success(), "{status} {}", edge.log());
    assert_ne!(ending(&mut reader, SOON).1, End::Open);
    edge.only_line();
}

/// With so few descriptors that not every worker can be made, the start fails and says so; it
/// never waits for a worker that will not come.
#[test]
fn a_worker_that_cannot_be_made_ends_the_start() {
    let pki = Pki::new();
    let rule = pki.terminate("tcp://127.0.0.1:9", "");
    let file = edge::write(&pki.folder, &format!("workers = 3\n{LISTENER}{rule}"));
    let (mut failed, mut started) = (0, HashSet::new());
    for descriptors in (8..48).step_by(2) {
        let mut child = Command::new("sh")
            .args(["-c", "ulimit -n \"$0\" && exec \"$1\" serve \"$2\""])
            .arg(descriptors.to_string())
            .arg(env!("CARGO_BIN_EXE_eyelet"))
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, log) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut said = String::new();
        let ended = loop {
            match log.recv_timeout(SOON) {
                Ok(line) => said += &line,
                Err(why) => break why,
            }
            if said.contains("listening on") && started.insert(descriptors) {
                rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            }
        };
        let _ = child.kill();
        let _ = child.wait();
        assert_eq!(ended, RecvTimeoutError::Disconnected, "{descriptors} descriptors: {said}");
        failed += usize::from(said.contains("cannot start a worker"));
    }
    eprintln!("{failed} failed for want of a worker, {} started", started.len());
    assert!(failed > 0, "none had too few descriptors for its workers alone");
}

/// A request that the application is still working on is not idle, however long no byte moves.
#[test]
fn an_answer_is_waited_for_while_draining() {
    let pki = Pki::new();
    let application = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = format!("tcp://{}", application.local_addr().unwrap());
    let limits = "[limits]\ndrain_timeout = \"60s\"";
    let rules = format!("{}{limits}", pki.terminate(&upstream, ""));
    let mut edge = Edge::start(&pki.folder, &rules);
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    client.write_all(b"question").unwrap();
    let (mut answering, _) = application.accept().unwrap();
    answering.read_exact(&mut [0; 8]).unwrap();
    edge.signal(Signal::TERM);
    edge.wait_log("draining");
    // Longer than what counts as idle; nothing is to happen meanwhile, so there is nothing to poll.
    thread::sleep(Duration::from_millis(1200));
    answering.write_all(b"answer").unwrap();
    let mut answer = [0; 6];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"answer");
    assert!(edge.wait_exit().success());
}

/// Nobody can know that an answer will come. A client whose server spoke last goes early and
/// evenly; one that spoke last has most of the time for an answer.
#[test]
fn a_client_that_spoke_last_ends_in_the_last_quarter_of_a_drain() {
    let pki = Pki::new();
    let broker = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = format!("tcp://{}", broker.local_addr().unwrap());
    let limits = "[limits]\ndrain_timeout = \"4s\"";
    let rules = format!("{}{limits}", pki.terminate(&upstream, ""));
    let mut edge = Edge::start(&pki.folder, &rules);
    let mut clients = [(); 2].map(|()| {
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        client.write_all(b"question").unwrap();
        let (mut server, _) = broker.accept().unwrap();
        server.read_exact(&mut [0; 8]).unwrap();
        (client, server)
    });
    let [(answered, server), (unanswered, _)] = &mut clients;
    server.write_all(b"answer").unwrap();
    answered.read_exact(&mut [0; 6]).unwrap();
    edge.signal(Signal::INT);
    edge.wait_log("draining");
    let began = Instant::now();
    // Each is told goodbye. Without close_notify this would be an error.
    let [early, late] = [answered, unanswered].map(|client| {
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        began.elapsed()
    });
    assert!(early < late && late > Duration::from_millis(2800), "{early:?} {late:?}");
    assert!(edge.wait_exit().success());
}

#[test]
fn sigint_drains_too() {
    let (mut edge, _pki, _upstream) = echo_edge("");
    edge.signal(Signal::INT);
    assert!(edge.wait_exit().success());
}

#[test]
fn sighup_reads_the_file_again() {
    let (mut edge, pki, _upstream) = echo_edge("");
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    echo(&mut client, b"before");
    edge.signal(Signal::HUP);
    edge.wait_log("configuration 2 serves");
    echo(&mut client, b"after");
    echo(&mut Offer::new(&pki).connect(edge.address(), "app.test"), b"a new one");
    assert!(edge.is_running());
}

#[test]
fn at_the_connection_limit_accepting_pauses() {
    let (edge, pki, _upstream) = echo_edge("[limits]\nconnections_max = 3");
    let mut held: Vec<Tls> =
        (0..3).map(|_| Offer::new(&pki).connect(edge.address(), "app.test")).collect();
    let mut waiting = edge.connect();
    let hello = Hello::named("host.test").bytes();
    waiting.write_all(&hello).unwrap();
    edge.wait_log("accepting pauses: at the limit of connections, 3; 3 connections are open");
    let log = edge.log();
    assert!(log.contains("at most 3 connections: connections_max; descriptors for "), "{log}");
    assert_eq!(ending(&mut waiting, A_WHILE), (vec![], End::Open), "a fourth was served");
    for client in &mut held {
        echo(client, b"the three are undisturbed");
    }
    held.pop();
    waiting.set_read_timeout(Some(SOON)).unwrap();
    let mut back = vec![0; hello.len()];
    waiting.read_exact(&mut back).unwrap();
    assert_eq!(back, hello, "the fourth has its turn");
}

#[test]
fn accepting_does_not_resume_in_a_drain() {
    let limits = "[limits]\nconnections_max = 2\ndrain_timeout = \"18s\"";
    let (mut edge, _pki, _upstream) = echo_edge(limits);
    let hello = Hello::named("host.test").bytes();
    let mut held: Vec<TcpStream> = (0..2).map(|_| edge.connect()).collect();
    let mut back = vec![0; hello.len()];
    for client in &mut held {
        client.write_all(&hello).unwrap();
        client.read_exact(&mut back).unwrap();
    }
    let third = edge.connect();
    edge.wait_log("accepting pauses");
    edge.signal(Signal::TERM);
    // Until each worker knows of the drain, accepting may resume.
    edge.wait_log("draining");
    thread::sleep(A_WHILE);
    // From now on there is room for one.
    let left = held.pop().unwrap();
    let address = left.local_addr().unwrap();
    drop(left);
    edge.line_of(address);
    // A few ticks of 100 ms in which it could resume.
    for _ in 0..5 {
        held[0].write_all(b"still served").unwrap();
        held[0].read_exact(&mut back[..12]).unwrap();
        thread::sleep(Duration::from_millis(60));
    }
    // The drain takes in who waits in the queue, and would wait for it.
    drop((held, third));
    assert!(edge.wait_exit().success(), "{}", edge.log());
    assert!(!edge.log().contains("accepting resumes"), "{}", edge.log());
}

/// There are more of them than the runtime runs in a few turns.
#[test]
fn each_task_that_a_drain_cuts_has_its_line() {
    const CLIENTS: usize = 1_000;
    let _permit = permit(2 * CLIENTS);
    let pki = Pki::new();
    let upstream = Multitude::start(Manner::Stalled);
    let rule = pki.terminate(&format!("http://{}", upstream.address), "");
    // To a file: at its end the edge waits for a second at most until a pipe is read.
    let more = "[log]\naccess = \"access.log\"\n[limits]\ndrain_timeout = \"2s\"\n";
    let config = format!("workers = 1\n{LISTENER}{rule}{more}");
    let mut edge = Edge::start_whole(&pki.folder, &config, |_| ());
    let config = quick(Resumption::disabled());
    let held = many(CLIENTS, |_| {
        let mut client = From::loopback(2).tls(edge.address(), &config, "app.test").unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        client
    });
    until("each request has its upstream", || (edge.sockets() > 2 * CLIENTS).then_some(()));
    edge.signal(Signal::TERM);
    assert!(edge.wait_exit().success(), "{}", edge.log());
    let lines = std::fs::read_to_string(pki.file("access.log")).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let (of_connections, of_requests) = lines.partition::<Vec<_>, _>(|line| line["http"].is_null());
    assert_eq!((of_connections.len(), of_requests.len()), (CLIENTS, CLIENTS));
    drop(held);
}

/// An edge with one worker that may have so many descriptors. It splices to `upstream`.
fn edge_with_descriptors(
    descriptors: usize,
    folder: &Folder,
    upstream: &Upstream,
    limits: &str,
) -> Edge {
    let rule = splice(upstream.address, &format!("[limits]\n{limits}"));
    let file = edge::write(folder, &format!("workers = 1\n{LISTENER}{rule}"));
    let mut command = Command::new("sh");
    let serve = format!("ulimit -n {descriptors} && exec \"$0\" serve \"$1\"");
    command.args(["-c", &serve, env!("CARGO_BIN_EXE_eyelet")]).arg(file);
    Edge::spawn(command, 1)
}

/// The number behind `before`.
fn number_after(text: &str, before: &str) -> usize {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before:?} in {text}"));
    let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().unwrap()
}

/// Each connection that is not parked counts two descriptors, because it may dial.
#[test]
fn the_limit_of_descriptors_is_named() {
    let (folder, upstream) = (Folder::new(), Upstream::echo());
    let limits = "connections_max = 100000\nmemory_max = \"32MiB\"\nhello_timeout = \"600s\"";
    let edge = edge_with_descriptors(500, &folder, &upstream, limits);
    let log = edge.log();
    let most = number_after(&log, " connections with an upstream, ");
    assert!((100..500).contains(&most), "{log}");
    let named = format!(
        "at most {} connections with an upstream, {most} without: descriptors allow no \
         more (limit 500: raise LimitNOFILE= or ulimit -Hn); connections_max 100000, memory for ",
        most / 2
    );
    let line = log.lines().find(|line| line.contains(&named)).expect(&log);
    assert!(line.contains("WARN"), "{line}");
    // The memory budget, in slots of 240 bytes.
    edge.signal(Signal::USR1);
    edge.wait_log(" bytes counted");
    let log = edge.log();
    let (_, counted) = log.split_once(" bytes resident; ").expect(&log);
    assert_eq!(number_after(line, "memory for "), number_after(counted, " of ") / 240);
    let _silent: Vec<TcpStream> = (0..most / 2 + 1).map(|_| edge.connect()).collect();
    edge.wait_log(&format!(
        "accepting pauses: all {most} descriptors for connections are in use (raise \
         LimitNOFILE=); {} connections are open",
        most / 2
    ));
}

#[test]
fn out_of_descriptors_is_survived() {
    let (folder, upstream) = (Folder::new(), Upstream::echo());
    // Nobody is late, on however slow a machine.
    let edge = edge_with_descriptors(80, &folder, &upstream, "hello_timeout = \"10m\"");
    let hello = Hello::named("host.test").bytes();
    // More than descriptors allow. Each that waits in the queue costs a tick of 100 ms at the end.
    let held: Vec<TcpStream> = (0..60)
        .map(|_| {
            let mut client = edge.connect();
            client.write_all(&hello[..60]).unwrap();
            client
        })
        .collect();
    edge.wait_log("accepting pauses");
    drop(held);
    let mut client = edge.connect();
    client.write_all(&hello).unwrap();
    let mut back = vec![0; hello.len()];
    client.read_exact(&mut back).unwrap();
    assert_eq!(back, hello);
}

/// One line that says what is wrong, exit code 1, and no panic.
fn fails_to_start(config: &str, folder: &Folder, code: i32, words: &[&str]) {
    let file = edge::write(folder, config);
    let said = output(eyelet().arg("serve").arg(file));
    assert_eq!(said.status.code(), Some(code), "{}", said.text);
    assert!(!said.text.contains("panicked"), "{}", said.text);
    for word in words {
        assert!(said.text.contains(word), "no {word:?} in: {}", said.text);
    }
}

#[test]
fn a_port_that_is_taken_is_one_line() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let config = format!("[[listener]]\naddress = \"{address}\"\n[[rule]]\naction = \"refuse\"\n");
    fails_to_start(&config, &folder, 1, &[&address, "in use"]);

    // Another edge's port too: its SO_REUSEPORT must not let a second one in unasked.
    let edge = Edge::start(&folder, "[[rule]]\naction = \"refuse\"\n");
    let address = edge.address().to_string();
    let config = format!("[[listener]]\naddress = \"{address}\"\n[[rule]]\naction = \"refuse\"\n");
    fails_to_start(&config, &folder, 1, &[&address, "in use"]);
}

#[test]
fn a_file_that_is_missing_or_wrong_is_told() {
    let folder = Folder::new();
    let missing = folder.path().join("none.toml");
    let said = output(eyelet().arg("serve").arg(&missing));
    assert!(!said.status.success() && said.text.contains("none.toml"), "{}", said.text);
    assert!(!said.text.contains("panicked"), "{}", said.text);
    let rule = "[[rule]]\nsni = \"a.test\"\naction = \"terminate\"\n\
                upstream = \"tcp://127.0.0.1:1\"\ncertificate = \"none.pem\"\nkey = \"none.key\"\n";
    fails_to_start(&format!("{LISTENER}{rule}"), &folder, 2, &["none.pem"]);
}

#[test]
fn check_prints_every_mistake_with_its_place() {
    let folder = Folder::new();
    let good = format!("{LISTENER}[[rule]]\naction = \"refuse\"\n");
    let said = output(eyelet().arg("check").arg(folder.write("good.toml", good)));
    assert_eq!(said.status.code(), Some(0), "{}", said.text);

    let wrong = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[rule]]\nsnu = \"a.test\"\n\
                 client = \"10.0.0.0/40\"\naction = \"refuse\"\n\
                 [limits]\nidle_timeout = \"soon\"\n";
    let file = folder.write("wrong.toml", wrong);
    let said = output(eyelet().arg("check").arg(&file));
    assert_eq!(said.status.code(), Some(2), "{}", said.text);
    for place in ["wrong.toml:4:", "wrong.toml:5:", "wrong.toml:8:", "snu", "10.0.0.0/40", "soon"] {
        assert!(said.text.contains(place), "no {place:?} in: {}", said.text);
    }
}

#[test]
fn explain_names_the_rule() {
    let folder = Folder::new();
    let rules = "[[rule]]\nname = \"first\"\nsni = \"a.test\"\naction = \"refuse\"\n\
                 [[rule]]\nname = \"second\"\nsni = \"*.b.test\"\naction = \"splice\"\n\
                 upstream = \"127.0.0.1:1\"\n";
    let file = folder.write("eyelet.toml", format!("{LISTENER}{rules}"));
    let said = output(eyelet().arg("explain").arg(&file).args(["--sni", "x.b.test"]));
    assert!(said.status.success(), "{}", said.text);
    assert!(said.text.contains("second") && said.text.contains("splice"), "{}", said.text);
    assert!(said.text.contains("first") && said.text.contains("sni"), "{}", said.text);
    let said = output(eyelet().arg("explain").arg(&file).args(["--sni", "b.test"]));
    assert!(said.text.contains("unrecognized_name"), "{}", said.text);
}

#[test]
fn the_access_log_may_be_a_file_or_off() {
    let folder = Folder::new();
    let hello = Hello::named("nowhere.test").bytes();
    let refuse = "[[rule]]\nsni = \"a.test\"\naction = \"refuse\"\n[log]\naccess = ";
    let edge = Edge::start(&folder, &format!("{refuse}\"access.log\""));
    let mut client = edge.connect();
    client.write_all(&hello).unwrap();
    ending(&mut client, SOON);
    let line = until("a line in the file", || {
        let text = std::fs::read_to_string(folder.path().join("access.log")).ok()?;
        text.contains('\n').then_some(text)
    });
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["sni"], "nowhere.test");
    assert!(edge.lines().is_empty());

    let mut edge = Edge::start(&folder, &format!("{refuse}\"off\""));
    let mut client = edge.connect();
    client.write_all(&hello).unwrap();
    ending(&mut client, SOON);
    edge.signal(Signal::TERM);
    assert!(edge.wait_exit().success());
    assert!(edge.lines().is_empty(), "{:?}", edge.lines());
}

/// Whoever reads the access lines may be slow or gone: connections go on, and so does the end.
#[test]
fn a_reader_of_the_log_that_is_stuck_or_gone_stops_nothing() {
    for gone in [true, false] {
        let folder = Folder::new();
        let config = format!("{LISTENER}[[rule]]\nsni = \"a.test\"\naction = \"refuse\"\n");
        let (reader, writer) = std::io::pipe().unwrap();
        let reader = (!gone).then_some(reader);
        let mut command = eyelet();
        command.arg("serve").arg(edge::write(&folder, &config));
        let mut edge = Edge::spawn_to(command, 1, writer.into());
        // More lines than a pipe holds.
        for _ in 0..1000 {
            let mut client = edge.connect();
            client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let mut start = [0; 12];
            client.read_exact(&mut start).unwrap();
            assert_eq!(&start, b"HTTP/1.1 400");
        }
        edge.signal(Signal::TERM);
        assert!(edge.wait_exit().success(), "reader gone: {gone}");
        drop(reader);
    }
}

/// Every field of DESIGN.md's access line, and no other.
#[test]
fn the_access_line_has_its_fields() {
    let (edge, pki, upstream) = echo_edge("");
    let offer = Offer { alpn: &["h2", "http/1.1"], ..Offer::new(&pki) };
    let mut client = offer.connect(edge.address(), "app.test");
    let address = client.sock.local_addr().unwrap();
    echo(&mut client, b"hello");
    client.conn.send_close_notify();
    client.flush().unwrap();
    client.read_to_end(&mut Vec::new()).unwrap();
    drop(client);
    let line = edge.line_of(address);
    let fields = "time id listener client destination outcome rule reason sni alpn tls_version \
                  ja4 upstream bytes_to_upstream bytes_to_client duration_ms connect \
                  tls_compression evidence shadow http coding bytes_identity bytes_sent why_not \
                  client_ip event trace_id span_id upstream_tls identity held \
                  transport datagrams_to_upstream datagrams_to_client";
    let mut expected: Vec<&str> = fields.split_whitespace().collect();
    let mut found: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(line["outcome"], "terminated", "{line}");
    assert_eq!(line["rule"], "app", "{line}");
    assert_eq!(line["alpn"], serde_json::json!(["h2", "http/1.1"]), "{line}");
    assert_eq!(line["tls_version"], "1.3", "{line}");
    assert!(line["upstream"].as_str().unwrap().contains(&upstream.address.to_string()), "{line}");
    assert_eq!(line["bytes_to_upstream"], 5, "{line}");
    assert_eq!(line["bytes_to_client"], 5, "{line}");
    let ids: Vec<_> = edge.lines().iter().map(|line| line["id"].clone()).collect();
    assert!(ids[0].as_str().is_some_and(|id| !id.is_empty()), "{ids:?}");
}

//! Events that must not stop the edge: a stuck log reader, a path that is no file, a drain in the
//! middle of an exchange.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::client::{Offer, echo, handshake};
use crate::support::edge::{self, LISTENER};
use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RST_STREAM, SETTINGS,
};
use crate::support::frames::{frame, get, next};
use crate::support::{Edge, Folder, Pki, Upstream, output, until, web};

fn eyelet() -> Command {
    Command::new(env!("CARGO_BIN_EXE_eyelet"))
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// An edge whose standard error is a pipe that nobody reads any more once it listens, and is full.
struct Deaf {
    child: Child,
    address: SocketAddr,
    _stderr: BufReader<std::process::ChildStderr>,
}

impl Deaf {
    fn start(file: &Path) -> Self {
        let mut command = eyelet();
        command.arg("serve").arg(file).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended");
            if let Some((_, address)) = line.trim().split_once("listening on ") {
                break address.parse().unwrap();
            }
        };
        let nonblock = OFlags::NONBLOCK.bits().cast_signed();
        let path = format!("/proc/{}/fd/2", child.id());
        let mut pipe = OpenOptions::new().write(true).custom_flags(nonblock).open(path).unwrap();
        for size in [4096, 1] {
            while pipe.write(&vec![b'x'; size]).is_ok() {}
        }
        Self { child, address, _stderr: stderr }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Deaf {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_full_standard_error_stops_neither_workers_nor_signals() {
    let pki = Pki::new();
    let app = Upstream::http();
    let rule = pki.terminate(&format!("http://{}", app.address), "");
    let file = edge::write(&pki.folder, &format!("workers = 2\n{LISTENER}{rule}"));
    let mut edge = Deaf::start(&file);
    // Rapid resets: the library warns of each such connection by itself.
    for _ in 0..20 {
        let mut client =
            Offer { alpn: &["h2"], ..Offer::new(&pki) }.connect(edge.address, "app.test");
        client.write_all(PREFACE).unwrap();
        client.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        let mut flood = Vec::new();
        for stream in (1..400).step_by(2) {
            flood.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &get("/")));
            flood.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
        // The edge ends it somewhere in the middle.
        let _ = client.write_all(&flood);
        let _ = client.read_to_end(&mut Vec::new());
    }
    // Each of these is a line by the main thread.
    for _ in 0..20 {
        edge.signal(Signal::HUP);
    }
    for _ in 0..8 {
        let mut client = Offer::new(&pki).connect(edge.address, "app.test");
        assert_eq!(web::get(&mut client, "/").status, 200);
    }
    edge.signal(Signal::TERM);
    let status = until("the end of the edge", || edge.child.try_wait().unwrap());
    assert!(status.success(), "{status}");
}

/// An upstream that takes requests and never answers to the end; how many it has.
fn half_an_answer(head: &'static [u8]) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counts = count.clone();
    thread::spawn(move || {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            assert!(web::head(&mut stream).starts_with("GET "));
            stream.write_all(head).unwrap();
            counts.fetch_add(1, Ordering::Relaxed);
            open.push(stream);
        }
    });
    (address, count)
}

#[test]
fn requests_that_a_drain_cuts_have_their_lines() {
    const BEGUN: &str = "begun";
    let begun = format!("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{BEGUN}");
    for answer in ["", begun.leak()].map(str::as_bytes) {
        let pki = Pki::new();
        let (app, asked) = half_an_answer(answer);
        let rule = pki.terminate(&format!("http://{app}"), "");
        let limits = "[limits]\ndrain_timeout = \"300ms\"";
        let mut edge = Edge::start(&pki.folder, &format!("{rule}{limits}"));
        let mut one = Offer::new(&pki).connect(edge.address(), "app.test");
        one.write_all(b"GET /one HTTP/1.1\r\nhost: app.test\r\n\r\n").unwrap();
        let mut two =
            Offer { alpn: &["h2"], ..Offer::new(&pki) }.connect(edge.address(), "app.test");
        two.write_all(PREFACE).unwrap();
        two.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        for stream in [1, 3] {
            let head = get("/two");
            two.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &head)).unwrap();
        }
        two.flush().unwrap();
        until("the requests to be with the application", || {
            (asked.load(Ordering::Relaxed) == 3).then_some(())
        });
        if !answer.is_empty() {
            // What of it has come is in the lines.
            web::head(&mut one);
            one.read_exact(&mut [0; BEGUN.len()]).unwrap();
            for _ in 0..2 {
                while next(&mut two).expect("the beginning of a body").kind != DATA {}
            }
        }
        edge.signal(Signal::TERM);
        assert!(edge.wait_exit().success(), "{}", edge.log());
        until("five lines", || (edge.lines().len() >= 5).then_some(()));
        let lines = edge.lines();
        let paths = |path: &str| lines.iter().filter(|line| line["http"]["path"] == path).count();
        assert_eq!([paths("/one"), paths("/two")], [1, 2], "{lines:#?}");
        for line in lines.iter().filter(|line| !line["http"].is_null()) {
            let sent = line["bytes_to_client"].as_u64().unwrap();
            assert!(sent > 0 || answer.is_empty(), "{line}");
            let of_body = if answer.is_empty() { 0 } else { BEGUN.len() };
            assert_eq!(
                (&line["bytes_identity"], &line["bytes_sent"]),
                (&of_body.into(), &of_body.into()),
                "{line}"
            );
        }
        let written = |of_requests: bool| -> Vec<u64> {
            let of = lines.iter().filter(|line| line["http"].is_null() != of_requests);
            of.map(|line| line["bytes_to_upstream"].as_u64().unwrap()).collect()
        };
        let [of_requests, of_connections] = [written(true), written(false)];
        // The application has read the head of each.
        let least = "GET /one HTTP/1.1\r\nhost: app.test\r\n\r\n".len() as u64;
        assert!(of_requests.iter().all(|&bytes| bytes >= least), "{lines:#?}");
        let [requests, connections] =
            [of_requests, of_connections].map(|bytes| bytes.iter().sum::<u64>());
        assert_eq!(requests, connections, "{lines:#?}");
        assert_eq!(lines.len(), 5, "and one for each connection: {lines:#?}");
        assert!(edge.log().contains("0 access lines lost"), "{}", edge.log());
    }
}

#[test]
fn an_access_log_may_be_a_fifo_that_is_read_later() {
    let folder = Folder::new();
    let path = folder.path().join("access.fifo");
    fifo(&path);
    let rules =
        "[[rule]]\nsni = \"a.test\"\naction = \"refuse\"\n[log]\naccess = \"access.fifo\"\n";
    let config = folder.write("edge.toml", format!("{LISTENER}{rules}"));
    let said = output(eyelet().arg("check").arg(&config));
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    assert!(said.text.contains("FIFO"), "{}", said.text);

    let mut edge = Edge::start(&folder, rules);
    edge.wait_log("has no reader");
    edge.connect().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut line = String::new();
    BufReader::new(File::open(&path).unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("\"outcome\":\"refused\""), "{line}");
    edge.signal(Signal::TERM);
    assert!(edge.wait_exit().success());
}

/// Runs `check` and `serve`, which must both end by themselves with status 2, and say this.
fn refused_by_both(config: &Path, words: &[&str]) {
    for command in ["check", "serve"] {
        let said = output(eyelet().arg(command).arg(config));
        assert_eq!(said.status.code(), Some(2), "{command}: {}", said.text);
        for word in words {
            assert!(said.text.contains(word), "{command}: no {word:?} in {}", said.text);
        }
    }
}

#[test]
fn a_file_that_is_no_regular_one_hangs_nothing() {
    let pki = Pki::new();
    let fifo_path = pki.folder.path().join("a.fifo");
    fifo(&fifo_path);
    refused_by_both(&fifo_path, &["it is a FIFO; expected a regular file"]);
    let rule = pki.terminate("tcp://127.0.0.1:9", "");
    let ca = format!("{rule}client_ca = \"edge.pem\"\n");
    for (rule, from) in [(&rule, "edge.pem"), (&rule, "edge.key"), (&ca, "client_ca = \"edge.pem")]
    {
        for (to, kind) in [("a.fifo", "a FIFO"), ("/dev/zero", "a device"), ("/", "a directory")] {
            let to = from.replace(if from.ends_with("key") { "edge.key" } else { "edge.pem" }, to);
            let config = format!("{LISTENER}{}", rule.replacen(from, &to, 1));
            let file = edge::write(&pki.folder, &config);
            refused_by_both(&file, &[&format!("it is {kind}; expected a regular file")]);
        }
    }
}

#[test]
fn a_key_that_others_can_read_is_told() {
    let pki = Pki::new();
    let config = format!("{LISTENER}{}", pki.terminate("tcp://127.0.0.1:9", ""));
    let file = edge::write(&pki.folder, &config);
    for (mode, is_told) in [(0o644, true), (0o640, false), (0o600, false)] {
        std::fs::set_permissions(pki.file("edge.key"), PermissionsExt::from_mode(mode)).unwrap();
        let said = output(eyelet().arg("check").arg(&file));
        assert_eq!(said.status.code(), Some(0), "{}", said.text);
        assert_eq!(said.text.contains("others may read"), is_told, "{mode:o}: {}", said.text);
    }
}

#[test]
fn what_is_wrong_with_a_key_or_a_leaf_is_said() {
    let pki = Pki::new();
    let config = format!("{LISTENER}{}", pki.terminate("tcp://127.0.0.1:9", ""));
    let file = edge::write(&pki.folder, &config);
    // The traditional form (RFC 1421): no line of it but the first is needed to tell.
    let encrypted = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
                     DEK-Info: AES-256-CBC,00112233445566778899AABBCCDDEEFF\n\n\
                     bm90IGEga2V5\n-----END EC PRIVATE KEY-----\n";
    pki.folder.write("edge.key", encrypted);
    let said = output(eyelet().arg("check").arg(&file));
    assert!(said.text.contains("is encrypted; decrypt it"), "{}", said.text);

    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = (0..6000).map(|n| format!("name-{n}.app.test")).collect();
    let leaf = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    pki.folder.write("edge.pem", leaf.pem());
    pki.folder.write("edge.key", key.serialize_pem());
    let said = output(eyelet().arg("check").arg(&file));
    assert_eq!(said.status.code(), Some(2), "{}", said.text);
    let words = format!("the first certificate has {} bytes", leaf.der().len());
    assert!(said.text.contains(&words), "no {words:?} in {}", said.text);
}

/// Connections that are in the queue when the old process is told to end are served by it.
#[test]
fn a_restart_turns_nobody_away_who_is_in_the_queue() {
    let pki = Pki::new();
    let upstream = Upstream::echo();
    let rule = pki.terminate(&format!("tcp://{}", upstream.address), "");
    let listener = "workers = 1\n[[listener]]\naddress = \"127.0.0.1:0\"\nreuse_port = true\n";
    // Fifty handshakes, one after the other, may take their time.
    let limits = "[limits]\nhello_timeout = \"60s\"\ndrain_timeout = \"60s\"\n";
    let config = format!("{listener}{rule}{limits}");
    let mut edge = Edge::start_whole(&pki.folder, &config, |_| ());
    edge.signal(Signal::STOP);
    let queued: Vec<TcpStream> = (0..50).map(|_| edge.connect()).collect();
    edge.signal(Signal::TERM);
    edge.signal(Signal::CONT);
    let config = Offer::new(&pki).config();
    for stream in queued {
        echo(&mut handshake(config.clone(), stream, "app.test").unwrap(), b"served");
    }
    assert!(edge.wait_exit().success(), "{}", edge.log());
}

/// Overflows of another process's listener are not this edge's.
#[test]
fn what_the_kernel_drops_elsewhere_is_not_counted() {
    let folder = Folder::new();
    let mut edge = Edge::start(&folder, "[[rule]]\nsni = \"a.test\"\naction = \"refuse\"\n");
    let other = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    other.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    other.listen(1).unwrap();
    let address = other.local_addr().unwrap().as_socket().unwrap();
    let before = overflows();
    let mut open = Vec::new();
    until("the kernel to drop connections", || {
        open.extend(TcpStream::connect_timeout(&address, Duration::from_millis(20)));
        (overflows() > before).then_some(())
    });
    // It looks at its listeners once more when it stops accepting.
    edge.signal(Signal::TERM);
    assert!(edge.wait_exit().success());
    assert!(edge.log().contains("the kernel dropped 0,"), "{}", edge.log());
}

/// ListenOverflows of this network namespace.
fn overflows() -> u64 {
    let text = std::fs::read_to_string("/proc/net/netstat").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, counts) = (lines.next().unwrap(), lines.next().unwrap());
    let mut both = names.split(' ').zip(counts.split(' '));
    both.find(|(name, _)| *name == "ListenOverflows").unwrap().1.parse().unwrap()
}

/// The files that others could write would be sent to clients as dictionaries.
#[test]
fn a_dictionary_folder_that_others_can_write_to_is_not_used() {
    let pki = Pki::new();
    let folder = pki.folder.path().join("dictionaries");
    std::fs::create_dir(&folder).unwrap();
    let rule = pki.terminate("http://127.0.0.1:9", "dictionary = [\"/app/*\"]\n");
    for (mode, is_used) in [(0o777, false), (0o755, true)] {
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode)).unwrap();
        // It is read at the start, and a half-written file in it goes.
        let trap = folder.join("half.version.new");
        std::fs::write(&trap, b"half").unwrap();
        let edge = Edge::start(&pki.folder, &rule);
        let words = "others may write to the folder (mode 777)";
        assert_eq!(edge.log().contains(words), !is_used, "{mode:o}: {}", edge.log());
        assert_eq!(trap.exists(), !is_used, "{mode:o}");
    }
}

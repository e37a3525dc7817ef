//! Foreign clients against a small server on a real socket. It parks each connection that has no
//! stream: it keeps the exported bytes only, answers on them, and imports them when a stream comes.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod exchange;

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use eyelet_h2::{H2Connection, H2Limits, OUTPUT_BYTES_MAX, ParkedAnswer, ParkedConnection};

use exchange::{End, Random};

/// The time for which a client may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A server that echoes, and how often it has woken a connection.
struct Server {
    port: u16,
    wakes: Arc<AtomicUsize>,
}

impl Server {
    fn begin() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let wakes = Arc::new(AtomicUsize::new(0));
        let counted = wakes.clone();
        thread::spawn(move || {
            for socket in listener.incoming() {
                let wakes = counted.clone();
                thread::spawn(move || {
                    let mut socket = socket.unwrap();
                    // It fails when the client has gone.
                    let _ = serve(&mut socket, &wakes);
                    let _ = socket.shutdown(Shutdown::Write);
                });
            }
        });
        Self { port, wakes }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

fn serve(socket: &mut TcpStream, wakes: &AtomicUsize) -> std::io::Result<()> {
    socket.set_read_timeout(Some(SILENCE_MAX))?;
    socket.set_nodelay(true)?;
    let mut out = Vec::new();
    let limits = H2Limits { connect_protocol: true, ..H2Limits::default() };
    let connection = H2Connection::server(limits, 0, &mut out);
    let mut end = End { is_strict: false, ..End::echo(connection, out, Random(7)) };
    let mut parked: Option<ParkedConnection> = None;
    let mut piece = vec![0; 16 << 10];
    loop {
        if let Some(asleep) = &mut parked {
            match asleep.answer(&end.input, 0, &mut end.out) {
                ParkedAnswer::NeedMore { consumed, .. } => drop(end.input.drain(..consumed)),
                ParkedAnswer::OutputFull { .. } => assert!(end.out.len() >= OUTPUT_BYTES_MAX),
                ParkedAnswer::Wake { consumed } => {
                    end.input.drain(..consumed);
                    end.connection = H2Connection::import(asleep, 0).unwrap();
                    wakes.fetch_add(1, Ordering::Relaxed);
                    parked = None;
                    continue;
                }
            }
        } else {
            while end.step() {
                socket.write_all(&std::mem::take(&mut end.out))?;
            }
            if end.streams.values().all(|exchange| !exchange.is_queued) {
                parked = end.connection.export().ok();
            }
            if end.connection.can_park() {
                end.streams.clear();
            }
        }
        socket.write_all(&std::mem::take(&mut end.out))?;
        if end.connection.is_closed() || end.connection.is_done() {
            return Ok(());
        }
        let count = socket.read(&mut piece)?;
        if count == 0 {
            return Ok(());
        }
        end.input.extend_from_slice(&piece[..count]);
    }
}

/// Runs a program. `None`, with a line, if it is missing.
fn run(test: &str, program: &str, args: &[&str]) -> Option<Output> {
    let output = Command::new(program).args(args).output();
    match output {
        Ok(output) => Some(output),
        Err(error) => {
            skip(&format!("{test}: {program}: {error}"));
            None
        }
    }
}

/// Says that a program is missing, also to a run in which none may be.
fn skip(why: &str) {
    println!("skipped: {why}");
    if let Some(log) = std::env::var_os("EYELET_SKIP_LOG") {
        let mut log = OpenOptions::new().append(true).create(true).open(log).unwrap();
        writeln!(log, "skipped: {why}").unwrap();
    }
}

/// The text of a program that has succeeded.
fn text(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn curl_is_served() {
    let server = Server::begin();
    let body = "b".repeat(300_000);
    let path = std::env::temp_dir().join(format!("eyelet-h2-{}", server.port));
    std::fs::write(&path, &body).unwrap();
    let upload = format!("@{}", path.display());
    let url = server.url("/a");
    // Debian's curl cannot use such a connection twice, whatever the server.
    let args =
        ["-sS", "--http2-prior-knowledge", "-w", "%{http_version}", "--data-binary", &upload, &url];
    let output = run("curl_is_served", "curl", &args);
    std::fs::remove_file(&path).unwrap();
    let Some(output) = output else { return };
    assert!(text(&output) == format!("{body}2"));
}

#[test]
fn node_is_served() {
    let server = Server::begin();
    let script = format!(
        "const client = require('http2').connect('{}');
        let left = 50;
        const ask = (nth) => {{
            const stream = client.request({{':method': 'POST', ':path': '/' + nth, 'x-nth': nth}});
            let text = '';
            stream.setEncoding('utf8');
            stream.on('data', (part) => text += part);
            stream.on('end', () => {{
                if (text !== String(nth).repeat(5000)) throw new Error('another body');
                if (nth < 40) ask(nth + 10);
                if (--left === 0) client.ping(() => ask(50));
                if (left < 0) {{ console.log('whole'); client.close(); }}
            }});
            stream.end(String(nth).repeat(5000));
        }};
        for (let nth = 0; nth < 10; nth++) ask(nth);",
        server.url(""),
    );
    let Some(output) = run("node_is_served", "node", &["-e", &script]) else { return };
    assert_eq!(text(&output), "whole\n");
    // The connection was parked before the last request, and answered the PING so.
    assert!(server.wakes.load(Ordering::Relaxed) >= 1);
}

#[test]
fn python_is_served() {
    let script = "
import socket, sys, h2.connection, h2.events
connection = h2.connection.H2Connection()
sock = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
connection.initiate_connection()
body, got = b'x' * 60000, {}
for stream in range(1, 41, 2):
    fields = [(':method', 'POST'), (':scheme', 'http'), (':authority', 'a.example'), (':path', '/')]
    connection.send_headers(stream, fields + [('x-nth', str(stream))])
    connection.send_data(stream, body[: stream * 30], end_stream=True)
    got[stream] = b''
ended = 0
while ended < 20:
    sock.sendall(connection.data_to_send())
    for event in connection.receive_data(sock.recv(65536)):
        if isinstance(event, h2.events.DataReceived):
            got[event.stream_id] += event.data
            connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            ended += 1
            assert got[event.stream_id] == body[: event.stream_id * 30]
print('whole')
";
    let server = Server::begin();
    let port = server.port.to_string();
    let python = "/usr/bin/python3";
    let Some(output) = run("python_is_served", python, &["-c", script, &port]) else { return };
    if String::from_utf8_lossy(&output.stderr).contains("ModuleNotFoundError") {
        return skip("python_is_served: no module h2");
    }
    assert_eq!(text(&output), "whole\n");
}

#[test]
fn h2load_is_served() {
    let server = Server::begin();
    let url = server.url("/");
    let args = ["-n", "2000", "-c", "4", "-m", "20", &url];
    let Some(output) = run("h2load_is_served", "h2load", &args) else { return };
    let text = text(&output);
    assert!(text.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{text}");
}

#[test]
fn h2spec_is_satisfied() {
    let server = Server::begin();
    let port = server.port.to_string();
    let args = ["-h", "127.0.0.1", "-p", &port, "-S", "-o", "20"];
    let Some(output) = run("h2spec_is_satisfied", "h2spec", &args) else { return };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("146 passed"), "{text}");
}

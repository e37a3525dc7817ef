//! Responses that an application sends before it has read the request's body. Each reaches its
//! HTTP/2 client whole, whatever that client does with the rest of its body.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::client::Offer;
use crate::support::crowd::many;
use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, Frame, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame, literal, next,
};
use crate::support::program::{need, output, python_with};
use crate::support::web::head;
use crate::support::{Edge, Pki, Tls, Upstream};

/// Bytes of the bodies: more than a stream's first window, and more than the socket's buffers.
const BODIES: [usize; 3] = [20_000, 100_000, 1_000_000];
/// Requests of each length, with each status. The defect lost between 15 and 100 of 100.
const TIMES: usize = 5;

/// An application that answers with `status` as soon as it has the head. The one that refuses by
/// 413 takes the rest from its socket, as servers do before they close. The one that asks for a
/// login takes nothing more, and closes when the test is over.
fn early(status: u16) -> (Upstream, mpsc::Sender<()>) {
    let (over, is_over) = mpsc::channel();
    let is_over = std::sync::Mutex::new(is_over);
    let app = Upstream::serve(move |mut stream| {
        head(&mut stream);
        let length = "Content-Length: 5\r\nConnection: close";
        let answer = format!("HTTP/1.1 {status} Early\r\n{length}\r\n\r\nearly");
        let _ = stream.write_all(answer.as_bytes());
        if status == 413 {
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut piece = [0; 4096];
            while let Ok(1..) = stream.read(&mut piece) {}
        } else {
            let _ = is_over.lock().unwrap().recv();
        }
    });
    (app, over)
}

fn with_each(ask: impl Fn(&Pki, &Edge, usize, u16) + Sync) {
    const STATUSES: [u16; 2] = [401, 413];
    many(STATUSES.len(), |nth| {
        let (pki, status) = (Pki::new(), STATUSES[nth]);
        let (app, over) = early(status);
        let rule = pki.terminate(&format!("http://{}", app.address), "");
        let edge = Edge::start(&pki.folder, &rule);
        for bytes in BODIES {
            ask(&pki, &edge, bytes, status);
        }
        drop(over);
    });
}

/// Runs a program of ours, which says ok when all of its answers were whole.
fn program(command: &str, file: &str) {
    with_each(|pki, edge, bytes, status| {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(file);
        let mut command = Command::new(command);
        command.arg(path).arg(edge.port().to_string()).arg(pki.text("ca.pem"));
        command.args([bytes.to_string(), status.to_string(), TIMES.to_string()]);
        let said = output(&mut command);
        let ok = said.status.success() && said.text.contains(&format!("ok {TIMES}"));
        assert!(ok, "{bytes} bytes, {status}: {said:?}");
    });
}

#[test]
fn curl_gets_an_early_answer() {
    if !need("curl") {
        return;
    }
    with_each(|pki, edge, bytes, status| {
        let file = pki.folder.path().join("body");
        std::fs::write(&file, vec![b'x'; bytes]).unwrap();
        let port = edge.port();
        for _ in 0..TIMES {
            let mut command = Command::new("curl");
            command.args(["-sS", "--http2", "--max-time", "30", "--cacert", &pki.text("ca.pem")]);
            command.args(["--resolve", &format!("app.test:{port}:127.0.0.1")]);
            command.args(["-H", "Expect:", "-w", " %{http_version} %{http_code}"]);
            command.arg("--data-binary").arg(format!("@{}", file.display()));
            let said = output(command.arg(format!("https://app.test:{port}/")));
            let ok = said.status.success() && said.text == format!("early 2 {status}");
            assert!(ok, "{bytes} bytes, {status}: {said:?}");
        }
    });
}

#[test]
fn node_gets_an_early_answer() {
    if need("node") {
        program("node", "early.js");
    }
}

#[test]
fn httpx_gets_an_early_answer() {
    if let Some(python) = python_with("httpx, h2") {
        program(python, "early.py");
    }
}

/// A request on stream 1 with a body, of which nothing is sent yet.
fn post(pki: &Pki, edge: &Edge) -> Tls {
    let offer = Offer { alpn: &["h2"], ..Offer::new(pki) };
    let mut client = offer.connect(edge.address(), "app.test");
    let mut block = vec![0x83, 0x87, 0x84];
    block.extend(literal(":authority", "app.test"));
    client.write_all(PREFACE).unwrap();
    client.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    client.write_all(&frame(HEADERS, END_HEADERS, 1, &block)).unwrap();
    client
}

/// The bytes that the client may send: in all, and on stream 1 (RFC 9113 6.9.2).
type Windows = [i64; 2];

/// Waits for the end of the answer on stream 1.
fn hear_answer(client: &mut Tls) -> Windows {
    let mut windows = [65_535; 2];
    loop {
        let heard = next(client).expect("an answer");
        assert_ne!(heard.kind, RST_STREAM, "{heard:?}");
        widen(&mut windows, &heard);
        if heard.kind == DATA && heard.flags & END_STREAM != 0 {
            return windows;
        }
    }
}

fn widen(windows: &mut Windows, heard: &Frame) {
    if heard.kind == WINDOW_UPDATE {
        let more = u32::from_be_bytes(heard.payload[..].try_into().unwrap());
        windows[usize::from(heard.stream == 1)] += i64::from(more);
    }
}

/// RST_STREAM's reasons (RFC 9113 7).
const NO_ERROR: [u8; 4] = [0, 0, 0, 0];

/// A body that is already on its way ends by itself, and no reset says otherwise.
#[test]
fn a_short_body_is_waited_for() {
    let pki = Pki::new();
    let (app, _over) = early(401);
    let rule = pki.terminate(&format!("http://{}", app.address), "");
    let edge = Edge::start(&pki.folder, &rule);
    let mut client = post(&pki, &edge);
    hear_answer(&mut client);
    for _ in 0..3 {
        client.write_all(&frame(DATA, 0, 1, &[7; 10_000])).unwrap();
    }
    client.write_all(&frame(DATA, END_STREAM, 1, &[7; 10_000])).unwrap();
    client.write_all(&frame(PING, 0, 0, &[9; 8])).unwrap();
    loop {
        let heard = next(&mut client).expect("the answer to a PING");
        assert_ne!(heard.kind, RST_STREAM, "{heard:?}");
        if heard.kind == PING {
            break;
        }
    }
}

/// The time for which nothing of a body's rest may come before its stream is reset (docs/http.md).
const REST_SILENCE: Duration = Duration::from_secs(5);

/// A client that goes on sending for ever is reset, and so is one that says nothing more.
#[test]
fn an_endless_body_and_a_silent_one_are_reset() {
    let pki = Pki::new();
    let (app, _over) = early(401);
    let rule = pki.terminate(&format!("http://{}", app.address), "");
    let edge = Edge::start(&pki.folder, &rule);

    let mut silent = post(&pki, &edge);
    hear_answer(&mut silent);
    let reset = loop {
        let heard = next(&mut silent).expect("a reset");
        if heard.kind == RST_STREAM {
            break heard;
        }
    };
    assert_eq!((reset.stream, &reset.payload[..]), (1, &NO_ERROR[..]));

    let mut endless = post(&pki, &edge);
    let began = Instant::now();
    let mut windows = hear_answer(&mut endless);
    let mut sent = 0_u64;
    let piece = frame(DATA, 0, 1, &[7; 16_000]);
    let reset = loop {
        while windows.iter().all(|window| *window >= 16_000) {
            endless.write_all(&piece).unwrap();
            sent += 16_000;
            windows.iter_mut().for_each(|window| *window -= 16_000);
        }
        let heard = next(&mut endless).expect("a window or a reset");
        if heard.kind == RST_STREAM {
            break heard.payload;
        }
        widen(&mut windows, &heard);
    };
    assert_eq!(reset, NO_ERROR);
    // Bytes end it, or on a slow machine a pause of the client's.
    let most = 16 << 20;
    assert!(sent < most + (1 << 20), "{sent} bytes");
    assert!(sent >= most || began.elapsed() >= REST_SILENCE, "{sent} bytes");
}

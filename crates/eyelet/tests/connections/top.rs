//! `eyelet top` in a real terminal, asking a real edge.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use serde_json::Value;

use super::admin::ADMIN;
use super::admin_page::busy;
use crate::support::edge::{self, LISTENER};
use crate::support::upstream::vacant;
use crate::support::{Edge, Folder, Hello, Pki, Said, Upstream, expect, need, output, until};

/// An edge that splices to `upstream`.
fn start(folder: &Folder, admin: &str, upstream: &Upstream) -> (Edge, PathBuf) {
    let rules = edge::splice(upstream.address, "");
    let file = folder.write("edge.toml", format!("workers = 2\n{admin}{LISTENER}{rules}"));
    let mut command = edge::eyelet(folder);
    command.arg("serve").arg(&file);
    (Edge::spawn(command, 1), file)
}

fn top(arguments: &[&str]) -> Said {
    output(Command::new(env!("CARGO_BIN_EXE_eyelet")).arg("top").args(arguments))
}

/// Runs it in a terminal, and returns what it wrote there.
fn terminal(size: [&str; 2], end: &str, file: &Path, no_color: &str) -> Value {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/terminal.py");
    let mut command = Command::new("python3");
    command.arg(script).args(size).args([end, env!("CARGO_BIN_EXE_eyelet"), "top"]).arg(file);
    let said = output(command.env("NO_COLOR", no_color));
    serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.text))
}

/// The rows that were written, each with its number.
fn rows(said: &str) -> Vec<(usize, String)> {
    let moves = said.split("\x1b[").filter_map(|piece| {
        let (place, text) = piece.split_once('H')?;
        Some((place.strip_suffix(";1")?.parse().ok()?, text.to_owned()))
    });
    let plain: Vec<(usize, String)> = moves.collect();
    assert!(!plain.is_empty(), "{said:?}");
    plain
}

#[test]
fn a_frame_is_printed_for_scripts() {
    let (folder, upstream) = (Folder::new(), Upstream::echo());
    let (edge, file) = start(&folder, ADMIN, &upstream);
    let hello = Hello::named("host.test").bytes();
    let open = || {
        let mut client = edge.connect();
        client.write_all(&hello).unwrap();
        expect(&mut client, &hello);
        client
    };
    let _client = open();
    let socket = folder.path().join("admin.sock");
    for arguments in
        [["--once", file.to_str().unwrap()], ["--once", &format!("--socket={}", socket.display())]]
    {
        let said = top(&arguments);
        assert_eq!(said.status.code(), Some(0), "{}", said.text);
        for part in ["  serving  ", " open  ", "each second", "memory", "host.test", "splice"] {
            assert!(said.text.contains(part), "{part} is not in\n{}", said.text);
        }
        assert!(!said.text.contains('\x1b'), "{}", said.text);
        assert!(said.text.lines().all(|line| line.chars().count() <= 80), "{}", said.text);
    }
    // Its reader ends before it writes.
    let mut command = Command::new(env!("CARGO_BIN_EXE_eyelet"));
    command.args(["top", "--once"]).arg(&file).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut unread = command.spawn().unwrap();
    drop(unread.stdout.take());
    let said = unread.wait_with_output().unwrap();
    assert!(said.status.success() && said.stderr.is_empty(), "{said:?}");
    // Connections end between its two looks.
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                drop(open());
            }
        });
        let file = file.to_str().unwrap();
        let is_moving = |text: &str| !text.contains("ended: 0 B in") && !text.contains(", 0 B out");
        let said = until("bytes of ended connections", || {
            // Where the edge stands still it gets no answer in time, and fails.
            let said = Some(top(&["--once", file])).filter(|said| said.status.success());
            said.filter(|said| is_moving(&said.text))
        });
        is_over.store(true, SeqCst);
        assert!(said.text.contains("  ended: "), "{}", said.text);
    });
}

#[test]
fn a_frame_has_a_line_for_each_thing_that_there_was() {
    let pki = Pki::new();
    let _busy = busy(&pki, ADMIN);
    let socket = format!("--socket={}", pki.folder.path().join("admin.sock").display());
    let said = until("both requests", || {
        Some(top(&["--once", &socket]))
            .filter(|said| said.text.contains("\nrequests     2, 0 failed"))
    });
    for part in [
        "\nfaults       refused by name 1",
        "\nhandshakes   TLS 1.3: 1, 0 resumed  X25519MLKEM768 1",
        "\ncompression  coded 1  saved ",
    ] {
        assert!(said.text.contains(part), "{part} is not in\n{}", said.text);
    }
}

#[test]
fn a_token_is_read_and_mistakes_are_named() {
    let (folder, upstream) = (Folder::new(), Upstream::echo());
    folder.write("token", "0123456789abcdef0123456789abcdef");
    let [port] = vacant().map(|address| address.port());
    let admin = format!("[admin]\naddress = \"127.0.0.1:{port}\"\ntoken_file = \"token\"\n");
    let (_edge, file) = start(&folder, &admin, &upstream);
    let file = file.to_str().unwrap();
    let said = top(&["--once", file]);
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    folder.write("token", "1123456789abcdef0123456789abcdef");
    let said = top(&["--once", file]);
    assert_eq!(said.status.code(), Some(1), "{}", said.text);
    assert!(said.text.contains("the token is wrong"), "{}", said.text);
    let said = top(&[file]);
    assert_eq!(said.status.code(), Some(2), "{}", said.text);
    assert!(said.text.contains("--once"), "{}", said.text);
    folder.write("none.toml", format!("{LISTENER}{}", edge::splice(upstream.address, "")));
    let none = folder.path().join("none.toml");
    let said = top(&["--once", none.to_str().unwrap()]);
    assert_eq!(said.status.code(), Some(2), "{}", said.text);
    assert!(said.text.contains("[admin]"), "{}", said.text);
    let said = top(&["--once", "--socket", "/nowhere/admin.sock"]);
    assert_eq!(said.status.code(), Some(1), "{}", said.text);
}

#[test]
fn a_terminal_is_drawn_on_and_given_back() {
    if !need("python3") {
        return;
    }
    let (folder, upstream) = (Folder::new(), Upstream::echo());
    let (_edge, file) = start(&folder, ADMIN, &upstream);
    for (size, end, no_color) in
        [([80, 24], "q", "1"), ([120, 50], "ctrl-c", ""), ([80, 24], "term", "")]
    {
        let [columns, lines] = size.map(|one: usize| one.to_string());
        let seen = terminal([&columns, &lines], end, &file, no_color);
        assert_eq!(seen["status"], 0, "{end}: {seen:#}");
        assert_eq!(seen["restored"], true, "{end}: {seen:#}");
        let (first, second) = (seen["first"].as_str().unwrap(), seen["second"].as_str().unwrap());
        // The other screen, and back; the cursor hidden, and shown.
        assert!(first.starts_with("\x1b[?1049h\x1b[?25l"), "{end}: {first:?}");
        assert!(second.ends_with("\x1b[?25h\x1b[?1049l"), "{end}: {second:?}");
        for (said, columns, lines) in [(first, size[0], size[1]), (second, 40, 10)] {
            for (row, text) in rows(said) {
                assert!(row <= lines && text.chars().count() <= columns, "{row}: {text:?}");
            }
        }
        // Colours are 30 to 39 and 38;5;n of SGR.
        assert!(no_color.is_empty() || !first.contains("\x1b[38"), "{first:?}");
    }
}

#[test]
fn a_server_that_is_no_edge_is_named() {
    let (folder, upstream) = (Folder::new(), Upstream::echo());
    let (edge, file) = start(&folder, ADMIN, &upstream);
    let socket = folder.path().join("admin.sock");
    drop(edge);
    // A server that is no edge.
    let _ = std::fs::remove_file(&socket);
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"SSH-2.0-x\r\n");
        }
    });
    let said = top(&["--once", file.to_str().unwrap()]);
    assert_eq!(said.status.code(), Some(1), "{}", said.text);
    assert!(said.text.contains("/status: not HTTP"), "{}", said.text);
}

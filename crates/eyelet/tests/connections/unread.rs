//! Clients of the admin server that ask and never read: each is ended, and holds little until then.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use crate::admin::{self, ADMIN};
use crate::support::{Edge, Pki, until};

/// Certificates, each of a rule of its own.
const CERTIFICATES: usize = 2_000;
/// Bytes of a rule's name, and of a file's: `/rules`, `/certificates` and `/metrics` then have more
/// than lies in a socket, and so have the documents of `/events` after some seconds.
const NAME_BYTES: usize = 200;
/// Clients for each path: as many as may read `/events`.
const READERS: usize = 8;
/// The bytes that a client of a document in pieces may hold: a piece as objects, as text and in the
/// server's buffer, and what the heap keeps beside them. A whole document has 800 KB.
const PIECES_BYTES: u64 = 256 << 10;
/// Such bytes for `/metrics` and `/events`. The server holds one or two whole documents of these.
const WHOLE_BYTES: u64 = 2 << 20;

fn rules(pki: &Pki) -> String {
    let folder = pki.folder.path();
    let long = "n".repeat(NAME_BYTES);
    let mut rules = String::new();
    for number in 0..CERTIFICATES {
        let name = format!("{number}{long}");
        for (file, of) in [("edge.pem", "pem"), ("edge.key", "key")] {
            std::fs::hard_link(folder.join(file), folder.join(format!("{name}.{of}"))).unwrap();
        }
        let rule = format!(
            "[[rule]]\nname = \"{name}\"\nsni = \"n{number}.test\"\naction = \"terminate\"\n\
             certificate = \"{name}.pem\"\nkey = \"{name}.key\"\nupstream = \"tcp://127.0.0.1:9\"\n"
        );
        rules.write_str(&rule).unwrap();
    }
    rules
}

/// Asks, and reads no more than the status.
fn ask(socket: &Path, path: &str) -> UnixStream {
    let mut stream = admin::connect(socket).unwrap();
    stream.write_all(admin::request(path, "").as_bytes()).unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200", "{path}");
    stream
}

/// Asks for each path [`READERS`] times, and waits until the server has ended all of them.
fn end_unread(edge: &Edge, socket: &Path, paths: [&str; 2], each_bytes: u64) {
    let (before, memory) = (edge.descriptors_at_rest(), edge.rss_bytes());
    let ask_all = |path| (0..READERS).map(move |_| ask(socket, path));
    let unread: Vec<UnixStream> = paths.into_iter().flat_map(ask_all).collect();
    let mut most = 0;
    until("the end of those that do not read", || {
        most = most.max(edge.rss_bytes());
        (edge.descriptors() <= before).then_some(())
    });
    let each = most.saturating_sub(memory) / unread.len() as u64;
    assert!(each < each_bytes, "{paths:?}: {each} bytes each");
}

#[test]
fn who_asks_and_never_reads_is_ended_and_holds_little() {
    let pki = Pki::new();
    let (edge, _, socket) = admin::start(&pki.folder, ADMIN, &rules(&pki));
    for (path, list) in [("/rules", "rules"), ("/certificates", "certificates")] {
        let answer = admin::ask_with(&socket, path, "");
        assert!(answer.head.contains("transfer-encoding: chunked"), "{}", answer.head);
        let whole: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(whole[list].as_array().map(Vec::len), Some(CERTIFICATES), "{path}");
        assert!(whole.to_string().len() > 2 * PIECES_BYTES as usize, "{path}");
    }
    end_unread(&edge, &socket, ["/rules", "/certificates"], PIECES_BYTES);
    end_unread(&edge, &socket, ["/events", "/metrics"], WHOLE_BYTES);
    // There is room for others.
    let others: Vec<UnixStream> = (0..READERS).map(|_| ask(&socket, "/events")).collect();
    assert_eq!(others.len(), READERS);
}

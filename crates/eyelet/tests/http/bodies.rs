//! Bodies whose length is in their head: each byte arrives, in both directions, and nothing of the
//! next request or of a cut body is taken for a part of it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::support::web::{Web, head, hear, rest};
use crate::support::{Upstream, noise};

/// Around one record, around a read of a slow way, and more than a read of a fast one.
const SIZES: [usize; 11] = [
    0,
    1,
    (16 << 10) - 1,
    16 << 10,
    (16 << 10) + 1,
    (64 << 10) + 1,
    (256 << 10) - 1,
    256 << 10,
    (256 << 10) + 1,
    (1 << 20) + 1,
    (4 << 20) + 3,
];

/// Answers each request with its own body.
fn echo(mut stream: TcpStream) {
    let mut first = [0; 1];
    while let Ok(1) = stream.peek(&mut first) {
        let head = head(&mut stream);
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut body).unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&body).unwrap();
    }
}

fn put(path: &str, length: usize) -> Vec<u8> {
    let line = format!("PUT {path} HTTP/1.1\r\nHost: app.test\r\n");
    format!("{line}Content-Length: {length}\r\n\r\n").into_bytes()
}

/// Requests follow each other without a gap, so that reads hold the end of one and the next.
#[test]
fn bodies_of_each_size_arrive_whole_both_ways() {
    let web = Web::with(Upstream::serve(echo), "compress = \"off\"", "");
    let mut client = web.connect();
    let all = noise(SIZES[SIZES.len() - 1], 7);
    for size in SIZES {
        let (body, next) = (&all[all.len() - size..], &all[..size.min(5)]);
        let sent = [&put(&format!("/{size}"), size), body, &put("/next", next.len()), next];
        client.write_all(&sent.concat()).unwrap();
        assert!(hear(&mut client, "PUT").body == body, "{size} bytes came back otherwise");
        assert_eq!(hear(&mut client, "PUT").body, next, "after {size} bytes");
        let line = web.request_line(&format!("/{size}"));
        for counted in ["bytes_to_client", "bytes_to_upstream"] {
            assert!(line[counted].as_u64() >= Some(size as u64), "{counted}: {line}");
            assert!(line[counted].as_u64() < Some(size as u64 + 1024), "{counted}: {line}");
        }
    }
}

#[test]
fn a_body_that_its_upstream_ends_early_is_cut() {
    let app = Upstream::serve(|mut stream| {
        head(&mut stream);
        let body = noise((512 << 10) + 7, 8);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n");
        let _ = stream.write_all(&body);
    });
    let web = Web::with(app, "compress = \"off\"", "");
    let mut client = web.connect();
    client.write_all(b"GET /early HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    head(&mut client);
    assert!(rest(&mut client) == noise((512 << 10) + 7, 8), "not what the upstream sent");
    let line = web.request_line("/early");
    assert_eq!(line["outcome"], "failed", "{line}");
}

#[test]
fn a_body_that_its_client_ends_early_is_cut() {
    let web = Web::new(Upstream::by_hand());
    let body = noise((512 << 10) + 7, 9);
    let mut client = web.connect();
    client.write_all(&put("/early", 1 << 20)).unwrap();
    let mut app = web.app.take();
    head(&mut app);
    let sent = body.clone();
    let writer = std::thread::spawn(move || {
        client.write_all(&sent).unwrap();
        client.flush().unwrap();
        client.sock.shutdown(Shutdown::Write).unwrap();
        client
    });
    let mut got = Vec::new();
    let _ = app.read_to_end(&mut got);
    assert!(got == body, "{} bytes came", got.len());
    drop(writer.join());
    let line = web.request_line("/early");
    assert_eq!(line["outcome"], "left", "{line}");
}

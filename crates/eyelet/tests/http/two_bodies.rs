//! Bodies by HTTP/2 whose length is in their head pass between the records and the upstream's
//! socket: each byte arrives, windows and ends are kept.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use bytes::Bytes;
use http::Request;

use crate::support::client::Offer;
use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame,
    literal, next,
};
use crate::support::two::{Two, get, read, run, write};
use crate::support::web::{Web, head};
use crate::support::{Tls, Upstream, noise};

/// Around one frame in one record, around a window, and more than a read of a fast way.
const SIZES: [usize; 10] = [
    0,
    1,
    (16 << 10) - 10,
    (16 << 10) - 9,
    (16 << 10) - 8,
    (64 << 10) - 1,
    64 << 10,
    (256 << 10) + 1,
    (1 << 20) + 1,
    (2 << 20) + 3,
];

/// Answers each request with its own body, as it comes.
fn echo(mut stream: TcpStream) {
    let mut first = [0; 1];
    while let Ok(1) = stream.peek(&mut first) {
        let head = head(&mut stream);
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut left: usize = length.map_or(0, |length| length.parse().unwrap());
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut piece = vec![0; 100_000];
        while left > 0 {
            let Ok(read @ 1..) = stream.read(&mut piece[..left.min(100_000)]) else { return };
            if stream.write_all(&piece[..read]).is_err() {
                return;
            }
            left -= read;
        }
    }
}

/// Sends a body and returns what comes back meanwhile.
async fn echoed(two: &mut Two, path: &str, body: Bytes) -> Result<Bytes, h2::Error> {
    two.send = two.send.clone().ready().await?;
    let request = Request::put(format!("https://app.test{path}"));
    let request = request.header("content-length", body.len()).body(()).unwrap();
    let (response, mut send) = two.send.send_request(request, false)?;
    let sending = tokio::spawn(async move {
        write(&mut send, body).await?;
        send.send_data(Bytes::new(), true)
    });
    let heard = read(&mut response.await?.into_body()).await?;
    sending.await.unwrap()?;
    Ok(heard)
}

/// Two at once share the connection's window and its records.
#[test]
fn bodies_of_each_size_arrive_whole_both_ways() {
    let web = Web::with(Upstream::serve(echo), "compress = \"off\"", "");
    let all = Bytes::from(noise(SIZES[SIZES.len() - 1] + 1, 11));
    run(async {
        let mut one = web.connect_two().await;
        let mut other = Two { send: one.send.clone(), driven: tokio::spawn(async { Ok(()) }) };
        for size in SIZES {
            let (first, second) = (all.slice(..size), all.slice(1..=size));
            let paths = [format!("/{size}"), format!("/{size}/second")];
            let heard = tokio::join!(
                echoed(&mut one, &paths[0], first.clone()),
                echoed(&mut other, &paths[1], second.clone()),
            );
            assert!(heard.0.unwrap() == first, "{size} bytes came back otherwise");
            assert!(heard.1.unwrap() == second, "{size} bytes came back otherwise");
            for path in paths {
                let line = web.request_line(&path);
                for counted in ["bytes_to_client", "bytes_to_upstream"] {
                    assert!(line[counted].as_u64() >= Some(size as u64), "{counted}: {line}");
                    assert!(line[counted].as_u64() < Some(size as u64 + 1024), "{counted}: {line}");
                }
            }
        }
    });
}

#[test]
fn a_body_that_its_upstream_ends_early_is_reset() {
    let app = Upstream::serve(|mut stream| {
        head(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n");
        let _ = stream.write_all(&noise((512 << 10) + 7, 8));
    });
    let web = Web::with(app, "compress = \"off\"", "");
    run(async {
        let mut two = web.connect_two().await;
        let (response, _) = two.send.send_request(get("/early"), true).unwrap();
        let mut body = response.await.unwrap().into_body();
        let mut heard = Vec::new();
        let end = loop {
            match body.data().await.expect("it has no end") {
                Ok(piece) => {
                    let _ = body.flow_control().release_capacity(piece.len());
                    heard.extend_from_slice(&piece);
                }
                Err(error) => break error,
            }
        };
        assert!(end.is_reset(), "{end}");
        assert!(noise((512 << 10) + 7, 8).starts_with(&heard), "not what the upstream sent");
    });
    let line = web.request_line("/early");
    assert_eq!(line["outcome"], "failed", "{line}");
}

/// A request with a body of this length.
fn begin(web: &Web, length: usize) -> Tls {
    let offer = Offer { alpn: &["h2"], ..Offer::new(&web.pki) };
    let mut client = offer.connect(web.edge.address(), "app.test");
    let fields = [&[0x83, 0x87, 0x84, 0x41, 8][..], b"app.test"].concat();
    let fields = [fields, literal("content-length", &length.to_string())].concat();
    let words = [PREFACE.to_vec(), frame(SETTINGS, 0, 0, &[]), frame(SETTINGS, 1, 0, &[])];
    client.write_all(&words.concat()).unwrap();
    client.write_all(&frame(HEADERS, END_HEADERS, 1, &fields)).unwrap();
    client
}

/// A client may send more ahead to an upstream that takes all that comes.
#[test]
fn the_window_of_a_fast_upload_is_wider() {
    let web = Web::new(Upstream::by_hand());
    let mut client = begin(&web, 64 << 20);
    let mut app = web.app.take();
    let reader = thread::spawn(move || std::io::copy(&mut app, &mut std::io::sink()));
    let (mut window, mut widest) = (65_535, 0);
    let piece = vec![7; 16 << 10];
    while widest <= 128 << 10 {
        while window >= piece.len() {
            client.write_all(&frame(DATA, 0, 1, &piece)).unwrap();
            window -= piece.len();
        }
        let frame = next(&mut client).expect("it is open");
        assert!(frame.kind != RST_STREAM, "{frame:?}");
        if (frame.kind, frame.stream) == (WINDOW_UPDATE, 1) {
            window += u32::from_be_bytes(frame.payload[..].try_into().unwrap()) as usize;
            widest = widest.max(window);
        }
    }
    assert!(widest <= 256 << 10, "{widest} bytes may be sent ahead");
    drop(client);
    let _ = reader.join();
}

/// The stream of an upload that is reset leaves the others alone.
#[test]
fn an_upload_that_is_reset_ends_alone() {
    let web = Web::new(Upstream::serve(echo));
    let mut client = begin(&web, 1 << 20);
    let piece = vec![7; 16 << 10];
    client.write_all(&[frame(DATA, 0, 1, &piece), frame(DATA, 0, 1, &piece)].concat()).unwrap();
    let mut heard = 0;
    while heard < 2 * piece.len() {
        let frame = next(&mut client).expect("it is open");
        heard += if (frame.kind, frame.stream) == (DATA, 1) { frame.payload.len() } else { 0 };
    }
    client.write_all(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])).unwrap();
    let fields = [0x82, 0x87, 0x84, 0xbf];
    client.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &fields)).unwrap();
    loop {
        let frame = next(&mut client).expect("it is open");
        if frame.stream == 3 && frame.flags & END_STREAM != 0 {
            break;
        }
    }
    let line = web.edge.line("the upload", |line| {
        line["http"]["method"] == "PUT" || line["http"]["method"] == "POST"
    });
    assert_eq!(line["outcome"], "left", "{line}");
}

/// The bytes that the client still sends after an early answer are dropped, and the upstream sees
/// the end.
#[test]
fn the_rest_of_an_answered_upload_goes_nowhere() {
    let web = Web::new(Upstream::by_hand());
    let mut client = begin(&web, 1 << 20);
    let mut app = web.app.take();
    head(&mut app);
    let piece = vec![7; 8 << 10];
    // Those behind the first go straight to the upstream.
    for _ in 0..3 {
        client.write_all(&frame(DATA, 0, 1, &piece)).unwrap();
        app.read_exact(&mut vec![0; 8 << 10]).unwrap();
    }
    app.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n").unwrap();
    loop {
        let frame = next(&mut client).expect("an answer");
        assert!(frame.kind != RST_STREAM, "{frame:?}");
        if frame.kind == HEADERS {
            break assert_eq!(frame.flags & END_STREAM, END_STREAM);
        }
    }
    client.write_all(&frame(DATA, 0, 1, &piece)).unwrap();
    let mut rest = Vec::new();
    // A reset is an end, too.
    let _ = app.read_to_end(&mut rest);
    assert!(rest.is_empty(), "{} bytes behind the answer", rest.len());
}

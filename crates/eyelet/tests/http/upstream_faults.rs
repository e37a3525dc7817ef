//! Applications that break HTTP/2, flood, or end in the middle, frame by frame. What is wrong with
//! one stream costs that stream; what is wrong with the connection costs the connection.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::edge::LISTENER;
use crate::support::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame, literal, next,
};
use crate::support::two::{self, Two, run};
use crate::support::web::{Web, get, hear};
use crate::support::{Edge, Pki, SOON, Tls, Upstream, until};

/// `:status: 200` in the static table.
const OK: u8 = 0x88;
const WHOLE: u8 = END_HEADERS | END_STREAM;
/// More frames than a connection may send that move nothing: a thousand, and a hundred a second.
const FLOOD: usize = 12_000;
const FLOW_CONTROL_ERROR: usize = 3;
/// Between two requests of a client that waits for a change.
const A_MOMENT: Duration = Duration::from_millis(20);
/// More data than any window, were it sent.
const ENDLESS_BYTES: usize = 64 << 20;

fn web(app: Upstream) -> Web {
    Web::with(app, "upstream_http2 = \"on\"\ncompress = \"off\"", "")
}

/// Frames to answer a stream with.
type Answer = fn(u32) -> Vec<u8>;

/// The end of a request whose answer is broken.
enum Wanted {
    /// 502, and the access line's reason.
    Refused(&'static str),
    /// 502, or a body that is visibly cut if the head was passed on before.
    Cut,
}

fn ok(stream: u32) -> Vec<u8> {
    frame(HEADERS, WHOLE, stream, &[OK])
}

fn begun(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &[OK])
}

fn head_with(stream: u32, name: &str, value: &str) -> Vec<u8> {
    frame(HEADERS, WHOLE, stream, &[&[OK][..], &literal(name, value)].concat())
}

fn too_long(stream: u32) -> Vec<u8> {
    let block = [&[OK][..], &literal("x", &"y".repeat(70_000))].concat();
    let mut out = Vec::new();
    for (at, part) in block.chunks(16 << 10).enumerate() {
        let kind = if at == 0 { HEADERS } else { CONTINUATION };
        let is_last = (at + 1) * (16 << 10) >= block.len();
        let flags = if is_last { END_HEADERS } else { 0 } | u8::from(at == 0);
        out.extend(frame(kind, flags, stream, part));
    }
    out
}

/// Speaks HTTP/2 by hand: the n-th request of all connections gets the n-th answer, and those
/// after them an empty 200.
fn by_hand(answers: Vec<Answer>) -> Upstream {
    let asked = AtomicUsize::new(0);
    Upstream::serve(move |mut socket| {
        begin(&mut socket);
        while let Some(stream) = next_request(&mut socket) {
            let answer =
                answers.get(asked.fetch_add(1, Ordering::SeqCst)).unwrap_or(&(ok as Answer));
            if socket.write_all(&answer(stream)).is_err() {
                return;
            }
        }
    })
}

fn begin(socket: &mut (impl Read + Write)) {
    socket.read_exact(&mut [0; 24]).unwrap();
    socket.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
}

fn next_request(socket: &mut impl Read) -> Option<u32> {
    loop {
        let frame = next(socket)?;
        if frame.kind == HEADERS {
            return Some(frame.stream);
        }
    }
}

/// Asks for a path of its own, and checks how that ends.
fn check(web: &Web, path: &str, wanted: &Wanted) {
    let mut client = web.connect();
    match wanted {
        Wanted::Refused(reason) => {
            assert_eq!(get(&mut client, path).status, 502, "{path}");
            let line = web.request_line(path);
            assert_eq!(line["reason"], *reason, "{line}");
        }
        Wanted::Cut => {
            let ask = format!("GET {path} HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n");
            client.write_all(ask.as_bytes()).unwrap();
            let mut came = Vec::new();
            let status = match client.read_to_end(&mut came) {
                // Nothing was passed on before the fault was seen.
                Ok(_) => "HTTP/1.1 502 ",
                Err(_) => "HTTP/1.1 200 ",
            };
            assert!(came.starts_with(status.as_bytes()), "{path}: {}", came.escape_ascii());
            assert_eq!(web.request_line(path)["outcome"], "failed", "{path}");
        }
    }
}

#[test]
fn a_broken_response_costs_its_stream() {
    use Wanted::{Cut, Refused};
    let cases: Vec<(Answer, Wanted)> = vec![
        // Pseudo-headers in trailers.
        (|id| [begun(id), frame(DATA, 0, id, b"a"), ok(id)].concat(), Cut),
        // Trailers that do not end the stream.
        (|id| [begun(id), frame(DATA, 0, id, b"a"), begun(id)].concat(), Cut),
        (
            |id| frame(HEADERS, WHOLE, id, &literal("a", "b")),
            Refused("upstream: malformed status line"),
        ),
        (
            |id| frame(HEADERS, WHOLE, id, &literal(":status", "101")),
            Refused("upstream: malformed status line"),
        ),
        (|id| head_with(id, "a", " b"), Refused("upstream: malformed field line")),
        (|id| head_with(id, "A", "b"), Refused("upstream: malformed field line")),
        (|id| head_with(id, "connection", "close"), Refused("upstream: malformed field line")),
        (
            |id| head_with(id, "content-length", "3"),
            Refused("upstream: conflicting or malformed length"),
        ),
        (too_long, Refused("upstream: head too long")),
        (|id| frame(DATA, END_STREAM, id, b"a"), Refused("upstream: malformed status line")),
        (
            |id| frame(RST_STREAM, 0, id, &2_u32.to_be_bytes()),
            Refused("upstream: HTTP/2: INTERNAL_ERROR received"),
        ),
        (
            |id| [frame(WINDOW_UPDATE, 0, id, &[0; 4])].concat(),
            Refused("upstream: HTTP/2: PROTOCOL_ERROR detected"),
        ),
    ];
    let web = web(by_hand(cases.iter().map(|case| case.0).collect()));
    for (at, (_, wanted)) in cases.iter().enumerate() {
        check(&web, &format!("/{at}"), wanted);
    }
    assert_eq!(get(&mut web.connect(), "/").status, 200);
    assert_eq!(web.app.accepted(), 1, "one connection for all");
}

#[test]
fn a_flood_costs_the_connection() {
    const CALM: Wanted = Wanted::Refused("upstream: HTTP/2: ENHANCE_YOUR_CALM detected");
    const PROTOCOL: Wanted = Wanted::Refused("upstream: HTTP/2: PROTOCOL_ERROR detected");
    let cases: Vec<(Answer, Wanted)> = vec![
        (|_| frame(PING, 0, 0, &[0; 8]).repeat(FLOOD), CALM),
        (|_| frame(SETTINGS, 0, 0, &[]).repeat(FLOOD), CALM),
        (|_| frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]).repeat(FLOOD), CALM),
        (|_| frame(0xbe, 0, 0, &[]).repeat(FLOOD), CALM),
        (
            |id| {
                [begun(id), frame(DATA, 0, id, b"a"), frame(DATA, 0, id, b"").repeat(FLOOD)]
                    .concat()
            },
            { Wanted::Cut },
        ),
        // A frame for a stream that has not begun.
        (|id| ok(id + 2), PROTOCOL),
        (|id| frame(CONTINUATION, END_HEADERS, id, &[]), PROTOCOL),
        // A pushed stream.
        (|id| frame(5, END_HEADERS, id, &[0, 0, 0, 2]), PROTOCOL),
        // An index that no table has.
        (
            |id| frame(HEADERS, WHOLE, id, &[0xff, 0x80, 0x01]),
            Wanted::Refused("upstream: HTTP/2: COMPRESSION_ERROR detected"),
        ),
    ];
    let web = web(by_hand(cases.iter().map(|case| case.0).collect()));
    for (at, (_, wanted)) in cases.iter().enumerate() {
        check(&web, &format!("/{at}"), wanted);
    }
    assert_eq!(get(&mut web.connect(), "/").status, 200);
    assert_eq!(web.app.accepted(), cases.len() + 1, "each has cost its connection");
}

/// The upstream sends without a look at its window, and the client reads nothing. Other streams of
/// the connection go on.
#[test]
fn data_beyond_the_window_costs_its_stream() {
    let code = Arc::new(AtomicUsize::new(0));
    let seen = code.clone();
    let web = web(Upstream::serve(move |mut socket| {
        begin(&mut socket);
        let Some(first) = next_request(&mut socket) else { return };
        socket.write_all(&begun(first)).unwrap();
        let mut writer = socket.try_clone().unwrap();
        let stop = seen.clone();
        let writing = thread::spawn(move || {
            let piece = frame(DATA, 0, first, &[0; 16 << 10]);
            for _ in 0..ENDLESS_BYTES / piece.len() {
                if stop.load(Ordering::SeqCst) > 0 || writer.write_all(&piece).is_err() {
                    return;
                }
            }
        });
        while let Some(read) = next(&mut socket) {
            if read.kind == RST_STREAM && read.stream == first {
                let code = u32::from_be_bytes(read.payload[..4].try_into().unwrap());
                seen.store(code as usize, Ordering::SeqCst);
                break;
            }
        }
        writing.join().unwrap();
        while let Some(stream) = next_request(&mut socket) {
            socket.write_all(&ok(stream)).unwrap();
        }
    }));
    let mut stalled = web.connect();
    stalled.write_all(b"GET /stalled HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    until("RST_STREAM", || (code.load(Ordering::SeqCst) > 0).then_some(()));
    assert_eq!(code.load(Ordering::SeqCst), FLOW_CONTROL_ERROR);
    assert_eq!(get(&mut web.connect(), "/").status, 200);
    assert_eq!(web.app.accepted(), 1);
    stalled.read_to_end(&mut Vec::new()).expect_err("a cut that can be seen");
}

/// Three requests are on their way. GOAWAY leaves two of them out, and the first one goes on.
#[test]
fn goaway_in_the_middle_costs_nothing() {
    let web = web(Upstream::by_hand());
    thread::scope(|scope| {
        let app = scope.spawn(|| {
            let mut one = web.app.take();
            begin(&mut one);
            let asked: Vec<_> = (0..3).map(|_| next_request(&mut one).unwrap()).collect();
            one.write_all(&begun(asked[0])).unwrap();
            let last = [asked[0].to_be_bytes(), [0; 4]].concat();
            one.write_all(&frame(GOAWAY, 0, 0, &last)).unwrap();
            let mut two = web.app.take();
            begin(&mut two);
            let again: Vec<_> = (0..2).map(|_| next_request(&mut two).unwrap()).collect();
            for stream in &again {
                two.write_all(&ok(*stream)).unwrap();
            }
            one.write_all(&frame(DATA, END_STREAM, asked[0], b"late")).unwrap();
            // It is closed once its last stream has ended, also by the edge.
            while next(&mut one).is_some() {}
            (asked, again)
        });
        run(async {
            let mut client = web.connect_two().await;
            let paths = (0..3).map(|n| format!("/{n}")).collect();
            let mut bodies = Vec::new();
            for answer in client.all(paths).await {
                let (status, body) = answer.unwrap();
                assert_eq!(status, 200);
                bodies.push(body);
            }
            assert_eq!(bodies, ["late", "", ""]);
        });
        assert_eq!(app.join().unwrap(), (vec![1, 3, 5], vec![1, 3]));
    });
    assert_eq!(web.app.accepted(), 2);
}

/// Streams that the upstream resets are no resets of ours: the connection is kept.
#[test]
fn an_upstream_may_reset_every_stream() {
    let cancel: Answer = |id| frame(RST_STREAM, 0, id, &8_u32.to_be_bytes());
    let web = web(by_hand(vec![cancel; 150]));
    let mut client: Tls = web.connect();
    for _ in 0..150 {
        assert_eq!(get(&mut client, "/").status, 502);
    }
    assert_eq!(get(&mut client, "/").status, 200);
    assert_eq!(web.app.accepted(), 1);
}

/// An upstream that has stopped reading may still answer what it has read. Whatever could not be
/// written to it is asked again elsewhere, and no later request is given to it.
#[test]
fn a_connection_that_takes_nothing_more_is_not_used_again() {
    let pki = Pki::new();
    let path = pki.folder.path().join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let rule = pki.terminate(&format!("http+unix:{}", path.display()), "upstream_http2 = \"on\"");
    let edge = Edge::start_whole(&pki.folder, &format!("workers = 1\n{LISTENER}{rule}"), |_| ());
    let take = || {
        let (mut socket, _) = until("a connection", || listener.accept().ok());
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        begin(&mut socket);
        socket
    };
    let is_left = AtomicBool::new(false);
    let (stopped, reads_nothing) = tokio::sync::oneshot::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut first = take();
            let id = next_request(&mut first).unwrap();
            // Now each write of the edge fails, and its reads go on: so are Unix sockets.
            first.shutdown(Shutdown::Read).unwrap();
            stopped.send(()).unwrap();
            let mut second = take();
            is_left.store(true, Ordering::SeqCst);
            let mut stream = next_request(&mut second).unwrap();
            first.write_all(&ok(id)).unwrap();
            drop(first);
            loop {
                second.write_all(&ok(stream)).unwrap();
                match next_request(&mut second) {
                    Some(next) => stream = next,
                    None => break,
                }
            }
        });
        run(async {
            let mut client = Two::connect(&pki, edge.address()).await;
            let mut asked = Vec::new();
            let mut reads_nothing = Some(reads_nothing);
            // The first one is read. The second one cannot be written, and some may follow before
            // that is known.
            while !is_left.load(Ordering::SeqCst) {
                client.send = client.send.clone().ready().await.unwrap();
                asked.push(client.send.send_request(two::get("/"), true).unwrap().0);
                match reads_nothing.take() {
                    Some(reads_nothing) => reads_nothing.await.unwrap(),
                    None => tokio::time::sleep(A_MOMENT).await,
                }
            }
            for response in asked {
                assert_eq!(response.await.unwrap().status(), 200);
            }
            drop(client.send);
        });
        drop(edge);
    });
}

/// One interim response too many is not passed on, as by HTTP/1.1.
#[test]
fn interim_responses_come_to_an_end() {
    let app = two::app(100, None, |(request, mut respond)| {
        Box::pin(async move {
            let count = request.uri().path()[1..].parse().unwrap();
            for _ in 0..count {
                let hints = http::Response::builder().status(103).body(()).unwrap();
                if respond.send_informational(hints).is_err() {
                    return;
                }
                // The edge takes them one by one.
                tokio::task::yield_now().await;
            }
            let _ = respond.send_response(http::Response::new(()), true);
        })
    });
    let web = web(app);
    for (count, status) in [(100, 200), (101, 502)] {
        let mut client = web.connect();
        client
            .write_all(format!("GET /{count} HTTP/1.1\r\nHost: app.test\r\n\r\n").as_bytes())
            .unwrap();
        let mut passed = 0;
        let last = loop {
            let heard = hear(&mut client, "GET");
            if heard.status != 103 {
                break heard.status;
            }
            passed += 1;
        };
        assert_eq!((passed, last), (100, status), "{count}");
    }
}

//! HTTP/2 connections without streams are parked: what clients see of it when they go on, and how
//! such connections end.

use std::io::{Read, Write};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::client::Offer;
use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, PREFACE, PRIORITY, SETTINGS,
    WINDOW_UPDATE, frame, get as get_block, next, status,
};
use crate::support::two::{get, run};
use crate::support::web::Web;
use crate::support::{Edge, Tls, Upstream, until};

/// Waits until the edge's only connection is parked. Only a parked one holds its state for a peer.
fn wait_parked(edge: &Edge) {
    until("a parked connection", || {
        let known = edge.log().len();
        edge.signal(Signal::USR1);
        // Only what answers this signal: an earlier answer is about an earlier state.
        let relayed = until("the answer to the signal", || {
            let log = edge.log();
            let (_, relayed) = log.get(known..)?.rsplit_once(" relayed ")?;
            relayed.split_once(',')?.0.parse::<usize>().ok()
        });
        (relayed > 0).then_some(())
    });
}

/// With nothing open, the end of its stream ends a parked connection.
#[test]
fn a_parked_client_that_ends_its_stream_is_answered_by_close_notify() {
    for says_goodbye in [true, false] {
        let web = Web::new(Upstream::http());
        let offer = Offer { alpn: &["h2"], ..Offer::new(&web.pki) };
        let mut client = offer.connect(web.edge.address(), "app.test");
        client.write_all(PREFACE).unwrap();
        client.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        client.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &get_block("/"))).unwrap();
        while next(&mut client).unwrap().flags & END_STREAM == 0 {}
        client.write_all(&frame(SETTINGS, 1, 0, &[])).unwrap();
        wait_parked(&web.edge);
        match says_goodbye {
            true => {
                client.conn.send_close_notify();
                client.flush().unwrap();
            }
            false => client.sock.shutdown(std::net::Shutdown::Write).unwrap(),
        }
        while next(&mut client).is_some() {}
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "close_notify");
        let line = web.edge.line("the connection", |line| line["http"].is_null());
        let reason =
            if says_goodbye { "client closed" } else { "client closed without close_notify" };
        assert_eq!(line["reason"], reason, "{line}");
    }
}

/// The h2 crate keeps tables of fields in both directions. With a table that differs from the
/// edge's, it would read other fields, or end the connection.
#[test]
fn a_connection_goes_on_with_the_tables_that_it_had() {
    let web = Web::new(Upstream::http());
    run(async {
        let mut two = web.connect_two().await;
        let mut first = None;
        for path in ["/a", "/b", "/b", "/c"] {
            let (response, _) = two.send.send_request(get(path), true).unwrap();
            let response = response.await.unwrap();
            assert_eq!(response.status(), 200);
            let mut fields = response.headers().clone();
            // It has the path in it.
            fields.remove("content-length");
            fields.remove("date");
            assert_eq!(*first.get_or_insert_with(|| fields.clone()), fields);
            let mut body = response.into_body();
            let text = body.data().await.unwrap().unwrap();
            assert!(text.starts_with(format!("GET {path} HTTP/1.1\r\nhost: app.test").as_bytes()));
            drop(body);
            wait_parked(&web.edge);
            two.send = two.send.clone().ready().await.unwrap();
        }
        drop(two.send);
        assert!(two.driven.await.unwrap().is_ok());
    });
    let line = web.edge.line("the connection", |line| line["http"].is_null());
    assert_eq!(line["reason"], "client closed", "{line}");
    assert_eq!(line["outcome"], "terminated", "{line}");
}

/// The fields of a GET. The second one takes `:authority` from the dynamic table.
fn request(stream: u32) -> Vec<u8> {
    let fields = match stream {
        1 => [&[0x82, 0x87, 0x84, 0x41, 8][..], b"app.test"].concat(),
        _ => vec![0x82, 0x87, 0x84, 0xbe],
    };
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields)
}

fn ask(client: &mut Tls, stream: u32) {
    client.write_all(&request(stream)).unwrap();
    let mut answer = None;
    loop {
        let read = next(client).expect("a response");
        if read.kind == HEADERS && read.stream == stream {
            answer = status(&read.payload);
        }
        if read.stream == stream && read.flags & END_STREAM != 0 {
            break assert_eq!(answer, Some(200));
        }
    }
}

/// A client that has acknowledged the edge's SETTINGS, without which nothing is parked.
fn connect(web: &Web) -> Tls {
    let offer = Offer { alpn: &["h2"], ..Offer::new(&web.pki) };
    let mut client = offer.connect(web.edge.address(), "app.test");
    client.write_all(PREFACE).unwrap();
    client.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    client.write_all(&frame(SETTINGS, 1, 0, &[])).unwrap();
    client
}

/// The last streams of all GOAWAY until the edge closes.
pub fn last_streams(client: &mut Tls) -> Vec<u32> {
    let mut last_streams = Vec::new();
    while let Some(Frame { kind, flags, payload, .. }) = next(client) {
        match kind {
            GOAWAY => {
                assert_eq!(payload[4..8], [0; 4], "NO_ERROR");
                last_streams.push(u32::from_be_bytes(payload[..4].try_into().unwrap()));
            }
            PING if flags == 0 => client.write_all(&frame(PING, 1, 0, &payload)).unwrap(),
            _ => {}
        }
    }
    last_streams
}

#[test]
fn an_idle_connection_is_parked_again_and_again() {
    let web = Web::new(Upstream::http());
    let mut client = connect(&web);
    ask(&mut client, 1);
    wait_parked(&web.edge);
    client.write_all(&frame(PING, 0, 0, b"parked??")).unwrap();
    let Frame { kind, flags, payload, .. } = next(&mut client).expect("an answer");
    assert_eq!((kind, flags, &payload[..]), (PING, 1, &b"parked??"[..]));
    wait_parked(&web.edge);
    ask(&mut client, 3);
    wait_parked(&web.edge);
}

/// An edge that ends idle connections. A test need not do anything within that time, except that
/// the first request on a new connection comes within it.
fn impatient() -> Web {
    Web::with(Upstream::http(), "", "[http]\nhttp2_idle_timeout = \"8s\"\n")
}

/// One that is not parked gets two GOAWAYs. So one GOAWAY shows that it was parked.
#[test]
fn an_idle_connection_ends_with_its_last_stream() {
    let web = impatient();
    let mut client = connect(&web);
    // Both at once: the second one must not come after the timeout.
    client.write_all(&[request(1), request(3)].concat()).unwrap();
    let mut unused = connect(&web);
    assert_eq!(last_streams(&mut client), [3]);
    assert_eq!(last_streams(&mut unused), [0]);
    let idle = || web.edge.count(|line| line["reason"] == "http2_idle_timeout");
    until("both lines", || (idle() == 2).then_some(()));
}

/// Pacing: longer than a task stays awake, and long before the timeout.
const REST: Duration = Duration::from_millis(500);

/// Only a stream counts as use, as at Envoy and HAProxy.
#[test]
fn pings_do_not_make_a_parked_connection_idle_for_longer() {
    let web = impatient();
    // On a machine that stands still a connection may be idle for too long before its first PING.
    until("answers to PINGs before the end", || {
        let mut client = connect(&web);
        ask(&mut client, 1);
        let mut answered = 0;
        until("the end", || {
            std::thread::sleep(REST);
            // Once the edge has closed the write fails, and GOAWAY cannot be read behind it.
            let _ = client.write_all(&frame(PING, 0, 0, b"alive???"));
            let Some(Frame { kind, flags, payload, .. }) = next(&mut client) else {
                return Some(());
            };
            if kind == GOAWAY {
                return Some(());
            }
            assert_eq!((kind, flags, &payload[..]), (PING, 1, &b"alive???"[..]));
            answered += 1;
            None
        });
        (answered > 0).then_some(())
    });
    let line = web.edge.line("the connection", |line| line["http"].is_null());
    assert_eq!(line["reason"], "http2_idle_timeout", "{line}");
}

/// Half a PING and a frame of no known type wake the task, which does not count as use either.
#[test]
fn frames_that_wake_a_task_do_not_make_it_idle_for_longer() {
    const UNKNOWN: u8 = 0xb0;
    let web = impatient();
    let mut client = connect(&web);
    ask(&mut client, 1);
    let ping = frame(PING, 0, 0, b"in parts");
    until("the end", || {
        std::thread::sleep(REST);
        // Once the edge has closed the writes fail, and GOAWAY cannot be read behind them.
        let _ = client.write_all(&frame(UNKNOWN, 0, 0, b"?"));
        let _ = client.write_all(&ping[..5]);
        let _ = client.write_all(&ping[5..]);
        next(&mut client).is_none_or(|frame| frame.kind == GOAWAY).then_some(())
    });
    let line = web.edge.line("the connection", |line| line["http"].is_null());
    assert_eq!(line["reason"], "http2_idle_timeout", "{line}");
}

/// The rest of the frames that need no stream. They change what the connection knows, which the
/// next response shows: it waits for the window, and goes on when that opens.
#[test]
fn a_parked_connection_follows_settings_and_windows() {
    let web = Web::new(Upstream::http());
    let mut client = connect(&web);
    ask(&mut client, 1);
    wait_parked(&web.edge);
    // SETTINGS_INITIAL_WINDOW_SIZE = 0.
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let priority = frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 16]);
    let window = frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1, 0]);
    client.write_all(&[settings, priority, window].concat()).unwrap();
    let Frame { kind, flags, .. } = next(&mut client).expect("an answer");
    assert_eq!((kind, flags), (SETTINGS, 1));
    wait_parked(&web.edge);
    let fields = [0x82, 0x87, 0x84, 0xbe];
    client.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &fields)).unwrap();
    let head = next(&mut client).expect("the head");
    assert_eq!((head.kind, head.stream, status(&head.payload)), (HEADERS, 3, Some(200)));
    client.write_all(&frame(PING, 0, 0, b"no data?")).unwrap();
    let pong = next(&mut client).expect("an answer");
    assert_eq!((pong.kind, pong.flags), (PING, 1), "no data before the window opens");
    client.write_all(&frame(WINDOW_UPDATE, 0, 3, &[0, 0, 255, 255])).unwrap();
    let data = next(&mut client).expect("the body");
    assert_eq!((data.kind, data.stream), (DATA, 3));
}

/// Frames that are answered in place are counted: a flood ends the connection as it does an active
/// one.
#[test]
fn a_flood_of_pings_ends_a_parked_connection() {
    let web = Web::new(Upstream::http());
    let mut client = connect(&web);
    ask(&mut client, 1);
    wait_parked(&web.edge);
    let pings = frame(PING, 0, 0, b"flooding").repeat(20);
    let mut answered = 0;
    let last = until("GOAWAY", || {
        let _ = client.write_all(&pings);
        for _ in 0..20 {
            let frame = next(&mut client)?;
            if frame.kind == GOAWAY {
                return Some(frame);
            }
            answered += 1;
        }
        None
    });
    assert_eq!(last.payload[4..8], [0, 0, 0, 11], "ENHANCE_YOUR_CALM");
    assert!(answered >= 900, "{answered} are answered before");
}

#[test]
fn a_drain_ends_a_parked_connection_with_its_last_stream() {
    let mut web = Web::with(Upstream::http(), "", "[limits]\ndrain_timeout = \"600s\"\n");
    let mut client = connect(&web);
    ask(&mut client, 1);
    wait_parked(&web.edge);
    // An answer in place leaves no request open. With one, it would end later than is waited for.
    client.write_all(&frame(PING, 0, 0, b"before??")).unwrap();
    assert_eq!(next(&mut client).map(|pong| (pong.kind, pong.flags)), Some((PING, 1)));
    web.edge.signal(Signal::TERM);
    let last_streams = last_streams(&mut client);
    assert_eq!(last_streams.last(), Some(&1), "{last_streams:?}");
    drop(client);
    assert!(web.edge.wait_exit().success());
}

/// Neither half a frame nor the beginning of a head can be parked. Such a connection does not hold
/// its task until `http2_idle_timeout`, which is an hour.
#[test]
fn a_client_that_stops_within_a_frame_is_sent_away() {
    let web = Web::with(Upstream::http(), "", "[http]\nbody_timeout = \"1s\"\n");
    for part in [b"\0\0\x08\x06".to_vec(), frame(HEADERS, 0, 3, &[0x82])] {
        let mut client = connect(&web);
        ask(&mut client, 1);
        client.write_all(&part).unwrap();
        let frames = std::iter::from_fn(|| next(&mut client));
        assert_ne!(frames.filter(|frame| frame.kind == GOAWAY).count(), 0, "{part:?}");
    }
    let idle = || web.edge.count(|line| line["reason"] == "http2_idle_timeout");
    until("both lines", || (idle() == 2).then_some(()));
}

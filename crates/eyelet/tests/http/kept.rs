//! Kept connections to upstreams: who may use them for how long, and which requests are sent again.
//! The tests play client and upstream byte by byte.

use std::io::Write;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::support::Upstream;
use crate::support::client::{Offer, close};
use crate::support::frames::{END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame, next};
use crate::support::two::run;
use crate::support::web::{Web, answer, ask, get, head};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const POST: &str = "POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 2\r\n\r\nhi";

/// Answers every request on every connection with these fields more.
fn application(fields: &'static str) -> Upstream {
    Upstream::serve(move |mut stream| {
        let mut byte = [0];
        while let Ok(1) = stream.peek(&mut byte) {
            let asked = head(&mut stream);
            if asked.starts_with("POST") {
                std::io::Read::read_exact(&mut stream, &mut [0; 2]).unwrap();
            }
            let said = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{fields}\r\nok");
            stream.write_all(said.as_bytes()).unwrap();
        }
    })
}

/// "No body" can be said by `Content-Length: 0` too.
#[test]
fn an_idempotent_request_without_a_body_is_asked_again() {
    for request in ["PUT", "DELETE", "GET"] {
        let web = Web::new(Upstream::by_hand());
        let mut client = web.connect();
        let asked = thread::scope(|scope| {
            let app = scope.spawn(|| {
                let mut app = web.app.take();
                answer(&mut app, OK);
                // It goes when it is asked.
                head(&mut app);
                drop(app);
                answer(&mut web.app.take(), OK)
            });
            assert_eq!(get(&mut client, "/").status, 200);
            let ask_for = format!("{request} /x HTTP/1.1\r\nHost: app.test\r\n");
            let heard = ask(&mut client, &format!("{ask_for}Content-Length: 0\r\n\r\n"));
            assert_eq!(heard.status, 200, "{request}");
            app.join().unwrap()
        });
        assert!(asked.starts_with(request), "{asked}");
        assert!(asked.contains("content-length: 0\r\n"), "{asked}");
        assert_eq!(web.app.accepted(), 2);
    }
}

/// gunicorn closes after two seconds and does not say so; Node.js says five.
#[test]
fn what_must_not_be_sent_twice_goes_on_a_connection_that_stays_open() {
    let web = Web::new(application(""));
    let mut client = web.connect();
    assert_eq!(get(&mut client, "/").status, 200);
    thread::sleep(Duration::from_millis(1600));
    assert_eq!(ask(&mut client, POST).status, 200);
    assert_eq!(web.app.accepted(), 2, "the first may be closing");

    let web = Web::new(application("Keep-Alive: timeout=2\r\n"));
    let mut client = web.connect();
    assert_eq!(get(&mut client, "/").status, 200);
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(get(&mut client, "/").status, 200);
    assert_eq!(web.app.accepted(), 2, "the first may be closing");

    let web = Web::new(application("Keep-Alive: timeout=120\r\n"));
    let mut client = web.connect();
    assert_eq!(get(&mut client, "/").status, 200);
    thread::sleep(Duration::from_millis(5500));
    assert_eq!(ask(&mut client, POST).status, 200);
    assert_eq!(web.app.accepted(), 1, "kept as long as the upstream says, up to 30 seconds");
}

/// The number of streams that one client of HTTP/2 has at once.
const AT_ONCE: usize = 100;

/// A burst that dials leaves its connections to the next one.
#[test]
fn a_burst_of_streams_finds_the_connections_of_the_last_one() {
    let barrier = Barrier::new(AT_ONCE);
    let web = Web::new(Upstream::serve(move |mut stream| {
        while stream.peek(&mut [0]).is_ok_and(|more| more > 0) {
            head(&mut stream);
            // All of a burst are asked at the same time.
            barrier.wait();
            let said = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nKeep-Alive: timeout=60\r\n\r\nok";
            stream.write_all(said.as_bytes()).unwrap();
        }
    }));
    run(async {
        let mut client = web.connect_two().await;
        for _ in 0..3 {
            for answer in client.all(vec!["/".to_owned(); AT_ONCE]).await {
                assert_eq!(answer.unwrap().0, 200);
            }
        }
    });
    assert_eq!(web.app.accepted(), AT_ONCE);
}

/// An end that came while the connection rested is seen before a request is written.
#[test]
fn a_connection_that_was_closed_at_rest_is_not_asked() {
    let web = Web::new(Upstream::by_hand());
    let mut client = web.connect();
    thread::scope(|scope| {
        let app = scope.spawn(|| {
            let mut app = web.app.take();
            answer(&mut app, OK);
            thread::sleep(Duration::from_millis(600));
            close(app);
        });
        assert_eq!(get(&mut client, "/").status, 200);
        app.join().unwrap();
        let app = scope.spawn(|| answer(&mut web.app.take(), OK));
        assert_eq!(ask(&mut client, POST).status, 200);
        assert!(app.join().unwrap().starts_with("POST"));
    });
}

/// The upstream of a response that has ended is free before its client has read the response.
#[test]
fn a_client_that_does_not_read_holds_no_upstream() {
    let web = Web::new(application(""));
    let offer = Offer { alpn: &["h2"], ..Offer::new(&web.pki) };
    let mut slow = offer.connect(web.edge.address(), "app.test");
    // Its streams have no window (RFC 9113 6.5.2).
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let fields = [&[0x82, 0x87, 0x84, 0x41, 8][..], b"app.test"].concat();
    let asks = frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields);
    slow.write_all(&[PREFACE, &settings, &asks].concat()).unwrap();
    while next(&mut slow).expect("a response's head").kind != HEADERS {}
    assert_eq!(get(&mut web.connect(), "/").status, 200);
    assert_eq!(web.app.accepted(), 1);
}

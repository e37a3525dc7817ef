//! Requests that leave before an HTTP/2 upstream has sent its SETTINGS (RFC 9113 section 3.4), to
//! upstreams that allow few streams, and to some that never speak.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::frames::{END_HEADERS, END_STREAM, HEADERS, RST_STREAM, SETTINGS, frame, next};
use crate::support::pki::Kind;
use crate::support::two::{self, say};
use crate::support::upstream::{ServerTls, vacant};
use crate::support::web::{Heard, hear};
use crate::support::{A_WHILE, Edge, Pki, SOON, Upstream, need, until};

/// SETTINGS_MAX_CONCURRENT_STREAMS 1 (RFC 9113 6.5.2).
const ONE_STREAM: [u8; 6] = [0, 3, 0, 0, 0, 1];
/// The error code of a stream that was not processed (RFC 9113 section 7).
const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];

/// An edge with an upstream that chooses HTTP/2.
struct Early {
    edge: Edge,
    app: Upstream,
    _pki: Pki,
}

impl Early {
    fn before(more: &str, app: impl FnOnce(&Pki) -> Upstream) -> Self {
        let pki = Pki::new();
        let app = app(&pki);
        let edge = edge_before(&pki, &app.address.to_string(), more);
        Self { edge, app, _pki: pki }
    }

    /// An upstream by hand.
    fn by_hand(answer: impl Fn(&mut ServerTls) + Send + Sync + 'static) -> Self {
        Self::with("", answer)
    }

    fn with(more: &str, answer: impl Fn(&mut ServerTls) + Send + Sync + 'static) -> Self {
        let app =
            |pki: &Pki| Upstream::tls_h2(pki.server("app", &["app.test"], Kind::P256), answer);
        Self::before(more, app)
    }

    /// Sends all of this in one write, and returns what the client hears.
    fn ask(&self, requests: &[String]) -> Vec<Heard> {
        ask(&self.edge, requests)
    }
}

fn edge_before(pki: &Pki, address: &str, more: &str) -> Edge {
    let config = format!(
        "workers = 1\n[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n[[rule]]\n\
         action = \"originate\"\nupstream = \"https://{address}\"\n\
         upstream_name = \"app.test\"\nupstream_ca = \"ca.pem\"\n{more}"
    );
    Edge::start_whole(&pki.folder, &config, |_| ())
}

fn ask(edge: &Edge, requests: &[String]) -> Vec<Heard> {
    let mut client = edge.connect();
    client.write_all(requests.concat().as_bytes()).unwrap();
    requests.iter().map(|_| hear(&mut client, "GET")).collect()
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

/// Reads the preface, and frames until so many requests have come. Their streams.
fn requests(tls: &mut ServerTls, count: usize) -> Option<Vec<u32>> {
    tls.read_exact(&mut [0; 24]).ok()?;
    let mut streams = Vec::new();
    while streams.len() < count {
        let frame = next(tls)?;
        if frame.kind == HEADERS {
            streams.push(frame.stream);
        }
    }
    Some(streams)
}

/// The SETTINGS of an upstream, and then `:status: 204` on these streams.
fn greet_and_answer(tls: &mut ServerTls, streams: &[u32]) {
    let mut said = frame(SETTINGS, 0, 0, &[]);
    for stream in streams {
        said.extend(frame(HEADERS, END_HEADERS | END_STREAM, *stream, &[0x89]));
    }
    tls.write_all(&said).unwrap();
    tls.flush().unwrap();
    // Until the edge closes.
    let _ = tls.read_to_end(&mut Vec::new());
}

/// `:status: 204` on this stream.
fn answer(tls: &mut ServerTls, stream: u32) {
    let said = frame(HEADERS, END_HEADERS | END_STREAM, stream, &[0x89]);
    tls.write_all(&said).unwrap();
    tls.flush().unwrap();
}

/// The upstream says nothing before it has a request and what its client has pipelined behind it.
#[test]
fn requests_leave_before_the_upstream_speaks() {
    let early = Early::by_hand(|tls| {
        let Some(streams) = requests(tls, 4) else { return };
        assert_eq!(streams, [1, 3, 5, 7]);
        greet_and_answer(tls, &streams);
    });
    let asked: Vec<String> = (0..4).map(|n| get(&format!("/{n}"))).collect();
    let heard = early.ask(&asked);
    assert!(heard.iter().all(|heard| heard.status == 204), "{:?}", heard[0].head);
    assert_eq!(early.app.accepted(), 1);
}

/// An upstream that allows one stream refuses the others. They are asked again.
#[test]
fn what_an_upstream_refuses_is_asked_again() {
    let early = Early::before("", |pki| {
        let leaf = pki.server("app", &["app.test"], Kind::P256);
        two::app(1, Some(leaf), |(request, mut respond)| {
            Box::pin(async move { say(&mut respond, request.uri().path().to_owned()) })
        })
    });
    let asked: Vec<String> = (0..9).map(|n| get(&format!("/{n}"))).collect();
    for (n, heard) in early.ask(&asked).into_iter().enumerate() {
        assert_eq!((heard.status, heard.text()), (200, format!("/{n}")), "{}", heard.head);
    }
}

/// Two of three requests that have left early are refused. Each leaves again, and is answered.
#[test]
fn an_early_request_that_is_refused_leaves_again() {
    let early = Early::by_hand(|tls| {
        let Some(streams) = requests(tls, 3) else { return };
        let mut said = frame(SETTINGS, 0, 0, &ONE_STREAM);
        for refused in &streams[1..] {
            said.extend(frame(RST_STREAM, 0, *refused, &REFUSED_STREAM));
        }
        said.extend(frame(HEADERS, END_HEADERS | END_STREAM, streams[0], &[0x89]));
        tls.write_all(&said).unwrap();
        tls.flush().unwrap();
        while let Some(frame) = next(tls) {
            if frame.kind == HEADERS {
                answer(tls, frame.stream);
            }
        }
    });
    let asked: Vec<String> = (0..3).map(|n| get(&format!("/{n}"))).collect();
    for heard in early.ask(&asked) {
        assert_eq!(heard.status, 204, "{}", heard.head);
    }
}

/// An upstream that ends a connection before it has spoken may not have read the request. It is
/// asked once more.
#[test]
fn a_connection_that_ends_before_it_speaks_counts_as_none() {
    let early = Early::by_hand({
        let connections = AtomicUsize::default();
        move |tls| {
            let is_first = connections.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
            if !is_first {
                // The second try is the last one, so it waits for the SETTINGS.
                tls.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
                tls.flush().unwrap();
            }
            let Some(streams) = requests(tls, 1) else { return };
            if !is_first {
                greet_and_answer(tls, &streams);
            }
        }
    });
    assert_eq!(early.ask(&[get("/again")])[0].status, 204);
    assert_eq!(early.app.accepted(), 2);
}

/// A request that may do harm twice waits until the upstream has spoken.
#[test]
fn a_post_leaves_after_the_upstreams_settings() {
    let early = Early::by_hand(|tls| {
        tls.read_exact(&mut [0; 24]).unwrap();
        // Had it left at once, it would be here before this time is over.
        tls.sock.set_read_timeout(Some(A_WHILE)).unwrap();
        while let Some(frame) = next(tls) {
            assert_ne!(frame.kind, HEADERS);
        }
        tls.sock.set_read_timeout(Some(SOON)).unwrap();
        tls.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        tls.flush().unwrap();
        while let Some(frame) = next(tls) {
            if frame.kind == HEADERS {
                return greet_and_answer(tls, &[frame.stream]);
            }
        }
    });
    let post = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi".to_owned();
    let heard = early.ask(&[post]);
    assert_eq!(heard[0].status, 204, "{}", heard[0].head);
}

/// It has done its handshake, and its program stands still.
#[test]
fn an_upstream_that_never_speaks_is_given_up() {
    let early = Early::with("[limits]\nconnect_timeout = \"1s\"\n", |tls| {
        let _ = tls.read_to_end(&mut Vec::new());
    });
    // `upstream_timeout` is longer than this test. Where the handshake takes a second, because this
    // machine is slow, the upstream could not be reached.
    until("a handshake in time", || {
        let began = Instant::now();
        let heard = early.ask(&[get("/")]);
        let is_slow = began.elapsed() >= Duration::from_secs(1);
        let is_late = is_slow && [503, 504].contains(&heard[0].status);
        assert!(is_late || heard[0].status == 502, "{}", heard[0].head);
        (!is_late).then_some(())
    });
}

/// Two streams are allowed, and sixteen are asked.
#[test]
fn nginx_answers_more_requests_than_it_allows_at_once() {
    if !need("nginx") {
        return;
    }
    let pki = Pki::new();
    pki.server("app", &["app.test"], Kind::P256);
    let folder = pki.folder.path().display().to_string();
    let [address] = vacant();
    let config = format!(
        "daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;\n\
         events {{}}\nhttp {{ access_log off;\n\
         client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; \
         fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;\n\
         server {{ listen {address} ssl http2; http2_max_concurrent_streams 2; \
         ssl_certificate {folder}/app.pem; ssl_certificate_key {folder}/app.key; \
         location / {{ return 200 $uri; }} }} }}\n"
    );
    let file = pki.folder.write("nginx.conf", config);
    let _nginx = crate::support::Talk::start(Command::new("nginx").arg("-c").arg(file));
    until("nginx to listen", || TcpStream::connect(address).ok());
    let edge = edge_before(&pki, &address.to_string(), "");
    let asked: Vec<String> = (0..16).map(|n| get(&format!("/{n}"))).collect();
    for (n, heard) in ask(&edge, &asked).into_iter().enumerate() {
        assert_eq!((heard.status, heard.text()), (200, format!("/{n}")), "{}", heard.head);
    }
}

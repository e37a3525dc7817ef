//! HTTP/2 applications that are far away, or that fall silent. A relay with a delay is the long
//! way, and frames by hand are the silent upstream.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Response;
use rustix::net::sockopt;
use rustls::client::Resumption;

use crate::support;
use crate::support::client::TLS13;
use crate::support::crowd::{From, each, light, many};
use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, HEADERS, PING, SETTINGS, WINDOW_UPDATE, frame, next,
};
use crate::support::memory::{Watch, mib};
use crate::support::two::{self, say};
use crate::support::web::{Web, ask, get, hear};
use crate::support::{A_WHILE, SOON, Tls, Upstream, noise, until};

/// One way.
const DELAY: Duration = Duration::from_millis(25);

/// Requests with heads of 32 KiB: more than a socket has room for.
const WIDE: usize = 8;

/// Bytes of an application that are on the long way.
#[derive(Default)]
struct Flight {
    bytes: AtomicUsize,
    /// The most at any time.
    peak: AtomicUsize,
}

impl Flight {
    fn left(&self, bytes: usize) {
        let now = self.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.peak.fetch_max(now, Ordering::SeqCst);
    }

    fn arrived(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
    }
}

/// Whatever is written to it comes out a little later.
fn late(mut from: TcpStream, mut to: TcpStream, flight: &Arc<Flight>) {
    let (give, take) = mpsc::channel::<(Instant, Vec<u8>)>();
    let arriving = flight.clone();
    thread::spawn(move || {
        for (due, bytes) in take {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            arriving.arrived(bytes.len());
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
    let mut piece = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut piece) {
        flight.left(read);
        if give.send((Instant::now() + DELAY, piece[..read].to_vec())).is_err() {
            return;
        }
    }
}

/// An application behind the long way, and what is on the way from it.
fn far(app: &Upstream) -> (Upstream, Arc<Flight>) {
    let address = app.address;
    let flight = Arc::<Flight>::default();
    let from_app = flight.clone();
    let relay = Upstream::serve(move |near| {
        let Ok(far) = TcpStream::connect(address) else { return };
        let _ = far.set_nodelay(true);
        let (from, to, from_app) =
            (far.try_clone().unwrap(), near.try_clone().unwrap(), from_app.clone());
        thread::spawn(move || late(from, to, &from_app));
        late(near, far, &Arc::default());
    });
    (relay, flight)
}

/// Gives the first so many bytes of these, where that is what the path says.
fn library(bytes: &[u8]) -> Upstream {
    let bytes = Bytes::copy_from_slice(bytes);
    two::app(100, None, move |(request, mut respond)| {
        let length = request.uri().path()[1..].parse::<usize>().ok();
        let sent = length.map(|length| bytes.slice(..length));
        Box::pin(async move {
            let Some(sent) = sent else { return say(&mut respond, "ok") };
            let mut send = respond.send_response(Response::new(()), false).unwrap();
            let _ = two::write(&mut send, sent).await;
            let _ = send.send_data(Bytes::new(), true);
        })
    })
}

/// An edge that speaks HTTP/2 to its application and codes nothing.
fn web_with(app: Upstream, limits: &str) -> Web {
    Web::with(app, "upstream_http2 = \"on\"\ncompress = \"off\"", limits)
}

fn web(app: Upstream) -> Web {
    web_with(app, "")
}

/// Bytes on the way for which a window of 256 KiB is too narrow, with the heads of all frames. As
/// windows grow by a factor of four, the window is 1 MiB then: the widest that [`MEMORY_MAX`]
/// allows. A slow machine does not fill that within [`DELAY`].
const BEYOND_256_KIB: usize = 320 << 10;

/// Has the upstream's windows grow. There is one stream, so no more can be on the way than its
/// window, which has 64 KiB at first.
fn widen(web: &Web, bytes: &[u8], flight: &Flight) {
    let mut client = web.connect();
    assert_eq!(get(&mut client, "/").status, 200);
    // On a busy machine not every response fills a window.
    until("a wide window of bytes on the way", || {
        assert!(get(&mut client, &format!("/{}", bytes.len())).body == bytes, "other bytes came");
        (flight.peak.load(Ordering::SeqCst) >= BEYOND_256_KIB).then_some(())
    });
}

/// Nearly as many streams as a connection has, at once, when one alone has had the windows grow:
/// what was promised to one is not promised to each. With all of it here it would be 110 MiB.
#[test]
fn a_burst_behind_wide_windows_stays_within_memory() {
    let bytes = noise(8 << 20, 5);
    let near = library(&bytes);
    let (far, flight) = far(&near);
    let web = web_with(far, &format!("[limits]\nmemory_max = {MEMORY_MAX}\n"));
    widen(&web, &bytes, &flight);
    let watch = Watch::start(web.edge.pid());
    let config = light(TLS13, Resumption::disabled());
    // From as many places: one alone is served little while memory is short.
    let mut clients = many(BURST, |n| {
        let source = From::loopback(2 + u8::try_from(n).unwrap()).small();
        source.tls(web.edge.address(), &config, "app.test").unwrap()
    });
    let request = format!("GET /{PART} HTTP/1.1\r\nHost: app.test\r\n\r\n");
    each(&mut clients, |client| client.write_all(request.as_bytes()).unwrap());
    // Until the upstream has sent what it may.
    thread::sleep(A_WHILE * 3);
    // All at once: each needs sixteen round trips now.
    thread::scope(|scope| {
        for client in &mut clients {
            socket2::SockRef::from(&client.sock).set_recv_buffer_size(PART).unwrap();
            scope.spawn(|| assert!(hear(client, "GET").body == bytes[..PART], "other bytes came"));
        }
    });
    let peak = watch.finish().resident_peak;
    assert!(peak < MEMORY_MAX, "{:.1} MiB", mib(peak));
    assert_eq!(web.app.accepted(), 1);
}
const BURST: usize = 95;
/// Bytes of each, which fit a window that one stream has.
const PART: usize = 1 << 20;
const MEMORY_MAX: u64 = 64 << 20;

#[test]
fn a_long_way_takes_its_time_once() {
    let bytes = noise(8 << 20, 5);
    let near = library(&bytes);
    let (far, flight) = far(&near);
    let web = web(far);
    widen(&web, &bytes, &flight);
    // A wider window is not everybody's.
    let before = web.edge.rss_bytes();
    let stalled: Vec<Tls> = (0..60)
        .map(|_| {
            let mut client = web.connect();
            client.write_all(b"GET /8388608 HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
            client
        })
        .collect();
    thread::sleep(A_WHILE * 5);
    let grown = web.edge.rss_bytes().saturating_sub(before);
    assert!(grown < 60 << 20, "{grown} bytes more with stalled clients");
    assert_eq!(get(&mut web.connect(), "/").text(), "ok");
    assert_eq!(web.app.accepted(), 1);
    drop(stalled);
}

fn begin(stream: &mut TcpStream) {
    stream.read_exact(&mut [0; 24]).unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
}

/// Reads frames up to the next of that kind; its stream.
fn until_frame(stream: &mut TcpStream, kind: u8) -> Option<support::frames::Frame> {
    loop {
        let frame = next(stream)?;
        if frame.kind == kind {
            return Some(frame);
        }
    }
}

/// Answers the next request with `:status: 200` alone.
fn answer(stream: &mut TcpStream) {
    let asked = until_frame(stream, HEADERS).unwrap();
    stream.write_all(&frame(HEADERS, 5, asked.stream, &[0x88])).unwrap();
}

/// An upstream that keeps account of the windows of its streams.
struct Account {
    socket: TcpStream,
    /// The window that each stream starts with.
    initial: i64,
    /// The bytes that each stream may be sent now.
    windows: HashMap<u32, i64>,
}

impl Account {
    fn new(mut socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(SOON)).unwrap();
        begin(&mut socket);
        Self { socket, initial: (64 << 10) - 1, windows: HashMap::new() }
    }

    /// Reads a frame and does what it asks for; its kind.
    fn read(&mut self) -> u8 {
        let read = next(&mut self.socket).expect("a frame in time");
        let number = |at: usize| u32::from_be_bytes(read.payload[at..at + 4].try_into().unwrap());
        match read.kind {
            HEADERS => {
                self.windows.insert(read.stream, self.initial);
                let head = frame(HEADERS, END_HEADERS, read.stream, &[0x88]);
                self.socket.write_all(&head).unwrap();
            }
            WINDOW_UPDATE if read.stream > 0 => {
                *self.windows.get_mut(&read.stream).unwrap() += i64::from(number(0));
            }
            SETTINGS if read.flags == 0 => {
                for at in (0..read.payload.len()).step_by(6) {
                    if read.payload[at..at + 2] == INITIAL_WINDOW_SIZE {
                        let change = i64::from(number(at + 2)) - self.initial;
                        self.initial += change;
                        self.windows.values_mut().for_each(|window| *window += change);
                    }
                }
                self.socket.write_all(&frame(SETTINGS, ACK, 0, &[])).unwrap();
            }
            PING if read.flags == 0 => {
                let pong = frame(PING, ACK, 0, &read.payload);
                self.socket.write_all(&pong).unwrap();
            }
            _ => {}
        }
        read.kind
    }

    fn read_until(&mut self, mut is_done: impl FnMut(&Self) -> bool) {
        while !is_done(self) {
            self.read();
        }
    }

    /// Sends bytes on a stream as its window allows.
    fn send(&mut self, stream: u32, mut bytes: usize) {
        while bytes > 0 {
            self.read_until(|account| account.windows[&stream] > 0);
            let window = usize::try_from(self.windows[&stream]).unwrap();
            let piece = vec![0; bytes.min(window).min(16 << 10)];
            self.socket.write_all(&frame(DATA, 0, stream, &piece)).unwrap();
            *self.windows.get_mut(&stream).unwrap() -= i64::try_from(piece.len()).unwrap();
            bytes -= piece.len();
        }
    }

    fn end(&mut self, stream: u32) {
        self.socket.write_all(&frame(DATA, END_STREAM, stream, &[])).unwrap();
    }
}
const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
const ACK: u8 = 1;
/// The widest window that a stream gets.
const WIDEST: i64 = 4 << 20;
/// The bytes that the upstream sends of it. It is more than a quarter: with five streams a window
/// has 1 MiB. It is less than half: from there on the edge sends WINDOW_UPDATE.
const USED: usize = (4 << 20) / 10 * 3;

/// A window becomes narrower than what the upstream has used of it. The client has read all of
/// that, and must get the rest.
#[test]
fn a_window_that_became_narrow_opens_again() {
    let web = web_with(Upstream::by_hand(), "[limits]\nmemory_max = \"1GiB\"\n");
    let request = b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n";
    let ask = || {
        let mut client = web.connect();
        client.write_all(request).unwrap();
        client
    };
    let mut first = ask();
    let mut app = Account::new(web.app.take());
    app.read_until(|app| app.windows.contains_key(&1));
    let mut second = thread::scope(|scope| {
        scope.spawn(|| assert_eq!(hear(&mut first, "GET").status, 200));
        // Bursts of half a window with pauses between them, until windows are the widest.
        let began = Instant::now();
        while app.initial < WIDEST {
            assert!(began.elapsed() < SOON, "windows of {} bytes", app.initial);
            thread::sleep(DELAY);
            app.send(1, usize::try_from(app.initial).unwrap() / 2);
        }
        let second = ask();
        app.read_until(|app| app.windows.contains_key(&3));
        app.end(1);
        second
    });
    assert_eq!(app.windows[&3], WIDEST);
    app.send(3, USED);
    support::web::head(&mut second);
    let mut body = 0;
    while body < USED {
        body += chunk(&mut second);
    }
    // The edge has taken all, and has sent no WINDOW_UPDATE. More streams make windows narrow.
    let others: Vec<Tls> = (0..4).map(|_| ask()).collect();
    app.read_until(|app| app.initial < WIDEST);
    app.send(3, USED);
    app.end(3);
    while body < 2 * USED {
        body += chunk(&mut second);
    }
    assert_eq!((body, chunk(&mut second)), (2 * USED, 0));
    assert_eq!(web.app.accepted(), 1);
    drop(others);
}

/// Reads a chunk; its length.
fn chunk(client: &mut Tls) -> usize {
    let size = usize::from_str_radix(support::web::line(client).trim(), 16).unwrap();
    client.read_exact(&mut vec![0; size + 2]).unwrap();
    size
}

#[test]
fn an_idle_connection_that_is_dead_is_found() {
    let web = web(Upstream::by_hand());
    let mut client = web.connect();
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(get(&mut client, "/").status, 200));
        let mut one = web.app.take();
        begin(&mut one);
        answer(&mut one);
        let asked = until_frame(&mut one, PING).expect("it is asked whether it is there");
        assert_eq!(asked.stream, 0);
        // It is, once. A slow machine makes the time until the end longer, and never shorter.
        let began = Instant::now();
        one.write_all(&frame(PING, 1, 0, &asked.payload)).unwrap();
        assert!(until_frame(&mut one, PING).is_some(), "and again");
        assert!(until_frame(&mut one, PING).is_none(), "it is given up");
        // Five until it is asked again, and five for the answer.
        assert!(began.elapsed() > Duration::from_secs(8), "not at once");
        // The next request does not meet it.
        scope.spawn(|| assert_eq!(get(&mut web.connect(), "/").status, 200));
        let mut two = web.app.take();
        begin(&mut two);
        answer(&mut two);
    });
}

#[test]
fn a_request_on_a_dead_connection_is_asked_elsewhere() {
    let web = web(Upstream::by_hand());
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(get(&mut web.connect(), "/").status, 200));
        let mut one = web.app.take();
        begin(&mut one);
        answer(&mut one);
        thread::sleep(Duration::from_millis(1300));
        // What is sent to it from now on is not even acknowledged.
        sockopt::set_socket_recv_buffer_size(&one, 1).unwrap();
        for _ in 0..WIDE {
            scope.spawn(|| {
                let fill = "x".repeat(32 << 10);
                let wide = format!("GET / HTTP/1.1\r\nHost: app.test\r\nX-Fill: {fill}\r\n\r\n");
                assert_eq!(ask(&mut web.connect(), &wide).status, 200);
            });
        }
        let mut two = web.app.take();
        begin(&mut two);
        for _ in 0..WIDE {
            answer(&mut two);
        }
        // One that answers pings and takes its time is waited for, and so is a request that must
        // not be asked twice.
        thread::sleep(Duration::from_millis(1300));
        let post = "POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 0\r\n\r\n";
        scope.spawn(|| {
            let mut client = web.connect();
            assert_eq!(ask(&mut client, post).status, 200);
            assert_eq!(web.app.accepted(), 2);
        });
        thread::sleep(Duration::from_secs(6));
        answer(&mut two);
    });
}

/// An application may be at something for a while; its machine takes what is sent.
#[test]
fn a_busy_application_keeps_its_requests_and_gets_no_more() {
    let web = &web(Upstream::by_hand());
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(get(&mut web.connect(), "/").status, 200));
        let mut one = web.app.take();
        begin(&mut one);
        answer(&mut one);
        thread::sleep(Duration::from_millis(1300));
        let began = Instant::now();
        // Requests go on coming, each of which is a reason to ask.
        let kept = scope.spawn(|| get(&mut web.connect(), "/kept").status);
        let asked = until_frame(&mut one, HEADERS).unwrap();
        let steady = scope.spawn(move || {
            let mut clients = Vec::new();
            while web.app.accepted() < 2 && began.elapsed() < SOON {
                let mut client = web.connect();
                client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
                clients.push(client);
                thread::sleep(A_WHILE);
            }
            clients
        });
        let mut two = web.app.take();
        begin(&mut two);
        thread::sleep(Duration::from_secs(1));
        assert!(!kept.is_finished(), "it was asked here");
        one.write_all(&frame(HEADERS, 5, asked.stream, &[0x88])).unwrap();
        assert_eq!(kept.join().unwrap(), 200);
        drop((steady.join().unwrap(), one, two));
    });
}

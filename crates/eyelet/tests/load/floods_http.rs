//! Floods of HTTP against `limits.memory_max`: the process stays below it and serves those who
//! behave. Memory is what the kernel reports.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls::client::Resumption;
use serde_json::Value;

use crate::support::client::handshake;
use crate::support::crowd::{From, Manner, Multitude, each, many, permit, quick, sized, stuff};
use crate::support::memory::{Memory, Watch, is_counted, mib};
use crate::support::{A_WHILE, Edge, Pki, Tls, Visits, noise};

/// `memory_max` in all of these.
const MEMORY_MAX: u64 = 64 << 20;
/// The addresses that flood: 127.0.0.2 to 127.0.0.9.
const SOURCES: usize = 8;
/// The connections that were there before and are silent, on 127.0.0.10.
const PARKED: usize = 20;

/// Records without their last byte: more than are read before memory is short.
const RECORDS: usize = 2_500;
/// Between two requests of a client that behaves.
const EACH: Duration = Duration::from_millis(100);
/// Clients that are slow, more than the last eighth has room for: 16 KiB each.
const SLOW: usize = 500;
/// Clients that say nothing, more than the whole budget has room for.
const SILENT: usize = 3_000;
/// 127.0.0.50 to 127.0.0.249.
const SLOW_SOURCES: usize = 200;

/// The time after which an edge takes no more of what it has not taken.
const TAKEN: Duration = Duration::from_millis(200);

const PAGE: &[u8] = &[b'a'; 16 << 10];
/// A download that nobody needs to read the end of.
const ENDLESS: Manner = Manner::Download {
    head: "HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 1000000000000\r\n\r\n",
    piece: PAGE,
};
/// Such a download as text: each piece is coded to nearly nothing.
const BOMB: Manner =
    Manner::Download { head: "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n", piece: PAGE };

/// Between connections with many requests each.
pub const PAUSE: Duration = Duration::from_millis(150);

/// The number of times that clients look whether more is taken.
const POURS: usize = 50;

/// An edge with a name for those who behave, and one that leads to a flood's upstream.
pub struct Scene {
    _pki: Pki,
    _calm: Multitude,
    _flooded: Multitude,
    pub edge: Edge,
    pub one: Arc<ClientConfig>,
    pub two: Arc<ClientConfig>,
    /// Of a hundred newcomers so many are served at the least.
    newcomers_percent: usize,
}

impl Scene {
    /// With 95 of a hundred newcomers served.
    pub fn strict(manner: Manner) -> Self {
        Self::new(manner).strictly()
    }

    /// This scene, with 95 of a hundred newcomers served.
    pub fn strictly(self) -> Self {
        Self { newcomers_percent: 95, ..self }
    }

    fn new(manner: Manner) -> Self {
        Self::between(Manner::Page, manner)
    }

    /// With what the upstream does of those who behave.
    fn between(calm: Manner, manner: Manner) -> Self {
        Self::leading(calm, manner, |pki, upstream| {
            pki.terminate(&format!("http://{upstream}"), "")
        })
    }

    /// With what leads to the flood's upstream: rules, and listeners before them.
    pub fn leading(
        calm: Manner,
        manner: Manner,
        flooded_rules: impl FnOnce(&Pki, SocketAddr) -> String,
    ) -> Self {
        let pki = Pki::new();
        let (calm, flooded) = (Multitude::start(calm), Multitude::start(manner));
        let calm_rule = pki.terminate(&format!("http://{}", calm.address), "");
        let rules = format!(
            "{}{}[limits]\nmemory_max = \"64MiB\"\n",
            flooded_rules(&pki, flooded.address),
            calm_rule.replace("app.test", "calm.app.test").replace("\"app\"", "\"calm\""),
        );
        let edge = Edge::start(&pki.folder, &rules);
        let one = quick(Resumption::disabled());
        let mut two = ClientConfig::clone(&one);
        two.alpn_protocols = vec![b"h2".to_vec()];
        let (_pki, _calm, _flooded, two) = (pki, calm, flooded, Arc::new(two));
        let scene = Self { _pki, _calm, _flooded, edge, one, two, newcomers_percent: 75 };
        assert!(scene.ask_from(1).is_some(), "before the flood");
        scene
    }

    /// Opens so many connections that say this. One that was shed may not take it all.
    pub fn open(&self, config: &Arc<ClientConfig>, count: usize, says: &[u8]) -> Vec<Tls> {
        self.open_at(Duration::ZERO, config, count, says)
    }

    /// Opens them with a pause behind it: most that was asked is answered before more is asked.
    pub fn open_at(
        &self,
        pause: Duration,
        config: &Arc<ClientConfig>,
        count: usize,
        says: &[u8],
    ) -> Vec<Tls> {
        let begin = |n: usize| {
            let source = From::loopback(2 + u8::try_from(n % SOURCES).unwrap()).small();
            let mut client = source.tls(self.edge.address(), config, "app.test").ok()?;
            client.sock.set_write_timeout(Some(TAKEN)).unwrap();
            let (began, mut rest) = (Instant::now(), says);
            while !rest.is_empty() && began.elapsed() < TAKEN {
                let Ok(taken) = client.write(&rest[..rest.len().min(PAGE.len())]) else { break };
                rest = &rest[taken..];
            }
            thread::sleep(pause);
            Some(client)
        };
        many(count, begin).into_iter().flatten().collect()
    }

    /// Clients from many places that are silent for a moment before they behave, all at once: each
    /// takes what a handshake may need. How many are served: on a slow machine some are too late.
    fn serve_slow(&self) -> usize {
        let source = |n: usize| From::loopback(u8::try_from(50 + n % SLOW_SOURCES).unwrap());
        let silent = many(SLOW, |n| source(n).connect(self.edge.address()));
        thread::sleep(A_WHILE);
        let mut slow: Vec<_> = silent.into_iter().map(|socket| (socket.ok(), None)).collect();
        each(&mut slow, |(socket, served)| {
            let shake = |socket| handshake(self.one.clone(), socket, "calm.app.test").ok();
            *served = socket.take().and_then(shake).and_then(ask);
        });
        slow.iter().filter(|(_, served)| served.is_some()).count()
    }

    /// Runs a flood and holds what it opened: memory stays below the bound, a client that was
    /// there before is served all the time, and so are most who come.
    pub fn withstands<T>(&self, label: &str, flood: impl FnOnce() -> T) -> T {
        let mut parked: Vec<_> = (0..PARKED).map(|_| self.ask_from(10)).collect();
        let (address, config) = (self.edge.address(), self.one.clone());
        let mut kept = From::loopback(1).tls(address, &config, "calm.app.test").ok();
        let steady = Visits::start(EACH, move || {
            kept = kept.take().and_then(ask);
            kept.is_some()
        });
        let (address, config) = (self.edge.address(), self.one.clone());
        let newcomers = Visits::start(EACH, move || {
            let client = From::loopback(1).tls(address, &config, "calm.app.test");
            client.ok().and_then(ask).is_some()
        });
        let watch = Watch::start(self.edge.pid());
        let base = watch.base;
        let held = flood();
        // The flood stands for a while: it is then that who does not move is given up.
        thread::sleep(Duration::from_secs(4));
        let Memory { resident, resident_peak, anonymous } = watch.finish();
        let (steady, newcomers) = (steady.finish(), newcomers.finish());
        each(&mut parked, |client| *client = client.take().and_then(ask));
        let parked = parked.into_iter().flatten().count();
        let shed = self.edge.count(|line| line["reason"].as_str().unwrap().starts_with("shed"));
        eprintln!(
            "{label}: at most {:.1} MiB resident (peak {:.1}), {:.1} anonymous; steady {steady:?}, \
             newcomers {newcomers:?}, {parked} parked, {shed} shed",
            mib(resident),
            mib(resident_peak),
            mib(anonymous),
        );
        self.tell_ends();
        is_counted(label, &self.edge.log(), base, anonymous);
        assert!(resident_peak < MEMORY_MAX, "{label}: {:.1} MiB", mib(resident_peak));
        assert_eq!(steady.served, steady.came, "{label}: {steady:?}");
        assert_eq!(parked, PARKED, "{label}");
        newcomers.are_served(self.newcomers_percent);
        held
    }

    /// A new connection from 127.0.0.n that has asked once.
    fn ask_from(&self, n: u8) -> Option<Tls> {
        let client = From::loopback(n).tls(self.edge.address(), &self.one, "calm.app.test");
        client.ok().and_then(ask)
    }

    /// Prints the counts of ends of connections and requests: of those who behave, and of the
    /// flood.
    fn tell_ends(&self) {
        let mut ends = BTreeMap::<_, usize>::new();
        for line in self.edge.lines() {
            let calm = line["client"].as_str().unwrap().starts_with("127.0.0.1:");
            let reason = line["reason"].as_str().unwrap().to_owned();
            *ends.entry((calm, line["http"].is_object(), reason)).or_default() += 1;
        }
        for ((calm, request, reason), count) in ends {
            let who = if calm { "calm" } else { "flood" };
            let what = if request { "requests" } else { "connections" };
            eprintln!("  {who}: {count} {what}: {reason}");
        }
    }
}

/// Asks for a page; the connection, if it came.
fn ask(mut client: Tls) -> Option<Tls> {
    client.write_all(b"GET / HTTP/1.1\r\nHost: calm.app.test\r\n\r\n").ok()?;
    let mut got = Vec::new();
    let mut piece = [0; 512];
    while !got.ends_with(b"\r\n\r\nyes") {
        match client.read(&mut piece) {
            Ok(length @ 1..) => got.extend_from_slice(&piece[..length]),
            _ => return None,
        }
    }
    Some(client)
}

/// A frame of HTTP/2 (RFC 9113 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The preface, with windows of so many bytes for each stream, and 1 GiB for all.
fn preface(window: u32) -> Vec<u8> {
    let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    said.extend(frame(4, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat()));
    said.extend(frame(8, 0, 0, &(1_u32 << 30).to_be_bytes()));
    said
}

/// HEADERS of a request, by the static table (RFC 7541 appendix A) but for :authority.
fn request(method: u8, flags: u8, stream: u32) -> Vec<u8> {
    request_of(method, flags, stream, b"app.test")
}

/// HEADERS for another authority.
fn request_of(method: u8, flags: u8, stream: u32, authority: &[u8]) -> Vec<u8> {
    let length = u8::try_from(authority.len()).unwrap();
    let fields = [&[method, 0x87, 0x84, 0x41, length][..], authority].concat();
    frame(HEADERS, 4 | flags, stream, &fields)
}

/// Types of frames (RFC 9113 section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const GET: u8 = 0x82;
const POST: u8 = 0x83;
const END_STREAM: u8 = 1;

/// Clients that send half a head and no more, of half the allowed size.
#[test]
fn half_a_head() {
    let _permit = permit(sized(1_500));
    let scene = Scene::new(Manner::Page);
    let mut says = b"GET / HTTP/1.1\r\nHost: app.test\r\nX-Long: ".to_vec();
    says.resize(32 << 10, b'x');
    let held = scene.withstands("half a head", || scene.open(&scene.one, sized(1_500), &says));
    drop(held);
}

/// Beneath HTTP: a TLS record whose last byte does not come. Reading stops before records
/// fill the budget, but what they have of it is wanted when many come who are slow.
#[test]
fn half_a_record() {
    let _permit = permit(sized(RECORDS + SLOW));
    let scene = Scene::new(Manner::Page);
    let flood = || {
        let mut held = scene.open(&scene.one, sized(RECORDS), &[]);
        each(&mut held, |client| {
            let mut record = Vec::new();
            client.conn.writer().write_all(PAGE).unwrap();
            client.conn.write_tls(&mut record).unwrap();
            // One that was shed takes none of it.
            let _ = client.sock.write(&record[..record.len() - 1]);
        });
        (held, scene.serve_slow())
    };
    let (held, served) = scene.withstands("half a record", flood);
    let why = |line: &Value| line["reason"].as_str().unwrap().to_owned();
    let cut = scene.edge.count(|line| why(line) == "shed: memory_max, before the hello");
    eprintln!("of {SLOW} slow ones {served} were served, {cut} were shed");
    assert!(served > 0 && 10 * cut < SLOW, "records go first");
    drop(held);
}

/// Half a head by HTTP/2: HEADERS without END_HEADERS.
#[test]
fn half_a_head_by_http2() {
    let _permit = permit(sized(1_500));
    let scene = Scene::new(Manner::Page);
    let mut says = preface(65_535);
    let fields = [&[GET, 0x87, 0x84, 0x41, 8][..], b"app.test\x00\x01x\x7f\x81\x7f"].concat();
    says.extend(frame(1, 0, 1, &[&fields[..], &vec![b'x'; 16_000]].concat()));
    let held =
        scene.withstands("half a head by h2", || scene.open(&scene.two, sized(1_500), &says));
    drop(held);
}

/// Clients that ask for what has no end and never read.
#[test]
fn downloads_that_nobody_reads() {
    let _permit = permit(sized(2 * 500));
    let scene = Scene::new(ENDLESS);
    let says = b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n";
    let held = scene.withstands("downloads", || scene.open(&scene.one, sized(500), says));
    drop(held);
}

/// Such downloads by HTTP/2, a hundred streams each.
#[test]
fn downloads_that_nobody_reads_by_http2() {
    let _permit = permit(sized(50 * (1 + 100)));
    let scene = Scene::new(ENDLESS);
    let flood = || scene.open(&scene.two, sized(50), &gets(100));
    let held = scene.withstands("downloads by h2", flood);
    drop(held);
}

/// So many GETs with windows for all of their responses.
pub fn gets(count: u32) -> Vec<u8> {
    let mut says = preface(1 << 30);
    (0..count).for_each(|n| says.extend(request(GET, END_STREAM, 2 * n + 1)));
    says
}

/// Responses that are whole in the edge, in the library, while their clients do not read them.
#[test]
fn pages_that_nobody_reads_by_http2() {
    let _permit = permit(sized(150 * (1 + 30)));
    let mut page = b"HTTP/1.1 200 OK\r\nContent-Length: 16384\r\n\r\n".to_vec();
    page.extend(PAGE);
    let scene = Scene::strict(Manner::Say(page.leak()));
    let flood = || scene.open_at(PAUSE, &scene.two, sized(150), &gets(30));
    drop(scene.withstands("pages by h2", flood));
}

/// Such responses with heads of 60 kB.
#[test]
fn long_heads_that_nobody_reads_by_http2() {
    let _permit = permit(sized(30 * (1 + 100)));
    let mut page = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n".to_owned();
    (0..15).for_each(|n| page.push_str(&format!("X-Long-{n}: {}\r\n", "x".repeat(4_000))));
    page.push_str("\r\nyes");
    let scene = Scene::strict(Manner::Say(page.into_bytes().leak()));
    let flood = || scene.open_at(PAUSE, &scene.two, sized(30), &gets(100));
    drop(scene.withstands("long heads by h2", flood));
}

/// Such responses with interim heads: nobody has read the one when the final head comes.
#[test]
fn long_interim_heads_that_nobody_reads_by_http2() {
    let _permit = permit(sized(30 * (1 + 100)));
    let mut page = "HTTP/1.1 103 Early Hints\r\n".to_owned();
    (0..15).for_each(|n| page.push_str(&format!("X-Long-{n}: {}\r\n", "x".repeat(4_000))));
    page.push_str("\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes");
    let scene = Scene::strict(Manner::Say(page.into_bytes().leak()));
    let flood = || scene.open_at(PAUSE, &scene.two, sized(30), &gets(100));
    drop(scene.withstands("long interim heads by h2", flood));
}

/// The upstream's own interim responses go to a client that behaves whatever a flood does: RFC
/// 9110 15.2 has a proxy pass them on, and a client may wait for its 100.
#[test]
fn interim_heads_are_passed_on_while_memory_is_short() {
    let _permit = permit(sized(SILENT));
    let page = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n\
                 HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes";
    let scene = Scene::between(Manner::Say(page), Manner::Stalled);
    let hinted = Hinted::start(&scene);
    // Each counts 16 KiB until it is shed, and their sources may begin the last eighth too.
    let source = |n: usize| From::loopback(u8::try_from(50 + n % SLOW_SOURCES).unwrap());
    let flood = || many(sized(SILENT), |n| source(n).connect(scene.edge.address()).ok());
    drop(scene.withstands("silent clients, and hints for others", flood));
    let (answers, hints) = hinted.finish();
    eprintln!("{answers} answers by h2, {hints} of them behind an interim head");
    assert!(answers > 0 && hints == answers, "{hints} of {answers}");
}

/// A client that asks by HTTP/2 all the time, and counts interim heads.
struct Hinted {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(usize, usize)>,
}

impl Hinted {
    fn start(scene: &Scene) -> Self {
        let (address, config) = (scene.edge.address(), scene.two.clone());
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let (mut answers, mut hints) = (0, 0);
            while !stopped.load(Ordering::Relaxed) {
                let Ok(mut client) = From::loopback(1).tls(address, &config, "calm.app.test")
                else {
                    continue;
                };
                let mut says = preface(1 << 20);
                // One that is refused or shed comes again.
                for stream in (1..).step_by(2) {
                    says.extend(request_of(GET, END_STREAM, stream, b"calm.app.test"));
                    let sent = client.write_all(&std::mem::take(&mut says));
                    let Some(heads) = sent.ok().and_then(|()| heads(&mut client, stream)) else {
                        break;
                    };
                    (answers, hints) = (answers + 1, hints + usize::from(heads == 2));
                    if stopped.load(Ordering::Relaxed) {
                        break;
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            }
            (answers, hints)
        });
        Self { stop, thread }
    }

    fn finish(self) -> (usize, usize) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Returns the number of heads on a stream up to its end. `None`: it was reset, or the connection
/// has ended.
fn heads(client: &mut Tls, of: u32) -> Option<usize> {
    let mut heads = 0;
    loop {
        let mut head = [0; 9];
        client.read_exact(&mut head).ok()?;
        let [high, middle, low, kind, flags, stream @ ..] = head;
        let length = u32::from_be_bytes([0, high, middle, low]);
        client.read_exact(&mut vec![0; length as usize]).ok()?;
        match kind {
            DATA | HEADERS if u32::from_be_bytes(stream) == of => {
                heads += usize::from(kind == HEADERS);
                if flags & END_STREAM != 0 {
                    return Some(heads);
                }
            }
            RST_STREAM | GOAWAY => return None,
            _ => {}
        }
    }
}

/// A hundred requests with heads of 58 kB. The first puts a field into the table, and all of them
/// name it fifteen times, with a byte each time (RFC 7541 6.1).
fn bombs() -> Vec<u8> {
    let mut says = preface(1 << 30);
    let mut first = [&[GET, 0x87, 0x84, 0x41, 8][..], b"app.test\x40\x01x\x7f\xf9\x1c"].concat();
    first.extend(&PAGE[..3_832]);
    // The table's newest entry is 62, and :authority is behind it.
    let later = [GET, 0x87, 0x84, 0xbf];
    for n in 0..100 {
        let begin = if n == 0 { &first[..] } else { &later };
        let fields = [begin, &[0xbe; 15]].concat();
        says.extend(frame(1, 4 | END_STREAM, 2 * n + 1, &fields));
    }
    says
}

/// Requests that are long only when they are decoded, to an upstream that does not answer.
#[test]
fn heads_out_of_the_table_by_http2() {
    let _permit = permit(sized(30 * (1 + 100)));
    let scene = Scene::strict(Manner::Stalled);
    let flood = || scene.open_at(PAUSE, &scene.two, sized(30), &bombs());
    drop(scene.withstands("bombs of fields by h2", flood));
}

/// Such requests on a few connections of one client: it has no more than its share.
#[test]
fn a_few_connections_with_heads_out_of_the_table() {
    let _permit = permit(sized(6 * (1 + 100)));
    let scene = Scene::strict(Manner::Stalled);
    let connect = || From::loopback(2).small().tls(scene.edge.address(), &scene.two, "app.test");
    let flood = || {
        let mut few: Vec<_> = (0..6).map(|_| connect().unwrap()).collect();
        few.iter_mut().for_each(|client| client.write_all(&bombs()).unwrap());
        few
    };
    drop(scene.withstands("a few connections", flood));
}

/// Requests that are answered at once, each with trailers of short names behind its head: in the
/// library they take thirty times as much as on the wire.
#[test]
fn trailers_that_nobody_has_taken() {
    const TRACE: &[u8] = b"\x02\x05TRACE\x87\x84\x41\x08app.test";
    let _permit = permit(sized(30 * (1 + 100)));
    let scene = Scene::strict(Manner::Stalled);
    // Literals without indexing, each with a name of its own (RFC 7541 6.2.2).
    let letters = || b'a'..=b'z';
    let names = letters().flat_map(|one| letters().map(move |two| [one, two]));
    let names = names.flat_map(|[one, two]| [b'x', b'y', b'z'].map(|three| [one, two, three]));
    let fields: Vec<u8> = names.take(1_800).flat_map(|[a, b, c]| [0, 3, a, b, c, 0]).collect();
    let mut says = preface(1 << 30);
    for stream in (0..100).map(|n| 2 * n + 1) {
        says.extend(frame(1, 4, stream, TRACE));
        says.extend(frame(1, 4 | END_STREAM, stream, &fields));
    }
    let flood = || scene.open_at(PAUSE, &scene.two, sized(30), &says);
    drop(scene.withstands("trailers", flood));
}

/// Uploads that the upstream does not take.
#[test]
fn uploads_to_a_stalled_upstream() {
    let _permit = permit(sized(2 * 200));
    let scene = Scene::new(Manner::Stalled);
    let says = b"POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 1000000000\r\n\r\n";
    let flood = || {
        let mut held = scene.open(&scene.one, sized(200), says);
        each(&mut held, |client| client.sock.set_nonblocking(true).unwrap());
        stuff(&mut held, &noise(16 << 10, 5));
        held
    };
    drop(scene.withstands("uploads", flood));
}

/// Such uploads by HTTP/2, as much as the windows allow on twenty streams each, in small frames.
#[test]
fn uploads_to_a_stalled_upstream_by_http2() {
    let _permit = permit(sized(50 * (1 + 20)));
    uploads_by_http2("uploads by h2", Manner::Stalled);
}

/// Such uploads while the upstream is being dialled.
#[test]
fn uploads_to_an_upstream_that_does_not_accept_by_http2() {
    let _permit = permit(sized(50 * (1 + 20)));
    uploads_by_http2("uploads to nobody by h2", Manner::Deaf);
}

fn uploads_by_http2(label: &str, manner: Manner) {
    let scene = Scene::new(manner);
    let streams = (0..20).map(|n| 2 * n + 1);
    let data = |stream: u32, frames: usize| frame(0, 0, stream, &PAGE[..1_000]).repeat(frames);
    // As much as a connection may be sent before it says more (RFC 9113 6.9.2).
    let mut first = preface(65_535);
    streams.clone().for_each(|stream| first.extend(request(POST, 0, stream)));
    streams.clone().for_each(|stream| first.extend(data(stream, 3)));
    let rest: Vec<u8> = streams.flat_map(|stream| data(stream, 47)).collect();
    let flood = || {
        let opened = scene.open(&scene.two, sized(50), &first);
        let mut held: Vec<_> =
            opened.into_iter().map(|client| (client, false, &rest[..])).collect();
        each(&mut held, |(client, ..)| client.sock.set_nonblocking(true).unwrap());
        for _ in 0..POURS {
            each(&mut held, |(client, has_more, rest)| {
                // More may be sent once the edge has spoken: it says so with its SETTINGS.
                *has_more |= matches!(client.read(&mut [0; 512]), Ok(1..));
                while *has_more && !rest.is_empty() {
                    let Ok(taken) = client.write(&rest[..rest.len().min(PAGE.len())]) else {
                        break;
                    };
                    *rest = &rest[taken..];
                }
            });
            thread::sleep(Duration::from_millis(20));
        }
        held
    };
    drop(scene.withstands(label, flood));
}

/// Many who are sent what compresses well, without end, and read it; and who do not.
#[test]
fn bombs_from_the_upstream() {
    let _permit = permit(sized(2 * 100));
    let scene = Scene::new(BOMB);
    let says = b"GET / HTTP/1.1\r\nHost: app.test\r\nAccept-Encoding: br, zstd, gzip\r\n\r\n";
    let flood = || {
        let mut held = scene.open(&scene.one, sized(100), says);
        let mut read = vec![0; 64 << 10];
        held.iter_mut().step_by(2).for_each(|client| {
            client.sock.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let _ = client.read(&mut read);
        });
        held
    };
    drop(scene.withstands("bombs", flood));
}

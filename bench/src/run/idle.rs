//! Memory of idle connections: opens them in steps, holds them, and reads the server's memory at
//! each step.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use super::{Findings, HTTP_ROWS, TCP_ROWS, in_time, splice, started, svg};
use crate::board::{Board, Column, Sample};
use crate::child;
use crate::client::held::{self, HeldKind, HeldLink};
use crate::client::{self, tls};
use crate::flight::{self, Shape};
use crate::lab::{Lab, NAMES, Server, host_name};
use crate::peers::{self, Row, ServerKind, ServerMode};
use crate::procfs::{self, Memory};

/// Bytes of an idle connection: user memory of the server, slab of the kernel.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Connections to hold (each takes two descriptors of a server that holds an upstream)
    #[arg(long, default_value_t = 2000)]
    conns: usize,
    /// The steps on each connection before it is left alone
    #[arg(long, value_delimiter = ',', default_values = ["handshake", "echo", "splice"])]
    after: Vec<After>,
    /// Seconds between the last connection and the reading
    #[arg(long, default_value_t = 1.0)]
    hold: f64,
    /// Streams on each connection by HTTP/2
    #[arg(long, default_value_t = 1)]
    streams: usize,
    /// TLS 1.2 instead of 1.3
    #[arg(long)]
    tls12: bool,
    /// Rounds; each starts every server afresh
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Draw user memory over connections, a line a server (with several --after, a file each)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A step on a connection before it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum After {
    /// A TLS handshake, in front of an HTTP backend
    Handshake,
    /// One keep-alive GET, in front of an HTTP backend
    Get,
    /// A small echo over a terminated TCP pair, held open to the backend
    Echo,
    /// A hello and its answer over a spliced pair
    Splice,
    /// The first event of an event stream, by HTTP/1.1
    Events,
    /// The first event of an event stream, by HTTP/2
    Events2,
    /// A request that is not answered, by HTTP/1.1
    Poll,
    /// A request that is not answered, by HTTP/2
    Poll2,
    /// An echo over a WebSocket, by HTTP/1.1
    Websocket,
    /// An echo over a WebSocket, by HTTP/2 (RFC 8441)
    Websocket2,
}

impl After {
    const fn name(self) -> &'static str {
        match self {
            Self::Handshake => "terminated (HTTP backend), after the handshake",
            Self::Get => "terminated (HTTP backend), after a GET",
            Self::Echo => "terminated TCP pair, after an echo",
            Self::Splice => "spliced pair",
            Self::Events => "event stream at rest",
            Self::Events2 => "event streams at rest, HTTP/2",
            Self::Poll => "request that waits",
            Self::Poll2 => "requests that wait, HTTP/2",
            Self::Websocket => "WebSocket at rest",
            Self::Websocket2 => "WebSockets at rest, HTTP/2",
        }
    }

    /// Returns the kind of stream that is held open, and true if that is by HTTP/2.
    const fn held(self) -> Option<(HeldKind, bool)> {
        Some(match self {
            Self::Handshake | Self::Get | Self::Echo | Self::Splice => return None,
            Self::Events => (HeldKind::Events, false),
            Self::Events2 => (HeldKind::Events, true),
            Self::Poll => (HeldKind::Poll, false),
            Self::Poll2 => (HeldKind::Poll, true),
            Self::Websocket => (HeldKind::WebSocket, false),
            Self::Websocket2 => (HeldKind::WebSocket, true),
        })
    }

    const fn rows(self) -> &'static [Row] {
        match self {
            Self::Handshake | Self::Get | Self::Events | Self::Poll | Self::Websocket => &HTTP_ROWS,
            Self::Events2 | Self::Poll2 | Self::Websocket2 => &HTTP2_ROWS,
            Self::Echo => &TCP_ROWS,
            Self::Splice => &SPLICE_ROWS,
        }
    }

    /// Descriptors of the server for each connection.
    const fn descriptors(self, streams: usize) -> usize {
        match self {
            Self::Handshake | Self::Get => 1,
            Self::Echo | Self::Splice | Self::Events | Self::Poll | Self::Websocket => 2,
            Self::Events2 | Self::Poll2 | Self::Websocket2 => 1 + streams,
        }
    }
}

/// Memory at each step: the number of connections, and the bytes added since the first reading.
type Curve = Vec<(f64, f64)>;

/// Runs the scenario.
pub async fn run(lab: &Lab, against: &[String], options: &Options) -> io::Result<Findings> {
    let backend = lab.start_backend()?;
    let (_origin, origins) = lab.start_origin(splice::REPLY_BYTES)?;
    let mut outcome = Findings::default();
    for after in &options.after {
        let Ok(rows) = peers::choose(after.rows(), against, lab) else { continue };
        let conns = options.conns.min(conns_max(*after, options.streams));
        if conns < options.conns {
            eprintln!("{}: {conns} connections, as descriptors allow", after.name());
        }
        let version = if options.tls12 && *after != After::Splice { ", TLS 1.2" } else { "" };
        let each = match after.held() {
            Some((_, true)) => format!(", {} on each", options.streams),
            _ => String::new(),
        };
        let title = format!("Idle, {conns} connections{version}, {}{each}", after.name());
        let mut board = Board::new(title, &COLUMNS);
        let mut curves: Vec<(String, Curve)> = Vec::new();
        for _ in 0..options.rounds {
            for row in &rows {
                let upstreams =
                    if *after == After::Splice { &origins[..] } else { &[backend.address] };
                let server = peers::start(lab, row, upstreams);
                let Some(server) = started(server, row) else { continue };
                let (sample, curve) = measure(&server, *after, conns, options).await;
                eprintln!("{}: {}: {:.0} B", after.name(), row.label, sample.figures[0].1);
                board.add(row.label, sample);
                if !curves.iter().any(|(label, _)| label == row.label) {
                    curves.push((row.label.to_owned(), curve));
                }
                drop(server);
                tokio::time::sleep(AFTERMATH).await;
            }
        }
        outcome.boards.push(board);
        if let Some(file) = &options.svg {
            let file = picture_file(file, *after, options.after.len() > 1);
            std::fs::write(&file, svg::draw(&format!("Idle: {}", after.name()), &curves))?;
            outcome.notes.push(format!("picture: {}", file.display()));
        }
    }
    Ok(outcome)
}

/// One file for each kind: `memory.svg` becomes `memory-echo.svg` if there are several.
fn picture_file(file: &Path, after: After, several: bool) -> PathBuf {
    if !several {
        return file.to_owned();
    }
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let name = format!("{after:?}").to_lowercase();
    file.with_file_name(format!("{stem}-{name}.svg"))
}

/// The connections for which a process may hold descriptors, less some for the server itself.
fn conns_max(after: After, streams: usize) -> usize {
    (child::descriptors_max() / after.descriptors(streams)).saturating_sub(DESCRIPTORS_KEPT)
}

async fn measure(
    server: &Server,
    after: After,
    conns: usize,
    options: &Options,
) -> (Sample, Curve) {
    let read = || procfs::memory(&server.child.family());
    let (before, slab) = (read(), procfs::slab_bytes());
    let http2 = matches!(after.held(), Some((_, true)));
    let handshake = tls::HandshakeOptions { tls12: options.tls12, http2, ..Default::default() };
    let config = tls::config(handshake);
    let (mut held, mut sample) = (Vec::with_capacity(conns), Sample::default());
    let mut steps: Vec<(usize, Memory)> = Vec::new();
    for step in 1..=STEPS {
        let target = conns * step / STEPS;
        let what = (after, options.streams);
        open(server.address, what, &config, held.len()..target, &mut held, &mut sample).await;
        let pause = match (step, after.held()) {
            (_, Some(_)) => options.hold.max(REST_SECS),
            (STEPS, None) => options.hold,
            _ => STEP_PAUSE_SECS,
        };
        tokio::time::sleep(Duration::from_secs_f64(pause)).await;
        steps.push((held.len(), read()));
    }
    let slab = procfs::slab_bytes() - slab;
    server.print_accounts();
    let alive = held.iter_mut().filter_map(|link| link.alive().then_some(())).count();
    sample.errors += (held.len() - alive) as u64;
    let curve = steps.iter().map(|(n, memory)| (*n as f64, memory.anon - before.anon));
    let curve: Curve = std::iter::once((0.0, 0.0)).chain(curve).collect();
    let (Some((first_n, first)), Some((n, last))) = (steps.first(), steps.last()) else {
        return (sample, curve);
    };
    let (count, more) = ((*n).max(1) as f64, (n - first_n).max(1) as f64);
    sample.figures = vec![
        ("anon_bytes", (last.anon - before.anon) / count),
        ("pss_bytes", (last.pss - before.pss) / count),
        ("anon_slope_bytes", (last.anon - first.anon) / more),
        ("slab_bytes", slab / count),
        ("alive", alive as f64),
        ("base_pss_mib", before.pss / MIB),
        ("rss_mib", last.rss / MIB),
    ];
    (sample, curve)
}

/// Opens the connections `range`, some at a time, and keeps them.
async fn open(
    target: SocketAddr,
    what: (After, usize),
    config: &Arc<ClientConfig>,
    range: std::ops::Range<usize>,
    held: &mut Vec<Link>,
    sample: &mut Sample,
) {
    let gate = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    for i in range {
        let (gate, config) = (Arc::clone(&gate), Arc::clone(config));
        tasks.spawn(async move {
            let _turn = gate.acquire_owned().await;
            in_time(link(target, what, &config, i)).await
        });
    }
    while let Some(link) = tasks.join_next().await {
        match link.expect("tasks do not panic") {
            Ok(link) => held.push(link),
            Err(e) => {
                sample.errors += 1;
                sample.first_error.get_or_insert_with(|| e.to_string());
            }
        }
    }
}

/// A held connection.
enum Link {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Held(HeldLink),
}

impl Link {
    /// True if the server still holds it.
    fn alive(&mut self) -> bool {
        match self {
            Self::Plain(stream) => held::is_open(stream),
            Self::Tls(stream) => held::is_open(stream.get_ref().0),
            Self::Held(held) => held.is_alive(),
        }
    }
}

async fn link(
    target: SocketAddr,
    (after, streams): (After, usize),
    config: &Arc<ClientConfig>,
    i: usize,
) -> io::Result<Link> {
    match after.held() {
        Some((kind, true)) => {
            return held::open_http2(config, (target, i), kind, streams).await.map(Link::Held);
        }
        Some((kind, false)) => {
            return held::open_http1(config, (target, i), kind).await.map(Link::Held);
        }
        None => {}
    }
    if after == After::Splice {
        let writes = Shape::Small.writes(&host_name(i));
        let reply = flight::server_flight(splice::REPLY_BYTES).len();
        return Ok(Link::Plain(splice::visit(target, i, &writes, reply).await?));
    }
    let mut stream = tls::open(config, target, i, NAMES).await?;
    match after {
        After::Get => {
            let request = client::request("/", false);
            client::exchange(&mut stream, &request, &mut [0; 1024]).await?;
        }
        After::Echo => client::echo(&mut stream, b"hello\n").await?,
        _ => {}
    }
    Ok(Link::Tls(Box::new(stream)))
}

const SPLICE_ROWS: [Row; 5] = [
    Row::usual("eyelet", ServerKind::Eyelet, ServerMode::Peek),
    Row::usual("nginx", ServerKind::Nginx, ServerMode::Peek),
    Row::usual("haproxy", ServerKind::Haproxy, ServerMode::Peek),
    Row::usual("rust-splice", ServerKind::RustSplice, ServerMode::Blind),
    Row::usual("floor-splice", ServerKind::FloorSplice, ServerMode::Blind),
];

/// Servers that speak HTTP/2 in front of an HTTP upstream.
const HTTP2_ROWS: [Row; 5] = [HTTP_ROWS[0], HTTP_ROWS[1], HTTP_ROWS[2], HTTP_ROWS[3], HTTP_ROWS[4]];

const COLUMNS: [Column; 6] = [
    Column { key: "anon_bytes", heading: "anon B/conn", decimals: 0 },
    Column { key: "pss_bytes", heading: "PSS B/conn", decimals: 0 },
    Column { key: "anon_slope_bytes", heading: "anon slope B", decimals: 0 },
    Column { key: "slab_bytes", heading: "slab B/conn", decimals: 0 },
    Column { key: "base_pss_mib", heading: "base PSS MiB", decimals: 1 },
    Column { key: "alive", heading: "alive", decimals: 0 },
];

const MIB: f64 = 1024.0 * 1024.0;
/// Concurrent handshakes: fewer than a backlog, enough to keep a core busy.
const AT_ONCE: usize = 64;
/// Points of a curve after its beginning.
const STEPS: usize = 4;
const STEP_PAUSE_SECS: f64 = 0.15;
/// Seconds until a stream that is held open surely rests: Eyelet waits for one.
const REST_SECS: f64 = 4.0;
/// The kernel needs time to free the memory of a killed server and its clients.
const AFTERMATH: Duration = Duration::from_millis(300);
const DESCRIPTORS_KEPT: usize = 450;

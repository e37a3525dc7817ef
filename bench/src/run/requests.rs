//! CPU of small work on kept connections: a GET (`requests`), a 100-byte echo (`wake`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Args;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use super::{Findings, HTTP_ROWS, Meter, TCP_ROWS, Tally, in_time, order, start_all};
use crate::board::{Board, Column, Sample};
use crate::client::{self, http2, tls};
use crate::lab::{Lab, NAMES, Server};
use crate::peers::{self, Row};

/// CPU-us of small things on kept connections, in a closed loop.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Connections, each asking again when it was answered
    #[arg(long, default_value_t = 32)]
    conns: usize,
    /// Seconds a server and a round
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Rounds
    #[arg(long, default_value_t = 15)]
    rounds: usize,
}

/// CPU-us of GETs.
#[derive(Args, Clone, Debug)]
pub struct GetOptions {
    #[command(flatten)]
    common: Options,
    /// By HTTP/2
    #[arg(long)]
    http2: bool,
    /// GETs at a time on a connection of HTTP/2
    #[arg(long, default_value_t = 10)]
    streams: usize,
    /// Endless downloads by the same protocol meanwhile. The CPU is then theirs, too: read the
    /// latency
    #[arg(long, default_value_t = 0)]
    beside: usize,
}

impl GetOptions {
    /// Returns the options, and the work to do with them.
    pub fn work(&self) -> (&Options, Work) {
        let streams = self.http2.then_some(self.streams);
        (&self.common, Work::Get { streams, beside: self.beside })
    }
}

/// The repeated operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A keep-alive GET of 128 bytes. `streams`: by HTTP/2, so many at a time on a connection.
    /// `beside`: endless downloads meanwhile.
    Get { streams: Option<usize>, beside: usize },
    /// 100 bytes there and back over a terminated TCP pair.
    Echo,
}

/// Runs the scenario.
pub async fn run(
    lab: &Lab,
    against: &[String],
    options: &Options,
    work: Work,
) -> io::Result<Findings> {
    let (rows, what): (&[Row], _) = match work {
        Work::Get { streams: None, .. } => (&HTTP_ROWS, "Keep-alive GETs of 128 bytes"),
        Work::Get { streams: Some(_), .. } => (&HTTP2_ROWS, "GETs of 128 bytes by HTTP/2"),
        Work::Echo => (&TCP_ROWS, "Waking: echoes of 100 bytes over a terminated TCP pair"),
    };
    let rows = peers::choose(rows, against, lab)?;
    let backend = lab.start_backend()?;
    let servers = start_all(lab, &rows, &[backend.address]);
    let more = match work {
        Work::Get { streams, beside } => {
            let streams = streams.map_or(String::new(), |streams| format!(" x {streams} streams"));
            let beside = if beside > 0 { format!(", {beside} downloads") } else { String::new() };
            streams + &beside
        }
        Work::Echo => String::new(),
    };
    let title = format!("{what}, {} connections{more}", options.conns);
    let mut board = Board::new(title, &COLUMNS);
    for round in 0..options.rounds {
        for at in order(servers.len(), round) {
            let (row, server) = &servers[at];
            let sample = measure(server, options, work).await;
            eprintln!("round {} | {}: {:.1} CPU-us", round + 1, row.label, sample.figures[0].1);
            board.add(row.label, sample);
        }
    }
    Ok(Findings { boards: vec![board], notes: Vec::new() })
}

async fn measure(server: &Server, options: &Options, work: Work) -> Sample {
    let (by_two, beside) = match work {
        Work::Get { streams, beside } => (streams, beside),
        Work::Echo => (None, 0),
    };
    let handshake = tls::HandshakeOptions { http2: by_two.is_some(), ..Default::default() };
    let config = tls::config(handshake);
    let (mut clients, mut failed) = (Vec::new(), Tally::default());
    for i in 0..options.conns + beside {
        match in_time(Client::open(&config, server, i)).await {
            Ok(client) => clients.push(client),
            Err(e) => failed.failed(&e),
        }
    }
    let (mut downloads, mut moved) = (JoinSet::new(), Vec::new());
    for client in clients.drain(..beside.min(clients.len())) {
        let bytes = Arc::<AtomicUsize>::default();
        moved.push(Arc::clone(&bytes));
        downloads.spawn(client.download(bytes));
    }
    let meter = Meter::start(&server.child);
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    let mut tasks = JoinSet::new();
    for client in clients {
        match client {
            Client::One(stream) => _ = tasks.spawn(keep_asking(*stream, work, end)),
            Client::Two(streams) => {
                for _ in 0..by_two.unwrap_or_default() {
                    tasks.spawn(keep_getting(streams.clone(), end));
                }
            }
        }
    }
    let mut tally = Tally::gather(tasks).await;
    while let Some(ended) = downloads.try_join_next() {
        let why = ended.ok().and_then(Result::err);
        failed.failed(&why.unwrap_or_else(|| io::Error::other("a download has ended")));
    }
    for _ in moved.iter().filter(|bytes| bytes.load(Relaxed) == 0) {
        failed.failed(&io::Error::other("a download moved nothing"));
    }
    tally.merge(failed);
    tally.sample(&meter)
}

/// A connection of a client.
enum Client {
    One(Box<TlsStream<TcpStream>>),
    Two(http2::RequestSender),
}

impl Client {
    async fn open(config: &Arc<ClientConfig>, server: &Server, i: usize) -> io::Result<Self> {
        let by_two = !config.alpn_protocols.is_empty();
        Ok(match by_two {
            true => Self::Two(http2::open(config, server.address, i, NAMES).await?),
            false => Self::One(Box::new(tls::open(config, server.address, i, NAMES).await?)),
        })
    }

    /// Downloads more than a round can take, and counts the bytes.
    async fn download(self, moved: Arc<AtomicUsize>) -> io::Result<usize> {
        let see = |part: &[u8]| _ = moved.fetch_add(part.len(), Relaxed);
        let path = format!("/bytes/{ENDLESS_BYTES}");
        match self {
            Self::One(mut stream) => {
                let mut buffer = vec![0; DOWNLOAD_BUFFER_BYTES];
                let request = client::request(&path, false);
                client::exchange_seen(&mut stream, &request, &mut buffer, see).await
            }
            Self::Two(mut streams) => http2::download(&mut streams, &path, see).await,
        }
    }
}

async fn keep_asking(mut stream: TlsStream<TcpStream>, work: Work, end: Instant) -> Tally {
    let (mut tally, mut buffer) = (Tally::default(), [0; 4096]);
    let request = client::request("/", false);
    while Instant::now() < end {
        let began = Instant::now();
        let done = match work {
            Work::Get { .. } => {
                in_time(client::exchange(&mut stream, &request, &mut buffer)).await.map(drop)
            }
            Work::Echo => in_time(client::echo(&mut stream, &[b'e'; ECHO_BYTES])).await,
        };
        match done {
            Ok(()) => tally.done(began),
            Err(e) => {
                tally.failed(&e);
                break;
            }
        }
    }
    tally
}

async fn keep_getting(mut streams: http2::RequestSender, end: Instant) -> Tally {
    let mut tally = Tally::default();
    while Instant::now() < end {
        let began = Instant::now();
        match in_time(http2::get(&mut streams, "/")).await {
            Ok(_) => tally.done(began),
            Err(e) => {
                tally.failed(&e);
                break;
            }
        }
    }
    tally
}

/// Those of [`HTTP_ROWS`] that speak HTTP/2.
const HTTP2_ROWS: [Row; 3] = [HTTP_ROWS[0], HTTP_ROWS[1], HTTP_ROWS[2]];

const COLUMNS: [Column; 5] = [
    Column { key: "cpu_us", heading: "CPU-us", decimals: 1 },
    Column { key: "per_second", heading: "per s", decimals: 0 },
    Column { key: "p50_us", heading: "p50 us", decimals: 0 },
    Column { key: "p99_us", heading: "p99 us", decimals: 0 },
    Column { key: "cpu_share", heading: "CPU share", decimals: 2 },
];

const ECHO_BYTES: usize = 100;
/// No round takes so long.
const ENDLESS_BYTES: u64 = 1 << 50;
const DOWNLOAD_BUFFER_BYTES: usize = 1 << 16;

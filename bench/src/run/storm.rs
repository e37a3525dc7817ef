//! A reconnect storm: all clients connect at once, and come again until they are in. How long a
//! handshake that was admitted has taken, and how long it takes until everybody is in.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use rustls::ClientConfig;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use super::{Findings, Meter, Tally, in_time, started};
use crate::board::{Board, Column, Sample, quantile};
use crate::child;
use crate::client::{self, tls};
use crate::lab::{Lab, Server};
use crate::peers::{self, Row, ServerKind, ServerMode};

/// A reconnect storm: clients that come again until they are in.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Clients; at most what the descriptors of this process allow
    #[arg(long, default_value_t = 50_000)]
    clients: usize,
    /// Seconds after which a client gives up
    #[arg(long, default_value_t = 120)]
    patience: u64,
}

/// Runs the scenario.
pub async fn run(lab: &Lab, against: &[String], options: &Options) -> io::Result<Findings> {
    let rows = peers::choose(&ROWS, against, lab)?;
    let backend = lab.start_backend()?;
    // A client has one descriptor, and the server has one for it.
    let most = child::descriptors_max().saturating_sub(DESCRIPTORS_KEPT);
    let clients = options.clients.min(most).min(SERVERS_MAX);
    let title = format!("Storm: {clients} clients at once, each comes again until it is in");
    let mut board = Board::new(title, &COLUMNS);
    for row in &rows {
        let server = peers::start(lab, row, &[backend.address]);
        let Some(server) = started(server, row) else { continue };
        board.add(row.label, measure(&server, clients, options).await);
        drop(server);
        tokio::time::sleep(AFTERMATH).await;
    }
    let notes = match clients < options.clients {
        true => vec![format!("descriptors allow {clients} clients, not {}", options.clients)],
        false => Vec::new(),
    };
    Ok(Findings { boards: vec![board], notes })
}

/// The state that the clients of a storm share.
struct Storm {
    target: SocketAddr,
    config: Arc<ClientConfig>,
    request: Vec<u8>,
    began: Instant,
    end: Instant,
    admitted: AtomicUsize,
    refusals: AtomicU64,
    /// The time at which the last client came in, in microseconds.
    last_us: AtomicU64,
}

async fn measure(server: &Server, clients: usize, options: &Options) -> Sample {
    let meter = Meter::start(&server.child);
    let began = Instant::now();
    let storm = Arc::new(Storm {
        target: server.address,
        config: tls::config(tls::HandshakeOptions::default()),
        request: client::request("/", false),
        began,
        end: began + Duration::from_secs(options.patience),
        admitted: AtomicUsize::new(0),
        refusals: AtomicU64::new(0),
        last_us: AtomicU64::new(0),
    });
    let (over, all_in) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for i in 0..clients {
        let (storm, mut all_in) = (storm.clone(), all_in.clone());
        tasks.spawn(async move {
            let (tally, stream) = storm.visit(i).await;
            // Who is in stays.
            let _ = all_in.wait_for(|is_over| *is_over).await;
            drop(stream);
            tally
        });
    }
    let is_over =
        || storm.admitted.load(Ordering::Relaxed) == clients || Instant::now() > storm.end;
    while !is_over() {
        tokio::time::sleep(LOOK).await;
    }
    // A last try may be under way.
    tokio::time::sleep(if Instant::now() > storm.end { GRACE } else { Duration::ZERO }).await;
    let (cpu_us, _) = meter.read();
    let _ = over.send(true);
    let tally = Tally::gather(tasks).await;
    let admitted = tally.micros.len().max(1) as f64;
    let figures = vec![
        ("all_in_s", storm.last_us.load(Ordering::Relaxed) as f64 / 1e6),
        ("p50_ms", quantile(&tally.micros, 0.5) / 1e3),
        ("p99_ms", quantile(&tally.micros, 0.99) / 1e3),
        ("refusals", storm.refusals.load(Ordering::Relaxed) as f64 / admitted),
        ("cpu_us", cpu_us / admitted),
    ];
    Sample { figures, errors: tally.errors, first_error: tally.first_error }
}

impl Storm {
    /// Comes again until it is in, or gives up.
    async fn visit(&self, i: usize) -> (Tally, Option<TlsStream<tokio::net::TcpStream>>) {
        let mut tally = Tally::default();
        for attempt in 0_u32.. {
            let began = Instant::now();
            match in_time(self.enter(i)).await {
                Ok(stream) => {
                    tally.done(began);
                    self.admitted.fetch_add(1, Ordering::Relaxed);
                    let since = self.began.elapsed().as_micros() as u64;
                    self.last_us.fetch_max(since, Ordering::Relaxed);
                    return (tally, Some(stream));
                }
                Err(error) if Instant::now() > self.end => {
                    tally.failed(&error);
                    break;
                }
                Err(_) => _ = self.refusals.fetch_add(1, Ordering::Relaxed),
            }
            tokio::time::sleep(pause(i, attempt)).await;
        }
        (tally, None)
    }

    async fn enter(&self, i: usize) -> io::Result<TlsStream<tokio::net::TcpStream>> {
        let mut stream = tls::open(&self.config, self.target, i, 1).await?;
        client::exchange(&mut stream, &self.request, &mut [0; 1024]).await?;
        Ok(stream)
    }
}

/// The wait before the next attempt: twice as long each time, and a random part of a half.
fn pause(i: usize, attempt: u32) -> Duration {
    let mixed = (i as u64 ^ u64::from(attempt) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let part = 0.5 + mixed as f64 / f64::from(u32::MAX);
    PAUSE.saturating_mul(1 << attempt.min(PAUSE_DOUBLINGS)).mul_f64(part)
}

const ROWS: [Row; 4] = [
    Row::usual("eyelet", ServerKind::Eyelet, ServerMode::Http),
    Row::usual("eyelet-limited", ServerKind::Eyelet, ServerMode::Http).limited(RATE),
    Row::usual("nginx", ServerKind::Nginx, ServerMode::Http),
    Row::usual("haproxy", ServerKind::Haproxy, ServerMode::Http),
];

const COLUMNS: [Column; 5] = [
    Column { key: "all_in_s", heading: "all in s", decimals: 1 },
    Column { key: "p50_ms", heading: "p50 ms", decimals: 0 },
    Column { key: "p99_ms", heading: "p99 ms", decimals: 0 },
    Column { key: "refusals", heading: "refusals/client", decimals: 2 },
    Column { key: "cpu_us", heading: "CPU-us/client", decimals: 0 },
];

/// Handshakes a second of the limited row: fewer than a core makes.
const RATE: u32 = 1_000;
/// Connections that the configurations of all servers allow.
const SERVERS_MAX: usize = 9_000;
const DESCRIPTORS_KEPT: usize = 256;
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_DOUBLINGS: u32 = 5;
const LOOK: Duration = Duration::from_millis(20);
/// Longer than an attempt takes.
const GRACE: Duration = Duration::from_secs(11);
const AFTERMATH: Duration = Duration::from_millis(500);

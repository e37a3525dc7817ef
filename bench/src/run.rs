//! The scenarios, and their common parts: meters, tallies, servers side by side.

pub mod bulk;
pub mod changes;
pub mod chat;
pub mod churn;
pub mod compression;
pub mod handshakes;
pub mod idle;
pub mod million;
mod post;
pub mod requests;
pub mod sandbox;
pub mod splice;
pub mod squid;
pub mod storm;
mod strace;
pub mod svn;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use eyelet_probe::svg;
use tokio::task::JoinSet;

use crate::board::{Board, Column, Sample, quantile};
use crate::child::Child;
use crate::lab::{Lab, Server};
use crate::peers::{self, Row, ServerKind, ServerMode};
use crate::procfs;

/// A scenario's results: tables, and notes below them.
#[derive(Debug, Default)]
pub struct Findings {
    pub boards: Vec<Board>,
    pub notes: Vec<String>,
}

/// A server's CPU time since `start`.
struct Meter {
    family: Vec<u32>,
    cpu: procfs::Cpu,
    began: Instant,
}

impl Meter {
    fn start(child: &Child) -> Self {
        Self::over([child])
    }

    /// A meter of several servers.
    fn over<'c>(children: impl IntoIterator<Item = &'c Child>) -> Self {
        let family: Vec<u32> = children.into_iter().flat_map(Child::family).collect();
        Self { cpu: procfs::Cpu::of(&family), family, began: Instant::now() }
    }

    /// CPU microseconds, and the elapsed seconds.
    fn read(&self) -> (f64, f64) {
        (procfs::Cpu::of(&self.family).since(self.cpu), self.began.elapsed().as_secs_f64())
    }
}

/// The table of runs that open connection after connection.
const CONNECTIONS: [Column; 5] = [
    Column { key: "cpu_us", heading: "CPU-us/conn", decimals: 1 },
    Column { key: "per_second", heading: "conn/s", decimals: 0 },
    Column { key: "p50_us", heading: "p50 us", decimals: 0 },
    Column { key: "p99_us", heading: "p99 us", decimals: 0 },
    Column { key: "cpu_share", heading: "CPU share", decimals: 2 },
];

/// The results of a set of tasks: latencies in microseconds, bytes, failures.
#[derive(Debug, Default)]
struct Tally {
    micros: Vec<f64>,
    bytes: u64,
    resumed: u64,
    errors: u64,
    first_error: Option<String>,
}

impl Tally {
    fn done(&mut self, began: Instant) {
        self.micros.push(began.elapsed().as_secs_f64() * 1e6);
    }

    fn failed(&mut self, why: &io::Error) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| why.to_string());
    }

    fn merge(&mut self, other: Self) {
        self.micros.extend(other.micros);
        self.bytes += other.bytes;
        self.resumed += other.resumed;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }

    /// The sum over all tasks, with sorted latencies.
    async fn gather(mut tasks: JoinSet<Self>) -> Self {
        let mut all = Self::default();
        while let Some(one) = tasks.join_next().await {
            all.merge(one.expect("tasks do not panic"));
        }
        all.micros.sort_by(f64::total_cmp);
        all
    }

    /// The usual figures: the server's CPU for each operation, operations a second, latency.
    fn sample(self, meter: &Meter) -> Sample {
        let (cpu_us, secs) = meter.read();
        let done = self.micros.len().max(1) as f64;
        let figures = vec![
            ("cpu_us", cpu_us / done),
            ("per_second", self.micros.len() as f64 / secs),
            ("p50_us", quantile(&self.micros, 0.5)),
            ("p99_us", quantile(&self.micros, 0.99)),
            ("cpu_share", cpu_us / 1e6 / secs),
            ("done", self.micros.len() as f64),
        ];
        Sample { figures, errors: self.errors, first_error: self.first_error }
    }
}

/// Starts a server for each row. One that does not come up is reported on stderr and left out.
fn start_all(lab: &Lab, rows: &[Row], upstreams: &[SocketAddr]) -> Vec<(Row, Server)> {
    let start = |row: &Row| started(peers::start(lab, row, upstreams), row).map(|s| (*row, s));
    rows.iter().filter_map(start).collect()
}

fn started(server: io::Result<Server>, row: &Row) -> Option<Server> {
    server.inspect_err(|e| eprintln!("{} is left out: {e}", row.label)).ok()
}

/// The order of a round. Odd rounds run backwards, so that drift favours no position.
fn order(count: usize, round: usize) -> Vec<usize> {
    match round % 2 {
        0 => (0..count).collect(),
        _ => (0..count).rev().collect(),
    }
}

/// Counts a connection that takes too long as failed.
async fn in_time<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(STEP_TIMEOUT, step).await {
        Ok(done) => done,
        Err(_) => Err(io::Error::other("no answer in time")),
    }
}

/// Gives a server time to finish connections that the client has closed.
async fn settle() {
    tokio::time::sleep(SETTLE).await;
}

const STEP_TIMEOUT: Duration = Duration::from_secs(10);
const SETTLE: Duration = Duration::from_millis(30);

/// Servers in front of an HTTP upstream.
const HTTP_ROWS: [Row; 6] = [
    Row::usual("eyelet", ServerKind::Eyelet, ServerMode::Http),
    Row::usual("nginx", ServerKind::Nginx, ServerMode::Http),
    Row::usual("haproxy", ServerKind::Haproxy, ServerMode::Http),
    Row::asked("caddy", ServerKind::Caddy, ServerMode::Http),
    Row::asked("envoy", ServerKind::Envoy, ServerMode::Http),
    Row::usual("rust-tls", ServerKind::RustTls, ServerMode::Http),
];

/// Servers in front of a TCP upstream that stays open.
const TCP_ROWS: [Row; 6] = [
    Row::usual("eyelet", ServerKind::Eyelet, ServerMode::Tcp),
    Row::usual("nginx", ServerKind::Nginx, ServerMode::Tcp),
    Row::usual("haproxy", ServerKind::Haproxy, ServerMode::Tcp),
    Row::usual("hitch", ServerKind::Hitch, ServerMode::Tcp),
    Row::usual("stunnel", ServerKind::Stunnel, ServerMode::Tcp),
    Row::usual("rust-proxy", ServerKind::RustProxy, ServerMode::Tcp),
];

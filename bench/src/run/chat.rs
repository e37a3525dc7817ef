//! Memory of a small service: a few hundred clients that send something every few seconds to an
//! echo. It counts the whole resident set, not only what connections add.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::{Findings, Meter, TCP_ROWS, Tally, in_time, start_all};
use crate::board::{Board, Column, Sample};
use crate::client::{self, tls};
use crate::lab::{Lab, NAMES};
use crate::peers;
use crate::procfs;

/// Resident memory in front of a few hundred chatting clients; all servers at the same time.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Clients of each server
    #[arg(long, default_value_t = 200)]
    conns: usize,
    /// Seconds between two words of a client
    #[arg(long, default_value_t = 5.0)]
    every: f64,
    /// Seconds in all
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
}

/// Runs the scenario.
pub async fn run(lab: &Lab, against: &[String], options: &Options) -> io::Result<Findings> {
    let rows = peers::choose(&TCP_ROWS, against, lab)?;
    let backend = lab.start_backend()?;
    let servers = start_all(lab, &rows, &[backend.address]);
    let read = |at: usize| procfs::memory(&servers[at].1.child.family());
    let before = at_rest(|| (0..servers.len()).map(read).collect()).await;
    let meters: Vec<_> = servers.iter().map(|(_, server)| Meter::start(&server.child)).collect();
    let mut crowds = Vec::new();
    for (_, server) in &servers {
        crowds.push(crowd(server.address, options));
    }
    // Read while all clients are active, shortly before the first one ends.
    tokio::time::sleep(Duration::from_secs_f64(options.seconds * READ_AT)).await;
    let during: Vec<_> = (0..servers.len()).map(read).collect();
    let (conns, every, seconds) = (options.conns, options.every, options.seconds);
    let title = format!("Chat: {conns} clients, a word every {every} s, for {seconds} s");
    let mut board = Board::new(title, &COLUMNS);
    for (at, tasks) in crowds.into_iter().enumerate() {
        let tally = Tally::gather(tasks).await;
        let (before, during) = (before[at], during[at]);
        let each = conns.max(1) as f64;
        let figures = vec![
            ("rss_mib", during.rss / MIB),
            ("before_rss_mib", before.rss / MIB),
            ("anon_mib", during.anon / MIB),
            ("anon_bytes", (during.anon - before.anon) / each),
            ("pss_mib", during.pss / MIB),
            ("cpu_s", meters[at].read().0 / 1e6),
            ("words", tally.micros.len() as f64),
        ];
        let (errors, first_error) = (tally.errors, tally.first_error);
        board.add(servers[at].0.label, Sample { figures, errors, first_error });
    }
    Ok(Findings { boards: vec![board], notes: Vec::new() })
}

/// Memory once it stands still: servers listen before they have started all their threads.
async fn at_rest(read: impl Fn() -> Vec<procfs::Memory>) -> Vec<procfs::Memory> {
    let mut seen = read();
    for _ in 0..LOOKS_MAX {
        tokio::time::sleep(STILL).await;
        let now = read();
        if now == seen {
            break;
        }
        seen = now;
    }
    seen
}

/// The clients of one server. Their messages are spread evenly over the interval.
fn crowd(target: SocketAddr, options: &Options) -> JoinSet<Tally> {
    let config = tls::config(tls::HandshakeOptions::default());
    let every = Duration::from_secs_f64(options.every);
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    let mut tasks = JoinSet::new();
    for i in 0..options.conns {
        let config = std::sync::Arc::clone(&config);
        let first = Instant::now() + every.mul_f64(i as f64 / options.conns as f64);
        tasks.spawn(async move {
            let mut tally = Tally::default();
            let mut stream = match in_time(tls::open(&config, target, i, NAMES)).await {
                Ok(stream) => stream,
                Err(e) => {
                    tally.failed(&e);
                    return tally;
                }
            };
            let mut clock = tokio::time::interval_at(first, every);
            clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while clock.tick().await < end {
                let began = std::time::Instant::now();
                match in_time(client::echo(&mut stream, b"hello\n")).await {
                    Ok(()) => tally.done(began),
                    Err(e) => {
                        tally.failed(&e);
                        break;
                    }
                }
            }
            tally
        });
    }
    tasks
}

const COLUMNS: [Column; 7] = [
    Column { key: "rss_mib", heading: "RSS MiB", decimals: 1 },
    Column { key: "before_rss_mib", heading: "before", decimals: 1 },
    Column { key: "anon_mib", heading: "anon MiB", decimals: 2 },
    Column { key: "anon_bytes", heading: "anon B/conn", decimals: 0 },
    Column { key: "pss_mib", heading: "PSS MiB", decimals: 1 },
    Column { key: "cpu_s", heading: "CPU s", decimals: 3 },
    Column { key: "words", heading: "words", decimals: 0 },
];

const MIB: f64 = 1024.0 * 1024.0;
const READ_AT: f64 = 0.95;
/// Memory that has not changed for so long is at rest.
const STILL: Duration = Duration::from_secs(2);
const LOOKS_MAX: usize = 10;

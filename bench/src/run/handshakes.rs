//! CPU of a TLS handshake: opens and closes connections, with full and resumed handshakes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use clap::Args;
use rustls::ClientConfig;
use tokio::task::JoinSet;

use super::{Findings, Meter, Tally, in_time, order, settle, start_all};
use crate::board::{Board, Column, Sample};
use crate::client::{self, tls};
use crate::lab::{Lab, Server};
use crate::peers::{self, Row, ServerKind, ServerMode};

/// CPU-us of a full and of a resumed TLS 1.3 handshake, the connection opened and closed.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Handshakes a server, a kind and a round
    #[arg(long, default_value_t = 300)]
    total: usize,
    /// Connections at a time
    #[arg(long, default_value_t = 16)]
    conns: usize,
    /// Rounds
    #[arg(long, default_value_t = 12)]
    rounds: usize,
    /// TLS 1.2 instead of 1.3
    #[arg(long)]
    tls12: bool,
}

/// Runs the scenario.
pub async fn run(lab: &Lab, against: &[String], options: &Options) -> io::Result<Findings> {
    let rows = peers::choose(&ROWS, against, lab)?;
    let backend = lab.start_backend()?;
    let servers = start_all(lab, &rows, &[backend.address]);
    let version = if options.tls12 { "1.2" } else { "1.3" };
    let board = |kind: &str| {
        Board::new(format!("{kind} TLS {version} handshakes, opened and closed"), &COLUMNS)
    };
    let mut boards = [(false, board("Full")), (true, board("Resumed"))];
    for round in 0..options.rounds {
        for (resume, board) in &mut boards {
            for at in order(servers.len(), round) {
                let (row, server) = &servers[at];
                let sample = measure(server, options, *resume).await;
                let kind = if *resume { "resumed" } else { "full" };
                let cpu = sample.figures[0].1;
                eprintln!("round {} | {kind} | {}: {cpu:.1} CPU-us", round + 1, row.label);
                board.add(row.label, sample);
            }
        }
    }
    Ok(Findings { boards: boards.map(|(_, board)| board).into(), notes: Vec::new() })
}

async fn measure(server: &Server, options: &Options, resume: bool) -> Sample {
    let handshake = tls::HandshakeOptions { tls12: options.tls12, resume, http2: false };
    let target = server.address;
    let mut configs = Vec::new();
    for i in 0..options.conns {
        let config = tls::config(handshake);
        if resume {
            // The first handshake fetches tickets and is not counted.
            let _ = in_time(greet(&config, target, i)).await;
        }
        configs.push(config);
    }
    settle().await;
    let meter = Meter::start(&server.child);
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for config in configs {
        let (next, total) = (Arc::clone(&next), options.total);
        tasks.spawn(async move {
            let mut tally = Tally::default();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= total {
                    return tally;
                }
                let began = Instant::now();
                match in_time(greet(&config, target, i)).await {
                    Ok(resumed) => {
                        tally.resumed += u64::from(resumed);
                        tally.done(began);
                    }
                    Err(e) => tally.failed(&e),
                }
            }
        });
    }
    let tally = Tally::gather(tasks).await;
    settle().await;
    let resumed = tally.resumed as f64 / tally.micros.len().max(1) as f64;
    let mut sample = tally.sample(&meter);
    sample.figures.push(("resumed_share", resumed));
    sample
}

/// A handshake, close_notify in both directions, and the end of the TCP connection.
async fn greet(config: &Arc<ClientConfig>, target: SocketAddr, i: usize) -> io::Result<bool> {
    let stream = tls::open(config, target, i, 1).await?;
    let resumed = tls::resumed(&stream);
    client::close(stream).await;
    Ok(resumed)
}

const ROWS: [Row; 9] = [
    Row::usual("eyelet", ServerKind::Eyelet, ServerMode::Http),
    Row::usual("eyelet-log", ServerKind::Eyelet, ServerMode::Http).logging(),
    Row::usual("eyelet-tcp", ServerKind::Eyelet, ServerMode::Tcp),
    Row::usual("nginx", ServerKind::Nginx, ServerMode::Http),
    Row::usual("haproxy", ServerKind::Haproxy, ServerMode::Http),
    Row::usual("hitch", ServerKind::Hitch, ServerMode::Tcp),
    Row::usual("stunnel", ServerKind::Stunnel, ServerMode::Tcp),
    Row::usual("rust-tls", ServerKind::RustTls, ServerMode::Http),
    Row::usual("rust-proxy", ServerKind::RustProxy, ServerMode::Tcp),
];

const COLUMNS: [Column; 6] = [
    Column { key: "cpu_us", heading: "CPU-us", decimals: 1 },
    Column { key: "per_second", heading: "per s", decimals: 0 },
    Column { key: "p50_us", heading: "p50 us", decimals: 0 },
    Column { key: "p99_us", heading: "p99 us", decimals: 0 },
    Column { key: "cpu_share", heading: "CPU share", decimals: 2 },
    Column { key: "resumed_share", heading: "resumed", decimals: 2 },
];

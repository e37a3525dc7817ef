//! Very many idle connections on one machine: several servers on one shared port, client processes
//! with minimal state, and a sample of connections that must answer.

use std::io;
use std::time::{Duration, Instant};

use clap::Args;

use super::Findings;
use super::post::{self, Post, number};
use crate::board::{Board, Column, Sample, median};
use crate::child;
use crate::lab::{Lab, Server};
use crate::peers::{self, Row, ServerKind, ServerMode};
use crate::{machine, procfs};

/// Idle connections by the hundred thousand, all alive, a random sample answering.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Connections in all
    #[arg(long, default_value_t = 1_000_000)]
    conns: usize,
    /// Connections that are asked for an answer at the end
    #[arg(long, default_value_t = 10_000)]
    sample: usize,
    /// Seconds between the last connection and the readings
    #[arg(long, default_value_t = 5.0)]
    hold: f64,
    /// Speak HTTP/2: each connection has got an answer before it is idle
    #[arg(long)]
    http2: bool,
}

/// Runs the scenario.
pub async fn run(lab: &Lab, options: &Options) -> io::Result<Findings> {
    warn_of_limits(options.conns);
    let share = share().min(options.conns);
    let count = options.conns.div_ceil(share);
    let backend = lab.start_backend()?;
    let row = Row::usual("eyelet", ServerKind::Eyelet, ServerMode::Http);
    let address = lab.free_address()?;
    let start = |_| peers::start_at(lab, &row, &[backend.address], address, true);
    // One more than needed, as the kernel spreads connections by hash and unevenly.
    let mut servers: Vec<Server> = (0..=count).map(start).collect::<io::Result<_>>()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The address answers while one of them runs, so a missing server would be noticed much later.
    if let Some(words) = servers.iter_mut().find_map(|server| server.child.ended()) {
        return Err(io::Error::other(format!("a server ended: {words}")));
    }
    let (before, slab) = (memory(&servers), procfs::slab_bytes());
    let began = Instant::now();
    let mut crowds = Vec::new();
    for place in 0..count {
        let own = share.min(options.conns - place * share);
        let words = ["crowd".into(), address.to_string(), own.to_string(), place.to_string()];
        let http2 = options.http2.then(|| "--http2".into());
        let words: Vec<String> = words.into_iter().chain(http2).collect();
        crowds.push(Post::new(lab.start_client(&words)?)?);
    }
    let mut sample = Sample::default();
    for crowd in &mut crowds {
        crowd.await_ready(&mut sample)?;
    }
    let opened: usize = crowds.iter().map(|crowd| crowd.opened).sum();
    eprintln!("{opened} opened in {:.0} s", began.elapsed().as_secs_f64());
    tokio::time::sleep(Duration::from_secs_f64(options.hold)).await;
    let (after, slab) = (memory(&servers), procfs::slab_bytes() - slab);
    let alive = post::alive(&mut crowds)?;
    let asked = ask(&mut crowds, options.sample)?;
    let each = opened.max(1) as f64;
    sample.figures = vec![
        ("anon_bytes", (after.anon - before.anon) / each),
        ("pss_bytes", (after.pss - before.pss) / each),
        ("base_pss_mib_each", before.pss / servers.len() as f64 / MIB),
        ("slab_bytes", slab / each),
        ("alive", alive as f64),
        ("asked", asked.asked as f64),
        ("answered", asked.in_time as f64),
        ("p50_us", asked.p50_us),
        ("worst_us", asked.worst_us),
        ("open_secs", began.elapsed().as_secs_f64()),
    ];
    let processes = servers.len();
    let by = if options.http2 { " by HTTP/2" } else { "" };
    let title = format!("{opened} idle TLS 1.3 connections{by}, {processes} processes on one port");
    let mut board = Board::new(title, &COLUMNS);
    board.add("eyelet", sample);
    Ok(Findings { boards: vec![board], notes: Vec::new() })
}

/// Warns about limits of the machine in advance: a run that fails half-way takes minutes.
fn warn_of_limits(conns: usize) {
    let needed = conns as f64 * MACHINE_BYTES_A_CONNECTION;
    let available = machine::available_bytes();
    if needed > available {
        let (needed, available) = (needed / GIB, available / GIB);
        eprintln!("warning: about {needed:.1} GiB needed, {available:.1} GiB available");
    }
    let text = std::fs::read_to_string("/proc/sys/fs/file-max").unwrap_or_default();
    let files_max = text.trim().parse().unwrap_or(usize::MAX);
    if conns.saturating_mul(2) > files_max {
        eprintln!("warning: two files a connection, and fs.file-max is {files_max}");
    }
}

/// Connections of each process: its descriptors, less a margin for uneven spreading.
fn share() -> usize {
    child::descriptors_max().saturating_mul(9) / 10
}

fn memory(servers: &[Server]) -> procfs::Memory {
    let families: Vec<u32> = servers.iter().flat_map(|server| server.child.family()).collect();
    procfs::memory(&families)
}

#[derive(Default)]
struct Asked {
    asked: usize,
    in_time: usize,
    p50_us: f64,
    worst_us: f64,
}

/// Asks a share of the sample in every crowd. All crowds run at once; each asks one client at a
/// time.
fn ask(crowds: &mut [Post], sample: usize) -> io::Result<Asked> {
    let share = sample.div_ceil(crowds.len().max(1));
    let seed = std::process::id();
    for (k, crowd) in crowds.iter_mut().enumerate() {
        crowd.order(&format!("ask {share} {}", u64::from(seed) * 1000 + k as u64 + 1))?;
    }
    let (mut all, mut middles) = (Asked::default(), Vec::new());
    for crowd in crowds {
        let words = crowd.answer()?;
        all.asked += number(&words, 1);
        all.in_time += number(&words, 2);
        middles.push(number(&words, 3) as f64);
        all.worst_us = all.worst_us.max(number(&words, 5) as f64);
    }
    all.p50_us = median(&middles).unwrap_or_default();
    Ok(all)
}

const COLUMNS: [Column; 9] = [
    Column { key: "anon_bytes", heading: "anon B/conn", decimals: 0 },
    Column { key: "pss_bytes", heading: "PSS B/conn", decimals: 0 },
    Column { key: "base_pss_mib_each", heading: "base MiB each", decimals: 1 },
    Column { key: "slab_bytes", heading: "slab B/conn", decimals: 0 },
    Column { key: "alive", heading: "alive", decimals: 0 },
    Column { key: "asked", heading: "asked", decimals: 0 },
    Column { key: "answered", heading: "within 1 s", decimals: 0 },
    Column { key: "p50_us", heading: "p50 us", decimals: 0 },
    Column { key: "worst_us", heading: "worst us", decimals: 0 },
];

const MIB: f64 = 1024.0 * 1024.0;
const GIB: f64 = 1024.0 * MIB;
/// Bytes: two sockets and an epoll item in the kernel, a parked slot, and a share of the client.
const MACHINE_BYTES_A_CONNECTION: f64 = 10_500.0;

//! A reconnect storm: all clients connect at once, and come again until they are in. How long a
//! handshake that was admitted has taken, and how long it takes until everybody is in.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::post::{Post, number};
use super::{Findings, Meter};
use crate::board::{Board, Column, Sample, quantile};
use crate::child;
use crate::lab::{Lab, Server};
use crate::peers::{self, Row, ServerKind, ServerMode};

/// A reconnect storm: clients that come again until they are in.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Clients. Each server has a process for 9,000 of them, and all of its processes share a port
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
    let (clients, count) = (options.clients, options.clients.div_ceil(PROCESS_CLIENTS_MAX));
    let title = format!(
        "Storm: {clients} clients at once, each comes again until it is in; processes of each \
         server: {count}"
    );
    let mut board = Board::new(title, &COLUMNS);
    for row in &rows {
        match start(lab, row, backend.address, count) {
            Ok(servers) => board.add(row.label, measure(lab, &servers, options)?),
            Err(why) => eprintln!("{} is left out: {why}", row.label),
        }
        tokio::time::sleep(AFTERMATH).await;
    }
    Ok(Findings { boards: vec![board], notes: Vec::new() })
}

/// Starts so many processes of a server, which share a port. A limit of handshakes is for all.
fn start(lab: &Lab, row: &Row, backend: SocketAddr, count: usize) -> io::Result<Vec<Server>> {
    let address = lab.free_address()?;
    let share = |rate: u32| rate.div_ceil(u32::try_from(count).unwrap_or(u32::MAX));
    let row = Row { handshakes: row.handshakes.map(share), ..*row };
    let start = |_| peers::start_at(lab, &row, &[backend], address, count > 1);
    let mut servers: Vec<Server> = (0..count).map(start).collect::<io::Result<_>>()?;
    std::thread::sleep(START_WAIT);
    // The address answers while one of them runs.
    match servers.iter_mut().find_map(|server| server.child.ended()) {
        Some(words) => Err(io::Error::other(format!("a process ended: {words}"))),
        None => Ok(servers),
    }
}

fn measure(lab: &Lab, servers: &[Server], options: &Options) -> io::Result<Sample> {
    let [server, ..] = servers else { return Err(io::Error::other("no clients")) };
    let clients = options.clients;
    // A client has one descriptor.
    let share = child::descriptors_max().saturating_sub(DESCRIPTORS_KEPT).clamp(1, clients);
    let mut posts = Vec::new();
    for first in (0..clients).step_by(share) {
        let numbers = [share.min(clients - first), first].map(|number| number.to_string());
        let [target, patience] = [server.address.to_string(), options.patience.to_string()];
        let [count, first] = numbers;
        let words = ["storm-clients".to_owned(), target, count, first, patience];
        posts.push(Post::new(lab.start_client(&words)?)?);
    }
    let meter = Meter::over(servers.iter().map(|server| &server.child));
    for post in &mut posts {
        post.order("go")?;
    }
    let (mut sample, mut micros) = (Sample::default(), Vec::new());
    let (mut last, mut refusals) = (0, 0);
    for post in &mut posts {
        let words = post.answer()?;
        last = last.max(number(&words, 2));
        refusals += number(&words, 3);
        let failed: usize = number(&words, 4);
        sample.errors += failed as u64;
        if failed > 0 && sample.first_error.is_none() {
            sample.first_error = words.get(5).cloned();
        }
        let times = post.answer()?;
        micros.extend(times.iter().skip(1).filter_map(|word| word.parse::<f64>().ok()));
    }
    let (cpu_us, _) = meter.read();
    micros.sort_by(f64::total_cmp);
    let admitted = micros.len().max(1) as f64;
    sample.figures = vec![
        ("all_in_s", last as f64 / 1e6),
        ("p50_ms", quantile(&micros, 0.5) / 1e3),
        ("p99_ms", quantile(&micros, 0.99) / 1e3),
        ("refusals", refusals as f64 / admitted),
        ("cpu_us", cpu_us / admitted),
    ];
    Ok(sample)
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
/// Clients of a process. The configurations of all servers allow some hundreds more, as the kernel
/// spreads connections by hash and unevenly.
const PROCESS_CLIENTS_MAX: usize = 9_000;
const DESCRIPTORS_KEPT: usize = 256;
const START_WAIT: Duration = Duration::from_secs(1);
const AFTERMATH: Duration = Duration::from_millis(500);

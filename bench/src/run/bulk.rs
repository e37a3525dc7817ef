//! CPU of a gigabyte: downloads through a splicing and through a terminating server, and uploads
//! through the latter.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use clap::{Args, ValueEnum};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use super::{Findings, Meter, Tally, order, splice, start_all};
use crate::board::{Board, Column, Sample};
use crate::client::{self, tls};
use crate::flight::Shape;
use crate::lab::{Lab, NAMES, Server, host_name};
use crate::peers::{self, Row, ServerKind, ServerMode};

/// CPU-seconds of a GB, spliced and terminated, and of uploads.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Downloads or uploads at a time
    #[arg(long, default_value_t = 8)]
    conns: usize,
    /// MiB of each
    #[arg(long, default_value_t = 256)]
    mib: usize,
    /// Rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Through what
    #[arg(long, value_delimiter = ',', default_values = ["splice", "terminate", "upload"])]
    through: Vec<Through>,
}

/// The kind of server that the bytes pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Through {
    /// A server that splices, to an origin that answers with as many bytes
    Splice,
    /// A server that terminates TLS, to the HTTP backend
    Terminate,
    /// To that server, by POST
    Upload,
}

/// Runs the scenario.
pub async fn run(lab: &Lab, against: &[String], options: &Options) -> io::Result<Findings> {
    let backend = lab.start_backend()?;
    let (_origin, origins) = lab.start_origin(options.mib << 20)?;
    let mut outcome = Findings::default();
    for through in &options.through {
        let (rows, upstreams, name): (&[Row], &[SocketAddr], _) = match through {
            Through::Splice => (&SPLICE_ROWS, &origins, "spliced"),
            Through::Terminate | Through::Upload => (&TLS_ROWS, &[backend.address], "terminated"),
        };
        let Ok(rows) = peers::choose(rows, against, lab) else { continue };
        let servers = start_all(lab, &rows, upstreams);
        let loads = if *through == Through::Upload { "uploads" } else { "downloads" };
        let title = format!("Bulk, {name}: {} {loads} of {} MiB", options.conns, options.mib);
        let mut board = Board::new(title, &COLUMNS);
        for round in 0..options.rounds {
            for at in order(servers.len(), round) {
                let (row, server) = &servers[at];
                let sample = measure(server, *through, options).await;
                let cost = sample.figures[0].1;
                eprintln!("round {} | {name} | {}: {cost:.3} CPU-s/GB", round + 1, row.label);
                board.add(row.label, sample);
            }
        }
        outcome.boards.push(board);
    }
    Ok(outcome)
}

async fn measure(server: &Server, through: Through, options: &Options) -> Sample {
    let meter = Meter::start(&server.child);
    let (target, bytes) = (server.address, options.mib << 20);
    let mut tasks = JoinSet::new();
    for i in 0..options.conns {
        tasks.spawn(async move {
            let (mut tally, began) = (Tally::default(), Instant::now());
            let got = match through {
                Through::Splice => fetch_spliced(target, i, bytes).await,
                Through::Terminate => fetch(target, i, bytes).await,
                Through::Upload => upload(target, i, bytes).await,
            };
            match got {
                Ok(got) => {
                    tally.bytes = got as u64;
                    tally.done(began);
                }
                Err(e) => tally.failed(&e),
            }
            tally
        });
    }
    let tally = Tally::gather(tasks).await;
    let (cpu_us, secs) = meter.read();
    let gigabytes = tally.bytes as f64 / 1e9;
    let figures = vec![
        ("cpu_s_per_gb", cpu_us / 1e6 / gigabytes),
        ("gbit_per_s", gigabytes * 8.0 / secs),
        ("cpu_share", cpu_us / 1e6 / secs),
    ];
    Sample { figures, errors: tally.errors, first_error: tally.first_error }
}

async fn fetch_spliced(target: SocketAddr, i: usize, bytes: usize) -> io::Result<usize> {
    let writes = Shape::Small.writes(&host_name(i));
    let mut stream = splice::visit(target, i, &writes, 0).await?;
    let (mut got, mut buffer) = (0, vec![0; BUFFER_BYTES]);
    while got < bytes {
        match stream.read(&mut buffer).await? {
            0 => return Err(io::Error::other(format!("closed after {got} bytes"))),
            more => got += more,
        }
    }
    Ok(got)
}

async fn fetch(target: SocketAddr, i: usize, bytes: usize) -> io::Result<usize> {
    let config = tls::config(tls::HandshakeOptions::default());
    let mut stream = tls::open(&config, target, i, NAMES).await?;
    let request = client::request(&format!("/bytes/{bytes}"), false);
    client::exchange(&mut stream, &request, &mut vec![0; BUFFER_BYTES]).await
}

async fn upload(target: SocketAddr, i: usize, bytes: usize) -> io::Result<usize> {
    let config = tls::config(tls::HandshakeOptions::default());
    let mut stream = tls::open(&config, target, i, NAMES).await?;
    client::upload(&mut stream, bytes, &mut vec![b'u'; BUFFER_BYTES]).await?;
    Ok(bytes)
}

const SPLICE_ROWS: [Row; 7] = [
    Row::usual("eyelet", ServerKind::Eyelet, ServerMode::Peek),
    Row::usual("nginx", ServerKind::Nginx, ServerMode::Peek),
    Row::asked("nginx-blind", ServerKind::Nginx, ServerMode::Blind),
    Row::usual("haproxy", ServerKind::Haproxy, ServerMode::Peek),
    Row::asked("haproxy-blind", ServerKind::Haproxy, ServerMode::Blind),
    Row::usual("rust-splice", ServerKind::RustSplice, ServerMode::Blind),
    Row::usual("floor-splice", ServerKind::FloorSplice, ServerMode::Blind),
];

const TLS_ROWS: [Row; 9] = [
    Row::usual("eyelet", ServerKind::Eyelet, ServerMode::Http),
    Row::usual("eyelet-tcp", ServerKind::Eyelet, ServerMode::Tcp),
    Row::usual("nginx", ServerKind::Nginx, ServerMode::Http),
    Row::usual("haproxy", ServerKind::Haproxy, ServerMode::Http),
    Row::usual("haproxy-tcp", ServerKind::Haproxy, ServerMode::Tcp),
    Row::usual("hitch", ServerKind::Hitch, ServerMode::Tcp),
    Row::usual("stunnel", ServerKind::Stunnel, ServerMode::Tcp),
    Row::usual("rust-proxy", ServerKind::RustProxy, ServerMode::Tcp),
    Row::usual("rust-tls", ServerKind::RustTls, ServerMode::Http),
];

const COLUMNS: [Column; 3] = [
    Column { key: "cpu_s_per_gb", heading: "CPU-s/GB", decimals: 3 },
    Column { key: "gbit_per_s", heading: "Gbit/s", decimals: 2 },
    Column { key: "cpu_share", heading: "CPU share", decimals: 2 },
];

/// Bytes of a read or write, as by a browser or curl; small enough for the cache.
const BUFFER_BYTES: usize = 1 << 16;

//! CPU of small work on kept connections: a GET (`requests`), a 100-byte echo (`wake`).

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use super::{Findings, HTTP_ROWS, Meter, TCP_ROWS, Tally, in_time, order, start_all};
use crate::board::{Board, Column, Sample};
use crate::client::{self, tls};
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

/// The repeated operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A keep-alive GET of 128 bytes.
    Get,
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
        Work::Get => (&HTTP_ROWS, "Keep-alive GETs of 128 bytes"),
        Work::Echo => (&TCP_ROWS, "Waking: echoes of 100 bytes over a terminated TCP pair"),
    };
    let rows = peers::choose(rows, against, lab)?;
    let backend = lab.start_backend()?;
    let servers = start_all(lab, &rows, &[backend.address]);
    let mut board = Board::new(format!("{what}, {} connections", options.conns), &COLUMNS);
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
    let config = tls::config(tls::HandshakeOptions::default());
    let (mut streams, mut failed) = (Vec::new(), Tally::default());
    for i in 0..options.conns {
        match in_time(tls::open(&config, server.address, i, NAMES)).await {
            Ok(stream) => streams.push(stream),
            Err(e) => failed.failed(&e),
        }
    }
    let request: Arc<[u8]> = client::request("/", false).into();
    let meter = Meter::start(&server.child);
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    let mut tasks = JoinSet::new();
    for stream in streams {
        tasks.spawn(keep_asking(stream, work, Arc::clone(&request), end));
    }
    let mut tally = Tally::gather(tasks).await;
    tally.merge(failed);
    tally.sample(&meter)
}

async fn keep_asking(
    mut stream: TlsStream<TcpStream>,
    work: Work,
    request: Arc<[u8]>,
    end: Instant,
) -> Tally {
    let (mut tally, mut buffer) = (Tally::default(), [0; 4096]);
    while Instant::now() < end {
        let began = Instant::now();
        let done = match work {
            Work::Get => {
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

const COLUMNS: [Column; 5] = [
    Column { key: "cpu_us", heading: "CPU-us", decimals: 1 },
    Column { key: "per_second", heading: "per s", decimals: 0 },
    Column { key: "p50_us", heading: "p50 us", decimals: 0 },
    Column { key: "p99_us", heading: "p99 us", decimals: 0 },
    Column { key: "cpu_share", heading: "CPU share", decimals: 2 },
];

const ECHO_BYTES: usize = 100;

//! Memory growth over many short connections, in several passes. The server's memory is read after
//! each pass and once all connections are closed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use rustls::ClientConfig;
use tokio::task::JoinSet;

use super::{Findings, Meter, Tally, in_time, started};
use crate::board::{Board, Column, Sample};
use crate::client::{self, tls};
use crate::lab::{Lab, Server};
use crate::peers::{self, Row, ServerKind, ServerMode};
use crate::procfs;

/// Memory over passes of short connections: handshake, one GET, close.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Connections at a time
    #[arg(long, default_value_t = 500)]
    conns: usize,
    /// Connections a pass
    #[arg(long, default_value_t = 20_000)]
    total: usize,
    /// Passes; the first and the last are compared
    #[arg(long, default_value_t = 2)]
    passes: usize,
    /// Come back with tickets
    #[arg(long)]
    resume: bool,
    /// Ask for so many different server names in turn
    #[arg(long, default_value_t = 1)]
    names: usize,
    /// Seconds between the last close of a pass and its second reading
    #[arg(long, default_value_t = 5.0)]
    rest: f64,
}

/// Runs the scenario.
pub async fn run(lab: &Lab, against: &[String], options: &Options) -> io::Result<Findings> {
    let rows = peers::choose(&ROWS, against, lab)?;
    let backend = lab.start_backend()?;
    let (conns, total) = (options.conns, options.total);
    let title = format!(
        "Churn: {conns} at once, {total} connections, {} passes, {} names, resumed: {}",
        options.passes, options.names, options.resume
    );
    let mut board = Board::new(title, &COLUMNS);
    for row in &rows {
        let server = peers::start(lab, row, &[backend.address]);
        let Some(server) = started(server, row) else { continue };
        board.add(row.label, measure(&server, row, options).await);
        drop(server);
        tokio::time::sleep(AFTERMATH).await;
    }
    Ok(Findings { boards: vec![board], notes: Vec::new() })
}

async fn measure(server: &Server, row: &Row, options: &Options) -> Sample {
    let read = || procfs::memory(&server.child.family());
    let handshake = tls::HandshakeOptions { resume: options.resume, ..Default::default() };
    // One configuration for each robot, so that each keeps its own tickets.
    let configs: Vec<_> = (0..options.conns).map(|_| tls::config(handshake)).collect();
    let before = read();
    let (mut passes, mut sample) = (Vec::new(), Sample::default());
    for pass in 0..options.passes {
        let meter = Meter::start(&server.child);
        let tally = churn(server.address, &configs, options).await;
        let after = read();
        let done = tally.sample(&meter);
        tokio::time::sleep(Duration::from_secs_f64(options.rest)).await;
        let rested = read();
        eprintln!(
            "{} | pass {}: RSS {:.1} MiB, later {:.1} MiB, {:.0} CPU-us/conn",
            row.label,
            pass + 1,
            after.rss / MIB,
            rested.rss / MIB,
            done.figures[0].1
        );
        sample.errors += done.errors;
        sample.first_error = sample.first_error.or(done.first_error);
        passes.push((after, rested, done.figures[0].1));
    }
    let (Some(first), Some(last)) = (passes.first(), passes.last()) else { return sample };
    sample.figures = vec![
        ("left_rss_mib", (last.1.rss - before.rss) / MIB),
        ("before_rss_mib", before.rss / MIB),
        ("first_rss_mib", first.0.rss / MIB),
        ("first_rested_rss_mib", first.1.rss / MIB),
        ("last_rss_mib", last.0.rss / MIB),
        ("last_rested_rss_mib", last.1.rss / MIB),
        ("growth_kib", (last.0.rss - first.0.rss) / 1024.0),
        ("before_pss_mib", before.pss / MIB),
        ("first_pss_mib", first.0.pss / MIB),
        ("last_pss_mib", last.0.pss / MIB),
        ("last_rested_pss_mib", last.1.pss / MIB),
        ("cpu_us", last.2),
    ];
    sample
}

async fn churn(target: SocketAddr, configs: &[Arc<ClientConfig>], options: &Options) -> Tally {
    let (next, request) = (Arc::new(AtomicUsize::new(0)), Arc::new(client::request("/", true)));
    let mut tasks = JoinSet::new();
    for config in configs {
        let (next, request, config) = (Arc::clone(&next), Arc::clone(&request), Arc::clone(config));
        let (total, names) = (options.total, options.names);
        tasks.spawn(async move {
            let mut tally = Tally::default();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= total {
                    return tally;
                }
                let began = Instant::now();
                match in_time(visit(&config, target, i, names, &request)).await {
                    Ok(()) => tally.done(began),
                    Err(e) => tally.failed(&e),
                }
            }
        });
    }
    Tally::gather(tasks).await
}

async fn visit(
    config: &Arc<ClientConfig>,
    target: SocketAddr,
    i: usize,
    names: usize,
    request: &[u8],
) -> io::Result<()> {
    let mut stream = tls::open(config, target, i, names).await?;
    client::exchange(&mut stream, request, &mut [0; 1024]).await?;
    client::close(stream).await;
    Ok(())
}

const ROWS: [Row; 8] = [
    Row::usual("eyelet", ServerKind::Eyelet, ServerMode::Http),
    Row::asked("eyelet-tcp", ServerKind::Eyelet, ServerMode::Tcp),
    Row::usual("nginx", ServerKind::Nginx, ServerMode::Http),
    Row::usual("haproxy", ServerKind::Haproxy, ServerMode::Http),
    Row::usual("hitch", ServerKind::Hitch, ServerMode::Tcp),
    Row::usual("stunnel", ServerKind::Stunnel, ServerMode::Tcp),
    Row::usual("rust-tls", ServerKind::RustTls, ServerMode::Http),
    Row::usual("rust-proxy", ServerKind::RustProxy, ServerMode::Tcp),
];

const COLUMNS: [Column; 8] = [
    Column { key: "left_rss_mib", heading: "left over MiB", decimals: 1 },
    Column { key: "before_rss_mib", heading: "RSS before", decimals: 1 },
    Column { key: "first_rss_mib", heading: "after 1st", decimals: 1 },
    Column { key: "first_rested_rss_mib", heading: "rested", decimals: 1 },
    Column { key: "last_rss_mib", heading: "after last", decimals: 1 },
    Column { key: "last_rested_rss_mib", heading: "rested", decimals: 1 },
    Column { key: "growth_kib", heading: "growth KiB", decimals: 0 },
    Column { key: "cpu_us", heading: "CPU-us/conn", decimals: 0 },
];

const MIB: f64 = 1024.0 * 1024.0;
const AFTERMATH: Duration = Duration::from_millis(500);

//! New connections, one after another, while an edge changes: how long each waits for the edge's
//! first byte, beside a change and without one.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection};
use rustls_pki_types::ServerName;
use tokio::runtime::Runtime;

use super::super::{STEP_TIMEOUT, in_time};
use crate::board::{Board, Column, Sample, quantile};
use crate::client;
use crate::lab::host_name;

/// A change of the edge, and the time that it took.
#[derive(Clone, Copy, Debug)]
pub struct EdgeChanged {
    pub name: &'static str,
    pub began: Instant,
    pub ended: Instant,
    pub has_failed: bool,
}

impl EdgeChanged {
    pub fn secs(&self) -> f64 {
        (self.ended - self.began).as_secs_f64()
    }
}

/// All visits, in their order.
#[derive(Debug, Default)]
pub struct Visits {
    waits: Vec<Wait>,
    pub errors: u64,
    pub first_error: Option<String>,
}

/// From the SYN to the first byte of the edge, or to the failure.
#[derive(Clone, Copy, Debug)]
struct Wait {
    began: Instant,
    ended: Instant,
    has_failed: bool,
}

/// The waits of one row.
#[derive(Debug, Default)]
struct Part {
    /// Milliseconds, by the number of the change.
    ms: BTreeMap<usize, Vec<f64>>,
    failed: u64,
}

/// Visits until the end, on a thread of its own: the tasks of the other clients do not delay it.
pub fn begin(
    config: Arc<ClientConfig>,
    target: SocketAddr,
    end: Instant,
) -> io::Result<JoinHandle<io::Result<Visits>>> {
    Builder::new().name("visits".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut visits = Visits::default();
        for i in 0.. {
            let began = Instant::now();
            let due = began + EVERY;
            let wait = visit(&runtime, &config, target, i).unwrap_or_else(|e| {
                visits.errors += 1;
                visits.first_error.get_or_insert_with(|| e.to_string());
                // How long it took to fail is a wait, too.
                Wait { began, ended: Instant::now(), has_failed: true }
            });
            visits.waits.push(wait);
            if due >= end {
                break;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(visits)
    })
}

/// Connects, waits for the first byte, and shakes hands to the end.
fn visit(
    runtime: &Runtime,
    config: &Arc<ClientConfig>,
    target: SocketAddr,
    i: usize,
) -> io::Result<Wait> {
    let name = ServerName::try_from(host_name(0)).map_err(io::Error::other)?;
    let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    let began = Instant::now();
    let connected = runtime.block_on(async { in_time(client::connect(target, i)).await });
    let mut stream = connected?.into_std()?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    while tls.wants_write() {
        tls.write_tls(&mut stream)?;
    }
    if stream.peek(&mut [0])? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let ended = Instant::now();
    while tls.is_handshaking() || tls.wants_write() {
        tls.complete_io(&mut stream)?;
    }
    Ok(Wait { began, ended, has_failed: false })
}

/// The waits beside each kind of change, and those without one, whose slowest show what is not the
/// change's. `changes` are in their order.
pub fn board(visits: &Visits, changes: &[EdgeChanged]) -> Board {
    // By the name of the change, and by its number: what follows a change has the same number.
    let mut parts = BTreeMap::<&str, Part>::new();
    for wait in &visits.waits {
        let number = changes.partition_point(|change| change.began <= wait.ended);
        let last = number.checked_sub(1).and_then(|last| changes.get(last));
        let name = last.filter(|last| wait.began <= last.ended + AFTERMATH);
        let name = name.map_or(QUIET, |last| last.name);
        let ms = (wait.ended - wait.began).as_secs_f64() * 1e3;
        let part = parts.entry(name).or_default();
        part.ms.entry(number).or_default().push(ms);
        part.failed += u64::from(wait.has_failed);
    }
    let title = "A new connection's wait, from the SYN to the edge's first byte";
    let mut board = Board::new(title, &COLUMNS);
    for (name, part) in parts {
        board.add(name, sample(part));
    }
    board
}

fn sample(part: Part) -> Sample {
    let Part { ms: parts, failed } = part;
    let sorted = |mut figures: Vec<f64>| {
        figures.sort_by(f64::total_cmp);
        figures
    };
    let slowest = parts.values().filter_map(|part| part.iter().copied().max_by(f64::total_cmp));
    let slowest = sorted(slowest.collect());
    let times = parts.len() as f64;
    let all = sorted(parts.into_values().flatten().collect());
    let figures = vec![
        ("p50_ms", quantile(&all, 0.5)),
        ("p99_ms", quantile(&all, 0.99)),
        ("p999_ms", quantile(&all, 0.999)),
        ("slowest_p50_ms", quantile(&slowest, 0.5)),
        ("slowest_p90_ms", quantile(&slowest, 0.9)),
        ("worst_ms", slowest.last().copied().unwrap_or_default()),
        ("times", times),
        ("visits", all.len() as f64),
        ("failed", failed as f64),
    ];
    Sample { figures, ..Sample::default() }
}

const COLUMNS: [Column; 9] = [
    Column { key: "p50_ms", heading: "p50 ms", decimals: 2 },
    Column { key: "p99_ms", heading: "p99 ms", decimals: 1 },
    Column { key: "p999_ms", heading: "p99.9 ms", decimals: 1 },
    Column { key: "slowest_p50_ms", heading: "slowest: p50 ms", decimals: 1 },
    Column { key: "slowest_p90_ms", heading: "p90 ms", decimals: 1 },
    Column { key: "worst_ms", heading: "worst ms", decimals: 1 },
    Column { key: "times", heading: "times", decimals: 0 },
    Column { key: "visits", heading: "visits", decimals: 0 },
    Column { key: "failed", heading: "failed", decimals: 0 },
];

/// The row of the time without a change.
const QUIET: &str = "no change";
/// The time in which a change still moves bytes after its end, such as a file that is read again.
const AFTERMATH: Duration = Duration::from_millis(300);
const EVERY: Duration = Duration::from_millis(5);

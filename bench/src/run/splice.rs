//! CPU of a spliced connection: robots in a closed loop, three shapes of hello. Each splicer runs
//! blind, peeking and with evidence, in turn.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{CONNECTIONS, Findings, Meter, Tally, in_time, order, settle, start_all, strace};
use crate::board::{Board, Sample, median, range};
use crate::client;
use crate::flight::{self, Shape};
use crate::lab::{Lab, NAMES, Server, host_name};
use crate::peers::{self, Row, ServerKind, ServerMode};

/// CPU-us of a spliced connection, blind and with a look at the hello.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Connections open at a time; each robot opens its next when its last has ended
    #[arg(long, default_value_t = 200)]
    robots: usize,
    /// Seconds a server, a shape and a round
    #[arg(long, default_value_t = 0.1)]
    seconds: f64,
    /// Rounds; each measures every server once with each shape
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Also count system calls a connection with strace (its own runs, after the others)
    #[arg(long)]
    strace: bool,
}

/// Runs the scenario.
pub async fn run(lab: &Lab, against: &[String], options: &Options) -> io::Result<Findings> {
    let rows = peers::choose(&ROWS, against, lab)?;
    let (_origin, addresses) = lab.start_origin(REPLY_BYTES)?;
    let (_origin13, origins13) = lab.start_true_origin(REPLY_BYTES, false)?;
    let (_origin12, origins12) = lab.start_true_origin(REPLY_BYTES, true)?;
    let dns = lab.start_dns(&addresses)?;
    let (towards, plain): (Vec<Row>, Vec<Row>) =
        rows.iter().copied().partition(|row| row.front.has_destination());
    let mut servers = start_all(lab, &plain, &addresses);
    servers.extend(start_all(lab, &towards, &[dns.address]));
    let mut boards: Vec<Board> = Shape::ALL.iter().map(|shape| board(*shape, options)).collect();
    let crews = Shape::ALL.map(|shape| Crews::new(shape, &origins13, &origins12));
    warm(&servers, &crews[0]).await?;
    let span = Duration::from_secs_f64(options.seconds);
    for round in 0..options.rounds {
        for (shape, (crews, board)) in Shape::ALL.iter().zip(crews.iter().zip(&mut boards)) {
            for at in order(servers.len(), round) {
                let (row, server) = &servers[at];
                let sample = measure(server, crews.of(row), options.robots, span).await;
                progress(round, *shape, row, &sample);
                board.add(row.label, sample);
            }
        }
    }
    let mut notes = pairs(&rows, &boards);
    if options.strace {
        for (row, server) in &servers {
            notes.push(system_calls(lab, row, server, crews[0].of(row)).await);
        }
    }
    Ok(Findings { boards, notes })
}

/// Gathers evidence for every name before measuring.
async fn warm(servers: &[(Row, Server)], crews: &Crews) -> io::Result<()> {
    for (row, server) in servers.iter().filter(|(row, _)| row.front.has_destination()) {
        let crew = crews.of(row);
        for i in 0..NAMES {
            let writes = &crew.writes[i];
            in_time(visit(server.address, i, writes, crew.reply_bytes)).await.map_err(|e| {
                io::Error::other(format!("{}: no evidence for {}: {e}", row.label, host_name(i)))
            })?;
        }
    }
    Ok(())
}

fn board(shape: Shape, options: &Options) -> Board {
    let robots = options.robots;
    let title = format!("Splice, {}, {robots} robots, {NAMES} names", shape.name());
    Board::new(title, &CONNECTIONS)
}

fn progress(round: usize, shape: Shape, row: &Row, sample: &Sample) {
    let cpu = sample.figures[0].1;
    eprintln!("round {} | {} | {}: {cpu:.1} CPU-us", round + 1, shape.name(), row.label);
}

async fn measure(server: &Server, crew: &Arc<Crew>, robots: usize, span: Duration) -> Sample {
    let meter = Meter::start(&server.child);
    let tally = crew.work(server.address, robots, span).await;
    settle().await;
    tally.sample(&meter)
}

/// Blind over peeking, round by round, so that noise longer than a pair cancels out.
fn pairs(rows: &[Row], boards: &[Board]) -> Vec<String> {
    let mut notes = Vec::new();
    for peek in rows {
        let blind = match peek.front {
            ServerMode::Peek => ServerMode::Blind,
            ServerMode::ByDns | ServerMode::ByCertificate => ServerMode::BlindTowards,
            _ => continue,
        };
        let partner = |row: &&Row| {
            (row.front, row.kind, row.tls12, row.before)
                == (blind, peek.kind, peek.tls12, peek.before)
        };
        let Some(blind) = rows.iter().find(partner) else { continue };
        let ratios = Shape::ALL.iter().zip(boards).map(|(shape, board)| {
            let over = board.figures(blind.label, "cpu_us").into_iter();
            let under = board.figures(peek.label, "cpu_us");
            let ratios: Vec<f64> = over.zip(under).map(|(blind, peek)| blind / peek).collect();
            let (least, most) = range(&ratios).unwrap_or_default();
            let middle = median(&ratios).unwrap_or_default();
            format!("\n  {middle:.3} ({least:.2}-{most:.2})  {}", shape.name())
        });
        let ratios: String = ratios.collect();
        notes.push(format!("CPU of {} over {}, in pairs:{ratios}", blind.label, peek.label));
    }
    notes
}

async fn system_calls(lab: &Lab, row: &Row, server: &Server, crew: &Arc<Crew>) -> String {
    let trace = match strace::attach(lab.folder(), server) {
        Ok(trace) => trace,
        Err(e) => return format!("system calls of {}: not counted: {e}", row.label),
    };
    let tally = crew.work(server.address, STRACE_ROBOTS, STRACE_SPAN).await;
    settle().await;
    let counts = trace.read();
    format!("system calls a connection of {}: {}", row.label, counts.over(tally.micros.len()))
}

/// Robots that send one shape of hello. Each connection uses the next name.
struct Crew {
    writes: Vec<Vec<Vec<u8>>>,
    reply_bytes: usize,
    next: AtomicUsize,
}

/// The crews of one shape.
struct Crews {
    plain: Arc<Crew>,
    towards13: Arc<Crew>,
    towards12: Arc<Crew>,
}

impl Crews {
    fn new(shape: Shape, origins13: &[SocketAddr], origins12: &[SocketAddr]) -> Self {
        let tls13 = flight::server_flight(REPLY_BYTES).len();
        let tls12 = flight::server_flight_tls12(REPLY_BYTES).len();
        Self {
            plain: Crew::new(shape, &[], tls13),
            towards13: Crew::new(shape, origins13, tls13),
            towards12: Crew::new(shape, origins12, tls12),
        }
    }

    fn of(&self, row: &Row) -> &Arc<Crew> {
        match (row.front.has_destination(), row.tls12) {
            (false, _) => &self.plain,
            (true, false) => &self.towards13,
            (true, true) => &self.towards12,
        }
    }
}

impl Crew {
    /// Each name has one of the destinations, if there are any.
    fn new(shape: Shape, destinations: &[SocketAddr], reply_bytes: usize) -> Arc<Self> {
        let writes = |i: usize| {
            let mut writes = shape.writes(&host_name(i));
            if let Some(SocketAddr::V4(to)) = destinations.get(i % destinations.len().max(1)) {
                writes[0].splice(0..0, flight::proxy_header(*to));
            }
            writes
        };
        let writes = (0..NAMES).map(writes).collect();
        Arc::new(Self { writes, reply_bytes, next: AtomicUsize::new(0) })
    }

    async fn work(self: &Arc<Self>, target: SocketAddr, robots: usize, span: Duration) -> Tally {
        let end = Instant::now() + span;
        let mut tasks = JoinSet::new();
        for _ in 0..robots {
            let crew = Arc::clone(self);
            tasks.spawn(async move {
                let mut tally = Tally::default();
                while Instant::now() < end {
                    let i = crew.next.fetch_add(1, Ordering::Relaxed);
                    let began = Instant::now();
                    let writes = &crew.writes[i % NAMES];
                    match in_time(visit(target, i, writes, crew.reply_bytes)).await {
                        Ok(_closed) => tally.done(began),
                        Err(e) => tally.failed(&e),
                    }
                }
                tally
            });
        }
        Tally::gather(tasks).await
    }
}

/// One connection until the origin's whole response. Dropping it closes it.
pub async fn visit(
    target: SocketAddr,
    i: usize,
    writes: &[Vec<u8>],
    reply_bytes: usize,
) -> io::Result<TcpStream> {
    let mut stream = client::connect(target, i).await?;
    for (k, part) in writes.iter().enumerate() {
        if k > 0 {
            tokio::time::sleep(WRITE_PAUSE).await;
        }
        stream.write_all(part).await?;
    }
    let mut buffer = [0; 4096];
    let mut got = 0;
    while got < reply_bytes {
        match stream.read(&mut buffer).await? {
            0 => return Err(io::Error::other(format!("closed after {got} bytes"))),
            more => got += more,
        }
    }
    Ok(stream)
}

/// Opaque bytes that the origin sends after its ServerHello.
pub const REPLY_BYTES: usize = 1024;

const ROWS: [Row; 14] = [
    Row::usual("eyelet-blind", ServerKind::Eyelet, ServerMode::Blind),
    Row::usual("eyelet", ServerKind::Eyelet, ServerMode::Peek),
    Row::usual("eyelet-log", ServerKind::Eyelet, ServerMode::Peek).logging(),
    Row::usual("eyelet-towards", ServerKind::Eyelet, ServerMode::BlindTowards),
    Row::usual("eyelet-dns", ServerKind::Eyelet, ServerMode::ByDns),
    Row::usual("eyelet-certificate", ServerKind::Eyelet, ServerMode::ByCertificate),
    Row::usual("eyelet-towards-12", ServerKind::Eyelet, ServerMode::BlindTowards).tls12(),
    Row::usual("eyelet-certificate-12", ServerKind::Eyelet, ServerMode::ByCertificate).tls12(),
    Row::usual("nginx", ServerKind::Nginx, ServerMode::Peek),
    Row::asked("nginx-blind", ServerKind::Nginx, ServerMode::Blind),
    Row::usual("haproxy", ServerKind::Haproxy, ServerMode::Peek),
    Row::asked("haproxy-blind", ServerKind::Haproxy, ServerMode::Blind),
    Row::usual("rust-splice", ServerKind::RustSplice, ServerMode::Blind),
    Row::usual("floor-splice", ServerKind::FloorSplice, ServerMode::Blind),
];

/// Long enough for a proxy on an idle core to read the parts one by one.
const WRITE_PAUSE: Duration = Duration::from_millis(1);
/// strace stops the server at every call, so few robots run and nothing times out.
const STRACE_ROBOTS: usize = 50;
const STRACE_SPAN: Duration = Duration::from_secs(2);

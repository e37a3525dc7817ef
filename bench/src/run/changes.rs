//! What changes of a running edge cost its clients: held connections, GETs, pairs and WebSockets
//! that echo, and new connections, while the edge is reloaded, upgraded, given another certificate,
//! flooded, or left without its store.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rustix::process::{Pid, Signal};
use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::post::{self, Post};
use super::{Findings, Tally, in_time};
use crate::board::{Board, Column, Sample, quantile};
use crate::client::{self, tls};
use crate::lab::{self, CERTIFICATE, KEY, LOCALHOST, Lab, NAMES, Server, WILDCARD};
use crate::procfs;

/// What is lost while an edge changes: held connections, requests, bytes, time.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Idle TLS connections to hold; they have made no request yet
    #[arg(long, default_value_t = 10_000)]
    held: usize,
    /// Requests a second, in all
    #[arg(long, default_value_t = 2000)]
    rate: usize,
    /// Kept connections that make them
    #[arg(long, default_value_t = 64)]
    conns: usize,
    /// Pairs that echo random bytes all the time: one half spliced, the other terminated
    #[arg(long, default_value_t = 200)]
    pairs: usize,
    /// WebSockets that echo all the time
    #[arg(long, default_value_t = 50)]
    websockets: usize,
    /// What is done in turn
    #[arg(long, value_delimiter = ',', default_values = ["reload"])]
    change: Vec<EdgeChange>,
    /// Seconds between two changes
    #[arg(long, default_value_t = 1.0)]
    every: f64,
    /// Seconds in all
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
}

/// A change of the running edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EdgeChange {
    /// `eyelet reload` with a file whose rules differ from those before.
    Reload,
    /// `eyelet upgrade` to the same binary.
    Upgrade,
    /// A new certificate and key, written over the old ones.
    Certificate,
    /// A crowd of connections that say half a hello, or what is no TLS, and leave.
    Flood,
    /// The store of the fleet is stopped; the next time it is started again, without its data.
    Store,
}

/// The edge under test. An upgrade changes its process.
struct Edge {
    binary: PathBuf,
    file: PathBuf,
    addresses: Addresses,
    generation: usize,
    store: Store,
    // The last field: dropping it kills the first process, which may have ended.
    first: Server,
}

/// Where the edge listens, and what stands behind it.
#[derive(Clone, Copy)]
struct Addresses {
    terminated: SocketAddr,
    tcp: SocketAddr,
    spliced: SocketAddr,
    backend: SocketAddr,
    origin: SocketAddr,
}

/// The store of the edge's fleet, if a change is about it.
struct Store {
    address: Option<SocketAddr>,
    server: Option<Server>,
}

/// What the changes took.
#[derive(Default)]
struct Changed {
    secs: Vec<f64>,
    failed: Tally,
}

/// Runs the scenario.
pub async fn run(lab: &Lab, options: &Options) -> io::Result<Findings> {
    let backend = lab.start_backend()?;
    let origin = start_origin(lab)?;
    let mut edge = Edge::start(lab, backend.address, origin.address, options)?;
    let mut sample = Sample::default();
    let words = ["crowd".into(), edge.addresses.terminated.to_string()];
    let words = [words, [options.held.to_string(), "0".into()]].concat();
    let mut crowds = [Post::new(lab.start_client(&words)?)?];
    crowds[0].await_ready(&mut sample)?;
    let opened = crowds[0].opened;
    let config = tls::config(tls::HandshakeOptions::default());
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    let requests = requests(&config, edge.addresses.terminated, options, end);
    let echoes = echoes(&config, edge.addresses, options, end);
    let mut visitor = JoinSet::new();
    visitor.spawn(visits(config, edge.addresses.terminated, end));
    // The first requests allocate what stays.
    tokio::time::sleep(WARM_UP).await;
    let before = edge.anon_bytes();
    let changed = edge.change_all(lab, options, end).await;
    let (requests, echoes, visits) =
        (Tally::gather(requests).await, Tally::gather(echoes).await, Tally::gather(visitor).await);
    tokio::time::sleep(AFTER).await;
    let after = edge.anon_bytes();
    let alive = post::alive(&mut crowds)?;
    let ended = edge.ends()?;
    drop(crowds);
    let unlogged = edge.end().await?;
    let mut secs = changed.secs;
    secs.sort_by(f64::total_cmp);
    sample.figures = vec![
        ("lost", opened as f64 - alive as f64),
        ("requests", requests.micros.len() as f64),
        ("failed", requests.errors as f64),
        ("worst_ms", worst_ms(&requests.micros)),
        ("echoes", echoes.micros.len() as f64),
        ("echoes_lost", echoes.errors as f64),
        ("visits_failed", visits.errors as f64),
        ("visit_worst_ms", worst_ms(&visits.micros)),
        ("changes", secs.len() as f64),
        ("change_ms", quantile(&secs, 0.5) * 1e3),
        ("change_worst_ms", secs.last().copied().unwrap_or_default() * 1e3),
        ("grown_kib", (after - before) / 1024.0),
        ("unlogged", unlogged),
    ];
    for tally in [changed.failed, requests, echoes, visits] {
        sample.errors += tally.errors;
        sample.first_error = sample.first_error.or(tally.first_error);
    }
    let title = format!("{opened} held connections, {} requests a second", options.rate);
    let mut board = Board::new(title, &COLUMNS);
    board.add("eyelet", sample);
    let notes = ended.iter().map(|(reason, count)| format!("ended until then: {count} {reason}"));
    Ok(Findings { boards: vec![board], notes: notes.collect() })
}

fn worst_ms(sorted_micros: &[f64]) -> f64 {
    sorted_micros.last().copied().unwrap_or_default() / 1e3
}

/// The origin of spliced pairs: the echo behind TLS.
fn start_origin(lab: &Lab) -> io::Result<Server> {
    let address = lab.free_address()?;
    let path = |file: &str| lab.folder().join(file).display().to_string();
    let words = ["rust-tls".into(), address.to_string(), path(CERTIFICATE), path(KEY)];
    lab.start_server("origin", &lab::own_command(&words)?, address)
}

impl Edge {
    fn start(
        lab: &Lab,
        backend: SocketAddr,
        origin: SocketAddr,
        options: &Options,
    ) -> io::Result<Self> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "eyelet is not built");
        let binary = lab.eyelet().ok_or_else(missing)?.to_owned();
        let file = lab.folder().join("changes.toml");
        for (from, to) in [(CERTIFICATE, OWN_CERTIFICATE), (KEY, OWN_KEY)] {
            fs::copy(lab.folder().join(from), lab.folder().join(to))?;
        }
        let (terminated, tcp) = (lab.free_address()?, lab.free_address()?);
        let spliced = lab.free_address()?;
        let addresses = Addresses { terminated, tcp, spliced, backend, origin };
        let store = Store::start(lab, options.change.contains(&EdgeChange::Store))?;
        write(&file, &(configuration(addresses, 0) + &store.configuration()))?;
        let command = [binary.clone().into(), "serve".into(), file.clone().into()];
        let first = lab.start_server("eyelet", &command, terminated)?;
        Ok(Self { binary, file, addresses, generation: 0, store, first })
    }

    /// Makes the changes in turn until the end.
    async fn change_all(&mut self, lab: &Lab, options: &Options, end: Instant) -> Changed {
        let mut changed = Changed::default();
        let mut clock = interval(Duration::from_secs_f64(options.every));
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for change in options.change.iter().cycle() {
            clock.tick().await;
            if Instant::now() + LAST_CHANGE >= end {
                break;
            }
            let began = Instant::now();
            match self.change(lab, *change).await {
                Ok(()) => changed.secs.push(began.elapsed().as_secs_f64()),
                Err(e) => {
                    eprintln!("{change:?}: {e}");
                    changed.failed.failed(&e);
                }
            }
        }
        changed
    }

    async fn change(&mut self, lab: &Lab, change: EdgeChange) -> io::Result<()> {
        self.generation += 1;
        match change {
            EdgeChange::Reload => {
                let text = configuration(self.addresses, self.generation);
                write(&self.file, &(text + &self.store.configuration()))?;
                self.command("reload").await
            }
            EdgeChange::Upgrade => self.command("upgrade").await,
            EdgeChange::Certificate => renew(lab.folder()),
            EdgeChange::Flood => flood(self.addresses.terminated).await,
            EdgeChange::Store => self.store.toggle(lab),
        }
    }

    /// How many connections have ended until now, by reason.
    fn ends(&self) -> io::Result<BTreeMap<String, usize>> {
        let mut ends = BTreeMap::new();
        self.each_end(|line| {
            let reason = line.split_once("\"reason\":").map_or("", |(_, rest)| rest);
            let reason = reason.split("\",\"").next().unwrap_or_default().trim_matches('"');
            *ends.entry(reason.to_owned()).or_default() += 1;
        })?;
        Ok(ends)
    }

    /// Each access line of a connection. Requests have lines too.
    fn each_end(&self, mut see: impl FnMut(&str)) -> io::Result<()> {
        let log = BufReader::new(File::open(self.file.with_file_name(ACCESS_LOG))?);
        for line in log.lines() {
            let line = line?;
            if line.contains("\"http\":null") {
                see(&line);
            }
        }
        Ok(())
    }

    /// Ends all processes that serve the file. Gives how many accepted connections have no access
    /// line.
    async fn end(&self) -> io::Result<f64> {
        tokio::time::sleep(AFTER).await;
        self.signal(Signal::TERM);
        let give_up_at = Instant::now() + END_TIMEOUT;
        while !self.processes().is_empty() {
            if Instant::now() > give_up_at {
                return Err(io::Error::other("the edge does not end"));
            }
            tokio::time::sleep(AFTER / 50).await;
        }
        // "17 accepted: ...", the last word of each process.
        let said = self.first.child.errors();
        let accepted = said.lines().filter_map(|line| {
            let (before, _) = line.split_once(" accepted: ")?;
            before.rsplit(' ').next()?.parse::<f64>().ok()
        });
        let mut lines = 0.0;
        self.each_end(|_| lines += 1.0)?;
        Ok(accepted.sum::<f64>() - lines)
    }

    fn signal(&self, signal: Signal) {
        for pid in self.processes() {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
    }

    async fn command(&self, command: &'static str) -> io::Result<()> {
        let (binary, file) = (self.binary.clone(), self.file.clone());
        let (done, ended) = oneshot::channel();
        std::thread::spawn(move || {
            // The receiver is dropped only if the run was interrupted.
            let _ = done.send(Command::new(binary).arg(command).arg(file).output());
        });
        let output = ended.await.map_err(io::Error::other)??;
        if output.status.success() {
            return Ok(());
        }
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        Err(io::Error::other(format!("{command}: {}: {}", output.status, text.trim())))
    }

    /// Anonymous memory of all processes that serve the file.
    fn anon_bytes(&self) -> f64 {
        procfs::memory(&self.processes()).anon
    }

    /// All processes that serve the file: after an upgrade for a while two, and not the first.
    fn processes(&self) -> Vec<u32> {
        let serves = |pid: &u32| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
            let file = self.file.as_os_str().as_encoded_bytes();
            words.contains(&b"serve".as_slice()) && words.contains(&file)
        };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(serves).collect()
    }
}

/// An upgrade's process is not a child of this one.
impl Drop for Edge {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

impl Store {
    fn start(lab: &Lab, is_wanted: bool) -> io::Result<Self> {
        if !is_wanted {
            return Ok(Self { address: None, server: None });
        }
        let secret = lab.folder().join(SECRET);
        fs::write(&secret, "a secret of at least thirty-two bytes")?;
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
        let mut store = Self { address: Some(lab.free_address()?), server: None };
        store.toggle(lab)?;
        Ok(store)
    }

    /// Keys change each minute, so that the store is asked while it is gone.
    fn configuration(&self) -> String {
        self.address.map_or_else(String::new, |address| {
            format!(
                "\n[tickets]\nlifetime = \"60s\"\n\n[fleet]\nstore = \"redis://{address}\"\n\
                 secret_file = \"{SECRET}\"\n"
            )
        })
    }

    fn toggle(&mut self, lab: &Lab) -> io::Result<()> {
        self.server = match (self.server.take(), self.address) {
            (None, Some(address)) => {
                let port = address.port().to_string();
                let words = ["redis-server", "--port", &port, "--save", "", "--appendonly", "no"];
                Some(lab.start_server("redis", &words.map(Into::into), address)?)
            }
            _ => None,
        };
        Ok(())
    }
}

/// A configuration whose rules have other names in each generation, and one more in each second.
fn configuration(addresses: Addresses, generation: usize) -> String {
    let Addresses { terminated, tcp, spliced, backend, origin } = addresses;
    let listeners = [terminated, tcp, spliced];
    let mut text: String = listeners
        .iter()
        .map(|address| format!("[[listener]]\naddress = \"{address}\"\n\n"))
        .collect();
    text += &format!("[log]\naccess = \"{ACCESS_LOG}\"\n\n");
    text += "[limits]\nidle_timeout = \"1h\"\n";
    if generation % 2 == 1 {
        text += "\n[[rule]]\nname = \"more\"\nsni = \"more.bench.test\"\naction = \"refuse\"\n";
    }
    let terminate = format!(
        "action = \"terminate\"\ncertificate = \"{OWN_CERTIFICATE}\"\nkey = \"{OWN_KEY}\"\n"
    );
    for (listener, action) in [
        (spliced, format!("action = \"splice\"\nupstream = \"{origin}\"\n")),
        (tcp, format!("{terminate}upstream = \"tcp://{backend}\"\n")),
        (terminated, format!("{terminate}upstream = \"http://{backend}\"\n")),
    ] {
        let port = listener.port();
        text += &format!(
            "\n[[rule]]\nname = \"{port}-{generation}\"\nlistener = \"{listener}\"\n\
             sni = [\"{WILDCARD}\", \"{LOCALHOST}\"]\n{action}"
        );
    }
    text
}

/// Written beside and renamed: the edge may read it now.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let fresh = file.with_extension("fresh");
    fs::write(&fresh, text)?;
    fs::rename(&fresh, file)
}

/// A new certificate and key for the same names.
fn renew(folder: &Path) -> io::Result<()> {
    let signed = rcgen::generate_simple_self_signed([WILDCARD, LOCALHOST].map(str::to_owned));
    let signed = signed.map_err(io::Error::other)?;
    write(&folder.join(OWN_KEY), &signed.signing_key.serialize_pem())?;
    write(&folder.join(OWN_CERTIFICATE), &signed.cert.pem())
}

/// Connections that never become one: half of them say the beginning of a hello, the others what
/// is no TLS.
async fn flood(target: SocketAddr) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    for i in 0..FLOOD {
        let bytes: &[u8] =
            if i % 2 == 0 { &[22, 3, 1, 2, 0, 1, 0] } else { b"GET / HTTP/1.1\r\n\r\n" };
        tasks.spawn(async move {
            let mut stream = tokio::net::TcpStream::connect(target).await?;
            stream.write_all(bytes).await?;
            tokio::time::sleep(FLOOD_STAYS).await;
            io::Result::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(io::Error::other)??;
    }
    Ok(())
}

/// Clients that share the rate. A failed request ends its connection, and another one begins.
fn requests(
    config: &Arc<ClientConfig>,
    target: SocketAddr,
    options: &Options,
    end: Instant,
) -> JoinSet<Tally> {
    let every = Duration::from_secs_f64(options.conns as f64 / options.rate.max(1) as f64);
    let mut tasks = JoinSet::new();
    for i in 0..options.conns {
        let config = Arc::clone(config);
        tasks.spawn(async move {
            let (mut tally, mut buffer) = (Tally::default(), [0; 4096]);
            let (request, mut stream) = (client::request("/", false), None);
            let mut clock = interval(every);
            clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while Instant::now() < end {
                clock.tick().await;
                let began = Instant::now();
                let asked = async {
                    let mut open = match stream.take() {
                        Some(open) => open,
                        None => tls::open(&config, target, i, NAMES).await?,
                    };
                    client::exchange(&mut open, &request, &mut buffer).await?;
                    io::Result::Ok(open)
                };
                match in_time(asked).await {
                    Ok(open) => {
                        stream = Some(open);
                        tally.done(began);
                    }
                    Err(e) => tally.failed(&e),
                }
            }
            tally
        });
    }
    tasks
}

/// What echoes.
#[derive(Clone, Copy)]
enum Echo {
    /// Bytes.
    Pair,
    /// A message of a WebSocket.
    WebSocket,
}

/// Pairs and WebSockets that echo until the end. A wrong byte, or the end of one, is a failure.
fn echoes(
    config: &Arc<ClientConfig>,
    addresses: Addresses,
    options: &Options,
    end: Instant,
) -> JoinSet<Tally> {
    let targets = [addresses.spliced, addresses.tcp].into_iter().cycle().take(options.pairs);
    let pairs = targets.map(|target| (target, Echo::Pair));
    let websockets = std::iter::repeat_n(addresses.terminated, options.websockets);
    let all = pairs.chain(websockets.map(|target| (target, Echo::WebSocket)));
    let mut tasks = JoinSet::new();
    for (i, (target, kind)) in all.enumerate() {
        let config = Arc::clone(config);
        tasks.spawn(async move {
            let mut tally = Tally::default();
            if let Err(e) = keep_echoing(&mut tally, &config, target, kind, i, end).await {
                tally.failed(&e);
            }
            tally
        });
    }
    tasks
}

async fn keep_echoing(
    tally: &mut Tally,
    config: &Arc<ClientConfig>,
    target: SocketAddr,
    kind: Echo,
    i: usize,
    end: Instant,
) -> io::Result<()> {
    let mut stream = in_time(tls::open(config, target, i, NAMES)).await?;
    if let Echo::WebSocket = kind {
        in_time(become_websocket(&mut stream)).await?;
    }
    let mut clock = interval(ECHO_EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seed = i as u8;
    while Instant::now() < end {
        clock.tick().await;
        seed = seed.wrapping_mul(31).wrapping_add(7);
        let began = Instant::now();
        match kind {
            Echo::Pair => {
                let bytes: Vec<u8> = (0..ECHO_BYTES).map(|k| seed.wrapping_add(k as u8)).collect();
                in_time(client::echo(&mut stream, &bytes)).await?;
            }
            Echo::WebSocket => in_time(echo_message(&mut stream, seed)).await?,
        }
        tally.done(began);
    }
    Ok(())
}

/// RFC 6455 section 4.1. The key is any 16 bytes.
async fn become_websocket<S: client::Duplex>(stream: &mut S) -> io::Result<()> {
    let request = "GET /echo HTTP/1.1\r\nHost: host-0.bench.test\r\nUpgrade: websocket\r\n\
                   Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    match head.starts_with(b"HTTP/1.1 101 ") {
        true => Ok(()),
        false => Err(io::Error::other("no WebSocket")),
    }
}

/// One binary message there and back, in one frame (RFC 6455 section 5.2).
async fn echo_message<S: client::Duplex>(stream: &mut S, seed: u8) -> io::Result<()> {
    let mask = [seed, 1, 2, 3];
    let text: Vec<u8> = (0..MESSAGE_BYTES).map(|k| seed.wrapping_add(k)).collect();
    let mut frame = vec![0x82, 0x80 | MESSAGE_BYTES];
    frame.extend(mask);
    frame.extend(text.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    stream.write_all(&frame).await?;
    stream.flush().await?;
    let mut back = vec![0; 2 + text.len()];
    stream.read_exact(&mut back).await?;
    match back[..2] == [0x82, MESSAGE_BYTES] && back[2..] == text {
        true => Ok(()),
        false => Err(io::Error::other("another message came back")),
    }
}

/// One new connection after another: the slowest shows the longest pause of accepting.
async fn visits(config: Arc<ClientConfig>, target: SocketAddr, end: Instant) -> Tally {
    let (mut tally, mut i) = (Tally::default(), 0);
    let mut clock = interval(VISIT_EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while Instant::now() < end {
        clock.tick().await;
        i += 1;
        let began = Instant::now();
        match in_time(tls::open(&config, target, i, NAMES)).await {
            Ok(_) => tally.done(began),
            Err(e) => tally.failed(&e),
        }
    }
    tally
}

const COLUMNS: [Column; 13] = [
    Column { key: "lost", heading: "held lost", decimals: 0 },
    Column { key: "requests", heading: "requests", decimals: 0 },
    Column { key: "failed", heading: "failed", decimals: 0 },
    Column { key: "worst_ms", heading: "worst ms", decimals: 1 },
    Column { key: "echoes", heading: "echoes", decimals: 0 },
    Column { key: "echoes_lost", heading: "echoes lost", decimals: 0 },
    Column { key: "visits_failed", heading: "new failed", decimals: 0 },
    Column { key: "visit_worst_ms", heading: "worst ms", decimals: 1 },
    Column { key: "changes", heading: "changes", decimals: 0 },
    Column { key: "change_ms", heading: "change ms", decimals: 1 },
    Column { key: "change_worst_ms", heading: "worst ms", decimals: 1 },
    Column { key: "grown_kib", heading: "grown KiB", decimals: 0 },
    Column { key: "unlogged", heading: "not logged", decimals: 0 },
];

/// Files of the edge's own certificate, which the scenario renews.
const OWN_CERTIFICATE: &str = "renewed.pem";
const OWN_KEY: &str = "renewed.key";
const ACCESS_LOG: &str = "changes.log";
const SECRET: &str = "fleet.secret";
/// Connections of one flood, and how long they stay.
const FLOOD: usize = 1000;
const FLOOD_STAYS: Duration = Duration::from_secs(1);
/// Longer than a drain and the end of the threads take.
const END_TIMEOUT: Duration = Duration::from_secs(30);
const WARM_UP: Duration = Duration::from_secs(2);
/// Time for the edge to end what clients have closed, and to return memory.
const AFTER: Duration = Duration::from_secs(5);
/// No change begins so late that the load ends before it shows.
const LAST_CHANGE: Duration = Duration::from_secs(2);
const ECHO_EVERY: Duration = Duration::from_millis(100);
const ECHO_BYTES: usize = 1500;
/// A frame of at most 125 bytes has the shortest header.
const MESSAGE_BYTES: u8 = 100;
const VISIT_EVERY: Duration = Duration::from_millis(5);

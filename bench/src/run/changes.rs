//! The cost of changes of a running edge for its clients. There are held connections, GETs, pairs
//! and WebSockets that echo, and new connections, while the edge is reloaded, upgraded, given
//! another certificate, flooded, or left without its store.

mod echoes;
mod visits;

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
use tokio::io::AsyncWriteExt;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use self::echoes::Echo;
use self::visits::EdgeChanged;
use super::post::{self, Post};
use super::{Findings, Tally, in_time};
use crate::accounts::Accounts;
use crate::board::{Board, Column, Sample, quantile};
use crate::client::{self, tls};
use crate::lab::{self, CERTIFICATE, KEY, LOCALHOST, Lab, NAMES, Server, WILDCARD};
use crate::procfs;

/// Counts the losses while an edge changes: held connections, requests, bytes, time.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// TLS connections to hold; each makes a request before the changes and one after them
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
    /// Seconds between two echoes of a pair or a WebSocket
    #[arg(long, default_value_t = 0.1)]
    echo_every: f64,
    /// The changes, in turn
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
    /// Connections that shake hands, make one request and leave, as fast as they can.
    Churn,
    /// A crowd of connections that say half a hello, or what is no TLS, and leave.
    Flood,
    /// The store of the fleet is stopped; the next time it is started again, without its data.
    Store,
}

impl EdgeChange {
    const fn name(self) -> &'static str {
        match self {
            Self::Reload => "reload",
            Self::Upgrade => "upgrade",
            Self::Certificate => "certificate",
            Self::Churn => "churn",
            Self::Flood => "flood",
            Self::Store => "store",
        }
    }
}

/// The edge under test. An upgrade changes its process.
struct Edge {
    binary: PathBuf,
    file: PathBuf,
    addresses: Addresses,
    generation: usize,
    store: Store,
    /// The last lines of each generation of its configuration.
    more: String,
    accounts: Option<Accounts>,
    // The last field: dropping it kills the first process, which may have ended.
    first: Server,
}

/// The addresses at which the edge listens, and of the servers behind it.
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

/// The changes that were made, and the failures meanwhile.
#[derive(Default)]
struct Changed {
    done: Vec<EdgeChanged>,
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
    let asked = post::answered(&mut crowds)?;
    let config = tls::config(tls::HandshakeOptions::default());
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    let requests = requests(&config, edge.addresses.terminated, options, end);
    let every = Duration::from_secs_f64(options.echo_every);
    let echoes = echoes::begin(&config, edge.addresses.echoes(options), every, end);
    let visits = visits::begin(config, edge.addresses.terminated, end)?;
    // The first requests allocate what stays.
    tokio::time::sleep(WARM_UP).await;
    let before = edge.anon_bytes();
    let changed = edge.change_all(lab, options, end).await;
    let (requests, echoes) = (Tally::gather(requests).await, Tally::gather(echoes).await);
    let visits = visits.join().map_err(|_| io::Error::other("the visitor has ended"))??;
    tokio::time::sleep(AFTER).await;
    let after = edge.anon_bytes();
    let alive = post::alive(&mut crowds)?.min(post::answered(&mut crowds)?);
    let ended = edge.ends()?;
    drop(crowds);
    let unlogged = edge.end().await?;
    let made = changed.done.iter().filter(|change| !change.has_failed);
    let mut secs: Vec<f64> = made.map(EdgeChanged::secs).collect();
    secs.sort_by(f64::total_cmp);
    sample.figures = vec![
        ("lost", opened as f64 - alive as f64),
        ("requests", requests.micros.len() as f64),
        ("failed", requests.errors as f64),
        ("worst_ms", worst_ms(&requests.micros)),
        ("echoes", echoes.micros.len() as f64),
        ("echoes_lost", echoes.errors as f64),
        ("visits_failed", visits.errors as f64),
        ("changes", secs.len() as f64),
        ("change_ms", quantile(&secs, 0.5) * 1e3),
        ("change_worst_ms", secs.last().copied().unwrap_or_default() * 1e3),
        ("grown_kib", (after - before) / 1024.0),
        ("unlogged", unlogged),
    ];
    let waits = visits::board(&visits, &changed.done);
    sample.errors += (opened - asked) as u64 + visits.errors;
    sample.first_error = sample.first_error.or(visits.first_error);
    for tally in [changed.failed, requests, echoes] {
        sample.errors += tally.errors;
        sample.first_error = sample.first_error.or(tally.first_error);
    }
    let title = format!("{opened} held connections, {} requests a second", options.rate);
    let mut board = Board::new(title, &COLUMNS);
    board.add("eyelet", sample);
    let notes = ended.iter().map(|(reason, count)| format!("ended until then: {count} {reason}"));
    Ok(Findings { boards: vec![board, waits], notes: notes.collect() })
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

impl Addresses {
    /// One half of the pairs is spliced, the other terminated.
    fn echoes(self, options: &Options) -> impl Iterator<Item = (SocketAddr, Echo)> {
        let targets = [self.spliced, self.tcp].into_iter().cycle().take(options.pairs);
        let websockets = std::iter::repeat_n(self.terminated, options.websockets);
        let pairs = targets.map(|target| (target, Echo::Pair));
        pairs.chain(websockets.map(|target| (target, Echo::WebSocket)))
    }
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
        let accounts = lab.accounts("changes");
        let admin = accounts.as_ref().map(Accounts::configuration).unwrap_or_default();
        let more = store.configuration() + &admin;
        write(&file, &(configuration(addresses, 0) + &more))?;
        let command = [binary.clone().into(), "serve".into(), file.clone().into()];
        let first = lab.start_server("eyelet", &command, terminated)?;
        Ok(Self { binary, file, addresses, generation: 0, store, more, accounts, first })
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
            let result = self.change(lab, *change).await;
            let (name, ended, has_failed) = (change.name(), Instant::now(), result.is_err());
            // Also one that has failed: what waits beside it is not quiet.
            changed.done.push(EdgeChanged { name, began, ended, has_failed });
            if let Err(e) = result {
                eprintln!("{change:?}: {e}");
                changed.failed.failed(&e);
            }
        }
        changed
    }

    async fn change(&mut self, lab: &Lab, change: EdgeChange) -> io::Result<()> {
        self.generation += 1;
        match change {
            EdgeChange::Reload => {
                let text = configuration(self.addresses, self.generation);
                write(&self.file, &(text + &self.more))?;
                self.command("reload").await
            }
            EdgeChange::Upgrade => self.command("upgrade").await,
            EdgeChange::Certificate => renew(lab.folder()),
            EdgeChange::Churn => churn(self.addresses.terminated).await,
            EdgeChange::Flood => flood(self.addresses.terminated).await,
            EdgeChange::Store => self.store.toggle(lab),
        }
    }

    /// Returns the number of connections that have ended until now, by reason.
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
        self.accounts.iter().for_each(|accounts| accounts.print("changes"));
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

/// Connections that come, ask once and go. The first failure ends its share of them, and the other
/// shares go on to their end.
async fn churn(target: SocketAddr) -> io::Result<()> {
    let config = tls::config(tls::HandshakeOptions::default());
    let mut tasks = JoinSet::new();
    for share in 0..CHURN_SHARES {
        let config = Arc::clone(&config);
        tasks.spawn(async move {
            let (request, mut buffer) = (client::request("/", false), [0; 4096]);
            for i in 0..CHURN_EACH {
                let asked = async {
                    let i = i * CHURN_SHARES + share;
                    let mut stream = tls::open(&config, target, i, NAMES).await?;
                    client::exchange_checked(&mut stream, &request, &mut buffer).await?;
                    client::close(stream).await;
                    io::Result::Ok(())
                };
                in_time(asked).await?;
            }
            io::Result::Ok(())
        });
    }
    let mut result = Ok(());
    while let Some(done) = tasks.join_next().await {
        result = result.and(done.map_err(io::Error::other).flatten());
    }
    result
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
            let (request, mut stream, mut count) = (client::request("/", false), None, i);
            let mut clock = interval(every);
            clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while Instant::now() < end {
                clock.tick().await;
                let began = Instant::now();
                count += 1;
                let asked = async {
                    let mut open = match stream.take() {
                        Some(open) => open,
                        None => tls::open(&config, target, i, NAMES).await?,
                    };
                    if count.is_multiple_of(KEY_UPDATE_EVERY) {
                        tls::update_keys(&mut open)?;
                    }
                    client::exchange_checked(&mut open, &request, &mut buffer).await?;
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

const COLUMNS: [Column; 12] = [
    Column { key: "lost", heading: "held lost", decimals: 0 },
    Column { key: "requests", heading: "requests", decimals: 0 },
    Column { key: "failed", heading: "failed", decimals: 0 },
    Column { key: "worst_ms", heading: "worst ms", decimals: 1 },
    Column { key: "echoes", heading: "echoes", decimals: 0 },
    Column { key: "echoes_lost", heading: "echoes lost", decimals: 0 },
    Column { key: "visits_failed", heading: "new failed", decimals: 0 },
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
/// Connections of one churn that there are at once, and how many come one after another in each of
/// these shares.
const CHURN_SHARES: usize = 16;
const CHURN_EACH: usize = 62;
/// Connections of one flood, and how long they stay.
const FLOOD: usize = 1000;
const FLOOD_STAYS: Duration = Duration::from_secs(1);
/// Longer than a drain and the end of the threads take.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests of a connection between two KeyUpdates (RFC 8446 section 4.6.3).
const KEY_UPDATE_EVERY: usize = 20;
const WARM_UP: Duration = Duration::from_secs(2);
/// Time for the edge to end what clients have closed, and to return memory.
const AFTER: Duration = Duration::from_secs(5);
/// No change begins so late that the load ends before it shows.
const LAST_CHANGE: Duration = Duration::from_secs(2);

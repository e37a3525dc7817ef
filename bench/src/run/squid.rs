//! The table of the Squid developers: robots that are redirected to Squid and to Eyelet, each as
//! SS1 (splice all), SS2 (peek at the hello, splice) and SS3 (peek at the certificate too). It runs
//! in a network namespace of its own, which `unshare` makes.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::{CONNECTIONS, Findings, Meter, Tally, in_time, order, settle};
use crate::board::{Board, Sample, median, range};
use crate::client::tls;
use crate::flight::{self, Shape};
use crate::lab::{CERTIFICATE, KEY, Lab, NAMES, Server, host_name};

/// Squid's and Eyelet's CPU and rate at each step of peeking, as shares of splicing all.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Connections open at a time; each robot opens its next when its last has ended
    #[arg(long, default_value_t = 200)]
    robots: usize,
    /// Seconds a server, a kind and a round
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds; each measures every server once with each kind
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// This process is in a namespace of its own already
    #[arg(long, hide = true)]
    pub inside: bool,
}

/// Runs this program again in a new network namespace, with the same words.
///
/// # Errors
/// It cannot be made, or the run has failed.
pub fn enter() -> io::Result<()> {
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-ec", NAMESPACE, "sh"]).arg(std::env::current_exe()?);
    match command.args(std::env::args_os().skip(1)).arg("--inside").status()? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("in a namespace of its own: {status}"))),
    }
}

/// Runs the scenario.
pub async fn run(lab: &Lab, options: &Options) -> io::Result<Findings> {
    let origin = lab.start_wide_origin(REPLY_BYTES)?;
    let scene = Scene { lab, port: origin.address.port(), robots: options.robots };
    scene.write_hosts()?;
    let mut places = Vec::new();
    for (k, row) in ROWS.iter().enumerate() {
        places.push(Place { row, k, address: lab.free_address()? });
    }
    scene.redirect(&places)?;
    let mut boards = Kind::ALL.map(|kind| board(kind, options));
    let span = Span::Time(Duration::from_secs_f64(options.seconds));
    let mut servers = Vec::new();
    for place in &places {
        servers.push(scene.start(place)?);
    }
    for (kind, board) in Kind::ALL.into_iter().zip(&mut boards) {
        for place in &places {
            // What is gathered once must be there before the first round.
            scene.work(place, kind, Span::Connections(NAMES)).await;
        }
        for round in 0..options.rounds {
            for at in order(places.len(), round) {
                let place = &places[at];
                let sample = scene.measure(place, &servers[at], kind, span).await;
                progress(round, kind, place.row.label, &sample);
                board.add(place.row.label, sample);
            }
        }
    }
    drop(servers);
    let notes = boards.iter().flat_map(shares).chain([version()?]).collect();
    let mut boards = Vec::from(boards);
    boards.push(cold(&scene, &places, options.rounds).await?);
    Ok(Findings { boards, notes })
}

/// One connection to each origin by a server that was just started.
async fn cold(scene: &Scene<'_>, places: &[Place], rounds: usize) -> io::Result<Board> {
    let title = format!("Cold: the first connection to each of {NAMES} origins, canned TLS");
    let mut board = Board::new(title, &CONNECTIONS);
    for round in 0..rounds.min(COLD_ROUNDS_MAX) {
        for place in places.iter().filter(|place| place.row.step == 3) {
            let server = scene.start(place)?;
            let span = Span::Connections(NAMES);
            let sample = scene.measure(place, &server, Kind::Canned, span).await;
            progress(round, Kind::Canned, place.row.label, &sample);
            board.add(place.row.label, sample);
        }
    }
    Ok(board)
}

/// Squid's own words.
fn version() -> io::Result<String> {
    let said = Command::new("squid").arg("-v").output()?.stdout;
    Ok(String::from_utf8_lossy(&said).lines().next().unwrap_or_default().to_owned())
}

/// The steps as shares of splicing all, round by round: 100 % is the speed of SS1.
fn shares(board: &Board) -> Vec<String> {
    let mut notes = Vec::new();
    for program in [Program::Squid, Program::Eyelet] {
        let label = |step| {
            let row = ROWS.iter().find(|row| row.program == program && row.step == step);
            row.map_or("", |row| row.label)
        };
        for step in [2, 3] {
            let share = |key: &str, is_speed: bool| {
                let (all, row) = (board.figures(label(1), key), board.figures(label(step), key));
                let pairs = all.into_iter().zip(row);
                let shares: Vec<f64> = pairs
                    .map(|(all, row)| 100.0 * if is_speed { row / all } else { all / row })
                    .collect();
                let (least, most) = range(&shares).unwrap_or_default();
                let middle = median(&shares).unwrap_or_default();
                format!("{middle:.0} % ({least:.0}-{most:.0})")
            };
            notes.push(format!(
                "{}: {} / {}: {} by CPU, {} by conn/s",
                board.title(),
                label(step),
                label(1),
                share("cpu_us", false),
                share("per_second", true),
            ));
        }
    }
    notes
}

fn board(kind: Kind, options: &Options) -> Board {
    let robots = options.robots;
    Board::new(format!("{}, {robots} robots, {NAMES} origins", kind.name()), &CONNECTIONS)
}

fn progress(round: usize, kind: Kind, label: &str, sample: &Sample) {
    let cpu = sample.figures[0].1;
    eprintln!("round {} | {} | {label}: {cpu:.1} CPU-us", round + 1, kind.name());
}

/// What robots send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A hello of 250 bytes, answered by a flight that is no cryptography.
    Canned,
    /// A TLS 1.3 handshake with the origin.
    Tls,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Canned, Self::Tls];

    const fn name(self) -> &'static str {
        match self {
            Self::Canned => "Canned TLS",
            Self::Tls => "Real TLS 1.3",
        }
    }
}

/// How long robots work.
#[derive(Clone, Copy, Debug)]
enum Span {
    Time(Duration),
    Connections(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Squid,
    Eyelet,
}

struct Row {
    label: &'static str,
    program: Program,
    /// 1: splice all. 2: the hello. 3: the certificate.
    step: u8,
}

/// A row, and where its server listens. Robots of its networks are redirected there.
struct Place {
    row: &'static Row,
    k: usize,
    address: SocketAddr,
}

struct Scene<'a> {
    lab: &'a Lab,
    /// Of all origins.
    port: u16,
    robots: usize,
}

impl Scene<'_> {
    /// Names for Squid, which looks up its clients too, and compares each name with the
    /// destination.
    fn write_hosts(&self) -> io::Result<()> {
        let mut text = String::new();
        for i in 0..NAMES {
            let _ = writeln!(text, "{} {}", origin_ip(i), host_name(i));
        }
        for k in 0..ROWS.len() {
            for i in 0..SOURCES {
                let _ = writeln!(text, "{} robot-{k}-{i}.bench.test", source(k, i));
            }
        }
        std::fs::write(self.lab.folder().join(HOSTS), text)
    }

    /// Redirects each row's robots to its server, and only them.
    fn redirect(&self, places: &[Place]) -> io::Result<()> {
        let mut rules =
            String::from("table ip bench {\nchain output {\ntype nat hook output priority -100;\n");
        for place in places {
            let (network, port) = (source(place.k, 0), place.address.port());
            let _ = writeln!(
                rules,
                "ip saddr {network}/24 ip daddr 127.1.0.0/16 tcp dport {} redirect to :{port}",
                self.port
            );
        }
        rules.push_str("}\n}\n");
        let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = nft.stdin.take() {
            stdin.write_all(rules.as_bytes())?;
        }
        match nft.wait()?.success() {
            // The table of connections would be full of closed ones.
            true => script("sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_time_wait=1"),
            false => Err(io::Error::other("nft refuses the rules")),
        }
    }

    fn start(&self, place: &Place) -> io::Result<Server> {
        let folder = self.lab.folder();
        let file = folder.join(format!("{}.conf", place.row.label));
        let command: Vec<OsString> = match place.row.program {
            Program::Squid => {
                std::fs::write(&file, squid(folder, place))?;
                let base = folder.join(place.row.label);
                let (base, log) = (base.display(), folder.join(format!("{}.log", place.row.label)));
                script(&format!(
                    "rm -rf {base}.certificates; : >{log}
                     {CERTGEN} -c -s {base}.certificates -M 4MB >{base}.made
                     chown -R proxy {base}.certificates {log}",
                    log = log.display()
                ))?;
                let service =
                    format!("{}{}", place.row.label.replace('-', ""), place.address.port());
                let words = ["squid", "-N", "-n", &service, "-f"];
                words.iter().map(Into::into).chain([file.into_os_string()]).collect()
            }
            Program::Eyelet => {
                std::fs::write(&file, eyelet(place))?;
                let program = self.lab.eyelet().ok_or_else(|| io::Error::other("no eyelet"))?;
                vec![program.into(), "serve".into(), file.into_os_string()]
            }
        };
        self.lab.start_server(place.row.label, &command, place.address)
    }

    async fn measure(&self, place: &Place, server: &Server, kind: Kind, span: Span) -> Sample {
        settle().await;
        let meter = Meter::start(&server.child);
        let tally = self.work(place, kind, span).await;
        settle().await;
        tally.sample(&meter)
    }

    async fn work(&self, place: &Place, kind: Kind, span: Span) -> Tally {
        let robot = Arc::new(Robot {
            k: place.k,
            port: self.port,
            config: (kind == Kind::Tls).then(|| tls::config(tls::HandshakeOptions::default())),
            next: AtomicUsize::new(0),
        });
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..self.robots {
            let robot = Arc::clone(&robot);
            tasks.spawn(async move {
                let mut tally = Tally::default();
                loop {
                    let i = robot.next.fetch_add(1, Ordering::Relaxed);
                    let is_over = match span {
                        Span::Time(time) => began.elapsed() >= time,
                        Span::Connections(count) => i >= count,
                    };
                    if is_over {
                        return tally;
                    }
                    let began = Instant::now();
                    match in_time(robot.visit(i)).await {
                        Ok(()) => tally.done(began),
                        Err(e) => tally.failed(&e),
                    }
                }
            });
        }
        Tally::gather(tasks).await
    }
}

/// The clients of one row.
struct Robot {
    k: usize,
    port: u16,
    /// For real handshakes.
    config: Option<Arc<ClientConfig>>,
    next: AtomicUsize,
}

impl Robot {
    /// One connection to the i-th origin, until its answer.
    async fn visit(&self, i: usize) -> io::Result<()> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((source(self.k, i), 0).into())?;
        let mut stream = socket.connect((origin_ip(i), self.port).into()).await?;
        stream.set_nodelay(true)?;
        match &self.config {
            None => exchange(&mut stream, i).await,
            Some(config) => tls::over(config, &host_name(i), stream).await.map(drop),
        }
    }
}

async fn exchange(stream: &mut TcpStream, i: usize) -> io::Result<()> {
    stream.write_all(&Shape::Small.writes(&host_name(i)).concat()).await?;
    let (mut got, mut buffer) = (0, [0; 4096]);
    let wanted = flight::server_flight(REPLY_BYTES).len();
    while got < wanted {
        match stream.read(&mut buffer).await? {
            0 => return Err(io::Error::other(format!("closed after {got} bytes"))),
            more => got += more,
        }
    }
    Ok(())
}

/// As the manual has it: intercepted, one process, no cache, no log.
fn squid(folder: &Path, place: &Place) -> String {
    let (folder, Place { row, address, .. }) = (folder.display(), place);
    let base = format!("{folder}/{}", row.label);
    let peek = match row.step {
        1 => "",
        2 => "ssl_bump peek step1\n",
        _ => "ssl_bump peek step1\nssl_bump peek step2\n",
    };
    format!(
        "https_port {address} intercept ssl-bump tls-cert={folder}/{CERTIFICATE} \
         tls-key={folder}/{KEY} generate-host-certificates=on dynamic_cert_mem_cache_size=4MB\n\
         http_port 127.0.0.1:{}\nhosts_file {folder}/{HOSTS}\n\
         sslcrtd_program {CERTGEN} -s {base}.certificates -M 4MB\n\
         sslcrtd_children 1 startup=1 idle=1\ntls_outgoing_options cafile={folder}/{CERTIFICATE}\n\
         dns_nameservers 127.0.0.1\nhttp_access allow all\ncache deny all\ncache_mem 8 MB\n\
         access_log none\ncache_store_log none\ncache_log {base}.log\npid_filename {base}.pid\n\
         coredump_dir {folder}\ncache_effective_user proxy\npinger_enable off\n\
         max_filedescriptors 16384\nshutdown_lifetime 0 seconds\nvisible_hostname edge.test\n\
         client_db off\nacl step1 at_step SslBump1\nacl step2 at_step SslBump2\n{peek}\
         ssl_bump splice all\n",
        FORWARD_PORT + place.k
    )
}

fn eyelet(place: &Place) -> String {
    let matchers = match place.row.step {
        1 => "",
        2 => "sni = \"*.bench.test\"\n",
        _ => "sni = \"*.bench.test\"\nsni_verified = true\nevidence = \"certificate\"\n",
    };
    format!(
        "workers = 1\n[[listener]]\naddress = \"{}\"\nkind = \"redirect\"\n\n\
         [log]\naccess = \"off\"\n\n[evidence]\nca = \"{CERTIFICATE}\"\n\n\
         [[rule]]\n{matchers}action = \"splice\"\nupstream = \"destination\"\n",
        place.address
    )
}

fn script(text: &str) -> io::Result<()> {
    match Command::new("sh").args(["-ec", text]).status()?.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("this fails: {text}"))),
    }
}

/// Each name has an origin of its own.
fn origin_ip(i: usize) -> Ipv4Addr {
    let i = i % NAMES;
    Ipv4Addr::new(127, 1, (i / HOSTS_MAX) as u8, (1 + i % HOSTS_MAX) as u8)
}

/// The i-th address of a row's robots.
fn source(k: usize, i: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, SOURCE_FIRST + k as u8, (1 + i % SOURCES) as u8)
}

const ROWS: [Row; 6] = [
    Row { label: "squid-ss1", program: Program::Squid, step: 1 },
    Row { label: "squid-ss2", program: Program::Squid, step: 2 },
    Row { label: "squid-ss3", program: Program::Squid, step: 3 },
    Row { label: "eyelet-ss1", program: Program::Eyelet, step: 1 },
    Row { label: "eyelet-ss2", program: Program::Eyelet, step: 2 },
    Row { label: "eyelet-ss3", program: Program::Eyelet, step: 3 },
];

/// Begins in the new namespace, which takes root, and becomes what follows.
const NAMESPACE: &str = "ip link set lo up
sysctl -qw net.core.somaxconn=4096 net.ipv4.tcp_max_syn_backlog=8192
exec \"$@\"";
/// Opaque bytes that the origin sends after its ServerHello.
const REPLY_BYTES: usize = 1024;
/// Each starts every server anew.
const COLD_ROUNDS_MAX: usize = 3;
/// Where Debian has Squid's helper.
const CERTGEN: &str = "/usr/lib/squid/security_file_certgen";
const HOSTS: &str = "hosts";
/// Squid wants one listening port that is not intercepted.
const FORWARD_PORT: usize = 3_200;
const SOURCE_FIRST: u8 = 16;
/// Addresses of a row's robots: together with 1,000 destinations more ports than are needed.
const SOURCES: usize = 8;
const HOSTS_MAX: usize = 250;

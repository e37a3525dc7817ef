//! The namespace of the `squid` scenario. Each server has robots with addresses of their own; they
//! are redirected to it on their way to 1,000 origins.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use super::super::{Meter, Tally, in_time, settle};
use crate::board::Sample;
use crate::client::{self, tls};
use crate::flight::{self, Shape};
use crate::lab::{CERTIFICATE, KEY, Lab, LabAuthority, NAMES, ORIGINS, Server, host_name};

/// The work of robots on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visit {
    /// They send a hello of 250 bytes, which a flight that is no cryptography answers.
    Canned,
    /// They shake hands by TLS 1.3.
    Tls,
    /// They do that, and one GET.
    Get,
}

impl Visit {
    /// For titles of tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Canned => "Canned TLS",
            Self::Tls => "Real TLS 1.3",
            Self::Get => "Real TLS 1.3 and a GET",
        }
    }
}

/// The span for which robots work.
#[derive(Clone, Copy, Debug)]
pub(super) enum Span {
    Time(Duration),
    Connections(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Squid,
    Eyelet,
}

/// A server's step with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It splices them unread.
    Blind,
    /// It peeks at the hello, and splices.
    Hello,
    /// It peeks at the origin's certificate too, and splices.
    Certificate,
    /// It reads the hello, asks the origin for its certificate, and ends TLS with one like it.
    Stare,
    /// It ends TLS with a certificate for the destination's address, and dials the origin for a
    /// request only. Squid keeps the certificates that it has made in memory only so.
    Bump,
}

impl Step {
    /// True if it ends TLS.
    const fn bumps(self) -> bool {
        matches!(self, Self::Stare | Self::Bump)
    }
}

pub(super) struct Row {
    pub label: &'static str,
    pub program: Program,
    pub step: Step,
}

/// A row, and where its server listens. Robots of its networks are redirected there.
pub(super) struct Place {
    pub row: &'static Row,
    k: usize,
    address: SocketAddr,
}

pub(super) struct Scene<'a> {
    lab: &'a Lab,
    /// The port of all origins.
    port: u16,
    robots: usize,
}

impl<'a> Scene<'a> {
    /// Prepares a place for each row, on the way to origins at this port of each address.
    ///
    /// # Errors
    /// No free port, or rules that nft refuses.
    pub fn new(
        lab: &'a Lab,
        port: u16,
        robots: usize,
        rows: &'static [Row],
    ) -> io::Result<(Self, Vec<Place>)> {
        let scene = Self { lab, port, robots };
        let mut places = Vec::new();
        for (k, row) in rows.iter().enumerate() {
            places.push(Place { row, k, address: lab.free_address()? });
        }
        scene.write_hosts(rows.len())?;
        scene.redirect(&places)?;
        Ok((scene, places))
    }

    /// Names for Squid, which looks up its clients too, and compares each name with the
    /// destination.
    fn write_hosts(&self, rows: usize) -> io::Result<()> {
        let mut text = String::new();
        for i in 0..NAMES {
            let _ = writeln!(text, "{} {}", origin_ip(i), host_name(i));
        }
        for k in 0..rows {
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

    /// Starts the server of a place.
    ///
    /// # Errors
    /// It does not listen.
    pub fn start(&self, place: &Place) -> io::Result<Server> {
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

    /// The cost of what the robots of a place do.
    pub async fn measure(
        &self,
        place: &Place,
        server: &Server,
        visit: Visit,
        span: Span,
    ) -> Sample {
        settle().await;
        let meter = Meter::start(&server.child);
        let tally = self.work(place, visit, span).await;
        settle().await;
        tally.sample(&meter)
    }

    /// The robots of a place visit origins, one after the other.
    pub async fn work(&self, place: &Place, visit: Visit, span: Span) -> Tally {
        let robot = Arc::new(self.robot(place, visit));
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

    /// The clients of a place.
    pub fn robot(&self, place: &Place, visit: Visit) -> Robot {
        Robot {
            k: place.k,
            port: self.port,
            visit,
            config: tls::config(tls::HandshakeOptions::default()),
            next: AtomicUsize::new(0),
        }
    }
}

/// The clients of one row.
pub(super) struct Robot {
    k: usize,
    port: u16,
    visit: Visit,
    config: Arc<ClientConfig>,
    next: AtomicUsize,
}

impl Robot {
    /// One connection to the i-th origin, until its answer.
    async fn visit(&self, i: usize) -> io::Result<()> {
        match self.visit {
            Visit::Canned => exchange(&mut self.connect(i).await?, i).await,
            Visit::Tls | Visit::Get => self.open(i).await.map(drop),
        }
    }

    /// A TLS connection to the i-th origin, after its request if there is one.
    ///
    /// # Errors
    /// It fails, or the answer is not that of the origin.
    pub async fn open(&self, i: usize) -> io::Result<TlsStream<TcpStream>> {
        let name = host_name(i);
        let mut stream = tls::over(&self.config, &name, self.connect(i).await?).await?;
        if self.visit == Visit::Get {
            let request = format!("GET / HTTP/1.1\r\nHost: {name}:{}\r\n\r\n", self.port);
            let buffer = &mut [0; RESPONSE_BYTES_MAX];
            client::exchange_checked(&mut stream, request.as_bytes(), buffer).await?;
        }
        Ok(stream)
    }

    async fn connect(&self, i: usize) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((source(self.k, i), 0).into())?;
        let stream = socket.connect((origin_ip(i), self.port).into()).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
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

/// Returns a configuration as in the manual: intercepted, one process, no cache, no log.
fn squid(folder: &Path, place: &Place) -> String {
    let (folder, Place { row, address, .. }) = (folder.display(), place);
    let base = format!("{folder}/{}", row.label);
    let bumps = row.step.bumps();
    let rules = match row.step {
        Step::Blind => "ssl_bump splice all",
        Step::Hello => "ssl_bump peek step1\nssl_bump splice all",
        Step::Certificate => "ssl_bump peek step1\nssl_bump peek step2\nssl_bump splice all",
        Step::Stare => "ssl_bump stare step1\nssl_bump stare step2\nssl_bump bump all",
        Step::Bump => "ssl_bump bump all",
    };
    let [certificate, key] = if bumps { LabAuthority::Mint.files() } else { [CERTIFICATE, KEY] };
    let ca = if bumps { ORIGINS } else { CERTIFICATE };
    format!(
        "https_port {address} intercept ssl-bump tls-cert={folder}/{certificate} \
         tls-key={folder}/{key} generate-host-certificates=on dynamic_cert_mem_cache_size=4MB\n\
         http_port 127.0.0.1:{}\nhosts_file {folder}/{HOSTS}\n\
         sslcrtd_program {CERTGEN} -s {base}.certificates -M 4MB\n\
         sslcrtd_children 1 startup=1 idle=1 queue-size={NAMES}\n\
         tls_outgoing_options cafile={folder}/{ca}\n\
         dns_nameservers 127.0.0.1\nhttp_access allow all\ncache deny all\ncache_mem 8 MB\n\
         access_log none\ncache_store_log none\ncache_log {base}.log\npid_filename {base}.pid\n\
         coredump_dir {folder}\ncache_effective_user proxy\npinger_enable off\n\
         max_filedescriptors 16384\nshutdown_lifetime 0 seconds\nvisible_hostname edge.test\n\
         client_db off\nacl step1 at_step SslBump1\nacl step2 at_step SslBump2\n{rules}\n",
        FORWARD_PORT + place.k
    )
}

fn eyelet(place: &Place) -> String {
    let splice = |matchers| format!("{matchers}action = \"splice\"\nupstream = \"destination\"\n");
    let (ca, rule) = match place.row.step {
        Step::Blind => (CERTIFICATE, splice("")),
        Step::Hello => (CERTIFICATE, splice("sni = \"*.bench.test\"\n")),
        Step::Certificate => {
            let evidence = "sni_verified = true\nevidence = \"certificate\"\n";
            (CERTIFICATE, splice(&format!("sni = \"*.bench.test\"\n{evidence}")))
        }
        Step::Stare | Step::Bump => {
            let [certificate, key] = LabAuthority::Mint.files();
            let rule = format!(
                "action = \"terminate\"\ncertificate = \"mint\"\nmint_ca = \"{certificate}\"\n\
                 mint_key = \"{key}\"\nupstream = \"destination\"\nupstream_ca = \"{ORIGINS}\"\n"
            );
            (ORIGINS, rule)
        }
    };
    format!(
        "workers = 1\n[[listener]]\naddress = \"{}\"\nkind = \"redirect\"\n\n\
         [log]\naccess = \"off\"\n\n[evidence]\nca = \"{ca}\"\n\n[[rule]]\n{rule}",
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

/// Opaque bytes that the canned origin sends after its ServerHello.
pub(super) const REPLY_BYTES: usize = 1024;
/// More than a head and the small body that follows it.
const RESPONSE_BYTES_MAX: usize = 2048;
/// The path of Squid's own program for certificates in Debian.
const CERTGEN: &str = "/usr/lib/squid/security_file_certgen";
const HOSTS: &str = "hosts";
/// Squid wants one listening port that is not intercepted.
const FORWARD_PORT: usize = 3_200;
const SOURCE_FIRST: u8 = 16;
/// Addresses of a row's robots: together with 1,000 destinations more ports than are needed.
const SOURCES: usize = 8;
const HOSTS_MAX: usize = 250;

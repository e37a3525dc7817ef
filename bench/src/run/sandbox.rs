//! `eyelet sandbox` beside a command that is let out freely, by Squid, and by mitmproxy. It
//! measures the time of a fetch by curl to the first byte, the CPU of 2,000 fetches, and the memory
//! of the programs between. It runs in a mount namespace whose hosts file has the origins' names.

use std::ffi::OsString;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use super::{Findings, Meter, order};
use crate::board::{Board, Column, Sample};
use crate::lab::{Lab, LabAuthority, ORIGINS, Server, host_name};
use crate::procfs;

/// Time, CPU and memory of a command's way out.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Rounds of one fetch; each starts every row once
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// Rounds of many fetches
    #[arg(long, default_value_t = 3)]
    job_rounds: usize,
    /// This process is in a namespace of its own already
    #[arg(long, hide = true)]
    pub inside: bool,
}

/// A way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Free,
    Sandbox,
    Squid,
    SquidBump,
    Mitmproxy,
}

const WAYS: [(&str, Way); 5] = [
    ("free", Way::Free),
    ("eyelet-sandbox", Way::Sandbox),
    ("squid-connect", Way::Squid),
    ("squid-bump", Way::SquidBump),
    ("mitmproxy", Way::Mitmproxy),
];

/// Runs this program again in a new mount namespace, with the same words.
///
/// # Errors
/// It cannot be made, which takes root, or the run has failed.
pub fn enter() -> io::Result<()> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", NAMESPACE, "sh"]).arg(std::env::current_exe()?);
    match command.args(std::env::args_os().skip(1)).arg("--inside").status()? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("in a namespace of its own: {status}"))),
    }
}

/// Runs the scenario.
pub async fn run(lab: &Lab, options: &Options) -> io::Result<Findings> {
    let sites = lab.start_sites()?;
    lab.write_authority(LabAuthority::Mint)?;
    let port = sites.address.port();
    std::fs::write(lab.folder().join(LIST), format!(".bench.test:{port}\n"))?;
    let mut places = Vec::new();
    for (label, way) in WAYS {
        match Place::start(lab, (label, way), port) {
            Ok(place) => places.push(place),
            Err(error) => eprintln!("{label} is left out: {error}"),
        }
    }
    let mut first = Board::new("One fetch by curl, from its start", &FIRST);
    for round in 0..options.rounds {
        for at in order(places.len(), round) {
            first.add(places[at].label, places[at].fetch_one(lab)?);
        }
    }
    let mut job = Board::new(format!("{FETCHES} fetches from {HOSTS} hosts by one curl"), &JOB);
    for round in 0..options.job_rounds {
        for at in order(places.len(), round) {
            eprintln!("round {} | {}", round + 1, places[at].label);
            job.add(places[at].label, places[at].fetch_many(lab)?);
        }
    }
    Ok(Findings { boards: vec![first, job], notes: Vec::new() })
}

/// A way out that is ready.
struct Place {
    label: &'static str,
    way: Way,
    port: u16,
    /// The proxy, if it runs before the command.
    server: Option<Server>,
}

impl Place {
    fn start(lab: &Lab, (label, way): (&'static str, Way), port: u16) -> io::Result<Self> {
        let server = match way {
            Way::Free | Way::Sandbox => None,
            Way::Squid | Way::SquidBump => {
                let address = lab.free_address()?;
                Some(lab.start_server(label, &squid(lab, (label, way), address)?, address)?)
            }
            Way::Mitmproxy => {
                let address = lab.free_address()?;
                Some(lab.start_server(label, &mitmproxy(lab, address), address)?)
            }
        };
        Ok(Self { label, way, port, server })
    }

    /// A command that runs curl with these words, by this way, on both cores.
    fn command(&self, lab: &Lab, words: &[String]) -> io::Result<Command> {
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &lab.cores()]).current_dir(lab.folder());
        if self.way == Way::Sandbox {
            let eyelet = lab.eyelet().ok_or_else(|| io::Error::other("no eyelet"))?;
            command.arg(eyelet).args([
                "sandbox",
                "--allow",
                LIST,
                "--allow-private",
                LOOPBACK,
                "--",
            ]);
        }
        let [mint, _] = LabAuthority::Mint.files();
        let authority = match self.way {
            Way::SquidBump => mint,
            Way::Mitmproxy => MITM_AUTHORITY,
            Way::Free | Way::Sandbox | Way::Squid => ORIGINS,
        };
        command.args(["curl", "--silent", "--show-error", "--fail", "--cacert", authority]);
        if let Some(server) = &self.server {
            command.arg("--proxy").arg(format!("http://{}", server.address));
        }
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    /// The time to the first byte of one fetch, and to the end.
    fn fetch_one(&self, lab: &Lab) -> io::Result<Sample> {
        let words = [format!("https://{}:{}/", host_name(0), self.port)];
        let mut command = self.command(lab, &words)?;
        let began = Instant::now();
        let mut child = command.spawn()?;
        let mut first = [0];
        let read = child.stdout.as_mut().map_or(Ok(0), |stdout| stdout.read(&mut first))?;
        let first_ms = began.elapsed().as_secs_f64() * 1e3;
        let status = child.wait_with_output()?.status;
        let end_ms = began.elapsed().as_secs_f64() * 1e3;
        let figures = vec![("first_ms", first_ms), ("end_ms", end_ms)];
        Ok(sample(figures, status, read == 1))
    }

    /// The time and the CPU of many fetches, with that of what stands between, and its memory when
    /// the most of them are done.
    fn fetch_many(&self, lab: &Lab) -> io::Result<Sample> {
        let each = FETCHES / HOSTS;
        let url = format!("https://host-[0-{}].bench.test:{}/[1-{each}]", HOSTS - 1, self.port);
        let parallel = [
            "--parallel",
            "--parallel-max",
            PARALLEL,
            "--output",
            "/dev/null",
            "--no-progress-meter",
        ];
        let words: Vec<String> = parallel.into_iter().map(str::to_owned).chain([url]).collect();
        let mut command = self.command(lab, &words)?;
        let (meter, before) =
            (self.server.as_ref().map(|it| Meter::start(&it.child)), children_us()?);
        let began = Instant::now();
        let mut child = command.spawn()?;
        let mut most = procfs::Memory::default();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            let now = procfs::memory(&self.between(child.id()));
            most = if now.rss > most.rss { now } else { most };
            std::thread::sleep(LOOK);
        };
        let seconds = began.elapsed().as_secs_f64();
        let own = meter.map_or(0.0, |meter| meter.read().0);
        let cpu = (children_us()? - before + own) / 1e6;
        let figures = vec![
            ("cpu_s", cpu),
            ("seconds", seconds),
            ("anon_mib", most.anon / MIB),
            ("pss_mib", most.pss / MIB),
            ("rss_mib", most.rss / MIB),
        ];
        Ok(sample(figures, status, true))
    }

    /// The processes that stand between. Those of a sandbox are the edge and the two inside that
    /// look after the command.
    fn between(&self, command: u32) -> Vec<u32> {
        match (&self.server, self.way) {
            (Some(server), _) => server.child.family(),
            (None, Way::Sandbox) => {
                let program = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
                let edge = program(&command);
                procfs::family(command).into_iter().filter(|pid| program(pid) == edge).collect()
            }
            (None, _) => Vec::new(),
        }
    }
}

fn sample(figures: Vec<(&'static str, f64)>, status: ExitStatus, has_read: bool) -> Sample {
    let is_good = status.success() && has_read;
    let why = || format!("{status}, signal {:?}", status.signal());
    let first_error = if is_good { None } else { Some(why()) };
    Sample { figures, errors: u64::from(!is_good), first_error }
}

/// Microseconds of CPU of the children that this process has waited for, and of theirs (proc(5)).
fn children_us() -> io::Result<f64> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let behind = text.rsplit_once(')').map_or("", |(_, behind)| behind);
    let ticks = behind.split_whitespace().skip(CHILDREN_FIELD).take(2);
    Ok(ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * TICK_US)
}

/// Squid's arguments, by its manual: one process, no cache, no log.
fn squid(lab: &Lab, (label, way): (&str, Way), address: SocketAddr) -> io::Result<Vec<OsString>> {
    let folder = lab.folder().display();
    let [certificate, key] = LabAuthority::Mint.files();
    let base = format!("{folder}/{label}");
    let (bump, rules) = match way {
        Way::SquidBump => (
            format!(
                " ssl-bump tls-cert={folder}/{certificate} tls-key={folder}/{key} \
                 generate-host-certificates=on dynamic_cert_mem_cache_size=4MB"
            ),
            format!(
                "sslcrtd_program {CERTGEN} -s {base}.certificates -M 4MB\nsslcrtd_children 2\n\
                 tls_outgoing_options cafile={folder}/{ORIGINS}\nacl step1 at_step SslBump1\n\
                 acl step2 at_step SslBump2\nssl_bump stare step1\nssl_bump stare step2\n\
                 ssl_bump bump all\n"
            ),
        ),
        _ => (String::new(), String::new()),
    };
    let text = format!(
        "http_port {address}{bump}\nhosts_file /etc/hosts\ndns_nameservers 127.0.0.1\n\
         http_access allow all\ncache deny all\ncache_mem 8 MB\naccess_log none\n\
         cache_store_log none\ncache_log {base}.log\npid_filename {base}.pid\n\
         coredump_dir {folder}\ncache_effective_user proxy\npinger_enable off\n\
         shutdown_lifetime 0 seconds\nvisible_hostname edge.test\n{rules}"
    );
    let file = format!("{base}.conf");
    std::fs::write(&file, text)?;
    let prepare = format!(
        ": >{base}.log; if [ -x {CERTGEN} ]; then {CERTGEN} -c -s {base}.certificates -M 4MB; \
         chown -R proxy {base}.certificates; fi; chown proxy {base}.log; chmod 755 {folder}"
    );
    let prepared = Command::new("sh").args(["-ec", &prepare]).output()?;
    if !prepared.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&prepared.stderr).into_owned()));
    }
    let service = format!("{}{}", label.replace('-', ""), address.port());
    let words = ["squid", "-N", "-n", &service, "-f", &file];
    Ok(words.iter().map(Into::into).collect())
}

fn mitmproxy(lab: &Lab, address: SocketAddr) -> Vec<OsString> {
    let folder = lab.folder().display();
    let words = [
        "mitmdump".to_owned(),
        "--quiet".to_owned(),
        "--listen-host".to_owned(),
        address.ip().to_string(),
        "--listen-port".to_owned(),
        address.port().to_string(),
        "--set".to_owned(),
        format!("confdir={folder}/{MITM_FOLDER}"),
        "--set".to_owned(),
        format!("ssl_verify_upstream_trusted_ca={folder}/{ORIGINS}"),
    ];
    words.into_iter().map(OsString::from).collect()
}

const FIRST: [Column; 2] = [
    Column { key: "first_ms", heading: "first byte ms", decimals: 1 },
    Column { key: "end_ms", heading: "end ms", decimals: 1 },
];

const JOB: [Column; 5] = [
    Column { key: "cpu_s", heading: "CPU-s, curl's too", decimals: 2 },
    Column { key: "seconds", heading: "s", decimals: 2 },
    Column { key: "anon_mib", heading: "anon MiB between", decimals: 1 },
    Column { key: "pss_mib", heading: "PSS MiB between", decimals: 1 },
    Column { key: "rss_mib", heading: "RSS MiB between", decimals: 1 },
];

/// Begins in the new namespace, which takes root, and runs what follows. The hosts file stays: a
/// sandbox cannot cover one that has no name any more.
const NAMESPACE: &str = "hosts=$(mktemp)
cp /etc/hosts $hosts
i=0; while [ $i -lt 100 ]; do echo 127.0.0.1 host-$i.bench.test; i=$((i + 1)); done >>$hosts
chmod 644 $hosts; mount --bind $hosts /etc/hosts
status=0; \"$@\" || status=$?; rm $hosts; exit $status";
/// Names in the hosts file of [`NAMESPACE`].
const HOSTS: usize = 100;
/// About the packages of a middling web application.
const FETCHES: usize = 2000;
/// Connections that npm opens to a host at most, by default.
const PARALLEL: &str = "15";
const LIST: &str = "allow.txt";
const LOOPBACK: &str = "127.0.0.0/8";
const MITM_FOLDER: &str = "mitmproxy";
const MITM_AUTHORITY: &str = "mitmproxy/mitmproxy-ca-cert.pem";
/// Squid's helper, in Debian's folder.
const CERTGEN: &str = "/usr/lib/squid/security_file_certgen";
const LOOK: Duration = Duration::from_millis(20);
/// The place of cutime behind the name of the process (proc(5)).
const CHILDREN_FIELD: usize = 13;
/// Microseconds of a tick: Linux' USER_HZ is 100 on every supported architecture.
const TICK_US: f64 = 1e4;
const MIB: f64 = 1024.0 * 1024.0;

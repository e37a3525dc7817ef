//! `eyelet probe`: what a TLS server does, seen from outside, and what a connection costs it. It
//! opens one connection at a time, about twenty in all, and each wait has a limit.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod certificate;
mod flight;
mod hello;
mod http;
mod listener;
mod memory;
mod name;
mod pace;
mod picture;
pub mod procfs;
mod report;
mod response;
mod scan;
mod session;
pub mod svg;
mod target;
mod two;

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args};

use picture::PictureFile;
use report::{Grade, ProbeReport};
use scan::Versions;
use session::SpokenVersions;
use target::ProbeTarget;

/// Connections of `--memory`: as few as show what a connection costs that needs 250 bytes.
const CONNECTIONS: usize = 5000;
/// The flags that measure: others say how, and are a mistake without one of these.
const MEASURES: &str = "measures";
/// Exit status for a flag or a target that is wrong.
const USAGE: u8 = 2;

/// Arguments of `eyelet probe`.
#[derive(Args, Clone, Debug)]
#[command(group(ArgGroup::new(MEASURES).args(["memory", "pid"]).multiple(true)))]
pub struct ProbeArgs {
    /// The server, such as www.example:443 or `[::1]:8443`
    #[arg(value_name = "HOST:PORT")]
    pub target: String,
    /// The name in hellos and requests, instead of HOST
    #[arg(long)]
    pub name: Option<String>,
    /// The path for the findings about HTTP, and for --get
    #[arg(long, default_value = "/", value_parser = path)]
    pub path: String,
    /// Longest wait for one answer
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60))]
    pub wait: u64,
    /// Measure what a connection costs the process that listens there, on this machine
    #[arg(long)]
    pub memory: bool,
    /// Measure as --memory, for this process and its children: for example one in a container, if
    /// its port is forwarded. If HOST is a public address, give --connections too
    #[arg(long)]
    pub pid: Option<u32>,
    /// Most connections that --memory holds, 5000 if not given: it opens them in ten steps, twice
    /// or three times
    #[arg(long, value_name = "COUNT", requires = MEASURES)]
    pub connections: Option<usize>,
    /// Most seconds for the rounds of --memory, after a warm-up
    #[arg(long, default_value_t = 120, requires = MEASURES)]
    pub seconds: u64,
    /// One GET for --path on each connection of --memory before it is idle
    #[arg(long, requires = MEASURES)]
    pub get: bool,
    /// Draw memory over connections, with --memory
    #[arg(long, value_name = "FILE", requires = MEASURES)]
    pub svg: Option<PathBuf>,
    /// Print one JSON object instead of lines
    #[arg(long)]
    pub json: bool,
}

/// A path that cannot end the request line.
fn path(text: &str) -> Result<String, String> {
    match text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err("expected a path that begins with / and has no blanks".into()),
    }
}

/// Probes a server. Exits with 0 if a TLS server answered, with 1 if none did, with 2 if the target
/// is wrong or the picture cannot be written.
pub fn run(args: &ProbeArgs, out: &mut impl Write) -> ExitCode {
    let wait = Duration::from_secs(args.wait);
    let target = match ProbeTarget::resolve(&args.target, args.name.as_deref(), wait) {
        Ok(target) => target,
        Err(error) => return mistake(error),
    };
    // A measurement takes a minute: a file that cannot be written is said before it.
    let picture = match args.svg.as_deref().map(PictureFile::open).transpose() {
        Ok(picture) => picture,
        Err(error) => return mistake(error),
    };
    match look(args, &target, picture, out) {
        Ok(true) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn mistake(why: impl fmt::Display) -> ExitCode {
    eprintln!("eyelet: {why}");
    ExitCode::from(USAGE)
}

/// Prints what it finds. Returns whether a TLS server answered.
fn look(
    args: &ProbeArgs,
    target: &ProbeTarget,
    picture: Option<PictureFile>,
    out: &mut impl Write,
) -> io::Result<bool> {
    let mut report = ProbeReport::default();
    let host = args.target.rsplit_once(':').map_or("", |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let Some(target) = &name::choose(target.clone(), host, &mut report) else {
        // It has answered, and nothing else can be found out.
        match args.json {
            true => writeln!(out, "{:#}", report.to_json(&args.target))?,
            false => report.write_lines(out)?,
        }
        return Ok(true);
    };
    let scanned = scan::scan(target, &mut report);
    if let Err(answer) = &scanned {
        report.add("tls", Grade::Bad, answer.text());
    }
    let answered = scanned.is_ok();
    let spoken = scanned.ok().and_then(|versions| outside(args, target, versions, &mut report));
    if !args.json {
        report.write_lines(out)?;
    }
    if let Some(spoken) = spoken.filter(|_| args.memory || args.pid.is_some()) {
        measure(args, target, spoken, picture, &mut report);
    }
    match args.json {
        true => writeln!(out, "{:#}", report.to_json(&args.target))?,
        false => report.write_lines(out)?,
    }
    Ok(answered)
}

/// Examines the server by handshakes and requests. `None`: no handshake is possible.
fn outside(
    args: &ProbeArgs,
    target: &ProbeTarget,
    versions: Versions,
    report: &mut ProbeReport,
) -> Option<SpokenVersions> {
    let spoken = session::look(target, versions, &args.path, report)?;
    http::look(target, spoken, &args.path, report);
    Some(spoken)
}

fn measure(
    args: &ProbeArgs,
    target: &ProbeTarget,
    spoken: SpokenVersions,
    picture: Option<PictureFile>,
    report: &mut ProbeReport,
) {
    let pid = match process(args, target.address) {
        Ok(pid) => pid,
        Err(why) => return report.unknown("memory", why),
    };
    let connections = args.connections.unwrap_or(CONNECTIONS).max(1);
    let path = args.get.then_some(&*args.path);
    let options = memory::Options { pid, connections, seconds: args.seconds, path };
    let Some(curve) = memory::measure(target, spoken, options, report) else { return };
    let Some(file) = picture else { return };
    let picture = svg::draw("Idle TLS connections", &[(args.target.clone(), curve)]);
    match file.write(&picture) {
        Ok(path) => report.add("svg", Grade::Good, path),
        Err(error) => report.unknown("svg", error),
    }
}

/// The process that is measured. Nobody opens thousands of connections to a stranger's server on
/// the internet by a mistyped name: a count says that it is meant. A machine of the own network
/// cannot be told from a container.
fn process(args: &ProbeArgs, address: SocketAddr) -> Result<u32, &'static str> {
    match args.pid {
        None => listener::process(address),
        Some(pid) if args.connections.is_some() || listener::may_be_served_here(address) => Ok(pid),
        Some(_) => Err("the address is neither this machine's nor private; \
                        say --connections to do it all the same"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        args: ProbeArgs,
    }

    fn typed(line: &str) -> Result<ProbeArgs, clap::Error> {
        CommandLine::try_parse_from(line.split(' ')).map(|line| line.args)
    }

    #[test]
    fn a_flag_of_a_measurement_needs_one() {
        for flag in ["--svg a.svg", "--get", "--connections 9", "--seconds 9"] {
            let error = typed(&format!("probe a.test:443 {flag}")).unwrap_err();
            assert_eq!(error.exit_code(), i32::from(USAGE), "{flag}");
            assert!(error.to_string().contains("--memory"), "{error}");
            for how in ["--memory", "--pid 7", "--memory --pid 7"] {
                let args = typed(&format!("probe a.test:443 {flag} {how}"));
                assert!(args.is_ok_and(|args| args.seconds > 0), "{flag} {how}");
            }
        }
        assert_eq!(typed("probe a.test:443").unwrap().seconds, 120);
    }

    /// 192.0.2.1 is for documentation (RFC 5737).
    #[test]
    fn a_strangers_server_gets_no_thousands_of_connections_by_mistake() {
        for (line, address, expected) in [
            ("probe a.test:443 --pid 7", "127.0.0.1:443", Some(7)),
            ("probe a.test:443 --pid 7", "10.0.0.2:443", Some(7)),
            ("probe a.test:443 --pid 7", "192.0.2.1:443", None),
            ("probe a.test:443 --pid 7 --memory", "192.0.2.1:443", None),
            ("probe a.test:443 --pid 7 --connections 100", "192.0.2.1:443", Some(7)),
            ("probe a.test:443 --memory --connections 100", "192.0.2.1:443", None),
        ] {
            let found = process(&typed(line).unwrap(), address.parse().unwrap());
            assert_eq!(found.ok(), expected, "{line} {address}");
        }
    }
}

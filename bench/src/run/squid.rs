//! The table of the Squid developers: robots that are redirected to Squid and to Eyelet, each as
//! SS1 (splice all), SS2 (peek at the hello, splice) and SS3 (peek at the certificate too). It runs
//! in a network namespace of its own, which `unshare` makes. `--bump` has both end TLS instead.

mod bump;
mod scene;

use std::fmt;
use std::io;
use std::process::Command;
use std::time::Duration;

use clap::Args;

use super::{CONNECTIONS, Findings, order};
use crate::board::{Board, Sample, median, range};
use crate::lab::{Lab, NAMES};
use scene::{Place, Program, REPLY_BYTES, Row, Scene, Span, Step, Visit};

/// Squid's and Eyelet's CPU and rate at each step of peeking, as shares of splicing all.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Connections open at a time; each robot opens its next when its last has ended
    #[arg(long, default_value_t = 200, value_parser = some)]
    robots: usize,
    /// Seconds a server, a kind and a round
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// Rounds; each measures every server once with each kind
    #[arg(long, default_value_t = 5, value_parser = some)]
    rounds: usize,
    /// Bumped connections instead: CPU of each, and bytes of those that rest
    #[arg(long)]
    bump: bool,
    /// Bumped connections that rest, beside the first to each origin
    #[arg(long, default_value_t = 3000, value_parser = some)]
    conns: usize,
    /// This process is in a namespace of its own already
    #[arg(long, hide = true)]
    pub inside: bool,
}

/// The command that installs a Squid that peeks.
const INSTALL: &str = "apt-get install --no-install-recommends squid-openssl nftables iproute2";
/// Most of anything that is counted. Each robot has a socket and a port.
const COUNT_MAX: usize = 20_000;
/// Most seconds of one measurement: an hour.
const SECONDS_MAX: f64 = 3600.0;

/// A number of robots, rounds or connections.
fn some(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=COUNT_MAX).contains(number));
    number.ok_or_else(|| format!("expected a number from 1 to {COUNT_MAX}"))
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| *number > 0.0 && *number <= SECONDS_MAX);
    number.ok_or_else(|| format!("expected seconds, more than 0 and at most {SECONDS_MAX}"))
}

/// Runs this program again in a new network namespace, with the same words.
///
/// # Errors
/// It cannot be made, or the run has failed.
pub fn enter() -> io::Result<()> {
    version()?;
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-ec", NAMESPACE, "sh"]).arg(std::env::current_exe()?);
    match command.args(std::env::args_os().skip(1)).arg("--inside").status()? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("in a namespace of its own: {status}"))),
    }
}

/// Runs the scenario.
pub async fn run(lab: &Lab, options: &Options) -> io::Result<Findings> {
    let mut findings = match options.bump {
        true => bump::run(lab, options.robots, options.rounds, options.conns, span(options)).await,
        false => peek(lab, options).await,
    }?;
    findings.notes.push(version()?);
    Ok(findings)
}

fn span(options: &Options) -> Span {
    Span::Time(Duration::from_secs_f64(options.seconds))
}

async fn peek(lab: &Lab, options: &Options) -> io::Result<Findings> {
    let origin = lab.start_wide_origin(REPLY_BYTES)?;
    let (scene, places) = Scene::new(lab, origin.address.port(), options.robots, &ROWS)?;
    let mut boards = VISITS.map(|visit| board(visit, options));
    let mut servers = Vec::new();
    for place in &places {
        servers.push(scene.start(place)?);
    }
    for (visit, board) in VISITS.into_iter().zip(&mut boards) {
        for place in &places {
            // What is gathered once must be there before the first round.
            scene.work(place, visit, Span::Connections(NAMES)).await;
        }
        for round in 0..options.rounds {
            for at in order(places.len(), round) {
                let place = &places[at];
                let sample = scene.measure(place, &servers[at], visit, span(options)).await;
                progress(round, visit, place.row.label, &sample);
                board.add(place.row.label, sample);
            }
        }
    }
    drop(servers);
    let notes = boards.iter().flat_map(shares).collect();
    let mut boards = Vec::from(boards);
    boards.push(cold(&scene, &places, options.rounds).await?);
    Ok(Findings { boards, notes })
}

/// One connection to each origin by a server that was just started.
async fn cold(scene: &Scene<'_>, places: &[Place], rounds: usize) -> io::Result<Board> {
    let title = format!("Cold: the first connection to each of {NAMES} origins, canned TLS");
    let mut board = Board::new(title, &CONNECTIONS);
    for round in 0..rounds.min(COLD_ROUNDS_MAX) {
        for place in places.iter().filter(|place| place.row.step == Step::Certificate) {
            let server = scene.start(place)?;
            let span = Span::Connections(NAMES);
            let sample = scene.measure(place, &server, Visit::Canned, span).await;
            progress(round, Visit::Canned, place.row.label, &sample);
            board.add(place.row.label, sample);
        }
    }
    Ok(board)
}

/// Squid's own words, if it is a Squid that peeks.
fn version() -> io::Result<String> {
    let lacks = |why: &dyn fmt::Display| io::Error::other(format!("squid: {why}; {INSTALL}"));
    let said = Command::new("squid").arg("-v").output().map_err(|why| lacks(&why))?.stdout;
    let said = String::from_utf8_lossy(&said);
    match said.contains("--with-openssl") {
        true => Ok(said.lines().next().unwrap_or_default().to_owned()),
        false => Err(lacks(&"it is built without OpenSSL, so it cannot peek")),
    }
}

/// The steps as shares of splicing all, round by round: 100 % is the speed of SS1.
fn shares(board: &Board) -> Vec<String> {
    let mut notes = Vec::new();
    for program in [Program::Squid, Program::Eyelet] {
        let label = |step| {
            let row = ROWS.iter().find(|row| row.program == program && row.step == step);
            row.map_or("", |row| row.label)
        };
        for step in [Step::Hello, Step::Certificate] {
            let share = |key: &str, is_speed: bool| {
                let (all, row) =
                    (board.figures(label(Step::Blind), key), board.figures(label(step), key));
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
                label(Step::Blind),
                share("cpu_us", false),
                share("per_second", true),
            ));
        }
    }
    notes
}

fn board(visit: Visit, options: &Options) -> Board {
    let robots = options.robots;
    Board::new(format!("{}, {robots} robots, {NAMES} origins", visit.name()), &CONNECTIONS)
}

fn progress(round: usize, visit: Visit, label: &str, sample: &Sample) {
    let cpu = sample.figures[0].1;
    eprintln!("round {} | {} | {label}: {cpu:.1} CPU-us", round + 1, visit.name());
}

const VISITS: [Visit; 2] = [Visit::Canned, Visit::Tls];

const ROWS: [Row; 6] = [
    Row { label: "squid-ss1", program: Program::Squid, step: Step::Blind },
    Row { label: "squid-ss2", program: Program::Squid, step: Step::Hello },
    Row { label: "squid-ss3", program: Program::Squid, step: Step::Certificate },
    Row { label: "eyelet-ss1", program: Program::Eyelet, step: Step::Blind },
    Row { label: "eyelet-ss2", program: Program::Eyelet, step: Step::Hello },
    Row { label: "eyelet-ss3", program: Program::Eyelet, step: Step::Certificate },
];

/// Begins in the new namespace, which takes root, and becomes what follows.
const NAMESPACE: &str = "ip link set lo up
sysctl -qw net.core.somaxconn=4096 net.ipv4.tcp_max_syn_backlog=8192
exec \"$@\"";
/// Each starts every server anew.
const COLD_ROUNDS_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_measured_is_an_error() {
        assert_eq!((some("1"), some("20000"), seconds("0.5")), (Ok(1), Ok(COUNT_MAX), Ok(0.5)));
        assert!(["0", "-1", "20001", "x", ""].iter().all(|text| some(text).is_err()));
        assert!(["0", "-1", "nan", "inf", "3601", ""].iter().all(|text| seconds(text).is_err()));
    }
}

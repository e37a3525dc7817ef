//! The cost of a connection for a server of this machine: opens idle connections in steps, in
//! rounds, and reads the server's memory and CPU time from /proc.

use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, HandshakeKind};

use crate::http::{self, OnceAnswered};
use crate::pace::{STEPS, STILL_BYTES, StepPace, settled};
use crate::procfs::{self, Cpu};
use crate::report::{Grade, ProbeReport};
use crate::session::{self, ProbeClient, SpokenVersions};
use crate::target::ProbeTarget;
use crate::two;

/// Hellos that are sent before the first handshake goes on, as when many clients come back at once.
/// Where handshakes come one by one, the heap has other holes: Node then takes 52 kB a connection
/// instead of 37 kB.
const BURST: usize = 64;
/// Descriptors that this process and the server need for other things.
const DESCRIPTORS_KEPT: usize = 100;
/// Between the last close and the reading.
const CLOSE_PAUSE: Duration = Duration::from_secs(2);
/// Most handshakes of one figure of CPU time.
const HANDSHAKES: usize = 100;
/// Growth between rounds that fragmentation explains: bytes.
const CREEP_BYTES_MIN: f64 = 512.0 * 1024.0;
/// The part of the connections' memory that a round may leave: arenas and collectors. A cache of
/// sessions keeps 600 bytes and more of each connection, which takes 14 kB in nginx.
const CREEP_PART: f64 = 0.02;
/// The part that is bad in each of three rounds. A collector that is not in a hurry leaves a fifth.
const CREEP_BAD: f64 = 0.5;
/// A slope needs growth of at least this: four times the noise of memory that stands still.
const GROWTH_BYTES_MIN: f64 = 4.0 * STILL_BYTES;
/// A figure has at most this error: 64 KiB that move by themselves, over 256 connections.
const ERROR_BYTES_MAX: f64 = 256.0;
/// The part of the connections that the server may end before they are counted. The error by these
/// is less than the difference between two runs.
const ENDED_PART_MAX: f64 = 0.01;

/// The options of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The server's process. Its children count, too.
    pub pid: u32,
    /// Most connections held at a time.
    pub connections: usize,
    /// Most seconds for the rounds. The warm-up before them has as many.
    pub seconds: u64,
    /// The path of one GET on each connection before it is idle.
    pub path: Option<&'a str>,
}

/// Bytes of anonymous memory over connections, since the warm-up.
pub type Curve = Vec<(f64, f64)>;

/// One round: the curve, kernel bytes a connection, and the bytes that remain after it.
struct Round {
    curve: Curve,
    kernel: f64,
    left: f64,
    held: usize,
    ended: usize,
    /// The connections that it should hold at its first step.
    wanted: usize,
    error: Option<io::Error>,
}

/// Measures and reports. Returns the curve of the first round.
pub fn measure(
    target: &ProbeTarget,
    spoken: SpokenVersions,
    options: Options<'_>,
    report: &mut ProbeReport,
) -> Option<Curve> {
    let family = procfs::family(options.pid);
    if procfs::memory(&family).rss == 0.0 {
        report.unknown("memory", format!("cannot read the memory of process {}", options.pid));
        return None;
    }
    let config = match session::config(spoken.version, false, &spoken.alpn()) {
        Ok(config) => config,
        Err(error) => {
            report.unknown("memory", error);
            return None;
        }
    };
    let room = Room::of(options.pid);
    let most = options.connections.min(room.connections).max(1);
    let steps: Vec<usize> = (1..=STEPS).map(|step| (most * step).div_ceil(STEPS)).collect();
    let shows = io::stderr().is_terminal();
    let probe = Probe { target, config, spoken, options, shows };
    let mut pace = StepPace::Rested;
    probe.round("warm-up", &steps[..1], 0.0, probe.deadline(), &mut pace);
    pace = pace.after_warm_up(options.seconds);
    let base = probe.anonymous();
    let deadline = probe.deadline();
    // Only the first curve is looked at. Of later rounds what they leave is.
    let mut rounds = vec![probe.round("round 1", &steps, base, deadline, &mut pace)];
    rounds.push(probe.round("round 2", &steps, base, deadline, &mut StepPace::AtOnce));
    if grows(&rounds).is_some() {
        rounds.push(probe.round("round 3", &steps, base, deadline, &mut StepPace::AtOnce));
    }
    shortfall(&rounds, (most < options.connections).then_some(room), report);
    verdicts(&rounds, report);
    probe.show("CPU time of handshakes");
    handshakes(target, spoken, options, report);
    rounds.into_iter().next().map(|round| round.curve)
}

/// Connections for which both this process and the server may have descriptors.
struct Room {
    connections: usize,
    /// The process whose limit it is.
    pid: u32,
}

impl Room {
    fn of(pid: u32) -> Self {
        let own = eyelet_sys::process::raise_descriptor_limit();
        let own = usize::try_from(own).unwrap_or(usize::MAX).saturating_sub(DESCRIPTORS_KEPT);
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
        match server_room(&limits) {
            Some(room) if room <= own => Self { connections: room, pid },
            _ => Self { connections: own, pid: std::process::id() },
        }
    }
}

/// Connections for which a server with these limits has descriptors. A proxy needs two for each.
fn server_room(limits: &str) -> Option<usize> {
    let rest = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = rest.split_whitespace().next()?.parse::<usize>().ok()?;
    Some((soft / 2).saturating_sub(DESCRIPTORS_KEPT))
}

struct Probe<'a> {
    target: &'a ProbeTarget,
    config: Arc<ClientConfig>,
    spoken: SpokenVersions,
    options: Options<'a>,
    /// A person waits at a terminal.
    shows: bool,
}

impl Probe<'_> {
    /// The end of what begins now.
    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.options.seconds)
    }

    /// The server may have begun and ended processes.
    fn anonymous(&self) -> f64 {
        procfs::memory(&procfs::family(self.options.pid)).anon
    }

    /// A line of progress. A terminal that is gone does not end the measurement.
    fn show(&self, text: &str) {
        if self.shows {
            let _ = writeln!(io::stderr(), "eyelet: {text}");
        }
    }

    /// Opens connections up to each step, closes them all, and waits.
    fn round(
        &self,
        name: &str,
        steps: &[usize],
        base: f64,
        deadline: Instant,
        pace: &mut StepPace,
    ) -> Round {
        let slab = procfs::slab_bytes();
        let (mut held, mut curve, mut error) = (Vec::new(), Vec::new(), None);
        for step in steps {
            if error.is_none() {
                error = self.open_until(*step, &mut held, deadline).err();
                self.show(&format!("{name}: {} connections", held.len()));
                let memory = pace.read(|| self.anonymous(), thread::sleep);
                curve.push((held.len() as f64, memory - base));
            }
        }
        let kernel = (procfs::slab_bytes() - slab) / held.len().max(1) as f64;
        let ended = held.iter().filter(|stream| has_ended(stream)).count();
        let held_count = held.len();
        drop(held);
        let left = settled(CLOSE_PAUSE, || self.anonymous(), thread::sleep) - base;
        // A slope needs two points.
        let wanted = steps.get(1).or(steps.first()).copied().unwrap_or_default();
        Round { curve, kernel, left, held: held_count, ended, wanted, error }
    }

    /// Opens connections in bursts until so many are held, or one fails.
    fn open_until(
        &self,
        count: usize,
        held: &mut Vec<TcpStream>,
        deadline: Instant,
    ) -> io::Result<()> {
        while held.len() < count {
            let burst = BURST.min(count - held.len());
            let begun: io::Result<Vec<ProbeClient>> =
                (0..burst).map(|_| session::begin(self.target, &self.config)).collect();
            for tls in begun? {
                if Instant::now() > deadline {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "--seconds are over"));
                }
                held.push(self.finish(tls)?);
            }
        }
        Ok(())
    }

    /// A connection after its handshake. The client's TLS state is dropped: it is idle.
    fn finish(&self, mut tls: ProbeClient) -> io::Result<TcpStream> {
        tls.sock.wait(self.target.wait);
        session::finish(&mut tls)?;
        if let Some(path) = self.options.path {
            let asked = (&*self.target.authority(), path);
            let answer = http::ask(&mut tls, asked, "identity", self.spoken, OnceAnswered::Idle)?;
            if answer.is_cut {
                // The server holds the rest: such a connection is not idle.
                return Err(io::Error::other("an answer of more than 8 MiB"));
            }
        } else if self.spoken.is_two_only {
            two::begin(&mut tls)?;
        }
        Ok(tls.sock.stream)
    }
}

fn has_ended(stream: &TcpStream) -> bool {
    let mut buffer = [0; 4096];
    if stream.set_nonblocking(true).is_err() {
        return true;
    }
    loop {
        match (&*stream).read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

impl Round {
    /// Returns the reason why its figures say nothing, if they do not.
    fn doubt(&self) -> Option<String> {
        if self.held < self.wanted.max(1) {
            return Some(format!("{} of {} connections were held", self.held, self.wanted));
        }
        let is_short = self.ended as f64 > self.held as f64 * ENDED_PART_MAX;
        is_short.then(|| format!("the server ended {} of {} early", self.ended, self.held))
    }
}

/// Reports the reason why the rounds have fewer connections than they should.
fn shortfall(rounds: &[Round], room: Option<Room>, report: &mut ProbeReport) {
    let limit = room.map(|Room { connections, pid }| {
        let whose = match pid == std::process::id() {
            true => "this process".to_owned(),
            false => format!("process {pid}"),
        };
        format!("{connections} connections at most, by the descriptor limit of {whose}")
    });
    let error = rounds.iter().find_map(|round| round.error.as_ref()).map(|error| {
        let held: Vec<String> = rounds.iter().map(|round| round.held.to_string()).collect();
        format!("{} connections: {error}", held.join(", "))
    });
    let seen: Vec<String> = limit.into_iter().chain(error).collect();
    if !seen.is_empty() {
        report.advise("rounds", Grade::Note, seen.join("; "), ADVICE_ROUNDS);
    }
}

fn verdicts(rounds: &[Round], report: &mut ProbeReport) {
    let [first, later @ ..] = rounds else { return };
    report.figure("connections", first.held as f64);
    if let Some(why) = first.doubt() {
        for name in ["memory", "kernel-memory", "creep"] {
            report.unknown(name, &why);
        }
        return;
    }
    let cost = MemoryCost::of(&first.curve);
    memory(&cost, first.held, report);
    kernel_memory(first.kernel, report);
    let ended: usize = rounds.iter().map(|round| round.ended).sum();
    if ended > 0 {
        report.add("held", Grade::Note, format!("the server ended {ended} of them early"));
    }
    match (later.iter().find_map(Round::doubt), cost) {
        (Some(why), _) => report.unknown("creep", format!("in a later round {why}")),
        (None, _) if later.iter().any(|round| round.held != first.held) => {
            report.unknown("creep", "a later round held another number of connections");
        }
        (None, Err(why)) if grows(rounds).is_none() => report.unknown("creep", why),
        (None, cost) => creep(rounds, cost.ok().map(|cost| cost.bytes), report),
    }
    let peak = first.curve.iter().map(|(_, bytes)| *bytes).fold(0.0, f64::max);
    if peak > CREEP_BYTES_MIN {
        let back = (1.0 - first.left / peak).clamp(0.0, 1.0);
        report.figure("returned", back);
        let seen = format!("{:.0} % of it came back after the close", back * 100.0);
        match back < 0.5 {
            true => report.advise("returned", Grade::Note, seen, ADVICE_RETURN),
            false => report.add("returned", Grade::Good, seen),
        }
    }
}

/// Bytes a connection, and how far they may be off where that is much.
struct MemoryCost {
    bytes: f64,
    error: Option<f64>,
}

impl MemoryCost {
    /// By the slope of a curve, or why there is none.
    fn of(curve: &[(f64, f64)]) -> Result<Self, String> {
        let ends = curve.first().zip(curve.last());
        let (held, grew) =
            ends.map_or((0.0, 0.0), |(one, other)| (other.0 - one.0, other.1 - one.1));
        let bytes = slope(curve);
        if held > 0.0 && grew >= GROWTH_BYTES_MIN && bytes > 0.0 {
            return Ok(Self { bytes, error: None });
        }
        // Memory that stands still moves by so much.
        let error = STILL_BYTES / held;
        if held > 0.0 && grew > 0.0 && error <= ERROR_BYTES_MAX && bytes > error {
            return Ok(Self { bytes, error: Some(error) });
        }
        let why = match held == 0.0 || (0.0..GROWTH_BYTES_MIN).contains(&grew) {
            true => "too few connections to tell",
            // It shrank, or went up and down.
            false => "the memory did not grow with the connections",
        };
        Err(format!("{why}: {:.0} kB more by {held:.0} more connections", grew / 1e3))
    }
}

fn memory(cost: &Result<MemoryCost, String>, held: usize, report: &mut ProbeReport) {
    let (bytes, error) = match cost {
        Ok(cost) => (cost.bytes, cost.error),
        Err(why) => return report.advise("memory", Grade::Unknown, why, ADVICE_MORE),
    };
    report.figure("bytes_a_connection", bytes);
    let mut seen = format!("{bytes:.0} bytes a connection, by {held} connections");
    if let Some(error) = error {
        report.figure("bytes_a_connection_error", error);
        seen = format!("{bytes:.0} bytes a connection, {error:.0} more or less, by {held}");
    }
    match bytes {
        ..SMALL => report.add("memory", Grade::Good, seen),
        SMALL..BUFFERS => report.advise("memory", Grade::Note, seen, ADVICE_KEEPALIVE),
        BUFFERS..CONTEXT => report.advise("memory", Grade::Bad, seen, ADVICE_BUFFERS),
        _ => report.advise("memory", Grade::Bad, seen, ADVICE_CONTEXT),
    }
}

fn kernel_memory(bytes: f64, report: &mut ProbeReport) {
    if bytes < 0.0 {
        return report.unknown("kernel-memory", "the slab shrank: something else ran");
    }
    report.figure("kernel_bytes_a_connection", bytes);
    let seen = format!("{bytes:.0} bytes a connection, both ends, if nothing else ran");
    report.add("kernel-memory", Grade::Note, seen);
}

/// Bytes that each round leaves beyond the one before it, if arenas and collectors do not explain
/// them. It is the least of the rounds, because a leak grows each time.
fn grows(rounds: &[Round]) -> Option<f64> {
    let growth = rounds.windows(2).map(|pair| pair[1].left - pair[0].left);
    let least = growth.fold(f64::INFINITY, f64::min);
    let first = rounds.first()?;
    let floor = first.held as f64 * slope(&first.curve) * CREEP_PART;
    (least.is_finite() && least > floor.max(CREEP_BYTES_MIN)).then_some(least)
}

/// Reports the memory that each round leaves beyond the one before it. The third one is made only
/// after a doubt. Without a `cost` to compare it with, none is bad.
fn creep(rounds: &[Round], cost: Option<f64>, report: &mut ProbeReport) {
    let [.., before, last] = rounds else { return };
    let growth = grows(rounds);
    let bytes = growth.unwrap_or(last.left - before.left);
    let each = bytes / last.held.max(1) as f64;
    report.figure("creep_bytes_a_connection", each);
    let more = match cost {
        Some(_) => format!("{each:.0} bytes a connection more"),
        None => format!("{:.0} kB more", bytes / 1e3),
    };
    match (growth, rounds.len()) {
        (Some(_), 3..) => {
            // Of the first round's: later ones use its memory again.
            let is_bad = cost.is_some_and(|cost| each > cost * CREEP_BAD);
            let grade = if is_bad { Grade::Bad } else { Grade::Note };
            report.advise("creep", grade, format!("each round leaves {more}"), ADVICE_CREEP);
        }
        (Some(_), _) => {
            let seen = format!("a second round leaves {more}");
            report.advise("creep", Grade::Note, seen, ADVICE_GROWTH);
        }
        (None, _) => {
            report.add("creep", Grade::Good, format!("the last round leaves {more}"));
        }
    }
}

/// The slope of the least-squares line through these points.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len().max(1) as f64;
    let mean_x = points.iter().map(|point| point.0).sum::<f64>() / count;
    let mean_y = points.iter().map(|point| point.1).sum::<f64>() / count;
    let over = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>();
    let under = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum::<f64>();
    if under > 0.0 { over / under } else { 0.0 }
}

/// CPU time of full and of resumed handshakes.
fn handshakes(
    target: &ProbeTarget,
    spoken: SpokenVersions,
    options: Options<'_>,
    report: &mut ProbeReport,
) {
    let wait = target.wait;
    let mut figure = |name, figure, resumes| match cpu(target, spoken, options, resumes) {
        Ok((micros, count)) if count > 0 => {
            report.figure(figure, micros);
            let seen = format!("{micros:.0} microseconds of CPU, accept and close included");
            report.add(name, Grade::Note, seen);
        }
        Ok(_) if resumes => {
            let why = format!("no ticket came within {} s, or it was not taken", wait.as_secs());
            report.unknown(name, why);
        }
        Ok(_) => report.unknown(name, "it resumed without a ticket"),
        Err(error) => report.unknown(name, error),
    };
    figure("full-handshake", "full_handshake_us", false);
    figure("resumed", "resumed_handshake_us", true);
}

/// Microseconds a handshake, and how many were of the wanted kind.
fn cpu(
    target: &ProbeTarget,
    spoken: SpokenVersions,
    options: Options<'_>,
    resumes: bool,
) -> io::Result<(f64, usize)> {
    let config = session::config(spoken.version, resumes, &spoken.alpn())?;
    let family = procfs::family(options.pid);
    let count = HANDSHAKES.min(options.connections);
    // Node sends tickets with its first response only. A request would be in the figure.
    if resumes && !take_tickets(target, &mut session::open(target, &config)?) {
        return Ok((0.0, 0));
    }
    let before = Cpu::of(&family);
    let mut wanted = 0;
    for _ in 0..count {
        let mut tls = session::open(target, &config)?;
        let resumed = tls.conn.handshake_kind() == Some(HandshakeKind::Resumed);
        wanted += usize::from(resumed == resumes);
        if resumes && !take_tickets(target, &mut tls) {
            return Ok((0.0, 0));
        }
    }
    let micros = Cpu::of(&family).since(before) / count as f64;
    // A tenth may fall back: a server may change its ticket keys.
    Ok((micros, if wanted * 10 > count * 9 { wanted } else { 0 }))
}

/// A TLS 1.3 server sends tickets after the handshake. Returns whether one is here.
fn take_tickets(target: &ProbeTarget, tls: &mut ProbeClient) -> bool {
    tls.sock.wait(target.wait);
    let is_13 = tls.conn.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_3);
    while is_13 && tls.conn.tls13_tickets_received() == 0 {
        let read = tls.conn.read_tls(&mut tls.sock).is_ok_and(|more| more > 0);
        if !read || tls.conn.process_new_packets().is_err() {
            return false;
        }
    }
    true
}

/// A parked connection needs less than a page.
const SMALL: f64 = 4096.0;
/// OpenSSL's buffer of 16 KiB for reads beside a state of 12 KiB: more is a sign that it is kept.
const BUFFERS: f64 = 28.0 * 1024.0;
/// No state of one connection is as large: something that could be shared is not.
const CONTEXT: f64 = 200.0 * 1024.0;

const ADVICE_MORE: &str =
    "more --connections, or a fresh server: room that earlier connections left is used again";
const ADVICE_KEEPALIVE: &str =
    "library state; a shorter keepalive_timeout, or an edge that parks, costs less";
const ADVICE_BUFFERS: &str =
    "buffers are kept: SSL_MODE_RELEASE_BUFFERS, a smaller ssl_buffer_size; threads cost stacks";
const ADVICE_CONTEXT: &str =
    "share one context (SSL_CTX, createSecureContext) with its CA store among connections";
const ADVICE_CREEP: &str =
    "a leak, or a cache without a small bound; nginx: ssl_session_cache shared, not builtin";
const ADVICE_GROWTH: &str =
    "probe again: what grows each time is a leak; a garbage collector needs some rounds";
const ADVICE_RETURN: &str =
    "the allocator keeps it: no leak while a second round does not grow; malloc_trim, jemalloc";
const ADVICE_ROUNDS: &str =
    "raise the limit by LimitNOFILE= or ulimit -n, or --seconds; or fewer --connections";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slope_leaves_out_what_grows_once() {
        let line = |fixed: f64| [200.0, 1000.0, 5000.0].map(|n| (n, fixed + 300.0 * n));
        assert!((slope(&line(0.0)) - 300.0).abs() < 1e-6);
        assert!((slope(&line(1e6)) - 300.0).abs() < 1e-6);
        assert_eq!(slope(&[]), 0.0);
    }

    /// A round without an error of `held` connections, 1,000 bytes each, that leaves so much.
    fn round(held: usize, ended: usize, left: f64) -> Round {
        let curve = vec![(held as f64 / 2.0, held as f64 * 5e2), (held as f64, held as f64 * 1e3)];
        Round { curve, kernel: 0.0, left, held, ended, wanted: 200, error: None }
    }

    fn grades(rounds: &[Round]) -> [String; 3] {
        let mut report = ProbeReport::default();
        verdicts(rounds, &mut report);
        let json = report.to_json("a.test:443");
        ["memory", "kernel-memory", "creep"].map(|name| {
            let all = json["findings"].as_array().unwrap();
            let one = all.iter().find(|one| one["name"] == name).unwrap();
            one["grade"].as_str().unwrap().to_owned()
        })
    }

    #[test]
    fn what_was_not_measured_is_unknown() {
        let two = |first: (usize, usize), second: (usize, usize)| {
            grades(&[round(first.0, first.1, 0.0), round(second.0, second.1, 0.0)])
        };
        let unknown = ["unknown", "unknown", "unknown"];
        assert_eq!(two((1000, 0), (1000, 0)), ["ok", "note", "ok"]);
        assert_eq!(two((0, 0), (1000, 0)), unknown);
        assert_eq!(two((199, 0), (1000, 0)), unknown);
        assert_eq!(two((1000, 1000), (1000, 0)), unknown);
        assert_eq!(two((1000, 0), (1000, 1000)), ["ok", "note", "unknown"]);
        assert_eq!(two((1000, 0), (150, 0)), ["ok", "note", "unknown"]);
    }

    #[test]
    fn a_short_curve_and_a_slab_that_shrinks_say_nothing() {
        let steps = |count: f64, each: f64| -> Curve {
            (1..=10).map(|step| f64::from(step) * count / 10.0).map(|n| (n, n * each)).collect()
        };
        for (curve, kernel, expected) in [
            // Eyelet's.
            (steps(5000.0, 250.0), 9e3, ["ok", "note", "ok"]),
            (steps(1000.0, 250.0), 9e3, ["ok", "note", "ok"]),
            // Less than what moves by itself.
            (steps(1000.0, 60.0), 9e3, ["unknown", "note", "unknown"]),
            (steps(60.0, 250.0), 9e3, ["unknown", "note", "unknown"]),
            (steps(60.0, 35e3), -2.0, ["bad", "unknown", "ok"]),
            // --connections 1: each step has one.
            (vec![(1.0, 4e4); 10], 9e3, ["unknown", "note", "unknown"]),
            // A collector that ran in between.
            (steps(5000.0, -250.0), 9e3, ["unknown", "note", "unknown"]),
        ] {
            let rounds =
                [0, 1].map(|_| Round { curve: curve.clone(), kernel, ..round(5000, 0, 0.0) });
            assert_eq!(grades(&rounds), expected, "{curve:?}");
        }
    }

    #[test]
    fn a_leak_is_seen_where_the_memory_does_not_grow_with_the_connections() {
        let flat = |grew: f64| vec![(500.0, 1e6), (5000.0, 1e6 + grew)];
        let few = "too few connections to tell: ";
        let no_growth = "the memory did not grow with the connections: ";
        for (curve, left, expected) in [
            (flat(1e3), [1.0, 4.0, 7.0], [few, "each round leaves 3000 kB more"]),
            (flat(-1e6), [1.0, 4.0, 7.0], [no_growth, "each round leaves 3000 kB more"]),
            (flat(-1e6), [1.0, 1.1, 1.2], [no_growth, no_growth]),
            (vec![(5000.0, -1e6); 2], [1.0, 1.1, 1.2], [few, few]),
        ] {
            let rounds =
                left.map(|left| Round { curve: curve.clone(), ..round(5000, 0, left * 1e6) });
            let mut report = ProbeReport::default();
            verdicts(&rounds, &mut report);
            let json = report.to_json("a.test:443");
            let find = |name| {
                let all = json["findings"].as_array().unwrap();
                all.iter().find(|one| one["name"] == name).unwrap()["seen"].as_str().unwrap()
            };
            for (name, expected) in ["memory", "creep"].into_iter().zip(expected) {
                assert!(find(name).starts_with(expected), "{left:?}: {json:#}");
            }
            if left[2] > 2.0 {
                assert_eq!(grades(&rounds)[2], "note", "{json:#}");
            }
        }
    }

    #[test]
    fn few_connections_have_a_figure_with_its_error() {
        let curve = (1..=10).map(|step| f64::from(step) * 100.0).map(|n| (n, n * 250.0)).collect();
        let round = Round { curve, ..round(1000, 0, 0.0) };
        let mut report = ProbeReport::default();
        verdicts(&[round], &mut report);
        let json = report.to_json("a.test:443");
        let seen = &json["findings"][0]["seen"];
        assert_eq!(seen, "250 bytes a connection, 73 more or less, by 1000");
        let error = json["figures"]["bytes_a_connection_error"].as_f64().unwrap();
        assert!((error - STILL_BYTES / 900.0).abs() < 1e-6, "{error}");
    }

    #[test]
    fn a_descriptor_limit_is_named() {
        let limits = "Max processes  9  9  processes\nMax open files  1024  4096  files\n";
        assert_eq!(server_room(limits), Some(412));
        assert_eq!(server_room("Max open files  64  64  files\n"), Some(0));
        assert_eq!(server_room("Max open files  unlimited  unlimited  files\n"), None);
        let of = |pid| Some(Room { connections: 412, pid });
        let late = Round { error: Some(io::ErrorKind::TimedOut.into()), ..round(412, 0, 0.0) };
        for (rounds, room, expected) in [
            (
                round(412, 0, 0.0),
                of(7),
                "412 connections at most, by the descriptor limit of process 7",
            ),
            (round(412, 0, 0.0), of(std::process::id()), "limit of this process"),
            (late, of(7), "process 7; 412 connections: timed out"),
        ] {
            let mut report = ProbeReport::default();
            shortfall(&[rounds], room, &mut report);
            let json = report.to_json("a.test:443");
            let seen = json["findings"][0]["seen"].as_str().unwrap();
            assert!(seen.ends_with(expected), "{seen}");
        }
    }

    #[test]
    fn creep_is_what_each_round_leaves() {
        let rounds = |left: &[f64]| -> Vec<Round> {
            left.iter().map(|left| round(5000, 0, left * 1e6)).collect()
        };
        for (left, creep) in [
            (&[1.0, 1.1][..], "ok"),
            (&[1.0, 3.0], "note"),
            (&[1.0, 3.0, 3.1], "ok"),
            (&[1.0, 3.0, 2.0], "ok"),
            (&[1.0, 4.0, 7.0], "bad"),
            (&[1.0, 4.0, 5.0], "note"),
        ] {
            assert_eq!(grades(&rounds(left))[2], creep, "{left:?}");
        }
    }
}

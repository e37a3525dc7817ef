//! The memory of a process, as the kernel counts it: at an instant, at rest, at its peak.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Bytes of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident: VmRSS in /proc/PID/status.
    pub resident: u64,
    /// The most that was ever resident: VmHWM.
    pub resident_peak: u64,
    /// Resident and of no file: Anonymous in /proc/PID/smaps_rollup.
    pub anonymous: u64,
}

impl Memory {
    pub fn of(pid: Pid) -> Self {
        let status = status(pid);
        let rollup = format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero());
        let rollup = std::fs::read_to_string(rollup).unwrap();
        Self {
            resident: field(&status, "VmRSS:"),
            resident_peak: field(&status, "VmHWM:"),
            anonymous: field(&rollup, "Anonymous:"),
        }
    }

    /// Anonymous bytes of mappings that are no file's: heaps, stacks, tables.
    pub fn without_files(pid: Pid) -> u64 {
        let smaps = format!("/proc/{}/smaps", pid.as_raw_nonzero());
        let smaps = std::fs::read_to_string(smaps).unwrap();
        let (mut is_of_a_file, mut bytes) = (false, 0);
        for line in smaps.lines() {
            let first = line.split(' ').next().unwrap();
            if !first.ends_with(':') {
                is_of_a_file = line.contains('/');
            } else if first == "Anonymous:" && !is_of_a_file {
                bytes += field(line, "Anonymous:");
            }
        }
        bytes
    }

    /// Once the anonymous bytes have stood still for a second and a half: deadlines that settle
    /// connections and give memory back are over by then.
    pub fn at_rest(pid: Pid) -> Self {
        let (began, mut since) = (Instant::now(), Instant::now());
        let mut seen = Self::of(pid);
        while since.elapsed() < Duration::from_millis(1500) && began.elapsed() < super::SOON {
            thread::sleep(Duration::from_millis(100));
            let now = Self::of(pid);
            if now.anonymous != seen.anonymous {
                (seen, since) = (now, Instant::now());
            }
        }
        seen
    }
}

/// Reads the counts that the kernel keeps. For the exact ones of `smaps_rollup` it walks all pages.
/// That takes up to a millisecond, in which the process cannot map any.
fn status(pid: Pid) -> String {
    std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap()
}

/// In MiB, for messages.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// The share of `memory_max` that the edge gives out is 5/8: the rest is for what is not counted,
/// holes in the heap above all. So anonymous memory may be 8/5 of what is counted.
const SLACK: (u64, u64) = (8, 5);
/// The bytes that each worker touches for the first time in a flood: buffers of half a megabyte,
/// tables of libraries, the heap's own.
const FIRST_USE_BYTES: u64 = 1 << 20;

/// The most that an edge has counted at any time, as it says by SIGUSR1.
fn counted_most(log: &str) -> u64 {
    let lines = log.lines().filter_map(|line| line.split_once(" bytes counted, peak "));
    let counted = lines.map(|(_, peak)| peak.split(':').next().unwrap().parse().unwrap());
    counted.max().unwrap_or_else(|| panic!("no accounts in the log:\n{log}"))
}

/// Asserts that an edge has never counted more than its budget.
#[track_caller]
pub fn stays_in_budget(log: &str) {
    let most =
        log.lines().find_map(|line| line.split_once(" bytes counted, ")?.0.rsplit(' ').next());
    let most: u64 =
        most.unwrap_or_else(|| panic!("no accounts in the log:\n{log}")).parse().unwrap();
    let counted = counted_most(log);
    assert!(counted <= most, "{counted} bytes of {most} are counted: {}", fullest(log));
}

/// The fullest of the lines with the accounts.
fn fullest(log: &str) -> &str {
    let counted = |line: &&str| -> Option<u64> {
        line.split_once("bytes resident; ")?.1.split(' ').next()?.parse().ok()
    };
    log.lines().max_by_key(counted).unwrap_or_default()
}

/// Asserts that what a flood has made an edge allocate is counted: otherwise nothing would bound
/// it. `base` are the anonymous bytes before the flood, and `most` those at its height. Each of
/// the two peaks is the highest at any time, so it does not matter that they are not looked at in
/// the same moment.
#[track_caller]
pub fn is_counted(label: &str, log: &str, base: u64, most: u64) {
    let (counted, workers) = (counted_most(log), thread::available_parallelism().unwrap().get());
    let bound = counted / SLACK.1 * SLACK.0 + FIRST_USE_BYTES * workers as u64;
    let grown = most.saturating_sub(base);
    eprintln!("{label}: grew by {:.1} MiB, {:.1} counted", mib(grown), mib(counted));
    assert!(
        grown <= bound,
        "{label}: grew by {:.1} MiB, which is more than the {:.1} MiB counted explain: {}",
        mib(grown),
        mib(counted),
        fullest(log),
    );
}

/// Looks at a process all the time and keeps the most that it saw. Each second time it has an edge
/// say what it counts.
pub struct Watch {
    /// Anonymous bytes at the beginning.
    pub base: u64,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Memory>>,
}

impl Watch {
    pub fn start(pid: Pid) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let base = Memory::of(pid).anonymous;
        let thread = thread::spawn(move || {
            let mut most = Memory::default();
            for look in 0.. {
                if look % 2 == 0 {
                    rustix::process::kill_process(pid, Signal::USR1).unwrap();
                }
                let status = status(pid);
                most.resident = most.resident.max(field(&status, "VmRSS:"));
                most.resident_peak = field(&status, "VmHWM:");
                most.anonymous = most.anonymous.max(field(&status, "RssAnon:"));
                // Not before the first look: a flood may be over before this thread runs.
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
            most
        });
        Self { base, stop, thread: Some(thread) }
    }

    pub fn finish(mut self) -> Memory {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Watch {
    /// The process may end as soon as this returns: nobody looks at it any more.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

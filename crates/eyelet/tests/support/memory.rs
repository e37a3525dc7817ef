//! What a process holds in memory, as the kernel counts it: at an instant, at rest, at its peak.
//! Must not know what the process does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::Pid;

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
        let pid = pid.as_raw_nonzero();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        Self {
            resident: field(&status, "VmRSS:"),
            resident_peak: field(&status, "VmHWM:"),
            anonymous: field(&rollup, "Anonymous:"),
        }
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

/// In MiB, for messages.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Looks at a process all the time and keeps the most that it saw.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Memory>>,
}

impl Watch {
    pub fn start(pid: Pid) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut most = Memory::default();
            while !stopped.load(Ordering::Relaxed) {
                let now = Memory::of(pid);
                most.resident = most.resident.max(now.resident);
                most.resident_peak = now.resident_peak;
                most.anonymous = most.anonymous.max(now.anonymous);
                thread::sleep(Duration::from_millis(20));
            }
            most
        });
        Self { stop, thread: Some(thread) }
    }

    pub fn finish(mut self) -> Memory {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

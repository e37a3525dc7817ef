//! Figures of the kernel: CPU time and memory of a process tree, and the machine's slab.

use std::fs;

pub use eyelet_child::family;

/// Memory of a process tree, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// Resident bytes; shared pages count in each process.
    pub rss: f64,
    /// Resident bytes; a page shared by n processes counts 1/n in each.
    pub pss: f64,
    /// Anonymous bytes: heap and stacks, without files.
    pub anon: f64,
}

/// CPU time of processes, by two accounts of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    /// The time of live threads, from schedstat, in nanoseconds. A thread's time is lost when it
    /// ends.
    live_us: f64,
    /// The time of all threads, ended ones included, from utime and stime, in ticks of 10 ms.
    ticks_us: f64,
}

impl Cpu {
    /// The CPU time of these processes until now.
    pub fn of(processes: &[u32]) -> Self {
        let live_us = processes.iter().map(|pid| live_us(*pid)).sum();
        let ticks_us = processes.iter().filter_map(|pid| ticks_us(*pid)).sum();
        Self { live_us, ticks_us }
    }

    /// Microseconds since an earlier reading. It uses the fine account, unless the coarse one is
    /// clearly higher because threads have ended.
    pub fn since(self, earlier: Self) -> f64 {
        let live = self.live_us - earlier.live_us;
        let ticks = self.ticks_us - earlier.ticks_us;
        if ticks > live * 1.05 + TICKS_DOUBT_US { ticks } else { live }
    }
}

fn live_us(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let ran_ns = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    ran_ns.sum::<f64>() / 1e3
}

/// utime and stime are the 12th and 13th words after the command's name.
fn ticks_us(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind) = text.rsplit_once(')')?;
    let mut words = behind.split_whitespace().skip(11);
    let user: f64 = words.next()?.parse().ok()?;
    let system: f64 = words.next()?.parse().ok()?;
    Some((user + system) * TICK_US)
}

/// Memory of these processes, summed.
pub fn memory(processes: &[u32]) -> Memory {
    let mut sum = Memory::default();
    for pid in processes {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        sum.rss += field_bytes(&rollup, "Rss:");
        sum.pss += field_bytes(&rollup, "Pss:");
        sum.anon += field_bytes(&rollup, "Anonymous:");
    }
    sum
}

/// The machine's slab: sockets, epoll items, pipes. All processes share it, so it drifts with other
/// work.
pub fn slab_bytes() -> f64 {
    field_bytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "Slab:")
}

/// The value of a line such as `Pss:     1234 kB`, in bytes; 0 if there is no such line.
pub fn field_bytes(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) * 1024.0
}

/// Microseconds of a tick: Linux' USER_HZ is 100 on every supported architecture.
const TICK_US: f64 = 1e4;
/// The error of two figures of two processes, each up to a tick.
const TICKS_DOUBT_US: f64 = 4e4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_bytes() {
        let rollup = "Rss:  4 kB\nPss:  3 kB\nPss_Dirty:  1 kB\nAnonymous:  2 kB\n";
        assert_eq!(field_bytes(rollup, "Pss:"), 3072.0);
        assert_eq!(field_bytes(rollup, "Anonymous:"), 2048.0);
        assert_eq!(field_bytes(rollup, "Swap:"), 0.0);
    }

    #[test]
    fn a_process_is_its_own_family_and_has_run() {
        let me = std::process::id();
        let family = family(me);
        assert!(family.contains(&me));
        assert!(Cpu::of(&family).since(Cpu::default()) > 0.0);
        assert!(memory(&family).rss > 0.0);
    }

    #[test]
    fn threads_that_ended_are_not_lost() {
        let cpu = |live_us, ticks_us| Cpu { live_us, ticks_us };
        assert_eq!(cpu(500_000.0, 510_000.0).since(Cpu::default()), 500_000.0);
        assert_eq!(cpu(10_000.0, 510_000.0).since(Cpu::default()), 510_000.0);
    }
}

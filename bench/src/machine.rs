//! The kernel's facts about the machine that a run is on.

use std::fs;

use eyelet_probe::procfs::field_bytes;

/// The machine's available memory.
pub fn available_bytes() -> f64 {
    field_bytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemAvailable:")
}

/// The load average of the last minute: how busy other processes keep the machine.
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|one| one.parse().ok()).unwrap_or(0.0)
}

/// The machine's cores, whatever this process is pinned to.
pub fn cores() -> usize {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines().filter(|line| line.starts_with("processor")).count()
}

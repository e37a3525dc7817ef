//! The memory of TLS: what the process needs more than at its start, and for how many connections.

use std::fs;

use eyelet_telemetry::counters;

/// The process's anonymous memory at its start.
pub(super) struct Memory {
    base: u64,
}

impl Memory {
    pub(super) fn at_start() -> Self {
        Self { base: anonymous() }
    }

    /// One line.
    pub(super) fn report(&self) -> String {
        let now = counters::snapshot();
        let all = anonymous();
        let more = all.saturating_sub(self.base) >> 10;
        let each = now.parked_bytes.checked_div(now.parked);
        let parked = each.map_or(String::new(), |each| {
            format!(", {} of them parked with {each} bytes each", now.parked)
        });
        let memory = match all {
            0 => "unknown without /proc".to_owned(),
            all => format!("{more} KiB more than at the start, {} KiB in all", all >> 10),
        };
        format!("memory of TLS: {memory}; connections: {}{parked}", now.connections)
    }
}

/// Anonymous memory of this process in bytes (proc(5)). 0 if the system does not tell.
fn anonymous() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

//! The memory of TLS: what the process needs more than at its start, and for how many connections.

use eyelet_sys::memory::anonymous_bytes;
use eyelet_telemetry::counters;

/// The process's anonymous memory at its start.
pub(super) struct Memory {
    base: usize,
}

impl Memory {
    pub(super) fn at_start() -> Self {
        Self { base: anonymous_bytes() }
    }

    /// One line.
    pub(super) fn report(&self) -> String {
        let now = counters::snapshot();
        let all = anonymous_bytes();
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

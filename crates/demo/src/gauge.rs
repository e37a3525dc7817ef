//! The memory gauge: the anonymous memory of the process that serves.

use std::fs;

/// Anonymous bytes of this process: heap and stacks, without files (proc_pid_smaps(5)). 0 if the
/// system does not tell.
pub(crate) fn anonymous_bytes() -> u64 {
    bytes_of(&fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default())
}

fn bytes_of(rollup: &str) -> u64 {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_read_in_bytes() {
        assert_eq!(bytes_of("Rss:  9 kB\nAnonymous:      2 kB\nLazyFree:  0 kB\n"), 2048);
        assert_eq!(bytes_of(""), 0);
        assert!(anonymous_bytes() > 100_000);
    }
}

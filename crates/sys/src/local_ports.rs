//! The local ports that the kernel gives to sockets which connect.

use std::fs;
use std::ops::RangeInclusive;

/// The number of local ports for one source and one destination (ip(7), `ip_local_port_range`),
/// without those that are reserved. `None`: the kernel cannot be asked.
pub fn local_ports() -> Option<usize> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let reserved = fs::read_to_string("/proc/sys/net/ipv4/ip_local_reserved_ports").ok()?;
    count(&range, &reserved)
}

fn count(range: &str, reserved: &str) -> Option<usize> {
    let mut ends = range.split_whitespace().map(str::parse::<u16>);
    let range = ends.next()?.ok()?..=ends.next()?.ok()?;
    let mut all = size(&range);
    for part in reserved.trim().split(',').filter(|part| !part.is_empty()) {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high) = (low.trim().parse::<u16>().ok()?, high.trim().parse::<u16>().ok()?);
        all -= size(&(low.max(*range.start())..=high.min(*range.end()))).min(all);
    }
    Some(all)
}

fn size(range: &RangeInclusive<u16>) -> usize {
    (usize::from(*range.end()) + 1).saturating_sub(range.start().to_owned().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_no_local_ports() {
        for (range, reserved, expected) in [
            ("32768\t60999\n", "\n", Some(28_232)),
            ("1024 2023\n", "", Some(1_000)),
            ("1024 2023\n", "80,1024,1030-1039,2020-3000\n", Some(985)),
            ("1024 65535\n", "1024-65535\n", Some(0)),
            ("1024\n", "", None),
            ("", "", None),
            ("a b\n", "", None),
            ("1024 2023\n", "x\n", None),
            ("1024 99999\n", "", None),
        ] {
            assert_eq!(count(range, reserved), expected, "{range:?} {reserved:?}");
        }
        assert!(local_ports().is_some_and(|ports| ports > 0));
    }
}

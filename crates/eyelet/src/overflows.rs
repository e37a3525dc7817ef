//! Connections that the kernel turned away before anybody could accept them.
//! It must not know why accepting was slow.

use std::fs;

/// Where Linux counts, for the network namespace: a line of names, then a line of numbers.
const NETSTAT: &str = "/proc/net/netstat";

/// Watches the kernel's count of full listen queues.
#[derive(Debug)]
pub struct Overflows {
    known: Option<u64>,
    seen: u64,
}

impl Overflows {
    /// Counts from now on.
    pub fn new() -> Self {
        Self { known: read(), seen: 0 }
    }

    /// Logs what came since the last look. A system that does not tell is never warned of.
    pub fn look(&mut self) {
        let now = read();
        if let (Some(known), Some(now)) = (self.known, now)
            && now > known
        {
            let new = now - known;
            self.seen += new;
            tracing::warn!(
                "the kernel dropped {new} connections ({} since the start): a listen queue was \
                 full (net.core.somaxconn, or accepting paused)",
                self.seen
            );
        }
        self.known = now;
    }

    /// How many since the start.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

impl Default for Overflows {
    fn default() -> Self {
        Self::new()
    }
}

fn read() -> Option<u64> {
    parse(&fs::read_to_string(NETSTAT).ok()?)
}

fn parse(netstat: &str) -> Option<u64> {
    let mut lines = netstat.lines();
    let names = lines.find(|line| line.starts_with("TcpExt:"))?.split_ascii_whitespace();
    let at = names.into_iter().position(|name| name == "ListenOverflows")?;
    lines.next()?.split_ascii_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_under_the_name_is_read() {
        let text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\n\
                    TcpExt: 1 22 333\nIpExt: A\nIpExt: 4\n";
        assert_eq!(parse(text), Some(22));
        assert_eq!(parse("IpExt: A\nIpExt: 4\n"), None);
        assert_eq!(parse("TcpExt: ListenOverflows\n"), None);
    }
}

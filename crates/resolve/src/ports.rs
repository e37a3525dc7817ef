//! Remembers for a moment for which upstreams no local port was left. The kernel looks at each of
//! 28,000 ports before it says so, which takes it a millisecond and more.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use eyelet_sys::Errno;

/// The time for which a worker does not ask the kernel again.
const REMEMBERED: Duration = Duration::from_millis(10);
/// Shortages that a worker remembers.
const SHORTAGES_MAX: usize = 16;

/// The source address of a connect, if it was chosen, and the upstream.
pub type Ends = (Option<IpAddr>, SocketAddr);

/// The last connects of a worker that found no local port.
#[derive(Default)]
pub struct PortShortages(RefCell<VecDeque<(Ends, Instant)>>);

impl PortShortages {
    /// True if a connect between these ends has just found no local port.
    pub fn is_remembered(&self, ends: Ends) -> bool {
        let mut last = self.0.borrow_mut();
        while last.front().is_some_and(|(_, at)| at.elapsed() >= REMEMBERED) {
            last.pop_front();
        }
        last.iter().any(|(of, _)| *of == ends)
    }

    /// Notes a connect between these ends that found no local port.
    pub fn note(&self, ends: Ends) {
        let mut last = self.0.borrow_mut();
        if last.len() >= SHORTAGES_MAX {
            last.pop_front();
        }
        last.push_back((ends, Instant::now()));
    }
}

/// True if a connect failed because no local port is left, or no address of this host suits it.
pub fn is_no_port(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::ADDRNOTAVAIL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_remembered_for_its_ends_and_for_a_moment() {
        let shortages = PortShortages::default();
        let ends = |last, port| (None, SocketAddr::from(([192, 0, 2, last], port)));
        assert!(!shortages.is_remembered(ends(1, 443)));
        shortages.note(ends(1, 443));
        assert!(shortages.is_remembered(ends(1, 443)));
        assert!(!shortages.is_remembered(ends(1, 8443)), "another upstream");
        let from = (Some([192, 0, 2, 9].into()), ends(1, 443).1);
        assert!(!shortages.is_remembered(from), "another source");
        for last in 2..=255 {
            shortages.note(ends(last, 443));
        }
        assert!(shortages.0.borrow().len() <= SHORTAGES_MAX);
        for (_, at) in shortages.0.borrow_mut().iter_mut() {
            *at -= REMEMBERED;
        }
        assert!(!shortages.is_remembered(ends(255, 443)), "later");
    }
}

//! Says that no local port is left for an upstream: once, and again when there was one meanwhile.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Upstreams whose shortage is said at a time.
const SHORTAGES_MAX: usize = 16;
/// A shortage is said once for an upstream, and again when there was none for so long.
const QUIET: Duration = Duration::from_mins(1);

/// The upstreams whose shortage was said, in all workers, and when it was met last.
static SAID: Mutex<SaidShortages> = Mutex::new(SaidShortages(Vec::new()));

/// Logs that no local port is left for an upstream, and what to do, unless that was said.
pub fn say(upstream: SocketAddr, now: Instant, why: &dyn fmt::Display) {
    if SAID.lock().is_new(upstream, now) {
        tracing::warn!("no local port: {why}");
    }
}

/// The upstreams whose shortage was said.
struct SaidShortages(Vec<(SocketAddr, Instant)>);

impl SaidShortages {
    /// True if this shortage should be said. Of very many upstreams the first are named.
    fn is_new(&mut self, upstream: SocketAddr, now: Instant) -> bool {
        self.0.retain(|(_, last)| now.saturating_duration_since(*last) < QUIET);
        if let Some((_, last)) = self.0.iter_mut().find(|(of, _)| *of == upstream) {
            *last = now;
            return false;
        }
        let has_room = self.0.len() < SHORTAGES_MAX;
        if has_room {
            self.0.push((upstream, now));
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_said_once_and_again_after_a_minute_without() {
        let mut said = SaidShortages(Vec::new());
        let of = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let begin = Instant::now();
        let met = |said: &mut SaidShortages, port, secs| {
            said.is_new(of(port), begin + Duration::from_secs(secs))
        };
        assert!(met(&mut said, 443, 0));
        assert!(met(&mut said, 8443, 0), "another upstream");
        assert!((1..300).all(|secs| !met(&mut said, 443, secs)), "it lasts");
        assert!(met(&mut said, 8443, 300) && met(&mut said, 443, 359));
        let crowd = (1..400).filter(|port| met(&mut said, *port, 360));
        assert!(crowd.count() < SHORTAGES_MAX);
        assert!(said.0.len() <= SHORTAGES_MAX);
    }
}

//! Rates of handshakes, for the process and for each source: token buckets of fixed size, which all
//! workers share. Nothing is kept per source.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use eyelet_telemetry::reason::RateLimit;
use eyelet_wire::local_peer::host_of;

/// Rows of buckets. A source has one in each row, and is judged by the fuller of them: others
/// empty its bucket only if they hash to both.
const ROWS: usize = 2;
/// Buckets a row, 64 KiB in all. With 50 sources over their rate, one in 6,700 others shares both
/// buckets with some of them.
const CELLS: usize = 4_096;
/// A bucket holds the tokens of a second, at least one.
const FULL_NS: u64 = Duration::from_secs(1).as_nanos() as u64;

/// Between two lines of the log on one rate.
const SAID_NS: u64 = Duration::from_mins(1).as_nanos() as u64;

/// Handshakes a second. `None`: as many as there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeRates {
    /// The rate of the process.
    pub process: Option<NonZeroU32>,
    /// The rate of one source: an IPv4 address, or an IPv6 /64.
    pub source: Option<NonZeroU32>,
}

/// The buckets. Each is the time at which it will be full (the "theoretical arrival time" of the
/// generic cell rate algorithm), in nanoseconds of the steady clock.
#[derive(Debug)]
pub struct HandshakeBuckets {
    process: AtomicU64,
    /// Made for the first handshake that is counted by its source: most processes need none.
    sources: OnceLock<Box<[[AtomicU64; CELLS]; ROWS]>>,
    /// Keyed: clients choose their addresses.
    hasher: RandomState,
    /// The times at which the log said last that the rate of the process was reached, and that of a
    /// source. 0: never.
    said_ns: [AtomicU64; 2],
}

impl Default for HandshakeBuckets {
    fn default() -> Self {
        let (process, sources) = (AtomicU64::new(0), OnceLock::new());
        Self { process, sources, hasher: RandomState::new(), said_ns: Default::default() }
    }
}

impl HandshakeBuckets {
    /// Takes a token for a handshake of this client, of the source and of the process. Where the
    /// process has none, the source keeps its own: it has done nothing wrong.
    ///
    /// # Errors
    /// Which of the two has none.
    pub fn take(&self, rates: HandshakeRates, ip: IpAddr, now_ns: u64) -> Result<(), RateLimit> {
        let process = rates.process.map(|rate| (rate, self.process.load(Relaxed)));
        if process.is_some_and(|(rate, full_at)| !has_token(rate, full_at, now_ns)) {
            return Err(RateLimit::Process);
        }
        if let Some(rate) = rates.source {
            let cells = self.cells(ip);
            let earliest = cells.each_ref().map(|cell| cell.load(Relaxed)).into_iter().min();
            let full_at = earliest.unwrap_or(0);
            if !has_token(rate, full_at, now_ns) {
                return Err(RateLimit::Source);
            }
            // A conservative update: a bucket that others have emptied further stays as it is.
            let next = full_at.max(now_ns).saturating_add(token_ns(rate));
            cells.iter().for_each(|cell| _ = cell.fetch_max(next, Relaxed));
        }
        if let Some(rate) = rates.process {
            // Workers that come here at once each take a token.
            let take = |full_at: u64| Some(full_at.max(now_ns).saturating_add(token_ns(rate)));
            let _ = self.process.fetch_update(Relaxed, Relaxed, take);
        }
        Ok(())
    }

    /// True if the source of this client has no token now. Takes none.
    pub fn is_spent(&self, rates: HandshakeRates, ip: IpAddr, now_ns: u64) -> bool {
        rates.source.is_some_and(|rate| {
            let full_at = self.cells(ip).map(|cell| cell.load(Relaxed)).into_iter().min();
            !has_token(rate, full_at.unwrap_or(0), now_ns)
        })
    }

    /// True if the log is to say that this rate is reached: once a minute at most.
    pub fn is_news(&self, rate: RateLimit, now_ns: u64) -> bool {
        let said = &self.said_ns[usize::from(rate == RateLimit::Source)];
        let last = said.load(Relaxed);
        (last == 0 || now_ns.saturating_sub(last) >= SAID_NS)
            && said.compare_exchange(last, now_ns.max(1), Relaxed, Relaxed).is_ok()
    }

    fn cells(&self, ip: IpAddr) -> [&AtomicU64; ROWS] {
        let hash = self.hasher.hash_one(host_of(ip));
        let row = || [const { AtomicU64::new(0) }; CELLS];
        let [one, other] = &**self.sources.get_or_init(|| Box::new([row(), row()]));
        [&one[hash as usize % CELLS], &other[(hash >> 32) as usize % CELLS]]
    }
}

/// True if a bucket that will be full then has a token now.
fn has_token(rate: NonZeroU32, full_at: u64, now_ns: u64) -> bool {
    full_at.max(now_ns) + token_ns(rate) <= now_ns + FULL_NS
}

/// The time in which a token comes.
fn token_ns(rate: NonZeroU32) -> u64 {
    (FULL_NS / u64::from(rate.get())).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some time after the clock began.
    const NOW: u64 = 1_000 * FULL_NS;

    fn rates(process: u32, source: u32) -> HandshakeRates {
        HandshakeRates { process: NonZeroU32::new(process), source: NonZeroU32::new(source) }
    }

    fn ip(n: u32) -> IpAddr {
        u32::to_be_bytes(0x0a00_0000 + n).into()
    }

    #[test]
    fn a_second_brings_the_tokens_of_a_second() {
        let buckets = HandshakeBuckets::default();
        let rates = rates(0, 10);
        let taken =
            |now_ns| (0..100).filter(|_| buckets.take(rates, ip(1), now_ns).is_ok()).count();
        assert_eq!(taken(NOW), 10, "it is full at first");
        assert!(buckets.is_spent(rates, ip(1), NOW) && !buckets.is_spent(rates, ip(2), NOW));
        assert_eq!(taken(NOW + FULL_NS / 2), 5);
        assert_eq!(taken(NOW + FULL_NS / 2 + FULL_NS), 10);
        assert_eq!(taken(NOW + 100 * FULL_NS), 10, "it holds no more than a second's");
        assert_eq!(buckets.take(rates, ip(1), NOW + 100 * FULL_NS), Err(RateLimit::Source));
        // A worker that read the clock before others takes no token, and gets none.
        assert_eq!(taken(NOW), 0);
        assert_eq!((0..20).filter(|_| buckets.take(rates, ip(3), NOW).is_ok()).count(), 10);
    }

    #[test]
    fn one_address_and_one_network_of_64_bits_are_a_source() {
        let buckets = HandshakeBuckets::default();
        let one = rates(0, 1);
        let take = |ip: &str| ip.parse().is_ok_and(|ip| buckets.take(one, ip, NOW).is_ok());
        assert!(
            take("2001:db8:0:1::1") && !take("2001:db8:0:1:ffff::2") && take("2001:db8:0:2::1")
        );
        assert!(take("192.0.2.1") && !take("::ffff:192.0.2.1") && take("192.0.2.2"));
    }

    #[test]
    fn the_process_has_its_own_and_a_source_pays_for_no_refusal_of_it() {
        let buckets = HandshakeBuckets::default();
        let both = rates(3, 2);
        let all: Vec<_> = (0..5).map(|n| buckets.take(both, ip(n), NOW)).collect();
        assert_eq!(all[..3], [Ok(()); 3]);
        assert_eq!(all[3..], [Err(RateLimit::Process); 2]);
        assert!(!buckets.is_spent(both, ip(4), NOW));
        let later = NOW + FULL_NS;
        assert_eq!(buckets.take(both, ip(4), later), Ok(()));
        assert_eq!(buckets.take(both, ip(4), later), Ok(()));
        assert_eq!(buckets.take(both, ip(4), later), Err(RateLimit::Source));
        assert_eq!(buckets.take(HandshakeRates::default(), ip(4), later), Ok(()));
    }

    #[test]
    fn few_others_are_refused_with_those_over_their_rate() {
        let buckets = HandshakeBuckets::default();
        let ten = rates(0, 10);
        for n in 0..50 {
            (0..20).for_each(|_| _ = buckets.take(ten, ip(n), NOW));
        }
        let refused = (1_000..11_000).filter(|n| buckets.is_spent(ten, ip(*n), NOW)).count();
        assert!(refused < 20, "{refused} of 10,000");
    }
}

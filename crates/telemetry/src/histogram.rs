//! Histograms of durations with fixed buckets. One worker writes one; sums are made on request.

use crate::cell::Cell;

/// The upper bounds of the buckets, in microseconds: three in each decade, so that a quantile that
/// is read from them is off by a factor of 2.5 at most. They begin where a connection on the same
/// machine is made (100 µs) and end with the default `connect_timeout` and `hello_timeout` (10 s).
pub const BOUNDS_US: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// The number of bounds below the least number of so many bits: from there on one comparison finds
/// the bucket, because a bound is at least twice the one before.
const BELOW: [u8; 65] = {
    let (mut below, mut bits) = ([0; 65], 1);
    while bits < below.len() {
        let (least, mut bound) = (1 << (bits - 1), 0);
        while bound < BOUNDS_US.len() && BOUNDS_US[bound] < least {
            bound += 1;
        }
        below[bits] = bound as u8;
        bits += 1;
    }
    below
};

/// One for each bound, and one for what is longer than all.
const BUCKETS: usize = BOUNDS_US.len() + 1;

/// The cells of one worker. Only that worker writes them.
#[derive(Debug, Default)]
pub struct Histogram {
    /// The number of durations in each bucket, and in no bucket below it.
    buckets: [Cell; BUCKETS],
    sum_us: Cell,
}

/// The counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistogramValues {
    /// The number of durations in each bucket, and in no bucket below it.
    pub buckets: [u64; BUCKETS],
    /// The sum of all durations, in microseconds.
    pub sum_us: u64,
}

impl Histogram {
    /// Counts a duration.
    #[inline]
    pub fn observe_ns(&self, ns: u64) {
        let us = ns / 1_000;
        if let Some(cell) = self.buckets.get(bucket(us)) {
            cell.up();
        }
        self.sum_us.add(us);
    }

    /// Counts what is 0 s: nothing was waited for.
    #[inline]
    pub fn observe_none(&self) {
        self.buckets[0].up();
    }

    /// Adds what was counted here.
    pub(crate) fn add_to(&self, sum: &mut HistogramValues) {
        for (sum, cell) in sum.buckets.iter_mut().zip(&self.buckets) {
            *sum = sum.wrapping_add(cell.value());
        }
        sum.sum_us = sum.sum_us.wrapping_add(self.sum_us.value());
    }
}

/// Returns the number of bounds below `us`.
#[inline]
fn bucket(us: u64) -> usize {
    let bits = u64::BITS - us.leading_zeros();
    let below = usize::from(BELOW.get(bits as usize).copied().unwrap_or(0));
    below + usize::from(BOUNDS_US.get(below).is_some_and(|bound| *bound < us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_is_that_of_a_search() {
        let powers = (0..u64::BITS).map(|bits| 1 << bits);
        for near in powers.chain(BOUNDS_US).chain([0, u64::MAX]) {
            for us in [near.saturating_sub(1), near, near.saturating_add(1)] {
                let searched = BOUNDS_US.partition_point(|bound| *bound < us);
                assert_eq!(bucket(us), searched, "{us}");
            }
        }
    }

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let histogram = Histogram::default();
        histogram.observe_none();
        for us in [100, 101, 10_000_000, 10_000_001] {
            histogram.observe_ns(us * 1_000);
        }
        let mut sum = HistogramValues::default();
        histogram.add_to(&mut sum);
        histogram.add_to(&mut sum);
        assert_eq!(sum.sum_us, 2 * 20_000_202);
        assert_eq!([0, 1, 15, 16].map(|bucket| sum.buckets[bucket]), [4, 2, 2, 2]);
        assert_eq!(sum.buckets.iter().sum::<u64>(), 10);
        assert!(BOUNDS_US.is_sorted());
    }
}

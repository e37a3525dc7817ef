//! A leaky bucket: it fills with what costs, drains with time, and overflows in a flood.

/// The level of a bucket. Its size and how fast it drains are the caller's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) level: u16,
    /// Milliseconds until which the time was counted.
    pub(crate) at_ms: u64,
}

impl Bucket {
    pub(crate) const fn new(now_ms: u64) -> Self {
        Self { level: 0, at_ms: now_ms }
    }

    /// Adds one. Returns whether it fits.
    pub(crate) fn add(&mut self, max: u16, per_second: u16, now_ms: u64) -> bool {
        let passed = now_ms.saturating_sub(self.at_ms).saturating_mul(per_second.into()) / 1000;
        if passed > 0 {
            self.drain(u16::try_from(passed).unwrap_or(u16::MAX));
            // The rest of a step is lost only when the bucket is empty.
            self.at_ms = match self.level {
                0 => now_ms,
                _ => self.at_ms + passed * 1000 / u64::from(per_second),
            };
        }
        self.level = self.level.saturating_add(1);
        self.level <= max
    }

    pub(crate) fn drain(&mut self, count: u16) {
        self.level = self.level.saturating_sub(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_overflows_by_count_and_drains_by_time() {
        let mut bucket = Bucket::new(5_000);
        for _ in 0..10 {
            assert!(bucket.add(10, 2, 5_000));
        }
        assert!(!bucket.add(10, 2, 5_499));
        bucket.drain(1);
        assert!(bucket.add(10, 2, 5_500), "half a second drains one");
        assert!(!bucket.add(10, 2, 5_999));
        assert!(!bucket.add(10, 2, 5_999));
        // Time that goes backwards drains nothing.
        assert!(!bucket.add(10, 2, 0));
        assert!(bucket.add(10, 2, 60_000));
        assert_eq!(bucket.level, 1);
    }
}

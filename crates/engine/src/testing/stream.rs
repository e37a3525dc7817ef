//! The bytes that a peer sends. Each depends on its position only, so each one that arrives is
//! checked.

use std::fmt;
use std::sync::LazyLock;

/// Bytes until the stream repeats: a prime, so that no shift by a power of two goes unseen.
const PERIOD: usize = 65_521;

static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut noise = fastrand::Rng::with_seed(PERIOD as u64);
    let period: Vec<u8> = (0..PERIOD).map(|_| noise.u8(..)).collect();
    // Twice, so that no piece has to be cut at the end of the period.
    period.repeat(2)
});

/// A stream without an end.
#[derive(Clone, Default)]
pub struct Stream {
    /// The first bytes: flights that the edge inspects.
    pub flights: Vec<u8>,
    /// The offset in the noise at which the rest begins.
    pub offset: usize,
}

impl Stream {
    /// Passes `len` bytes from position `at` on to `take`, in pieces.
    pub fn bytes(&self, mut at: usize, len: usize, mut take: impl FnMut(&[u8])) {
        let end = at + len;
        if let Some(flights) = self.flights.get(at..) {
            let len = flights.len().min(len);
            take(&flights[..len]);
            at += len;
        }
        while at < end {
            let from = (self.offset + at) % PERIOD;
            let len = (end - at).min(PERIOD);
            take(&NOISE[from..from + len]);
            at += len;
        }
    }

    /// This stream after other bytes.
    pub fn behind(&self, flights: Vec<u8>) -> Self {
        let offset = (self.offset + PERIOD - flights.len() % PERIOD) % PERIOD;
        Self { flights, offset }
    }

    /// Panics unless `bytes` are those at position `at`.
    pub fn check(&self, at: usize, bytes: &[u8], who: &str) {
        let mut seen = 0;
        self.bytes(at, bytes.len(), |expected| {
            let got = &bytes[seen..seen + expected.len()];
            if let Some(wrong) = (0..got.len()).find(|n| got[*n] != expected[*n]) {
                panic!("{who}: byte {} is not the one that was sent", at + seen + wrong);
            }
            seen += expected.len();
        });
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of flights", self.flights.len())
    }
}

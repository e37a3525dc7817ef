//! A relay that stands for a long line: what is sent arrives half a round trip later, and with a
//! rate no sooner than the line carries it. It counts the bytes of both directions.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

/// The rate of a line, of each direction, in bits of the connections' bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u64);

impl Rate {
    /// The time in which the line carries so many bytes.
    pub fn time(self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 * 8.0 / self.0 as f64)
    }

    /// Returns the time at which a line that is free at `free_at` has carried these bytes. The line
    /// makes up for what a late timer costs, up to [`BURST`], and for no other idle time.
    fn carried_at(self, free_at: Instant, now: Instant, bytes: usize) -> Instant {
        let begin = now.checked_sub(BURST).map_or(free_at, |least| least.max(free_at));
        begin + self.time(bytes as u64)
    }

    /// Bytes that are read at once: 10 ms of the line, so that connections share it evenly.
    fn piece_bytes(self) -> usize {
        usize::try_from(self.0 / 8 / 100).map_or(PIECE_BYTES, |bytes| bytes.clamp(1, PIECE_BYTES))
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000)];
        units
            .into_iter()
            .find_map(|(unit, bits)| {
                text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(bits)
            })
            .filter(|bits| *bits > 0)
            .map(Self)
            .ok_or_else(|| "expected a rate with its unit, as in \"4mbit\"".to_owned())
    }
}

/// One direction of a line that all its connections share: a token bucket.
#[derive(Debug)]
struct Bucket {
    rate: Rate,
    /// The time at which the line has carried all that it was given. A mutex of tokio wakes in
    /// order, so connections take turns.
    free_at: Mutex<Instant>,
}

impl Bucket {
    fn new(rate: Rate) -> Arc<Self> {
        Arc::new(Self { rate, free_at: Mutex::new(Instant::now()) })
    }

    /// Waits until the line has carried these bytes.
    async fn carry(&self, bytes: usize) {
        let mut free_at = self.free_at.lock().await;
        *free_at = self.rate.carried_at(*free_at, Instant::now(), bytes);
        tokio::time::sleep_until(*free_at).await;
    }
}

/// Bytes and connections of a relay so far.
#[derive(Clone, Debug, Default)]
pub struct LineCounts {
    read: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
}

impl LineCounts {
    /// Returns the bytes that clients have read and written, and the number of their connections.
    pub fn now(&self) -> [u64; 3] {
        [&self.read, &self.written, &self.connections].map(|one| one.load(Ordering::Relaxed))
    }
}

/// A direction as one connection has it.
struct Way {
    delay: Duration,
    count: Arc<AtomicU64>,
    bucket: Option<Arc<Bucket>>,
}

/// Relays to a server until the program ends.
pub async fn open(
    target: SocketAddr,
    round_trip: Duration,
    rate: Option<Rate>,
) -> io::Result<(SocketAddr, LineCounts)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let (address, counts) = (listener.local_addr()?, LineCounts::default());
    let kept = counts.clone();
    let buckets = [rate, rate].map(|rate| rate.map(Bucket::new));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            counts.connections.fetch_add(1, Ordering::Relaxed);
            let counts = [&counts.written, &counts.read];
            let [there, back] = std::array::from_fn(|at| Way {
                delay: round_trip / 2,
                count: Arc::clone(counts[at]),
                bucket: buckets[at].clone(),
            });
            tokio::spawn(carry(client, target, round_trip, there, back));
        }
    });
    Ok((address, kept))
}

async fn carry(
    client: TcpStream,
    target: SocketAddr,
    round_trip: Duration,
    there: Way,
    back: Way,
) -> io::Result<()> {
    // The handshake of TCP takes a round trip.
    tokio::time::sleep(round_trip).await;
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let there = there.carry(from_client, to_server);
    let back = back.carry(from_server, to_client);
    tokio::try_join!(there, back).map(drop)
}

impl Way {
    /// Carries one direction to its end, which travels as late as the bytes.
    async fn carry(
        self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let Self { delay, count, bucket } = self;
        let piece_bytes = bucket.as_ref().map_or(PIECE_BYTES, |bucket| bucket.rate.piece_bytes());
        let (line, mut arrivals) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_MAX);
        let sends = async move {
            loop {
                let mut piece = Vec::with_capacity(piece_bytes);
                let bytes = from.read_buf(&mut piece).await?;
                count.fetch_add(bytes as u64, Ordering::Relaxed);
                if let Some(bucket) = &bucket {
                    bucket.carry(bytes).await;
                }
                if bytes == 0 || line.send((Instant::now() + delay, piece)).await.is_err() {
                    return Ok(());
                }
            }
        };
        let arrives = async {
            while let Some((due, piece)) = arrivals.recv().await {
                tokio::time::sleep_until(due).await;
                to.write_all(&piece).await?;
            }
            to.shutdown().await
        };
        tokio::try_join!(sends, arrives).map(drop)
    }
}

/// Bytes of a piece: small enough that the first ones do not wait for the last ones.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces under way: 64 MiB, more than any window of these connections, so that without a rate the
/// line never limits one.
const PIECES_MAX: usize = 1024;
/// Time that a line makes up for after it was idle: what a late timer costs, and no more.
const BURST: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_a_unit() {
        assert_eq!("4mbit".parse(), Ok(Rate(4_000_000)));
        assert_eq!("512kbit".parse(), Ok(Rate(512_000)));
        for bad in ["4", "mbit", "0mbit", "-1kbit", "4 mbit", "99999999999999gbit", ""] {
            let why = bad.parse::<Rate>();
            assert!(why.is_err_and(|why| why.contains("4mbit")), "{bad}");
        }
    }

    #[test]
    fn a_line_carries_its_rate_and_saves_up_no_idle_time() {
        let (rate, began) = (Rate(4_000_000), Instant::now());
        // A hundred pieces of 10 ms, each asked for by a timer that is a millisecond late.
        let mut free_at = began;
        for _ in 0..100 {
            free_at = rate.carried_at(free_at, free_at + Duration::from_millis(1), 5_000);
        }
        assert_eq!(free_at - began, Duration::from_secs(1));
        let later = free_at + Duration::from_secs(60);
        let carried = rate.carried_at(free_at, later, 5_000);
        assert_eq!(carried, later - BURST + Duration::from_millis(10));
    }

    /// Two connections get no more than the line has.
    #[tokio::test]
    async fn connections_share_a_direction() {
        let bucket = Bucket::new(Rate(4_000_000));
        let began = Instant::now();
        let one = async || {
            for _ in 0..5 {
                bucket.carry(5_000).await;
            }
        };
        tokio::join!(one(), one());
        assert!(began.elapsed() >= Duration::from_millis(100) - BURST);
    }
}

//! A relay that delays: what is sent arrives half a round trip later, whatever its size, as over a
//! long line that is not full. It counts the bytes of both directions.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Bytes and connections of a relay so far.
#[derive(Clone, Debug, Default)]
pub struct LineCounts {
    read: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
}

impl LineCounts {
    /// What clients have read and written, and how many connections they have made.
    pub fn now(&self) -> [u64; 3] {
        [&self.read, &self.written, &self.connections].map(|one| one.load(Ordering::Relaxed))
    }
}

/// Relays to a server until the program ends.
pub async fn open(
    target: SocketAddr,
    round_trip: Duration,
) -> io::Result<(SocketAddr, LineCounts)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let (address, counts) = (listener.local_addr()?, LineCounts::default());
    let kept = counts.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            counts.connections.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(carry(client, target, round_trip, counts.clone()));
        }
    });
    Ok((address, kept))
}

async fn carry(
    client: TcpStream,
    target: SocketAddr,
    round_trip: Duration,
    counts: LineCounts,
) -> io::Result<()> {
    // The handshake of TCP takes a round trip.
    tokio::time::sleep(round_trip).await;
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let delay = round_trip / 2;
    let there = way(from_client, to_server, delay, counts.written);
    let back = way(from_server, to_client, delay, counts.read);
    tokio::try_join!(there, back).map(drop)
}

/// One direction. The end travels as late as the bytes.
async fn way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    delay: Duration,
    count: Arc<AtomicU64>,
) -> io::Result<()> {
    let (line, mut arrivals) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    let sends = async move {
        loop {
            let mut piece = Vec::with_capacity(PIECE_BYTES);
            let bytes = from.read_buf(&mut piece).await?;
            count.fetch_add(bytes as u64, Ordering::Relaxed);
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

/// Bytes of a piece: small enough that the first ones do not wait for the last ones.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces under way: 64 MiB, more than any window of these connections, so the line never limits
/// the rate.
const PIECES_MAX: usize = 1024;

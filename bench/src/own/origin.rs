//! A TLS origin without TLS: reads one hello's record, answers a canned flight, and waits for the
//! client to close. Must not know who asks: the answer is the same for all.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::flight;

/// Serves on every address. `reply` is the count of opaque bytes after the ServerHello.
pub async fn serve(reply: usize, addresses: &[SocketAddr]) -> io::Result<()> {
    // A long reply is one flight and then a part repeated: an origin of 256 MiB needs 256 KiB.
    let opening: Arc<[u8]> = flight::server_flight(reply.min(PART_BYTES)).into();
    let listeners: io::Result<Vec<_>> = addresses.iter().map(|at| super::listen(*at)).collect();
    let mut tasks = tokio::task::JoinSet::new();
    for listener in listeners? {
        let opening = Arc::clone(&opening);
        tasks.spawn(async move {
            loop {
                let stream = super::accept(&listener).await?;
                tokio::spawn(converse(stream, Arc::clone(&opening), reply));
            }
        });
    }
    match tasks.join_next().await {
        Some(ended) => ended.map_err(io::Error::other)?,
        None => Err(io::Error::other("an origin needs an address")),
    }
}

async fn converse(mut stream: TcpStream, opening: Arc<[u8]>, reply: usize) -> io::Result<()> {
    let mut buffer = [0; HELLO_BYTES];
    let (mut got, mut wanted) = (0, RECORD_HEADER);
    while got < wanted {
        let more = stream.read(&mut buffer[got..]).await?;
        if more == 0 {
            return Ok(());
        }
        got += more;
        if got >= RECORD_HEADER {
            let length = usize::from(u16::from_be_bytes([buffer[3], buffer[4]]));
            wanted = RECORD_HEADER + length;
        }
    }
    stream.write_all(&opening).await?;
    let mut left = reply.saturating_sub(PART_BYTES);
    while left > 0 {
        let part = left.min(opening.len());
        stream.write_all(&opening[..part]).await?;
        left -= part;
    }
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

const RECORD_HEADER: usize = 5;
/// The hellos of `flight` fit.
const HELLO_BYTES: usize = 2048;
const PART_BYTES: usize = 1 << 18;

//! A TLS origin without TLS: reads one hello's record, sends a canned flight, and waits for the
//! client to close. With a certificate it does a real handshake with clients that are no robots.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use eyelet_wire::record::{HEADER_LEN, RecordHeader};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::flight;

use super::listen;

/// Serves on every address. `reply` is the number of opaque bytes after the ServerHello.
pub async fn serve(
    reply: usize,
    tls12: bool,
    acceptor: Option<TlsAcceptor>,
    addresses: &[SocketAddr],
) -> io::Result<()> {
    // A long reply is one flight and then a repeated part: an origin of 256 MiB needs 256 KiB.
    let flight = if tls12 { flight::server_flight_tls12 } else { flight::server_flight };
    let opening: Arc<[u8]> = flight(reply.min(PART_BYTES)).into();
    let listeners: io::Result<Vec<_>> = addresses.iter().map(|at| listen::listen(*at)).collect();
    let mut tasks = tokio::task::JoinSet::new();
    for listener in listeners? {
        let (opening, acceptor) = (Arc::clone(&opening), acceptor.clone());
        tasks.spawn(async move {
            loop {
                let stream = listen::accept(&listener).await?;
                let (opening, acceptor) = (Arc::clone(&opening), acceptor.clone());
                tokio::spawn(async move {
                    match acceptor {
                        Some(acceptor) if !is_robots(&stream).await? => {
                            shake_hands(acceptor, stream).await
                        }
                        _ => converse(stream, opening, reply).await,
                    }
                });
            }
        });
    }
    match tasks.join_next().await {
        Some(ended) => ended.map_err(io::Error::other)?,
        None => Err(io::Error::other("an origin needs an address")),
    }
}

/// Peeks at the first bytes, without consuming them.
async fn is_robots(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; HELLO_BYTES];
    loop {
        let got = stream.peek(&mut first).await?;
        match flight::is_robots(&first[..got]) {
            Some(is) => return Ok(is),
            None if got == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            // Epoll reports no edge for more bytes to peek at.
            None => tokio::time::sleep(PEEK_PAUSE).await,
        }
    }
}

async fn shake_hands(acceptor: TlsAcceptor, stream: TcpStream) -> io::Result<()> {
    let mut tls = acceptor.accept(stream).await?;
    while tls.read(&mut [0; 64]).await? > 0 {}
    Ok(())
}

async fn converse(mut stream: TcpStream, opening: Arc<[u8]>, reply: usize) -> io::Result<()> {
    let mut buffer = [0; HELLO_BYTES];
    let (mut got, mut wanted) = (0, HEADER_LEN);
    while got < wanted {
        let more = stream.read(&mut buffer[got..]).await?;
        if more == 0 {
            return Ok(());
        }
        got += more;
        if let Some(header) = RecordHeader::read(&buffer[..got]) {
            wanted = header.record_len();
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

/// Enough for the hellos of `flight`.
const HELLO_BYTES: usize = 2048;
const PART_BYTES: usize = 1 << 18;
const PEEK_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

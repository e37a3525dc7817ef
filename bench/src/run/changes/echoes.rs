//! Pairs and WebSockets that echo while an edge changes. Each byte is checked, and each client
//! changes its keys again and again.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::client::TlsStream;

use super::super::{Tally, in_time};
use crate::client::{self, tls};
use crate::lab::NAMES;

/// The kinds of connections that echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// Bytes.
    Pair,
    /// A message of a WebSocket.
    WebSocket,
}

/// A client of each of these targets, which echoes so often until the end. A wrong byte, or the end
/// of the connection, is a failure.
pub fn begin(
    config: &Arc<ClientConfig>,
    targets: impl Iterator<Item = (SocketAddr, Echo)>,
    every: Duration,
    end: Instant,
) -> JoinSet<Tally> {
    let mut tasks = JoinSet::new();
    for (i, (target, kind)) in targets.enumerate() {
        let config = Arc::clone(config);
        tasks.spawn(async move {
            let mut tally = Tally::default();
            let kept = keep_echoing(&mut tally, &config, (target, kind), i, (every, end));
            if let Err(e) = kept.await {
                tally.failed(&e);
            }
            tally
        });
    }
    tasks
}

async fn keep_echoing(
    tally: &mut Tally,
    config: &Arc<ClientConfig>,
    (target, kind): (SocketAddr, Echo),
    i: usize,
    (every, end): (Duration, Instant),
) -> io::Result<()> {
    let mut stream = in_time(tls::open(config, target, i, NAMES)).await?;
    if let Echo::WebSocket = kind {
        in_time(become_websocket(&mut stream)).await?;
    }
    let mut clock = interval(every);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut seed, mut count) = (i as u8, i);
    while Instant::now() < end {
        clock.tick().await;
        seed = seed.wrapping_mul(31).wrapping_add(7);
        count += 1;
        if count.is_multiple_of(KEY_UPDATE_EVERY) {
            tls::update_keys(&mut stream)?;
        }
        let began = Instant::now();
        in_time(echo(&mut stream, kind, seed)).await?;
        tally.done(began);
    }
    Ok(())
}

async fn echo(stream: &mut TlsStream<TcpStream>, kind: Echo, seed: u8) -> io::Result<()> {
    match kind {
        Echo::Pair => {
            let bytes: Vec<u8> = (0..BYTES).map(|k| seed.wrapping_add(k as u8)).collect();
            client::echo(stream, &bytes).await
        }
        Echo::WebSocket => echo_message(stream, seed).await,
    }
}

/// RFC 6455 section 4.1. The key is any 16 bytes.
async fn become_websocket<S: client::Duplex>(stream: &mut S) -> io::Result<()> {
    let request = "GET /echo HTTP/1.1\r\nHost: host-0.bench.test\r\nUpgrade: websocket\r\n\
                   Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    match head.starts_with(b"HTTP/1.1 101 ") {
        true => Ok(()),
        false => Err(io::Error::other("no WebSocket")),
    }
}

/// One binary message there and back, in one frame (RFC 6455 section 5.2).
async fn echo_message<S: client::Duplex>(stream: &mut S, seed: u8) -> io::Result<()> {
    let mask = [seed, 1, 2, 3];
    let text: Vec<u8> = (0..MESSAGE_BYTES).map(|k| seed.wrapping_add(k)).collect();
    let mut frame = vec![0x82, 0x80 | MESSAGE_BYTES];
    frame.extend(mask);
    frame.extend(text.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    stream.write_all(&frame).await?;
    stream.flush().await?;
    let mut back = vec![0; 2 + text.len()];
    stream.read_exact(&mut back).await?;
    match back[..2] == [0x82, MESSAGE_BYTES] && back[2..] == text {
        true => Ok(()),
        false => Err(io::Error::other("another message came back")),
    }
}

const BYTES: usize = 1500;
/// A frame of at most 125 bytes has the shortest header.
const MESSAGE_BYTES: u8 = 100;
/// Echoes between two KeyUpdates (RFC 8446 section 4.6.3): some before each change, and after it.
const KEY_UPDATE_EVERY: usize = 10;

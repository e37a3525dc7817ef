//! The clients that are parked, in a process of their own: their memory must not be in the gauge.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::client;
use crate::identity::CROWD_NAME;

/// Handshakes under way at a time: enough to keep both processes busy, too few to time out.
const HANDSHAKES_MAX: usize = 16;
/// Connections between two lines of progress.
const PROGRESS: usize = 100;
/// Source addresses, from 127.0.0.2 on: each has about 28,000 ports, also while earlier connections
/// are in TIME_WAIT.
const SOURCES: usize = 4;
/// Failures after which it gives up: the edge is full, or gone.
const FAILURES_MAX: usize = 20;
/// Session tickets of one connection, which are read and dropped to free the kernel's buffer.
const TICKET_BYTES_MAX: usize = 4096;

/// Opens TLS connections and holds them until standard input ends. Prints `opened N` as it goes on,
/// `failed WHY` after a failure, and `ready` at the end.
///
/// # Errors
/// The authority cannot be read, or standard output is closed.
pub fn crowd(target: SocketAddr, count: usize, authority: &str) -> io::Result<()> {
    eyelet_sys::process::raise_descriptor_limit();
    let connector = client::connector(Path::new(authority))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = end_of(io::stdin())?;
    runtime.block_on(hold(target, count, &connector, ended)).map(drop)
}

/// Reads an input to its end, in a thread. Then the receiver has an error.
fn end_of(mut input: impl Read + Send + 'static) -> io::Result<oneshot::Receiver<()>> {
    let (end, ended) = oneshot::channel();
    let thread = std::thread::Builder::new().name("input".into());
    thread.spawn(move || {
        // An input that cannot be read has ended, too.
        let _ = io::copy(&mut input, &mut io::sink());
        drop(end);
    })?;
    Ok(ended)
}

/// Opens connections and holds them until the input ends. Whether all were there before.
async fn hold(
    target: SocketAddr,
    count: usize,
    connector: &TlsConnector,
    mut ended: oneshot::Receiver<()>,
) -> io::Result<bool> {
    // Kept until the end.
    let _clients = tokio::select! {
        clients = open(target, count, connector) => clients?,
        _ = &mut ended => return Ok(false),
    };
    say("ready")?;
    // An error is the end.
    let _ = ended.await;
    Ok(true)
}

async fn open(
    target: SocketAddr,
    count: usize,
    connector: &TlsConnector,
) -> io::Result<Vec<TcpStream>> {
    let mut clients = Vec::with_capacity(count);
    let (mut begun, mut failed, mut under_way) = (0, 0, JoinSet::new());
    loop {
        while begun < count && failed < FAILURES_MAX && under_way.len() < HANDSHAKES_MAX {
            under_way.spawn(one(target, begun, connector.clone()));
            begun += 1;
        }
        let Some(done) = under_way.join_next().await else { break };
        match done.map_err(io::Error::other).flatten() {
            Ok(client) => clients.push(client),
            Err(error) => {
                failed += 1;
                say(&format!("failed {error}"))?;
            }
        }
        if clients.len().is_multiple_of(PROGRESS) {
            drop_tickets(&clients);
            say(&format!("opened {}", clients.len()))?;
        }
    }
    drop_tickets(&clients);
    say(&format!("opened {}", clients.len()))?;
    Ok(clients)
}

/// One connection. Its TLS state is dropped after the handshake: it never says anything again.
async fn one(target: SocketAddr, i: usize, connector: TlsConnector) -> io::Result<TcpStream> {
    let socket = if target.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if target.is_ipv4() {
        let host = 2 + u8::try_from(i % SOURCES).unwrap_or(0);
        socket.bind((Ipv4Addr::new(127, 0, 0, host), 0).into())?;
    }
    let stream = client::in_time(socket.connect(target)).await?;
    Ok(client::shake_hands(&connector, CROWD_NAME, stream).await?.into_inner().0)
}

/// Reads what the edge sent to the newest connections after the handshake.
fn drop_tickets(clients: &[TcpStream]) {
    let mut tickets = [0; TICKET_BYTES_MAX];
    for client in clients.iter().rev().take(PROGRESS) {
        // Unread tickets only cost kernel memory.
        let _ = client.try_read(&mut tickets);
    }
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The edge says nothing, so that no connection is ever there.
    #[test]
    fn an_input_that_ends_stops_the_opening_of_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let folder = crate::identity::TemporaryFolder::create().unwrap();
        let (authority, _) = crate::identity::make(&folder).unwrap();
        let connector = client::connector(&authority.certificate_path()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (input, parent) = UnixStream::pair().unwrap();
        let ended = end_of(input).unwrap();
        drop(parent);
        let target = listener.local_addr().unwrap();
        let were_there = runtime.block_on(hold(target, 10, &connector, ended));
        assert!(!were_there.unwrap(), "it waited for its connections");
    }
}

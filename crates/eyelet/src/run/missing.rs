//! Applications of `eyelet proxy` that are not there. A request waits for them, and a mistyped port
//! would look like a slow page.

use std::io;
use std::time::Duration;

use eyelet_child::Endpoint;
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{sleep, timeout};

use super::args::Site;

/// How often each is looked for.
const EVERY: Duration = Duration::from_secs(1);
/// For one look: the first packet to another machine may be lost once.
const LIMIT: Duration = Duration::from_secs(3);
/// Lines that wait to be printed.
const LINES_MAX: usize = 16;

/// Looks for each application from now on. What is to be printed is received.
pub(super) fn look_for(sites: Vec<Site>, hold: Duration) -> Receiver<String> {
    let (sender, lines) = channel(LINES_MAX);
    for site in sites {
        tokio::spawn(look(site, hold, sender.clone()));
    }
    lines
}

/// How an application was found.
enum Found {
    /// Among the sockets of this machine.
    Listening,
    /// By a connection.
    Dialled,
}

/// Says when it is missing, and when it is there again.
async fn look(site: Site, hold: Duration, lines: Sender<String>) {
    let Site { name, upstream } = site;
    let hold = humantime::format_duration(hold);
    // Nothing is said of one that is there at first.
    let mut was_there = true;
    loop {
        let found = reach(&upstream).await;
        let line = match (&found, was_there) {
            (Err(error), true) => Some(format!(
                "{name}: nothing listens at {upstream} ({error}); requests wait {hold}"
            )),
            (Ok(_), false) => Some(format!("{name}: {upstream} listens now")),
            _ => None,
        };
        if let Some(line) = line {
            // It fails when the process ends.
            let _ = lines.send(line).await;
        }
        was_there = found.is_ok();
        // It is not dialled again and again.
        if matches!(found, Ok(Found::Dialled)) {
            return;
        }
        sleep(EVERY).await;
    }
}

/// Whether somebody listens there. No connection is made where that is seen without one: it may be
/// the only one that the application accepts.
async fn reach(upstream: &str) -> io::Result<Found> {
    if let Some(path) = upstream.strip_prefix("unix:") {
        return match eyelet_child::listens(&Endpoint::Unix(path.into())) {
            true => Ok(Found::Listening),
            false => UnixStream::connect(path).await.map(|_| Found::Dialled),
        };
    }
    let address = upstream.split_once("://").map_or(upstream, |(_, rest)| rest);
    let dialled = async {
        let addresses: Vec<_> = lookup_host(address).await?.collect();
        if addresses.iter().any(|address| eyelet_child::listens(&Endpoint::Tcp(*address))) {
            return Ok(Found::Listening);
        }
        TcpStream::connect(&*addresses).await.map(|_| Found::Dialled)
    };
    timeout(LIMIT, dialled).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

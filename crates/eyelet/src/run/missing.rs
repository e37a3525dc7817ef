//! Applications of `eyelet proxy` that are not there yet. A request waits for them, and a mistyped
//! port would look like a slow page.

use std::io;
use std::time::Duration;

use eyelet_child::Endpoint;
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{sleep, timeout};

use super::args::Site;

/// How often is looked for those that are not there.
const EVERY: Duration = Duration::from_secs(1);
/// For one look: the first packet to another machine may be lost once.
const LIMIT: Duration = Duration::from_secs(3);
/// Lines that wait to be printed.
const LINES_MAX: usize = 16;

/// Looks for each application until it has been there once. What is to be printed is received.
pub(super) fn look_for(sites: Vec<Site>, hold: Duration) -> Receiver<String> {
    let (sender, lines) = channel(LINES_MAX);
    for site in sites {
        tokio::spawn(look(site, hold, sender.clone()));
    }
    lines
}

/// Says if it is missing, and then when it is there.
async fn look(site: Site, hold: Duration, lines: Sender<String>) {
    let Site { name, upstream } = site;
    let Err(error) = reach(&upstream).await else { return };
    let hold = humantime::format_duration(hold);
    let missing = format!("{name}: nothing listens at {upstream} ({error}); requests wait {hold}");
    // It fails when the process ends.
    if lines.send(missing).await.is_err() {
        return;
    }
    while reach(&upstream).await.is_err() {
        sleep(EVERY).await;
    }
    let _ = lines.send(format!("{name}: {upstream} listens now")).await;
}

/// Whether somebody listens there. No connection is made where that is seen without one: it may be
/// the only one that the application accepts.
async fn reach(upstream: &str) -> io::Result<()> {
    if let Some(path) = upstream.strip_prefix("unix:") {
        return match eyelet_child::listens(&Endpoint::Unix(path.into())) {
            true => Ok(()),
            false => UnixStream::connect(path).await.map(drop),
        };
    }
    let address = upstream.split_once("://").map_or(upstream, |(_, rest)| rest);
    let dialled = async {
        let addresses: Vec<_> = lookup_host(address).await?.collect();
        if addresses.iter().any(|address| eyelet_child::listens(&Endpoint::Tcp(*address))) {
            return Ok(());
        }
        TcpStream::connect(&*addresses).await.map(drop)
    };
    timeout(LIMIT, dialled).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

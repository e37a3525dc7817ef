//! Applications of `eyelet proxy` that are not there, or that speak the other one of http:// and
//! https://. A request waits for the first, and a mistake would look like a slow page.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use eyelet_child::Endpoint;
use eyelet_config::is_loopback_name;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::args::Site;
use super::plan::PlannedRule;

/// The interval at which each is looked for.
const EVERY: Duration = Duration::from_secs(1);
/// For one look: the first packet to another machine may be lost once.
const LIMIT: Duration = Duration::from_secs(3);
/// Times that an application is asked if it speaks TLS. It may log each as a request that it cannot
/// read.
const HELLOS_MAX: usize = 3;
/// A ClientHello of TLS 1.2 (RFC 5246 section 7.4.1.2). Every TLS server answers it, by a record
/// of a handshake or of an alert.
const HELLO: &[u8] = b"\x16\x03\x01\0\x58\x01\0\0\x54\x03\x03\
    eyelet asks if this speaks TLS..\0\0\x08\xc0\x2b\xc0\x2f\xc0\x2c\xc0\x30\x01\0\
    \0\x23\0\x0a\0\x06\0\x04\0\x1d\0\x17\0\x0d\0\x0a\0\x08\x04\x03\x08\x04\x04\x01\x05\x01\
    \0\x0b\0\x02\x01\0\xff\x01\0\x01\0";
/// Types of the records that answer it.
const ANSWERS: [u8; 2] = [0x15, 0x16];
/// Lines that wait to be printed.
const LINES_MAX: usize = 16;

/// The kind of clients that wait for an application, and their longest wait.
#[derive(Clone, Copy)]
struct Waiting {
    /// Connections, not requests.
    is_tcp: bool,
    /// The longest wait.
    hold: Duration,
}

/// Looks for applications until it is dropped.
pub(super) struct Lookout {
    /// The line to print.
    pub(super) lines: Receiver<String>,
    /// The alarms of its sites.
    pub(super) alarms: Alarms,
    _looks: JoinSet<()>,
}

/// Tells those who look for an application that requests to it have failed.
#[derive(Clone, Default)]
pub(super) struct Alarms(Vec<(String, Arc<Notify>)>);

impl Alarms {
    /// Notes that requests of this name have failed.
    pub(super) fn note(&self, name: &str) {
        self.0.iter().filter(|(known, _)| known == name).for_each(|(_, alarm)| alarm.notify_one());
    }

    fn add(&mut self, name: &str) -> Arc<Notify> {
        let alarm = Arc::new(Notify::new());
        self.0.push((name.to_owned(), alarm.clone()));
        alarm
    }
}

impl Lookout {
    /// Looks for each application from now on. `own` is where Eyelet listens.
    pub(super) fn start(rules: &[PlannedRule], own: Vec<SocketAddr>) -> Self {
        let (sender, lines) = channel(LINES_MAX);
        let own: Arc<[SocketAddr]> = own.into();
        let (mut looks, mut alarms) = (JoinSet::new(), Alarms::default());
        for PlannedRule { site, options, .. } in rules {
            let waiting = Waiting { is_tcp: options.tcp, hold: options.hold };
            if !waiting.is_tcp {
                let alarm = alarms.add(&site.name);
                looks.spawn(check_scheme(site.clone(), alarm, sender.clone(), by_the_other));
            }
            looks.spawn(look(site.clone(), waiting, own.clone(), sender.clone()));
        }
        Self { lines, alarms, _looks: looks }
    }

    /// Has a command asked if it speaks TLS, once requests to it have failed.
    pub(super) fn of_command(rules: &[PlannedRule]) -> Self {
        let (sender, lines) = channel(LINES_MAX);
        let (mut looks, mut alarms) = (JoinSet::new(), Alarms::default());
        for PlannedRule { site, .. } in rules.iter().filter(|rule| !rule.options.tcp) {
            let alarm = alarms.add(&site.name);
            looks.spawn(check_scheme(site.clone(), alarm, sender.clone(), by_the_command));
        }
        Self { lines, alarms, _looks: looks }
    }
}

/// Returns lines about the applications that are not there now.
pub(super) async fn absent(rules: &[PlannedRule], own: &[SocketAddr]) -> Vec<String> {
    let mut lines = Vec::new();
    for PlannedRule { site, options, .. } in rules {
        let waiting = Waiting { is_tcp: options.tcp, hold: options.hold };
        if let Err(fault) = reach(&site.upstream, own).await {
            lines.push(fault.line(site, waiting));
        }
    }
    lines
}

/// The line about an application of `eyelet proxy` that speaks TLS, or does not.
fn by_the_other(name: &str, address: &str, is_tls: bool) -> String {
    match is_tls {
        true => format!("{name}: {address} speaks TLS; write {name}=https://{address}"),
        false => format!("{name}: {address} speaks no TLS; write {name}=http://{address}"),
    }
}

/// The line about a command of `eyelet run` that speaks TLS.
fn by_the_command(name: &str, address: &str, _: bool) -> String {
    format!(
        "{name}: the command speaks TLS itself at {address}; have it speak plain HTTP, or start it \
         by itself and serve it with `eyelet proxy {name}=https://localhost:PORT`, with its own \
         port"
    )
}

/// The way in which an application was found.
enum Found {
    /// Among the sockets of this machine.
    Listening,
    /// By a connection.
    Dialled,
}

/// The reason why an application is missing.
enum Fault {
    /// Its address is one of Eyelet's own.
    Own,
    /// The application listens there, at loopback of the other version of IP.
    Elsewhere(SocketAddr),
    /// Eyelet cannot connect.
    Connect(io::Error),
}

impl Fault {
    /// Returns the line to print.
    fn line(&self, Site { name, upstream }: &Site, waiting: Waiting) -> String {
        let hold = humantime::format_duration(waiting.hold);
        let kind = if waiting.is_tcp { "connections" } else { "requests" };
        match self {
            Self::Own => format!("{name}: Eyelet itself listens at {upstream}; {kind} fail"),
            Self::Elsewhere(other) => {
                let scheme = upstream.split_once("://").map_or("", |(scheme, _)| scheme);
                let mark = if scheme.is_empty() { "" } else { "://" };
                format!("{name}: it listens at {other}: write {name}={scheme}{mark}{other}")
            }
            Self::Connect(error) => {
                // Others leave open whether somebody listens: a name that is not found, silence.
                let fault = match error.kind() {
                    ErrorKind::ConnectionRefused | ErrorKind::NotFound => "nothing listens at",
                    _ => "cannot reach",
                };
                format!("{name}: {fault} {upstream} ({error}); {kind} wait {hold}")
            }
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Connect(error)
    }
}

/// Says when it is missing, and when it is there again.
async fn look(site: Site, waiting: Waiting, own: Arc<[SocketAddr]>, lines: Sender<String>) {
    // Nothing is said of one that is there at first.
    let (mut was_there, mut was_elsewhere) = (true, false);
    loop {
        let found = reach(&site.upstream, &own).await;
        let line = match (&found, was_there) {
            (Err(fault), true) => Some(fault.line(&site, waiting)),
            // It has come since, but not there.
            (Err(fault @ Fault::Elsewhere(_)), false) if !was_elsewhere => {
                Some(fault.line(&site, waiting))
            }
            (Ok(_), false) => Some(format!("{}: {} listens now", site.name, site.upstream)),
            _ => None,
        };
        if let Some(line) = line {
            // It fails when the process ends.
            let _ = lines.send(line).await;
        }
        was_there = found.is_ok();
        was_elsewhere = matches!(found, Err(Fault::Elsewhere(_)));
        // It is not dialled again and again.
        if matches!(found, Ok(Found::Dialled)) {
            return;
        }
        sleep(EVERY).await;
    }
}

/// Says if an application speaks TLS and should not, or the other way round. One with http:// is
/// asked once its own requests have failed.
async fn check_scheme(
    site: Site,
    alarm: Arc<Notify>,
    lines: Sender<String>,
    said: fn(&str, &str, bool) -> String,
) {
    let Site { name, upstream } = site;
    let (is_tls, address) = match upstream.split_once("://") {
        Some((scheme, address)) => (scheme == "https", address),
        None => (false, &*upstream),
    };
    if address.starts_with("unix:") {
        return;
    }
    for _ in 0..HELLOS_MAX {
        if !is_tls {
            alarm.notified().await;
        }
        let line = match (is_tls, timeout(LIMIT, speaks_tls(address)).await) {
            (false, Ok(Ok(true))) => said(&name, address, true),
            (true, Ok(Ok(false)) | Err(_)) => said(&name, address, false),
            (true, Ok(Ok(true))) => return,
            // It is not there yet, or fails for another reason.
            _ => {
                sleep(EVERY).await;
                continue;
            }
        };
        // It fails when the process ends.
        let _ = lines.send(line).await;
        return;
    }
}

/// Sends a ClientHello, and reads the first byte of the answer.
async fn speaks_tls(address: &str) -> io::Result<bool> {
    let mut socket = TcpStream::connect(&*addresses(address).await?).await?;
    socket.write_all(HELLO).await?;
    Ok(ANSWERS.contains(&socket.read_u8().await?))
}

/// Checks that somebody listens there. If that shows without a connection, none is made: it may be
/// the only one that the application accepts.
async fn reach(upstream: &str, own: &[SocketAddr]) -> Result<Found, Fault> {
    if let Some(path) = upstream.strip_prefix("unix:") {
        if eyelet_child::listens(&Endpoint::Unix(path.into()), own) {
            return Ok(Found::Listening);
        }
        UnixStream::connect(path).await?;
        return Ok(Found::Dialled);
    }
    let address = upstream.split_once("://").map_or(upstream, |(_, rest)| rest);
    let dialled = async {
        let addresses = addresses(address).await?;
        if addresses.iter().any(|address| eyelet_child::listens(&Endpoint::Tcp(*address), own)) {
            return Ok(Found::Listening);
        }
        if addresses.iter().any(|address| is_own(*address, own)) {
            return Err(Fault::Own);
        }
        match (TcpStream::connect(&*addresses).await, other_loopback(&addresses, own)) {
            (Ok(_), _) => Ok(Found::Dialled),
            (Err(_), Some(other)) => Err(Fault::Elsewhere(other)),
            (Err(error), None) => Err(error.into()),
        }
    };
    let late = |_| Err(Fault::Connect(ErrorKind::TimedOut.into()));
    timeout(LIMIT, dialled).await.unwrap_or_else(late)
}

/// The addresses of a host. Few systems find all names under `localhost` (RFC 6761 section 6.3).
async fn addresses(address: &str) -> io::Result<Vec<SocketAddr>> {
    let name = address.rsplit_once(':').filter(|(host, _)| is_loopback_name(host));
    if let Some(port) = name.and_then(|(_, port)| port.parse().ok()) {
        return Ok(vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]);
    }
    Ok(lookup_host(address).await?.collect())
}

/// Returns where an application of this machine listens that has none of these addresses.
fn other_loopback(addresses: &[SocketAddr], own: &[SocketAddr]) -> Option<SocketAddr> {
    let other = |address: &SocketAddr| {
        let ip = match address.ip() {
            IpAddr::V4(ip) if ip == Ipv4Addr::LOCALHOST => IpAddr::from(Ipv6Addr::LOCALHOST),
            IpAddr::V6(ip) if ip == Ipv6Addr::LOCALHOST => IpAddr::from(Ipv4Addr::LOCALHOST),
            _ => return None,
        };
        Some(SocketAddr::new(ip, address.port()))
    };
    let listens = |other: &SocketAddr| eyelet_child::listens(&Endpoint::Tcp(*other), own);
    addresses.iter().filter_map(other).find(listens)
}

/// True if Eyelet takes connections to this address. Its sockets for IPv6 take no IPv4.
fn is_own(address: SocketAddr, own: &[SocketAddr]) -> bool {
    let is_family = |own: &&SocketAddr| own.is_ipv6() == address.is_ipv6();
    own.iter().filter(is_family).any(|own| eyelet_child::takes(*own, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_and_what_waits() {
        let site = Site { name: "app.test".into(), upstream: "b.test:1".into() };
        let line = |is_tcp, fault: Fault| {
            let said = fault.line(&site, Waiting { is_tcp, hold: Duration::from_secs(30) });
            said.strip_prefix("app.test: ").map(ToOwned::to_owned)
        };
        let of = |kind: ErrorKind| Fault::Connect(kind.into());
        for (is_tcp, fault, expected) in [
            (
                false,
                of(ErrorKind::ConnectionRefused),
                "nothing listens at b.test:1 (connection refused); requests wait 30s",
            ),
            (
                true,
                of(ErrorKind::NotFound),
                "nothing listens at b.test:1 (entity not found); connections wait 30s",
            ),
            (
                false,
                of(ErrorKind::TimedOut),
                "cannot reach b.test:1 (timed out); requests wait 30s",
            ),
            (
                true,
                Fault::Connect(io::Error::other("no such name")),
                "cannot reach b.test:1 (no such name); connections wait 30s",
            ),
            (
                false,
                Fault::Elsewhere((Ipv6Addr::LOCALHOST, 1).into()),
                "it listens at [::1]:1: write app.test=[::1]:1",
            ),
            (true, Fault::Own, "Eyelet itself listens at b.test:1; connections fail"),
        ] {
            assert_eq!(line(is_tcp, fault).as_deref(), Some(expected));
        }
    }
}

//! Connections that were meant for somebody else: where to, and whether they would come back to
//! this very process. It must not know what a rule makes of a destination.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use eyelet_sys::{interfaces, socket};

use crate::act::refuse::{self, Answer};
use crate::active::Active;
use crate::config::{Listener, ListenerKind};
use crate::connect;
use crate::story::{End, Outcome, Story};

/// What this process knows of itself, to notice loops: where it listens, and whom it dialled.
pub struct Intercept {
    listeners: Box<[SocketAddr]>,
    /// Where a listener takes what was sent to others. Else nothing that we dial can come back.
    dialled: Option<Dialled>,
}

/// Whom this process dialled lately, by the local port: half a megabyte, and no lock.
struct Dialled {
    /// Upper half: of local address and destination, by `hash`. Lower half: seconds since `began`.
    ports: Box<[AtomicU64]>,
    hash: RandomState,
    began: Instant,
}

/// Seconds for which a dial is remembered. A connection that comes back does so at once; the
/// same pair of addresses and ports is not used by another before TIME_WAIT is over, a minute.
const REMEMBERED_SECS: u64 = 30;

impl Intercept {
    /// `addresses` are those of `listeners`, as they were bound.
    pub fn new(listeners: &[Listener], addresses: &[SocketAddr]) -> Self {
        let takes_others = |listener: &Listener| {
            matches!(listener.kind, ListenerKind::Redirect | ListenerKind::Tproxy)
        };
        let dialled = listeners.iter().any(takes_others).then(Dialled::new);
        Self { listeners: addresses.into(), dialled }
    }

    /// The index of the listener that a connection to `address` would come to.
    pub fn listener_at(&self, address: SocketAddr) -> Option<usize> {
        let ip = address.ip().to_canonical();
        self.listeners.iter().position(|listener| {
            // Whether an address is ours costs system calls: only where the port is.
            listener.port() == address.port()
                && listener.is_ipv4() == ip.is_ipv4()
                && (listener.ip() == ip
                    || listener.ip().is_unspecified()
                        && (ip.is_unspecified() || interfaces::is_local(ip)))
        })
    }

    /// Remembers a socket of ours that was told to connect.
    pub fn dialled(&self, upstream: impl AsFd, to: SocketAddr) {
        if let Some(dialled) = &self.dialled
            && let Ok(from) = socket::local_address(upstream)
        {
            dialled.note(from, to);
        }
    }

    /// Whether `client`, who wants to go to `destination`, is a socket of ours.
    fn is_ours(&self, client: SocketAddr, destination: SocketAddr) -> bool {
        self.dialled.as_ref().is_some_and(|dialled| dialled.has(client, destination))
    }
}

impl Dialled {
    fn new() -> Self {
        let ports = (0..=u16::MAX).map(|_| AtomicU64::new(0)).collect();
        Self { ports, hash: RandomState::new(), began: Instant::now() }
    }

    fn note(&self, from: SocketAddr, to: SocketAddr) {
        if let Some(slot) = self.ports.get(usize::from(from.port())) {
            slot.store(self.key(from, to) | self.now_secs(), Relaxed);
        }
    }

    fn has(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let slot = self.ports.get(usize::from(from.port())).map_or(0, |slot| slot.load(Relaxed));
        let then_secs = slot & u64::from(u32::MAX);
        slot != 0
            && slot - then_secs == self.key(from, to)
            && self.now_secs() - then_secs.min(self.now_secs()) <= REMEMBERED_SECS
    }

    /// Never 0: a slot that nobody wrote is nobody's.
    fn key(&self, from: SocketAddr, to: SocketAddr) -> u64 {
        let [from_ip, to_ip] = [from, to].map(|address| address.ip().to_canonical());
        (self.hash.hash_one((from_ip, to_ip, to.port())) | 1) << 32
    }

    /// In 32 bits: 136 years.
    fn now_secs(&self) -> u64 {
        self.began.elapsed().as_secs() & u64::from(u32::MAX)
    }
}

/// Finds out where an accepted connection was meant to go, where its listener's kind tells.
/// `raw` is what was read so far.
pub async fn arrive(active: &Active, story: &mut Story, raw: &mut Vec<u8>) -> Result<(), End> {
    let listener = listener_of(active, story);
    let destination = match listener.kind {
        ListenerKind::Direct | ListenerKind::HttpRedirect => return Ok(()),
        ListenerKind::Connect => return connect::read_head(active, story, raw).await,
        // A load balancer in front knows better than the kernel, which sees the balancer's.
        _ if story.decided.destination.is_some() => return Ok(()),
        ListenerKind::Redirect => active.original_destination(listener.address.ip()),
        ListenerKind::Tproxy => active.local_address(),
    };
    story.decided.destination = destination;
    let Some(destination) = destination else {
        return refused(active, "loop: it was not redirected here, but dialled this listener");
    };
    let intercept = &active.worker.edge.intercept;
    if intercept.listener_at(destination).is_some() {
        return refused(active, "loop: it was meant for a listener of this edge");
    }
    if intercept.is_ours(story.client, destination) {
        return refused(active, "loop: this edge dialled it itself, and was redirected to itself");
    }
    Ok(())
}

/// The listener that accepted a connection.
pub fn listener_of<'a>(active: &'a Active, story: &Story) -> &'a Listener {
    &active.worker.edge.config.listeners[usize::from(story.decided.listener)]
}

/// Fails where dialling `address` would come to a listener of this edge. What the administrator
/// wrote may lead from one listener to another; what a client says may not.
pub fn check_loop(
    active: &Active,
    story: &Story,
    address: SocketAddr,
    configured: bool,
) -> Result<(), End> {
    match active.worker.edge.intercept.listener_at(address) {
        Some(listener) if !configured || listener == usize::from(story.decided.listener) => {
            let reason = format!("loop: {address} is a listener of this edge");
            Err(End { outcome: Outcome::Refused, reason: reason.into() })
        }
        _ => Ok(()),
    }
}

/// Whoever loops is not told so in TLS: it is us, or has sent nothing yet.
fn refused(active: &Active, reason: &'static str) -> Result<(), End> {
    let end = End { outcome: Outcome::Refused, reason: reason.into() };
    refuse::refuse(active, &Answer::Nothing, end)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn intercept(addresses: &[&str]) -> Intercept {
        let listeners = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Intercept { listeners, dialled: Some(Dialled::new()) }
    }

    #[test]
    fn an_address_that_leads_to_a_listener_is_known() {
        let own = intercept(&["0.0.0.0:443", "192.0.2.9:8443", "[::]:444"]);
        let at = |address: &str| own.listener_at(address.parse().unwrap());
        assert_eq!(at("127.0.0.1:443"), Some(0));
        assert_eq!(at("0.0.0.0:443"), Some(0));
        assert_eq!(at("[::ffff:127.0.0.1]:443"), Some(0));
        assert_eq!(at("192.0.2.9:8443"), Some(1));
        assert_eq!(at("[::1]:444"), Some(2));
        for other in ["192.0.2.1:443", "127.0.0.1:8443", "127.0.0.1:444", "[::1]:443"] {
            assert_eq!(at(other), None, "{other}");
        }
    }

    #[test]
    fn a_dial_is_recognised_by_both_its_ends() {
        let own = intercept(&[]);
        let [client, other, destination]: [SocketAddr; 3] =
            ["192.0.2.1:50000", "192.0.2.2:50000", "198.51.100.1:443"].map(|a| a.parse().unwrap());
        let dialled = own.dialled.as_ref().unwrap();
        assert!(!own.is_ours(client, destination));
        dialled.note(client, destination);
        assert!(own.is_ours(client, destination));
        assert!(!own.is_ours(other, destination));
        assert!(!own.is_ours(client, other));
        dialled.note(other, destination);
        assert!(!own.is_ours(client, destination), "one dial a port is remembered");
    }
}

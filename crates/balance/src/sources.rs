//! The addresses that an upstream is dialled from: how many of each one's local ports are in use,
//! which comes first, and when they run short.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

use eyelet_telemetry::upstream::UpstreamCounters;
use parking_lot::Mutex;

/// Addresses of an upstream's name whose ports are counted. `resolve` keeps as many.
const UPSTREAM_ADDRESSES_MAX: usize = 64;
/// Ports run short where four fifths of them are in use, and no more below seven tenths.
const SHORT: (usize, usize) = (4, 5);
const AMPLE: (usize, usize) = (7, 10);
/// One dial in so many tries an address at its turn that could not be bound to: it may be there
/// now.
const TRIES: u32 = 256;

/// The `source_addresses` of an upstream. Without any, the kernel chooses.
#[derive(Debug)]
pub struct SourceAddresses {
    addresses: Box<[OwnAddress]>,
    /// Local ports of the host: each address has so many for each address that is dialled.
    ports: AtomicUsize,
    dials: AtomicU32,
    by_upstream: Mutex<HashMap<SocketAddr, Arc<[PortUse]>>>,
}

/// One of the addresses.
#[derive(Debug)]
struct OwnAddress {
    ip: IpAddr,
    /// True since a socket could not be bound to it.
    is_faulty: AtomicBool,
}

/// The local ports of one address that are in use towards one upstream.
#[derive(Debug, Default)]
struct PortUse {
    counters: Arc<UpstreamCounters>,
    is_short: AtomicBool,
}

/// The facts about one address towards one upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceUse {
    /// The upstream.
    pub upstream: SocketAddr,
    /// The address that it is dialled from.
    pub source: IpAddr,
    /// Local ports in use.
    pub used: usize,
}

/// An address to dial from, and where the connection is counted.
pub struct Candidate {
    /// Position in the list.
    index: usize,
    /// The address.
    pub ip: IpAddr,
    /// Its connections to the upstream.
    pub counters: Arc<UpstreamCounters>,
}

impl SourceAddresses {
    pub(crate) fn new(addresses: &[IpAddr], ports: usize) -> Self {
        let addresses = addresses.iter().map(|ip| OwnAddress { ip: *ip, is_faulty: false.into() });
        let (ports, dials) = (ports.into(), AtomicU32::new(0));
        Self { addresses: addresses.collect(), ports, dials, by_upstream: Mutex::default() }
    }

    /// Itself, if it has addresses. Otherwise the kernel chooses one.
    pub fn some(&self) -> Option<&Self> {
        (!self.addresses.is_empty()).then_some(self)
    }

    /// The addresses, as they are written.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|address| address.ip)
    }

    /// Local ports that each address has for one upstream.
    pub fn ports(&self) -> usize {
        self.ports.load(Relaxed)
    }

    pub(crate) fn set_ports(&self, ports: usize) {
        self.ports.store(ports, Relaxed);
    }

    /// The addresses to dial `upstream` from, the one with the fewest connections to it first. An
    /// address of another family is left out, and one whose ports this process holds all.
    pub fn order(&self, upstream: SocketAddr) -> Vec<Candidate> {
        let uses = self.uses(upstream);
        let ports = self.ports();
        let tries_faulty = self.dials.fetch_add(1, Relaxed).is_multiple_of(TRIES);
        let mut order: Vec<(bool, u64, Candidate)> = Vec::with_capacity(self.addresses.len());
        for (index, (address, of)) in self.addresses.iter().zip(uses.iter()).enumerate() {
            let used = of.counters.open.load(Relaxed);
            of.note(used as usize, ports, (address.ip, upstream));
            if address.ip.is_ipv4() == upstream.is_ipv4() && (used as usize) < ports {
                let counters = of.counters.clone();
                let candidate = Candidate { index, ip: address.ip, counters };
                let is_last = address.is_faulty.load(Relaxed) && !tries_faulty;
                order.push((is_last, used, candidate));
            }
        }
        order.sort_by_key(|(is_last, used, _)| (*is_last, *used));
        order.into_iter().map(|(_, _, candidate)| candidate).collect()
    }

    /// Notes if a socket could be bound to an address. Says so when that changes.
    pub fn note_bound(&self, candidate: &Candidate, result: Result<(), &dyn std::fmt::Display>) {
        let Some(address) = self.addresses.get(candidate.index) else { return };
        let was_faulty = address.is_faulty.swap(result.is_err(), Relaxed);
        match result {
            Err(why) if !was_faulty => tracing::warn!(
                "source_addresses: {} cannot be dialled from: {why}; the others come first",
                address.ip
            ),
            Ok(()) if was_faulty => {
                tracing::info!("source_addresses: {} can be dialled from again", address.ip);
            }
            _ => {}
        }
    }

    /// The addresses that could not be dialled from at their last turn.
    pub fn faulty(&self) -> impl Iterator<Item = (IpAddr, bool)> {
        self.addresses.iter().map(|address| (address.ip, address.is_faulty.load(Relaxed)))
    }

    /// The ports in use now, for each upstream that was dialled and each address of its family.
    pub fn in_use(&self) -> Vec<SourceUse> {
        let known = self.by_upstream.lock();
        let each = known.iter().flat_map(|(upstream, uses)| {
            self.addresses.iter().zip(uses.iter()).map(|(address, of)| SourceUse {
                upstream: *upstream,
                source: address.ip,
                used: of.counters.open.load(Relaxed) as usize,
            })
        });
        each.filter(|of| of.source.is_ipv4() == of.upstream.is_ipv4()).collect()
    }

    /// The counters of a connection from this address. `None`: it is not among them.
    pub(crate) fn counters(
        &self,
        upstream: SocketAddr,
        source: IpAddr,
    ) -> Option<Arc<UpstreamCounters>> {
        let index = self.addresses.iter().position(|address| address.ip == source)?;
        Some(self.uses(upstream).get(index)?.counters.clone())
    }

    fn uses(&self, upstream: SocketAddr) -> Arc<[PortUse]> {
        let mut known = self.by_upstream.lock();
        if let Some(uses) = known.get(&upstream) {
            return uses.clone();
        }
        if known.len() >= UPSTREAM_ADDRESSES_MAX {
            let is_used = |of: &PortUse| of.counters.open.load(Relaxed) > 0;
            known.retain(|_, uses| uses.iter().any(is_used));
        }
        let uses: Arc<[PortUse]> = self.addresses.iter().map(|_| PortUse::default()).collect();
        if known.len() < UPSTREAM_ADDRESSES_MAX {
            known.insert(upstream, uses.clone());
        }
        uses
    }
}

impl PortUse {
    /// Says once that ports run short, and once that they do no more.
    fn note(&self, used: usize, ports: usize, (source, upstream): (IpAddr, SocketAddr)) {
        let reaches = |(part, of): (usize, usize)| used * of >= ports * part;
        if reaches(SHORT) && !self.is_short.swap(true, Relaxed) {
            tracing::warn!(
                "local ports run short: {used} of {ports} are in use from {source} to {upstream}; \
                 add an address to `source_addresses`"
            );
        } else if !reaches(AMPLE) && self.is_short.swap(false, Relaxed) {
            tracing::info!("local ports from {source} to {upstream}: {used} of {ports} are in use");
        }
    }
}

/// Equal are those with the same addresses, in the same order.
impl PartialEq for SourceAddresses {
    fn eq(&self, other: &Self) -> bool {
        self.addresses().eq(other.addresses())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn ips(order: &[Candidate]) -> Vec<String> {
        order.iter().map(|candidate| candidate.ip.to_string()).collect()
    }

    #[test]
    fn the_least_used_comes_first_and_a_full_or_faulty_one_not() {
        let sources =
            SourceAddresses::new(&[ip("192.0.2.1"), ip("192.0.2.2"), ip("2001:db8::1")], 10);
        let to = "198.51.100.1:443".parse().unwrap();
        let other = "198.51.100.2:443".parse().unwrap();
        assert_eq!(ips(&sources.order("[2001:db8::9]:443".parse().unwrap())), ["2001:db8::1"]);
        for turn in 0..20 {
            let order = sources.order(to);
            let expected = if turn % 2 == 0 { "192.0.2.1" } else { "192.0.2.2" };
            assert_eq!(order[0].ip.to_string(), expected, "{turn}");
            order[0].counters.opened();
        }
        assert!(sources.order(to).is_empty(), "both hold all of their ports");
        assert_eq!(ips(&sources.order(other)), ["192.0.2.1", "192.0.2.2"], "another upstream");
        sources.set_ports(11);
        let order = sources.order(to);
        sources.note_bound(&order[0], Err(&"no such address"));
        assert_eq!(ips(&sources.order(to)), ["192.0.2.2", "192.0.2.1"], "a faulty one comes last");
        let firsts = (0..TRIES).filter(|_| ips(&sources.order(to))[0] == "192.0.2.1");
        assert_eq!(firsts.count(), 1, "it is tried now and then");
        sources.note_bound(&order[0], Ok(()));
        assert_eq!(ips(&sources.order(to)), ["192.0.2.1", "192.0.2.2"]);
        let in_use = sources.in_use();
        let of_two = |of: &&SourceUse| of.upstream == to && of.source == ip("192.0.2.2");
        assert_eq!(in_use.iter().find(of_two).map(|of| of.used), Some(10));
        assert_eq!(in_use.len(), 5, "two for each IPv4 upstream, one for the other");
    }

    #[test]
    fn upstreams_that_nothing_is_open_at_are_forgotten() {
        let sources = SourceAddresses::new(&[ip("192.0.2.1")], 10);
        let at = |port| SocketAddr::from(([198, 51, 100, 1], port));
        sources.order(at(1))[0].counters.opened();
        for port in 2..1_000 {
            assert_eq!(sources.order(at(port)).len(), 1);
        }
        let in_use = sources.in_use();
        assert!(in_use.len() <= UPSTREAM_ADDRESSES_MAX);
        assert!(in_use.iter().any(|of| of.upstream == at(1) && of.used == 1));
    }
}

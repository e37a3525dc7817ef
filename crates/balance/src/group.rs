//! The upstreams of a rule, the addresses of their names, and the choice among them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use eyelet_config::{DialSource, Host, HostPort, TerminateUpstream, UpstreamCheck, UpstreamHttp2};
use eyelet_telemetry::info::UpstreamName;
use eyelet_telemetry::upstream::UpstreamCounters;

use crate::choice::{Choice, choose};
use crate::health::{Health, mix};
use crate::sources::SourceAddresses;

/// The upstreams of one or several rules.
#[derive(Debug)]
pub struct Group {
    /// In the order of the list; at most [`eyelet_config::UPSTREAMS_MAX`].
    pub members: Box<[Arc<Member>]>,
    /// True if a client stays with one of them.
    by_client: bool,
    choices: AtomicU64,
}

impl Group {
    pub(crate) fn new(members: Box<[Arc<Member>]>, by_client: bool) -> Self {
        Self { members, by_client, choices: AtomicU64::new(0) }
    }

    /// The member for a connection or a request of this client that was at those of `tried`
    /// already. `None`: it was at all.
    pub fn choose(&self, client: IpAddr, now_ms: u64, tried: Tried) -> Option<usize> {
        if let [member] = &*self.members {
            let health = &member.health;
            if tried.has(0) {
                return None;
            }
            if !health.is_up() && !health.take_try(now_ms) {
                health.take_early_try();
            }
            return Some(0);
        }
        let left: Vec<(usize, &Health)> = (self.members.iter().enumerate())
            .filter(|(index, _)| !tried.has(*index))
            .map(|(index, member)| (index, &member.health))
            .collect();
        choose(&left, self.choice(client, now_ms))
    }

    /// The addresses of a member's name in the order in which they are tried.
    pub fn order(
        &self,
        member: &Member,
        found: &[SocketAddr],
        client: IpAddr,
        now_ms: u64,
    ) -> Vec<SocketAddr> {
        let addresses = member.addresses(found);
        let left: Vec<(usize, &Health)> =
            addresses.iter().map(|address| &address.health).enumerate().collect();
        let first = choose(&left, self.choice(client, now_ms));
        let mut order: Vec<usize> = (0..addresses.len()).collect();
        order.sort_by_key(|index| (Some(*index) != first, !addresses[*index].health.is_up()));
        order.into_iter().map(|index| addresses[index].address).collect()
    }

    /// The member that another process dialled at this address. `None`: none is known to have it.
    pub fn dialled_at(&self, dialled: &UpstreamName) -> Option<&Arc<Member>> {
        let known = self.members.iter().find(|member| member.has(dialled));
        known.or_else(|| {
            // No name is resolved yet. Of several names it might be any.
            let mut named = self.members.iter().filter(|member| member.may_have(dialled));
            named.next().filter(|_| named.next().is_none())
        })
    }

    fn choice(&self, client: IpAddr, now_ms: u64) -> Choice {
        let client = self.by_client.then_some(client);
        Choice { client, now_ms, random: mix(self.choices.fetch_add(1, Relaxed)) }
    }
}

/// The members that a connection or a request was at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried(u64);

impl Tried {
    /// Notes one.
    pub fn add(&mut self, index: usize) {
        self.0 |= 1 << (index as u32 & 63);
    }

    /// True if it was at this one.
    pub fn has(self, index: usize) -> bool {
        self.0 & (1 << (index as u32 & 63)) != 0
    }

    /// Returns the number of members that it was at.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }
}

/// One upstream of a group. Groups share equal ones, also across reloads.
#[derive(Debug)]
pub struct Member {
    /// The upstream to dial.
    pub upstream: TerminateUpstream,
    /// The question that tells if it is up.
    pub check: Option<UpstreamCheck>,
    /// True if it expects a PROXY header.
    pub is_told: bool,
    /// The addresses that it is dialled from.
    pub sources: SourceAddresses,
    /// This host, or the client, whose address it is dialled from.
    pub(crate) source: DialSource,
    /// Its health.
    pub health: Health,
    /// True if a task checks it.
    pub is_being_checked: AtomicBool,
    /// The addresses of its name, as they were found last: at most 64, which `resolve` keeps.
    addresses: Mutex<Vec<Arc<Address>>>,
}

/// Addresses of a name that are known: `resolve` keeps as many.
const ADDRESSES_MAX: usize = 64;

/// An address of a member's name.
#[derive(Debug)]
struct Address {
    address: SocketAddr,
    health: Health,
}

impl Member {
    pub(crate) fn new(
        upstream: TerminateUpstream,
        check: Option<UpstreamCheck>,
        is_told: bool,
        sources: SourceAddresses,
    ) -> Self {
        let health = Health::new(name(&upstream), check.is_some());
        let (is_being_checked, addresses) = (AtomicBool::new(false), Mutex::default());
        let source = DialSource::Host;
        Self { upstream, check, is_told, sources, source, health, is_being_checked, addresses }
    }

    /// Returns the counters of a connection to this address, beside the member itself.
    pub fn counters(&self, address: Option<SocketAddr>) -> Vec<Arc<UpstreamCounters>> {
        let of_address = address.and_then(|address| self.address(address));
        let of_address = of_address.map(|address| address.health.counters.clone());
        [self.health.counters.clone()].into_iter().chain(of_address).collect()
    }

    /// Returns the counters of a connection that another process has dialled. Those of `source` are
    /// among them if this member is dialled from it.
    pub fn counters_of_moved(
        &self,
        dialled: &UpstreamName,
        source: Option<IpAddr>,
    ) -> Vec<Arc<UpstreamCounters>> {
        let UpstreamName::Address(address) = dialled else { return self.counters(None) };
        if self.upstream.is_named() {
            let mut known = self.addresses.lock();
            let is_known = known.iter().any(|known| known.address == *address);
            if !is_known && known.len() < ADDRESSES_MAX {
                known.push(self.found(*address));
            }
        }
        let source = source.and_then(|source| self.sources.counters(*address, source));
        source.into_iter().chain(self.counters(Some(*address))).collect()
    }

    /// The connections that hold a local port towards each of its addresses, where the kernel
    /// chooses the address to dial from. Nothing if requests share connections, for a Unix socket,
    /// or from clients' addresses. An HTTP upstream's kept connections are not among them.
    pub fn ports_in_use(&self) -> Vec<(SocketAddr, u64)> {
        let is_shared = match &self.upstream {
            TerminateUpstream::Http(http) => match http.http2 {
                UpstreamHttp2::On => true,
                UpstreamHttp2::Alpn => http.tls.is_some(),
                UpstreamHttp2::Off => false,
            },
            TerminateUpstream::Tcp(_) | TerminateUpstream::Tls(_) | TerminateUpstream::Unix(_) => {
                false
            }
        };
        let Some(to) = self.upstream.host_port().filter(|_| !is_shared) else { return Vec::new() };
        let open = |health: &Health| health.counters.open.load(Relaxed);
        let is_of_host = self.source == DialSource::Host && self.sources.some().is_none();
        match &to.host {
            _ if !is_of_host => Vec::new(),
            Host::Ip(ip) => vec![(SocketAddr::new(*ip, to.port), open(&self.health))],
            Host::Name(_) => {
                let known = self.addresses.lock();
                known.iter().map(|known| (known.address, open(&known.health))).collect()
            }
        }
    }

    /// Returns the addresses of its name that are known.
    pub fn known_addresses(&self) -> Vec<SocketAddr> {
        self.addresses.lock().iter().map(|known| known.address).collect()
    }

    /// Notes the addresses of its name that another process has found, if none is known here.
    pub fn learn(&self, found: &[SocketAddr]) {
        if self.upstream.is_named() && self.addresses.lock().is_empty() {
            self.addresses(&found[..found.len().min(ADDRESSES_MAX)]);
        }
    }

    /// True if this address is known to be its own.
    fn has(&self, dialled: &UpstreamName) -> bool {
        let host_port = self.upstream.host_port();
        match dialled {
            UpstreamName::Name(name) => {
                // A connection for HTTP is called by its address alone.
                let own = &*self.health.name;
                host_port.is_none() && own.strip_prefix("http+").unwrap_or(own) == &**name
            }
            UpstreamName::Address(address) => match host_port {
                Some(HostPort { host: Host::Ip(ip), port }) => {
                    *address == SocketAddr::new(*ip, *port)
                }
                Some(_) => self.address(*address).is_some(),
                None => false,
            },
        }
    }

    /// True if its name may have this address.
    fn may_have(&self, dialled: &UpstreamName) -> bool {
        let UpstreamName::Address(address) = dialled else { return false };
        let host_port = self.upstream.host_port();
        self.upstream.is_named() && host_port.is_some_and(|to| to.port == address.port())
    }

    /// Returns the counters of a connection to one of several addresses.
    pub fn address_counters(&self, address: SocketAddr) -> Option<Arc<UpstreamCounters>> {
        Some(self.address(address)?.health.counters.clone())
    }

    /// A dial of this address failed.
    pub fn address_failed(&self, address: SocketAddr, now_ms: u64, why: &dyn std::fmt::Display) {
        if let Some(address) = self.address(address) {
            address.health.failed(now_ms, why);
        }
    }

    /// This address accepted a connection.
    pub fn address_answered(&self, address: SocketAddr, now_ms: u64) {
        if let Some(address) = self.address(address) {
            address.health.answered(now_ms);
        }
    }

    fn address(&self, address: SocketAddr) -> Option<Arc<Address>> {
        self.addresses.lock().iter().find(|known| known.address == address).cloned()
    }

    fn found(&self, address: SocketAddr) -> Arc<Address> {
        let name = format!("{} at {address}", self.health.name);
        Arc::new(Address { address, health: Health::new(name, false) })
    }

    /// The addresses that were found now. Those found before keep their health.
    fn addresses(&self, found: &[SocketAddr]) -> Vec<Arc<Address>> {
        let mut known = self.addresses.lock();
        if !known.iter().map(|known| &known.address).eq(found) {
            let of = |address: &SocketAddr| {
                let before = known.iter().find(|known| known.address == *address).cloned();
                before.unwrap_or_else(|| self.found(*address))
            };
            *known = found.iter().map(of).collect();
        }
        known.clone()
    }
}

/// Returns the name of an upstream in the log: as it is written in the configuration. A spliced one
/// has no scheme there.
fn name(upstream: &TerminateUpstream) -> String {
    match upstream {
        TerminateUpstream::Tcp(to) => to.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use eyelet_config::{HttpAddress, HttpUpstream, UpstreamHttp2};

    use super::*;

    fn group() -> Group {
        let host = Host::Name("app.example".into());
        let upstream = TerminateUpstream::Tcp(HostPort { host, port: 80 });
        Group::new(
            [Arc::new(Member::new(upstream, None, false, SourceAddresses::new(&[], 0)))].into(),
            false,
        )
    }

    fn addresses(last: impl IntoIterator<Item = u8>) -> Vec<SocketAddr> {
        last.into_iter().map(|last| SocketAddr::from(([192, 0, 2, last], 80))).collect()
    }

    #[test]
    fn all_addresses_of_a_name_are_used_and_those_that_failed_come_last() {
        let (group, client) = (group(), IpAddr::from([198, 51, 100, 1]));
        let (member, found) = (&group.members[0], addresses([1, 2, 3]));
        let mut firsts = [0; 3];
        for _ in 0..300 {
            let order = group.order(member, &found, client, 1);
            let mut sorted = order.clone();
            sorted.sort();
            assert_eq!(sorted, found);
            let first = found.iter().position(|address| *address == order[0]);
            firsts[first.unwrap_or(usize::MAX)] += 1;
        }
        assert!(firsts.iter().all(|count| *count > 50), "{firsts:?}");
        member.address_failed(found[1], 1_000, &"refused");
        for _ in 0..20 {
            assert_eq!(group.order(member, &found, client, 1_000)[2], found[1]);
        }
        let other = addresses([2, 4]);
        assert_eq!(group.order(member, &other, client, 1_000), addresses([4, 2]), "it is kept");
        assert_eq!(group.choose(client, 1, Tried::default()), Some(0));
    }

    #[test]
    fn what_another_process_dialled_counts_at_its_member() {
        let member = |host, port| {
            let upstream = TerminateUpstream::Tcp(HostPort { host, port });
            Arc::new(Member::new(upstream, None, false, SourceAddresses::new(&[], 0)))
        };
        let named = |name: &str, port| member(Host::Name(name.into()), port);
        let ip = |last| member(Host::Ip(IpAddr::from([192, 0, 2, last])), 80);
        let [one, two] = [80, 81].map(|port| named("app.example", port));
        let members = [ip(1), ip(2), one, two, named("other.example", 81)];
        let group = Group::new(members.into(), false);
        for (last, port, expected) in [
            (1, 80, Some(0)),
            (2, 80, Some(1)),
            (3, 80, Some(2)),
            // Either name may have it.
            (3, 81, None),
            (1, 82, None),
        ] {
            let dialled = UpstreamName::Address(([192, 0, 2, last], port).into());
            let found = group.dialled_at(&dialled);
            let expected = expected.map(|index: usize| &group.members[index]);
            assert_eq!(found.map(Arc::as_ptr), expected.map(Arc::as_ptr), "{last} {port}");
            let counters = found.map_or(0, |found| found.counters_of_moved(&dialled, None).len());
            // That of the name, and that of its address.
            let counted = expected.map_or(0, |member| 1 + usize::from(member.upstream.is_named()));
            assert_eq!(counters, counted, "{last} {port}");
        }
    }

    /// Before any of them is resolved here.
    #[test]
    fn what_another_process_has_found_tells_names_apart() {
        let named = |name: &str| {
            let host = Host::Name(name.into());
            let upstream = TerminateUpstream::Tcp(HostPort { host, port: 80 });
            Arc::new(Member::new(upstream, None, false, SourceAddresses::new(&[], 0)))
        };
        let group = Group::new([named("one.example"), named("two.example")].into(), false);
        let at = |last| {
            let found = group.dialled_at(&UpstreamName::Address(addresses([last])[0]));
            found.and_then(|found| group.members.iter().position(|one| Arc::ptr_eq(one, found)))
        };
        assert_eq!([1, 2].map(at), [None; 2]);
        for (member, found) in group.members.iter().zip([[1, 3], [2, 4]]) {
            member.learn(&addresses(found));
        }
        assert_eq!([1, 2, 3, 4, 5].map(at), [Some(0), Some(1), Some(0), Some(1), None]);
        // What was found here is newer.
        group.members[0].learn(&addresses([5]));
        assert_eq!(group.members[0].known_addresses(), addresses([1, 3]));
    }

    #[test]
    fn a_unix_socket_is_called_by_its_path() {
        let upstream = |text: &str| match text.strip_prefix("http+") {
            None => TerminateUpstream::Unix("/run/app".into()),
            Some(_) => TerminateUpstream::Http(HttpUpstream {
                address: HttpAddress::Unix("/run/app".into()),
                tls: None,
                http2: UpstreamHttp2::Off,
                chosen: None,
            }),
        };
        for text in ["unix:/run/app", "http+unix:/run/app"] {
            let sources = SourceAddresses::new(&[], 0);
            let member = Arc::new(Member::new(upstream(text), None, false, sources));
            assert_eq!(&*member.health.name, text);
            let group = Group::new([member].into(), false);
            assert!(group.dialled_at(&UpstreamName::of("unix:/run/app")).is_some(), "{text}");
            assert!(group.dialled_at(&UpstreamName::of("unix:/run/other")).is_none(), "{text}");
        }
    }

    #[test]
    fn a_lone_upstream_comes_up_again_by_an_answer() {
        let (group, client) = (group(), IpAddr::from([198, 51, 100, 1]));
        let health = &group.members[0].health;
        // Early, and when a try is due.
        for (failed_ms, now_ms) in [(1_000, 1_001), (2_000, 60_000)] {
            health.failed(failed_ms, &"refused");
            assert!(!health.is_up());
            assert_eq!(group.choose(client, now_ms, Tried::default()), Some(0));
            health.answered(now_ms);
            assert!(health.is_up(), "at {now_ms}");
        }
    }

    #[test]
    fn what_was_tried_is_not_chosen_again() {
        let member = |last| {
            let upstream = TerminateUpstream::Tcp(HostPort {
                host: Host::Ip(IpAddr::from([192, 0, 2, last])),
                port: 80,
            });
            Arc::new(Member::new(upstream, None, false, SourceAddresses::new(&[], 0)))
        };
        let group = Group::new((0..64).map(member).collect(), false);
        let (client, mut tried) = (IpAddr::from([198, 51, 100, 1]), Tried::default());
        for count in 0..64 {
            assert_eq!(tried.count(), count);
            let chosen = group.choose(client, 1, tried).unwrap_or_default();
            assert!(!tried.has(chosen));
            tried.add(chosen);
        }
        assert_eq!(group.choose(client, 1, tried), None);
    }
}

//! Sets of IP addresses as disjoint sorted ranges, and addresses with a port. IPv4-mapped IPv6
//! addresses always count as IPv4.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};

/// A set of addresses. Its form is canonical: equal sets compare equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NetSet {
    /// First and last address of each range; sorted, and no two adjacent.
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

impl NetSet {
    /// True if it contains `address`. Takes time logarithmic in the number of ranges.
    pub fn contains(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => within(&self.v4, u32::from(address)),
            IpAddr::V6(address) => within(&self.v6, u128::from(address)),
        }
    }

    /// True if it contains every address of `other`.
    pub fn covers(&self, other: &Self) -> bool {
        // Ranges are never adjacent, so each range of `other` must lie within one of ours.
        let v4 = other.v4.iter().all(|range| spans(&self.v4, *range));
        v4 && other.v6.iter().all(|range| spans(&self.v6, *range))
    }

    /// True if it is empty.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// The number of ranges.
    pub(crate) const fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Every address.
    pub(crate) fn all() -> Self {
        Self { v4: [(0, u32::MAX)].into(), v6: [(0, u128::MAX)].into() }
    }

    /// True if it contains an address of `other`.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        meet(&self.v4, &other.v4) || meet(&self.v6, &other.v6)
    }

    /// The addresses that `other` does not contain.
    pub(crate) fn without(&self, other: &Self) -> Self {
        Self {
            v4: cut(&self.v4, &other.v4, |n| n.checked_sub(1), |n| n.checked_add(1)),
            v6: cut(&self.v6, &other.v6, |n| n.checked_sub(1), |n| n.checked_add(1)),
        }
    }

    /// The fewest networks that make up the set.
    pub fn nets(&self) -> impl Iterator<Item = IpNet> + '_ {
        let v4 = self.v4.iter().flat_map(|(a, b)| Ipv4Subnets::new((*a).into(), (*b).into(), 0));
        let v6 = self.v6.iter().flat_map(|(a, b)| Ipv6Subnets::new((*a).into(), (*b).into(), 0));
        v4.map(IpNet::V4).chain(v6.map(IpNet::V6))
    }
}

impl FromIterator<IpNet> for NetSet {
    fn from_iter<I: IntoIterator<Item = IpNet>>(nets: I) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for net in nets {
            match (net.network(), net.broadcast()) {
                (IpAddr::V4(first), IpAddr::V4(last)) => v4.push((first.into(), last.into())),
                (IpAddr::V6(first), IpAddr::V6(last)) => match mapped_range(first, last) {
                    Some(range) => v4.push(range),
                    None => v6.push((first.into(), last.into())),
                },
                // Unreachable: a network's first and last address are of one family.
                _ => {}
            }
        }
        Self {
            v4: join(v4, |last, first| last.checked_add(1).is_none_or(|next| first <= next)),
            v6: join(v6, |last, first| last.checked_add(1).is_none_or(|next| first <= next)),
        }
    }
}

/// An address or network, with or without a port: `10.0.0.0/8`, `10.0.0.1:443`, `[2001:db8::]/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressPattern {
    /// The addresses.
    pub net: IpNet,
    /// The port; `None` is any.
    pub port: Option<u16>,
}

impl fmt::Display for AddressPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port, self.net) {
            (None, net) => write!(f, "{net}"),
            (Some(port), IpNet::V4(net)) => write!(f, "{net}:{port}"),
            (Some(port), IpNet::V6(net)) => write!(f, "[{net}]:{port}"),
        }
    }
}

/// A set of addresses with ports: one [`NetSet`] per port. The one for any port comes first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AddressSet(Box<[(Option<u16>, NetSet)]>);

impl FromIterator<AddressPattern> for AddressSet {
    fn from_iter<I: IntoIterator<Item = AddressPattern>>(patterns: I) -> Self {
        let patterns: Vec<AddressPattern> = patterns.into_iter().collect();
        let mut ports: Vec<Option<u16>> = patterns.iter().map(|pattern| pattern.port).collect();
        ports.sort_unstable();
        ports.dedup();
        let of_port = |port| {
            let of_port = patterns.iter().filter(|pattern| pattern.port == port);
            (port, of_port.map(|pattern| pattern.net).collect())
        };
        Self(ports.into_iter().map(of_port).collect())
    }
}

impl AddressSet {
    pub(crate) fn contains(&self, address: SocketAddr) -> bool {
        self.0.iter().any(|(port, nets)| {
            port.is_none_or(|port| port == address.port()) && nets.contains(address.ip())
        })
    }

    pub(crate) fn covers(&self, other: &Self) -> bool {
        other.0.iter().all(|(port, nets)| {
            let mut ours = self.0.iter();
            ours.any(|(our, set)| (our.is_none() || our == port) && set.covers(nets))
        })
    }

    /// The addresses that `other` does not contain.
    pub(crate) fn without(&self, other: &Self) -> Self {
        let left = self.0.iter().map(|(port, nets)| {
            let wide = other.0.iter().filter(|(wide, _)| wide.is_none() || wide == port);
            (*port, wide.fold(nets.clone(), |left, (_, nets)| left.without(nets)))
        });
        Self(left.filter(|(_, nets)| !nets.is_empty()).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of ranges, for all ports.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|(_, nets)| nets.len()).sum()
    }

    pub(crate) fn patterns(&self) -> impl Iterator<Item = AddressPattern> + '_ {
        self.0
            .iter()
            .flat_map(|(port, nets)| nets.nets().map(|net| AddressPattern { net, port: *port }))
    }
}

/// The IPv4 range of a network inside ::ffff:0:0/96.
fn mapped_range(first: Ipv6Addr, last: Ipv6Addr) -> Option<(u32, u32)> {
    Some((first.to_ipv4_mapped()?.into(), last.to_ipv4_mapped()?.into()))
}

fn within<T: Ord + Copy>(ranges: &[(T, T)], address: T) -> bool {
    spans(ranges, (address, address))
}

fn spans<T: Ord + Copy>(ranges: &[(T, T)], (first, last): (T, T)) -> bool {
    let after = ranges.partition_point(|range| range.0 <= first);
    let before = after.checked_sub(1).and_then(|at| ranges.get(at));
    before.is_some_and(|range| last <= range.1)
}

fn meet<T: Ord>(a: &[(T, T)], b: &[(T, T)]) -> bool {
    let (few, many) = if a.len() < b.len() { (a, b) } else { (b, a) };
    few.iter().any(|(first, last)| {
        let from = many.partition_point(|range| range.1 < *first);
        many.get(from).is_some_and(|range| range.0 <= *last)
    })
}

/// `ranges` without those of `by`. `before` and `after` return the neighbours of an address.
fn cut<T: Ord + Copy>(
    ranges: &[(T, T)],
    by: &[(T, T)],
    before: impl Fn(T) -> Option<T>,
    after: impl Fn(T) -> Option<T>,
) -> Box<[(T, T)]> {
    let mut left = Vec::new();
    for (first, last) in ranges {
        let mut next = Some(*first);
        let from = by.partition_point(|range| range.1 < *first);
        let within = by.iter().skip(from).take_while(|range| range.0 <= *last);
        for (cut_first, cut_last) in within {
            let kept = next.zip(before(*cut_first)).filter(|(first, last)| first <= last);
            left.extend(kept);
            next = after(*cut_last);
        }
        left.extend(next.map(|first| (first, *last)).filter(|(first, last)| first <= last));
    }
    left.into()
}

fn join<T: Ord + Copy>(mut ranges: Vec<(T, T)>, touch: impl Fn(T, T) -> bool) -> Box<[(T, T)]> {
    ranges.sort_unstable();
    let mut joined: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if touch(last.1, range.0) => last.1 = last.1.max(range.1),
            _ => joined.push(range),
        }
    }
    joined.into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_a_set_leaves_of_another() {
        let set = |nets: &str| -> NetSet {
            nets.split_whitespace().map(|net| net.parse::<IpNet>().unwrap()).collect()
        };
        for (of, without, left) in [
            ("10.0.0.0/8", "", "10.0.0.0/8"),
            ("10.0.0.0/8", "11.0.0.0/8 9.0.0.0/8", "10.0.0.0/8"),
            ("10.0.0.0/8", "10.0.0.0/9", "10.128.0.0/9"),
            ("10.0.0.0/8", "10.0.0.0/9 10.192.0.0/10", "10.128.0.0/10"),
            ("10.0.0.0/31 10.0.0.4/30", "10.0.0.1/32 10.0.0.4/31", "10.0.0.0/32 10.0.0.6/31"),
            ("10.0.0.0/8", "0.0.0.0/0", ""),
            ("0.0.0.0/0 ::/0", "128.0.0.0/1 ::/1", "0.0.0.0/1 8000::/1"),
            ("0.0.0.0/0 ::/0", "0.0.0.0/1 8000::/1", "128.0.0.0/1 ::/1"),
        ] {
            let (of, without, left) = (set(of), set(without), set(left));
            assert_eq!(of.without(&without), left, "{of:?} {without:?}");
            assert_eq!(of.meets(&without), left != of);
            assert_eq!(of.without(&of), NetSet::default());
        }
        assert_eq!(NetSet::all(), set("0.0.0.0/0 ::/0"));
    }
}

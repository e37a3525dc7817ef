//! The source of a connection, and which sources hold more than their share of a worker's memory.

use std::cell::{Cell, RefCell};
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};

use eyelet_sys::socket::SocketPeer;
use eyelet_telemetry::info::SHARED_STEP_BYTES;
use eyelet_wire::local_peer::{LocalPeer, host_of};

// The simulator needs the same run for the same seed.
#[cfg(test)]
use foldhash::fast::FixedState as RandomState;
#[cfg(not(test))]
use foldhash::fast::RandomState;

/// A peer in the form of an address: see [`LocalPeer`].
pub fn address(peer: SocketPeer) -> SocketAddr {
    match peer {
        SocketPeer::Inet(address) => address,
        SocketPeer::Local { uid, pid } => LocalPeer { uid, pid }.address(),
    }
}

/// A host, or a user of this machine: see [`host_of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(IpAddr);

impl Source {
    /// The source of an address.
    pub fn of(ip: IpAddr) -> Self {
        Self(host_of(ip))
    }
}

/// Rows of cells. A source is judged by the smaller of its cells, one in each row. That cell is too
/// large only if other sources hash to both.
const ROWS: usize = 2;
/// Cells a row, 4 KiB in all. With 50 sources over their share, one in 100 others shares both cells
/// with one of them.
const CELLS: usize = 512;
/// A source is over its share when it holds more than this many times the others' average.
const SHARE: u64 = 2;
/// The part of a worker's budget from which a source has much, whatever others hold. A source that
/// is alone, or one of many alike, has no share to exceed.
const MUCH_PART: usize = 32;
/// But never with so few connections: the least budget on many workers has small parts.
const MUCH_WEIGHT_MIN: u64 = 32;
/// A connection weighs 1, plus 1 for each of these bytes that it holds: about the size of a slot.
const WEIGHT_BYTES: usize = 256;

/// A connection's part of the shared info has the same weight for all sums of its other bytes.
const _: () = assert!(SHARED_STEP_BYTES.is_multiple_of(WEIGHT_BYTES));

/// Memory that parked connections hold, by source: a count-min sketch of fixed size. Nothing is
/// kept per source, and no list is walked to know a share.
pub struct Sources {
    rows: RefCell<[[u32; CELLS]; ROWS]>,
    /// The sum of a row.
    all: Cell<u64>,
    /// Cells of the first row that are not 0: about the number of sources, while there are fewer
    /// sources than cells.
    occupied: Cell<u64>,
    /// Keyed: clients choose their addresses.
    hasher: RandomState,
}

impl Default for Sources {
    fn default() -> Self {
        Self {
            rows: RefCell::new([[0; CELLS]; ROWS]),
            all: Cell::new(0),
            occupied: Cell::new(0),
            hasher: RandomState::default(),
        }
    }
}

/// The weight of a parked connection that holds so many bytes besides its slot.
fn weight(held: usize) -> u32 {
    u32::try_from(1 + held / WEIGHT_BYTES).unwrap_or(u32::MAX)
}

impl Sources {
    /// Counts a connection that was parked.
    pub fn add(&self, ip: IpAddr, held: usize) {
        self.change(ip, 0, weight(held));
    }

    /// Counts a connection that is not parked any more.
    pub fn remove(&self, ip: IpAddr, held: usize) {
        self.change(ip, weight(held), 0);
    }

    /// Notes that a parked connection holds more or less.
    pub fn update(&self, ip: IpAddr, before: usize, after: usize) {
        let (before, after) = (weight(before), weight(after));
        if before != after {
            self.change(ip, before, after);
        }
    }

    fn cells(&self, ip: IpAddr) -> [usize; ROWS] {
        let hash = self.hasher.hash_one(Source::of(ip));
        [hash as usize % CELLS, (hash >> 32) as usize % CELLS]
    }

    fn change(&self, ip: IpAddr, before: u32, after: u32) {
        let cells = self.cells(ip);
        let mut rows = self.rows.borrow_mut();
        let was_empty = rows[0][cells[0]] == 0;
        for (row, cell) in rows.iter_mut().zip(cells) {
            row[cell] = row[cell].wrapping_add(after).wrapping_sub(before);
        }
        let occupied = self.occupied.get() + u64::from(was_empty);
        self.occupied.set(occupied - u64::from(rows[0][cells[0]] == 0));
        self.all.update(|all| all.wrapping_add(after.into()).wrapping_sub(before.into()));
    }

    /// True if no connection is counted.
    #[cfg(any(test, feature = "testing"))]
    pub fn is_empty(&self) -> bool {
        self.all.get() == 0 && self.occupied.get() == 0
    }

    fn weight_of(&self, ip: IpAddr) -> u64 {
        let rows = self.rows.borrow();
        let own = rows.iter().zip(self.cells(ip)).map(|(row, cell)| row[cell]).min();
        own.unwrap_or(0).into()
    }

    /// True if the source holds more than its share, or much of a worker's part of the budget,
    /// which has so many bytes.
    pub fn has_much(&self, ip: IpAddr, part_bytes: usize) -> bool {
        let much = (part_bytes / MUCH_PART / WEIGHT_BYTES) as u64;
        self.weight_of(ip) > much.max(MUCH_WEIGHT_MIN) || self.is_over_share(ip)
    }

    /// True if the source holds more than its share. A single source has no share to exceed.
    pub fn is_over_share(&self, ip: IpAddr) -> bool {
        let own = self.weight_of(ip);
        let (all, sources) = (self.all.get(), self.occupied.get());
        sources > 1 && own > SHARE * all.saturating_sub(own) / (sources - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four(n: u32) -> IpAddr {
        u32::to_be_bytes(0x0a00_0000 + n).into()
    }

    /// An address in the /64 `net`. All addresses of one /64 are one source.
    fn six(net: u128, host: u128) -> IpAddr {
        std::net::Ipv6Addr::from(0x2001_0db8 << 96 | net << 64 | host).into()
    }

    #[test]
    fn a_source_is_over_its_share_by_what_it_holds() {
        let sources = Sources::default();
        for n in 0..20 {
            sources.add(four(n), 0);
        }
        assert!(!(0..20).any(|n| sources.is_over_share(four(n))));
        for host in 0..100 {
            sources.add(six(1, host), 0);
        }
        assert!(sources.is_over_share(six(1, 1000)) && !sources.is_over_share(six(2, 1)));
        assert!(!(0..20).any(|n| sources.is_over_share(four(n))));
        for host in 0..100 {
            sources.remove(six(1, host), 0);
        }
        assert!(!sources.is_over_share(six(1, 1000)));
        sources.update(four(7), 0, 1 << 20);
        assert!(sources.is_over_share(four(7)) && !sources.is_over_share(four(8)));
        assert!(sources.is_over_share(format!("::ffff:{}", four(7)).parse().unwrap_or(four(8))));
        sources.update(four(7), 1 << 20, 0);
        for n in 0..20 {
            sources.remove(four(n), 0);
        }
        assert_eq!((sources.all.get(), sources.occupied.get()), (0, 0));
    }

    #[test]
    fn one_source_alone_is_never_over_its_share() {
        let sources = Sources::default();
        (0..100).for_each(|host| sources.add(six(1, host), 1 << 20));
        assert!(!sources.is_over_share(six(1, 0)));
    }

    #[test]
    fn who_holds_much_of_the_budget_has_much_whatever_others_hold() {
        const PART: usize = 16 << 20;
        let sources = Sources::default();
        let each = (PART / MUCH_PART / WEIGHT_BYTES) as u32;
        for added in 1..=each {
            (1..=12).for_each(|net| sources.add(six(net, added.into()), 0));
        }
        assert!(!sources.has_much(six(1, 0), PART), "no more than the part");
        (1..=12).for_each(|net| sources.add(six(net, 0), 0));
        assert!((1..=12).all(|net| sources.has_much(six(net, 0), PART)));
        assert!(!sources.is_over_share(six(1, 0)) && !sources.has_much(four(1), PART));
        (0..MUCH_WEIGHT_MIN).for_each(|_| sources.add(four(1), 0));
        assert!(!sources.has_much(four(1), 0), "a few connections are not much");
    }
}

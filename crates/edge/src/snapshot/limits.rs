//! The number of connections that this process may hold, and the limit that says so:
//! `connections_max`, the memory budget or descriptors.

use std::fmt;

use eyelet_config::{CONNECTIONS_MAX, Limits};
use eyelet_engine::moving::batch::CONNECTION_DESCRIPTORS;
use eyelet_engine::table::Slot;
use eyelet_memory::budget::Budget;

/// The three limits. A connection with an upstream takes two descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// `connections_max`, if the file sets it.
    configured: Option<usize>,
    /// Slots that the memory budget has room for. A parked connection counts a slot at least.
    memory: usize,
    /// `memory_max` itself, in bytes.
    memory_max: usize,
    /// Descriptors that connections may hold.
    descriptors: usize,
    /// The process's limit of descriptors. `descriptors` is a part of it.
    descriptor_limit: usize,
}

impl ConnectionLimits {
    /// The limits of a configuration under this budget. Connections may hold `descriptors` of the
    /// `descriptor_limit` that the process has.
    pub fn new(
        limits: &Limits,
        budget: &Budget,
        (descriptors, descriptor_limit): (usize, usize),
    ) -> Self {
        Self {
            configured: limits.connections_max,
            memory: budget.bytes_max() / size_of::<Slot>(),
            memory_max: limits.memory_max,
            descriptors,
            descriptor_limit,
        }
    }

    /// Most connections at once.
    pub fn connections_max(&self) -> usize {
        self.configured().min(self.memory).min(self.descriptors)
    }

    /// Most connections at once that have an upstream each.
    fn with_upstream_max(&self) -> usize {
        self.connections_max().min(self.descriptors / CONNECTION_DESCRIPTORS)
    }

    /// True if the file asks for more connections, with an upstream each, than this process can
    /// hold.
    pub fn is_short(&self) -> bool {
        self.configured.is_some_and(|configured| configured > self.with_upstream_max())
    }

    fn configured(&self) -> usize {
        self.configured.unwrap_or(CONNECTIONS_MAX)
    }
}

/// For an operator: the number, its limit, how to raise that limit, and then the other limits.
impl fmt::Display for ConnectionLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory, memory_max, descriptors, descriptor_limit, .. } = self;
        let (most, configured) = (self.connections_max(), self.configured());
        match self.with_upstream_max() {
            all if all == most => write!(f, "at most {most} connections: ")?,
            fewer => {
                write!(f, "at most {fewer} connections with an upstream, {most} without: ")?;
            }
        }
        if most == configured {
            write!(f, "connections_max; descriptors for {descriptors}, memory for {memory}")?;
        } else if most == *descriptors {
            write!(
                f,
                "descriptors allow no more (limit {descriptor_limit}: raise LimitNOFILE= or \
                 ulimit -Hn); connections_max {configured}, memory for {memory}",
            )?;
        } else {
            write!(
                f,
                "memory allows no more (memory_max {memory_max} bytes: raise it); connections_max \
                 {configured}, descriptors for {descriptors}",
            )?;
        }
        write!(f, ". A connection with an upstream takes two descriptors")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY_MAX: usize = 64 << 20;
    /// 5/8 of the memory, in slots.
    const SLOTS: usize = MEMORY_MAX / 8 * 5 / size_of::<Slot>();

    fn limits(configured: Option<usize>, descriptors: (usize, usize)) -> ConnectionLimits {
        let limits =
            Limits { connections_max: configured, memory_max: MEMORY_MAX, ..Limits::default() };
        ConnectionLimits::new(&limits, &Budget::new(MEMORY_MAX, 0), descriptors)
    }

    #[test]
    fn the_limit_that_is_reached_first_is_named() {
        let many = (1_999_321, 2_000_000);
        for (configured, descriptors, most, is_short, expected) in [
            (
                Some(1_000),
                many,
                1_000,
                false,
                format!("connections_max; descriptors for 1999321, memory for {SLOTS}"),
            ),
            // Without upstreams there would be room.
            (
                Some(15_000),
                (19_321, 20_000),
                15_000,
                true,
                format!("connections_max; descriptors for 19321, memory for {SLOTS}"),
            ),
            (
                Some(100_000),
                (19_321, 20_000),
                19_321,
                true,
                format!(
                    "descriptors allow no more (limit 20000: raise LimitNOFILE= or ulimit -Hn); \
                     connections_max 100000, memory for {SLOTS}"
                ),
            ),
            (
                Some(1_000_000),
                many,
                SLOTS,
                true,
                "memory allows no more (memory_max 67108864 bytes: raise it); connections_max \
                 1000000, descriptors for 1999321"
                    .to_owned(),
            ),
            // The file asks for no number.
            (
                None,
                many,
                SLOTS,
                false,
                "memory allows no more (memory_max 67108864 bytes: raise it); connections_max \
                 1000000, descriptors for 1999321"
                    .to_owned(),
            ),
        ] {
            let limits = limits(configured, descriptors);
            assert_eq!(limits.connections_max(), most);
            assert_eq!(limits.is_short(), is_short, "{limits}");
            let end = "A connection with an upstream takes two descriptors";
            let counts = match most.min(descriptors.0 / 2) {
                all if all == most => format!("{most} connections"),
                fewer => format!("{fewer} connections with an upstream, {most} without"),
            };
            let text = format!("at most {counts}: {expected}. {end}");
            assert_eq!(limits.to_string(), text);
        }
        let few = limits(None, (137, 600)).to_string();
        assert!(few.starts_with("at most 68 connections with an upstream, 137 without: "), "{few}");
    }
}

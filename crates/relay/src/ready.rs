//! The sockets of a connection that are ready: sides, epoll tokens, and readiness that is not used
//! up.

use eyelet_memory::slab::Key;
use eyelet_sys::epoll::{READABLE, WRITABLE};

/// The number of a connection's socket. Upstream attempts that race (RFC 8305) count on from 1.
pub type Side = u8;
/// The client's socket.
pub const CLIENT: Side = 0;
/// The upstream's socket.
pub const UPSTREAM: Side = 1;
/// Sides whose readiness a slot can hold: four bits each in one word.
pub const SIDES: u8 = 8;
/// Most further upstream sockets of a parked connection. They are the sides behind those. More than
/// the 100 streams that a client may have, and with its client's socket they fit one batch.
pub const FURTHER_MAX: usize = (DATAGRAMS - SIDES) as usize;

/// Not sides: tokens with them name listeners, and sockets that belong to no slot.
const LISTENER: u8 = 255;
const SHARED: u8 = 254;
const FLOW: u8 = 253;
const DATAGRAMS: u8 = 252;

/// The subject of an epoll token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A side of a connection.
    Connection(Key, Side),
    /// A listener, by index.
    Listener(u16),
    /// A socket that belongs to no slot: an upstream's, shared by requests.
    Shared(Key),
    /// The upstream of a flow.
    Flow(Key),
    /// A listening UDP socket, by index.
    Datagrams(u16),
}

impl Token {
    /// Generation in the upper 24 bits, side in 8, slot index in 32.
    pub fn encode(self) -> u64 {
        let of = |key: Key, side: u8| {
            u64::from(key.generation) << 40 | u64::from(side) << 32 | u64::from(key.index)
        };
        match self {
            Self::Connection(key, side) => of(key, side),
            Self::Shared(key) => of(key, SHARED),
            Self::Flow(key) => of(key, FLOW),
            Self::Listener(index) => u64::from(LISTENER) << 32 | u64::from(index),
            Self::Datagrams(index) => u64::from(DATAGRAMS) << 32 | u64::from(index),
        }
    }

    /// The inverse of [`Token::encode`].
    pub fn decode(token: u64) -> Self {
        let key = Key { index: token as u32, generation: (token >> 40) as u32 };
        match (token >> 32) as u8 {
            LISTENER => Self::Listener(token as u16),
            SHARED => Self::Shared(key),
            FLOW => Self::Flow(key),
            DATAGRAMS => Self::Datagrams(token as u16),
            side => Self::Connection(key, side),
        }
    }
}

/// Readiness that epoll reported and that is not used up, for each side. A socket that epoll has
/// not reported on yet may be assumed ready until a call shows otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ready(u32);

impl Ready {
    /// Adds the bits of an event.
    pub fn add(&mut self, side: Side, bits: u8) {
        self.0 |= u32::from(bits) << (4 * side);
    }

    /// Clears bits, after a call that would have blocked.
    pub fn clear(&mut self, side: Side, bits: u8) {
        self.0 &= !(u32::from(bits) << (4 * side));
    }

    /// True if any of the bits is set.
    pub fn any(self, side: Side, bits: u8) -> bool {
        self.0 >> (4 * side) & u32::from(bits) != 0
    }

    /// True if a side can be read, so that there is something to do.
    pub fn readable(self) -> bool {
        self.any(CLIENT, READABLE) || self.any(UPSTREAM, READABLE)
    }

    /// Moves one side's bits to another.
    pub fn rename(&mut self, from: Side, to: Side) {
        let bits = (self.0 >> (4 * from) & 15) as u8;
        self.clear(from, 15);
        self.clear(to, 15);
        self.add(to, bits);
    }
}

/// Bits that end a wait for reading.
pub const READ: u8 = READABLE;
/// Bits that end a wait for writing.
pub const WRITE: u8 = WRITABLE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_was() {
        for token in [
            Token::Connection(Key { index: u32::MAX, generation: (1 << 24) - 1 }, 7),
            Token::Connection(Key { index: 0, generation: 0 }, CLIENT),
            Token::Connection(Key { index: 5, generation: 6 }, SIDES + FURTHER_MAX as u8 - 1),
            Token::Listener(0),
            Token::Listener(u16::MAX),
            Token::Shared(Key { index: 1, generation: (1 << 24) - 1 }),
        ] {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }

    #[test]
    fn readiness_of_one_side_leaves_the_others_alone() {
        let mut ready = Ready::default();
        ready.add(3, WRITABLE);
        ready.add(CLIENT, READABLE);
        ready.rename(3, UPSTREAM);
        assert!(ready.any(UPSTREAM, WRITABLE) && !ready.any(3, 15) && ready.any(CLIENT, READABLE));
        ready.clear(CLIENT, READABLE);
        assert!(!ready.readable());
    }
}

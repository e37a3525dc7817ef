//! The held-back bytes of a flight under inspection that has arrived in part.

use std::num::NonZeroU32;

use crate::inspect::FlightInspection;
use crate::ready::{CLIENT, Side};
use eyelet_telemetry::reason::Reason;

/// Most bytes of a hello that are held back: no listener takes a longer one.
pub(crate) const HELLO_BYTES_MAX: usize = 64 << 10;

/// A flight under inspection that has arrived in part.
#[derive(Default)]
pub struct PartialFlight {
    pub(crate) inspection: FlightInspection,
    pub(crate) from_client: Vec<u8>,
    pub(crate) from_server: Vec<u8>,
    pub(crate) never: Option<Reason>,
    /// The tick since which bytes are held back.
    pub(crate) since: Option<NonZeroU32>,
}

/// [`super::Flow::pass`] lets none of the bytes pass.
#[derive(Debug)]
pub struct Never;

impl PartialFlight {
    pub(crate) fn held(&mut self, from: Side) -> &mut Vec<u8> {
        if from == CLIENT { &mut self.from_client } else { &mut self.from_server }
    }

    /// True if bytes are held back.
    pub fn holds(&self) -> bool {
        !self.from_client.is_empty() || !self.from_server.is_empty()
    }

    /// Bytes of memory held.
    pub fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.from_client.capacity() + self.from_server.capacity()
    }
}

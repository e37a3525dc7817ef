//! A watched flight that has come in part.
//! It must not know what is watched for.

use std::num::NonZeroU32;

use crate::inspect::FlightInspection;
use crate::ready::{CLIENT, Side};
use eyelet_telemetry::reason::Reason;

/// Bytes of a hello that are held back: no hello that a listener takes is longer.
pub(super) const HELLO_BYTES_MAX: usize = 64 << 10;

/// A flight that has come in part.
#[derive(Default)]
pub struct PartialFlight {
    pub(super) inspection: FlightInspection,
    pub(super) from_client: Vec<u8>,
    pub(super) from_server: Vec<u8>,
    pub(super) never: Option<Reason>,
    /// The tick since which bytes are held back.
    pub(super) since: Option<NonZeroU32>,
}

/// None of it may pass.
#[derive(Debug)]
pub struct Never;

impl PartialFlight {
    pub(super) fn held(&mut self, from: Side) -> &mut Vec<u8> {
        if from == CLIENT { &mut self.from_client } else { &mut self.from_server }
    }

    /// Whether bytes are held back.
    pub fn holds(&self) -> bool {
        !self.from_client.is_empty() || !self.from_server.is_empty()
    }

    /// Bytes of memory held.
    pub fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.from_client.capacity() + self.from_server.capacity()
    }
}

//! Inspecting a spliced connection's first flights. It holds bytes back only if a flight arrives in
//! pieces.

use super::Flow;
use super::direction::{Direction, Mode};
use super::partial_flight::{HELLO_BYTES_MAX, Never, PartialFlight};
use crate::inspect::{FlightInspection, Pass};
use crate::ready::{CLIENT, Side, UPSTREAM};
use eyelet_telemetry::info::Parked;
use eyelet_telemetry::reason::Reason;

impl Flow {
    /// Starts the inspection of the first flights.
    pub fn inspect(&mut self, forbid_compression: bool) {
        self.up = Direction::Open(Mode::Inspect { forbid_compression });
        self.down = Direction::Open(Mode::Inspect { forbid_compression });
    }

    /// True if a side's bytes are inspected.
    pub fn is_inspected(&self, from: Side) -> bool {
        match from {
            CLIENT => matches!(self.up, Direction::Open(Mode::Inspect { .. })),
            _ => matches!(self.down, Direction::Open(Mode::Inspect { .. })),
        }
    }

    fn end_inspection(&mut self, from: Side) {
        if let Some(mode @ Mode::Inspect { .. }) = self.mode(from) {
            *mode = Mode::Copy;
        }
    }

    /// Returns the number of a side's new bytes that may be sent on at once. Bytes that may not
    /// pass yet are held back. Held-back bytes that may pass now are queued for the other side.
    ///
    /// # Errors
    /// If none may pass: [`Flow::never`] has the reason.
    pub fn pass(
        &mut self,
        from: Side,
        bytes: &[u8],
        sni: Option<&str>,
        chosen: &mut bool,
    ) -> Result<usize, Never> {
        // On the stack: a flight that arrives whole, as most do, costs no allocation.
        let partial_flight = self.transit_mut().and_then(|pending| pending.partial_flight.take());
        let mut partial_flight = partial_flight.map_or_else(PartialFlight::default, |boxed| *boxed);
        let before = partial_flight.held(from).len();
        let pass = if before == 0 {
            self.look(&mut partial_flight.inspection, from, bytes, sni, chosen)
        } else {
            partial_flight.held(from).extend_from_slice(bytes);
            let held = std::mem::take(partial_flight.held(from));
            let pass = self.look(&mut partial_flight.inspection, from, &held, sni, chosen);
            *partial_flight.held(from) = held;
            pass
        };
        let all = before + bytes.len();
        let (passed, done) = match pass {
            Pass::Some(passed) => (passed, &[][..]),
            Pass::Down => (all, &[UPSTREAM][..]),
            Pass::All if from == CLIENT => (all, &[CLIENT][..]),
            Pass::All => (all, &[CLIENT, UPSTREAM][..]),
            Pass::Never(why) => {
                // The caller does not count these bytes.
                partial_flight.held(from).truncate(before);
                partial_flight.never = Some(why);
                self.pending().partial_flight = Some(Box::new(partial_flight));
                return Err(Never);
            }
        };
        done.iter().for_each(|side| self.end_inspection(*side));
        let at_once = if before == 0 {
            partial_flight.held(from).extend_from_slice(&bytes[passed..]);
            passed
        } else {
            let bytes: Vec<u8> = partial_flight.held(from).drain(..passed).collect();
            self.hold(UPSTREAM - from, &bytes);
            0
        };
        if !self.is_inspected(CLIENT) && !self.is_inspected(UPSTREAM) {
            self.hold(UPSTREAM, &partial_flight.from_client);
        } else if !(partial_flight.inspection.is_idle()
            && partial_flight.from_client.is_empty()
            && partial_flight.from_server.is_empty())
        {
            self.pending().partial_flight = Some(Box::new(partial_flight));
        }
        Ok(at_once)
    }

    fn look(
        &self,
        inspection: &mut FlightInspection,
        from: Side,
        held: &[u8],
        sni: Option<&str>,
        chosen: &mut bool,
    ) -> Pass {
        match from {
            CLIENT => inspection.client(held, sni, HELLO_BYTES_MAX),
            _ => {
                let forbid = Direction::Open(Mode::Inspect { forbid_compression: true });
                inspection.server(held, self.down == forbid, || *chosen = true)
            }
        }
    }

    /// Releases the bytes held back from a side whose stream has ended: no more will come.
    pub fn release(&mut self, from: Side) {
        self.end_inspection(from);
        let partial_flight = self.transit_mut().and_then(|pending| pending.partial_flight.as_mut());
        if let Some(partial_flight) = partial_flight {
            let held = std::mem::take(partial_flight.held(from));
            self.hold(UPSTREAM - from, &held);
        }
    }

    /// True if [`Flow::pass`] has refused the bytes.
    pub(crate) fn is_refused(&self) -> bool {
        let partial_flight = self.transit().and_then(|pending| pending.partial_flight.as_ref());
        partial_flight.is_some_and(|partial_flight| partial_flight.never.is_some())
    }

    /// The reason, after [`Flow::pass`] has refused the bytes.
    pub fn never_reason(&mut self) -> Reason {
        let partial_flight = self.transit_mut().and_then(|pending| pending.partial_flight.take());
        let never = partial_flight.and_then(|partial_flight| partial_flight.never);
        never.unwrap_or(Reason::Internal("an inspected flight was stopped without a reason"))
    }

    /// The reason for a parked one, if its bytes were refused. Bytes held back do not count as
    /// moved.
    pub fn never(&mut self, info: &mut Parked) -> Option<Reason> {
        let partial_flight = self
            .transit_mut()?
            .partial_flight
            .take_if(|partial_flight| partial_flight.never.is_some())?;
        info.bytes_to_upstream -= partial_flight.from_client.len() as u64;
        info.bytes_to_client -= partial_flight.from_server.len() as u64;
        partial_flight.never
    }
}

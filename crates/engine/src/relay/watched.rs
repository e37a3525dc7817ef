//! Inspecting a spliced connection's first flights. It holds bytes back only if a flight arrives in
//! pieces.

use super::direction::{Direction, Mode};
use super::flow::Flow;
use super::watching::{HELLO_BYTES_MAX, Never, Watching};
use crate::ready::{CLIENT, Side, UPSTREAM};
use crate::watch::{Pass, Watch};
use eyelet_telemetry::info::Parked;
use eyelet_telemetry::reason::Reason;

impl Flow {
    /// Starts the inspection of the first flights.
    pub fn watch(&mut self, forbid_compression: bool) {
        self.up = Direction::Open(Mode::Inspect { forbid_compression });
        self.down = Direction::Open(Mode::Inspect { forbid_compression });
    }

    /// Whether a side's bytes are inspected.
    pub fn is_watched(&self, from: Side) -> bool {
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

    /// How many of a side's new bytes may be sent on at once. Bytes that may not pass yet are held
    /// back. Held-back bytes that may pass now are queued for the other side.
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
        let watching = self.pending.as_mut().and_then(|pending| pending.watching.take());
        let mut watching = watching.map_or_else(Watching::default, |boxed| *boxed);
        let before = watching.held(from).len();
        let pass = if before == 0 {
            self.look(&mut watching.watch, from, bytes, sni, chosen)
        } else {
            watching.held(from).extend_from_slice(bytes);
            let held = std::mem::take(watching.held(from));
            let pass = self.look(&mut watching.watch, from, &held, sni, chosen);
            *watching.held(from) = held;
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
                watching.held(from).truncate(before);
                watching.never = Some(why);
                self.pending().watching = Some(Box::new(watching));
                return Err(Never);
            }
        };
        done.iter().for_each(|side| self.end_inspection(*side));
        let at_once = if before == 0 {
            watching.held(from).extend_from_slice(&bytes[passed..]);
            passed
        } else {
            let let_go: Vec<u8> = watching.held(from).drain(..passed).collect();
            self.hold(UPSTREAM - from, &let_go);
            0
        };
        if !self.is_watched(CLIENT) && !self.is_watched(UPSTREAM) {
            self.hold(UPSTREAM, &watching.from_client);
        } else if !(watching.watch.is_idle()
            && watching.from_client.is_empty()
            && watching.from_server.is_empty())
        {
            self.pending().watching = Some(Box::new(watching));
        }
        Ok(at_once)
    }

    fn look(
        &self,
        watch: &mut Watch,
        from: Side,
        held: &[u8],
        sni: Option<&str>,
        chosen: &mut bool,
    ) -> Pass {
        match from {
            CLIENT => watch.client(held, sni, HELLO_BYTES_MAX),
            _ => {
                let forbid = Direction::Open(Mode::Inspect { forbid_compression: true });
                watch.server(held, self.down == forbid, || *chosen = true)
            }
        }
    }

    /// Releases the bytes held back from a side whose stream has ended: no more will come.
    pub fn let_go(&mut self, from: Side) {
        self.end_inspection(from);
        let watching = self.pending.as_mut().and_then(|pending| pending.watching.as_mut());
        if let Some(watching) = watching {
            let held = std::mem::take(watching.held(from));
            self.hold(UPSTREAM - from, &held);
        }
    }

    /// Whether [`Flow::pass`] has refused the bytes.
    pub(super) fn is_refused(&self) -> bool {
        let watching = self.pending.as_ref().and_then(|pending| pending.watching.as_ref());
        watching.is_some_and(|watching| watching.never.is_some())
    }

    /// The reason, after [`Flow::pass`] has refused the bytes.
    pub fn never_reason(&mut self) -> Reason {
        let watching = self.pending.as_mut().and_then(|pending| pending.watching.take());
        let never = watching.and_then(|watching| watching.never);
        never.unwrap_or(Reason::Internal("an inspected flight was stopped without a reason"))
    }

    /// The same for a parked connection, if its bytes were refused. Bytes held back do not count as
    /// moved.
    pub fn never(&mut self, info: &mut Parked) -> Option<Reason> {
        let watching =
            self.pending.as_mut()?.watching.take_if(|watching| watching.never.is_some())?;
        info.bytes_to_upstream -= watching.from_client.len() as u64;
        info.bytes_to_client -= watching.from_server.len() as u64;
        watching.never
    }
}

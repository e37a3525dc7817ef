//! A flow in a form for another process: crates/handover/README.md describes it.

use eyelet_memory::packed::PackedBytes;
use eyelet_wire::websocket::{EXPORT_BYTES, FrameReader};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::direction::{ClientEnd, Direction, Mode, UpstreamEnd};
use super::frames::WebSocketFrames;
use super::partial_flight::PartialFlight;
use super::{Flow, Held, Partial, Pending};
use crate::buffers::{Buffers, INPUT_BYTES};
use crate::inspect::FlightInspection;
use crate::inspect::export::InspectionV1;

/// Most bytes that one direction of a connection takes along. It holds at most a buffer of sealed
/// records (260 KiB) and a pipe (1 MiB).
pub const HELD_BYTES_MAX: usize = 2 << 20;
/// Most bytes of a PROXY header of version 2: its fixed part, and as much as its length can say.
const PREFACE_BYTES_MAX: usize = 16 + 0xffff;
/// Most bytes of the program's state: several times what HTTP/2 has, which is 90 bytes of numbers
/// and tables of at most 4 KiB and 1 KiB.
pub const STATE_BYTES_MAX: usize = 32 << 10;

/// The reason why the form is not a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FlowFault {
    /// More bytes are held than any connection holds.
    #[error("{0} bytes are held in one place, which is too much")]
    TooLong(usize),
    /// No inspection stops in this way.
    #[error("no inspection of a first flight stops so")]
    Inspection,
    /// No WebSocket can be there.
    #[error("no WebSocket stops so within its frames")]
    WebSocket,
    /// Bytes of a terminated connection are neither inspected nor spliced.
    #[error("a terminated connection has a spliced one's state")]
    Mode,
}

/// Version 1 of the form.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct FlowV1<'a> {
    up: Direction<ClientEnd>,
    down: Direction<UpstreamEnd>,
    is_asked: bool,
    is_written_once: bool,
    to_upstream: &'a [u8],
    to_client: &'a [u8],
    /// The beginning of a TLS record.
    partial: &'a [u8],
    preface: &'a [u8],
    #[serde(borrow)]
    flight: Option<FlightV1<'a>>,
    websocket: Option<WebSocketV1>,
}

/// The places in a WebSocket's frames: [`FrameReader::export`] of both directions.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
struct WebSocketV1 {
    up: [u8; EXPORT_BYTES],
    down: [u8; EXPORT_BYTES],
}

/// [`PartialFlight`].
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct FlightV1<'a> {
    inspection: InspectionV1,
    from_client: &'a [u8],
    from_server: &'a [u8],
}

impl Flow {
    /// Moves the bytes in its pipes to memory. They follow the bytes that are in memory already.
    ///
    /// # Errors
    /// The kernel's. The rest of the bytes then stays in the pipe.
    pub fn drain_pipes(&mut self, buffers: &mut Buffers) -> std::io::Result<()> {
        let Some(pending) = self.transit_mut() else { return Ok(()) };
        for held in [&mut pending.to_upstream, &mut pending.to_client] {
            held.drain_pipe(buffers)?;
        }
        Ok(())
    }

    /// True if nothing that it holds is a reason to stay: bytes beyond the limits, or a flight that
    /// is refused and about to end the connection.
    pub fn may_leave(&self) -> bool {
        let state_bytes = self.state().map_or(0, PackedBytes::whole_len);
        let exchange_bytes = self.exchange().map_or(0, <[u8]>::len);
        state_bytes.max(exchange_bytes) <= STATE_BYTES_MAX
            && !self.is_refused()
            && self.export().check().is_ok()
    }

    /// The form, without the program's state. Its pipes are empty.
    pub fn export(&self) -> FlowV1<'_> {
        let pending = self.transit();
        let unsent = |held: fn(&Pending) -> &Held| {
            pending.map(held).and_then(|held| held.bytes.get(held.sent..)).unwrap_or_default()
        };
        let flight = pending.and_then(|pending| pending.partial_flight.as_deref());
        FlowV1 {
            up: self.up,
            down: self.down,
            is_asked: self.is_asked(),
            is_written_once: self.is_written_once,
            to_upstream: unsent(|pending| &pending.to_upstream),
            to_client: unsent(|pending| &pending.to_client),
            partial: pending.map_or(&[], |pending| &pending.partial.bytes),
            preface: pending.map_or(&[], |pending| &pending.preface),
            flight: flight.map(|flight| FlightV1 {
                inspection: flight.inspection.export(),
                from_client: &flight.from_client,
                from_server: &flight.from_server,
            }),
            websocket: self
                .followed()
                .map(|frames| WebSocketV1 { up: frames.up.export(), down: frames.down.export() }),
        }
    }
}

impl Held {
    fn drain_pipe(&mut self, buffers: &mut Buffers) -> std::io::Result<()> {
        let Some((lent, mut left)) = self.pipe.take() else { return Ok(()) };
        // All at once: the connection is about to leave, and its memory is counted after this.
        self.bytes.drain(..std::mem::take(&mut self.sent));
        self.bytes.reserve_exact(left);
        while left > 0 {
            let at = self.bytes.len();
            self.bytes.resize(at + left, 0);
            let read = lent.pipe.read(&mut self.bytes[at..]);
            let read = match read {
                Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(0),
                other => other,
            };
            self.bytes.truncate(at + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(read) => left -= read,
                Err(error) => {
                    self.pipe = Some((lent, left));
                    return Err(error);
                }
            }
        }
        buffers.give_back(lent);
        Ok(())
    }
}

impl FlowV1<'_> {
    /// Checks that every part is one that a flow can have.
    fn check(&self) -> Result<(), FlowFault> {
        let flight = self.flight.as_ref();
        let flights = flight.map(|flight| (flight.from_client, flight.from_server));
        let (from_client, from_server) = flights.unwrap_or_default();
        for (bytes, max) in [
            (self.to_upstream, HELD_BYTES_MAX),
            (self.to_client, HELD_BYTES_MAX),
            // A wake copies it to the worker's buffer.
            (self.partial, INPUT_BYTES),
            (self.preface, PREFACE_BYTES_MAX),
            (from_client, HELD_BYTES_MAX),
            (from_server, HELD_BYTES_MAX),
        ] {
            if bytes.len() > max {
                return Err(FlowFault::TooLong(bytes.len()));
            }
        }
        Ok(())
    }

    /// Checks that it can be a terminated connection's: nothing is inspected or spliced.
    pub fn check_terminated(&self) -> Result<(), FlowFault> {
        let copies = |mode: Mode| mode == Mode::Copy;
        let up = matches!(self.up, Direction::Open(mode) if !copies(mode));
        let down = matches!(self.down, Direction::Open(mode) if !copies(mode));
        if up || down || self.flight.is_some() { Err(FlowFault::Mode) } else { Ok(()) }
    }

    /// True if it can be that of a connection whose TLS is towards the upstream: nothing is to be
    /// sent before the bytes, and it is no WebSocket.
    pub fn is_originated(&self) -> bool {
        self.preface.is_empty() && self.websocket.is_none()
    }

    /// True if it can be that of a client without TLS: it holds bytes for its client at most.
    pub fn is_cleartext(&self) -> bool {
        let is_open = matches!(self.up, Direction::Open(Mode::Copy))
            && matches!(self.down, Direction::Open(Mode::Copy));
        let held = [self.to_upstream, self.partial, self.preface];
        let holds = held.iter().any(|bytes| !bytes.is_empty());
        is_open && !holds && self.flight.is_none() && self.websocket.is_none()
    }

    /// Bytes of flights under inspection, which count as moved: from the client and the server.
    pub fn inspected_bytes(&self) -> (u64, u64) {
        let flight = self.flight.as_ref();
        flight.map_or((0, 0), |flight| {
            (flight.from_client.len() as u64, flight.from_server.len() as u64)
        })
    }

    /// The flow.
    ///
    /// # Errors
    /// A part that no flow has.
    pub fn flow(&self) -> Result<Flow, FlowFault> {
        self.check()?;
        let mut flow = Flow::default();
        (flow.up, flow.down) = (self.up, self.down);
        flow.set_asked(self.is_asked);
        flow.is_written_once = self.is_written_once;
        let partial_flight = match &self.flight {
            Some(flight) => Some(Box::new(flight.partial_flight()?)),
            None => None,
        };
        let held = |bytes: &[u8]| Held { bytes: bytes.to_vec(), ..Held::default() };
        let pending = Pending {
            to_upstream: held(self.to_upstream),
            to_client: held(self.to_client),
            partial: Partial { bytes: self.partial.to_vec(), since: None },
            preface: self.preface.to_vec(),
            partial_flight,
            frames: WebSocketFrames::default(),
        };
        flow.set_transit(pending);
        if let Some(WebSocketV1 { up, down }) = self.websocket {
            let frames = FrameReader::import(up).zip(FrameReader::import(down));
            let (up, down) = frames.ok_or(FlowFault::WebSocket)?;
            flow.follow_websocket(WebSocketFrames { up, down });
        }
        flow.drop_empty();
        Ok(flow)
    }
}

impl FlightV1<'_> {
    fn partial_flight(&self) -> Result<PartialFlight, FlowFault> {
        let inspection = FlightInspection::import(&self.inspection).ok_or(FlowFault::Inspection)?;
        Ok(PartialFlight {
            inspection,
            from_client: self.from_client.to_vec(),
            from_server: self.from_server.to_vec(),
            never: None,
            since: None,
        })
    }
}

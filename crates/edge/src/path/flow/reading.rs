//! Reads the hello of a flow from its datagrams, and says what its client is told.

use std::sync::Arc;

use eyelet_engine::worker::Handle;
use eyelet_handover::guard::{DatagramGuard, GuardTurn};
use eyelet_memory::budget::{Account, Budget, Counted};
use eyelet_memory::slab::Key;
use eyelet_quic::{InitialRead, InitialReader, crypto_error, refusal};
use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::{Limit, Reason, Stage, When};
use eyelet_wire::hello::Hello;
use eyelet_wire::quic::{QuicAnswer, QuicFault, QuicHeader, QuicId, packets};

use crate::path::refuse::RefusalMessage;

/// The end of a flow that does not pass, and what its client is told.
pub struct RefusedFlow {
    pub message: RefusalMessage,
    pub end: End,
}

impl From<End> for RefusedFlow {
    fn from(end: End) -> Self {
        Self { message: RefusalMessage::of(&end.reason), end }
    }
}

/// A flow whose hello is read.
pub struct FlowReading {
    pub flow: Key,
    reader: Option<InitialReader>,
    /// The client's own id in its first packet.
    client_id: Option<QuicId>,
    /// Datagrams that the reader has seen, of those that wait.
    seen: usize,
}

/// The answer of a read.
// It lives on the heap, in the future of a decision.
#[allow(clippy::large_enum_variant)]
pub enum FlowHello {
    Hello(Hello<'static>),
    /// Nothing: the version is unknown, and so is what its packets say.
    OtherVersion,
}

impl FlowReading {
    /// Nothing is read.
    pub fn new(flow: Key) -> Self {
        Self { flow, reader: None, client_id: None, seen: 0 }
    }

    /// Reads the hello as its datagrams come.
    pub async fn hello(
        &mut self,
        handle: &Handle,
        hello_bytes_max: usize,
    ) -> Result<FlowHello, RefusedFlow> {
        loop {
            let Some(datagram) = handle.waiting_datagram(self.flow, self.seen) else {
                handle.next_datagram(self.flow).await.map_err(|wait_error| {
                    let when = When::During(Stage::Hello);
                    RefusedFlow::from(End::failed(wait_error.reason(Limit::Hello, when)))
                })?;
                continue;
            };
            let reader = match &mut self.reader {
                Some(reader) => reader,
                None => match InitialReader::new(&datagram.bytes, hello_bytes_max) {
                    Ok(reader) => {
                        self.client_id = source_id(&datagram.bytes);
                        self.reader.insert(reader)
                    }
                    Err(QuicFault::OtherVersion(_)) => return Ok(FlowHello::OtherVersion),
                    Err(fault) => return Err(faulty(fault)),
                },
            };
            match reader.feed(&datagram.bytes) {
                InitialRead::NeedMore | InitialRead::Known => self.seen += 1,
                InitialRead::Hello(hello) => {
                    self.seen += 1;
                    return Ok(FlowHello::Hello(hello));
                }
                InitialRead::Fault(fault) if fault.answer() == QuicAnswer::Drop => {
                    handle.drop_datagram(self.flow, self.seen);
                }
                InitialRead::Fault(fault) => return Err(faulty(fault)),
            }
        }
    }

    /// The guard of the flow's datagrams, and how many of those that wait it has seen.
    pub fn guard(&mut self, budget: &Arc<Budget>) -> (Option<Box<dyn DatagramGuard>>, usize) {
        let guard = self.reader.take();
        let guard = guard.map(|reader| ReadingGuard::boxed(reader, self.client_id, budget));
        (guard, self.seen)
    }

    /// The datagram that ends the client's connection. Empty: it gets none.
    pub fn refusal(&self, message: &RefusalMessage, end: &End) -> Vec<u8> {
        match &self.reader {
            Some(reader) => refused(reader, self.client_id, message, &end.reason),
            None => Vec::new(),
        }
    }
}

/// The datagram that ends the connection of a client for this reason. Empty: it gets none.
fn refused(
    reader: &InitialReader,
    client_id: Option<QuicId>,
    message: &RefusalMessage,
    reason: &Reason,
) -> Vec<u8> {
    let code = match (reason, message) {
        (Reason::MalformedQuic(fault), _) => match fault.answer() {
            QuicAnswer::Close(code) => code,
            QuicAnswer::Drop => return Vec::new(),
        },
        (_, RefusalMessage::Alert(alert)) => crypto_error(*alert),
        (_, RefusalMessage::BadRequest | RefusalMessage::Nothing) => return Vec::new(),
    };
    let Some(client_id) = client_id else { return Vec::new() };
    refusal(reader.version(), reader.client_dcid(), &client_id, code).unwrap_or_default()
}

/// The guard of a flow from another process. `None`: its bytes are of no reader.
pub fn import_guard(
    bytes: &[u8],
    hello_bytes_max: usize,
    budget: &Arc<Budget>,
) -> Option<Box<dyn DatagramGuard>> {
    // A hello that has passed may be longer than the newest limit.
    let reader = InitialReader::import(bytes, hello_bytes_max.max(bytes.len()))?;
    // Its client's id stays behind: a client that its server does not answer now is not told.
    Some(ReadingGuard::boxed(reader, None, budget))
}

/// Reads a client's datagrams after the decision, as long as one may have a hello.
struct ReadingGuard {
    reader: InitialReader,
    /// The client's own id, by which it is told that there is no upstream.
    client_id: Option<QuicId>,
    counted: Counted,
}

impl ReadingGuard {
    fn boxed(
        reader: InitialReader,
        client_id: Option<QuicId>,
        budget: &Arc<Budget>,
    ) -> Box<dyn DatagramGuard> {
        let counted = Counted::of(budget, Account::Flows, held(&reader));
        Box::new(Self { reader, client_id, counted })
    }
}

fn held(reader: &InitialReader) -> usize {
    size_of::<ReadingGuard>() + reader.held_bytes()
}

impl DatagramGuard for ReadingGuard {
    fn read(&mut self, datagram: &[u8], server_id: Option<&[u8]>) -> GuardTurn {
        if let Some(id) = server_id {
            self.reader.note_server_id(id);
        }
        let read = self.reader.feed(datagram);
        self.counted.set(held(&self.reader));
        match read {
            InitialRead::Fault(QuicFault::OtherName) => {
                GuardTurn::Ends(Reason::MalformedQuic(QuicFault::OtherName))
            }
            InitialRead::Fault(_) => GuardTurn::Drops,
            InitialRead::NeedMore | InitialRead::Known | InitialRead::Hello(_) => GuardTurn::Passes,
        }
    }

    fn export(&self) -> Option<Vec<u8>> {
        self.reader.export()
    }

    fn refusal(&self, reason: &Reason) -> Vec<u8> {
        refused(&self.reader, self.client_id, &RefusalMessage::of(reason), reason)
    }
}

fn faulty(fault: QuicFault) -> RefusedFlow {
    let end = End { outcome: Outcome::Refused, reason: Reason::MalformedQuic(fault) };
    RefusedFlow { message: RefusalMessage::Nothing, end }
}

/// The source id of a datagram's first packet.
fn source_id(datagram: &[u8]) -> Option<QuicId> {
    match packets(datagram).next()?.ok()?.header {
        QuicHeader::Long(long) => QuicId::new(long.scid),
        QuicHeader::Short { .. } => None,
    }
}

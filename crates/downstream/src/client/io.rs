//! A terminated connection as a stream that a task reads and writes. Records are opened and sealed
//! in the worker's buffers.
//!
//! `record` opens and seals for this file and for `relay/terminate.rs` of `engine`. Each holds
//! unsent bytes and the beginning of a record in its own way: here a task waits for the socket, and
//! counts them with its other memory.

mod cleartext;

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use eyelet_record::{Keys, OpenFailure, PAYLOAD_BYTES_MAX, RecordFault, Session, alert};
use eyelet_sys::epoll::FAILED;
use eyelet_sys::socket;

use eyelet_engine::ready::{CLIENT, READ, UPSTREAM, WRITE};
use eyelet_engine::table::Slot;
use eyelet_engine::worker::Handle;
use eyelet_engine::worker::WaitError;
use eyelet_http1::spare_heads::append;
use eyelet_http1::write_queue::WriteQueue;
use eyelet_memory::budget::{Counted, HELLO_BYTES};
use eyelet_memory::buffer::held_by;
use eyelet_memory::packed::PackedBytes;
use eyelet_memory::wiped::WipedBytes;
use eyelet_relay::terminate::{Terminated, whole_records};
use eyelet_relay::{Flow, Relay, Rest, WebSocketFrames};
use eyelet_telemetry::reason::{Limit, Reason, Stage, When};

/// Bytes read at once: four records. An upload's memory is a small multiple of this.
pub const READ_BYTES: usize = 4 * (PAYLOAD_BYTES_MAX + 256);
/// The fewest bytes read at once, and the most while memory is short: a whole record. With less,
/// its beginning would be copied again for each piece.
const TIGHT_BYTES: usize = PAYLOAD_BYTES_MAX + 261;
/// Records of queued bytes sealed at once: we hold at most 64 KiB for a slow reader.
const RECORDS: usize = 4;
/// Records sealed at once of a body that passes unchanged: as many as the engine's relay seals.
pub const PASSED_RECORDS_MAX: usize = 16;
/// Payload of so many records.
pub const PASSED_BYTES_MAX: usize = PASSED_RECORDS_MAX * PAYLOAD_BYTES_MAX;
const _: () = assert!(READ_BYTES + PAYLOAD_BYTES_MAX + 2048 <= 16 * PAYLOAD_BYTES_MAX);

/// The reason why a client's stream cannot be used any more.
#[derive(Debug)]
pub enum ClientLost {
    /// It sent an alert.
    Alert(u8),
    /// It broke the record layer's protocol; the alert is sealed.
    Fault(RecordFault),
    /// Its socket failed, or a deadline passed.
    Wait(WaitError),
}

impl From<WaitError> for ClientLost {
    fn from(wait_error: WaitError) -> Self {
        Self::Wait(wait_error)
    }
}

impl From<io::Error> for ClientLost {
    fn from(error: io::Error) -> Self {
        Self::Wait(WaitError::Io(error))
    }
}

impl From<RecordFault> for ClientLost {
    fn from(fault: RecordFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<OpenFailure> for ClientLost {
    fn from(failure: OpenFailure) -> Self {
        match failure {
            OpenFailure::Alert(code) => Self::Alert(code),
            OpenFailure::Fault(fault) => Self::Fault(fault),
        }
    }
}

impl ClientLost {
    /// Returns the reason.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Alert(code) => Reason::ClientAlert(*code),
            Self::Fault(fault) => Reason::Record(*fault),
            Self::Wait(WaitError::Drained) => Reason::Drained(None),
            Self::Wait(WaitError::Late) => Reason::Timeout(Limit::Taking, None),
            Self::Wait(WaitError::Io(error)) => {
                Reason::client_io(error, Some(When::During(Stage::Response)))
            }
            Self::Wait(wait_error) => {
                wait_error.reason(Limit::Taking, When::During(Stage::Request))
            }
        }
    }
}

/// The client of an active terminated connection.
pub struct ClientStream {
    /// Its slot.
    pub handle: Rc<Handle>,
    /// Plaintext that was not taken yet.
    pub plain: BytesMut,
    /// Bytes of memory that `plain` holds.
    plain_held: usize,
    /// Bytes of payload written.
    pub bytes_to_client: Rc<Cell<u64>>,
    counted: Counted,
    /// `None`: it sends requests in the clear.
    session: Option<Session>,
    keys: Keys,
    partial: Vec<u8>,
    /// True if `partial` may contain a whole record.
    fresh: bool,
    sealed: Vec<u8>,
    sent: usize,
    ended: bool,
    truncated: bool,
}

/// A parked connection that a task takes over.
pub struct OpenedClient {
    /// Its client.
    pub client: ClientStream,
    /// The PROXY header for its upstream; empty if none.
    pub preface: Vec<u8>,
    /// The state of HTTP/2.
    pub state: Option<PackedBytes>,
    /// An exchange that rested. It may hold secrets.
    pub exchange: Option<WipedBytes>,
}

impl OpenedClient {
    /// Takes a connection over.
    pub fn new(handle: Handle, terminated: Terminated) -> Self {
        let mut rest = terminated.flow.into_rest();
        let client = ClientStream::parked(handle, Some(terminated.session), &mut rest);
        Self::of(client, rest)
    }

    /// Takes a connection without TLS over.
    pub fn cleartext(handle: Handle, flow: Flow) -> Self {
        let mut rest = flow.into_rest();
        let client = ClientStream::parked(handle, None, &mut rest);
        Self::of(client, rest)
    }

    fn of(client: ClientStream, rest: Rest) -> Self {
        Self { client, preface: rest.preface, state: rest.state, exchange: rest.exchange }
    }
}

impl ClientStream {
    /// The side of a connection that was parked. Takes what was left of its bytes.
    fn parked(handle: Handle, session: Option<Session>, rest: &mut Rest) -> Self {
        let counted = Counted::new(&handle.worker.process.budget, 0);
        let mut client = Self {
            handle: Rc::new(handle),
            counted,
            plain: BytesMut::from(&rest.to_upstream[..]),
            plain_held: 0,
            bytes_to_client: Rc::default(),
            ended: session.as_ref().is_some_and(Session::read_closed),
            session,
            keys: Keys::new(),
            fresh: !rest.partial.is_empty(),
            partial: std::mem::take(&mut rest.partial),
            sealed: std::mem::take(&mut rest.to_client),
            sent: 0,
            truncated: false,
        };
        client.recount();
        client
    }

    /// Turns it back into what the table keeps. It must be at rest: nothing unread, nothing unsent,
    /// not ended. `state` is HTTP/2's.
    pub fn into_parked(self, preface: Vec<u8>, state: Option<PackedBytes>) -> (Rc<Handle>, Relay) {
        let mut flow = Flow::default();
        if let Some(state) = state {
            flow.keep_state(state);
        }
        flow.hold_partial(&self.partial);
        flow.hold(CLIENT, &self.sealed[self.sent..]);
        flow.hold_preface(preface);
        let relay = match self.session {
            Some(session) => Relay::Terminate(Terminated { session, flow }),
            None => Relay::Cleartext(flow),
        };
        (self.handle, relay)
    }

    /// Turns it back likewise for an exchange that rests: see [`ClientStream::may_rest`]. Its
    /// upstream is in the slot.
    pub fn into_resting(self, preface: Vec<u8>, exchange: &[u8]) -> (Rc<Handle>, Relay) {
        let (handle, mut relay) = self.into_parked(preface, None);
        relay.flow().keep_exchange(exchange);
        (handle, relay)
    }

    /// Turns it back likewise for a connection whose client has sent bytes that the upstream has
    /// not received. `frames` are those of a WebSocket.
    pub fn into_pair(self, frames: Option<WebSocketFrames>) -> Option<(Rc<Handle>, Terminated)> {
        let mut flow = Flow::default();
        flow.hold_partial(&self.partial);
        flow.hold(CLIENT, &self.sealed[self.sent..]);
        flow.hold(UPSTREAM, &self.plain);
        if let Some(frames) = frames {
            flow.follow_websocket(frames);
        }
        Some((self.handle, Terminated { session: self.session?, flow }))
    }

    /// True if it can be parked: nothing is unread or unsent, and the client has not ended its
    /// stream.
    pub fn is_at_rest(&self) -> bool {
        self.plain.is_empty() && self.sealed.is_empty() && !self.ended
    }

    /// True if it can be parked in the middle of an exchange, which nothing is to end. Bytes that
    /// the client has not taken rest with it.
    pub fn may_rest(&self) -> bool {
        self.plain.is_empty() && self.partial.is_empty() && !self.ended && !self.handle.is_to_end()
    }

    /// True if it can be parked before a request that it has sent: it has TLS, has not ended, and
    /// nothing is unsent.
    pub fn may_be_held(&self) -> bool {
        self.has_tls() && self.sealed.is_empty() && !self.ended && !self.handle.is_to_end()
    }

    /// Gives back what was read of a request that was held.
    pub fn give_back(&mut self, plain: &[u8]) {
        self.plain = BytesMut::from(plain);
        self.recount();
    }

    /// Seals all of a queue, and sends what the socket accepts.
    ///
    /// # Errors
    /// The session may seal no more, or the socket has failed.
    pub fn seal_all(&mut self, queue: &mut WriteQueue) -> Result<(), ClientLost> {
        while !queue.is_empty() {
            self.seal(|room| queue.fill(room))?;
        }
        Ok(())
    }

    /// True if it speaks TLS.
    pub fn has_tls(&self) -> bool {
        self.session.is_some()
    }

    /// True if the client has ended its stream.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// True if its stream was cut.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// True if a write would be sent at once, as far as can be seen.
    pub fn takes(&self) -> bool {
        let mut table = self.handle.worker.table.borrow_mut();
        let slot = table.slot(self.handle.key());
        // A socket that is gone accepts everything.
        let is_sent = |slot: &mut Slot| socket::unsent(&slot.client).is_ok_and(|left| left == 0);
        self.sealed.is_empty() && slot.is_none_or(is_sent)
    }

    /// Counts the memory that it holds beyond an active connection's share.
    pub fn recount(&mut self) {
        self.plain_held = held_by(&mut self.plain, self.plain_held);
        let held = self.plain_held + self.partial.capacity() + self.sealed.capacity();
        self.counted.set(held.saturating_sub(HELLO_BYTES));
    }

    /// Reads and opens about `max` bytes, or one record. Returns how many bytes were added to
    /// `plain`; 0 is the end.
    pub fn poll_fill(
        &mut self,
        task: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<usize, ClientLost>> {
        self.poll_fill_by(task, max.min(READ_BYTES), |_| 0)
    }

    /// Reads and opens likewise, but lends the plaintext before any of it is added to `plain`.
    /// `take` returns how many bytes of it were taken; the others are added.
    pub fn poll_fill_by(
        &mut self,
        task: &mut Context<'_>,
        max: usize,
        mut take: impl FnMut(&[u8]) -> usize,
    ) -> Poll<Result<usize, ClientLost>> {
        loop {
            if !self.fresh {
                if self.ended {
                    return Poll::Ready(Ok(0));
                }
                ready!(self.handle.poll_ready(task, &[CLIENT], READ))?;
            }
            let read = self.read_records(max, &mut take);
            self.recount();
            // The answer to a KeyUpdate does not wait for a response.
            if !self.sealed.is_empty()
                && let Poll::Ready(Err(client_lost)) = self.poll_flush_sealed(task)
            {
                return Poll::Ready(Err(client_lost));
            }
            match read {
                Ok(None) => {
                    // Its deadline still counts.
                    self.handle.in_time()?;
                    self.handle.worker.wants_memory(task);
                    return Poll::Pending;
                }
                Ok(Some(0)) if !self.ended => {}
                Ok(Some(opened)) => return Poll::Ready(Ok(opened)),
                Err(client_lost) => {
                    if let ClientLost::Fault(fault) = &client_lost {
                        self.seal_alert(fault.alert());
                    }
                    return Poll::Ready(Err(client_lost));
                }
            }
        }
    }

    /// True if the socket has failed, without waiting.
    pub fn has_failed(&self) -> bool {
        self.handle.has(CLIENT, FAILED)
    }

    /// Returns how far the input may be filled. While memory is short, an incomplete record stays
    /// in the kernel: `None` if there is no whole one.
    fn room(&self, input: &mut [u8], filled: usize, max: usize) -> Option<usize> {
        if let Some(piece) = self.handle.worker.process.budget.piece() {
            return Some((filled + max.max(TIGHT_BYTES).min(piece)).min(input.len()));
        }
        let mut table = self.handle.worker.table.borrow_mut();
        let Some(slot) = table.slot(self.handle.key()) else { return Some(filled + 1) };
        whole_records(slot.client.as_fd(), &mut input[..filled + TIGHT_BYTES], filled)
    }

    /// Reads and opens what has arrived. `None`: memory is too short for that.
    fn read_records(
        &mut self,
        max: usize,
        take: &mut impl FnMut(&[u8]) -> usize,
    ) -> Result<Option<usize>, ClientLost> {
        if self.session.is_none() {
            return self.read_cleartext(max, take);
        }
        let worker = self.handle.worker.clone();
        let input = &mut *worker.buffers.borrow_mut().input;
        let mut filled = self.partial.len();
        input[..filled].copy_from_slice(&self.partial);
        if !std::mem::take(&mut self.fresh) {
            let Some(room) = self.room(input, filled, max) else { return Ok(None) };
            match self.handle.recv_now(CLIENT, &mut input[filled..room])? {
                None => return Ok(Some(0)),
                Some(0) => {
                    self.ended = true;
                    self.truncated = self.session.as_ref().is_some_and(|tls| !tls.read_closed());
                }
                Some(read) => filled += read,
            }
        }
        let Some(session) = &mut self.session else { return Ok(None) };
        let mut plain = 0..0;
        let at = session.open_all(&mut self.keys, &mut input[..filled], |input, data| {
            if plain.is_empty() {
                // The first stays in place, so a single record is never moved.
                plain = data;
            } else {
                plain.end += data.len();
                input.copy_within(data.clone(), plain.end - data.len());
            }
        });
        let opened = plain.len();
        let taken = if opened > 0 { take(&input[plain.clone()]) } else { 0 };
        append(&mut self.plain, &input[plain.start + taken..plain.end]);
        let at = at?;
        self.ended |= session.read_closed();
        self.seal_control()?;
        self.partial = input[at..filled].to_vec();
        Ok(Some(opened))
    }

    /// Seals the answer to a KeyUpdate, if one is due.
    fn seal_control(&mut self) -> Result<(), RecordFault> {
        if let Some(session) = self.session.as_mut().filter(|session| session.control_due()) {
            let record = session.control(&mut self.keys)?;
            self.sealed.extend_from_slice(&record);
        }
        Ok(())
    }

    /// Seals an alert, which may be close_notify, after what was written.
    pub fn seal_alert(&mut self, description: u8) {
        if let Some(session) = &mut self.session {
            let record = session.alert(&mut self.keys, description);
            self.sealed.extend_from_slice(&record);
        }
    }

    /// The sealed bytes that were not sent, and a close_notify after them.
    pub fn close_notify(&mut self) -> Vec<u8> {
        self.seal_alert(alert::CLOSE_NOTIFY);
        self.unsent()
    }

    /// The number of sealed bytes that were not sent.
    pub fn unsent_bytes(&self) -> usize {
        self.sealed.len() - self.sent
    }

    /// Takes the sealed bytes that were not sent.
    pub fn unsent(&mut self) -> Vec<u8> {
        self.sealed.split_off(self.sent)
    }

    /// Seals up to `RECORDS` records of what `fill` writes, and sends what the socket accepts.
    pub fn seal(&mut self, mut fill: impl FnMut(&mut [u8]) -> usize) -> Result<usize, ClientLost> {
        self.seal_by::<RECORDS>(RECORDS * PAYLOAD_BYTES_MAX, |slots| {
            let mut payload = 0;
            for slot in slots {
                let filled = fill(slot);
                payload += filled;
                if filled < slot.len() {
                    break;
                }
            }
            payload
        })
    }

    /// Seals what `fill` writes to the places of so many records, at most `max` bytes of payload,
    /// and sends what the socket accepts.
    pub fn seal_by<const RECORDS: usize>(
        &mut self,
        max: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> usize,
    ) -> Result<usize, ClientLost> {
        self.seal_control()?;
        let worker = self.handle.worker.clone();
        let output = &mut *worker.buffers.borrow_mut().output;
        let payload;
        let at = match &mut self.session {
            Some(session) => {
                payload = {
                    let (mut places, mut left) = (session.slots(output), max);
                    let mut slots: [_; RECORDS] = std::array::from_fn(|_| {
                        let place = places.next().unwrap_or_default();
                        let len = place.len().min(left);
                        left -= len;
                        IoSliceMut::new(&mut place[..len])
                    });
                    fill(&mut slots[..max.div_ceil(PAYLOAD_BYTES_MAX).min(RECORDS)])
                };
                session.seal_slots(&mut self.keys, output, payload)?
            }
            None => {
                let max = max.min(RECORDS * PAYLOAD_BYTES_MAX);
                payload = fill(&mut [IoSliceMut::new(&mut output[..max])]);
                payload
            }
        };
        if at == 0 {
            return Ok(0);
        }
        self.bytes_to_client.update(|bytes| bytes + payload as u64);
        let sent = match self.sealed.is_empty() {
            true => self.send_now(&output[..at])?,
            false => 0,
        };
        self.sealed.extend_from_slice(&output[sent..at]);
        if sent < at {
            self.recount();
        }
        Ok(payload)
    }

    fn send_now(&self, bytes: &[u8]) -> Result<usize, ClientLost> {
        match self.handle.send(CLIENT, bytes) {
            Ok(sent) => Ok(sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends all that is sealed.
    pub fn poll_flush_sealed(&mut self, task: &mut Context<'_>) -> Poll<Result<(), ClientLost>> {
        if self.sealed.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.sent < self.sealed.len() {
            let sent = self.send_now(&self.sealed[self.sent..])?;
            self.sent += sent;
            if sent == 0 {
                ready!(self.handle.poll_ready(task, &[CLIENT], WRITE))?;
            }
        }
        (self.sealed, self.sent) = (Vec::new(), 0);
        self.recount();
        Poll::Ready(Ok(()))
    }

    /// Seals and sends all of a queue.
    pub fn poll_send(
        &mut self,
        task: &mut Context<'_>,
        queue: &mut WriteQueue,
    ) -> Poll<Result<(), ClientLost>> {
        loop {
            ready!(self.poll_flush_sealed(task))?;
            if queue.is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.seal(|room| queue.fill(room))?;
        }
    }
}

/// Writes all of a queue.
pub async fn send_all(client: &mut ClientStream, queue: &mut WriteQueue) -> Result<(), ClientLost> {
    poll_fn(|task| client.poll_send(task, queue)).await
}

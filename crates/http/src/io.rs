//! A terminated connection as a stream that a task reads and writes: records are opened and
//! sealed in the worker's buffers. It must not know HTTP.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use eyelet_record::{Fault, Keys, OpenFailure, PAYLOAD_BYTES_MAX, Session, alert};
use eyelet_sys::epoll::FAILED;
use eyelet_sys::socket;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::load::Load;
use eyelet_engine::connection_table::Entry;
use eyelet_engine::handle::Stop;
use eyelet_engine::ready::{CLIENT, READ, UPSTREAM, WRITE};
use eyelet_engine::relay::Flow;
use eyelet_engine::relay::terminate::{Terminated, whole_records};
use eyelet_engine::worker::Handle;
use eyelet_memory::budget::{Counted, HELLO_BYTES};
use eyelet_telemetry::reason::{Limit, Reason, Stage, When};

/// Bytes read at once: four records. An upload's memory is a small multiple of it.
pub const READ_BYTES: usize = 4 * (PAYLOAD_BYTES_MAX + 256);
/// The least at once, and the most while memory is short: a whole record. Less would have its
/// beginning copied again for each piece of it.
const TIGHT_BYTES: usize = PAYLOAD_BYTES_MAX + 261;
/// Records sealed at once: what a slow reader makes us hold is at most 64 KiB.
const RECORDS: usize = 4;
const _: () = assert!(READ_BYTES + PAYLOAD_BYTES_MAX + 2048 <= 16 * PAYLOAD_BYTES_MAX);

/// Why a client's stream cannot be used any more.
#[derive(Debug)]
pub enum Gone {
    /// It sent an alert.
    Alert(u8),
    /// It broke the record layer's protocol; the alert is sealed.
    Fault(Fault),
    /// Its socket failed, or a deadline passed.
    Stop(Stop),
    /// Its stream ended without close_notify (RFC 8446 section 6.1).
    Truncated,
}

impl From<Stop> for Gone {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

impl From<io::Error> for Gone {
    fn from(error: io::Error) -> Self {
        Self::Stop(Stop::Io(error))
    }
}

impl From<Fault> for Gone {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<OpenFailure> for Gone {
    fn from(failure: OpenFailure) -> Self {
        match failure {
            OpenFailure::Alert(code) => Self::Alert(code),
            OpenFailure::Fault(fault) => Self::Fault(fault),
        }
    }
}

impl Gone {
    /// Why.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Alert(code) => Reason::ClientAlert(*code),
            Self::Fault(fault) => Reason::Record(*fault),
            Self::Stop(Stop::Drained) => Reason::Drained(None),
            Self::Stop(Stop::Late) => Reason::Timeout(Limit::Taking, None),
            Self::Stop(Stop::Io(error)) => {
                Reason::client_io(error, Some(When::During(Stage::Response)))
            }
            Self::Stop(stop) => stop.reason(Limit::Taking, When::During(Stage::Request)),
            Self::Truncated => Reason::Truncated,
        }
    }
}

/// A buffer that holds more than this for a few bytes gives it back: a small message's does not.
const MUCH_BYTES: usize = 8 << 10;
/// How many times more that is.
const MANY_TIMES: usize = 4;

/// Bytes of memory that a buffer of received bytes holds. It held `before` at the last look, and
/// bytes were added or taken off the front since. Its capacity does not say it: the memory in front
/// stays until the buffer is freed. Where little is left in much memory, that little moves to a
/// buffer of its own.
pub fn held_by(buffer: &mut BytesMut, before: usize) -> usize {
    if buffer.is_empty() {
        *buffer = BytesMut::new();
        return 0;
    }
    let held = before.max(buffer.capacity());
    if held <= MUCH_BYTES || buffer.len().saturating_mul(MANY_TIMES) >= held {
        return held;
    }
    *buffer = BytesMut::from(&buffer[..]);
    buffer.capacity()
}

/// Pieces that wait to be written, shared with where they came from. Small ones are copied
/// together: a peer that sends single bytes must not have each of them cost a hundred.
#[derive(Debug, Default)]
pub struct Queue {
    pieces: VecDeque<Bytes>,
    /// Behind the pieces.
    small: BytesMut,
    bytes: usize,
}

/// A piece below this is a small one.
const SMALL_BYTES: usize = 1 << 10;
/// What becomes of them: a buffer that grew would hold up to twice what is in it.
const GATHERED_BYTES: usize = 8 << 10;

impl Queue {
    /// Adds a piece.
    pub fn push(&mut self, piece: impl Into<Bytes>) {
        let piece = piece.into();
        self.bytes += piece.len();
        if piece.len() < SMALL_BYTES {
            if self.small.len() + piece.len() > GATHERED_BYTES {
                self.gather();
            }
            return self.small.extend_from_slice(&piece);
        }
        self.gather();
        self.pieces.push_back(piece);
    }

    /// Adds a head, which is not copied if nothing is before it.
    pub fn push_head(&mut self, head: BytesMut) {
        if self.is_empty() {
            self.bytes = head.len();
            self.small = head;
        } else {
            self.push(head);
        }
    }

    /// Makes one piece of the small ones.
    fn gather(&mut self) {
        if !self.small.is_empty() {
            self.pieces.push_back(std::mem::take(&mut self.small).freeze());
        }
    }

    /// Takes a piece of at most `bytes_max` off the front.
    pub fn take(&mut self, bytes_max: usize) -> Option<Bytes> {
        if self.pieces.is_empty() {
            self.gather();
        }
        let front = self.pieces.front_mut()?;
        let piece = front.split_to(front.len().min(bytes_max));
        self.bytes -= piece.len();
        if front.is_empty() {
            self.pieces.pop_front();
        }
        Some(piece)
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Bytes of memory.
    pub fn held(&self) -> usize {
        self.bytes + self.small.capacity() - self.small.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Fills `room` from the front; how many bytes it took.
    fn fill(&mut self, room: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < room.len() && !self.is_empty() {
            let piece = self.pieces.front().map_or(&self.small[..], |piece| &piece[..]);
            let len = piece.len().min(room.len() - filled);
            room[filled..filled + len].copy_from_slice(&piece[..len]);
            filled += len;
            self.advance(len);
        }
        filled
    }

    /// The pieces as a vectored write takes them.
    pub fn slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        let small = (!self.small.is_empty()).then_some(&self.small[..]);
        let pieces = self.pieces.iter().map(|piece| &piece[..]).chain(small);
        for (slice, piece) in into.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    /// Drops what was written.
    pub fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        while let Some(piece) = self.pieces.front_mut() {
            if written < piece.len() {
                return piece.advance(written);
            }
            written -= piece.len();
            self.pieces.pop_front();
        }
        self.small.advance(written);
    }
}

/// The client of an active terminated connection.
pub struct Client {
    /// Its entry.
    pub handle: Rc<Handle>,
    /// Opened and not yet taken.
    pub plain: BytesMut,
    /// Bytes of memory that `plain` holds.
    plain_held: usize,
    /// Bytes of payload written.
    pub bytes_to_client: Rc<Cell<u64>>,
    /// What was read and nobody has taken yet, where it speaks HTTP/2.
    pub load: Option<Rc<Load>>,
    counted: Counted,
    session: Session,
    keys: Keys,
    partial: Vec<u8>,
    /// There may be a whole record in `partial`.
    fresh: bool,
    sealed: Vec<u8>,
    sent: usize,
    ended: bool,
    truncated: bool,
}

impl Client {
    /// Takes over what was parked. The PROXY header for an upstream, if any, comes along.
    pub fn new(handle: Handle, terminated: Terminated) -> (Self, Vec<u8>) {
        let Terminated { session, flow } = terminated;
        let rest = flow.into_rest();
        let counted = Counted::new(&handle.worker.process.budget, 0);
        let mut client = Self {
            handle: Rc::new(handle),
            load: None,
            counted,
            plain: BytesMut::from(&rest.to_upstream[..]),
            plain_held: 0,
            bytes_to_client: Rc::default(),
            ended: session.read_closed(),
            session,
            keys: Keys::new(),
            fresh: !rest.partial.is_empty(),
            partial: rest.partial,
            sealed: rest.to_client,
            sent: 0,
            truncated: false,
        };
        client.recount();
        (client, rest.preface)
    }

    /// What the table keeps of it, if it is at rest: nothing unread, nothing unsent, not ended.
    pub fn into_parked(self, preface: Vec<u8>) -> (Rc<Handle>, Terminated) {
        let mut flow = Flow::default();
        flow.hold_partial(&self.partial);
        flow.hold(CLIENT, &self.sealed[self.sent..]);
        flow.hold_preface(preface);
        (self.handle, Terminated { session: self.session, flow })
    }

    /// The same for a connection whose client has sent bytes that the upstream has not had.
    pub fn into_pair(self) -> (Rc<Handle>, Terminated) {
        let mut flow = Flow::default();
        flow.hold_partial(&self.partial);
        flow.hold(CLIENT, &self.sealed[self.sent..]);
        flow.hold(UPSTREAM, &self.plain);
        (self.handle, Terminated { session: self.session, flow })
    }

    /// Whether the client has sent all that it will.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether its stream was cut.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Whether what is written now goes out at once, as far as can be seen.
    pub fn takes(&self) -> bool {
        let mut table = self.handle.worker.table.borrow_mut();
        let entry = table.entry(self.handle.key());
        // A socket that is not there takes everything.
        let is_sent = |entry: &mut Entry| socket::unsent(&entry.client).is_ok_and(|left| left == 0);
        self.sealed.is_empty() && entry.is_none_or(is_sent)
    }

    /// Counts what it holds, beyond what every active connection is counted as.
    pub fn recount(&mut self) {
        self.plain_held = held_by(&mut self.plain, self.plain_held);
        let held = self.plain_held + self.partial.capacity() + self.sealed.capacity();
        self.counted.set(held.saturating_sub(HELLO_BYTES));
    }

    /// Reads and opens, some `max` bytes or one record at most; how many came into `plain`. 0 is
    /// the end.
    pub fn poll_fill(&mut self, task: &mut Context<'_>, max: usize) -> Poll<Result<usize, Gone>> {
        loop {
            if !self.fresh {
                if self.ended {
                    return Poll::Ready(Ok(0));
                }
                ready!(self.handle.poll_ready(task, &[CLIENT], READ))?;
            }
            let read = self.read_records(max);
            self.recount();
            // The answer to a KeyUpdate need not wait for a response.
            if !self.sealed.is_empty()
                && let Poll::Ready(Err(gone)) = self.poll_flush_sealed(task)
            {
                return Poll::Ready(Err(gone));
            }
            match read {
                Ok(None) => {
                    // Its clock runs on.
                    self.handle.in_time()?;
                    self.handle.worker.wants_memory(task);
                    return Poll::Pending;
                }
                Ok(Some(0)) if !self.ended => {}
                Ok(Some(opened)) => return Poll::Ready(Ok(opened)),
                Err(gone) => {
                    if let Gone::Fault(fault) = &gone {
                        self.seal_alert(fault.alert());
                    }
                    return Poll::Ready(Err(gone));
                }
            }
        }
    }

    /// Whether the socket has failed, without waiting.
    pub fn has_failed(&self) -> bool {
        self.handle.has(CLIENT, FAILED)
    }

    /// How far the input may be filled. While memory is short the beginning of a record is left
    /// where it is: `None`, there is no whole one.
    fn room(&self, input: &mut [u8], filled: usize, max: usize) -> Option<usize> {
        if let Some(piece) = self.handle.worker.process.budget.piece() {
            return Some(filled + max.clamp(TIGHT_BYTES, READ_BYTES).min(piece));
        }
        let mut table = self.handle.worker.table.borrow_mut();
        let Some(entry) = table.entry(self.handle.key()) else { return Some(filled + 1) };
        whole_records(entry.client.as_fd(), &mut input[..filled + TIGHT_BYTES], filled)
    }

    /// Reads and opens what is there. `None`: memory is too short for what is there.
    fn read_records(&mut self, max: usize) -> Result<Option<usize>, Gone> {
        let worker = self.handle.worker.clone();
        let input = &mut *worker.buffers.borrow_mut().input;
        let mut filled = self.partial.len();
        input[..filled].copy_from_slice(&self.partial);
        if !std::mem::take(&mut self.fresh) {
            let Some(room) = self.room(input, filled, max) else { return Ok(None) };
            match self.handle.recv_now(&mut input[filled..room])? {
                None => return Ok(Some(0)),
                Some(0) => {
                    self.ended = true;
                    self.truncated = !self.session.read_closed();
                }
                Some(read) => filled += read,
            }
        }
        let (before, plain) = (self.plain.len(), &mut self.plain);
        let at = self.session.open_all(&mut self.keys, &mut input[..filled], |input, data| {
            plain.extend_from_slice(&input[data]);
        })?;
        let opened = self.plain.len() - before;
        if self.session.control_due() {
            self.seal_control()?;
        }
        self.ended |= self.session.read_closed();
        self.partial = input[at..filled].to_vec();
        Ok(Some(opened))
    }

    fn seal_control(&mut self) -> Result<(), Fault> {
        let record = self.session.control(&mut self.keys)?;
        self.sealed.extend_from_slice(&record);
        Ok(())
    }

    /// Seals an alert behind what was written, close_notify among them.
    pub fn seal_alert(&mut self, description: u8) {
        let record = self.session.alert(&mut self.keys, description);
        self.sealed.extend_from_slice(&record);
    }

    /// What is sealed and was not sent, with close_notify behind it: the last words.
    pub fn goodbye(&mut self) -> Vec<u8> {
        self.seal_alert(alert::CLOSE_NOTIFY);
        self.unsent()
    }

    /// Bytes that are sealed and were not sent.
    pub fn unsent_bytes(&self) -> usize {
        self.sealed.len() - self.sent
    }

    /// What is sealed and was not sent.
    pub fn unsent(&mut self) -> Vec<u8> {
        self.sealed.split_off(self.sent)
    }

    /// Seals up to [`RECORDS`] records of what `fill` gives, and sends what the socket takes.
    fn seal(&mut self, mut fill: impl FnMut(&mut [u8]) -> usize) -> Result<usize, Gone> {
        if self.session.control_due() {
            self.seal_control()?;
        }
        let worker = self.handle.worker.clone();
        let output = &mut *worker.buffers.borrow_mut().output;
        let prefix = self.session.prefix_len();
        let (mut at, mut payload) = (0, 0);
        for _ in 0..RECORDS {
            let filled = fill(&mut output[at + prefix..][..PAYLOAD_BYTES_MAX]);
            at += self.session.seal(&mut self.keys, &mut output[at..], filled)?;
            payload += filled;
            if filled < PAYLOAD_BYTES_MAX {
                break;
            }
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

    /// Notes that the first `bytes` of these have left HTTP/2's library.
    fn writes(&self, slices: &[IoSlice<'_>], mut bytes: usize) {
        let Some(load) = &self.load else { return };
        for slice in slices {
            let written = slice.len().min(bytes);
            load.writes(&slice[..written]);
            bytes -= written;
        }
    }

    fn send_now(&self, bytes: &[u8]) -> Result<usize, Gone> {
        match self.handle.send(CLIENT, bytes) {
            Ok(sent) => Ok(sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends all that is sealed.
    pub fn poll_flush_sealed(&mut self, task: &mut Context<'_>) -> Poll<Result<(), Gone>> {
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
        queue: &mut Queue,
    ) -> Poll<Result<(), Gone>> {
        loop {
            ready!(self.poll_flush_sealed(task))?;
            if queue.is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.seal(|room| queue.fill(room))?;
        }
    }
}

fn as_io(gone: Gone) -> io::Error {
    match gone {
        Gone::Stop(Stop::Io(error)) => error,
        other => io::Error::other(other.reason()),
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.load.as_ref().is_some_and(|load| load.has_head()) {
            // Not woken for that: its owner looks at the head, and polls again.
            return Poll::Pending;
        }
        let worker = &self.handle.worker;
        if let Some(load) = &self.load
            && (self.plain.is_empty() || load.has_trailers())
            && worker.process.budget.piece().is_none()
            && load.poll_reads(task, !worker.process.budget.is_over(TIGHT_BYTES)).is_pending()
        {
            // Its streams have not got rid of what came before.
            worker.wants_memory(task);
            return Poll::Pending;
        }
        if self.plain.is_empty() {
            match ready!(self.poll_fill(task, READ_BYTES)) {
                // The owner watches the clock: it has a last frame to send.
                Err(Gone::Stop(Stop::Late | Stop::Drained | Stop::Shed)) => return Poll::Pending,
                filled => _ = filled.map_err(as_io)?,
            }
            if self.truncated {
                return Poll::Ready(Err(as_io(Gone::Truncated)));
            }
        }
        let mut len = self.plain.len().min(buffer.remaining());
        if let Some(load) = &self.load {
            len = load.reads(&self.plain[..len]);
        }
        buffer.put_slice(&self.plain[..len]);
        self.plain.advance(len);
        self.recount();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush_sealed(task)).map_err(as_io)?;
        let mut rest = bytes;
        let sealed = self.seal(|room| take_from(&mut rest, room)).map_err(as_io)?;
        self.writes(&[IoSlice::new(bytes)], sealed);
        Poll::Ready(Ok(sealed))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush_sealed(task)).map_err(as_io)?;
        let mut parts = slices.iter().map(|slice| &**slice);
        let mut rest: &[u8] = &[];
        let sealed = self.seal(|room| {
            let mut filled = 0;
            while filled < room.len() {
                if rest.is_empty() {
                    match parts.next() {
                        Some(next) => rest = next,
                        None => break,
                    }
                }
                filled += take_from(&mut rest, &mut room[filled..]);
            }
            filled
        });
        let sealed = sealed.map_err(as_io)?;
        self.writes(slices, sealed);
        Poll::Ready(Ok(sealed))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush_sealed(task).map_err(as_io)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.seal_alert(alert::CLOSE_NOTIFY);
        self.poll_flush_sealed(task).map_err(as_io)
    }
}

fn take_from(rest: &mut &[u8], room: &mut [u8]) -> usize {
    let len = rest.len().min(room.len());
    room[..len].copy_from_slice(&rest[..len]);
    *rest = &rest[len..];
    len
}

/// Writes all of a queue; whether the client took it.
pub async fn send_all(client: &mut Client, queue: &mut Queue) -> Result<(), Gone> {
    poll_fn(|task| client.poll_send(task, queue)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Behind a body or a head that was taken, the rest does not keep its memory.
    #[test]
    fn what_is_left_of_a_buffer_is_counted_with_all_that_it_holds() {
        for (len, taken, least, most) in [
            (64 << 10, (64 << 10) - 1, 1, 64),
            (61 << 10, 60 << 10, 1 << 10, 2 << 10),
            // To copy it would cost more than the memory is worth.
            (64 << 10, 32 << 10, 64 << 10, 64 << 10),
            (2 << 10, (2 << 10) - 1, 2 << 10, 2 << 10),
            (64 << 10, 64 << 10, 0, 0),
        ] {
            let mut buffer = BytesMut::from(&vec![7; len][..]);
            let before = held_by(&mut buffer, 0);
            assert_eq!(before, len);
            let piece = buffer.split_to(taken);
            let held = held_by(&mut buffer, before);
            assert!((least..=most).contains(&held), "{held} behind {taken} of {len}");
            assert_eq!((piece.len(), buffer.len()), (taken, len - taken));
            assert!(buffer.capacity() <= held, "{} of {held}", buffer.capacity());
        }
    }
}

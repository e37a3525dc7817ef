//! Moves bytes of a terminated connection: TLS towards the client, plain towards the upstream.
//!
//! `record` opens and seals for this file and for `io.rs` of `downstream`. Each holds unsent bytes
//! and the beginning of a record in its own way: here the flow has them, with their age, for load
//! shedding.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use eyelet_record::{
    Keys, OpenFailure, PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX, RecordFault, Role, Session, alert,
};
use eyelet_wire::record::RecordHeader;
use eyelet_wire::websocket::CLOSE_TO_CLIENT;

use super::buffers::{Buffers, SLOTS};
use super::exchange;
use super::flow::direction::ClientEnd;
use super::flow::{Flow, Partial};
use super::sockets::{AnswerParked, Failed, More, Progress, Sockets, conclude};
use crate::ready::{CLIENT, READ, UPSTREAM};
use crate::socket;
use eyelet_telemetry::info::{End, Outcome, Parked};
use eyelet_telemetry::reason::Reason;

/// A terminated connection between two wakes.
pub struct Terminated {
    /// Secrets and sequence numbers.
    pub session: Session,
    /// Bytes in transit.
    pub flow: Flow,
}

impl Terminated {
    /// True if TLS is towards the upstream, and the client has none: Eyelet was the client of the
    /// handshake. The two sides of the flow are then exchanged. It is no kind of its own, so that a
    /// slot is no larger for it.
    pub fn is_originated(&self) -> bool {
        self.session.role() == Role::Client
    }
}

/// The reason why a wake ended early.
enum Broken {
    Socket(Failed),
    /// The client broke the protocol and gets an alert.
    Client(RecordFault),
    /// The client ended the connection with an alert.
    Alert(u8),
    /// An upstream's stream ended without close_notify: anybody on the way may have cut it (RFC
    /// 8446 section 6.1). Its client has no TLS to see that, so no end is passed on.
    Cut,
}

impl From<Failed> for Broken {
    fn from(failed: Failed) -> Self {
        Self::Socket(failed)
    }
}

impl From<RecordFault> for Broken {
    fn from(fault: RecordFault) -> Self {
        Self::Client(fault)
    }
}

impl From<OpenFailure> for Broken {
    fn from(failure: OpenFailure) -> Self {
        match failure {
            OpenFailure::Alert(code) => Self::Alert(code),
            OpenFailure::Fault(fault) => Self::Client(fault),
        }
    }
}

/// Moves what can be moved, both ways. AEAD keys are derived on first use and dropped at the end.
pub fn run(
    terminated: &mut Terminated,
    sockets: &mut Sockets<'_>,
    info: &mut Parked,
    buffers: &mut Buffers,
    answer: AnswerParked<'_>,
) -> Progress {
    // What it serves in streams ends in its own way: by a task.
    if terminated.flow.has_streams() && exchange::has_client_ended(sockets) {
        return Progress::Dial;
    }
    let mut keys = Keys::new();
    let before = info.bytes_to_upstream;
    let up = upward(terminated, &mut keys, sockets, info, buffers);
    let down = match up {
        Ok(_) | Err(Broken::Socket(_)) => downward(terminated, &mut keys, sockets, info, buffers),
        Err(_) => Ok(More::No),
    };
    let dial = sockets.upstream.is_none() && terminated.flow.held(UPSTREAM).is_some();
    let (up, down) = match (up, down) {
        (Ok(up), Ok(down)) => (up, down),
        (Err(broken), _) | (_, Err(broken)) => {
            return ended_badly(terminated, &mut keys, sockets, buffers, broken);
        }
    };
    if dial {
        return match answered(terminated, &mut keys, sockets, buffers, answer) {
            Ok(true) => {
                // They count as no traffic, so they do not make it idle for longer.
                info.bytes_to_upstream = before;
                terminated.flow.set_asked(false);
                let may_have_more = sockets.ready.any(CLIENT, READ);
                if may_have_more { Progress::Again } else { Progress::Rest }
            }
            Ok(false) => Progress::Dial,
            Err(broken) => ended_badly(terminated, &mut keys, sockets, buffers, broken),
        };
    }
    if terminated.flow.has_streams() && !terminated.flow.is_open(CLIENT) {
        return Progress::Dial;
    }
    match conclude(&mut terminated.flow, up, down, Outcome::Terminated) {
        // Its close_notify came without a FIN, so bytes may follow.
        Progress::Closed(end) if terminated.flow.may_client_send() => Progress::Linger(end),
        progress => progress,
    }
}

/// Answers what a client has sent, without a task. `false`: a task is needed, for what is left or
/// because the client does not take the answers.
fn answered(
    terminated: &mut Terminated,
    keys: &mut Keys,
    sockets: &mut Sockets<'_>,
    buffers: &mut Buffers,
    answer: AnswerParked<'_>,
) -> Result<bool, Broken> {
    let Terminated { session, flow } = terminated;
    if !flow.is_open(CLIENT) || !sockets.flush(flow, CLIENT, buffers)? {
        return Ok(false);
    }
    let mut answers = Vec::new();
    let is_all = flow.answer(|state, bytes| answer(state, bytes, &mut answers));
    for answers in answers.chunks(PAYLOAD_BYTES_MAX) {
        let prefix = session.prefix_len();
        let mut record = vec![0; session.record_len(answers.len())];
        record[prefix..][..answers.len()].copy_from_slice(answers);
        let sealed = session.seal(keys, &mut record, answers.len())?;
        flow.hold(CLIENT, &record[..sealed]);
    }
    sockets.flush(flow, CLIENT, buffers)?;
    flow.drop_empty();
    Ok(is_all)
}

fn ended_badly(
    terminated: &mut Terminated,
    keys: &mut Keys,
    sockets: &mut Sockets<'_>,
    buffers: &mut Buffers,
    broken: Broken,
) -> Progress {
    match broken {
        Broken::Socket(failed) => {
            Progress::Reset(End { outcome: Outcome::Terminated, reason: failed.reason() })
        }
        Broken::Cut => {
            Progress::Reset(End { outcome: Outcome::Terminated, reason: Reason::Truncated })
        }
        Broken::Alert(code) => {
            Progress::Reset(End { outcome: Outcome::Terminated, reason: Reason::ClientAlert(code) })
        }
        Broken::Client(fault) => {
            let flow = &mut terminated.flow;
            flow.hold(CLIENT, &terminated.session.alert(keys, fault.alert()));
            // If the client does not read, the alert is lost with the connection.
            let _ = sockets.flush(flow, CLIENT, buffers);
            let reason = Reason::Record(fault);
            Progress::Cut(End { outcome: Outcome::Terminated, reason })
        }
    }
}

/// Seals the last records for a client: its close frame where it may get one (see
/// `Flow::takes_close_frame`), or the program's last bytes, then close_notify. Empty if earlier
/// bytes are still held.
pub fn final_records(terminated: &mut Terminated, of_program: &[u8]) -> Vec<u8> {
    let last = match terminated.flow.takes_close_frame(CLIENT) {
        true => &CLOSE_TO_CLIENT[..],
        // More than a record takes is a mistake of the program.
        false => of_program.get(..PAYLOAD_BYTES_MAX).unwrap_or(of_program),
    };
    let mut records = Vec::new();
    if !last.is_empty() && terminated.flow.held(CLIENT).is_none() {
        let session = &mut terminated.session;
        let prefix = session.prefix_len();
        records.resize(session.record_len(last.len()), 0);
        records[prefix..][..last.len()].copy_from_slice(last);
        // A session that may seal no more has no record before its alert.
        let sealed = session.seal(&mut Keys::new(), &mut records, last.len());
        records.truncate(sealed.unwrap_or(0));
    }
    records.extend(final_alert(terminated, alert::CLOSE_NOTIFY));
    records
}

/// Seals the last record for a client: an alert, which may be close_notify. Empty if the session
/// may send none, or if earlier bytes are still held.
pub fn final_alert(terminated: &mut Terminated, description: u8) -> Vec<u8> {
    let Terminated { session, flow } = terminated;
    if flow.held(CLIENT).is_some() {
        return Vec::new();
    }
    session.alert(&mut Keys::new(), description).to_vec()
}

/// Client to upstream: read, open, write.
fn upward(
    terminated: &mut Terminated,
    keys: &mut Keys,
    sockets: &mut Sockets<'_>,
    info: &mut Parked,
    buffers: &mut Buffers,
) -> Result<More, Broken> {
    let mut share = buffers.share_bytes;
    // Opens what the handshake or the last wake left before anything is read.
    let Partial { bytes, mut since } = terminated.flow.take_partial();
    let mut filled = bytes.len();
    buffers.input[..filled].copy_from_slice(&bytes);
    let mut fresh = filled > 0;
    let more = loop {
        // Held bytes for the client do not stop this direction: otherwise a client that writes all
        // before it reads would hang.
        if !sockets.flush(&mut terminated.flow, UPSTREAM, buffers)? {
            break More::No;
        }
        if share == 0 {
            break More::Again;
        }
        if !fresh {
            if !terminated.flow.is_open(CLIENT) || !sockets.ready.any(CLIENT, READ) {
                break More::No;
            }
            let Some(end) = read_end(sockets, buffers, filled) else { break More::Later };
            match sockets.recv(CLIENT, &mut buffers.input[filled..end])? {
                None => continue,
                Some(0) => {
                    let end = end_by_fin(terminated)?;
                    terminated.flow.up.end(end);
                    filled = 0;
                    break More::No;
                }
                Some(read) => filled += read,
            }
        }
        fresh = false;
        let (rest, plain) = open(terminated, keys, &mut buffers.input[..filled])?;
        if rest > 0 {
            // The remaining bytes begin another record.
            since = None;
        }
        let bytes = &buffers.input[plain.clone()];
        if !bytes.is_empty() {
            terminated.flow.follow(CLIENT, bytes);
            let sent = sockets.send(UPSTREAM, bytes)?;
            terminated.flow.hold(UPSTREAM, &bytes[sent..]);
            info.bytes_to_upstream += bytes.len() as u64;
            terminated.flow.note_moved(UPSTREAM);
            share = share.saturating_sub(bytes.len());
        }
        buffers.input.copy_within(rest..filled, 0);
        filled -= rest;
        reply(terminated, keys, sockets, buffers)?;
    };
    terminated.flow.hold_partial_since(&buffers.input[..filled], since);
    if terminated.session.read_closed() {
        terminated.flow.up.end(ClientEnd::CloseNotify);
    }
    sockets.pass_end(&mut terminated.flow, UPSTREAM)?;
    let is_dialled = sockets.upstream.is_some() || terminated.flow.held(UPSTREAM).is_some();
    let is_served = is_dialled || terminated.flow.has_streams();
    if !is_served && !terminated.flow.is_open(CLIENT) {
        terminated.flow.note_upstream_end();
        finish_client(terminated, keys, sockets, buffers)?;
    }
    Ok(more)
}

/// Returns the way in which the peer with TLS has ended its stream by a FIN.
fn end_by_fin(terminated: &Terminated) -> Result<ClientEnd, Broken> {
    match terminated.session.read_closed() {
        true => Ok(ClientEnd::Fin),
        false if terminated.is_originated() => Err(Broken::Cut),
        false => Ok(ClientEnd::Truncated),
    }
}

/// The end of the buffer's part that may be filled; `filled` bytes were read already. `None` if
/// there is no memory for bytes that might have to be held.
fn read_end(sockets: &Sockets<'_>, buffers: &mut Buffers, filled: usize) -> Option<usize> {
    let room = sockets.room(UPSTREAM, buffers)?;
    match buffers.piece {
        Some(_) => Some((filled + room).min(buffers.input.len())),
        // One record, as the socket has room for no more: however many have come.
        None => {
            let input = &mut buffers.input[..RECORD_BYTES_MAX.max(filled)];
            whole_records(sockets.client, input, filled)
        }
    }
}

/// The end of the last whole record in what has arrived; `filled` bytes of it were read already.
/// While memory is short, an incomplete record stays in the kernel. `None` if there is no whole
/// record yet. The stream's end and an invalid header are not checked here: the read that follows
/// finds them.
pub fn whole_records(client: BorrowedFd<'_>, input: &mut [u8], filled: usize) -> Option<usize> {
    let peeked = match socket::peek(client, &mut input[filled..]) {
        // The read that follows reports it.
        Ok(0) | Err(_) => return Some(filled + 1),
        Ok(peeked) => peeked,
    };
    let seen = &input[..filled + peeked];
    let mut end = 0;
    while let Some(header) = seen.get(end..).and_then(RecordHeader::read) {
        if header.record_len() > RECORD_BYTES_MAX {
            return Some(seen.len());
        }
        if end + header.record_len() > seen.len() {
            break;
        }
        end += header.record_len();
    }
    (end > filled).then_some(end)
}

/// Opens the records in `input`. Returns where the unfinished last one begins, and the range where
/// the plaintext of the others now lies in one piece.
fn open(
    terminated: &mut Terminated,
    keys: &mut Keys,
    input: &mut [u8],
) -> Result<(usize, std::ops::Range<usize>), Broken> {
    let mut plain = 0..0;
    let rest = terminated.session.open_all(keys, input, |input, data| {
        if plain.is_empty() {
            // The first stays in place, so a single record is never moved.
            plain = data;
        } else {
            plain.end += data.len();
            input.copy_within(data.clone(), plain.end - data.len());
        }
    })?;
    Ok((rest, plain))
}

/// Seals and sends the control record that is due, if any, once all earlier records are sent. So at
/// most one is held, however many are requested.
fn reply(
    terminated: &mut Terminated,
    keys: &mut Keys,
    sockets: &mut Sockets<'_>,
    buffers: &mut Buffers,
) -> Result<(), Broken> {
    let Terminated { session, flow } = terminated;
    if !session.control_due() || !sockets.flush(flow, CLIENT, buffers)? {
        return Ok(());
    }
    flow.hold(CLIENT, &session.control(keys)?);
    sockets.flush(flow, CLIENT, buffers)?;
    Ok(())
}

/// Upstream to client: read into the payload slots of TLS records, seal in place, write.
fn downward(
    terminated: &mut Terminated,
    keys: &mut Keys,
    sockets: &mut Sockets<'_>,
    info: &mut Parked,
    buffers: &mut Buffers,
) -> Result<More, Broken> {
    let mut share = buffers.share_bytes;
    // One record's worth first: most responses are small, and a single read is cheaper.
    let mut slots = 1;
    while sockets.flush(&mut terminated.flow, CLIENT, buffers)?
        && terminated.flow.is_open(UPSTREAM)
        && sockets.upstream.is_some()
        && sockets.ready.any(UPSTREAM, READ)
    {
        if share == 0 {
            return Ok(More::Again);
        }
        let Some(piece) = sockets.room(CLIENT, buffers) else { return Ok(More::Later) };
        reply(terminated, keys, sockets, buffers)?;
        slots = slots.min(piece / PAYLOAD_BYTES_MAX).max(1);
        match recv_slots(&terminated.session, sockets, buffers, slots)? {
            None => {}
            Some(0) => terminated.flow.note_upstream_end(),
            Some(read) => {
                if terminated.flow.is_websocket() {
                    follow_slots(terminated, &mut buffers.output, read);
                }
                let sealed = terminated.session.seal_slots(keys, &mut buffers.output, read)?;
                send_sealed(&mut terminated.flow, sockets, buffers, sealed)?;
                info.bytes_to_client += read as u64;
                terminated.flow.note_moved(CLIENT);
                share = share.saturating_sub(read);
                if read == slots * PAYLOAD_BYTES_MAX {
                    slots = SLOTS;
                }
            }
        }
    }
    reply(terminated, keys, sockets, buffers)?;
    finish_client(terminated, keys, sockets, buffers)?;
    Ok(More::No)
}

/// Passes the upstream's end to the client: close_notify, then FIN.
fn finish_client(
    terminated: &mut Terminated,
    keys: &mut Keys,
    sockets: &mut Sockets<'_>,
    buffers: &mut Buffers,
) -> Result<(), Broken> {
    let Terminated { session, flow } = terminated;
    if !flow.is_open(UPSTREAM) && flow.held(CLIENT).is_none() {
        if !session.write_closed() {
            flow.hold(CLIENT, &session.alert(keys, alert::CLOSE_NOTIFY));
            sockets.flush(flow, CLIENT, buffers)?;
        }
        sockets.pass_end(flow, CLIENT)?;
    }
    Ok(())
}

fn recv_slots(
    session: &Session,
    sockets: &mut Sockets<'_>,
    buffers: &mut Buffers,
    count: usize,
) -> Result<Option<usize>, Failed> {
    let mut slots = session.slots(&mut buffers.output).take(count);
    if count == 1 {
        return slots.next().map_or(Ok(None), |slot| sockets.recv(UPSTREAM, slot));
    }
    let Some(upstream) = sockets.upstream else { return Ok(None) };
    let mut slots: [IoSliceMut<'_>; SLOTS] =
        std::array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()));
    let read = socket::recv_vectored(upstream, &mut slots);
    sockets.note_read(UPSTREAM, read, count * PAYLOAD_BYTES_MAX)
}

/// Notes `read` bytes of a WebSocket that lie in the slots.
fn follow_slots(terminated: &mut Terminated, output: &mut [u8], read: usize) {
    let Terminated { session, flow } = terminated;
    let mut left = read;
    for slot in session.slots(output) {
        let payload = left.min(slot.len());
        flow.follow(UPSTREAM, &slot[..payload]);
        left -= payload;
    }
}

fn send_sealed(
    flow: &mut Flow,
    sockets: &mut Sockets<'_>,
    buffers: &mut Buffers,
    sealed: usize,
) -> Result<(), Failed> {
    // A held control record goes first: it was sealed first.
    let first = !sockets.flush(flow, CLIENT, buffers)?;
    let records = &buffers.output[..sealed];
    let sent = if first { 0 } else { sockets.send(CLIENT, records)? };
    flow.hold(CLIENT, &records[sent..]);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use eyelet_memory::budget::Budget;
    use eyelet_record::Suite;
    use eyelet_telemetry::info::{ConnectionInfo, SharedInfo};

    use super::*;
    use crate::buffers::SHARE_BYTES;
    use crate::ready::{Ready, WRITE};

    /// A client's records may all be there before its upstream has taken one. While memory is
    /// short, the next one is read once the socket has nothing more to send.
    #[test]
    fn one_record_at_a_time_is_read_while_memory_is_short() {
        let (client, mut peer) = UnixStream::pair().unwrap();
        let (upstream, mut application) = UnixStream::pair().unwrap();
        let session =
            |role| Session::tls13(role, Suite::Aes128Gcm, &[1; 32], &[2; 32], 0, 0).unwrap();
        let (mut own, mut keys) = (session(Role::Client), Keys::new());
        for _ in 0..4 {
            let mut record = vec![0; own.record_len(PAYLOAD_BYTES_MAX)];
            let sealed = own.seal(&mut keys, &mut record, PAYLOAD_BYTES_MAX).unwrap();
            peer.write_all(&record[..sealed]).unwrap();
        }
        let mut terminated = Terminated { session: session(Role::Server), flow: Flow::default() };
        let info = ConnectionInfo::new(0, 0, ([127, 0, 0, 1], 1).into());
        let mut shared = SharedInfo::new(&Arc::new(Budget::new(64 << 20, 0)));
        let (mut info, mut ready) = (info.park(&mut shared), Ready::default());
        ready.add(CLIENT, READ | WRITE);
        ready.add(UPSTREAM, WRITE);
        let mut buffers = Buffers::new(SHARE_BYTES);
        for records in 1..=4 {
            let upstream = Some(upstream.as_fd());
            let mut sockets = Sockets::new(client.as_fd(), upstream, &mut ready);
            let progress =
                run(&mut terminated, &mut sockets, &mut info, &mut buffers, &|_, _, _| 0);
            assert!(progress.goes_on(), "{progress:?}");
            assert_eq!(info.bytes_to_upstream, (records * PAYLOAD_BYTES_MAX) as u64);
            application.read_exact(&mut vec![0; PAYLOAD_BYTES_MAX]).unwrap();
        }
    }
}

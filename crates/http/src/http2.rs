//! HTTP/2 on a terminated connection: one task reads and writes the connection, and each stream has
//! a task of its own.

mod parked;
mod pass;
mod rested;
mod resting;
mod serve_stream;
mod tasks;

use std::future::poll_fn;
use std::io::ErrorKind;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf;
use eyelet_h2::{ConnectionFault, ErrorCode, Flood, H2Connection, H2Limits, ParkedConnection};
use http::request;

use crate::exchange::resting::end_rested;
use crate::exchange::room;
use crate::exchange::transfer::PASSED_QUOTA_BYTES;
use eyelet_downstream::client::head::read_request;
use eyelet_downstream::client::http2::{Http2Stream, why};
use eyelet_downstream::client::io::{ClientLost, ClientStream, READ_BYTES};
use eyelet_downstream::client::resting_stream::RestingStream;
use eyelet_downstream::client::state::{Arrived, ReadStep};
use eyelet_downstream::client::streams::{CONNECTION_WINDOW_BYTES, Streams};
use eyelet_downstream::clock::{ms, now_ms};
use eyelet_downstream::connection::intermediary::AWAKE;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_downstream::connection::served_connection::record::Record;
use eyelet_engine::park;
use eyelet_engine::ready::CLIENT;
use eyelet_engine::shedding::CountedTask;
use eyelet_engine::table::Phase;
use eyelet_engine::worker::WaitError;
use eyelet_memory::budget::{Counted, HELLO_BYTES, PIECE_BYTES_MIN, STREAM_BYTES};
use eyelet_memory::packed::PackedBytes;
use eyelet_sys::epoll::FAILED;
use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::{Http2Failure, Limit, Peer, Reason, Shed, StreamFlood};
use parked::split;
use rested::take_rested;
use tasks::{StreamJob, StreamWork};
use zeroize::Zeroizing;

pub use parked::{
    RestingAt, answer_parked, close_upstreams, count_streams, end_resting, exchanges, has_shared,
    has_streams, has_tls, last_bytes, pack_state, rest_wait, resting_requests, resting_streams,
};
pub use tasks::end_unused_tasks;

/// Concurrent streams: the least that RFC 9113 6.5.2 recommends.
const STREAMS_MAX: u32 = 100;
/// Bytes that the client may send ahead on one stream.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// Streams that the client reset before they were served. More are the rapid-reset flood
/// (CVE-2023-44487), and the connection ends.
const RESETS_PENDING_MAX: usize = 20;
/// The time that an idle connection may take to end after GOAWAY.
const GOAWAY_WAIT: Duration = Duration::from_secs(2);
/// The number of times that a task reads before others have their turn: at most 1 MiB.
const ROUNDS_MAX: usize = 4;
/// Bytes that it writes before that: those of one exchange by HTTP/1.1, and of one wake of the
/// engine's relay. The last step may exceed it by 256 KiB.
const TURN_BYTES: u64 = PASSED_QUOTA_BYTES;

/// A connection is not parked for a shorter time: two ticks of the engine, which rounds.
const PARKED_MS_MIN: u64 = 200;

/// The state of a connection that begins, or was parked.
pub struct Resumed {
    /// Its state if it was parked.
    pub state: Option<PackedBytes>,
    /// The memory that is counted for it.
    pub counted: Counted,
    /// Counts it at its source.
    pub _task: CountedTask,
}

/// Serves a connection until it is parked or has ended.
pub async fn serve(client: ClientStream, mut served: ServedConnection, resumed: Resumed) {
    let Resumed { state, counted, _task } = resumed;
    let mut out = Vec::new();
    let (h2, rested) = match state.map(|state| Zeroizing::new(state.whole())) {
        None => (H2Connection::server(limits(&served), now_ms(), &mut out), Vec::new()),
        Some(state) => match import(&client, &mut served, &state) {
            Some(imported) => imported,
            None => return fail(client, served),
        },
    };
    let mut connection = ServedStreams::new(client, served, Streams::new(h2, out, counted));
    if !rested.is_empty() {
        connection.resume(rested);
    }
    match poll_fn(|task| connection.poll(task)).await {
        Over::Rest => connection.rest(),
        Over::End(last) => connection.end(last),
    }
}

fn limits(served: &ServedConnection) -> H2Limits {
    let head_bytes_max = served.http.shared.config.http.head_bytes_max;
    H2Limits {
        streams_max: STREAMS_MAX,
        stream_window: STREAM_WINDOW_BYTES,
        connection_window: CONNECTION_WINDOW_BYTES,
        head_bytes_max: u32::try_from(head_bytes_max).unwrap_or(u32::MAX),
        connect_protocol: true,
    }
}

/// The state of a connection that was parked, and its streams that rested.
fn import(
    client: &ClientStream,
    served: &mut ServedConnection,
    state: &[u8],
) -> Option<(H2Connection, Vec<RestingStream>)> {
    let (of_h2, forms) = split(state)?;
    let imported = H2Connection::import(&ParkedConnection::new(of_h2.into()), now_ms());
    let h2 = imported.inspect_err(|fault| tracing::error!("internal error: {fault}")).ok()?;
    let rested = take_rested(&client.handle, served, forms)?;
    if !rested.is_empty() {
        served.find_route();
    }
    (rested.len() == h2.streams()).then_some((h2, rested))
}

/// Ends a parked connection whose state cannot be read.
fn fail(mut client: ClientStream, served: ServedConnection) {
    tracing::error!("internal error: a parked HTTP/2 connection cannot be read");
    let unsent = client.unsent();
    let handle = &client.handle;
    drop((handle.take_sockets(), handle.take_streams(), handle.take_holds()));
    park::close_with(&client.handle, &unsent);
    let http = served.http.clone();
    let reason = Reason::Internal("a parked HTTP/2 connection");
    http.engine.emit(&served.end(), &End { outcome: Outcome::Terminated, reason });
}

/// The reason why the task of a connection is over.
enum Over {
    /// The connection is parked.
    Rest,
    /// The connection ends.
    End(Last),
}

/// The way in which a connection ends.
enum Last {
    /// By close_notify, behind what was written.
    Close(Reason),
    /// Without: the client is gone, or its last response is truncated.
    Cut(Reason),
}

/// A connection with its streams.
struct ServedStreams {
    client: ClientStream,
    served: Rc<ServedConnection>,
    /// The configuration by which streams that rested were decided.
    earlier: Rc<ServedConnection>,
    streams: Rc<Streams>,
    /// The reason why it takes no more streams.
    going_away: Option<Reason>,
    /// The code that the client said when it ended the connection.
    client_code: ErrorCode,
    /// The client has ended its stream. Its whole requests are still answered.
    has_client_ended: bool,
    was_busy: bool,
    /// The connection is half-open until its first stream.
    has_served: bool,
    is_greeted: bool,
    /// True if its task has begun no stream.
    is_unused: bool,
    now_ms: u64,
    /// The time at which it is idle for too long, and when the handle is to say that something is
    /// due.
    idle_at_ms: u64,
    armed_ms: u64,
    /// The time at which it is parked if it can be.
    rest_at_ms: u64,
    /// The streams that rested when it was parked, by the places of their upstreams' sockets.
    places: Vec<u32>,
    /// True if its streams were to rest at once when they were last told.
    rested_at_once: bool,
    /// Most bytes sealed at once of a body that is read from its upstream.
    pass_bytes_max: usize,
}

impl ServedStreams {
    fn new(client: ClientStream, served: ServedConnection, streams: Streams) -> Self {
        served.http.engine.enters(client.handle.key(), Phase::HalfOpen);
        let served = Rc::new(served);
        let (http, now_ms) = (&served.http.shared.config.http, now_ms());
        // It was parked after its GOAWAY, and ends with its last stream.
        let said_last = || served.why_last().unwrap_or(Reason::Drained(None));
        let going_away = streams.is_shut_down().then(said_last);
        Self {
            // One that was parked is not half-open.
            has_served: streams.is_greeted(),
            streams: Rc::new(streams),
            going_away,
            client_code: ErrorCode::NO_ERROR,
            has_client_ended: false,
            was_busy: false,
            rest_at_ms: u64::MAX,
            pass_bytes_max: READ_BYTES,
            is_greeted: false,
            is_unused: true,
            places: Vec::new(),
            rested_at_once: false,
            now_ms,
            idle_at_ms: now_ms + ms(http.head_timeout),
            armed_ms: u64::MAX,
            client,
            earlier: served.clone(),
            served,
        }
    }

    fn poll(&mut self, task: &mut Context<'_>) -> Poll<Over> {
        self.now_ms = now_ms();
        self.streams.driven_by(task);
        self.leave();
        let moved = self.poll_bytes(task);
        self.streams.recount();
        if let Poll::Ready(last) = moved {
            return Poll::Ready(Over::End(last));
        }
        if let Some(fault) = self.streams.fault() {
            return Poll::Ready(Over::End(Last::Close(reason(fault))));
        }
        if self.has_client_ended {
            self.streams.end_blocked();
        }
        let is_over = self.streams.is_done() || self.has_client_ended && !self.is_busy();
        // What is sealed or queued is owed, too: an end drops what the socket has no room for.
        if is_over && self.client.unsent_bytes() == 0 && self.streams.is_written() {
            return Poll::Ready(Over::End(self.closed()));
        }
        self.note_busy();
        self.settle(task);
        self.poll_stop(task)
    }

    fn is_busy(&self) -> bool {
        self.streams.count() > 0
    }

    /// Asks the client to begin no more streams, if the process ends or a reload removed the rule.
    fn leave(&mut self) {
        if self.going_away.is_none()
            && let Some(why) = self.served.why_last()
        {
            self.going_away = Some(why);
            self.shut_down();
        }
    }

    fn shut_down(&mut self) {
        self.streams.shut_down(self.now_ms);
        if !self.is_busy() {
            self.idle_at_ms = self.idle_at_ms.min(self.now_ms + ms(GOAWAY_WAIT));
        }
    }

    /// Reads and writes until both would wait.
    fn poll_bytes(&mut self, task: &mut Context<'_>) -> Poll<Last> {
        let turn_end = self.client.bytes_to_client.get() + TURN_BYTES;
        for _ in 0..ROUNDS_MAX {
            let written = match self.poll_write(task, turn_end) {
                Poll::Ready(Err(lost)) => return Poll::Ready(Last::Cut(lost_reason(&lost))),
                written => written.is_ready(),
            };
            match self.poll_read(task) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(last)) => return Poll::Ready(last),
                Poll::Pending if written && self.may_write() => {}
                Poll::Pending => return Poll::Pending,
            }
        }
        // Other tasks have their turn.
        task.waker().wake_by_ref();
        Poll::Pending
    }

    fn may_write(&self) -> bool {
        self.streams.has_output() || self.streams.is_passing()
    }

    /// Seals and sends what may be sent, until the connection has sent `turn_end` bytes.
    fn poll_write(
        &mut self,
        task: &mut Context<'_>,
        turn_end: u64,
    ) -> Poll<Result<(), ClientLost>> {
        loop {
            match ready!(self.client.poll_flush_sealed(task)) {
                // The deadline is the connection's: it has a last frame to send.
                Err(ClientLost::Wait(WaitError::Io(error))) => {
                    return Poll::Ready(Err(error.into()));
                }
                Err(ClientLost::Wait(_)) => return Poll::Pending,
                flushed => flushed?,
            }
            if self.client.bytes_to_client.get() >= turn_end {
                // Other tasks have their turn.
                task.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.streams.has_output() {
                let streams = &self.streams;
                self.client.seal(|room| streams.fill(room))?;
                self.streams.note_sealed();
            } else if !ready!(self.poll_pass(task))? {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Reads what has arrived, and begins streams. Ready if there may be more.
    fn poll_read(&mut self, task: &mut Context<'_>) -> Poll<Result<(), Last>> {
        if self.has_client_ended {
            return self.poll_reset(task);
        }
        let before = self.client.plain.len();
        let waits = loop {
            // Asked once a frame: other workers may free memory meanwhile.
            if !self.may_decode(task) {
                break true;
            }
            match self.receive()? {
                ReadStep::NeedMore => break false,
                ReadStep::OutputFull => break true,
                _ => {}
            }
        };
        if self.client.plain.len() < before {
            // A connection that is quiet afterwards does not keep the buffer.
            self.client.recount();
        }
        if waits {
            return Poll::Pending;
        }
        let is_short = self.served.http.engine.process.budget.piece().is_none();
        if is_short && !self.may_read(task) {
            return Poll::Pending;
        }
        let (filled, step) = self.poll_fill(task, !is_short);
        if let Some(step) = step {
            self.take_step(step)?;
        }
        match ready!(filled) {
            // `poll_stop` handles the deadline, and what else ends the connection.
            Err(ClientLost::Wait(
                WaitError::Late | WaitError::Drained | WaitError::Ended | WaitError::Shed,
            )) => Poll::Pending,
            Err(lost) => Poll::Ready(Err(Last::Cut(lost_reason(&lost)))),
            Ok(0) => {
                // All that came before was decoded.
                self.has_client_ended = true;
                self.streams.end_requests();
                self.poll_reset(task)
            }
            Ok(_) => Poll::Ready(Ok(())),
        }
    }

    /// Waits for the reset of a client that has ended its stream. It may still read: see
    /// `poll_closed` of `client/stream.rs`, which does the same for HTTP/1.1.
    fn poll_reset(&self, task: &mut Context<'_>) -> Poll<Result<(), Last>> {
        match ready!(self.client.handle.poll_ready(task, &[CLIENT], FAILED)) {
            Ok(()) => {
                let error = ErrorKind::ConnectionReset.into();
                Poll::Ready(Err(Last::Cut(Reason::client_io(&error, None))))
            }
            // `poll_stop` handles it.
            Err(_) => Poll::Pending,
        }
    }

    /// True if received bytes may be decoded. While memory is short and trailers wait for their
    /// streams, they may not: each may be as long as a head.
    fn may_decode(&self, task: &mut Context<'_>) -> bool {
        !self.streams.has_trailers()
            || self.served.http.engine.process.budget.piece().is_some()
            || self.may_read(task)
    }

    /// True if the connection may be read while memory is short.
    fn may_read(&self, task: &mut Context<'_>) -> bool {
        let engine = &self.served.http.engine;
        let may = self.streams.may_read(!engine.process.budget.is_over(PIECE_BYTES_MIN));
        if !may {
            // Its streams still hold earlier bytes.
            engine.wants_memory(task);
        }
        may
    }

    /// Reads up to the next event.
    fn receive(&mut self) -> Result<ReadStep, Last> {
        let received = self.streams.receive(&self.client.plain, self.now_ms);
        let step = received.map(|(consumed, step)| {
            self.client.plain.advance(consumed);
            step
        });
        self.take_step(step)
    }

    /// Does what an event asks for.
    fn take_step(&mut self, step: Result<ReadStep, ConnectionFault>) -> Result<ReadStep, Last> {
        let step = step.map_err(|fault| Last::Close(reason(fault)))?;
        if self.streams.resets() > RESETS_PENDING_MAX {
            self.streams.close(ErrorCode::ENHANCE_YOUR_CALM);
            return Err(Last::Close(Reason::StreamFlood(StreamFlood::Reset)));
        }
        match step {
            ReadStep::Request(arrived) => {
                self.begin(arrived)?;
                Ok(ReadStep::Done)
            }
            ReadStep::GoAway(code) => {
                self.client_code = code;
                Ok(ReadStep::Done)
            }
            step => Ok(step),
        }
    }

    /// Serves a stream if there is room for it.
    fn begin(&mut self, arrived: Arrived) -> Result<(), Last> {
        (self.has_served, self.is_unused) = (true, false);
        self.renew();
        let handle = self.client.handle.clone();
        // A long head counts before the next one is decoded.
        self.streams.recount();
        let Arrived { id, mut head, is_last } = arrived;
        let asked = read_request(&mut head, is_last);
        self.streams.give_back(head);
        if let Err(WaitError::Shed) = handle.in_time() {
            // The stream came in the same iteration, after the connection was shed.
            self.refuse(id, &asked.parts);
            return Err(self.send_away(WaitError::Shed));
        }
        let (engine, source) = (&self.served.http.engine, self.served.info.client.ip());
        let long = room::beyond_stream(&asked.parts);
        let bytes = STREAM_BYTES + long;
        let has_room = engine.make_room_to_wake(handle.key(), source, bytes)
            // The last eighth of the budget is for new connections and for short requests.
            && (long == 0 || !engine.process.budget.is_tight(bytes));
        if !has_room {
            // The connection can still be shed. Before its first stream it is half-open, so it is
            // shed before later ones that shake hands.
            self.refuse(id, &asked.parts);
            return Ok(());
        }
        engine.enters(handle.key(), Phase::Busy);
        // Counted before the next stream is read, which is before this stream's task runs.
        let (counted, serving) =
            (Counted::new(&engine.process.budget, bytes), engine.count_task(source));
        let two = Http2Stream::new(self.streams.clone(), id, is_last);
        let work = StreamWork::Request(asked);
        tasks::begin(StreamJob { served: self.served.clone(), work, two, counted, serving });
        Ok(())
    }

    /// Refuses an unprocessed stream, so that its client may retry (RFC 9113 8.7).
    fn refuse(&self, id: u32, request: &request::Parts) {
        self.streams.refuse(id);
        let mut record = Record::new(&self.served, request);
        record.failed = true;
        record.reason = Reason::Shed(Shed::Stream);
        self.served.emit(&record);
    }

    /// Ends the connection by GOAWAY, so that its client knows that none of its requests was lost.
    fn send_away(&self, wait_error: WaitError) -> Last {
        self.streams.close(ErrorCode::NO_ERROR);
        Last::Close(ClientLost::Wait(wait_error).reason())
    }

    /// Returns the reason why a connection ends that nobody ended by force.
    fn closed(&mut self) -> Last {
        let by_client = match self.client_code {
            _ if self.client.is_truncated() => return Last::Close(Reason::Truncated),
            ErrorCode::NO_ERROR => Reason::ClientClosed(None),
            ErrorCode(code) => Reason::Http2(Peer::Client, Http2Failure { code, received: true }),
        };
        Last::Close(self.going_away.take().unwrap_or(by_client))
    }

    /// Follows the number of streams: the connection is idle without any.
    fn note_busy(&mut self) {
        let (is_busy, is_greeted) = (self.is_busy(), self.is_greeted || self.streams.is_greeted());
        if is_busy == self.was_busy && is_greeted == self.is_greeted {
            return;
        }
        (self.was_busy, self.is_greeted) = (is_busy, is_greeted);
        if !is_busy {
            self.earlier = self.served.clone();
        }
        if !is_busy && self.has_served {
            self.served.http.engine.enters(self.client.handle.key(), Phase::Idle);
        }
        let http = &self.served.http.shared.config.http;
        let wait = match self.going_away {
            Some(_) => GOAWAY_WAIT,
            None if is_busy => http.http2_idle_timeout,
            // One that is idle is parked long before. This is for one that cannot be parked: its
            // client has sent a part of a frame or of a head, or does not read.
            None => http.http2_idle_timeout.min(http.body_timeout),
        };
        self.idle_at_ms = self.now_ms + ms(wait);
        self.rest_at_ms = self.now_ms + ms(AWAKE);
    }

    /// True if it can be parked.
    fn may_rest(&self) -> bool {
        let may_begin = self.going_away.is_none();
        self.client.is_at_rest()
            && self.streams.can_park()
            && if self.is_busy() { self.has_one_rule() } else { may_begin }
            // Whoever has ended it would not be heard any more.
            && !self.client.handle.is_to_end()
            && !self.is_due_soon()
    }

    /// True if something is due so soon that parking is not worth it. For an upgrade it is until
    /// then: the deadlines of streams that rest go along, and the others are of this process.
    fn is_due_soon(&self) -> bool {
        let at_once = self.served.http.engine.rests_at_once();
        let soon_ms = if at_once { 0 } else { PARKED_MS_MIN };
        self.streams.due_ms() <= self.now_ms + soon_ms
    }

    /// Waits for what ends its task other than its client.
    fn poll_stop(&mut self, task: &mut Context<'_>) -> Poll<Over> {
        let handle = self.client.handle.clone();
        if handle.is_to_end() {
            self.streams.end_streams();
        }
        // As in HTTP/1.1: if a partial head has no room, this connection is shed, or others are.
        if !self.is_busy()
            && self.streams.unfinished() > HELLO_BYTES
            && !self.served.http.engine.relieve(0)
        {
            return Poll::Ready(Over::End(self.send_away(WaitError::Shed)));
        }
        for _ in 0..2 {
            let rest_at_ms = match self.may_rest() {
                // In an upgrade it goes to the other process at once, as with streams that rest.
                true if self.is_busy() || self.served.http.engine.is_leaving() => self.now_ms,
                true => self.rest_at_ms.min(self.idle_at_ms),
                false => u64::MAX,
            };
            if rest_at_ms <= self.now_ms {
                return Poll::Ready(Over::Rest);
            }
            let due_ms = self.streams.due_ms().min(self.idle_at_ms).min(rest_at_ms);
            // Most deadlines move back before they pass. The earlier one then passes for nobody.
            if due_ms < self.armed_ms {
                self.armed_ms = due_ms;
                handle.due_in(Duration::from_millis(due_ms.saturating_sub(self.now_ms)));
            }
            let Err(wait_error) = ready!(handle.poll_ready(task, &[], 0)) else { break };
            self.armed_ms = u64::MAX;
            if let Some(last) = self.late(wait_error) {
                return Poll::Ready(Over::End(last));
            }
            // What is due may have written a frame.
            task.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Does what is due.
    fn late(&mut self, wait_error: WaitError) -> Option<Last> {
        match wait_error {
            WaitError::Io(_) | WaitError::Unregistered(_) => {
                return Some(Last::Cut(lost_reason(&ClientLost::Wait(wait_error))));
            }
            WaitError::Shed | WaitError::Ended => return Some(self.send_away(wait_error)),
            WaitError::Drained if !self.is_busy() => {
                let why = self.going_away.take().unwrap_or(Reason::Drained(None));
                return Some(Last::Close(why));
            }
            _ => {}
        }
        if self.streams.due_ms() <= self.now_ms
            && let Err(fault) = self.streams.expire(self.now_ms)
        {
            return Some(Last::Close(reason(fault)));
        }
        if self.now_ms < self.idle_at_ms {
            return None;
        }
        if !self.is_greeted {
            return Some(Last::Close(Reason::Timeout(Limit::Head, None)));
        }
        if self.is_busy() {
            // Each stream has its own deadline.
            let idle = self.served.http.shared.config.http.http2_idle_timeout;
            self.idle_at_ms = self.now_ms + ms(idle);
            return None;
        }
        if self.streams.is_done() {
            // The client has ended the connection, and does not take the rest.
            return Some(self.closed());
        }
        if let Some(why) = self.going_away.take() {
            return Some(Last::Close(why));
        }
        self.going_away = Some(Reason::Timeout(Limit::Http2Idle, None));
        self.idle_at_ms = self.now_ms + ms(GOAWAY_WAIT);
        self.shut_down();
        None
    }

    /// Ends the connection and writes its line.
    fn end(mut self, last: Last) {
        let (words, reason) = match last {
            Last::Close(reason) => (self.last_words(), reason),
            Last::Cut(reason) => (self.client.unsent(), reason),
        };
        let failure = match &reason {
            Reason::Http2(_, failure) => Some(*failure),
            Reason::StreamFlood(_) => Some(failed(ErrorCode::ENHANCE_YOUR_CALM)),
            _ => None,
        };
        self.streams.closes(failure);
        self.end_rested();
        drop(self.client.handle.take_sockets());
        park::close_with(&self.client.handle, &words);
        let end = End { outcome: Outcome::Terminated, reason };
        self.served.http.engine.emit(&self.served.info_now(), &end);
    }

    /// Writes the lines of the exchanges that rest: they have no task that does.
    fn end_rested(&self) {
        for (left, RestingStream { form, name, open, .. }) in self.streams.take_ended() {
            end_rested(&self.earlier, &form, Some(&name), why(left).reason());
            drop(open);
        }
    }

    /// Returns what is still to be sent, and close_notify.
    fn last_words(&mut self) -> Vec<u8> {
        while !self.streams.is_written() {
            let streams = &self.streams;
            if self.client.seal(|room| streams.fill_last(room)).is_err() {
                return Vec::new();
            }
        }
        self.client.close_notify()
    }
}

/// Returns the reason why the connection to the client was lost.
fn lost_reason(lost: &ClientLost) -> Reason {
    match lost {
        ClientLost::Wait(WaitError::Io(error)) => Reason::client_io(error, None),
        lost => lost.reason(),
    }
}

fn failed(code: ErrorCode) -> Http2Failure {
    Http2Failure { code: code.0, received: false }
}

/// Returns the reason why a connection ends for a fault of its client.
fn reason(fault: ConnectionFault) -> Reason {
    match fault {
        ConnectionFault::Flood(Flood::Drops) => Reason::StreamFlood(StreamFlood::Dropped),
        fault => Reason::Http2(Peer::Client, failed(fault.code())),
    }
}

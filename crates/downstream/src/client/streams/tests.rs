//! Streams and their connection, against a client in memory.

#![allow(clippy::unwrap_used)]

use std::io::{IoSliceMut, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Wake, Waker};

use eyelet_h2::hpack::HeaderField;
use eyelet_h2::{FRAME_BYTES_MAX, FRAME_HEAD_BYTES, H2Limits, H2Received, RequestKind};
use eyelet_memory::budget::Budget;
use http::Response;

use super::*;
use super::{CONNECTION_WINDOW_BYTES, LentBody};
use crate::client::resting_stream::{RestingStream, StreamUpstream};
use eyelet_upstream::RestingUpstream;
use eyelet_upstream::testing::{connected, look, worker};

/// A client and the server's side of its connection.
struct Pair {
    client: H2Connection,
    up: Vec<u8>,
    streams: Streams,
    budget: Arc<Budget>,
}

impl Pair {
    fn new() -> Self {
        Self::with(H2Limits::default())
    }

    /// A pair with these limits of the server.
    fn with(limits: H2Limits) -> Self {
        let (mut up, mut down) = (Vec::new(), Vec::new());
        let client = H2Connection::client(H2Limits::default(), 0, &mut up);
        let h2 = H2Connection::server(limits, 0, &mut down);
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let streams = Streams::new(h2, down, Counted::new(&budget, 0));
        Self { client, up, streams, budget }
    }

    fn request(&mut self) -> u32 {
        self.request_with(&[])
    }

    fn request_with(&mut self, more: &[(&str, &str)]) -> u32 {
        let fields =
            [(":method", "POST"), (":scheme", "https"), (":path", "/"), (":authority", "app.test")];
        let fields = fields.iter().chain(more);
        let fields =
            fields.map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
        self.client.request(fields, RequestKind::Other, false, &mut self.up).unwrap()
    }

    fn data(&mut self, id: u32, len: usize) {
        let head = self.client.data(id, len, false).unwrap();
        self.up.extend_from_slice(&head);
        self.up.resize(self.up.len() + len, 7);
    }

    /// The server reads all that the client has said.
    fn read(&mut self) {
        let up = mem::take(&mut self.up);
        let mut at = 0;
        loop {
            let (consumed, step) = self.streams.receive(&up[at..], 0).unwrap();
            at += consumed;
            match step {
                ReadStep::NeedMore => break,
                ReadStep::Request(arrived) => {
                    self.streams.begin(arrived.id, arrived.is_last);
                    assert_eq!(self.streams.runs(arrived.id), None);
                }
                _ => {}
            }
        }
        assert_eq!(at, up.len());
        self.streams.recount();
    }

    /// The client reads all that the server writes. Returns the heads, the data, and the resets.
    fn hear(&mut self) -> (usize, usize, Vec<ErrorCode>) {
        let (mut down, mut room) = (Vec::new(), [0; 100]);
        while self.streams.has_output() {
            let len = self.streams.fill(&mut room);
            assert!(len > 0);
            down.extend_from_slice(&room[..len]);
            self.streams.note_sealed();
        }
        let (mut heads, mut bytes, mut resets) = (0, 0, Vec::new());
        let mut rest = &down[..];
        while let H2Received::Event { consumed, event } =
            self.client.receive(rest, 0, &mut self.up).unwrap()
        {
            rest = &rest[consumed..];
            match event {
                H2Event::Response { .. } => heads += 1,
                H2Event::Data { data, .. } => bytes += data.len(),
                H2Event::Reset { code, .. } => resets.push(code),
                _ => {}
            }
        }
        (heads, bytes, resets)
    }
}

fn head() -> response::Parts {
    Response::new(()).into_parts().0
}

/// For a client that reads nothing, data and other frames have one bound of output together. Its
/// next frames stay unread then.
#[test]
fn nothing_is_read_while_the_output_is_full() {
    let mut pair = Pair::new();
    let id = pair.request();
    pair.read();
    pair.streams.respond(id, head(), false);
    (0..8).for_each(|_| pair.streams.push(id, Bytes::from(vec![0; 16 << 10])));
    pair.streams.cut(id);
    let held = pair.streams.state.borrow().mux.out.len();
    assert!(held >= eyelet_h2::OUTPUT_BYTES_MAX, "{held}");
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let read = pair.streams.receive(&ping, 0).unwrap();
    assert!(matches!(read, (0, ReadStep::OutputFull)));
    assert_eq!(pair.streams.state.borrow().mux.out.len(), held);
}

/// Bodies in small frames, trailers, a taken part and a dropped rest: all is counted, and nothing
/// is when the streams have ended.
#[test]
fn what_streams_hold_is_counted_until_they_end() {
    let mut pair = Pair::new();
    let task = Context::from_waker(Waker::noop());
    let ids = [pair.request(), pair.request()];
    for id in ids {
        (0..1_000).for_each(|_| pair.data(id, 17));
    }
    let trailers = [HeaderField::new(b"x-sum", b"7")];
    pair.client.trailers(ids[1], trailers, &mut pair.up).unwrap();
    pair.read();
    let held = pair.budget.used() - HTTP2_BYTES;
    assert!((2 * 17_000..4 * 17_000).contains(&held), "{held}");
    assert!(pair.streams.has_trailers());
    assert!(!pair.streams.may_read(true));

    let mut bytes = 0;
    while let Poll::Ready(Ok(body)) = pair.streams.poll_body(ids[0], &task) {
        bytes += body.len();
    }
    assert_eq!(bytes, 17_000);
    let left = pair.budget.used() - HTTP2_BYTES;
    assert!(left + 17_000 <= held, "{left} of {held} are left once a body is taken");
    assert!(pair.streams.poll_body(ids[0], &task).is_pending());
    pair.streams.release(ids[0], usize::MAX);
    pair.streams.end(ids[0]);
    pair.streams.end(ids[1]);
    assert!(pair.streams.may_read(false) && !pair.streams.has_trailers());
    let left = pair.budget.used() - HTTP2_BYTES;
    assert!(left <= 4 << 10, "{left} before the connection's task runs");
    let (_, _, resets) = pair.hear();
    assert_eq!(resets, [ErrorCode::CANCEL; 2]);
    pair.streams.recount();
    let held = pair.budget.used() - HTTP2_BYTES;
    assert!(held <= 4 << 10, "{held}");
}

/// The bytes before a cut are passed on, behind their head and before the reset.
#[test]
fn a_cut_comes_behind_what_was_queued() {
    let mut pair = Pair::new();
    let task = Context::from_waker(Waker::noop());
    let id = pair.request();
    pair.read();
    pair.streams.respond(id, head(), false);
    pair.streams.push(id, vec![7; 20_000].into());
    assert!(pair.streams.poll_sent(id, &task).is_pending());
    pair.streams.cut(id);
    pair.streams.end(id);
    assert_eq!(pair.hear(), (1, 20_000, vec![ErrorCode::INTERNAL_ERROR]));
}

/// A response is sent once all but its last 4 KiB are in records, and no earlier.
#[test]
fn a_response_is_sent_with_its_last_bytes() {
    let mut pair = Pair::new();
    let task = Context::from_waker(Waker::noop());
    let id = pair.request();
    pair.read();
    pair.hear();
    pair.read();
    pair.streams.respond(id, head(), false);
    pair.streams.push(id, vec![7; 10_000].into());
    pair.streams.finish(id, None);
    let (mut room, mut filled) = ([0; 100], 0);
    while pair.streams.poll_sent(id, &task).is_pending() {
        assert!(pair.streams.has_output());
        filled += pair.streams.fill(&mut room);
        pair.streams.note_sealed();
    }
    assert!((5_900..6_200).contains(&filled), "{filled}");
    assert_eq!(pair.streams.poll_sent(id, &task), Poll::Ready(Left::Written));
    while pair.streams.has_output() {
        filled += pair.streams.fill(&mut room);
    }
    assert!(filled > 10_000, "the rest is on its way: {filled}");
}

/// Small responses are sent at once: their tasks need not run behind the connection's. What a
/// client that reads nothing makes it hold is little: then the streams wait.
#[test]
fn small_responses_are_sent_at_once_until_much_waits() {
    let mut pair = Pair::new();
    let task = Context::from_waker(Waker::noop());
    let ids: Vec<u32> = (0..100).map(|_| pair.request()).collect();
    pair.read();
    pair.hear();
    pair.read();
    let mut sent = 0;
    for id in &ids {
        pair.streams.respond(*id, head(), false);
        pair.streams.push(*id, vec![7; 500].into());
        pair.streams.finish(*id, None);
        if pair.streams.poll_sent(*id, &task).is_ready() {
            pair.streams.end(*id);
            sent += 1;
        }
    }
    assert!((6..=8).contains(&sent), "{sent} of 500 bytes in 4 KiB");
    assert_eq!(pair.streams.count(), 100 - sent);
    // The client's request bodies have not ended: each stream is reset behind its response.
    let (heads, bytes, resets) = pair.hear();
    assert_eq!((heads, bytes), (100, 50_000), "all arrive when it reads");
    assert_eq!(resets, vec![ErrorCode::NO_ERROR; sent]);
    for id in &ids[sent..] {
        assert_eq!(pair.streams.poll_sent(*id, &task), Poll::Ready(Left::Written));
    }
}

/// A small response waits for the window of its client, and others do not wait for it.
#[test]
fn a_small_response_waits_for_the_window() {
    let mut pair = Pair::new();
    let narrow = H2Limits { stream_window: 100, ..H2Limits::default() };
    pair.up.clear();
    pair.client = H2Connection::client(narrow, 0, &mut pair.up);
    let task = Context::from_waker(Waker::noop());
    let ids = [pair.request(), pair.request()];
    pair.read();
    pair.streams.respond(ids[0], head(), false);
    pair.streams.push(ids[0], vec![7; 150].into());
    pair.streams.finish(ids[0], None);
    assert!(pair.streams.poll_sent(ids[0], &task).is_pending());
    pair.streams.respond(ids[1], head(), true);
    assert_eq!(pair.streams.poll_sent(ids[1], &task), Poll::Ready(Left::Written));
    assert_eq!(pair.hear(), (2, 100, vec![]));
    assert!(pair.streams.poll_sent(ids[0], &task).is_pending());
    pair.streams.end(ids[0]);
    assert_eq!(pair.hear(), (0, 0, vec![ErrorCode::CANCEL]));
}

/// A response that is whole in records is sent, also if its client resets the stream behind it.
#[test]
fn a_reset_behind_a_sent_response_changes_nothing() {
    let mut pair = Pair::new();
    let task = Context::from_waker(Waker::noop());
    let id = pair.request();
    pair.read();
    pair.streams.respond(id, head(), false);
    pair.streams.push(id, vec![7; 500].into());
    pair.streams.finish(id, None);
    let mut room = [0; 1_000];
    while pair.streams.has_output() {
        pair.streams.fill(&mut room);
    }
    pair.client.reset(id, ErrorCode::CANCEL, &mut pair.up);
    pair.read();
    assert_eq!(pair.streams.poll_sent(id, &task), Poll::Ready(Left::Written));
}

/// A client sends no more on a stream whose rest nobody reads, and goes on with others.
#[test]
fn a_dropped_body_opens_the_connections_window_only() {
    let mut pair = Pair::new();
    let (dropped, other) = (pair.request(), pair.request());
    pair.read();
    pair.hear();
    pair.data(dropped, 16_384);
    pair.read();
    pair.streams.drop_body(dropped);
    for _ in 0..3 {
        let room = pair.client.room(dropped);
        pair.data(dropped, room);
        pair.read();
        pair.hear();
    }
    assert_eq!(pair.client.room(dropped), 0);
    let task = Context::from_waker(Waker::noop());
    for _ in 0..100 {
        pair.data(other, 16_384);
        pair.read();
        assert!(pair.streams.poll_body(other, &task).is_ready());
        pair.streams.release(other, usize::MAX);
        pair.hear();
    }
}

/// A stream that its client reset before its task ran is one of a flood, until its task has seen
/// that.
#[test]
fn early_resets_are_counted() {
    let mut pair = Pair::new();
    let id = pair.request();
    pair.client.reset(id, ErrorCode::CANCEL, &mut pair.up);
    let up = mem::take(&mut pair.up);
    let mut rest = &up[..];
    loop {
        let (consumed, step) = pair.streams.receive(rest, 0).unwrap();
        rest = &rest[consumed..];
        match step {
            ReadStep::NeedMore => break,
            ReadStep::Request(arrived) => pair.streams.begin(arrived.id, arrived.is_last),
            _ => {}
        }
    }
    assert_eq!(pair.streams.resets(), 1);
    let failure = Http2Failure { code: ErrorCode::CANCEL.0, received: true };
    assert_eq!(pair.streams.runs(id), Some(Left::Failed(failure)));
    assert_eq!(pair.streams.resets(), 0);
    pair.streams.end(id);
    assert_eq!((pair.streams.resets(), pair.streams.count()), (0, 0));
}

/// The exchange of a stream that has left its task, with this form.
fn resting(form: &[u8]) -> RestingStream {
    RestingStream {
        form: form.to_vec().into(),
        upstream: StreamUpstream::Kept(RestingUpstream::Socket(
            eyelet_sys::socket::pair().unwrap().0,
        )),
        name: "192.0.2.1:80".into(),
        open: Vec::new(),
        since: std::time::Instant::now(),
        idle_max: std::time::Duration::ZERO,
    }
}

/// Those that rest have no task that writes their access lines, so the connection gets them with
/// why each has ended. Those with a task keep it.
#[test]
fn streams_that_rest_are_taken_when_the_connection_ends() {
    let mut pair = Pair::new();
    let [reset, rests, served] = [1, 2, 3].map(|_| pair.request());
    pair.client.reset(reset, ErrorCode::CANCEL, &mut pair.up);
    let up = mem::take(&mut pair.up);
    let mut rest = &up[..];
    loop {
        let (consumed, step) = pair.streams.receive(rest, 0).unwrap();
        rest = &rest[consumed..];
        match step {
            ReadStep::NeedMore => break,
            ReadStep::Request(arrived) => {
                pair.streams.begin(arrived.id, arrived.is_last);
                if arrived.id != served {
                    pair.streams.leave(arrived.id, resting(&[arrived.id as u8]));
                }
            }
            _ => {}
        }
    }
    pair.streams.closes(None);
    let ended = pair.streams.take_ended();
    let ended: Vec<_> =
        ended.into_iter().map(|(left, stream)| (left, stream.form.to_vec())).collect();
    let failure = Http2Failure { code: ErrorCode::CANCEL.0, received: true };
    let expected = [(Left::Failed(failure), vec![reset as u8]), (Left::Closed, vec![rests as u8])];
    assert_eq!(ended, expected);
    assert!(pair.streams.take_ended().is_empty(), "each has one line");
    assert_eq!(pair.streams.runs(served), Some(Left::Closed));
}

/// While one stream goes on, the others rest on if their upstreams' sockets are watched, until
/// something happens to them.
#[test]
fn streams_rest_on_beside_one_that_goes_on() {
    let mut pair = Pair::new();
    let [quiet, called, said, unwatched] = [1, 2, 3, 4].map(|_| pair.request());
    pair.read();
    for id in [quiet, called, said] {
        pair.streams
            .leave(id, RestingStream { upstream: StreamUpstream::AtPlace, ..resting(&[id as u8]) });
    }
    pair.streams.leave(unwatched, resting(&[unwatched as u8]));
    pair.streams.recount();
    let held = pair.budget.used();
    let no_place = |_, socket| Err(socket);
    assert_eq!(pair.streams.settle(false, no_place), [unwatched], "nobody watches its socket");
    assert!(pair.streams.settle(false, |_, _| Ok(())).is_empty());
    pair.streams.call(called);
    pair.data(said, 5);
    pair.read();
    assert_eq!(pair.streams.settle(false, no_place), [called, said]);
    assert_eq!(pair.streams.settle(true, no_place), [called, said], "they move");
    for id in [called, said] {
        assert_eq!(pair.streams.take_rested(id).map(|it| it.form.to_vec()), Some(vec![id as u8]));
        assert!(pair.streams.take_rested(id).is_none(), "it has a task");
    }
    pair.streams.recount();
    assert!(pair.budget.used() < held, "their tasks count them now");
    pair.streams.call_all();
    assert_eq!(pair.streams.settle(false, no_place), [quiet, unwatched]);
}

/// Counts how often a task is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Reads what lent sockets have into records. Returns the streams in the order of their frames, and
/// how many bytes of the bodies are passed.
fn pass_all(pair: &mut Pair) -> (Vec<u32>, usize) {
    let (mut order, mut passed) = (Vec::new(), 0);
    let mut place = vec![0; FRAME_HEAD_BYTES + FRAME_BYTES_MAX];
    while pair.streams.is_passing() {
        let filled = pair.streams.fill_records(&mut [IoSliceMut::new(&mut place)]);
        assert_ne!(filled, 0);
        let received = pair.client.receive(&place[..filled], 0, &mut pair.up).unwrap();
        let H2Received::Event { event: H2Event::Data { stream, data, .. }, .. } = received else {
            panic!("no data: {received:?}");
        };
        order.push(stream);
        passed += data.len();
    }
    (order, passed)
}

/// Reads so for one socket. Returns how many bytes.
fn pass(pair: &mut Pair) -> usize {
    pass_all(pair).1
}

/// Bodies that are read from their sockets come by their urgency, however they were lent.
#[test]
fn the_more_urgent_of_two_lent_responses_comes_first() {
    const BODY: usize = 20_000;
    for (first, second, order) in [
        ("u=5", "u=1", [3, 3, 1, 1]),
        ("u=1", "u=5", [1, 1, 3, 3]),
        ("u=1, i", "u=1, i", [1, 3, 1, 3]),
    ] {
        let worker = worker();
        let mut pair = Pair::new();
        let ids = [first, second].map(|said| pair.request_with(&[("priority", said)]));
        assert_eq!(ids, [1, 3]);
        pair.read();
        let mut upstreams = Vec::new();
        for id in ids {
            pair.streams.respond(id, head(), false);
            let (mut upstream, socket) = connected(&worker);
            upstream.write_all(&[7; BODY]).unwrap();
            upstreams.push((upstream, socket));
        }
        assert_eq!(pair.hear().0, 2);
        look(&worker);
        let mut task = Context::from_waker(Waker::noop());
        for (id, (_, socket)) in ids.into_iter().zip(&upstreams) {
            let body = LentBody { socket, left: BODY as u64, sent: &Rc::default() };
            assert!(pair.streams.poll_read_from(id, &mut task, body).is_pending());
        }
        assert_eq!(pass_all(&mut pair), (order.to_vec(), 2 * BODY), "{first} and {second}");
    }
}

/// A client that has read late is not taken for one that stalls.
#[test]
fn the_task_of_a_lent_response_learns_that_its_window_opens() {
    const BODY: usize = 70_000;
    let worker = worker();
    let (mut upstream, socket) = connected(&worker);
    let mut pair = Pair::new();
    let id = pair.request();
    pair.read();
    pair.streams.respond(id, head(), false);
    assert_eq!(pair.hear().0, 1);
    upstream.write_all(&[7; BODY]).unwrap();
    look(&worker);
    let (woken, sent) = (Arc::new(Woken::default()), Rc::default());
    let waker = Waker::from(woken.clone());
    let mut task = Context::from_waker(&waker);
    let mut lend = |pair: &Pair, left: usize| {
        let body = LentBody { socket: &socket, left: left as u64, sent: &sent };
        assert!(pair.streams.poll_read_from(id, &mut task, body).is_pending());
    };
    lend(&pair, BODY);
    let window = pass(&mut pair);
    assert!(window < BODY && pair.streams.is_shut(id));
    lend(&pair, BODY - window);
    let before = woken.0.load(Relaxed);
    pair.client.release(id, u32::try_from(window).unwrap(), &mut pair.up);
    pair.read();
    assert!(woken.0.load(Relaxed) > before);
    assert_eq!(pass(&mut pair), BODY - window);
    assert_eq!(sent.get(), BODY as u64);
}

/// Uploads that stall leave windows to the others.
#[test]
fn few_streams_have_wide_windows() {
    const STREAM: u32 = 64 << 10;
    let limits = H2Limits {
        stream_window: STREAM,
        connection_window: CONNECTION_WINDOW_BYTES,
        ..H2Limits::default()
    };
    let worker = worker();
    let mut pair = Pair::with(limits);
    let ids = [pair.request(), pair.request(), pair.request(), pair.request()];
    pair.read();
    pair.hear();
    pair.read();
    let mut upstreams = Vec::new();
    for id in ids {
        let (upstream, socket) = connected(&worker);
        pair.streams.write_to(id, &socket, &Rc::default());
        upstreams.push(upstream);
        pair.data(id, 1_000);
        let (up, mut step) = (mem::take(&mut pair.up), None);
        assert_eq!(pair.streams.receive_lent(&up, 0, &mut step), up.len());
        assert!(step.is_none());
        pair.hear();
    }
    let wide = ids.iter().filter(|id| pair.client.window(**id) > STREAM as usize);
    assert_eq!(wide.count(), 2);
}

/// The connection waits for the first of its streams' deadlines, and again after each.
#[test]
fn each_stream_is_late_at_its_own_deadline() {
    let mut pair = Pair::new();
    let [first, second] = [pair.request(), pair.request()];
    pair.read();
    let (woken, driver) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
    let (stream, driver_waker) = (woken.clone().into(), driver.clone().into());
    let (task, driver_task) = (Context::from_waker(&stream), Context::from_waker(&driver_waker));
    pair.streams.driven_by(&driver_task);
    pair.streams.due_at(first, 500);
    assert_eq!(driver.0.load(Relaxed), 1, "it waits for an earlier time now");
    pair.streams.driven_by(&driver_task);
    pair.streams.due_at(second, 100);
    assert_eq!(driver.0.load(Relaxed), 2, "and for a still earlier one");
    pair.streams.driven_by(&driver_task);
    pair.streams.due_at(second, 900);
    assert_eq!((driver.0.load(Relaxed), pair.streams.due_ms()), (2, 100), "it need not know");

    assert!(pair.streams.poll_late(first, &task).is_pending());
    assert!(pair.streams.poll_late(second, &task).is_pending());
    pair.streams.expire(100).unwrap();
    assert_eq!((woken.0.load(Relaxed), pair.streams.due_ms()), (0, 500));
    pair.streams.expire(500).unwrap();
    assert_eq!((woken.0.load(Relaxed), pair.streams.due_ms()), (1, 900));
    assert!(pair.streams.poll_late(first, &task).is_ready());
    assert!(pair.streams.poll_late(second, &task).is_pending());
    pair.streams.due_at(first, 2_000);
    assert!(pair.streams.poll_late(first, &task).is_pending(), "it has another deadline");
    pair.streams.end(first);
    pair.streams.end(second);
    let settings_ms = pair.streams.due_ms();
    assert!(settings_ms > 2_000, "{settings_ms} is of no stream");
}

/// A client that has ended its stream acknowledges no SETTINGS, and that is no fault. Its request
/// is cut if a part of it is missing.
#[test]
fn a_client_that_has_ended_its_stream_is_waited_for_no_more() {
    let mut pair = Pair::new();
    let task = Context::from_waker(Waker::noop());
    let id = pair.request();
    pair.data(id, 10);
    pair.read();
    assert!(pair.streams.due_ms() < u64::MAX, "our SETTINGS");
    let Poll::Ready(Ok(body)) = pair.streams.poll_body(id, &task) else { panic!("no body") };
    assert_eq!(body.len(), 10);
    assert!(pair.streams.poll_body(id, &task).is_pending());
    pair.streams.end_requests();
    assert_eq!(pair.streams.due_ms(), u64::MAX);
    assert_eq!(pair.streams.expire(u64::MAX), Ok(()));
    assert_eq!(pair.streams.poll_body(id, &task), Poll::Ready(Err(Left::Cut)));
}

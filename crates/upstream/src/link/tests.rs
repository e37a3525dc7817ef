//! A link against a server of the same crate: bytes are carried by hand, and no socket is open.

#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use eyelet_engine::worker::{Handle, ParkedWaker, Worker};
use eyelet_memory::budget::{Account, UPSTREAM_RESTING_BYTES};

use super::*;
use crate::http2::Http2Exchange;
use crate::testing::worker;

/// A waker that notes that it was called.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A link with its upstream.
struct Pair {
    link: Link,
    server: H2Connection,
    budget: Arc<Budget>,
}

impl Pair {
    fn new() -> Self {
        let budget = Arc::new(Budget::new(1 << 30, 0));
        let mut out = Vec::new();
        let server = H2Connection::server(H2Limits::default(), 0, &mut out);
        let mut pair = Self { link: Link::new(budget.clone(), false), server, budget };
        pair.link.receive(&out, Instant::now()).unwrap();
        pair.carry();
        pair
    }

    /// Carries what the link has written to the server, and its answers back. Returns the streams
    /// that were reset, and the bytes of data.
    fn carry(&mut self) -> (Vec<u32>, usize) {
        let (mut reset, mut data_bytes) = (Vec::new(), 0);
        loop {
            let mut sent = vec![0; self.link.mux.out.len()];
            self.link.mux.out.take(&mut sent);
            if sent.is_empty() {
                return (reset, data_bytes);
            }
            let (mut used, mut out) = (0, Vec::new());
            loop {
                match self.server.receive(&sent[used..], 0, &mut out).unwrap() {
                    H2Received::Event { consumed, event } => {
                        used += consumed;
                        match event {
                            H2Event::Reset { stream, .. } => reset.push(stream),
                            H2Event::Data { data, .. } => data_bytes += data.len(),
                            _ => {}
                        }
                    }
                    H2Received::NeedMore { .. } => break,
                    H2Received::OutputFull { .. } => unreachable!("the output is empty"),
                }
            }
            self.link.receive(&out, Instant::now()).unwrap();
        }
    }

    fn ask(&mut self, is_last: bool) -> u32 {
        let fields = [(":method", "POST"), (":scheme", "http"), (":path", "/")]
            .map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
        let id = self.link.request(fields, RequestKind::Other, is_last).unwrap();
        self.carry();
        id
    }

    fn respond(&mut self, id: u32, status: &str, more: &[(&str, &str)], is_last: bool) {
        let mut out = Vec::new();
        let status = HeaderField::new(b":status", status.as_bytes());
        let more = more.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let more = more.map(|(name, value)| HeaderField::new(name, value));
        let fields = [status].into_iter().chain(more);
        match status.value {
            [b'1', ..] => self.server.inform(id, fields, &mut out).unwrap(),
            _ => self.server.respond(id, fields, is_last, &mut out).unwrap(),
        }
        self.link.receive(&out, Instant::now()).unwrap();
    }

    /// Sends data in frames of so many bytes.
    fn send(&mut self, id: u32, bytes: usize, frame: usize) {
        let mut out = Vec::new();
        for _ in 0..bytes / frame {
            out.extend_from_slice(&self.server.data(id, frame, false).unwrap());
            out.extend(std::iter::repeat_n(b'x', frame));
        }
        self.link.receive(&out, Instant::now()).unwrap();
    }

    fn task() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    fn data(&mut self, id: u32) -> Poll<Result<Option<usize>, StreamEnd>> {
        let data = self.link.poll_data(id, &Self::task());
        data.map_ok(|data| data.map(|data| data.len()))
    }

    /// Bytes that the budget counts.
    fn counted(&mut self) -> usize {
        self.link.recount();
        self.budget.used_by(Account::Http)
    }
}

/// The upstream has spoken, also where it allows no stream beside the one that was early.
#[test]
fn an_upstream_that_allows_no_more_streams_has_greeted() {
    let mut link = Link::new(Arc::new(Budget::new(1 << 30, 0)), true);
    let fields = [(":method", "GET"), (":scheme", "https"), (":path", "/")]
        .map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
    link.request(fields, RequestKind::Other, true).unwrap();
    assert_eq!(link.poll_greeted(&Pair::task()), Poll::Pending);
    let mut out = Vec::new();
    H2Connection::server(H2Limits { streams_max: 1, ..H2Limits::default() }, 0, &mut out);
    link.receive(&out, Instant::now()).unwrap();
    assert_eq!(link.poll_greeted(&Pair::task()), Poll::Ready(true));
    assert!(!link.can_open() && link.poll_open(&Pair::task()).is_pending());
    let mut lost = Link::new(Arc::new(Budget::new(1 << 30, 0)), true);
    lost.end(LinkEnd::Closed);
    assert_eq!(lost.poll_greeted(&Pair::task()), Poll::Ready(false));
}

/// Nothing may come from the upstream, so that nothing else wakes who waits.
#[test]
fn who_waits_for_a_stream_of_a_retired_connection_is_woken() {
    let mut link = Link::new(Arc::new(Budget::new(1 << 30, 0)), false);
    let woken = Arc::new(Woken::default());
    let waker = woken.clone().into();
    let task = Context::from_waker(&waker);
    assert!(link.poll_open(&task).is_pending());
    link.retire();
    assert!(woken.0.load(Ordering::Relaxed));
    assert!(matches!(link.poll_open(&task), Poll::Ready(Err(LinkEnd::Unread))));
}

/// The memory of frames is near their bytes, however small they are, and taking them frees it and
/// the window.
#[test]
fn small_frames_take_little_memory() {
    for frame in [1, 10, 100, 1000, 1 << 14] {
        let mut pair = Pair::new();
        let before = pair.counted();
        let id = pair.ask(true);
        pair.respond(id, "200", &[], false);
        // A peer's small frames are bounded in number, too: empty ones only.
        let bytes = 48_000 / frame * frame;
        pair.send(id, bytes, frame);
        let held = pair.counted() - before;
        assert!(held >= bytes && held < 3 * bytes + 4096, "{held} for {bytes} in {frame}");
        assert!(pair.link.poll_head(id, &Pair::task()).is_ready());
        let mut taken = 0;
        while let Poll::Ready(Ok(Some(len))) = pair.data(id) {
            assert!(len <= 1 << 14);
            taken += len;
        }
        assert_eq!((taken, pair.data(id)), (bytes, Poll::Pending));
        pair.carry();
        pair.send(id, bytes, frame);
        assert!(pair.link.forget(id), "it had not ended");
        assert_eq!(pair.carry().0, [id]);
        assert_eq!((pair.link.streams(), pair.counted()), (0, before));
    }
}

/// Heads that nobody takes are bounded by their bytes.
#[test]
fn interim_responses_that_wait_are_bounded() {
    let mut pair = Pair::new();
    let id = pair.ask(true);
    let long = "x".repeat(30_000);
    let mut sent = 0;
    while pair.link.can_open() && pair.carry().0.is_empty() {
        assert!(sent < 20, "a bound");
        pair.respond(id, "103", &[("link", &long)], false);
        sent += 1;
    }
    assert!(sent > 2, "{sent}");
    let mut end = Poll::Pending;
    while let Poll::Ready(head) = pair.link.poll_head(id, &Pair::task()) {
        end = Poll::Ready(head.err());
        if end != Poll::Ready(None) {
            break;
        }
    }
    assert_eq!(end, Poll::Ready(Some(StreamEnd::Interim)));
}

/// While memory is short, the heads of many streams do not arrive before one of them is taken.
#[test]
fn heads_arrive_one_by_one_while_memory_is_short() {
    let mut pair = Pair::new();
    let ids: Vec<u32> = (0..10).map(|_| pair.ask(true)).collect();
    let (long, mut out) = ("y".repeat(1_000), Vec::new());
    for id in &ids {
        let fields = [(":status", "200"), ("x", long.as_str())]
            .map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
        pair.server.respond(*id, fields, true, &mut out).unwrap();
    }
    let held = pair.budget.bytes_max() / 8 * 7;
    pair.budget.take(Account::Relayed, held);
    pair.link.receive(&out, Instant::now()).unwrap();
    for (n, id) in ids.iter().enumerate() {
        assert!(pair.link.is_paused() && pair.counted() < 3 * out.len(), "{n}");
        assert!(ids[n + 1..].iter().all(|id| pair.link.poll_head(*id, &Pair::task()).is_pending()));
        assert!(pair.link.poll_head(*id, &Pair::task()).is_ready());
        pair.link.go_on().unwrap();
    }
    assert!(!pair.link.is_paused() && pair.link.rest.is_empty());
    pair.budget.give(Account::Relayed, held);
}

/// The request's end may follow the response's. Then the stream has ended, and is not reset.
#[test]
fn a_response_may_end_first() {
    let mut pair = Pair::new();
    let id = pair.ask(false);
    pair.respond(id, "200", &[], true);
    assert!(matches!(pair.link.poll_head(id, &Pair::task()), Poll::Ready(Ok((_, true)))));
    let data = Bytes::from_static(&[0; 2000]);
    pair.link.send(id, data, true).unwrap();
    assert_eq!(pair.carry(), (vec![], 2000));
    assert!(!pair.link.forget(id));
}

/// Requests wait for the socket and for their windows, in turns.
#[test]
fn bodies_wait_in_turns() {
    /// Sends what a request may send now.
    fn fill(pair: &mut Pair, id: u32) -> usize {
        let mut sent = 0;
        while let Poll::Ready(room) = pair.link.poll_room(id, &Pair::task()) {
            pair.link.send(id, vec![0; room].into(), false).unwrap();
            sent += room;
        }
        sent
    }
    let mut pair = Pair::new();
    let (first, second) = (pair.ask(false), pair.ask(false));
    let sent = fill(&mut pair, first);
    assert!((60_000..=65_536).contains(&sent), "{sent}: what may wait for the socket");
    assert_eq!(fill(&mut pair, second), 0);
    assert_eq!(pair.link.blocked, [first, second]);
    assert_eq!(pair.carry().1, sent);
    let mut out = Vec::new();
    pair.server.release(first, u32::try_from(sent).unwrap(), &mut out);
    pair.link.receive(&out, Instant::now()).unwrap();
    let sent = fill(&mut pair, first);
    assert!(sent > 60_000, "{sent}: its window is open again");
    assert_eq!(fill(&mut pair, second), 0, "the first took all room");
    assert_eq!(pair.link.blocked, [second, first], "the second keeps its place");
    pair.carry();
    pair.link.wake_blocked();
    assert!(fill(&mut pair, second) > 0);
    assert_eq!(pair.link.blocked, [first, second]);
    pair.carry();
    // An end wakes it, too.
    out.clear();
    pair.server.reset(first, ErrorCode::CANCEL, &mut out);
    pair.link.receive(&out, Instant::now()).unwrap();
    assert_eq!(pair.link.poll_room(first, &Pair::task()), Poll::Ready(0));
    assert_eq!(pair.link.blocked, [second]);
}

/// A request to a silent upstream has it pinged, also while earlier bytes wait for the socket.
#[test]
fn a_wanted_ping_wakes_the_task() {
    let mut pair = Pair::new();
    let woken = Arc::new(Woken::default());
    let fields = [(":method", "GET"), (":scheme", "http"), (":path", "/")]
        .map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
    pair.link.request(fields, RequestKind::Other, true).unwrap();
    pair.link.mux.driver.waits(&Context::from_waker(&woken.clone().into()));
    pair.link.heard_at = Instant::now().checked_sub(2 * PING_FIRST_AFTER).unwrap();
    pair.link.request(fields, RequestKind::Other, true).unwrap();
    assert!(pair.link.wants_ping && woken.0.load(Ordering::Relaxed));
}

/// The arrived messages are taken first. Then each stream has its own end.
#[test]
fn ends_follow_what_has_arrived() {
    let mut pair = Pair::new();
    let (whole, cut, left_out) = (pair.ask(true), pair.ask(true), pair.ask(true));
    pair.respond(whole, "200", &[], false);
    pair.respond(cut, "200", &[], false);
    pair.send(whole, 10, 10);
    pair.send(cut, 10, 10);
    let mut out = pair.server.data(whole, 0, true).unwrap().to_vec();
    // GOAWAY with `cut` as the last stream.
    let go_away = [[0; 4], cut.to_be_bytes(), [0; 4]].concat();
    out.extend_from_slice(&[0, 0, 8, 7, 0]);
    out.extend_from_slice(&go_away);
    pair.link.receive(&out, Instant::now()).unwrap();
    assert!(pair.link.is_retired());
    let head = pair.link.poll_head(left_out, &Pair::task());
    assert_eq!(head.map_ok(drop), Poll::Ready(Err(StreamEnd::Unprocessed)));
    pair.link.end(LinkEnd::Closed);
    for (id, end) in [(whole, Ok(None)), (cut, Err(StreamEnd::Lost))] {
        assert!(matches!(pair.link.poll_head(id, &Pair::task()), Poll::Ready(Ok(_))));
        assert_eq!(pair.data(id), Poll::Ready(Ok(Some(10))));
        assert_eq!(pair.data(id), Poll::Ready(end));
        pair.link.forget(id);
    }
    pair.link.forget(left_out);
    assert_eq!(pair.link.arrived(), 0);
}

/// A head in pieces of any size is the same head.
#[test]
fn frames_may_arrive_in_any_pieces() {
    for piece in [1, 2, 8, 9, 10, 50] {
        let mut pair = Pair::new();
        let id = pair.ask(true);
        let mut out = Vec::new();
        let fields = [(":status", "200"), ("a", "b")];
        let fields = fields.map(|(n, v)| HeaderField::new(n.as_bytes(), v.as_bytes()));
        pair.server.respond(id, fields, false, &mut out).unwrap();
        pair.server.ping([1; 8], &mut out);
        out.extend_from_slice(&pair.server.data(id, 3, true).unwrap());
        out.extend_from_slice(b"end");
        for piece in out.chunks(piece) {
            pair.link.receive(piece, Instant::now()).unwrap();
        }
        let Poll::Ready(Ok((head, false))) = pair.link.poll_head(id, &Pair::task()) else {
            panic!("a head in pieces of {piece}");
        };
        assert_eq!(head.fields.value(b"a"), Some(&b"b"[..]));
        let mut body = 0;
        while let Poll::Ready(Ok(Some(len))) = pair.data(id) {
            body += len;
        }
        assert_eq!((body, pair.data(id)), (3, Poll::Ready(Ok(None))));
        assert!(pair.link.rest.is_empty());
    }
}

/// Those who wait for the first stream of a new connection wait no longer once GOAWAY has come:
/// together with SETTINGS, or behind some that allow no stream.
#[test]
fn a_connection_that_takes_no_stream_is_not_waited_for() {
    for (streams_max, is_later) in [(100, false), (0, false), (0, true)] {
        let (mut link, mut out) = (Link::new(Arc::new(Budget::new(1 << 30, 0)), false), Vec::new());
        let limits = H2Limits { streams_max, ..H2Limits::default() };
        let mut server = H2Connection::server(limits, 0, &mut out);
        if is_later {
            link.receive(&std::mem::take(&mut out), Instant::now()).unwrap();
        }
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        assert!(link.poll_open(&Context::from_waker(&waker)).is_pending());
        server.close(ErrorCode::NO_ERROR, &mut out);
        link.receive(&out, Instant::now()).unwrap();
        assert!(woken.0.load(Ordering::Relaxed), "{streams_max} {is_later}");
        let opened = link.poll_open(&Pair::task());
        assert!(matches!(opened, Poll::Ready(Err(LinkEnd::Unread))), "{opened:?}");
    }
}

/// An upstream cannot have processed what was never written to it.
#[test]
fn a_request_that_was_not_written_is_unprocessed() {
    let mut pair = Pair::new();
    let sent = pair.ask(false);
    let fields = [(":method", "POST"), (":scheme", "http"), (":path", "/")]
        .map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
    let unsent = pair.link.request(fields, RequestKind::Other, true).unwrap();
    pair.link.end(LinkEnd::Closed);
    let end = |pair: &mut Pair, id| match pair.link.poll_head(id, &Pair::task()) {
        Poll::Ready(Err(end)) => Some(end),
        Poll::Ready(Ok(_)) | Poll::Pending => None,
    };
    assert_eq!(end(&mut pair, sent), Some(StreamEnd::Lost));
    assert_eq!(end(&mut pair, unsent), Some(StreamEnd::Unprocessed));
}

/// An upstream that reads nothing gets no more answers, also none to its PINGs.
#[test]
fn a_long_wait_for_the_socket_stops_reading() {
    let mut pair = Pair::new();
    for _ in 0..WAITING_BYTES_MAX / DATA_WAITING_MAX {
        assert!(!pair.link.is_full());
        pair.link.mux.out.short_frames().extend_from_slice(&[0; DATA_WAITING_MAX]);
    }
    assert!(pair.link.is_full() && pair.link.data_room() == 0);
    let waiting = pair.link.mux.out.len();
    pair.link.mux.out.advance(waiting);
    assert!(!pair.link.is_full() && pair.link.data_room() == DATA_WAITING_MAX);
}

/// A parked connection's waker. It holds a weak count of the worker until it is used.
fn parked_waker(worker: &Rc<Worker>) -> ParkedWaker {
    let (client, _) = UnixStream::pair().unwrap();
    let key = worker.table.borrow_mut().insert(client.into(), false);
    Handle::new(worker.clone(), key).lend().parked_waker()
}

/// Whatever comes for a stream whose exchange rests wakes its client's connection, once. What comes
/// for another stream does not.
#[test]
fn what_comes_for_a_stream_at_rest_wakes_its_connection() {
    type Come = fn(&mut Pair, u32);
    let comes: [(&str, Come); 7] = [
        ("a head", |pair, id| pair.respond(id, "200", &[], false)),
        ("data", |pair, id| {
            pair.respond(id, "200", &[], false);
            pair.send(id, 100, 100);
        }),
        ("the end", |pair, id| pair.respond(id, "200", &[], true)),
        ("a reset", |pair, id| {
            let mut out = Vec::new();
            pair.server.reset(id, ErrorCode::CANCEL, &mut out);
            pair.link.receive(&out, Instant::now()).unwrap();
        }),
        ("GOAWAY", |pair, _| {
            let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            pair.link.receive(&goaway, Instant::now()).unwrap();
        }),
        ("the connection's end", |pair, _| pair.link.end(LinkEnd::Closed)),
        ("its failure", |pair, _| {
            let error = std::io::ErrorKind::ConnectionReset.into();
            pair.link.end(LinkEnd::Failed(Arc::new(error)));
        }),
    ];
    let worker = worker();
    let waits = || Rc::weak_count(&worker);
    for (what, come) in comes {
        let mut pair = Pair::new();
        let (id, other) = (pair.ask(true), pair.ask(true));
        pair.link.mux.find(id).unwrap().rests(parked_waker(&worker));
        pair.respond(other, "200", &[], false);
        pair.send(other, 100, 100);
        assert_eq!(waits(), 1, "{what}");
        come(&mut pair, id);
        assert_eq!(waits(), 0, "{what}");
        // It came before the exchange rests.
        pair.link.mux.find(id).unwrap().rests(parked_waker(&worker));
        assert_eq!(waits(), 0, "{what}");
    }
    let mut pair = Pair::new();
    let id = pair.ask(true);
    pair.link.mux.find(id).unwrap().rests(parked_waker(&worker));
    pair.link.mux.find(id).unwrap().goes_on();
    assert_eq!(waits(), 0, "it has a task again");
    pair.link.mux.find(id).unwrap().rests(parked_waker(&worker));
    assert!(pair.link.forget(id));
    assert_eq!((waits(), pair.carry().0), (0, vec![id]), "the stream is forgotten");
}

/// Bytes that a stream at rest has: the lists of its link have no room for others then.
#[test]
fn a_stream_at_rest_counts_what_it_has() {
    // The protocol's own part, which `h2` does not show, and the list that has the exchange.
    const OF_H2: usize = 64;
    const OF_LIST: usize = 32;
    let held = size_of::<LinkStream>() + OF_H2 + size_of::<Http2Exchange>() + OF_LIST;
    assert!((held..=held + held / 5).contains(&UPSTREAM_RESTING_BYTES), "{held}");
}

/// Once all of its streams rest, a link keeps no room for what is under way, and goes on as before.
#[test]
fn a_link_at_rest_is_small_and_goes_on() {
    let worker = worker();
    let mut pair = Pair::new();
    let ids: Vec<u32> = (0..20).map(|_| pair.ask(false)).collect();
    for id in &ids {
        pair.respond(*id, "200", &[], false);
        assert!(pair.link.poll_head(*id, &Pair::task()).is_ready());
    }
    let (last, others) = ids.split_last().unwrap();
    others.iter().for_each(|id| pair.link.rests(*id, parked_waker(&worker)));
    assert!(pair.link.mux.streams.capacity() > ids.len());
    pair.link.rests(*last, parked_waker(&worker));
    assert_eq!(pair.link.mux.streams.capacity(), ids.len());
    assert_eq!(pair.link.mux.out.held(), 0);
    // What comes then is the stream's, and others begin.
    pair.send(*last, 100, 100);
    assert_eq!(pair.link.mux.find(*last).unwrap().parked(), None);
    assert!(pair.ask(true) > *last);
}

//! The memory that the library of an HTTP/2 connection holds: what its client has sent and no task
//! has taken yet, counted as it is read, and streams whose responses are not completely written.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use h2::FlowControl;

use super::frames::Frames;
use super::head_bytes;
use eyelet_memory::budget::{Counted, HTTP2_BYTES, PIECE_BYTES_MIN};

/// Bytes that a small DATA frame takes in the library for each byte of its header: about 240 for
/// the header of nine.
const FRAME_BYTES: usize = 26;
/// The most that they take: the library ends a connection that exceeds half of its window by them.
const FRAMES_BYTES_MAX: usize = 512 << 10;

/// While memory is short, a connection that holds more bytes of bodies is not read: those of one
/// stream.
const HERE_BYTES_MAX: usize = 64 << 10;

/// The accounting that an HTTP/2 connection's streams share.
pub struct Load {
    /// Bytes read since [`Load::settles`] was last called.
    fresh: Cell<usize>,
    /// Bytes of bodies that wait in the library for their streams.
    waiting: Cell<usize>,
    /// Bytes of unfinished heads and frames, and the overhead of small frames.
    unseen: Cell<usize>,
    frames: RefCell<Frames>,
    /// The frames that are written to the client.
    written: RefCell<Frames>,
    /// Whether the library has received the end of a head that no task has taken yet.
    has_head: Cell<bool>,
    /// Whether a head was completed since then.
    whole: Cell<bool>,
    /// Streams that are served, and how many of them their client reset before their tasks ran.
    streams: RefCell<Vec<Served>>,
    resets: Cell<usize>,
    /// Bytes of bodies that upstreams have not accepted yet. Their holders count them.
    held: Cell<usize>,
    bodies: RefCell<Vec<Rc<RequestBody>>>,
    /// Streams whose responses wait for a WINDOW_UPDATE from the client.
    stalled: Cell<usize>,
    /// Upper bound for the trailers in the library that no stream has taken yet.
    trailers: Cell<usize>,
    /// The reader's waker, if reading was put off.
    reader: RefCell<Option<Waker>>,
    /// Whether streams that have no end of their own are to end.
    ends: Cell<bool>,
    /// Tasks of such streams, at most one a stream.
    endless: RefCell<Vec<Waker>>,
    head_bytes_max: usize,
    counted: RefCell<Counted>,
}

/// A stream that is served, until its task drops it.
struct Served {
    id: u32,
    /// Whether its task has run.
    has_run: bool,
    left: Option<Left>,
    /// Whether the library holds an interim response that is not written yet.
    has_interim: bool,
    /// Upper bound for its trailers in the library.
    trailers: usize,
    waker: Option<Waker>,
}

/// Why the library does not hold a response any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The connection has ended.
    Closed,
    /// The client has reset the stream.
    Reset,
    /// The last frame was written.
    Written,
}

/// A request's body in transit.
pub struct RequestBody {
    flow: FlowControl,
    /// Bytes that were taken from the library. Once they are released, the client may send as many
    /// more.
    held: Cell<usize>,
}

impl Served {
    fn leaves(&mut self, how: Left) {
        self.left.get_or_insert(how);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl RequestBody {
    /// Bytes that wait in the library.
    fn waiting(&self) -> usize {
        self.flow.used_capacity().saturating_sub(self.held.get())
    }
}

impl Load {
    /// `counted` holds an HTTP/2 connection's bytes. No head is longer than `head_bytes_max`.
    pub fn new(counted: Counted, head_bytes_max: usize) -> Rc<Self> {
        let load = Self {
            fresh: Cell::default(),
            waiting: Cell::default(),
            unseen: Cell::default(),
            frames: RefCell::new(Frames::of_client()),
            written: RefCell::default(),
            has_head: Cell::default(),
            whole: Cell::default(),
            streams: RefCell::default(),
            resets: Cell::default(),
            held: Cell::default(),
            bodies: RefCell::default(),
            stalled: Cell::default(),
            trailers: Cell::default(),
            reader: RefCell::default(),
            ends: Cell::default(),
            endless: RefCell::default(),
            head_bytes_max,
            counted: RefCell::new(counted),
        };
        load.recount();
        Rc::new(load)
    }

    /// Notes bytes that the library is about to read, and returns how many it may have. It gets one
    /// head at a time: a decoded head may be a thousand times as long as its bytes (RFC 7541
    /// section 2.3), and is counted before the next one is decoded.
    pub fn reads(&self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && !self.has_head.get() {
            let (passed, ended) = self.frames.borrow_mut().pass(&bytes[at..]);
            at += passed;
            let Some(ended) = ended else { continue };
            self.has_head.set(ended.head);
            if ended.head {
                self.holds_trailers(
                    ended.stream,
                    head_bytes::decoded(ended.head_bytes, self.head_bytes_max),
                );
            }
            if ended.reset {
                // The library then drops its part of the response.
                self.leaves_library(ended.stream, Left::Reset);
            }
        }
        self.fresh.update(|fresh| fresh + at);
        self.recount();
        at
    }

    /// Whether the library has a head that no task has taken yet.
    pub fn has_head(&self) -> bool {
        self.has_head.get()
    }

    /// Counts the trailers of a stream that is served. The library does not keep those of other
    /// streams.
    fn holds_trailers(&self, id: u32, bytes: usize) {
        let mut streams = self.streams.borrow_mut();
        if let Some(stream) = streams.iter_mut().find(|stream| stream.id == id) {
            let before = std::mem::replace(&mut stream.trailers, bytes);
            self.trailers.update(|trailers| trailers - before + bytes);
        }
    }

    /// Notes that the library does not hold the trailers of a stream any more.
    pub fn drops_trailers(&self, id: u32) {
        if self.has_trailers() {
            self.holds_trailers(id, 0);
            self.recount();
        }
    }

    /// Whether trailers wait for their streams. Each may be as long as a head, so no more received
    /// bytes are decoded while memory is short.
    pub fn has_trailers(&self) -> bool {
        self.trailers.get() > 0
    }

    /// Notes that the library was polled for a stream, which takes the last head. Returns whether
    /// reading had stopped for that head.
    pub fn reads_on(&self) -> bool {
        self.has_head.replace(false)
    }

    /// Notes bytes that the library has written.
    pub fn writes(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (passed, ended) = self.written.borrow_mut().pass(bytes);
            bytes = &bytes[passed..];
            let Some(ended) = ended else { continue };
            if ended.head {
                self.has_informed(ended.stream);
            }
            if ended.stream_too {
                self.leaves_library(ended.stream, Left::Written);
            }
        }
    }

    /// Notes that the library has received an interim response.
    pub fn informs(&self, id: u32) {
        let mut streams = self.streams.borrow_mut();
        if let Some(stream) = streams.iter_mut().find(|stream| stream.id == id) {
            stream.has_interim = true;
        }
    }

    /// Notes that a head was written. A stream's final head waits for its interim one.
    fn has_informed(&self, id: u32) {
        let mut streams = self.streams.borrow_mut();
        let Some(stream) = streams.iter_mut().find(|stream| stream.id == id) else { return };
        if std::mem::take(&mut stream.has_interim)
            && let Some(waker) = stream.waker.take()
        {
            waker.wake();
        }
    }

    /// Waits until the library holds no interim response of a stream any more.
    pub fn poll_informed(&self, id: u32, task: &Context<'_>) -> Poll<Left> {
        let streams = self.streams.borrow();
        match streams.iter().find(|stream| stream.id == id) {
            Some(Served { has_interim: false, left: None, .. }) => Poll::Ready(Left::Written),
            _ => {
                drop(streams);
                self.poll_left(id, task)
            }
        }
    }

    /// Notes that a stream is served.
    pub fn serves(&self, id: u32) {
        self.streams.borrow_mut().push(Served {
            id,
            has_run: false,
            left: None,
            has_interim: false,
            trailers: 0,
            waker: None,
        });
    }

    /// Notes that its task runs. Returns whether its client still wants it.
    pub fn runs(&self, id: u32) -> bool {
        let mut streams = self.streams.borrow_mut();
        let Some(stream) = streams.iter_mut().find(|stream| stream.id == id) else { return false };
        if !std::mem::replace(&mut stream.has_run, true) && stream.left == Some(Left::Reset) {
            self.resets.update(|resets| resets - 1);
        }
        stream.left.is_none()
    }

    /// Streams that their client reset before their tasks ran.
    pub fn resets(&self) -> usize {
        self.resets.get()
    }

    /// Notes that its task has ended.
    pub fn served(&self, id: u32) {
        self.drops_trailers(id);
        let mut streams = self.streams.borrow_mut();
        if let Some(at) = streams.iter().position(|stream| stream.id == id) {
            streams.swap_remove(at);
        }
    }

    /// Waits until the library holds nothing of a stream's response any more.
    pub fn poll_left(&self, id: u32, task: &Context<'_>) -> Poll<Left> {
        let mut streams = self.streams.borrow_mut();
        let Some(stream) = streams.iter_mut().find(|stream| stream.id == id) else {
            return Poll::Ready(Left::Closed);
        };
        if let Some(left) = stream.left {
            return Poll::Ready(left);
        }
        stream.waker = Some(task.waker().clone());
        Poll::Pending
    }

    fn leaves_library(&self, id: u32, how: Left) {
        let mut streams = self.streams.borrow_mut();
        if let Some(stream) = streams.iter_mut().find(|stream| stream.id == id) {
            let is_early = how == Left::Reset && !stream.has_run && stream.left.is_none();
            self.resets.update(|resets| resets + usize::from(is_early));
            stream.leaves(how);
        }
    }

    /// Has streams end that have no end of their own.
    pub fn end_streams(&self) {
        if !self.ends.replace(true) {
            self.endless.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Ready once streams without an end are to end.
    pub fn poll_ends(&self, task: &Context<'_>) -> Poll<()> {
        if self.ends.get() {
            return Poll::Ready(());
        }
        let mut endless = self.endless.borrow_mut();
        if !endless.iter().any(|known| known.will_wake(task.waker())) {
            endless.push(task.waker().clone());
        }
        Poll::Pending
    }

    /// Notes that the connection has ended.
    pub fn closes(&self) {
        self.streams.borrow_mut().iter_mut().for_each(|stream| stream.leaves(Left::Closed));
    }

    /// Bytes of bodies and trailers that its streams still hold.
    fn here(&self) -> usize {
        self.held.get() + self.waiting.get() + self.trailers.get()
    }

    /// Whether its streams still hold, or have not seen, what arrived.
    fn is_waiting(&self) -> bool {
        self.here() > 0 || self.fresh.get() >= PIECE_BYTES_MIN
    }

    /// Ready unless the connection must not be read, because memory is short. If a response waits
    /// for its client's window, it is read in small pieces as long as one `fits`, up to the size of
    /// the body that its own request may have.
    pub fn poll_reads(&self, task: &Context<'_>, fits: bool) -> Poll<()> {
        let is_stalled = self.stalled.get() > 0 && self.here() <= HERE_BYTES_MAX;
        if !self.is_waiting() || is_stalled && fits {
            return Poll::Ready(());
        }
        *self.reader.borrow_mut() = Some(task.waker().clone());
        Poll::Pending
    }

    /// Notes whether a stream waits for its window.
    pub fn stalls(&self, was: &mut bool, is: bool) {
        match (std::mem::replace(was, is), is) {
            (false, true) => self.stalled.update(|stalled| stalled + 1),
            (true, false) => return self.stalled.update(|stalled| stalled - 1),
            _ => return,
        }
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Bytes of unfinished heads and frames.
    pub fn unseen(&self) -> usize {
        self.unseen.get()
    }

    /// Notes that the head of a request has arrived.
    pub fn sees_head(&self) {
        self.whole.set(true);
    }

    /// Notes a request's body, before the library is polled again.
    pub fn begins(&self, flow: FlowControl) -> Rc<RequestBody> {
        let body = Rc::new(RequestBody { flow, held: Cell::default() });
        self.bodies.borrow_mut().push(body.clone());
        body
    }

    /// Notes that a stream has taken bytes of its body from the library.
    pub fn takes(&self, body: &RequestBody, bytes: usize) {
        body.held.update(|held| held + bytes);
        self.held.update(|held| held + bytes);
        self.leaves(bytes);
    }

    /// Notes that such bytes were passed on. Returns how many its client may send again.
    pub fn releases(&self, body: &RequestBody, bytes: usize) -> usize {
        let bytes = bytes.min(body.held.get());
        body.held.update(|held| held - bytes);
        self.held.update(|held| held - bytes);
        bytes
    }

    /// Notes that a stream ends. The library drops the rest of its body.
    pub fn ends(&self, body: &Rc<RequestBody>) {
        self.bodies.borrow_mut().retain(|other| !Rc::ptr_eq(other, body));
        self.held.update(|held| held - body.held.get());
        self.leaves(body.waiting());
    }

    fn leaves(&self, bytes: usize) {
        self.waiting.update(|waiting| waiting.saturating_sub(bytes));
        if self.waiting.get() == 0 {
            self.unseen.set(self.begun());
        }
        self.recount();
    }

    /// Notes that all received bytes were processed, and each stream in them was begun.
    pub fn settles(&self) {
        let fresh = self.fresh.take();
        if fresh == 0 {
            return;
        }
        let waiting = self.bodies.borrow().iter().map(|body| body.waiting()).sum::<usize>();
        let data = waiting.saturating_sub(self.waiting.replace(waiting));
        let before = if self.whole.take() { 0 } else { self.unseen.get() };
        let rest = fresh.saturating_sub(data);
        self.unseen.set(match waiting {
            0 => self.begun(),
            _ => (before + rest * FRAME_BYTES).min(self.head_bytes_max + FRAMES_BYTES_MAX),
        });
        self.recount();
    }

    /// Bytes of an unfinished head or frame. A head that is too long is not kept.
    fn begun(&self) -> usize {
        self.frames.borrow().begun().min(self.head_bytes_max)
    }

    fn recount(&self) {
        let bytes = self.fresh.get() + self.waiting.get() + self.unseen.get();
        let bytes = bytes + self.trailers.get();
        self.counted.borrow_mut().set(HTTP2_BYTES + bytes);
    }
}

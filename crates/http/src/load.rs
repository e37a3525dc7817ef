//! What the library of an HTTP/2 connection holds: what its client has sent and nobody has taken
//! yet, counted as it is read, and the streams whose responses are not written to the end.
//! Of frames it must not know more than where they end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use h2::FlowControl;

use super::frames::Frames;
use super::head_bytes;
use eyelet_memory::budget::{Counted, HTTP2_BYTES, PIECE_BYTES_MIN};

/// What a small DATA frame takes in the library for each byte that it is longer than its data:
/// about 240 bytes for a header of nine.
const FRAME_BYTES: usize = 26;
/// The most that they take: the library ends a connection with more, by half of its window.
const FRAMES_BYTES_MAX: usize = 512 << 10;

/// Bytes of bodies beside which a connection is read while memory is short: those of one stream.
const HERE_BYTES_MAX: usize = 64 << 10;

/// What an HTTP/2 connection's streams share of its memory.
pub struct Load {
    /// Bytes read since all that had come was looked at.
    fresh: Cell<usize>,
    /// Bytes of bodies that wait in the library for their streams.
    waiting: Cell<usize>,
    /// Bytes that nothing has come of yet: the beginning of a head, or of a frame, and what small
    /// frames take.
    unseen: Cell<usize>,
    frames: RefCell<Frames>,
    /// What is written to the client.
    written: RefCell<Frames>,
    /// The library was given the end of a head, and nobody has looked what came of it.
    has_head: Cell<bool>,
    /// Whether a head was whole since.
    whole: Cell<bool>,
    /// Streams that are served, and how many of them their client reset before their tasks ran.
    streams: RefCell<Vec<Served>>,
    resets: Cell<usize>,
    /// Bytes of bodies that their upstreams have not taken yet: counted by who holds them.
    held: Cell<usize>,
    bodies: RefCell<Vec<Rc<RequestBody>>>,
    /// Streams whose responses wait for what their client must say first: a WINDOW_UPDATE.
    stalled: Cell<usize>,
    /// The most that trailers take that the library has and no stream has taken yet.
    trailers: Cell<usize>,
    /// Who reads, where that was put off.
    reader: RefCell<Option<Waker>>,
    head_bytes_max: usize,
    counted: RefCell<Counted>,
}

/// A stream that is served, until its task drops it.
struct Served {
    id: u32,
    /// Its task has run.
    has_run: bool,
    left: Option<Left>,
    /// The library has an interim response of it that is not written yet.
    has_interim: bool,
    /// The most that its trailers take in the library.
    trailers: usize,
    waker: Option<Waker>,
}

/// Why the library holds nothing of a response any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The connection has ended.
    Closed,
    /// The client has reset the stream.
    Reset,
    /// The last frame was written.
    Written,
}

/// A request's body on its way.
pub struct RequestBody {
    flow: FlowControl,
    /// Bytes that were taken from the library: their client may send as many again once they are
    /// given back.
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
    /// Of a connection that was counted as one of HTTP/2; beyond `head_bytes_max` nothing is the
    /// beginning of a head.
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
            head_bytes_max,
            counted: RefCell::new(counted),
        };
        load.recount();
        Rc::new(load)
    }

    /// Notes bytes that the library is about to read: how many it may have. It gets one head at a
    /// time. A head may be a thousand times as long as its bytes (RFC 7541 section 2.3), and is
    /// counted before the next one is decoded.
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
                // The library drops what it holds of the response.
                self.leaves_library(ended.stream, Left::Reset);
            }
        }
        self.fresh.update(|fresh| fresh + at);
        self.recount();
        at
    }

    /// Whether the library has a head that nobody has looked at.
    pub fn has_head(&self) -> bool {
        self.has_head.get()
    }

    /// Counts the trailers of a stream that is served. Those of another one are not kept.
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

    /// Whether trailers wait for their streams: each of them may be as long as a head, so no more
    /// of what was received is decoded while memory is short.
    pub fn has_trailers(&self) -> bool {
        self.trailers.get() > 0
    }

    /// Notes that the library was asked for a stream: what came of the last head is known. Returns
    /// whether it did not read on because of it.
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

    /// Notes that the library was given an interim response.
    pub fn informs(&self, id: u32) {
        let mut streams = self.streams.borrow_mut();
        if let Some(stream) = streams.iter_mut().find(|stream| stream.id == id) {
            stream.has_interim = true;
        }
    }

    /// Notes that a head was written: the stream's final one waits for the interim one.
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

    /// Notes that its task runs; whether its client still wants it.
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

    /// Notes that the connection has ended.
    pub fn closes(&self) {
        self.streams.borrow_mut().iter_mut().for_each(|stream| stream.leaves(Left::Closed));
    }

    /// Bytes of bodies and trailers that its streams have not got rid of.
    fn here(&self) -> usize {
        self.held.get() + self.waiting.get() + self.trailers.get()
    }

    /// Whether its streams have not got rid of what came, or have not seen it.
    fn is_waiting(&self) -> bool {
        self.here() > 0 || self.fresh.get() >= PIECE_BYTES_MIN
    }

    /// Whether it is not read while memory is short. Where a response waits for its client's
    /// window it is, in small pieces as long as one `fits`, beside as much as the body of its own
    /// request may be.
    pub fn poll_reads(&self, task: &Context<'_>, fits: bool) -> Poll<()> {
        let is_stalled = self.stalled.get() > 0 && self.here() <= HERE_BYTES_MAX;
        if !self.is_waiting() || is_stalled && fits {
            return Poll::Ready(());
        }
        *self.reader.borrow_mut() = Some(task.waker().clone());
        Poll::Pending
    }

    /// Notes that a stream waits for its window, or does not any more.
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

    /// Bytes that nothing has come of yet.
    pub fn unseen(&self) -> usize {
        self.unseen.get()
    }

    /// Notes that the head of a request has come.
    pub fn sees_head(&self) {
        self.whole.set(true);
    }

    /// Notes a request's body, before the library is asked for more.
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

    /// Notes that such bytes are gone; how many of them its client may send again.
    pub fn releases(&self, body: &RequestBody, bytes: usize) -> usize {
        let bytes = bytes.min(body.held.get());
        body.held.update(|held| held - bytes);
        self.held.update(|held| held - bytes);
        bytes
    }

    /// Notes that a stream ends. What of its body is in the library goes with it.
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

    /// Notes that all that has come was looked at, and each stream in it has begun.
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

    /// Bytes of a head or a frame that has no end yet; a head that is longer is not kept.
    fn begun(&self) -> usize {
        self.frames.borrow().begun().min(self.head_bytes_max)
    }

    fn recount(&self) {
        let bytes = self.fresh.get() + self.waiting.get() + self.unseen.get();
        let bytes = bytes + self.trailers.get();
        self.counted.borrow_mut().set(HTTP2_BYTES + bytes);
    }
}

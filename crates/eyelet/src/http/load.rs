//! What an HTTP/2 connection's client has sent and nobody has taken yet, counted as it is read.
//! Of frames it must not know more than where they end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use h2::FlowControl;

use crate::budget::{Counted, HTTP2_BYTES, PIECE_BYTES_MIN};

/// What a small DATA frame takes in the library for each byte that it is longer than its data:
/// about 240 bytes for a header of nine.
const FRAME_BYTES: usize = 26;
/// The most that they take: the library ends a connection with more, by half of its window.
const FRAMES_BYTES_MAX: usize = 512 << 10;

/// What a client begins with (RFC 9113 3.4).
const PREFACE_BYTES: usize = 24;
/// A frame's header (RFC 9113 4.1), the types of frame that make a head, and the flag of its last.
const FRAME_HEAD_BYTES: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

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
    /// Whether a head was whole since.
    whole: Cell<bool>,
    /// Bytes of bodies that their upstreams have not taken yet: counted by who holds them.
    held: Cell<usize>,
    bodies: RefCell<Vec<Rc<Body>>>,
    /// Streams whose responses wait for what their client must say first: a WINDOW_UPDATE.
    stalled: Cell<usize>,
    /// Who reads, where that was put off.
    reader: RefCell<Option<Waker>>,
    head_bytes_max: usize,
    counted: RefCell<Counted>,
}

/// A request's body on its way.
pub struct Body {
    flow: FlowControl,
    /// Bytes that were taken from the library: their client may send as many again once they are
    /// given back.
    held: Cell<usize>,
}

impl Body {
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
            frames: RefCell::new(Frames { skip: PREFACE_BYTES, ..Frames::default() }),
            whole: Cell::default(),
            held: Cell::default(),
            bodies: RefCell::default(),
            stalled: Cell::default(),
            reader: RefCell::default(),
            head_bytes_max,
            counted: RefCell::new(counted),
        };
        load.recount();
        Rc::new(load)
    }

    /// Notes that these bytes were read.
    pub fn reads(&self, bytes: &[u8]) {
        self.frames.borrow_mut().pass(bytes);
        self.fresh.update(|fresh| fresh + bytes.len());
        self.recount();
    }

    /// Whether its streams have not got rid of what came, or have not seen it.
    fn is_waiting(&self) -> bool {
        self.held.get() + self.waiting.get() > 0 || self.fresh.get() >= PIECE_BYTES_MIN
    }

    /// Whether it is not read while memory is short. Where a response waits for its client's
    /// window it is, in small pieces as long as one `fits`, beside as much as the body of its own
    /// request may be.
    pub fn poll_reads(&self, task: &Context<'_>, fits: bool) -> Poll<()> {
        let here = self.held.get() + self.waiting.get();
        let is_stalled = self.stalled.get() > 0 && here <= HERE_BYTES_MAX;
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
    pub fn begins(&self, flow: FlowControl) -> Rc<Body> {
        let body = Rc::new(Body { flow, held: Cell::default() });
        self.bodies.borrow_mut().push(body.clone());
        body
    }

    /// Notes that a stream has taken bytes of its body from the library.
    pub fn takes(&self, body: &Body, bytes: usize) {
        body.held.update(|held| held + bytes);
        self.held.update(|held| held + bytes);
        self.leaves(bytes);
    }

    /// Notes that such bytes are gone; how many of them its client may send again.
    pub fn releases(&self, body: &Body, bytes: usize) -> usize {
        let bytes = bytes.min(body.held.get());
        body.held.update(|held| held - bytes);
        self.held.update(|held| held - bytes);
        bytes
    }

    /// Notes that a stream ends. What of its body is in the library goes with it.
    pub fn ends(&self, body: &Rc<Body>) {
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
        self.counted.borrow_mut().set(HTTP2_BYTES + bytes);
    }
}

/// Where frames and heads end.
#[derive(Default)]
struct Frames {
    /// Bytes that are no frame's, before the first.
    skip: usize,
    head: [u8; FRAME_HEAD_BYTES],
    /// Bytes of it that are here.
    head_bytes: usize,
    /// Bytes of the frame that are to come, and those that are here.
    left: usize,
    here: usize,
    /// Bytes of the frames before it that are of the same head.
    block: usize,
}

impl Frames {
    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let passed = match (self.skip, self.head_bytes) {
                (0, FRAME_HEAD_BYTES) => self.left.min(bytes.len()),
                (0, there) => (FRAME_HEAD_BYTES - there).min(bytes.len()),
                (skip, _) => skip.min(bytes.len()),
            };
            let (now, rest) = bytes.split_at(passed);
            bytes = rest;
            if self.skip > 0 {
                self.skip -= passed;
                continue;
            }
            if self.head_bytes == FRAME_HEAD_BYTES {
                self.left -= passed;
                self.here += passed;
            } else {
                self.head[self.head_bytes..][..passed].copy_from_slice(now);
                self.head_bytes += passed;
                let [high, middle, low, ..] = self.head;
                self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
            }
            if self.head_bytes == FRAME_HEAD_BYTES && self.left == 0 {
                self.ends();
            }
        }
    }

    fn ends(&mut self) {
        let [_, _, _, kind, flags, ..] = self.head;
        self.block = match kind {
            HEADERS | CONTINUATION if flags & END_HEADERS == 0 => self.block + self.here,
            HEADERS | CONTINUATION => 0,
            _ => self.block,
        };
        (self.head_bytes, self.here) = (0, 0);
    }

    fn begun(&self) -> usize {
        self.block + self.head_bytes + self.here
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_begun_is_counted_and_what_has_ended_is_not() {
        let frame = |kind: u8, flags: u8, bytes: u8| {
            let mut frame = vec![0, 0, bytes, kind, flags, 0, 0, 0, 1];
            frame.resize(FRAME_HEAD_BYTES + usize::from(bytes), 0);
            frame
        };
        let mut frames = Frames { skip: PREFACE_BYTES, ..Frames::default() };
        let whole = [vec![0; PREFACE_BYTES], frame(4, 0, 0), frame(HEADERS, END_HEADERS, 70)];
        frames.pass(&whole.concat());
        assert_eq!(frames.begun(), 0);
        for byte in [frame(8, 0, 4), frame(HEADERS, 0, 50)].concat() {
            frames.pass(&[byte]);
        }
        assert_eq!(frames.begun(), 50);
        frames.pass(&frame(CONTINUATION, 0, 200)[..109]);
        assert_eq!(frames.begun(), 50 + 109);
        frames.pass(&[0; 100]);
        assert_eq!(frames.begun(), 250);
        frames.pass(&frame(CONTINUATION, END_HEADERS, 1));
        assert_eq!(frames.begun(), 0);
    }
}

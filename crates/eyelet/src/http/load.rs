//! What an HTTP/2 connection's client has sent and nobody has taken yet, counted as it is read.
//! It must not know frames, only what the library says of each body.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use h2::FlowControl;

use crate::budget::{Counted, HTTP2_BYTES, PIECE_BYTES_MIN};

/// What a small DATA frame takes in the library for each byte that it is longer than its data:
/// about 240 bytes for a header of nine.
const FRAME_BYTES: usize = 26;
/// The most that they take: the library ends a connection with more, by half of its window.
const FRAMES_BYTES_MAX: usize = 512 << 10;

/// What an HTTP/2 connection's streams share of its memory.
pub struct Load {
    /// Bytes read since all that had come was looked at.
    fresh: Cell<usize>,
    /// Bytes of bodies that wait in the library for their streams.
    waiting: Cell<usize>,
    /// Bytes that nothing has come of yet: the beginning of a head, or of a frame.
    unseen: Cell<usize>,
    /// Whether a head was whole since.
    whole: Cell<bool>,
    /// Bytes of bodies that their upstreams have not taken yet: counted by who holds them.
    held: Cell<usize>,
    bodies: RefCell<Vec<Rc<Body>>>,
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
            whole: Cell::default(),
            held: Cell::default(),
            bodies: RefCell::default(),
            head_bytes_max,
            counted: RefCell::new(counted),
        };
        load.recount();
        Rc::new(load)
    }

    /// Notes that so many bytes were read.
    pub fn reads(&self, bytes: usize) {
        self.fresh.update(|fresh| fresh + bytes);
        self.recount();
    }

    /// Whether its streams have not got rid of what came, or have not seen it.
    pub fn is_waiting(&self) -> bool {
        self.held.get() + self.waiting.get() > 0 || self.fresh.get() >= PIECE_BYTES_MIN
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
            self.unseen.update(|unseen| unseen.min(self.head_bytes_max));
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
            0 => (before + rest).min(self.head_bytes_max),
            _ => (before + rest * FRAME_BYTES).min(self.head_bytes_max + FRAMES_BYTES_MAX),
        });
        self.recount();
    }

    fn recount(&self) {
        let bytes = self.fresh.get() + self.waiting.get() + self.unseen.get();
        self.counted.borrow_mut().set(HTTP2_BYTES + bytes);
    }
}

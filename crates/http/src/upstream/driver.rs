//! The task of an HTTP/2 connection to an upstream. It sizes the windows and finds out whether the
//! upstream is still there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::{FlowControl, Ping, PingPong};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::socket::{Descriptor, Socket};
use eyelet_memory::budget::{Budget, Counted};

/// Window of a stream in bytes: at the start, and at the least.
pub const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// Widest window of a stream, for a distant upstream: 40 MB/s over a tenth of a second.
const STREAM_WINDOW_BYTES_MAX: u32 = 4 << 20;
/// The factor by which a window is widened: each time costs a round trip.
const WIDER: u32 = 4;
/// Most bytes of all streams' windows of a connection beyond the least ones: all clients may stop
/// reading.
const AHEAD_BYTES_MAX: usize = 16 << 20;
/// And at most one such part of the memory that is left.
const AHEAD_PARTS: usize = 16;
/// A longer wait for data is a round trip that a wider window would bridge. Below it, the least
/// window still gives at least 13 MB/s.
const FAR: Duration = Duration::from_millis(5);
/// How long a connection without streams may be silent before it is pinged. Doubled each time.
const PING_AFTER: Duration = Duration::from_secs(5);
/// The same for a connection that gets a request then.
const PING_FIRST_AFTER: Duration = Duration::from_secs(1);
/// How long the pong may take.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Most pings without a response between them; a request may add one. gRPC's servers end a
/// connection at the fourth.
const PINGS_MAX: u32 = 2;

/// State that the task and the streams share.
pub struct State {
    budget: Arc<Budget>,
    /// Counts what the upstream has sent ahead on all streams, or may send beyond the least
    /// windows.
    counted: RefCell<Counted>,
    /// Bytes that arrived on all streams and no task has taken.
    ahead: Cell<usize>,
    /// The number of streams.
    pub streams: Cell<usize>,
    /// The streams whose requests cannot be repeated elsewhere any more.
    pub fixed: Cell<usize>,
    /// Whether it gets no more streams.
    pub retired: Cell<bool>,
    /// The window of each stream, as the upstream was told.
    window: Cell<u32>,
    wanted: Cell<u32>,
    /// Whether windows have been wider than at the start.
    was_wide: Cell<bool>,
    /// Whether the upstream was told of narrower windows and has not acknowledged them, as far as
    /// we saw.
    is_narrowing: Cell<bool>,
    /// The windows of streams that have waited for data since windows were wide.
    windows: RefCell<BTreeMap<u32, FlowControl>>,
    /// Whether something was read.
    heard: Cell<bool>,
    heard_at: Cell<Instant>,
    pings: Cell<u32>,
    ping_now: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl State {
    /// The state of a new connection.
    pub fn new(budget: Arc<Budget>) -> Rc<Self> {
        Rc::new(Self {
            counted: RefCell::new(Counted::new(&budget, 0)),
            ahead: Cell::new(0),
            budget,
            streams: Cell::new(0),
            fixed: Cell::new(0),
            retired: Cell::new(false),
            window: Cell::new(STREAM_WINDOW_BYTES),
            wanted: Cell::new(STREAM_WINDOW_BYTES),
            was_wide: Cell::new(false),
            is_narrowing: Cell::new(false),
            windows: RefCell::default(),
            heard: Cell::new(false),
            heard_at: Cell::new(Instant::now()),
            pings: Cell::new(0),
            ping_now: Cell::new(false),
            waker: RefCell::default(),
        })
    }

    /// Notes a new stream. All windows together stay within the limit, and a connection that was
    /// silent for a while is pinged while the request is in transit.
    pub fn begins(&self) {
        self.streams.update(|streams| streams + 1);
        if self.heard_at.get().elapsed() >= PING_FIRST_AFTER && self.pings.get() <= PINGS_MAX {
            self.ping_now.set(true);
            self.wake();
        }
        if self.wanted.get() > STREAM_WINDOW_BYTES {
            self.want(self.wanted.get());
        }
        self.recount();
    }

    /// Notes that a stream has ended, with the bytes that it held.
    pub fn ends(&self, ahead: usize) {
        self.streams.update(|streams| streams - 1);
        self.ahead.update(|all| all - ahead);
        self.recount();
    }

    /// Notes how many bytes have arrived for a stream.
    pub fn holds(&self, ahead: &mut usize, now: usize) {
        self.ahead.update(|all| all - *ahead + now);
        *ahead = now;
        self.recount();
    }

    /// All windows are promised memory: a burst of streams narrows them before it is used.
    fn recount(&self) {
        let beyond = (self.window.get() - STREAM_WINDOW_BYTES) as usize;
        let promised = (self.streams.get() * beyond).min(AHEAD_BYTES_MAX);
        self.counted.borrow_mut().set(promised.max(self.ahead.get()));
    }

    /// Notes that a stream waits for data. Once windows have been wide, its window is kept until
    /// [`State::forget`]. Returns whether it is kept.
    pub fn keep(&self, window: &mut FlowControl) -> bool {
        if !self.was_wide.get() {
            return false;
        }
        self.windows.borrow_mut().insert(window.stream_id().into(), window.clone());
        // It may have become narrower earlier.
        reopen(window);
        true
    }

    /// Drops a stream's window.
    pub fn forget(&self, stream: u32) {
        self.windows.borrow_mut().remove(&stream);
    }

    /// Reopens windows once the upstream has acknowledged that they are narrower. The library
    /// checks whether a WINDOW_UPDATE is due only when data is released; it is due when half of the
    /// window is free. A window that shrinks may be empty with less than that free. Then no data
    /// comes, nothing is released, and the stream hangs.
    fn reopen_narrowed(&self) {
        if !self.is_narrowing.get() {
            return;
        }
        // The library changes all windows when the acknowledgement arrives.
        let is_narrow = |window: &FlowControl| {
            let whole = window.available_capacity() + window.used_capacity().cast_signed();
            whole == self.window.get() as isize
        };
        let mut windows = self.windows.borrow_mut();
        if windows.values().any(is_narrow) {
            self.is_narrowing.set(false);
            windows.values_mut().for_each(reopen);
        }
    }

    /// Notes a response's head.
    pub fn answered(&self) {
        self.pings.set(0);
    }

    fn bytes_max(&self) -> usize {
        if self.budget.is_filling(0) {
            return 0;
        }
        AHEAD_BYTES_MAX.min(self.budget.left() / AHEAD_PARTS)
    }

    /// Requests a window as close to this one as fits.
    fn want(&self, mut window: u32) {
        let streams = self.streams.get().max(1);
        while window > STREAM_WINDOW_BYTES && window as usize * streams > self.bytes_max() {
            window = (window / WIDER).max(STREAM_WINDOW_BYTES);
        }
        if self.wanted.replace(window) != window {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// Makes the library check again whether a WINDOW_UPDATE is due.
fn reopen(window: &mut FlowControl) {
    // 0 bytes can always be released.
    let _ = window.release_capacity(0);
}

/// Finds out whether a stream waits for its window. Its data then arrives in bursts of most of a
/// window, with a round trip between them.
#[derive(Default)]
pub struct Bursts {
    bytes: usize,
    waits_since: Option<Instant>,
}

impl Bursts {
    /// No data has arrived.
    pub fn wait(&mut self) {
        self.waits_since.get_or_insert_with(Instant::now);
    }

    /// Some data has arrived.
    pub fn came(&mut self, bytes: usize, state: &State) {
        if self.waits_since.take().is_some_and(|since| since.elapsed() >= FAR) {
            // Windows are reopened by halves, or by less while they are not empty.
            if std::mem::take(&mut self.bytes) >= state.window.get() as usize / 4 {
                let wider = state.window.get().saturating_mul(WIDER);
                state.want(wider.min(STREAM_WINDOW_BYTES_MAX));
            }
        }
        self.bytes += bytes;
    }
}

/// A socket that notes when something is read.
pub struct Listened {
    pub socket: Rc<RefCell<Socket>>,
    pub state: Rc<State>,
}

/// A connection as the library drives it.
pub type Driven = h2::client::Connection<Listened, Bytes>;

/// Drives a connection to its end, or until the upstream seems to be gone.
pub async fn drive(
    mut driven: Driven,
    socket: Rc<RefCell<Socket>>,
    state: Rc<State>,
    _held: (Descriptor, Counted),
) {
    let mut pulse = driven.ping_pong().map(Pulse::new);
    poll_fn(|task| {
        let mut waker = state.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(task.waker())) {
            *waker = Some(task.waker().clone());
        }
        drop(waker);
        // Narrower windows are sent before the requests that required them.
        set_window(&mut driven, &state, task);
        // Each stream gets the reason.
        if Pin::new(&mut driven).poll(task).is_ready() {
            return Poll::Ready(());
        }
        state.reopen_narrowed();
        set_window(&mut driven, &state, task);
        match &mut pulse {
            Some(pulse) => pulse.poll(&state, &socket, task),
            None => Poll::Pending,
        }
    })
    .await;
    state.retired.set(true);
}

/// Sends the upstream another window, which it must acknowledge first.
fn set_window(driven: &mut Driven, state: &State, task: &Context<'_>) {
    if state.window.get() > STREAM_WINDOW_BYTES && state.budget.is_filling(0) {
        state.wanted.set(STREAM_WINDOW_BYTES);
    }
    let wanted = state.wanted.get();
    // It fails while the last one is not acknowledged; the acknowledgement causes another poll.
    if wanted != state.window.get() && driven.set_initial_window_size(wanted).is_ok() {
        let before = state.window.replace(wanted);
        state.was_wide.set(true);
        if wanted < before {
            state.is_narrowing.set(true);
        }
        state.recount();
        task.waker().wake_by_ref();
    }
}

/// Pings a silent upstream.
struct Pulse {
    pings: PingPong,
    /// Since when a ping is unanswered and nothing was read.
    asked: Option<Instant>,
    /// The time of the next check, at the latest.
    due: Pin<Box<Sleep>>,
}

impl Pulse {
    fn new(pings: PingPong) -> Self {
        Self { pings, asked: None, due: Box::pin(sleep(PING_AFTER)) }
    }

    /// Ready when the upstream seems to be gone and ending the connection loses nothing.
    fn poll(
        &mut self,
        state: &State,
        socket: &RefCell<Socket>,
        task: &mut Context<'_>,
    ) -> Poll<()> {
        if state.heard.replace(false) {
            // Whatever was read, the upstream is there.
            state.heard_at.set(Instant::now());
            state.ping_now.set(false);
            self.asked = None;
        }
        // Taken, so that the next ping can be sent.
        let _ = self.pings.poll_pong(task);
        // Otherwise each request to a silent upstream would ping again and restart the wait.
        if state.ping_now.replace(false) && self.asked.is_none() {
            self.ask(state, task);
        }
        while self.due.as_mut().poll(task).is_ready() {
            let since = self.asked.unwrap_or_else(|| state.heard_at.get()).elapsed();
            if state.streams.get() == 0 {
                state.want(STREAM_WINDOW_BYTES);
            }
            let wait = match self.asked {
                Some(_) => PING_TIMEOUT,
                None => PING_AFTER * (1 << state.pings.get().min(PINGS_MAX)),
            };
            if since < wait {
                self.look_in(wait - since);
            } else if self.asked.is_some() {
                state.retired.set(true);
                // A machine that acknowledges data is alive, and its process may be busy.
                let is_lost = state.fixed.get() == 0 && socket.borrow().unsent() > 0;
                if is_lost || state.streams.get() == 0 {
                    return Poll::Ready(());
                }
                self.look_in(PING_TIMEOUT);
            } else if state.streams.get() == 0 && state.pings.get() < PINGS_MAX {
                self.ask(state, task);
            } else {
                self.look_in(PING_AFTER);
            }
        }
        Poll::Pending
    }

    fn ask(&mut self, state: &State, task: &Context<'_>) {
        // It fails while the last ping is unanswered; that pong is then awaited.
        if self.pings.send_ping(Ping::opaque()).is_ok() {
            state.pings.update(|pings| pings + 1);
            task.waker().wake_by_ref();
        }
        self.asked = Some(Instant::now());
        self.look_in(PING_TIMEOUT);
    }

    fn look_in(&mut self, wait: Duration) {
        self.due.as_mut().reset(tokio::time::Instant::now() + wait);
    }
}

impl AsyncRead for Listened {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &*self;
        let read = Pin::new(&mut *this.socket.borrow_mut()).poll_read(task, buffer);
        if read.is_ready() {
            this.state.heard.set(true);
        }
        read
    }
}

impl AsyncWrite for Listened {
    fn poll_write(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.socket.borrow_mut()).poll_write(task, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.socket.borrow_mut()).poll_write_vectored(task, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.borrow().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.socket.borrow_mut()).poll_flush(task)
    }

    fn poll_shutdown(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.socket.borrow_mut()).poll_shutdown(task)
    }
}

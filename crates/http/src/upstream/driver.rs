//! The task of an HTTP/2 connection to an upstream: how much may be sent ahead on it, and whether
//! anybody is there. It must not know what is asked on it.

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

/// Bytes that an upstream may send ahead on a stream, from the start and at the least.
pub const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// The same for an upstream that is far away: 40 MB/s over a tenth of a second.
const STREAM_WINDOW_BYTES_MAX: u32 = 4 << 20;
/// Wider by so much at a time: a window costs a round trip to widen.
const WIDER: u32 = 4;
/// Wider windows of all streams of a connection, at most: clients may all stop reading.
const AHEAD_BYTES_MAX: usize = 16 << 20;
/// And at most such a part of what memory is left.
const AHEAD_PARTS: usize = 16;
/// A wait for data that is longer is a round trip worth bridging: below it the least window is
/// 13 MB/s and more.
const FAR: Duration = Duration::from_millis(5);
/// How long nothing comes on a connection without streams before it is asked whether it is there;
/// each time it is twice as long.
const PING_AFTER: Duration = Duration::from_secs(5);
/// The same for a connection that gets a request then.
const PING_FIRST_AFTER: Duration = Duration::from_secs(1);
/// How long the answer may take.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Pings without a response between them, and one more for a request: gRPC's servers end a
/// connection at the fourth.
const PINGS_MAX: u32 = 2;

/// What the task and those who ask share.
pub struct State {
    budget: Arc<Budget>,
    /// What the upstream has sent ahead on all streams, or may send beyond the least windows.
    counted: RefCell<Counted>,
    /// Bytes that came on all streams and nobody took.
    ahead: Cell<usize>,
    /// Streams now.
    pub streams: Cell<usize>,
    /// Those among them that cannot be asked elsewhere any more.
    pub fixed: Cell<usize>,
    /// It gets no more streams.
    pub retired: Cell<bool>,
    /// Of each stream, as the upstream was told.
    window: Cell<u32>,
    wanted: Cell<u32>,
    /// Windows have been wider than at the start.
    was_wide: Cell<bool>,
    /// The upstream was told of narrower windows, and was not seen to acknowledge them.
    is_narrowing: Cell<bool>,
    /// Windows by stream, of those that have waited for data since windows were wide.
    windows: RefCell<BTreeMap<u32, FlowControl>>,
    /// Something was read.
    heard: Cell<bool>,
    heard_at: Cell<Instant>,
    pings: Cell<u32>,
    ping_now: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl State {
    /// That of a new connection.
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

    /// Notes a new stream: all their windows stay within bounds, and a connection that was silent
    /// for a while is asked whether it is there, while the request is on its way.
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

    /// Notes that a stream has ended, and with it what was here for it.
    pub fn ends(&self, ahead: usize) {
        self.streams.update(|streams| streams - 1);
        self.ahead.update(|all| all - ahead);
        self.recount();
    }

    /// Notes how much is here for a stream.
    pub fn holds(&self, ahead: &mut usize, now: usize) {
        self.ahead.update(|all| all - *ahead + now);
        *ahead = now;
        self.recount();
    }

    /// The windows are one promise: a burst of streams makes them narrower before it is used.
    fn recount(&self) {
        let beyond = (self.window.get() - STREAM_WINDOW_BYTES) as usize;
        let promised = (self.streams.get() * beyond).min(AHEAD_BYTES_MAX);
        self.counted.borrow_mut().set(promised.max(self.ahead.get()));
    }

    /// Notes that a stream waits for data. Once windows were wide its window is kept until
    /// [`State::forget`]; returns whether it is.
    pub fn keep(&self, window: &mut FlowControl) -> bool {
        if !self.was_wide.get() {
            return false;
        }
        self.windows.borrow_mut().insert(window.stream_id().into(), window.clone());
        // It may have become narrower before.
        reopen(window);
        true
    }

    /// Drops a stream's window.
    pub fn forget(&self, stream: u32) {
        self.windows.borrow_mut().remove(&stream);
    }

    /// Reopens windows once the upstream has acknowledged that they are narrower. The library looks
    /// whether a WINDOW_UPDATE is due only when data is released: it is when half of the window is
    /// free. A window that shrinks may be empty with less than that free. Then no data comes,
    /// nothing is released, and the stream stands still.
    fn reopen_narrowed(&self) {
        if !self.is_narrowing.get() {
            return;
        }
        // The library changes all windows when the acknowledgement comes.
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

    /// A window as near to this one as fits.
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

/// Has the library look again whether a WINDOW_UPDATE is due.
fn reopen(window: &mut FlowControl) {
    // Nothing is always held.
    let _ = window.release_capacity(0);
}

/// Sees whether a stream's window is what its data waits for: if so it comes in bursts of most of
/// a window, with a round trip between them.
#[derive(Default)]
pub struct Bursts {
    bytes: usize,
    waits_since: Option<Instant>,
}

impl Bursts {
    /// No data is here.
    pub fn wait(&mut self) {
        self.waits_since.get_or_insert_with(Instant::now);
    }

    /// Some data came.
    pub fn came(&mut self, bytes: usize, state: &State) {
        if self.waits_since.take().is_some_and(|since| since.elapsed() >= FAR) {
            // Windows are opened by halves, and by less while they are not empty.
            if std::mem::take(&mut self.bytes) >= state.window.get() as usize / 4 {
                let wider = state.window.get().saturating_mul(WIDER);
                state.want(wider.min(STREAM_WINDOW_BYTES_MAX));
            }
        }
        self.bytes += bytes;
    }
}

/// A socket that notes when it is heard.
pub struct Listened {
    pub socket: Rc<RefCell<Socket>>,
    pub state: Rc<State>,
}

/// A connection as the library drives it.
pub type Driven = h2::client::Connection<Listened, Bytes>;

/// Drives a connection to its end, or until nobody seems to be there.
pub async fn drive(
    mut driven: Driven,
    socket: Rc<RefCell<Socket>>,
    state: Rc<State>,
    _held: (Descriptor, Counted),
) {
    let mut ping_timer = driven.ping_pong().map(PingTimer::new);
    poll_fn(|task| {
        let mut waker = state.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(task.waker())) {
            *waker = Some(task.waker().clone());
        }
        drop(waker);
        // Narrower windows go before the requests that made them so.
        set_window(&mut driven, &state, task);
        // Each stream is told why.
        if Pin::new(&mut driven).poll(task).is_ready() {
            return Poll::Ready(());
        }
        state.reopen_narrowed();
        set_window(&mut driven, &state, task);
        match &mut ping_timer {
            Some(ping_timer) => ping_timer.poll(&state, &socket, task),
            None => Poll::Pending,
        }
    })
    .await;
    state.retired.set(true);
}

/// Tells the upstream of another window, which it has the library acknowledge first.
fn set_window(driven: &mut Driven, state: &State, task: &Context<'_>) {
    if state.window.get() > STREAM_WINDOW_BYTES && state.budget.is_filling(0) {
        state.wanted.set(STREAM_WINDOW_BYTES);
    }
    let wanted = state.wanted.get();
    // It fails while the last one is on its way; its acknowledgement is another turn.
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

/// Asks a silent upstream whether it is there.
struct PingTimer {
    pings: PingPong,
    /// Since when nothing was heard although it was asked.
    asked: Option<Instant>,
    /// When to look again, at the latest.
    due: Pin<Box<Sleep>>,
}

impl PingTimer {
    fn new(pings: PingPong) -> Self {
        Self { pings, asked: None, due: Box::pin(sleep(PING_AFTER)) }
    }

    /// Ready when nobody is there and nothing is lost by saying so.
    fn poll(
        &mut self,
        state: &State,
        socket: &RefCell<Socket>,
        task: &mut Context<'_>,
    ) -> Poll<()> {
        if state.heard.replace(false) {
            // Whatever it says, it is there.
            state.heard_at.set(Instant::now());
            state.ping_now.set(false);
            self.asked = None;
        }
        // Taken off, so that the next one can be sent.
        let _ = self.pings.poll_pong(task);
        // While it is silent each request would ask again, and be the start of another wait.
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
                // A machine that takes what is sent is there, and its process may be busy.
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
        // It fails while the last one has no answer, which is awaited then.
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

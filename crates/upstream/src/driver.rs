//! The task of an HTTP/2 connection to an upstream. It owns the socket: it writes what waits, reads
//! what arrives, and finds out whether the upstream is still there.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use eyelet_multiplex::FrameQueue;
use eyelet_sys::memory::long_rc::LongRc;
use tokio::io::AsyncWrite;
use tokio::time::{Sleep, sleep};

use super::link::{Link, LinkEnd, PINGS_MAX};
use super::socket::{DrivenSocket, Socket};
use super::windows::STREAM_WINDOW_BYTES;

/// Bytes that are read before other tasks run, which take them: what a cache holds.
const READ_BYTES: usize = 64 << 10;
/// Pieces given to one vectored write.
const SLICES: usize = 16;
/// The time for which a connection without streams may be silent before it is pinged. Doubled each
/// time.
const PING_AFTER: Duration = Duration::from_secs(5);
/// The time that the pong may take, and the last bytes to an upstream that nobody needs any more.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The place of a connection's socket.
pub type SocketPlace = LongRc<RefCell<Option<DrivenSocket>>>;

/// The place of the socket that a task owns: the socket ends with the task.
pub struct OwnedPlace(pub SocketPlace);

impl Drop for OwnedPlace {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

/// Drives a connection to its end, until the upstream seems to be gone, or until it leaves: its
/// socket is taken from its place then.
pub async fn drive(link: LongRc<RefCell<Link>>, place: OwnedPlace) {
    let ping_due = pin!(sleep(PING_AFTER));
    let mut ping_timer = PingTimer::new(ping_due);
    let end = poll_fn(|task| {
        let link = &mut *link.borrow_mut();
        let Some(driven) = &mut *place.0.borrow_mut() else { return Poll::Ready(None) };
        link.mux.driver.waits(task);
        let moved = poll_link(link, &mut driven.socket, &mut driven.is_writable, task);
        link.recount();
        match moved {
            Poll::Ready(end) => Poll::Ready(Some(end)),
            Poll::Pending => ping_timer.poll(link, &driven.socket, task).map(Some),
        }
    })
    .await;
    let (Some(end), Some(mut driven)) = (end, place.0.take()) else { return };
    link.borrow_mut().end(end);
    // GOAWAY goes out if the socket takes it at once.
    poll_fn(|task| {
        let socket = &mut driven.socket;
        let _ = poll_write(&mut link.borrow_mut().mux.out, task, socket);
        let _ = Pin::new(socket).poll_shutdown(task);
        Poll::Ready(())
    })
    .await;
    let mut link = link.borrow_mut();
    link.mux.out.clear();
    link.recount();
}

/// Writes and reads what it can. Ready at the end of the connection.
fn poll_link(
    link: &mut Link,
    socket: &mut Socket,
    is_writable: &mut bool,
    task: &mut Context<'_>,
) -> Poll<LinkEnd> {
    // Since the pause the tasks of streams have run and taken their heads.
    if link.is_paused()
        && !link.is_full()
        && let Err(fault) = link.go_on()
    {
        return Poll::Ready(LinkEnd::Broken(fault));
    }
    // An end that has arrived is seen before more requests are written, which it would cost.
    let mut read = match link.mux.out.is_empty() || link.is_full() || link.is_paused() {
        true => 0,
        false => match poll_read(link, socket, task) {
            Poll::Ready(Ok(bytes)) => bytes,
            Poll::Ready(Err(end)) => return Poll::Ready(end),
            Poll::Pending => 0,
        },
    };
    loop {
        // Narrower windows are sent before the requests that required them arrive.
        link.tell_window();
        if *is_writable
            && matches!(poll_write(&mut link.mux.out, task, socket), Poll::Ready(Err(_)))
        {
            // The upstream may have answered before it closed, so the answers are still read.
            // A new request could not be written.
            *is_writable = false;
            link.retire();
        }
        if !*is_writable {
            link.mux.out.clear();
        }
        link.wake_blocked();
        if link.is_given_up() || link.is_unused() && link.mux.out.is_empty() {
            return Poll::Ready(LinkEnd::Left);
        }
        if link.is_full() {
            return Poll::Pending;
        }
        // The tasks of streams run before this one again.
        if read >= READ_BYTES || link.is_paused() {
            task.waker().wake_by_ref();
            return Poll::Pending;
        }
        read += match ready!(poll_read(link, socket, task)) {
            Ok(bytes) => bytes,
            Err(end) => return Poll::Ready(end),
        };
    }
}

/// Writes all that waits.
fn poll_write(
    out: &mut FrameQueue,
    task: &mut Context<'_>,
    socket: &mut Socket,
) -> Poll<io::Result<()>> {
    let mut socket = Pin::new(socket);
    while !out.is_empty() {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = out.slices(&mut slices);
        match ready!(socket.as_mut().poll_write_vectored(task, &slices[..count]))? {
            0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => out.advance(written),
        }
    }
    socket.poll_flush(task)
}

fn poll_read(
    link: &mut Link,
    socket: &mut Socket,
    task: &mut Context<'_>,
) -> Poll<Result<usize, LinkEnd>> {
    let mut received = Ok(());
    let read = socket.poll_recv_by(task, READ_BYTES, |bytes| {
        if !bytes.is_empty() {
            received = link.receive(bytes, Instant::now());
        }
    });
    let read = match ready!(read) {
        Ok(0) => return Poll::Ready(Err(LinkEnd::Closed)),
        Ok(read) => read,
        Err(error) => return Poll::Ready(Err(LinkEnd::Failed(Arc::new(error)))),
    };
    Poll::Ready(received.map(|()| read).map_err(LinkEnd::Broken))
}

/// Pings a silent upstream.
struct PingTimer<'a> {
    /// Since when a ping is unanswered and nothing was read.
    asked: Option<Instant>,
    /// True if the last bytes are on their way.
    is_leaving: bool,
    /// The time of the next check, at the latest.
    due: Pin<&'a mut Sleep>,
}

impl<'a> PingTimer<'a> {
    fn new(due: Pin<&'a mut Sleep>) -> Self {
        Self { asked: None, is_leaving: false, due }
    }

    /// Ready when the upstream seems to be gone and ending the connection loses nothing.
    fn poll(&mut self, link: &mut Link, socket: &Socket, task: &mut Context<'_>) -> Poll<LinkEnd> {
        if link.is_unused() && !std::mem::replace(&mut self.is_leaving, true) {
            self.look_in(PING_TIMEOUT);
        }
        if self.is_leaving {
            return self.due.as_mut().poll(task).map(|()| LinkEnd::Left);
        }
        if std::mem::take(&mut link.is_heard) {
            // Whatever was read, the upstream is there.
            link.wants_ping = false;
            self.asked = None;
        }
        // Otherwise each request to a silent upstream would ping again and restart the wait.
        if std::mem::take(&mut link.wants_ping) && self.asked.is_none() {
            self.ask(link, task);
        }
        while self.due.as_mut().poll(task).is_ready() {
            let since = self.asked.unwrap_or(link.heard_at).elapsed();
            if link.streams() == 0 {
                link.want_window(STREAM_WINDOW_BYTES);
            }
            let wait = match self.asked {
                Some(_) => PING_TIMEOUT,
                None => PING_AFTER * (1 << link.pings.min(PINGS_MAX)),
            };
            if since < wait {
                self.look_in(wait - since);
            } else if self.asked.is_some() {
                link.retire();
                // A machine that acknowledges data is alive, and its process may be busy.
                let is_lost = link.fixed == 0 && socket.unsent() > 0;
                if is_lost || link.streams() == 0 {
                    return Poll::Ready(LinkEnd::Left);
                }
                self.look_in(PING_TIMEOUT);
            } else if link.streams() == 0 && link.pings < PINGS_MAX {
                self.ask(link, task);
            } else {
                self.look_in(PING_AFTER);
            }
        }
        Poll::Pending
    }

    fn ask(&mut self, link: &mut Link, task: &Context<'_>) {
        // While the last ping is unanswered, that pong is awaited.
        link.ping();
        task.waker().wake_by_ref();
        self.asked = Some(Instant::now());
        self.look_in(PING_TIMEOUT);
    }

    fn look_in(&mut self, wait: Duration) {
        self.due.as_mut().reset(tokio::time::Instant::now() + wait);
    }
}

//! A worker's pool of connections to upstreams, kept for later requests.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use eyelet_config::HttpUpstream;
use eyelet_sys::memory::long_rc::LongRc;
use eyelet_tls::client::Roots;

use super::dial::Dialled;
use super::request::UpstreamRequest;
use super::upstream::Upstream;
use super::{http1, http2};

/// The time for which an HTTP/1.1 connection is kept if its upstream gives no timeout: below the
/// five seconds of uvicorn and of Node.js before 8.
const KEPT: Duration = Duration::from_secs(4);
/// The time that such a connection may have been idle for a request that must not be sent twice. It
/// is below the two seconds of gunicorn, the shortest common timeout. Other requests are sent again
/// if the upstream closes while they are on their way.
const KEPT_ONCE: Duration = Duration::from_millis(1500);
/// The longest time for which a connection is kept if its upstream says `Keep-Alive: timeout`: that
/// of an HTTP/2 connection.
const KEPT_MAX: Duration = Duration::from_secs(30);
/// The time before the upstream's timeout at which it is dropped: a request needs time to arrive,
/// and the upstream counts from when it sent its response.
const KEPT_MARGIN: Duration = Duration::from_secs(1);
/// A connection that was idle this long is checked by a system call before it is used: its end may
/// have come since the last iteration. A busy pool makes this check only for requests that must not
/// be sent twice: the others are sent again if it was closed.
const LOOKED_AT_AFTER: Duration = Duration::from_millis(500);
/// An upstream that closes right after its response has done so by then, and its end has arrived. A
/// request that must not be sent twice takes one that has rested for so long, if there is one.
const SETTLED_AFTER: Duration = Duration::from_millis(20);
/// The number of resting connections below which, if none has settled, a request that must not be
/// sent twice has one dialled for it. From so many on the one that has rested longest is taken: at
/// 5,000 requests a second it has rested for 3 ms, and an end on the same machine or network has
/// arrived.
const UNSETTLED_MIN: usize = 16;
/// HTTP/1.1 connections kept for one upstream: as many as five clients of HTTP/2 ask by at once.
/// With fewer, a burst of streams dials for each request that finds none, which costs more than all
/// else of a small request. Only connections that were busy at the same time are kept.
const IDLE_MAX: usize = 512;
/// Connections kept while memory or descriptors are not plenty: a connection by TLS holds 40 KiB.
const IDLE_TIGHT_MAX: usize = 64;
/// Requests that a worker holds while one upstream accepts no connection. Each holds a task of
/// 9 KiB and at most 64 KiB of its body. Afterwards all dial at once, and common servers queue 511
/// connections or fewer.
const HELD_MAX: usize = 1024;
/// Time between dials to an upstream for which requests are held. One of them dials.
const PROBE_STEP: Duration = Duration::from_millis(100);
/// The interval at which the addresses of an upstream's name are compared with those of its
/// connections.
const COMPARED_STEP: Duration = Duration::from_secs(1);
/// The interval at which expired connections are closed.
const SWEEP: Duration = Duration::from_secs(1);

/// The pool of a worker.
#[derive(Default)]
pub struct UpstreamPool {
    shelves: RefCell<HashMap<HttpUpstream, Verified>>,
}

/// The connections to an upstream, and the roots that verified it.
struct Verified {
    roots: Option<Roots>,
    shelf: Rc<Shelf>,
}

impl UpstreamPool {
    /// The connections of an upstream. Rules with equal upstreams share them, also across
    /// configurations. A changed file of roots makes it another upstream.
    pub fn shelf(&self, upstream: &HttpUpstream, roots: Option<&Roots>) -> Rc<Shelf> {
        let mut shelves = self.shelves.borrow_mut();
        if let Some(known) = shelves.get(upstream)
            && known.roots.as_ref() == roots
        {
            return known.shelf.clone();
        }
        let shelf = Rc::new(Shelf { is_shared: true, ..Shelf::default() });
        let verified = Verified { roots: roots.cloned(), shelf: shelf.clone() };
        shelves.insert(upstream.clone(), verified);
        shelf
    }

    /// Forgets upstreams without connections and without users. Each reload calls it, which bounds
    /// the upstreams of all configurations.
    pub fn forget_unused(&self) {
        let is_used = |_: &HttpUpstream, known: &mut Verified| {
            Rc::strong_count(&known.shelf) > 1 || !known.shelf.is_empty()
        };
        self.shelves.borrow_mut().retain(is_used);
    }

    /// Closes the kept connections. Their registrations hold the worker, which otherwise would not
    /// be freed.
    pub fn close(&self) {
        self.shelves.borrow_mut().clear();
    }
}

/// The kept connections of a rule, or of one client if they are not shared.
#[derive(Default)]
pub struct Shelf {
    ones: RefCell<Vec<Idle>>,
    /// Any client's request may use them. Those of one client may be authenticated, so that its
    /// next request must not get another one.
    is_shared: bool,
    twos: RefCell<Vec<LongRc<http2::Http2Connection>>>,
    /// Dials in progress that may bring shared connections.
    dialling: Cell<usize>,
    /// The number of dials that have brought no shared connection.
    in_vain: Cell<u64>,
    /// The last upstream that could choose chose HTTP/1.1.
    chose_one: Cell<bool>,
    settled: Notify,
    sweeping: Cell<bool>,
    /// The time at which the name's addresses were compared last, and those whose connections may
    /// be used. `None`: all may.
    usable: RefCell<Option<(Instant, Option<Vec<IpAddr>>)>>,
    /// Requests that are held while the upstream accepts no connection.
    held: Rc<HeldRequests>,
    /// Requests that wait for a local port, or for a connection that another request has used.
    without_port: Rc<HeldRequests>,
}

struct Idle {
    connection: Box<http1::Http1Connection>,
    since: Instant,
}

impl Idle {
    /// True if it is below its idle limit, for any request or for one that is sent `once`.
    fn is_young(&self, rested: Duration, once: bool) -> bool {
        let unsaid = if once { KEPT_ONCE } else { KEPT };
        rested < self.connection.said_timeout.map_or(unsaid, kept)
    }

    /// True if the upstream still seems connected. With `look` the kernel is asked at once.
    fn is_fresh(&mut self, rested: Duration, look: bool) -> bool {
        self.connection.is_fresh(look || rested >= LOOKED_AT_AFTER)
    }
}

/// Returns the time to keep a connection that its upstream closes after `said`.
fn kept(said: Duration) -> Duration {
    let margin = KEPT_MARGIN.min(said / 2);
    (said - margin).min(KEPT_MAX)
}

/// The connection for a request that is sent once: the most recently used one that has settled. If
/// there is none, `is_shared` connections are spared as [`UNSETTLED_MIN`] says, and of others the
/// most recently used one is taken. `None`: they are kept for other requests.
fn for_once(ones: &[Idle], now: Instant, is_shared: bool) -> Option<usize> {
    let last = ones.len().checked_sub(1)?;
    let rested = |idle: &Idle| now.saturating_duration_since(idle.since);
    let is_young =
        |at: usize, once| ones.get(at).is_some_and(|idle| idle.is_young(rested(idle), once));
    let unsettled = ones.partition_point(|idle| rested(idle) >= SETTLED_AFTER);
    let settled = unsettled.checked_sub(1).filter(|at| is_young(*at, true));
    if settled.is_some() {
        return settled;
    }
    if is_shared && is_young(last, true) {
        return (ones.len() - unsettled >= UNSETTLED_MIN).then_some(unsettled);
    }
    // One that is too old for any request is taken to be closed.
    (is_young(last, true) || !is_young(last, false)).then_some(last)
}

impl Shelf {
    /// Gives connections to an address that is not `usable` no more requests. They end with those
    /// that they have. Later connections are not judged by these addresses.
    pub fn compare(&self, usable: impl FnOnce() -> Option<Vec<IpAddr>>) {
        let now = Instant::now();
        let last = self.usable.borrow().as_ref().map(|(at, _)| *at);
        if last.is_some_and(|last| now.duration_since(last) < COMPARED_STEP) {
            return;
        }
        let usable = usable();
        *self.usable.borrow_mut() = Some((now, usable));
        self.ones.borrow_mut().retain(|idle| self.is_usable(idle.connection.dialled));
        let twos = self.twos.borrow();
        twos.iter().filter(|two| !self.is_usable(two.dialled.get())).for_each(|two| two.retire());
    }

    fn is_usable(&self, dialled: Option<(IpAddr, Instant)>) -> bool {
        let usable = self.usable.borrow();
        let (Some((compared, Some(usable))), Some((ip, dialled))) = (&*usable, dialled) else {
            return true;
        };
        dialled >= *compared || usable.contains(&ip)
    }

    /// A stream of a shared connection. With `idle` also the most recently used idle connection.
    pub fn take(&self, upstream_request: &UpstreamRequest<'_>, idle: bool) -> Option<Upstream> {
        if !upstream_request.needs_http1 {
            let mut twos = self.twos.borrow_mut();
            twos.retain(|connection| connection.is_good());
            // Fills the first connections with room, so that those not needed stay idle and end.
            let mut suited = twos.iter().filter(|one| one.has_room_for(upstream_request));
            let asked = suited.find_map(|one| http2::Http2Connection::ask(one, upstream_request));
            if let Some(asked) = asked {
                return Some(Upstream::Http2(Box::new(asked)));
            }
        }
        if idle { self.take_idle(!upstream_request.again).map(Upstream::Http1) } else { None }
    }

    /// The most recently used idle connection that suits a request that is sent `once` or again.
    fn take_idle(&self, once: bool) -> Option<Box<http1::Http1Connection>> {
        let mut ones = self.ones.borrow_mut();
        loop {
            let at = match once {
                true => for_once(&ones, Instant::now(), self.is_shared)?,
                false => ones.len().checked_sub(1)?,
            };
            let rested = ones.get(at)?.since.elapsed();
            let mut last = ones.remove(at);
            if last.is_young(rested, once) && last.is_fresh(rested, once) {
                last.connection.reused = true;
                return Some(last.connection);
            }
        }
    }

    /// Keeps the connection of a response that has ended.
    pub fn keep(self: &Rc<Self>, upstream: Upstream) {
        let Upstream::Http1(mut connection) = upstream else { return };
        if !connection.goes_on() || !self.is_usable(connection.dialled) {
            return;
        }
        // All that it has read was consumed, so its buffer is freed.
        connection.rest();
        let mut ones = self.ones.borrow_mut();
        let max = if connection.has_plenty() { IDLE_MAX } else { IDLE_TIGHT_MAX };
        if ones.len() < max {
            ones.push(Idle { connection, since: Instant::now() });
            self.without_port.wake_one();
        }
        drop(ones);
        self.sweep_later();
    }

    fn is_empty(&self) -> bool {
        self.ones.borrow().is_empty() && self.twos.borrow().is_empty()
    }

    /// The number of dials that have brought no shared connection until now.
    pub fn in_vain(&self) -> u64 {
        self.in_vain.get()
    }

    /// True if another request's dial may bring a shared connection, and none failed to since then.
    pub fn is_dialled(&self, since: u64) -> bool {
        self.dialling.get() > 0 && !self.chose_one.get() && self.in_vain.get() == since
    }

    /// Waits until a dial is over.
    pub async fn settled(&self) {
        self.settled.notified().await;
    }

    /// Notes a dial that may bring a shared connection.
    pub fn dials(self: &Rc<Self>) -> Dialling {
        self.dialling.update(|dialling| dialling + 1);
        Dialling(self.clone())
    }

    /// Holds a request after a dial that failed. `None`: too many are held.
    pub fn hold(&self) -> Option<HeldRequest> {
        (self.held.count.get() < HELD_MAX).then(|| HeldRequest::new(&self.held))
    }

    /// Holds a request for which the host has no local port left. It holds no more than a request
    /// that waits for its response, so that only memory bounds their number.
    pub fn hold_for_port(&self) -> HeldRequest {
        HeldRequest::new(&self.without_port)
    }

    /// True if requests wait for a local port. Others wait behind them: a dial would take the port
    /// of one of them, and the kernel looks at all ports before it says that there is none.
    pub fn is_without_port(&self) -> bool {
        self.without_port.is_probed.get()
    }

    /// Wakes the held requests: a request has a connection.
    pub fn wake(&self) {
        if self.held.count.get() > 0 {
            self.held.changed.notify_waiters();
        }
    }

    fn sweep_later(self: &Rc<Self>) {
        if !self.sweeping.replace(true) {
            tokio::task::spawn_local(sweep(Rc::downgrade(self)));
        }
    }

    fn sweep(&self) -> bool {
        let (mut ones, mut twos) = (self.ones.borrow_mut(), self.twos.borrow_mut());
        ones.retain_mut(|idle| {
            let rested = idle.since.elapsed();
            idle.is_young(rested, false) && idle.is_fresh(rested, false)
        });
        if ones.first().is_some_and(|idle| !idle.connection.has_plenty()) {
            // The first ones were not used for the longest time.
            let surplus = ones.len().saturating_sub(IDLE_TIGHT_MAX);
            ones.drain(..surplus);
        }
        twos.retain(|connection| connection.is_good());
        self.sweeping.set(!ones.is_empty() || !twos.is_empty());
        self.sweeping.get()
    }
}

/// A dial in progress. Its end wakes the requests that wait for it, also if its own client has
/// disconnected.
pub struct Dialling(Rc<Shelf>);

impl Dialling {
    /// Takes the dialled connection, or notes that the dial failed.
    pub fn over(self, dialled: Option<&Dialled>) {
        let shelf = &self.0;
        match dialled {
            Some(Dialled::Http2(connection)) => {
                shelf.chose_one.set(false);
                shelf.twos.borrow_mut().push(connection.clone());
                shelf.sweep_later();
                // Requests beyond the first ones wait to know how many it allows.
                if let Some(greeting) = connection.greeting() {
                    shelf.settled.notify_waiters();
                    tokio::task::spawn_local(async move {
                        if !greeting.await {
                            self.0.in_vain.update(|in_vain| in_vain + 1);
                        }
                        drop(self);
                    });
                }
            }
            Some(Dialled::Http1(_)) => {
                shelf.chose_one.set(true);
                shelf.in_vain.update(|in_vain| in_vain + 1);
            }
            None => shelf.in_vain.update(|in_vain| in_vain + 1),
        }
    }
}

impl Drop for Dialling {
    fn drop(&mut self) {
        self.0.dialling.update(|dialling| dialling - 1);
        self.0.settled.notify_waiters();
    }
}

/// Requests that are held for one reason. One of them dials again and again.
#[derive(Default)]
struct HeldRequests {
    count: Cell<usize>,
    is_probed: Cell<bool>,
    /// Wakes the others.
    changed: Notify,
}

impl HeldRequests {
    /// Wakes the one that has waited longest.
    fn wake_one(&self) {
        if self.count.get() > 0 {
            self.changed.notify_one();
        }
    }
}

/// A request that is held until its upstream accepts a connection, or a local port is free.
pub struct HeldRequest {
    all: Rc<HeldRequests>,
    probes: bool,
    has_waited: bool,
}

impl HeldRequest {
    fn new(all: &Rc<HeldRequests>) -> Self {
        all.count.update(|count| count + 1);
        Self { all: all.clone(), probes: false, has_waited: false }
    }

    /// Waits before the next dial: until another request has a connection, or `end`. One request
    /// probes for all.
    pub async fn wait(&mut self, end: Instant) {
        let all = &self.all;
        let changed = all.changed.notified();
        if self.probes || !all.is_probed.replace(true) {
            self.probes = true;
            let _changed = tokio::time::timeout(PROBE_STEP, changed).await;
        } else if tokio::time::timeout_at(end.into(), changed).await.is_ok() {
            // Whoever probed may have left. The first that wakes probes from now on.
            self.probes = !all.is_probed.replace(true);
        }
        // At `end`, one dial more is its last.
        self.has_waited = true;
    }

    /// True once after a wait, if it dials for all that wait.
    pub fn takes_turn(&mut self) -> bool {
        self.probes && std::mem::take(&mut self.has_waited)
    }

    /// Wakes the requests that are held with it.
    pub fn wake(&self) {
        self.all.changed.notify_waiters();
    }
}

impl Drop for HeldRequest {
    fn drop(&mut self) {
        self.all.count.update(|count| count - 1);
        if self.probes {
            // Another request probes from now on.
            self.all.is_probed.set(false);
            self.all.changed.notify_one();
        }
    }
}

async fn sweep(shelf: Weak<Shelf>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        match shelf.upgrade() {
            Some(shelf) if shelf.sweep() => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::os::unix::net::UnixStream;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use eyelet_engine::worker::Worker;

    use super::*;
    use crate::socket::{Descriptor, Socket};
    use crate::testing::{connected, worker};

    type Waiting<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

    /// True if a request that is held need not wait any longer.
    fn is_woken(waiting: &mut Waiting<'_>) -> bool {
        waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Holds a request until `end`.
    fn held(shelf: &Rc<Shelf>, end: Instant) -> Waiting<'static> {
        let mut held = shelf.hold().expect("there is room");
        let mut waiting: Waiting<'static> = Box::pin(async move { held.wait(end).await });
        assert!(!is_woken(&mut waiting));
        waiting
    }

    #[test]
    fn held_requests_follow_any_request_that_has_a_connection() -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let _entered = runtime.enter();
        let shelf = Rc::<Shelf>::default();
        let end = Instant::now() + Duration::from_hours(1);
        let _prober = held(&shelf, end);
        let mut others: Vec<_> = (0..3).map(|_| held(&shelf, end)).collect();
        assert!(!others.iter_mut().any(is_woken), "nobody has a connection");
        shelf.wake();
        assert!(others.iter_mut().all(is_woken));
        Ok(())
    }

    #[test]
    fn a_held_request_that_leaves_hands_the_probing_on() -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let _entered = runtime.enter();
        let shelf = Rc::<Shelf>::default();
        let end = Instant::now() + Duration::from_hours(1);
        let prober = held(&shelf, end);
        let mut second = shelf.hold().expect("there is room");
        {
            let mut waiting: Waiting<'_> = Box::pin(second.wait(end));
            assert!(!is_woken(&mut waiting));
            let mut third = held(&shelf, end);
            drop(prober);
            assert!(is_woken(&mut waiting));
            assert!(!is_woken(&mut third), "one is enough");
            drop(waiting);
            // Its client disconnects while it dials.
            drop(second);
            assert!(is_woken(&mut third));
        }
        assert_eq!(shelf.held.count.get(), 0);
        assert!(!shelf.held.is_probed.get());
        Ok(())
    }

    #[test]
    fn a_connection_is_kept_for_less_than_its_upstream_says() {
        let secs = Duration::from_secs;
        for (said, expected) in [
            (secs(0), secs(0)),
            (secs(1), Duration::from_millis(500)),
            (secs(2), secs(1)),
            (secs(5), secs(4)),
            (secs(75), KEPT_MAX),
            (secs(u64::MAX), KEPT_MAX),
        ] {
            assert_eq!(kept(said), expected, "{said:?}");
        }
    }

    /// A kept connection that has rested so long, and its upstream's end.
    fn idle(worker: &Rc<Worker>, rested: Duration) -> (UnixStream, Idle) {
        let (upstream, socket) = connected(worker);
        let name = format!("{} ms", rested.as_millis()).into();
        let descriptor = Descriptor::new(worker, None);
        let connection =
            Box::new(http1::Http1Connection::new(Socket::Plain(socket), name, descriptor));
        (upstream, Idle { connection, since: Instant::now() - rested })
    }

    /// The connections that requests which are sent once get at this moment.
    fn taken_once(shelf: &Shelf, now: Instant) -> Vec<Arc<str>> {
        let mut ones = shelf.ones.borrow_mut();
        let next = || {
            let at = for_once(&ones, now, shelf.is_shared)?;
            Some(ones.remove(at).connection.name.clone())
        };
        std::iter::from_fn(next).collect()
    }

    /// The connections that requests get, one after the other. `None`: a new one.
    fn taken(shelf: &Shelf, once: bool) -> Vec<Arc<str>> {
        std::iter::from_fn(|| shelf.take_idle(once)).map(|one| one.name.clone()).collect()
    }

    /// The event loop does not run, so that only the kernel knows of the end.
    #[test]
    fn an_end_that_has_just_come_costs_no_request_that_is_sent_once() {
        let (worker, shelf) = (worker(), Shelf::default());
        for (once, expected) in [(true, 0), (false, 1)] {
            let (upstream, idle) = idle(&worker, Duration::ZERO);
            shelf.ones.borrow_mut().push(idle);
            drop(upstream);
            assert_eq!(taken(&shelf, once).len(), expected, "{once}");
        }
    }

    #[test]
    fn a_request_that_is_sent_once_has_a_connection_that_has_settled() {
        let (worker, ms) = (worker(), Duration::from_millis);
        let cases: &[(&[u64], bool, &[&str])] = &[
            (&[900, 300, 0], true, &["300 ms", "900 ms", "0 ms"]),
            (&[900, 300, 0], false, &["0 ms", "300 ms", "900 ms"]),
            (&[0], true, &["0 ms"]),
            (&[], true, &[]),
            // Those in the middle are for requests that may be sent twice.
            (&[9_000, 3_000, 0], true, &["0 ms"]),
            (&[9_000, 3_000, 0], false, &["0 ms", "3000 ms"]),
        ];
        // If none has settled, the one that has rested longest, while many rest.
        let busy: Vec<u64> = (0..=UNSETTLED_MIN as u64).rev().collect();
        let shared: &[(&[u64], &[&str])] = &[
            (&[900, 300, 0], &["300 ms", "900 ms"]),
            (&[0], &[]),
            (&[9_000, 3_000, 0], &[]),
            (&busy, &["16 ms", "15 ms"]),
        ];
        let own = cases.iter().map(|(rested, once, expected)| (*rested, *once, *expected, false));
        let shared = shared.iter().map(|(rested, expected)| (*rested, true, *expected, true));
        for (rested, once, expected, is_shared) in own.chain(shared) {
            let (shelf, now) = (Shelf { is_shared, ..Shelf::default() }, Instant::now());
            let (_upstreams, idle): (Vec<_>, Vec<_>) =
                rested.iter().map(|rested| idle(&worker, ms(*rested))).unzip();
            shelf.ones.borrow_mut().extend(idle);
            let taken = match once {
                true => taken_once(&shelf, now),
                false => taken(&shelf, false),
            };
            let taken: Vec<&str> = taken.iter().map(|name| &**name).collect();
            assert_eq!(taken, expected, "{rested:?} {once} {is_shared}");
        }
    }
}

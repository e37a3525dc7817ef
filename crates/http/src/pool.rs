//! Connections to upstreams that are kept for the next requests on this worker.
//! It must not know what was said on them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use eyelet_config::HttpUpstream;
use eyelet_tls::client::Roots;

use super::upstream::dial::Dialled;
use super::upstream::request::UpstreamRequest;
use super::upstream::{Upstream, one, two};

/// How long an HTTP/1.1 connection is kept whose upstream does not say for how long it keeps it:
/// below the five seconds of uvicorn and of Node.js before 8.
const KEPT: Duration = Duration::from_secs(4);
/// How long such a connection may have rested for a request that must not be sent twice: below the
/// two seconds of gunicorn, the shortest of the common ones. Others are asked again if the upstream
/// closes just when they are on their way.
const KEPT_ONCE: Duration = Duration::from_millis(1500);
/// How long one is kept at most whose upstream says `Keep-Alive: timeout`: as those of HTTP/2.
const KEPT_MAX: Duration = Duration::from_secs(30);
/// How much earlier than the upstream says: a request needs some time to get there, and the
/// upstream counts from when it sent its response.
const KEPT_MARGIN: Duration = Duration::from_secs(1);
/// An idle connection that has rested so long is looked at by a system call before it is used: no
/// upstream closes one earlier, and its end may have come since the last turn. A busy pool never
/// gets here.
const LOOKED_AT_AFTER: Duration = Duration::from_millis(500);
/// HTTP/1.1 connections kept for one upstream.
const IDLE_MAX: usize = 64;
/// How often what was kept too long is closed.
const SWEEP: Duration = Duration::from_secs(1);

/// The pool of a worker.
#[derive(Default)]
pub struct UpstreamPool {
    shelves: RefCell<HashMap<HttpUpstream, Verified>>,
}

/// The connections to an upstream, and who has verified it.
struct Verified {
    roots: Option<Roots>,
    shelf: Rc<Shelf>,
}

impl UpstreamPool {
    /// What is kept of an upstream: rules with equal upstreams share connections, whichever
    /// configuration they are of.
    /// A file of roots that has changed makes it another upstream.
    pub fn shelf(&self, upstream: &HttpUpstream, roots: Option<&Roots>) -> Rc<Shelf> {
        let mut shelves = self.shelves.borrow_mut();
        if let Some(known) = shelves.get(upstream)
            && known.roots.as_ref() == roots
        {
            return known.shelf.clone();
        }
        let shelf = Rc::<Shelf>::default();
        let verified = Verified { roots: roots.cloned(), shelf: shelf.clone() };
        shelves.insert(upstream.clone(), verified);
        shelf
    }

    /// Forgets upstreams to which nothing is kept and nobody asks for. Done at each reload, so that
    /// those of all configurations together are few.
    pub fn forget_unused(&self) {
        let is_used = |_: &HttpUpstream, known: &mut Verified| {
            Rc::strong_count(&known.shelf) > 1 || !known.shelf.is_empty()
        };
        self.shelves.borrow_mut().retain(is_used);
    }

    /// Closes what is kept: a worker is what its sockets are watched by, and would not go.
    pub fn close(&self) {
        self.shelves.borrow_mut().clear();
    }
}

/// What is kept for a rule, or for one client where connections are not shared.
#[derive(Default)]
pub struct Shelf {
    ones: RefCell<Vec<Idle>>,
    twos: RefCell<Vec<Rc<two::Http2Connection>>>,
    /// Connections that are being dialled and may turn out to be shared ones.
    dialling: Cell<usize>,
    /// Dials that brought no shared connection, ever.
    in_vain: Cell<u64>,
    /// The last one that could choose chose HTTP/1.1.
    chose_one: Cell<bool>,
    settled: Notify,
    sweeping: Cell<bool>,
}

struct Idle {
    connection: Box<one::Http1Connection>,
    since: Instant,
}

impl Idle {
    /// Whether it has not rested for too long: for any request, or for one that is sent `once`.
    fn is_young(&self, rested: Duration, once: bool) -> bool {
        let unsaid = if once { KEPT_ONCE } else { KEPT };
        rested < self.connection.said_timeout.map_or(unsaid, kept)
    }

    /// Whether the upstream is still there, as far as can be seen.
    fn is_fresh(&mut self, rested: Duration) -> bool {
        self.connection.is_fresh(rested >= LOOKED_AT_AFTER)
    }
}

/// How long a connection is kept whose upstream closes it after `said`.
fn kept(said: Duration) -> Duration {
    let margin = KEPT_MARGIN.min(said / 2);
    (said - margin).min(KEPT_MAX)
}

impl Shelf {
    /// A stream of a shared connection; or, with `idle`, the idle connection used last.
    pub fn take(&self, upstream_request: &UpstreamRequest<'_>, idle: bool) -> Option<Upstream> {
        if !upstream_request.by_one {
            let mut twos = self.twos.borrow_mut();
            twos.retain(|connection| connection.is_good());
            // The first that has room: what is not needed gets no streams, and goes.
            let asked =
                twos.iter().filter(|one| one.has_room()).find_map(|one| one.ask(upstream_request));
            if let Some(asked) = asked {
                return Some(Upstream::Two(Box::new(asked)));
            }
        }
        if idle { self.take_idle(!upstream_request.again).map(Upstream::One) } else { None }
    }

    /// The idle connection used last, if it is good for a request that is sent `once` or again.
    fn take_idle(&self, once: bool) -> Option<Box<one::Http1Connection>> {
        let mut ones = self.ones.borrow_mut();
        loop {
            let last = ones.last()?;
            let rested = last.since.elapsed();
            if once && last.is_young(rested, false) && !last.is_young(rested, true) {
                // It stays for others. Those before it have rested for longer.
                return None;
            }
            let mut last = ones.pop()?;
            if last.is_young(rested, once) && last.is_fresh(rested) {
                last.connection.reused = true;
                return Some(last.connection);
            }
        }
    }

    /// Keeps the connection of a response that has ended.
    pub fn keep(self: &Rc<Self>, upstream: Upstream) {
        let Upstream::One(mut connection) = upstream else { return };
        if !connection.goes_on() {
            return;
        }
        // What it has read is taken; its buffer is not kept.
        connection.rest();
        let mut ones = self.ones.borrow_mut();
        if ones.len() < IDLE_MAX {
            ones.push(Idle { connection, since: Instant::now() });
        }
        drop(ones);
        self.sweep_later();
    }

    fn is_empty(&self) -> bool {
        self.ones.borrow().is_empty() && self.twos.borrow().is_empty()
    }

    /// Dials that brought no shared connection until now.
    pub fn in_vain(&self) -> u64 {
        self.in_vain.get()
    }

    /// Whether somebody else's dial may bring what is wanted, and none was in vain since then.
    pub fn is_dialled(&self, since: u64) -> bool {
        self.dialling.get() > 0 && !self.chose_one.get() && self.in_vain.get() == since
    }

    /// Waits until a dial is over.
    pub async fn settled(&self) {
        self.settled.notified().await;
    }

    /// Notes that a connection that may be shared is being dialled.
    pub fn dials(self: &Rc<Self>) -> Dialling {
        self.dialling.update(|dialling| dialling + 1);
        Dialling(self.clone())
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
            idle.is_young(rested, false) && idle.is_fresh(rested)
        });
        twos.retain(|connection| connection.is_good());
        self.sweeping.set(!ones.is_empty() || !twos.is_empty());
        self.sweeping.get()
    }
}

/// A dial as long as it lasts. Whoever waits for it is woken when it is over, also when its
/// client has left.
pub struct Dialling(Rc<Shelf>);

impl Dialling {
    /// Takes what was dialled, or that nothing was.
    pub fn over(self, dialled: Option<&Dialled>) {
        let shelf = &self.0;
        match dialled {
            Some(Dialled::Two(connection)) => {
                shelf.chose_one.set(false);
                shelf.twos.borrow_mut().push(connection.clone());
                shelf.sweep_later();
            }
            Some(Dialled::One(_)) => {
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
    use super::*;

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
}

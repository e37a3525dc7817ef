//! Idle connections to upstreams, for the next request of the same rule on this worker.
//! It must not know what was said on them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use super::upstream::Upstream;

/// How long a connection is kept: below the five seconds after which Node.js, the shortest of the
/// common ones, closes it, perhaps just when the next request is on its way.
const KEPT_MAX: Duration = Duration::from_secs(4);
/// Connections kept for one rule.
const IDLE_MAX: usize = 64;
/// How often what was kept too long is closed.
const SWEEP: Duration = Duration::from_secs(1);

/// A rule's key: rules with equal actions share connections.
pub type PoolKey = usize;

/// The pool of a worker.
#[derive(Default)]
pub struct Pool {
    idle: RefCell<HashMap<PoolKey, Vec<Idle>>>,
    sweeping: Cell<bool>,
}

struct Idle {
    upstream: Upstream,
    since: Instant,
}

impl Pool {
    /// The connection used last, if it is still good.
    pub fn take(&self, key: PoolKey) -> Option<Upstream> {
        let mut idle = self.idle.borrow_mut();
        let list = idle.get_mut(&key)?;
        while let Some(Idle { mut upstream, since }) = list.pop() {
            if since.elapsed() < KEPT_MAX && upstream.is_fresh() {
                upstream.reused = true;
                return Some(upstream);
            }
        }
        None
    }

    /// Keeps a connection whose last response has ended.
    pub fn keep(self: &Rc<Self>, key: PoolKey, mut upstream: Upstream) {
        // What it has read is taken; its buffer is not kept.
        upstream.rest();
        let mut idle = self.idle.borrow_mut();
        let list = idle.entry(key).or_default();
        if list.len() < IDLE_MAX {
            list.push(Idle { upstream, since: Instant::now() });
        }
        if !self.sweeping.replace(true) {
            tokio::task::spawn_local(sweep(Rc::downgrade(self)));
        }
    }

    fn sweep(&self) -> bool {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|_, list| {
            list.retain_mut(|idle| idle.since.elapsed() < KEPT_MAX && idle.upstream.is_fresh());
            !list.is_empty()
        });
        self.sweeping.set(!idle.is_empty());
        self.sweeping.get()
    }
}

async fn sweep(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        match pool.upgrade() {
            Some(pool) if pool.sweep() => {}
            _ => return,
        }
    }
}

//! Permits for what is costly: a number at once, and for one source only a part of it, so that no
//! source keeps others from theirs. It must not know what is done with a permit.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use eyelet_engine::source::Source;

/// One source has at most an eighth of the permits.
const CLIENT_FRACTION: usize = 8;

/// So many permits at once.
pub struct Permits {
    all: Semaphore,
    share: usize,
    /// Those of whom somebody has a permit or waits for one: at most one a connection.
    sources: Mutex<HashMap<Source, Arc<Semaphore>>>,
}

/// One of a source's own permits.
pub struct Permit {
    permits: Arc<Permits>,
    source: Source,
    own: Option<Arc<Semaphore>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Permits {
    /// So many permits.
    pub fn new(count: usize) -> Arc<Self> {
        let (all, share) = (Semaphore::new(count), (count / CLIENT_FRACTION).max(1));
        Arc::new(Self { all, share, sources: Mutex::default() })
    }

    /// How many of them one source may have.
    pub fn share(&self) -> usize {
        self.share
    }

    /// One of the source's own permits, when it has one left.
    pub async fn of(self: &Arc<Self>, source: IpAddr) -> Permit {
        let source = Source::of(source);
        let own = {
            let mut sources = self.sources();
            sources.entry(source).or_insert_with(|| Arc::new(Semaphore::new(self.share))).clone()
        };
        let (permits, waiting) = (self.clone(), own.clone());
        let mut permit = Permit { permits, source, own: Some(own), permit: None };
        // It is never closed.
        permit.permit = waiting.acquire_owned().await.ok();
        permit
    }

    fn sources(&self) -> MutexGuard<'_, HashMap<Source, Arc<Semaphore>>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Waits until there is room for it among everybody's.
    pub async fn begin(&self) -> Option<SemaphorePermit<'_>> {
        self.permits.all.acquire().await.ok()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // Under the lock, under which others are counted too: the last one takes the source along.
        let mut sources = self.permits.sources();
        drop((self.permit.take(), self.own.take()));
        if sources.get(&self.source).is_some_and(|own| Arc::strong_count(own) == 1) {
            sources.remove(&self.source);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::Ipv6Addr;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_source_has_its_share_and_no_more() {
        let (permits, wait) = (Permits::new(32), Duration::from_millis(50));
        let one = |n: u32| IpAddr::from(u32::to_be_bytes(0x0a00_0000 + n));
        let six = |n: u128| IpAddr::from(Ipv6Addr::from(0x2001_0db8 << 96 | n));
        let mut had = Vec::new();
        for n in 0..4 {
            had.push(permits.of(one(1)).await);
            had.push(permits.of(six(n)).await);
        }
        for greedy in [one(1), "::ffff:10.0.0.1".parse().unwrap(), six(99)] {
            assert!(timeout(wait, permits.of(greedy)).await.is_err(), "{greedy}");
        }
        for other in [one(2), six(1 << 64)] {
            let permit = timeout(wait, permits.of(other)).await.unwrap();
            assert!(timeout(wait, permit.begin()).await.unwrap().is_some());
        }
        assert_eq!(permits.sources().len(), 2, "who has none is forgotten");
        had.remove(0);
        had.push(timeout(wait, permits.of(one(1))).await.unwrap());
        drop(had);
        assert_eq!(permits.sources().len(), 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn all_together_have_no_more_than_there_are() {
        let (permits, wait) = (Permits::new(8), Duration::from_millis(50));
        let mut had = Vec::new();
        for n in 0..9_u8 {
            had.push(permits.of([10, 0, 0, n].into()).await);
        }
        let begun: Vec<_> = {
            let mut begun = Vec::new();
            for permit in &had[..8] {
                begun.push(permit.begin().await.unwrap());
            }
            begun
        };
        assert!(timeout(wait, had[8].begin()).await.is_err());
        drop(begun);
        assert!(timeout(wait, had[8].begin()).await.is_ok());
    }
}

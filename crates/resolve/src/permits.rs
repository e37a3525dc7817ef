//! Permits for costly operations: a limited number at once. One source may hold only a part of
//! them, so that no source starves the others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use eyelet_engine::worker::source::Source;

/// One source has at most an eighth of the permits.
const CLIENT_FRACTION: usize = 8;

/// A limited number of permits.
pub struct Permits {
    all: Semaphore,
    count: usize,
    share: usize,
    /// The sources that hold a permit or wait for one: at most one per connection.
    sources: Mutex<HashMap<Source, Arc<Semaphore>>>,
}

/// One permit of a source's share.
pub struct Permit {
    permits: Arc<Permits>,
    source: Source,
    own: Option<Arc<Semaphore>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Permits {
    /// `count` permits.
    pub fn new(count: usize) -> Arc<Self> {
        let (all, share) = (Semaphore::new(count), (count / CLIENT_FRACTION).max(1));
        Arc::new(Self { all, count, share, sources: Mutex::default() })
    }

    /// The number of permits.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of permits that one source may hold.
    pub fn share(&self) -> usize {
        self.share
    }

    /// Waits for a permit of the source's share.
    pub async fn of(self: &Arc<Self>, source: IpAddr) -> Permit {
        let source = Source::of(source);
        let own = {
            let mut sources = self.sources.lock();
            sources.entry(source).or_insert_with(|| Arc::new(Semaphore::new(self.share))).clone()
        };
        let (permits, waiting) = (self.clone(), own.clone());
        let mut permit = Permit { permits, source, own: Some(own), permit: None };
        // The semaphore is never closed.
        permit.permit = waiting.acquire_owned().await.ok();
        permit
    }
}

impl Permit {
    /// Waits until the operation may begin: until fewer than the number of permits run.
    pub async fn begin(&self) -> Option<SemaphorePermit<'_>> {
        self.permits.all.acquire().await.ok()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // Under the lock, like counting the others: the last permit removes its source.
        let mut sources = self.permits.sources.lock();
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
        assert_eq!(permits.sources.lock().len(), 2, "a source without a permit is forgotten");
        had.remove(0);
        had.push(timeout(wait, permits.of(one(1))).await.unwrap());
        drop(had);
        assert_eq!(permits.sources.lock().len(), 0);
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

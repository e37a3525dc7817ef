//! The health of an upstream, or of one address of its name: up, or down until a time at which one
//! connection or request tries it again.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use eyelet_telemetry::upstream::UpstreamCounters;

/// Milliseconds for which an upstream is down after its first failure. Most restarts are over by
/// then, and a single refused connection costs little.
const PAUSE_MIN_MS: u64 = 1_000;
/// Longest such pause, in milliseconds: each failed try doubles it.
const PAUSE_MAX_MS: u64 = 60_000;
/// Milliseconds after which a try that reported nothing is lost, and the next one may begin. It is
/// longer than most dials and responses take.
const TRY_MS: u64 = 15_000;
/// Milliseconds in which the share of an upstream that came back grows to its full size.
pub const SLOW_START_MS: u64 = 10_000;
/// Active checks that must fail one after the other until an upstream is down. One lost packet is
/// no failure of an application.
const CHECK_FAILURES: u32 = 2;
/// Time that never comes: only a check brings the upstream back.
const NEVER: u64 = u64::MAX;

/// The health of one upstream or address.
#[derive(Debug)]
pub struct Health {
    /// Its name in the log.
    pub name: Box<str>,
    /// Its counters.
    pub counters: Arc<UpstreamCounters>,
    /// Stands for the name in hashes: equal in all processes.
    pub(crate) hash: u64,
    /// Only active checks bring it back.
    is_checked: bool,
    /// 0: it is up. Otherwise when it may be tried again.
    down_until_ms: AtomicU64,
    /// The time at which it came back; 0: long ago.
    back_since_ms: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    down: Option<Down>,
    /// Active checks that failed since the last good one.
    check_failures: u32,
}

#[derive(Debug)]
struct Down {
    since_ms: u64,
    /// Tries that failed, the first failure included.
    failures: u32,
    /// True if a connection or request has the try that was due.
    is_tried: bool,
    /// Tries under way that were not due. Their failures say nothing about the next pause.
    early: u32,
}

impl Health {
    /// Something that is up. With `is_checked` only [`Health::checked`] brings it back.
    pub fn new(name: String, is_checked: bool) -> Self {
        let state = Mutex::new(State { down: None, check_failures: 0 });
        Self {
            hash: name.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte))),
            name: name.into(),
            counters: Arc::default(),
            is_checked,
            down_until_ms: AtomicU64::new(0),
            back_since_ms: AtomicU64::new(0),
            state,
        }
    }

    /// True if it is up.
    pub fn is_up(&self) -> bool {
        self.down_until_ms.load(Relaxed) == 0
    }

    /// True if its pause is over, so that one connection or request may try it.
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        let until_ms = self.down_until_ms.load(Relaxed);
        until_ms != 0 && until_ms <= now_ms
    }

    /// Takes the one try that is due. Returns whether the caller has it.
    pub(crate) fn take_try(&self, now_ms: u64) -> bool {
        let mut state = self.state.lock();
        // Another worker may have taken it since.
        self.is_due(now_ms) && self.begin_try(&mut state, now_ms)
    }

    /// Takes a try although none is due: all others are down, too.
    pub(crate) fn take_early_try(&self) {
        if !self.is_up()
            && !self.is_checked
            && let Some(down) = &mut self.state.lock().down
        {
            down.early = down.early.saturating_add(1);
        }
    }

    fn begin_try(&self, state: &mut State, now_ms: u64) -> bool {
        let Some(down) = &mut state.down else { return false };
        down.is_tried = true;
        self.down_until_ms.store(now_ms + TRY_MS, Relaxed);
        true
    }

    /// Returns its progress in its slow start, in parts of 2^16. `None`: its share is full.
    pub(crate) fn share(&self, now_ms: u64) -> Option<u64> {
        let since_ms = self.back_since_ms.load(Relaxed);
        if since_ms == 0 {
            return None;
        }
        let passed_ms = now_ms.saturating_sub(since_ms);
        if passed_ms >= SLOW_START_MS {
            self.back_since_ms.store(0, Relaxed);
            return None;
        }
        Some((passed_ms << 16) / SLOW_START_MS)
    }

    /// A dial failed, or a request that reached it got no response.
    pub fn failed(&self, now_ms: u64, why: &dyn Display) {
        self.counters.failures.fetch_add(1, Relaxed);
        let mut state = self.state.lock();
        match &mut state.down {
            None => self.go_down(&mut state, now_ms, why),
            // An early try, or what began before it went down: it says nothing new.
            Some(down) if !down.is_tried => down.early = down.early.saturating_sub(1),
            Some(down) => {
                down.is_tried = false;
                down.failures = down.failures.saturating_add(1);
                self.pause(down.failures, now_ms);
            }
        }
    }

    /// It answered. One answer brings it back if it was being tried.
    pub fn answered(&self, now_ms: u64) {
        if self.is_up() || self.is_checked {
            return;
        }
        let mut state = self.state.lock();
        if state.down.as_ref().is_some_and(|down| down.is_tried || down.early > 0) {
            self.come_back(&mut state, now_ms);
        }
    }

    /// The result of an active check.
    pub fn checked<E: Display>(&self, now_ms: u64, result: Result<(), E>) {
        let mut state = self.state.lock();
        match result {
            Ok(()) => {
                state.check_failures = 0;
                self.come_back(&mut state, now_ms);
            }
            Err(why) => {
                self.counters.check_failures.fetch_add(1, Relaxed);
                state.check_failures = state.check_failures.saturating_add(1);
                if state.down.is_none() && state.check_failures >= CHECK_FAILURES {
                    self.go_down(&mut state, now_ms, &why);
                }
            }
        }
    }

    fn go_down(&self, state: &mut State, now_ms: u64, why: &dyn Display) {
        state.down = Some(Down { since_ms: now_ms, failures: 1, is_tried: false, early: 0 });
        self.pause(1, now_ms);
        self.counters.downs.fetch_add(1, Relaxed);
        self.counters.is_down.store(true, Relaxed);
        tracing::warn!("upstream {} is down: {why}", self.name);
    }

    /// Doubles with each failure, and is up to a quarter longer, so that the tries of many edges
    /// and of many upstreams do not come at once.
    fn pause(&self, failures: u32, now_ms: u64) {
        let doublings = failures.saturating_sub(1).min(u64::BITS - 1 - PAUSE_MAX_MS.ilog2());
        let pause_ms = (PAUSE_MIN_MS << doublings.min(16)).min(PAUSE_MAX_MS);
        let jitter_ms = mix(self.hash ^ now_ms) % (pause_ms / 4);
        let until_ms = if self.is_checked { NEVER } else { now_ms + pause_ms + jitter_ms };
        self.down_until_ms.store(until_ms, Relaxed);
    }

    fn come_back(&self, state: &mut State, now_ms: u64) {
        let Some(down) = state.down.take() else { return };
        self.back_since_ms.store(now_ms.max(1), Relaxed);
        self.down_until_ms.store(0, Relaxed);
        self.counters.is_down.store(false, Relaxed);
        let after = Duration::from_millis(now_ms.saturating_sub(down.since_ms));
        tracing::info!("upstream {} is up again after {:.1} s", self.name, after.as_secs_f64());
    }
}

/// Mixes bits (the finalizer of SplitMix64). Equal in all processes, so that all edges of a fleet
/// hash alike. Clients cannot choose the upstreams' names, so it needs no key.
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the time at which it may be tried again, after a failure at `now_ms`.
    fn pause(health: &Health, now_ms: u64) -> u64 {
        health.failed(now_ms, &"refused");
        health.down_until_ms.load(Relaxed) - now_ms
    }

    #[test]
    fn one_answer_to_a_try_brings_it_back_and_each_failed_try_doubles_the_pause() {
        let health = Health::new("a".into(), false);
        let mut now = 1_000;
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            let pause = pause(&health, now);
            assert!((expected * 1_000..=expected * 1_250).contains(&pause), "{expected}: {pause}");
            assert!(!health.is_up() && !health.is_due(now + pause - 1));
            now += pause;
            assert!(health.take_try(now));
            assert!(!health.take_try(now), "one try at a time");
        }
        health.answered(now);
        assert!(health.is_up());
        assert!((1_000..=1_250).contains(&pause(&health, now)), "it begins anew");
        let counters = &health.counters;
        assert_eq!((counters.downs.load(Relaxed), counters.failures.load(Relaxed)), (2, 9));
        assert!(counters.is_down.load(Relaxed));
    }

    #[test]
    fn what_began_earlier_changes_nothing() {
        let health = Health::new("a".into(), false);
        let until = 1_000 + pause(&health, 1_000);
        health.failed(1_001, &"a second connection");
        health.answered(1_002);
        assert!(!health.is_up());
        assert_eq!(health.down_until_ms.load(Relaxed), until);
    }

    #[test]
    fn a_failed_early_try_changes_nothing_and_an_answer_to_one_brings_it_back() {
        let health = Health::new("a".into(), false);
        let due = 1_000 + pause(&health, 1_000);
        for now in 1_001..1_101 {
            health.take_early_try();
            health.failed(now, &"refused");
        }
        assert_eq!(health.down_until_ms.load(Relaxed), due);
        health.answered(1_200);
        assert!(!health.is_up(), "no try is under way");
        assert!(health.take_try(due));
        assert!((2_000..=2_500).contains(&pause(&health, due)), "the second failure");
        health.take_early_try();
        health.answered(due + 2);
        assert!(health.is_up());
    }

    #[test]
    fn a_try_without_a_result_is_followed_by_another() {
        let health = Health::new("a".into(), false);
        let due = 1_000 + pause(&health, 1_000);
        assert!(health.take_try(due));
        assert!(!health.take_try(due + TRY_MS - 1));
        assert!(health.take_try(due + TRY_MS));
    }

    #[test]
    fn the_share_grows_after_it_came_back() {
        let health = Health::new("a".into(), false);
        assert_eq!(health.share(5), None);
        let due = 1_000 + pause(&health, 1_000);
        assert!(health.take_try(due));
        health.answered(due);
        assert_eq!(health.share(due), Some(0));
        assert_eq!(health.share(due + SLOW_START_MS / 2), Some(1 << 15));
        assert_eq!(health.share(due + SLOW_START_MS), None);
        assert_eq!(health.share(due + 1), None, "once full, it stays full");
    }

    #[test]
    fn two_failed_checks_take_it_down_and_one_good_one_brings_it_back() {
        let health = Health::new("a".into(), true);
        health.checked(1, Err("503"));
        assert!(health.is_up());
        health.checked(2, Ok::<_, &str>(()));
        health.checked(3, Err("503"));
        assert!(health.is_up(), "not one after the other");
        health.checked(4, Err("503"));
        assert!(!health.is_up());
        health.take_early_try();
        health.answered(6);
        assert!(!health.is_up() && !health.is_due(NEVER - 1), "the check decides");
        health.checked(7, Ok::<_, &str>(()));
        assert!(health.is_up());
        health.failed(8, &"refused");
        assert!(!health.is_up(), "a failed dial need not wait for the check");
    }
}

//! Plans when a certificate is renewed, and when a failed attempt is repeated. Time and chance are
//! arguments.

use std::time::{Duration, Instant, SystemTime};

/// The longest pause between two questions when to renew: twice a day (RFC 9773 section 4.3.2), or
/// as its Retry-After says, within these bounds.
pub const ASK_MAX: Duration = Duration::from_hours(12);
const ASK_MIN: Duration = Duration::from_mins(1);
/// The first pause after a server could not be used. It doubles with each further failure.
const RETRY_MIN: Duration = Duration::from_secs(5);
/// The first pause after a server has refused or could not validate. Public servers count failed
/// validations of a name: five an hour.
const REFUSED_MIN: Duration = Duration::from_mins(5);
/// The longest pause. A certificate of six days has two days left at two thirds of its life.
const RETRY_MAX: Duration = Duration::from_hours(4);
/// The part of the lifetime over which renewals are spread, so that names that were ordered
/// together are not renewed together.
const SPREAD_PART: u32 = 50;

/// Between two renewals by the server's advice: a server that always says "now" is not obeyed.
const RENEWAL_MIN: Duration = Duration::from_hours(1);
/// The last part of the lifetime, in which no renewal is planned: attempts may fail.
const LAST_PART: u32 = 12;

/// Returns the time to renew without the server's advice: at two thirds of the lifetime, or up to a
/// fiftieth of it earlier. `chance` is from 0 to 1.
pub fn by_lifetime(not_before: SystemTime, not_after: SystemTime, chance: f64) -> SystemTime {
    let lifetime = not_after.duration_since(not_before).unwrap_or_default();
    not_before + lifetime * 2 / 3 - (lifetime / SPREAD_PART).mul_f64(chance)
}

/// Returns the time to renew by the server's advice: at a random time in its window (RFC 9773
/// section 4.2), but before the certificate ends.
pub fn by_window(
    window: (SystemTime, SystemTime),
    (not_before, not_after): (SystemTime, SystemTime),
    chance: f64,
) -> SystemTime {
    let (start, end) = window;
    let advised = start + end.duration_since(start).unwrap_or_default().mul_f64(chance);
    let lifetime = not_after.duration_since(not_before).unwrap_or_default();
    advised.min(not_after - lifetime / LAST_PART)
}

/// Returns the time by the server's clock: what it said in its last answer, and how long ago that
/// was. Our clock (`now`) counts only before the first answer: it may be set at any time.
pub fn server_time(now: SystemTime, heard: Option<(SystemTime, Duration)>) -> SystemTime {
    heard.and_then(|(said, ago)| said.checked_add(ago)).unwrap_or(now)
}

/// A time on a clock that is so many seconds ahead.
pub fn shifted(time: SystemTime, ahead_secs: i64) -> SystemTime {
    let difference = Duration::from_secs(ahead_secs.unsigned_abs());
    let shifted = match ahead_secs < 0 {
        true => time.checked_sub(difference),
        false => time.checked_add(difference),
    };
    shifted.unwrap_or(time)
}

/// Returns the time for which nothing more is ordered once a certificate is issued, at this time by
/// the server's clock. It is measured by a clock that nobody sets. A certificate that is dated back
/// far is due soon, or at once. Then half of its rest is waited at least; the other half is for
/// attempts that fail. One that is over already was issued by another clock: it counts as new.
pub fn after_issue(lives: (SystemTime, SystemTime), now: SystemTime) -> Duration {
    let (not_before, not_after) = lives;
    let left = not_after.duration_since(now).unwrap_or_default();
    if left.is_zero() {
        return not_after.duration_since(not_before).unwrap_or_default() / 2;
    }
    let latest = by_lifetime(not_before, not_after, 0.0);
    latest.duration_since(now).unwrap_or_default().max(left / 2).min(RENEWAL_MIN)
}

/// Returns the time until the server is asked again, if it says so.
pub fn until_asked(retry_after: Duration) -> Duration {
    retry_after.clamp(ASK_MIN, ASK_MAX)
}

/// The pause after so many failures in a row. Up to a quarter of it is `chance`.
pub fn pause(failures: u32, is_verdict: bool, chance: f64) -> Duration {
    let first = if is_verdict { REFUSED_MIN } else { RETRY_MIN };
    let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let pause = doubled.min(RETRY_MAX);
    pause - (pause / 4).mul_f64(chance)
}

/// Waits for a pause, which may be days long, in steps of at most `step`. Ends early if `is_over`
/// after one. The clock is an argument: what it says now, and how to sleep.
pub async fn rest<S: Future<Output = ()>>(
    pause: Duration,
    step: Duration,
    (now, sleep): (impl Fn() -> Instant, impl Fn(Duration) -> S),
    mut is_over: impl FnMut() -> bool,
) {
    let begin = now();
    loop {
        let left = pause.saturating_sub(now().saturating_duration_since(begin));
        if left.is_zero() {
            return;
        }
        sleep(left.min(step)).await;
        if is_over() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_life() {
        let start = SystemTime::UNIX_EPOCH;
        for days in [6, 45, 90] {
            let end = start + days * DAY;
            assert_eq!(by_lifetime(start, end, 0.0), start + days * DAY * 2 / 3, "{days} days");
            let earliest = by_lifetime(start, end, 1.0);
            assert_eq!(earliest, start + days * DAY * 2 / 3 - days * DAY / 50, "{days} days");
        }
        // An end before the start: at once.
        assert_eq!(by_lifetime(start + DAY, start, 0.5), start + DAY);
    }

    /// The second of two renewals may not follow at once, whatever the clock says.
    #[test]
    fn a_new_certificate_rests_whatever_it_is_dated() {
        let start = SystemTime::UNIX_EPOCH + 1_000 * DAY;
        let lives = (start, start + 6 * DAY);
        for behind in [Duration::ZERO, Duration::from_hours(1), 900 * DAY] {
            assert_eq!(after_issue(lives, start - behind), RENEWAL_MIN);
        }
        assert_eq!(after_issue(lives, start + 5 * DAY), RENEWAL_MIN, "dated back");
        for ahead in [6 * DAY, 400 * DAY] {
            assert_eq!(after_issue(lives, start + ahead), 3 * DAY, "the clock is not the server's");
        }
        let short = (start, start + Duration::from_secs(42));
        assert_eq!(after_issue(short, start), Duration::from_secs(28), "it is due before that");
        // An hour of backdating, as of a private authority whose certificates are short.
        for left in [60, 30, 10].map(Duration::from_mins) {
            let lives = (start - Duration::from_hours(1), start + left);
            assert_eq!(after_issue(lives, start), left / 2, "{left:?}");
        }
    }

    #[test]
    fn the_time_of_the_server_is_its_own_whatever_ours_is_set_to() {
        let now = SystemTime::UNIX_EPOCH + 10 * DAY;
        let hour = Duration::from_hours(1);
        // Ours is right, is set back, or was behind and is set right.
        for ours in [now, now - 2 * DAY, now + 2 * DAY] {
            assert_eq!(server_time(ours, Some((now - hour, hour))), now);
        }
        assert_eq!(server_time(now, None), now, "it has not answered yet");
    }

    #[test]
    fn a_window_is_used_from_its_start_to_its_end() {
        let start = SystemTime::UNIX_EPOCH;
        let lives = (start, start + 12 * DAY);
        assert_eq!(by_window((start, start + DAY), lives, 0.0), start);
        assert_eq!(by_window((start, start + DAY), lives, 1.0), start + DAY);
        assert_eq!(by_window((start + DAY, start), lives, 1.0), start + DAY, "it ends first");
        let late = (start, start + 30 * DAY);
        assert_eq!(by_window(late, lives, 1.0), start + 11 * DAY, "beyond the certificate's end");
    }

    /// The sleeps of a pause on a clock that jumps, until the look at `over`.
    fn sleeps(pause: Duration, over: usize, late: Duration) -> Vec<u64> {
        let (passed, slept) = (Cell::new(Duration::ZERO), RefCell::new(Vec::new()));
        let start = Instant::now();
        let now = || start + passed.get();
        let sleep = |wait: Duration| {
            slept.borrow_mut().push(wait.as_secs() / 60);
            passed.set(passed.get() + wait + late);
            std::future::ready(())
        };
        let step = Duration::from_hours(1);
        let rest = pin!(rest(pause, step, (now, sleep), || slept.borrow().len() >= over));
        assert_eq!(rest.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
        slept.take()
    }

    #[test]
    fn a_pause_of_hours_is_slept_in_steps() {
        let (hours, never, none) = (Duration::from_hours, usize::MAX, Duration::ZERO);
        assert_eq!(sleeps(RETRY_MAX, never, none), [60; 4]);
        assert_eq!(sleeps(hours(2) + Duration::from_mins(30), never, none), [60, 60, 30]);
        assert_eq!(sleeps(7 * DAY, never, none).len(), 7 * 24, "a Retry-After of a week");
        assert_eq!(sleeps(RETRY_MAX, 2, none), [60; 2], "another process was faster");
        assert_eq!(sleeps(RETRY_MAX, never, hours(5)), [60], "the machine slept");
        assert_eq!(sleeps(none, never, none), [0; 0]);
    }

    #[test]
    fn pauses_double_up_to_a_limit() {
        let secs = |failures, verdict| pause(failures, verdict, 0.0).as_secs();
        assert_eq!([1, 2, 3, 4].map(|n| secs(n, false)), [5, 10, 20, 40]);
        assert_eq!([1, 2, 3].map(|n| secs(n, true)), [300, 600, 1200]);
        assert_eq!(secs(40, false), RETRY_MAX.as_secs());
        assert_eq!(pause(1, false, 1.0), Duration::from_millis(3_750));
        assert_eq!(until_asked(Duration::ZERO), ASK_MIN);
        assert_eq!(until_asked(30 * DAY), ASK_MAX);
    }
}

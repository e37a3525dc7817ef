//! Paces a measurement: the time that a step waits before the server's memory is read.

use std::time::Duration;

/// Steps of a round, equal ones. The warm-up is as large as the first step. From there on its
/// memory is in use again, so the slope over the steps leaves out one-time growth. Ten, because the
/// memory of a garbage collector goes up and down between them.
pub const STEPS: usize = 10;
/// Between the last handshake of a step and the reading: threads of the server finish. Short, since
/// servers end what is idle, such as Node after five seconds and HAProxy after ten.
const STEP_PAUSE: Duration = Duration::from_millis(300);
/// A rest follows where the server still gives memory back in the last one: what only handshakes
/// need. Eyelet does so after a second: read before, its slope was 278 bytes, and later 256.
const REST_PAUSE: Duration = Duration::from_millis(1200);
/// Most that the rests of a round take.
const RESTS_MAX: Duration = REST_PAUSE.saturating_mul(STEPS as u32);
/// The part of a round's time that rests may take: those of some steps alone would bend the slope.
const RESTS_PART: u32 = 2;
/// The number of times that memory may still move after a pause.
const PAUSES_MAX: usize = 3;
/// Memory that moves by less stands still.
pub const STILL_BYTES: f64 = 64.0 * 1024.0;

/// The wait of a step before its reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPace {
    /// Not at all: nobody looks at the curve.
    AtOnce,
    /// It waits until the memory stands still.
    Still,
    /// For a rest more: the server gave memory back in the last one.
    Rested,
}

impl StepPace {
    /// The pace of a round of so many seconds after a warm-up that ended with this one.
    pub fn after_warm_up(self, seconds: u64) -> Self {
        match self {
            Self::Rested if RESTS_MAX * RESTS_PART > Duration::from_secs(seconds) => Self::Still,
            pace => pace,
        }
    }

    /// Waits and reads. A rest in which nothing is given back is the last one.
    pub fn read(&mut self, memory: impl Fn() -> f64, sleep: impl Fn(Duration)) -> f64 {
        if *self == Self::AtOnce {
            return memory();
        }
        let early = settled(STEP_PAUSE, &memory, &sleep);
        if *self == Self::Still {
            return early;
        }
        sleep(REST_PAUSE);
        let late = memory();
        if early - late < STILL_BYTES {
            *self = Self::Still;
        }
        late
    }
}

/// Memory once it stands still: a busy server is late.
pub fn settled(pause: Duration, memory: impl Fn() -> f64, sleep: impl Fn(Duration)) -> f64 {
    let mut last = memory();
    for _ in 0..PAUSES_MAX {
        sleep(pause);
        let now = memory();
        if (now - last).abs() < STILL_BYTES {
            return now;
        }
        last = now;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes that a server holds `ms` after the handshakes of a step, and the time that
    /// ten steps wait.
    fn paced(mut pace: StepPace, holds: fn(u64) -> f64) -> (f64, Duration) {
        let slept = std::cell::Cell::new(Duration::ZERO);
        let mut read = 0.0;
        for _ in 0..STEPS {
            let began = slept.get();
            let now = || holds((slept.get() - began).as_millis() as u64);
            read = pace.read(now, |pause| slept.set(slept.get() + pause));
        }
        (read, slept.get())
    }

    #[test]
    fn steps_rest_only_while_a_server_gives_memory_back() {
        const MIB: f64 = 1024.0 * 1024.0;
        let late = |ms| if ms < 1000 { 2.0 * MIB } else { MIB };
        let none = |_| 2.0 * MIB;
        assert_eq!(paced(StepPace::Rested, late), (MIB, (STEP_PAUSE + REST_PAUSE) * 10));
        assert_eq!(paced(StepPace::Rested, none), (2.0 * MIB, STEP_PAUSE * 10 + REST_PAUSE));
        // HAProxy and Node end what is idle: the handshakes take time, too.
        let (_, waits) = paced(StepPace::Still, none);
        assert!(waits <= Duration::from_secs(3), "{waits:?}");
        assert_eq!(paced(StepPace::AtOnce, late), (2.0 * MIB, Duration::ZERO));
        // A server that is never still.
        let (_, waits) = paced(StepPace::Rested, |ms| 1e9 - ms as f64 * MIB);
        assert!(waits <= STEP_PAUSE * 30 + RESTS_MAX, "{waits:?}");
    }

    #[test]
    fn rests_leave_time_for_the_handshakes() {
        for (pace, seconds, expected) in [
            (StepPace::Rested, 120, StepPace::Rested),
            (StepPace::Rested, 24, StepPace::Rested),
            (StepPace::Rested, 15, StepPace::Still),
            (StepPace::Still, 120, StepPace::Still),
        ] {
            assert_eq!(pace.after_warm_up(seconds), expected, "{pace:?} {seconds}");
        }
    }
}

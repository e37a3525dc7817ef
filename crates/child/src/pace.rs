//! Paces waits: before the next look for listening sockets, and before the next start.

use std::time::Duration;

/// The pause before a start that follows the first end.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause. An application that cannot start costs little then, and one that can again is
/// back soon.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// An application that lived this long had started well: the next pause is the shortest.
const LIVED: Duration = Duration::from_secs(10);

/// The first wait between two looks.
const LOOK_MIN: Duration = Duration::from_millis(50);
/// The longest one.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// The time for which looks are frequent: most applications listen by then.
const LOOK_OFTEN: Duration = Duration::from_secs(2);

/// The pauses between the end of an application and its next start.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    last: Option<Duration>,
}

impl Pauses {
    /// The pause after a life of this length.
    pub(crate) fn after(&mut self, lived: Duration) -> Duration {
        let pause = match self.last {
            Some(last) if lived < LIVED => (last * 2).min(PAUSE_MAX),
            _ => PAUSE_MIN,
        };
        self.last = Some(pause);
        pause
    }
}

/// Returns the wait before the next look at an application of this age.
pub(crate) fn look_after(age: Duration) -> Duration {
    // A tenth of its age: each second of waiting costs the later looks less.
    if age < LOOK_OFTEN { LOOK_MIN } else { (age / 10).clamp(LOOK_MIN, LOOK_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_begin_anew_after_a_good_life() {
        let mut pauses = Pauses::default();
        let short = Duration::from_millis(20);
        let grown: Vec<u128> = (0..9).map(|_| pauses.after(short).as_millis()).collect();
        assert_eq!(grown, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(pauses.after(LIVED), PAUSE_MIN);
        assert_eq!(pauses.after(short), PAUSE_MIN * 2);
    }

    #[test]
    fn looks_become_rare() {
        let mut age = Duration::ZERO;
        let mut looks = 0;
        while age < Duration::from_secs(30) {
            age += look_after(age);
            looks += 1;
        }
        assert!((60..110).contains(&looks), "{looks}");
        assert_eq!(look_after(Duration::from_hours(1)), LOOK_MAX);
    }
}

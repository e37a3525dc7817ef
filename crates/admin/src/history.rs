//! The last 24 hours in samples of fixed size, so that a page that opens shows them at once.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

use eyelet_telemetry::counters::CounterValues;

/// The time between two samples: a chart of a day has 1,440 columns at most on a wide screen.
pub(crate) const SAMPLE_STEP: Duration = Duration::from_secs(30);
/// Samples of 24 hours.
const SAMPLES_MAX: usize = 24 * 60 * 60 / SAMPLE_STEP.as_secs() as usize;
/// Samples for which there is room at a time: two hours. A ring that doubled would end with room
/// for 4,096.
const ROOM_SAMPLES: usize = 240;
/// Counters that are older than this are not compared with: the time between has no samples.
const GAP_SECONDS: u64 = 2 * SAMPLE_STEP.as_secs();
/// The bytes that the samples may take.
const BYTES_MAX: usize = 1 << 20;
const _: () = assert!(SAMPLES_MAX * size_of::<Sample>() <= BYTES_MAX);

/// The series of a sample beside its time. The first [`GAUGES`] are numbers at that time, the
/// others count what came since the sample before: 0 where there is none, or one of long ago.
const SERIES: [&str; 13] = [
    "open",
    "parked",
    "user_bytes",
    "kernel_bytes",
    "accepted",
    "refused",
    "failed",
    "handshakes_full",
    "handshakes_resumed",
    "handshakes_failed",
    "shed",
    "bytes_to_client",
    "bytes_to_upstream",
];
const GAUGES: usize = 4;

type Values = [u64; SERIES.len()];

#[derive(Clone, Copy)]
struct Sample {
    unix_seconds: u64,
    values: Values,
}

/// The samples of an edge. They begin with its process.
#[derive(Default)]
pub struct History(Mutex<Samples>);

#[derive(Default)]
struct Samples {
    ring: VecDeque<Sample>,
    /// The counters at the newest sample, if there is one.
    before: Option<Values>,
}

impl History {
    /// Adds a sample. `memory_bytes` are the process' own, and the kernel's.
    pub(crate) fn add(&self, unix_seconds: u64, counted: &CounterValues, memory_bytes: [u64; 2]) {
        let [user_bytes, kernel_bytes] = memory_bytes;
        let [tls12_full, tls12_resumed, tls13_full, tls13_resumed] = counted.completed;
        let now = [
            counted.connections,
            counted.parked,
            user_bytes,
            kernel_bytes,
            counted.accepted,
            counted.refused,
            counted.failed,
            tls12_full + tls13_full,
            tls12_resumed + tls13_resumed,
            counted.handshakes_failed,
            counted.shed,
            counted.bytes_to_client,
            counted.bytes_to_upstream,
        ];
        let samples = &mut *self.0.lock();
        let newest = samples.ring.back().map_or(0, |sample| sample.unix_seconds);
        let is_near = unix_seconds.saturating_sub(newest) <= GAP_SECONDS;
        let before = samples.before.replace(now).filter(|_| is_near).unwrap_or(now);
        let mut values = now;
        for (value, before) in values.iter_mut().zip(before).skip(GAUGES) {
            *value = value.saturating_sub(before);
        }
        if samples.ring.len() >= SAMPLES_MAX {
            samples.ring.pop_front();
        }
        let count = samples.ring.len();
        if count == samples.ring.capacity() {
            samples.ring.reserve_exact(ROOM_SAMPLES.min(SAMPLES_MAX - count));
        }
        samples.ring.push_back(Sample { unix_seconds, values });
    }

    /// All samples as JSON, a list for each number.
    pub(crate) fn document(&self) -> String {
        let samples = self.0.lock();
        let list = |of: &dyn Fn(&Sample) -> u64| {
            let numbers: Vec<String> = samples.ring.iter().map(|s| of(s).to_string()).collect();
            numbers.join(",")
        };
        let times = list(&|sample| sample.unix_seconds);
        let series = SERIES.iter().enumerate().map(|(index, name)| {
            format!("\n\"{name}\":[{}]", list(&|sample| sample.values[index]))
        });
        let series: Vec<String> = series.collect();
        let step = SAMPLE_STEP.as_secs();
        let series = series.join(",");
        format!("{{\"step_seconds\":{step},\n\"unix_seconds\":[{times}],{series}}}\n")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_was_counted_long_ago_is_no_step() {
        let history = History::default();
        for (unix_seconds, accepted) in
            [(1_000, 500), (1_030, 507), (1_090, 510), (9_000, 900), (9_030, 901)]
        {
            let counted = CounterValues { connections: 3, accepted, ..Default::default() };
            history.add(unix_seconds, &counted, [0, 0]);
        }
        let shown: Value = serde_json::from_str(&history.document()).unwrap();
        assert_eq!(shown["accepted"], serde_json::json!([0, 7, 3, 0, 1]));
        assert_eq!(shown["open"], serde_json::json!([3, 3, 3, 3, 3]));
    }

    #[test]
    fn a_day_is_kept_within_its_bytes_and_shown_whole() {
        let history = History::default();
        let large = 1_u64 << 40;
        for n in 0..SAMPLES_MAX as u64 + 5 {
            let counted = CounterValues {
                connections: 7,
                accepted: 10 * n,
                bytes_to_client: large * n,
                ..Default::default()
            };
            history.add(1_800_000_000 + 30 * n, &counted, [large, large]);
        }
        let text = history.document();
        assert!(text.len() <= BYTES_MAX, "{} bytes", text.len());
        let shown: Value = serde_json::from_str(&text).unwrap();
        let list = |name: &str| shown[name].as_array().unwrap();
        assert_eq!(list("unix_seconds").len(), SAMPLES_MAX);
        assert_eq!(list("unix_seconds")[0], 1_800_000_000_u64 + 150);
        assert_eq!((&list("open")[9], &list("accepted")[9]), (&7.into(), &10.into()));
        assert_eq!(list("bytes_to_client")[3], large);
        let ring = &history.0.lock().ring;
        assert_eq!(ring.capacity(), SAMPLES_MAX);
    }
}

//! Threads that the edge serves on without if they end by an internal error: no connection needs
//! them. Those that it cannot do without are in `Running::died`.

use eyelet_downstream::connection::worker::SharedHttp;

/// A thread that has ended by itself.
pub struct LostThread {
    pub name: &'static str,
    /// The work that the edge does not do any more.
    effect: &'static str,
}

/// The lost threads of a configuration.
pub fn lost(http: &SharedHttp) -> impl Iterator<Item = LostThread> {
    let has_tracer_died = http.trace.as_ref().is_some_and(|tracer| tracer.has_died());
    let threads = [
        ("dictionaries", http.compress.keeper_has_died(), KEEPER_EFFECT),
        ("deltas", http.compress.maker_has_died(), MAKER_EFFECT),
        ("trace", has_tracer_died, TRACER_EFFECT),
    ];
    let lost = threads.into_iter().filter(|(_, has_died, _)| *has_died);
    lost.map(|(name, _, effect)| LostThread { name, effect })
}

const KEEPER_EFFECT: &str = "responses become no dictionaries until the next start";
const MAKER_EFFECT: &str = "no differences between versions are computed until the next start";
const TRACER_EFFECT: &str = "no spans are sent until the next reload";

/// Logs each lost thread once.
#[derive(Default)]
pub struct LostThreadLog {
    /// The names of those that are lost, and logged.
    logged: Vec<&'static str>,
}

impl LostThreadLog {
    /// Logs those that were lost since the last call.
    pub fn note(&mut self, lost: impl Iterator<Item = LostThread>) {
        for LostThread { name, effect } in self.new_ones(lost) {
            tracing::error!("the thread `{name}` has ended by itself: {effect}");
        }
    }

    fn new_ones(&mut self, lost: impl Iterator<Item = LostThread>) -> Vec<LostThread> {
        let before = std::mem::take(&mut self.logged);
        let all = lost.inspect(|one| self.logged.push(one.name));
        all.filter(|one| !before.contains(&one.name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_thread_is_logged_once_and_again_after_it_was_back() {
        let mut log = LostThreadLog::default();
        let mut new = |names: &[&'static str]| -> Vec<&'static str> {
            let lost = names.iter().map(|name| LostThread { name, effect: "" });
            log.new_ones(lost).into_iter().map(|one| one.name).collect()
        };
        assert_eq!(new(&[]), [""; 0]);
        assert_eq!(new(&["trace"]), ["trace"]);
        assert_eq!(new(&["deltas", "trace"]), ["deltas"]);
        assert_eq!(new(&["deltas"]), [""; 0], "a reload has started one of them");
        assert_eq!(new(&["deltas", "trace"]), ["trace"]);
    }
}

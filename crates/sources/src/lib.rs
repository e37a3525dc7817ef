//! Files that change by themselves: certificates, keys, client_ca, lists, the system's resolvers,
//! and the configuration with `watch = true`. One thread watches and reads them, so that no worker
//! waits for a disk.

#![forbid(unsafe_code)]

mod files;
mod watched;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use eyelet_config::Config;
use eyelet_sys::inotify::WaitEnder;
use eyelet_tls::server::ServerConfigs;

use files::SourceFiles;
use watched::Watched;

/// How long after the last event files are read: a certificate and its key are two files, and
/// whoever writes them takes some milliseconds from one to the other.
const QUIET: Duration = Duration::from_millis(200);
/// How long after the first event they are read even if more events come.
const QUIET_MAX: Duration = Duration::from_secs(2);
/// How often all files are looked at without an event: network file systems have none.
const POLL: Duration = Duration::from_secs(60);
/// A look may take this part of the time at most. One at 100,000 files takes a fifth of a second,
/// and another program may change files without end.
const LOOK_PART: u32 = 20;

/// What serves, and the files that it was made from.
#[derive(Clone)]
pub struct Served {
    /// The configuration.
    pub config: Arc<Config>,
    /// What was made of its certificates.
    pub tls: Arc<ServerConfigs>,
}

/// What the program has to do after files have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangedSources {
    /// A list was replaced: what was decided by the old one does not hold any more.
    pub lists: bool,
    /// The system's hosts or resolvers may have changed.
    pub dns: bool,
    /// The configuration file differs from what serves, and is to be watched.
    pub configuration: bool,
}

impl ChangedSources {
    /// What either has.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            lists: self.lists | other.lists,
            dns: self.dns | other.dns,
            configuration: self.configuration | other.configuration,
        }
    }
}

/// The thread that watches. Dropping it ends the thread after the file that it is reading.
pub struct SourceWatcher {
    orders: Arc<Mutex<Orders>>,
    ender: WaitEnder,
}

#[derive(Default)]
struct Orders {
    /// A newer configuration whose files are to be watched.
    served: Option<Served>,
    ends: bool,
}

impl SourceWatcher {
    /// Watches the files of this configuration. `note` is called on the thread.
    ///
    /// # Errors
    /// If the system has no thread or no inotify for it.
    pub fn start(
        served: Served,
        note: impl Fn(ChangedSources) + Send + 'static,
    ) -> io::Result<Self> {
        let watched = Watched::new()?;
        let ender = watched.ender();
        let orders = Arc::new(Mutex::new(Orders { served: Some(served), ends: false }));
        let taken = orders.clone();
        let run = move || run(&taken, watched, &note);
        thread::Builder::new().name("sources".into()).spawn(run)?;
        Ok(Self { orders, ender })
    }

    /// Watches the files of this configuration from now on.
    pub fn serve(&self, served: Served) {
        self.order(|orders| orders.served = Some(served));
    }

    fn order(&self, give: impl FnOnce(&mut Orders)) {
        give(&mut self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        self.ender.end();
    }
}

impl Drop for SourceWatcher {
    fn drop(&mut self) {
        self.order(|orders| orders.ends = true);
    }
}

/// When the files are looked at next.
struct Due {
    /// The first and the last event since the last look.
    events: Option<(Instant, Instant)>,
    /// Not before the first, and also without an event at the second.
    window: (Instant, Instant),
}

impl Due {
    fn at_once(now: Instant) -> Self {
        Self { events: None, window: (now, now) }
    }

    /// After a look that began and ended then.
    fn after(began: Instant, ended: Instant) -> Self {
        let not_before = ended + (ended - began) * (LOOK_PART - 1);
        Self { events: None, window: (not_before, not_before.max(ended + POLL)) }
    }

    fn note_event(&mut self, now: Instant) {
        let first = self.events.map_or(now, |(first, _)| first);
        self.events = Some((first, now));
    }

    fn at(&self) -> Instant {
        let (not_before, at_last) = self.window;
        let quiet = self.events.map(|(first, last)| (last + QUIET).min(first + QUIET_MAX));
        quiet.map_or(at_last, |quiet| quiet.max(not_before).min(at_last))
    }
}

/// The thread.
fn run(orders: &Mutex<Orders>, mut watched: Watched, note: &dyn Fn(ChangedSources)) {
    let mut files = None;
    let mut due = Due::at_once(Instant::now());
    loop {
        {
            let mut orders = orders.lock().unwrap_or_else(PoisonError::into_inner);
            if orders.ends {
                return;
            }
            if let Some(served) = orders.served.take() {
                files = Some(SourceFiles::new(served, files.take()));
                due = Due::at_once(Instant::now());
            }
        }
        let Some(files) = &mut files else { return };
        let began = Instant::now();
        if due.at() <= began {
            // First the folders, then the files: what changes meanwhile is an event.
            files.note_watch(watched.follow(files.paths()));
            let changed = files.look();
            if changed != ChangedSources::default() {
                note(changed);
            }
            due = Due::after(began, Instant::now());
        }
        let left = due.at().saturating_duration_since(Instant::now());
        match watched.wait(left) {
            Ok(true) => due.note_event(Instant::now()),
            Ok(false) => {}
            Err(error) => {
                tracing::error!("files are not watched any more: {error}");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_once_it_is_quiet_but_not_too_late_and_not_all_the_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut due = Due::after(start, at(10));
        assert_eq!(due.at(), at(10) + POLL, "without an event");
        due.note_event(at(1_000));
        assert_eq!(due.at(), at(1_000) + QUIET);
        due.note_event(at(1_100));
        assert_eq!(due.at(), at(1_100) + QUIET, "the second of two files");
        for more in 0..30 {
            due.note_event(at(1_100 + 100 * more));
        }
        assert_eq!(due.at(), at(1_000) + QUIET_MAX, "events without end");
        let mut due = Due::after(start, at(1_000));
        due.note_event(at(1_001));
        assert_eq!(due.at(), at(20_000), "a look that takes a second");
        assert!(Due::at_once(start).at() <= start);
    }
}

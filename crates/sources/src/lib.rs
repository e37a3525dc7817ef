//! Files that change by themselves: certificates, keys, client_ca, upstream_ca, the evidence's ca,
//! lists, secrets, the system's resolvers, and the configuration with `watch = true`. One thread
//! watches and reads them, so that no worker waits for a disk.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

mod command;
mod files;
mod partial;
pub mod secrets;
mod watched;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use eyelet_config::Config;
use eyelet_secrets::Secrets;
use eyelet_sys::inotify::WaitEnder;
use eyelet_tls::client::ClientConfigs;
use eyelet_tls::roots::EvidenceRoots;
use eyelet_tls::server::ServerConfigs;

use files::SourceFiles;
use watched::Watched;

/// The time after the last event until files are read: a certificate and its key are two files, and
/// whoever writes them takes some milliseconds from one to the other.
const QUIET: Duration = Duration::from_millis(200);
/// The time after the first event until they are read even if more events come.
const QUIET_MAX: Duration = Duration::from_secs(2);
/// The interval at which all files are looked at without an event: network file systems have none.
const POLL: Duration = Duration::from_secs(60);
/// The interval of looks while a folder cannot be watched. A look compares device, inode, length
/// and times.
const UNWATCHED_POLL: Duration = Duration::from_secs(5);
/// A look may take this part of the time at most. One at 100,000 files takes a fifth of a second,
/// and another program may change files without end.
const LOOK_PART: u32 = 20;

/// The configuration that serves, and the files that it was made from.
#[derive(Clone)]
pub struct Served {
    /// The configuration.
    pub config: Arc<Config>,
    /// The configurations made of its certificates.
    pub tls: Arc<ServerConfigs>,
    /// The configurations made of the roots of its upstreams.
    pub upstream_tls: Arc<ClientConfigs>,
    /// The roots for evidence, if a rule needs them.
    pub evidence_roots: Option<Arc<EvidenceRoots>>,
    /// The values of its secrets, if it has any.
    pub secrets: Option<Arc<Secrets>>,
}

/// The work for the program after files have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangedSources {
    /// A list was replaced: what was decided by the old one does not hold any more.
    pub lists: bool,
    /// The roots for evidence were replaced: what the old ones have judged does not hold any more.
    pub evidence_roots: bool,
    /// The roots of an upstream were replaced: its connections are not for new requests any more.
    pub upstream_roots: bool,
    /// The system's hosts or resolvers may have changed.
    pub dns: bool,
    /// The digest of the configuration file, if it differs from what serves and is to be watched.
    pub configuration: Option<u64>,
}

impl ChangedSources {
    /// Returns the work of either. `other` is the newer.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            lists: self.lists | other.lists,
            evidence_roots: self.evidence_roots | other.evidence_roots,
            upstream_roots: self.upstream_roots | other.upstream_roots,
            dns: self.dns | other.dns,
            configuration: other.configuration.or(self.configuration),
        }
    }
}

/// The thread that watches. Dropping it ends the thread after the file that it is reading.
pub struct SourceWatcher {
    orders: Arc<Mutex<Orders>>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Orders {
    /// A newer configuration whose files are to be watched.
    served: Option<Served>,
    ends: bool,
    /// Ends the thread's wait. `None`: unparking does.
    ender: Option<WaitEnder>,
}

impl SourceWatcher {
    /// Watches the files of this configuration. `note` is called on the thread.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub fn start(
        served: Served,
        note: impl Fn(ChangedSources) + Send + 'static,
    ) -> io::Result<Self> {
        let orders = Orders { served: Some(served), ..Orders::default() };
        let orders = Arc::new(Mutex::new(orders));
        let taken = orders.clone();
        let run = move || run(&taken, &note);
        let thread = thread::Builder::new().name("sources".into()).spawn(run)?;
        Ok(Self { orders, thread })
    }

    /// True if the thread has ended, which only a failure causes.
    pub fn has_died(&self) -> bool {
        self.thread.is_finished()
    }

    /// Watches the files of this configuration from now on.
    pub fn serve(&self, served: Served) {
        self.order(|orders| orders.served = Some(served));
    }

    fn order(&self, give: impl FnOnce(&mut Orders)) {
        let mut orders = self.orders.lock();
        give(&mut orders);
        match &orders.ender {
            Some(ender) => ender.end(),
            None => self.thread.thread().unpark(),
        }
    }
}

impl Drop for SourceWatcher {
    fn drop(&mut self) {
        self.order(|orders| orders.ends = true);
    }
}

/// The time of the next look at the files.
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

    /// Not later than this, also without an event.
    fn by(&mut self, at_last: Instant) {
        let (not_before, known) = self.window;
        self.window = (not_before, known.min(at_last).max(not_before));
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

/// The body of the thread.
fn run(orders: &Mutex<Orders>, note: &dyn Fn(ChangedSources)) {
    let (mut files, mut watched) = (None, Watched::default());
    let mut due = Due::at_once(Instant::now());
    // Since the last look, or the last wait.
    let mut is_unwatched = false;
    loop {
        {
            let mut orders = orders.lock();
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
            // A write that was not heard of yet. If this fails, the next wait says so.
            let is_changed = watched.wait(Duration::ZERO).unwrap_or(false);
            // First the folders, then the files: what changes meanwhile is an event.
            let fault = watched.follow(files.paths()).err();
            if fault.is_some() {
                files.note_watch(fault.as_ref());
            }
            is_unwatched = fault.is_some();
            let changed = files.look(due.events.is_some() || is_changed, watched.partial());
            if changed != ChangedSources::default() {
                note(changed);
            }
            let now = Instant::now();
            due = Due::after(began, now);
            if fault.is_some() {
                due.by(now + UNWATCHED_POLL);
            }
            if let Some(at) = files.next_due() {
                due.by(at);
            }
            // An order that came before this one was known has not ended the wait below.
            orders.lock().ender = watched.ender();
            continue;
        }
        if let Some(overdue) = watched.next_overdue(Instant::now()) {
            due.by(overdue);
        }
        let left = due.at().saturating_duration_since(Instant::now());
        match watched.wait(left) {
            Ok(is_changed) => {
                // A new inotify may fail at its first wait, as the one before.
                if !is_unwatched {
                    files.note_watch(None);
                }
                if is_changed {
                    due.note_event(Instant::now());
                }
            }
            Err(fault) => {
                is_unwatched = true;
                files.note_watch(Some(&fault));
                orders.lock().ender = None;
                due.by(Instant::now() + UNWATCHED_POLL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::path::Path;
    use std::time::SystemTime;

    use eyelet_config::Depth;
    use eyelet_tls::tickets::TicketKeys;

    use super::*;

    #[test]
    fn a_thread_that_panics_is_noticed() {
        let text = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
        let now = SystemTime::now();
        let loaded = eyelet_config::parse(Path::new("edge.toml"), text, Depth::Files, now).unwrap();
        let keys = Arc::new(TicketKeys::new(Duration::from_secs(3600)));
        let tls = Arc::new(ServerConfigs::new(&loaded.config, &keys, None).unwrap());
        let (config, upstream_tls) = (Arc::new(loaded.config), Arc::default());
        let served = Served { config, tls, upstream_tls, evidence_roots: None, secrets: None };
        let (sender, first) = std::sync::mpsc::channel();
        let note = move |_| {
            sender.send(()).unwrap();
            panic!("a fault of the test");
        };
        let watcher = SourceWatcher::start(served, note).unwrap();
        // The first look has nothing to compare the system's files with.
        first.recv().unwrap();
        while !watcher.has_died() {
            thread::yield_now();
        }
    }

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
        due.by(at(30_000));
        assert_eq!(due.at(), at(20_000), "an event comes first");
        let mut due = Due::after(start, at(10));
        due.by(at(5_000));
        assert_eq!(due.at(), at(5_000), "a folder is not watched");
        assert!(Due::at_once(start).at() <= start);
    }
}

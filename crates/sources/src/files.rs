//! One look at all files: what has changed is read and replaced, and each fault is logged once.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eyelet_config::{Config, Diagnostic, SecretSource};
use eyelet_policy::ListId;
use eyelet_sys::file::Stamp;
use eyelet_telemetry::counters::{self, Counters};
use eyelet_tls::roots::EvidenceRoots;

use crate::partial::{PARTIAL_MAX, PartialFiles, Reading};
use crate::secrets::SecretSources;
use crate::watched::WatchFault;
use crate::{ChangedSources, POLL, Served, UNWATCHED_POLL};

/// The time after a configuration was read until the same bytes are tried again. A look comes a
/// little later or earlier than [`POLL`] after the one before.
const RETRY: Duration = POLL.saturating_sub(UNWATCHED_POLL);
/// Most replaced files that one look logs by name.
const LOGGED_MAX: usize = 8;

/// The files of what serves.
pub struct SourceFiles {
    served: Served,
    /// The version of each list that serves. Missing: not known, or the last reading failed.
    lists: HashMap<ListId, Stamp>,
    secrets: SecretSources,
    /// The versions of the system's hosts and resolvers at the last look.
    dns: Vec<Stamp>,
    /// The digest of the configuration that was noted last, and when. It may have mistakes.
    tried: Option<(u64, Instant)>,
    notes: Notes,
}

/// The notes in the log, and the counts, of the files.
struct Notes {
    counters: Arc<Counters>,
    /// The last fault of each file that has one.
    faults: HashMap<PathBuf, String>,
    /// Files that were read although their writers have not closed them.
    overdue: HashSet<PathBuf>,
    /// The reason why not everything is watched.
    watch_fault: Option<String>,
    /// Files that were replaced in this look.
    replaced: usize,
}

impl SourceFiles {
    /// The files of `served`. The faults of an earlier configuration's files are known.
    pub fn new(served: Served, earlier: Option<Self>) -> Self {
        let notes = earlier.map_or_else(Notes::new, |earlier| earlier.notes);
        let secrets = SecretSources::new(&served.config.secrets);
        let (lists, dns) = (HashMap::new(), Vec::new());
        Self { served, lists, secrets, dns, tried: None, notes }
    }

    pub fn paths(&self) -> impl Iterator<Item = Cow<'_, Path>> {
        let Served { config, tls, upstream_tls, evidence_roots, .. } = &self.served;
        let own = config.watch.as_ref().map(|watch| Cow::Borrowed(&*watch.file));
        let dns = config.dns.system_files().iter().map(|file| Cow::Borrowed(Path::new(file)));
        let lists = config.lists.iter().map(|(_, list)| Cow::Borrowed(&*list.path));
        let evidence = evidence_roots.iter().map(|roots| roots.file());
        let roots = upstream_tls.files().chain(evidence).map(Cow::Borrowed);
        let secrets = secret_files(config).map(Cow::Borrowed);
        let lists = lists.chain(secrets);
        own.into_iter().chain(dns).chain(lists).chain(roots).chain(tls.files(&config.rules))
    }

    /// The time at which the next command of a secret is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.secrets.next_due()
    }

    /// Reads what has changed, after an event or without one. Lists and the configuration wait
    /// while they are `partial`: each says more or less by what it does not have yet.
    pub fn look(&mut self, is_event: bool, partial: &PartialFiles) -> ChangedSources {
        let Self { served, lists, secrets, dns, tried, notes } = self;
        let Served { config, tls, upstream_tls, evidence_roots, secrets: values } = served;
        let system = config.dns.system_files().iter().map(|file| Stamp::at(Path::new(file)));
        let before = std::mem::replace(dns, system.collect());
        let is_same = before.iter().zip(&*dns).filter(|(old, new)| old.is_same(**new)).count();
        let dns = is_same < dns.len();
        notes.replaced = 0;
        tls.refresh(&config.rules, |file, read| notes.note(file, read));
        let upstream_roots = upstream_tls.refresh(|file, read| notes.note(file, read));
        let evidence_roots = evidence_roots.as_ref().is_some_and(|roots| notes.look_at(roots));
        let waiting = notes.waiting(config, partial);
        let lists = look_at_lists(config, lists, &waiting, notes);
        if let Some(values) = values {
            let of = (&config.secrets[..], &**values);
            let waits = |path: &Path| waiting.contains(path);
            secrets.look(of, waits, |file, read| notes.note(file, read));
        }
        notes.log_more();
        let changed =
            ChangedSources { lists, evidence_roots, upstream_roots, dns, configuration: None };
        // A reload reads the lists too.
        let Some(watch) = config.watch.as_ref().filter(|_| waiting.is_empty()) else {
            return changed;
        };
        let digest = watch.digest_now();
        let differs = digest.as_ref().ok().copied().filter(|digest| *digest != watch.digest);
        let configuration =
            differs.filter(|digest| is_due(tried, *digest, (is_event, Instant::now())));
        // The reload logs that it serves.
        notes.note(&watch.file, digest.map(|_| false));
        ChangedSources { configuration, ..changed }
    }

    /// Logs once why not everything is watched.
    pub fn note_watch(&mut self, fault: Option<&WatchFault>) {
        let known = &mut self.notes.watch_fault;
        let fault = fault.map(ToString::to_string);
        if *known == fault {
            return;
        }
        match &fault {
            Some(fault) => tracing::warn!(
                "{fault}; files are compared with their last versions every {} s instead",
                UNWATCHED_POLL.as_secs(),
            ),
            None => tracing::info!("all folders of files are watched again"),
        }
        *known = fault;
    }
}

/// True if a configuration is to be read now. One with mistakes never serves, so without an event
/// the same bytes are tried again after a minute only: what it names may be in order by then.
fn is_due(
    tried: &mut Option<(u64, Instant)>,
    digest: u64,
    (is_event, now): (bool, Instant),
) -> bool {
    let is_known = |(known, at): (u64, Instant)| known == digest && now < at + RETRY;
    let is_due = is_event || !tried.is_some_and(is_known);
    if is_due {
        *tried = Some((digest, now));
    }
    is_due
}

/// The files that secrets are in.
fn secret_files(config: &Config) -> impl Iterator<Item = &Path> {
    config.secrets.iter().filter_map(|secret| match &secret.source {
        SecretSource::File(path) => Some(&**path),
        SecretSource::FileOnce(_) | SecretSource::Command { .. } => None,
    })
}

/// Reads the lists that have changed. Returns whether one was replaced.
fn look_at_lists(
    config: &Config,
    known: &mut HashMap<ListId, Stamp>,
    waiting: &HashSet<&Path>,
    notes: &mut Notes,
) -> bool {
    let mut is_any_new = false;
    for (id, list) in config.lists.iter().filter(|(_, list)| !waiting.contains(&*list.path)) {
        // Before it is read: a change meanwhile gives another stamp at the next look.
        let stamp = Stamp::at(&list.path);
        if known.get(&id).is_some_and(|known| known.is_same(stamp)) {
            continue;
        }
        let renewed = config.lists.renew(id, &config.policy);
        match &renewed {
            Ok(renewed) => {
                known.insert(id, stamp);
                is_any_new |= renewed.is_new;
                for warning in &renewed.warnings {
                    tracing::warn!("{warning}");
                }
            }
            Err(_) => _ = known.remove(&id),
        }
        let renewed = renewed.map(|renewed| renewed.is_new);
        notes.note(&list.path, renewed.map_err(|mistakes| text_of(&mistakes)));
    }
    is_any_new
}

/// Mistakes in the form of a log line.
fn text_of(mistakes: &[Diagnostic]) -> String {
    let texts: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    texts.join("\n")
}

impl Notes {
    fn new() -> Self {
        let (faults, overdue, watch_fault) = (HashMap::new(), HashSet::new(), None);
        Self { counters: counters::register(), faults, overdue, watch_fault, replaced: 0 }
    }

    /// The lists and the configuration that wait for their writers to close them.
    fn waiting<'a>(&mut self, config: &'a Config, partial: &PartialFiles) -> HashSet<&'a Path> {
        let now = Instant::now();
        let own = config.watch.iter().map(|watch| &*watch.file);
        let paths = config.lists.iter().map(|(_, list)| &*list.path).chain(own);
        let paths = paths.chain(secret_files(config));
        paths.filter(|path| self.waits(path, partial.reading(path, now))).collect()
    }

    /// True if a file waits. Logs once that it has waited for too long.
    fn waits(&mut self, path: &Path, reading: Reading) -> bool {
        if reading != Reading::Overdue {
            self.overdue.remove(path);
        } else if self.overdue.insert(path.to_owned()) {
            tracing::warn!(
                "{}: somebody writes it for {} s and has not closed it; it is read as it is",
                path.display(),
                PARTIAL_MAX.as_secs(),
            );
        }
        reading == Reading::Waits
    }

    /// Reads the roots for evidence if they have changed. Returns whether they were replaced.
    fn look_at(&mut self, roots: &EvidenceRoots) -> bool {
        let Some(read) = roots.refresh() else { return false };
        let is_new = matches!(read, Ok(true));
        self.note(roots.file(), read.map_err(|fault| format!("[evidence] ca: {fault}")));
        is_new
    }

    /// Notes that a file was read, and whether it was replaced.
    fn note<E: Display>(&mut self, file: &Path, read: Result<bool, E>) {
        match read {
            Ok(is_replaced) => {
                let had_fault = self.faults.remove(file).is_some();
                if is_replaced {
                    self.counters.sources_replaced.up();
                    self.replaced += 1;
                    if self.replaced <= LOGGED_MAX {
                        tracing::info!("{}: its new contents are in use", file.display());
                    }
                } else if had_fault {
                    tracing::info!("{}: it is as before again", file.display());
                }
            }
            Err(fault) => {
                let fault = fault.to_string();
                let known = self.faults.insert(file.to_owned(), fault.clone());
                if known.is_none_or(|known| known != fault) {
                    self.counters.sources_refused.up();
                    tracing::error!("{}", with_rest(&fault));
                }
            }
        }
    }

    fn log_more(&self) {
        if let Some(more @ 1..) = self.replaced.checked_sub(LOGGED_MAX) {
            tracing::info!("the new contents of {more} more files are in use");
        }
    }
}

/// A fault, and what follows from it at the end of its first line: lines of the file may be below.
fn with_rest(fault: &str) -> String {
    let (first, below) = fault.split_at(fault.find('\n').unwrap_or(fault.len()));
    format!("{first}; what was read before stays in use{below}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_a_fault_is_in_its_first_line() {
        let kept = "; what was read before stays in use";
        assert_eq!(with_rest("a.pem: no file"), format!("a.pem: no file{kept}"));
        let shown = "\n 2 | bad name\n   | ^";
        let fault = format!("a.txt:2:1: error: no name{shown}");
        assert_eq!(with_rest(&fault), format!("a.txt:2:1: error: no name{kept}{shown}"));
    }

    #[test]
    fn a_configuration_with_mistakes_is_tried_again_after_a_minute() {
        let (start, mut tried) = (Instant::now(), None);
        let mut look = |digest, is_event, at| is_due(&mut tried, digest, (is_event, start + at));
        assert!(look(1, false, Duration::ZERO));
        for looks in 1..11 {
            assert!(!look(1, false, UNWATCHED_POLL * looks));
        }
        assert!(look(2, false, UNWATCHED_POLL), "it was corrected");
        assert!(look(2, true, UNWATCHED_POLL), "something has changed");
        assert!(look(2, false, UNWATCHED_POLL + POLL));
    }
}

//! One look at all files: what has changed is read and replaced, and each fault is logged once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use eyelet_telemetry::counters::{self, Counters};

use crate::Served;

/// Most replaced files that one look logs by name.
const LOGGED_MAX: usize = 8;

/// The files of what serves.
pub struct SourceFiles {
    served: Served,
    notes: Notes,
}

/// What is logged and counted of the files.
struct Notes {
    counters: Arc<Counters>,
    /// The last fault of each file that has one.
    faults: HashMap<PathBuf, String>,
    /// SourceFiles that were replaced in this look.
    replaced: usize,
}

impl SourceFiles {
    /// The files of `served`. The faults of an earlier configuration's files are known.
    pub fn new(served: Served, earlier: Option<Self>) -> Self {
        let notes = earlier.map_or_else(Notes::new, |earlier| earlier.notes);
        Self { served, notes }
    }

    /// All paths.
    pub fn paths(&self) -> impl Iterator<Item = Cow<'_, Path>> {
        let Served { config, tls } = &self.served;
        let own = config.watch.as_ref().map(|watch| Cow::Borrowed(&*watch.file));
        own.into_iter().chain(tls.files(&config.rules))
    }

    /// Reads what has changed. Returns whether the configuration file has.
    pub fn look(&mut self) -> bool {
        let Self { served: Served { config, tls }, notes } = self;
        notes.replaced = 0;
        tls.refresh(&config.rules, |file, read| notes.note(file, read));
        notes.log_more();
        let Some(watch) = &config.watch else { return false };
        let digest = watch.digest_now();
        let is_changed = digest.as_ref().is_ok_and(|digest| *digest != watch.digest);
        // The reload logs that it serves.
        notes.note(&watch.file, digest.map(|_| false));
        is_changed
    }

    /// Logs why folders cannot be watched.
    pub fn note_watch(&mut self, watched: io::Result<()>) {
        let watched = watched.map(|()| false).map_err(|error| {
            format!("a folder cannot be watched: {error}; its files are looked at once a minute")
        });
        self.notes.note(Path::new("fs.inotify"), watched);
    }
}

impl Notes {
    fn new() -> Self {
        Self { counters: counters::register(), faults: HashMap::new(), replaced: 0 }
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
                    tracing::error!("{fault}; what was read before stays in use");
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

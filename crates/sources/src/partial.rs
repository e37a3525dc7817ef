//! Files that somebody writes and has not closed. What is in them may be valid and allow more than
//! the whole will.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time after its first write for which a file waits to be closed. A writer needs seconds. One
/// that keeps a file open, such as a program that appends to a list for days, must not keep Eyelet
/// from it.
pub const PARTIAL_MAX: Duration = Duration::from_secs(60);

/// The state of a file that may be in writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Nobody writes it.
    Whole,
    /// It waits to be closed.
    Waits,
    /// It has waited for [`PARTIAL_MAX`], and is read although it may be a part.
    Overdue,
}

/// The paths that lead to such files, with the times of the first writes.
#[derive(Default)]
pub struct PartialFiles(HashMap<PathBuf, Instant>);

impl PartialFiles {
    /// Notes that a path leads to a file that is written since then.
    pub fn add(&mut self, path: PathBuf, since: Instant) {
        self.0.insert(path, since);
    }

    /// Says if a path may be read now.
    pub fn reading(&self, path: &Path, now: Instant) -> Reading {
        match self.0.get(path) {
            None => Reading::Whole,
            Some(since) if now < *since + PARTIAL_MAX => Reading::Waits,
            Some(_) => Reading::Overdue,
        }
    }
}

//! Writes the messages of a sandbox: to standard error, and to the files that it was given.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::Path;

use eyelet_sandbox::ResolvedNames;
use serde_json::{Value, json};

use super::report::{RunEnd, RunRecord};
use crate::process::diagnostics::Diagnostics;

/// Standard error, which the command has, too.
pub(super) struct Screen<'a> {
    pub(super) diagnostics: &'a Diagnostics,
    /// True if a program reads it.
    pub(super) is_json: bool,
}

impl Screen<'_> {
    /// Says a line.
    pub(super) fn say(&self, text: &str) {
        match self.is_json {
            true => event(&json!({ "event": "note", "text": text })),
            false => self.diagnostics.line(&format!("eyelet: {text}")),
        }
    }

    /// Says why the command was not started.
    pub(super) fn fail(&self, text: &str) {
        match self.is_json {
            true => event(&json!({ "event": "failed", "text": text })),
            false => self.diagnostics.line(&format!("eyelet: {text}")),
        }
    }

    /// Says that the command was started.
    pub(super) fn begun(&self) {
        if self.is_json {
            event(&json!({ "event": "started" }));
        }
    }

    /// Says what the command did.
    pub(super) fn end(&self, (record, names): (&RunRecord, &ResolvedNames), end: &RunEnd) {
        if self.is_json {
            let mut ended = record.json(names, end);
            ended["event"] = "ended".into();
            return event(&ended);
        }
        record.summary(names, end.is_dry).iter().for_each(|line| self.say(line));
    }
}

/// Writes an event as one line.
pub(super) fn event(event: &Value) {
    // If standard error cannot be written to, the failure cannot be reported anywhere.
    let _ = io::stderr().lock().write_all(format!("{event}\n").as_bytes());
}

/// The files that are written at the end.
pub(super) struct Outputs {
    report: Option<File>,
    learnt: Option<File>,
}

impl Outputs {
    /// Opens them, so that nobody else writes to them at the same time.
    pub(super) fn open(report: Option<&Path>, learnt: Option<&Path>) -> Result<Self, String> {
        let (report, learnt) = (report.map(create).transpose()?, learnt.map(create).transpose()?);
        Ok(Self { report, learnt })
    }

    /// Writes them.
    pub(super) fn write(
        self,
        (record, names): (&RunRecord, &ResolvedNames),
        end: &RunEnd,
    ) -> io::Result<()> {
        if let Some(file) = self.report {
            replace(file, &format!("{:#}\n", record.json(names, end)))?;
        }
        if let Some(file) = self.learnt {
            replace(file, &record.list())?;
        }
        Ok(())
    }
}

/// Writes the text in place of what a file has had: until then nothing of that is lost.
fn replace(mut file: File, text: &str) -> io::Result<()> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}

fn create(path: &Path) -> Result<File, String> {
    let failed = |error: io::Error| format!("cannot write {}: {error}", path.display());
    let file = File::options().write(true).create(true).truncate(false).open(path);
    let file = file.map_err(failed)?;
    // A pipe or a terminal may have several writers.
    if file.metadata().map_err(failed)?.is_file() {
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                format!("cannot write {}: another sandbox, or another option, does", path.display())
            }
            TryLockError::Error(error) => failed(error),
        })?;
    }
    Ok(file)
}

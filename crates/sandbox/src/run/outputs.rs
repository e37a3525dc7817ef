//! Files that a run is written to at its end.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::Path;

use super::report::{RunEnd, RunRecord};
use crate::names::ResolvedNames;

/// The files that are written at the end.
pub struct RunOutputs {
    report: Option<File>,
    learnt: Option<File>,
}

impl RunOutputs {
    /// Opens them, so that nobody else writes to them at the same time.
    ///
    /// # Errors
    /// One cannot be opened, or another sandbox writes to it.
    pub fn open(report: Option<&Path>, learnt: Option<&Path>) -> Result<Self, String> {
        let (report, learnt) = (report.map(create).transpose()?, learnt.map(create).transpose()?);
        Ok(Self { report, learnt })
    }

    /// Writes them.
    ///
    /// # Errors
    /// The system's.
    pub fn write(
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

/// Replaces a file's content by the text. Before this call nothing of it is lost.
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

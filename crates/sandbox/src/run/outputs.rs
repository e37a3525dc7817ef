//! Files that a run is written to at its end.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::report::{RunEnd, RunRecord};
use crate::list::AllowList;
use crate::names::ResolvedNames;

/// Bytes of a list to which what is learnt is added.
const LIST_BYTES_MAX: u64 = 4 << 20;

/// The files that are written at the end.
pub struct RunOutputs {
    report: Option<Output>,
    learnt: Option<(Output, String)>,
}

/// A file that is written at the end.
struct Output {
    file: File,
    /// Its place, whatever the working folder is called then.
    path: PathBuf,
}

impl RunOutputs {
    /// Opens them, so that nobody else writes to them at the same time. What stands in the list
    /// stays.
    ///
    /// # Errors
    /// One cannot be opened, or another sandbox writes to it.
    pub fn open(report: Option<&Path>, learnt: Option<&Path>) -> Result<Self, String> {
        let report = report.map(Output::open).transpose()?;
        let learnt = learnt.map(Output::open).transpose()?;
        let learnt = learnt.map(|list| {
            let text = list.text().map_err(|error| list.failed(&error))?;
            Ok::<_, String>((list, text))
        });
        Ok(Self { report, learnt: learnt.transpose()? })
    }

    /// Writes them.
    ///
    /// # Errors
    /// The system's, or that the command has put another file in the place of one.
    pub fn write(
        self,
        (record, names): (&RunRecord, &ResolvedNames),
        end: &RunEnd,
    ) -> Result<(), String> {
        if let Some(report) = self.report {
            report.replace(&format!("{:#}\n", record.json(names, end)))?;
        }
        if let Some((list, mut text)) = self.learnt {
            // It was read as a list before the command began.
            let known = AllowList::read(&text).unwrap_or_default();
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&record.list(&known));
            list.replace(&text)?;
        }
        Ok(())
    }
}

impl Output {
    fn open(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("cannot write {}: {error}", path.display());
        // A list is read first. Not every file can be: standard output is one, too.
        let is_file = fs::metadata(path).is_ok_and(|found| found.is_file());
        let mut options = File::options();
        let file = options.read(is_file).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(failed)?;
        // A pipe or a terminal may have several writers.
        if file.metadata().map_err(failed)?.is_file() {
            file.try_lock().map_err(|error| match error {
                TryLockError::WouldBlock => {
                    let path = path.display();
                    format!("cannot write {path}: another sandbox, or another option, does")
                }
                TryLockError::Error(error) => failed(error),
            })?;
        }
        Ok(Self { file, path: std::path::absolute(path).map_err(failed)? })
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("{}: {error}", self.path.display())
    }

    /// The text of a list that is there.
    fn text(&self) -> io::Result<String> {
        let mut text = String::new();
        let metadata = self.file.metadata()?;
        if metadata.is_file() && metadata.len() > LIST_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if metadata.is_file() && metadata.len() > 0 {
            (&self.file).take(LIST_BYTES_MAX).read_to_string(&mut text)?;
        }
        Ok(text)
    }

    /// Replaces the content by the text. Before this call nothing of it is lost.
    fn replace(mut self, text: &str) -> Result<(), String> {
        let is_file = self.file.metadata().map_err(|error| self.failed(&error))?.is_file();
        let rewind = |file: &mut File| {
            file.set_len(0)?;
            io::Seek::rewind(file)
        };
        let emptied = if is_file { rewind(&mut self.file) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|error| self.failed(&error))?;
        match is_file && !self.is_in_place().unwrap_or(false) {
            false => Ok(()),
            true => Err(format!(
                "{} is another file now: the command has moved it or its folder, and what is there \
                 is not from here",
                self.path.display()
            )),
        }
    }

    /// True if its path leads to it. The command has ended, and all that it had started.
    fn is_in_place(&self) -> io::Result<bool> {
        let (own, there) = (self.file.metadata()?, fs::metadata(&self.path)?);
        Ok((own.dev(), own.ino()) == (there.dev(), there.ino()))
    }
}

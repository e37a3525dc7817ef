//! Files that a run is written to at its end.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
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
    /// The list as it stood before the command, too.
    learnt: Option<(Output, AllowList)>,
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
            // It was read as a list before, with its faults.
            Ok::<_, String>((list, AllowList::read(&text).unwrap_or_default()))
        });
        Ok(Self { report, learnt: learnt.transpose()? })
    }

    /// Writes them, each whatever becomes of the other.
    ///
    /// # Errors
    /// The system's, or that another file is in the place of one now: as lines.
    pub fn write(
        self,
        (record, names): (&RunRecord, &ResolvedNames),
        end: &RunEnd,
    ) -> Result<(), String> {
        let report = self.report.map(|report| {
            let text = format!("{:#}\n", record.json(names, end));
            report.replace(&text)
        });
        let learnt = self.learnt.map(|(list, before)| {
            // Somebody may have added lines meanwhile, and may not have finished one.
            let now = list.text().ok().and_then(|text| AllowList::read(&text).ok());
            list.add(&record.list(&now.unwrap_or(before)))
        });
        let failed = [report, learnt].into_iter().flatten().filter_map(Result::err);
        let failed: Vec<String> = failed.collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
    }
}

impl Output {
    fn open(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("cannot write {}: {error}", path.display());
        // A list is read first. Not every file can be: standard output is one, too.
        let is_other = fs::metadata(path).is_ok_and(|found| !found.is_file());
        let mut options = File::options();
        // What somebody else writes to it meanwhile stays.
        let file = options.read(!is_other).append(true).create(true).open(path);
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
            (&self.file).rewind()?;
            (&self.file).take(LIST_BYTES_MAX).read_to_string(&mut text)?;
        }
        Ok(text)
    }

    /// Replaces the content by the text. Before this call nothing of it is lost.
    fn replace(mut self, text: &str) -> Result<(), String> {
        let is_file = self.is_file()?;
        let emptied = if is_file { self.file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|error| self.failed(&error))?;
        self.check_place()
    }

    /// Adds whole lines to what is there.
    fn add(mut self, lines: &str) -> Result<(), String> {
        if !lines.is_empty() {
            let is_in_a_line = self.is_file()? && self.is_in_a_line().unwrap_or(true);
            let text = format!("{}{lines}", if is_in_a_line { "\n" } else { "" });
            self.file.write_all(text.as_bytes()).map_err(|error| self.failed(&error))?;
        }
        self.check_place()
    }

    fn is_file(&self) -> Result<bool, String> {
        Ok(self.file.metadata().map_err(|error| self.failed(&error))?.is_file())
    }

    /// True if the last line has no end.
    fn is_in_a_line(&mut self) -> io::Result<bool> {
        let mut last = [b'\n'];
        if self.file.metadata()?.len() > 0 {
            self.file.seek(SeekFrom::End(-1))?;
            self.file.read_exact(&mut last)?;
        }
        Ok(last != [b'\n'])
    }

    /// Checks that a file is still where it was opened.
    fn check_place(&self) -> Result<(), String> {
        match self.is_file()? && !self.is_in_place().unwrap_or(false) {
            false => Ok(()),
            true => Err(format!(
                "{} is another file now: somebody has moved it or its folder, and what is there is \
                 not from here",
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the outputs of a run that reached a.example, and during which `meanwhile` happened.
    fn write(outputs: RunOutputs, meanwhile: impl FnOnce()) -> Result<(), String> {
        meanwhile();
        let line = serde_json::json!({
            "event": "end", "outcome": "spliced", "sni": "a.example",
            "destination": "192.0.2.1:443",
        });
        let record = RunRecord::read(line.to_string().as_bytes(), |_| ()).expect("a line");
        let end = RunEnd { status: 0, duration_ms: 1, is_dry: false };
        outputs.write((&record, &ResolvedNames::default()), &end)
    }

    fn append(path: &Path, text: &str) {
        let file = File::options().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).expect("written");
    }

    #[test]
    fn what_a_person_writes_to_a_list_during_a_run_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let list = folder.path().join("learnt.txt");
        for (before, meanwhile, expected) in [
            (None, "", "a.example "),
            (None, "b.example", "b.example\na.example "),
            (Some("# first"), "\nb.example\n", "# first\nb.example\na.example "),
            (Some("b.example\n"), "not finished /", "b.example\nnot finished /\na.example "),
            (Some("b.example"), "\na.example", "b.example\na.example"),
        ] {
            let _ = fs::remove_file(&list);
            before.iter().for_each(|text| append(&list, text));
            let outputs = RunOutputs::open(None, Some(&list)).expect("outputs");
            write(outputs, || append(&list, meanwhile)).expect("written");
            let written = fs::read_to_string(&list).expect("a list");
            let begin = written.split("# connections").next().unwrap_or_default();
            assert_eq!(begin.trim_end(), expected.trim_end(), "{written}");
        }
    }

    #[test]
    fn a_list_is_written_if_the_report_cannot_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let [report, list] = ["report.json", "learnt.txt"].map(|name| folder.path().join(name));
        let outputs = RunOutputs::open(Some(&report), Some(&list)).expect("outputs");
        let aside = folder.path().join("aside");
        let said = write(outputs, || fs::rename(&report, &aside).expect("moved"));
        let said = said.expect_err("it was moved");
        assert!(said.contains("report.json is another file now: somebody has moved it"), "{said}");
        assert!(fs::read_to_string(&list).expect("a list").starts_with("a.example "));
        // What was there is replaced, and each is told of.
        append(&aside, "{}");
        let outputs = RunOutputs::open(Some(&aside), Some(&list)).expect("outputs");
        let said = write(outputs, || {
            append(&aside, "more");
            fs::rename(&list, folder.path().join("other")).expect("moved");
        });
        assert_eq!(said.expect_err("it was moved").lines().count(), 1);
        let text = fs::read_to_string(&aside).expect("a report");
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
    }
}

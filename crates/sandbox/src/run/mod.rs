//! A run of a command: the configuration of the edge that serves it, and the record of what it did.

mod checks;
mod learnt;
mod outputs;
mod p12;
mod report;
mod serving;
mod trust;

pub use outputs::RunOutputs;
pub use report::{LeftOutLines, RunEnd, RunRecord};
pub use serving::RunServing;
pub use trust::{RunTrust, TrustError};

use std::fs;

use eyelet_config::SandboxProfile;

use crate::list::AllowList;

/// Reads the lists of a profile, as one. Returns it with notes for its user.
///
/// # Errors
/// A file cannot be read, or lines of the lists are no entries: all of them.
pub fn read_lists(profile: &SandboxProfile) -> Result<(AllowList, Vec<String>), String> {
    let mut texts = vec![("the profile".to_owned(), profile.allow.join("\n"))];
    for file in &profile.allow_files {
        let (name, text) = (file.display().to_string(), fs::read_to_string(file));
        let text = text.map_err(|error| format!("cannot read {name}: {error}"))?;
        texts.push((name, text));
    }
    let (mut all, mut faults, mut notes) = (String::new(), Vec::new(), Vec::new());
    for (name, text) in texts {
        if let Err(found) = AllowList::read(&text) {
            faults.extend(found.iter().map(|fault| format!("{name}:{fault}")));
        }
        notes.extend(AllowList::starred(&text).map(|(line, parent)| {
            format!(
                "{name}:{line}: `*.{parent}` allows {parent}, too, as `.{parent}` does: write that"
            )
        }));
        all.push_str(&text);
        all.push('\n');
    }
    let list = AllowList::read(&all).map_err(|_| faults.join("\n"))?;
    Ok((list, notes))
}

//! A change of one store, what it led to, and the programs that make it.

use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The change to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustChange {
    /// Have the authority trusted.
    Install,
    /// Have it trusted no more.
    Remove,
}

/// The outcome of a change, for each store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// It was so before.
    Already,
    /// Only root can: these commands.
    NeedsRoot(Vec<String>),
    Failed(String),
}

/// Runs a program to its end with nothing on its standard input.
pub(super) fn run(command: &mut Command) -> Result<Output, String> {
    let name = Path::new(command.get_program()).display().to_string();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|why| format!("{name}: {why}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default().to_owned();
    Err(format!("{name}: {}: {last}", output.status))
}

pub(super) fn outcome(done: io::Result<()>, path: &Path) -> Outcome {
    match done {
        Ok(()) => Outcome::Done,
        Err(why) => Outcome::Failed(format!("{}: {why}", path.display())),
    }
}

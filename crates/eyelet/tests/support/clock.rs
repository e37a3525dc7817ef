//! A wrong clock for a program, by libfaketime. Must not know what the program is.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::program::{need, skip};

/// The library of the package `faketime`. Its program would stand between a test and the edge's
/// process.
pub fn library() -> Option<PathBuf> {
    if !need("faketime") {
        return None;
    }
    let arch = std::env::consts::ARCH;
    let path = format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketimeMT.so.1");
    let found = Path::new(&path).is_file().then(|| path.clone().into());
    if found.is_none() {
        skip(&format!("{path} not found"));
    }
    found
}

/// Moves the clock of a command by the offset in this file, such as `-1d`, once it is there.
pub fn follow(command: &mut Command, library: &Path, file: &Path) {
    shift(command, library, "");
    command.env_remove("FAKETIME");
    command.env("FAKETIME_TIMESTAMP_FILE", file).env("FAKETIME_NO_CACHE", "1");
}

/// Has the clock of a command be wrong by this. Deadlines go by another clock.
pub fn shift(command: &mut Command, library: &Path, by: &str) {
    command.env("LD_PRELOAD", library).env("FAKETIME", by);
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
}

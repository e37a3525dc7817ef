//! Looks the program of a command up before anything is served, and says what may have been meant
//! where it cannot be started.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The exit status of a shell for a program that is not there, and for one that cannot be run.
pub(super) const NOT_FOUND: u8 = 127;
pub(super) const NOT_EXECUTABLE: u8 = 126;
/// The programs that run scripts, by the ends of their names.
const RUNNERS: [(&str, &str); 7] = [
    ("cjs", "node"),
    ("js", "node"),
    ("mjs", "node"),
    ("php", "php"),
    ("py", "python3"),
    ("rb", "ruby"),
    ("sh", "sh"),
];

/// Checks that a shell would find the program.
///
/// # Errors
/// The line to print, and the exit status.
pub(super) fn check(command: &[OsString]) -> Result<(), (String, u8)> {
    let Some(word) = command.first() else { return Ok(()) };
    let path = Path::new(word);
    let shown = path.display();
    let is_bare = path.components().count() == 1 && !word.to_string_lossy().contains('/');
    let paths: Vec<PathBuf> = match is_bare {
        true => folders().iter().map(|folder| folder.join(path)).collect(),
        false => vec![path.to_owned()],
    };
    let states: Vec<(State, &Path)> = paths.iter().map(|path| (State::of(path), &**path)).collect();
    if states.iter().any(|(state, _)| *state == State::Executable) {
        return Ok(());
    }
    let (why, code) = match states.iter().find(|(state, _)| *state != State::Absent) {
        None if is_bare => (format!("no such program in PATH{}", meant(path)), NOT_FOUND),
        None => ("no such file".to_owned(), NOT_FOUND),
        Some((State::Folder, found)) if is_bare => {
            (format!("{} is a folder", found.display()), NOT_EXECUTABLE)
        }
        Some((State::Folder, _)) => ("it is a folder".to_owned(), NOT_EXECUTABLE),
        Some((_, found)) => {
            let by_runner = by_runner(found);
            (format!("not executable: chmod +x {}{by_runner}", found.display()), NOT_EXECUTABLE)
        }
    };
    Err((format!("cannot start the command: {shown}: {why}"), code))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Folder,
    NotExecutable,
    /// Somebody may execute it. The kernel says whether this user may.
    Executable,
}

impl State {
    fn of(path: &Path) -> Self {
        match fs::metadata(path) {
            Err(_) => Self::Absent,
            Ok(found) if found.is_dir() => Self::Folder,
            Ok(found) if found.permissions().mode() & 0o111 == 0 => Self::NotExecutable,
            Ok(_) => Self::Executable,
        }
    }
}

/// The folders of PATH, as execvp(3) has them without it. A folder without a name is this one.
fn folders() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let named = |folder: PathBuf| if folder.as_os_str().is_empty() { ".".into() } else { folder };
    env::split_paths(&path).map(named).collect()
}

/// Returns what was meant by the name of a file in this folder, with what goes before it.
fn meant(path: &Path) -> String {
    match (State::of(path), runner(path)) {
        (State::Absent | State::Folder, _) => String::new(),
        (_, Some(runner)) => format!("; is it `{runner} {}`?", path.display()),
        (_, None) => format!("; is it `./{}`?", path.display()),
    }
}

fn by_runner(path: &Path) -> String {
    let by = |runner| format!(", or is it `{runner} {}`?", path.display());
    runner(path).map_or_else(String::new, by)
}

fn runner(path: &Path) -> Option<&'static str> {
    let end = path.extension()?;
    RUNNERS.iter().find(|(known, _)| end == *known).map(|(_, runner)| *runner)
}

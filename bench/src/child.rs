//! Child processes: pinned to a core, with all descriptors allowed, and killed with this process.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, Signal};

use crate::procfs;

/// A child process and its descendants. Dropping it kills them all.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    stderr: PathBuf,
}

impl Child {
    /// Starts `command` on `core`, through this program's own `peer launch`. That command pins
    /// itself and then becomes `command`: settings between fork and exec would need `unsafe` here.
    ///
    /// # Errors
    /// The system's error. `ended` reports a command that does not exist.
    pub fn start(name: &str, core: usize, folder: &Path, command: &[OsString]) -> io::Result<Self> {
        let stderr = folder.join(format!("{name}.stderr"));
        let mut launch = Command::new(std::env::current_exe()?);
        launch.args(["peer", "launch", &core.to_string(), "--"]).args(command);
        launch.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&stderr)?);
        Ok(Self { process: launch.current_dir(folder).spawn()?, stderr })
    }

    /// The process and its current descendants.
    pub fn family(&self) -> Vec<u32> {
        procfs::family(self.process.id())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Its standard input and output. They can be taken once.
    pub fn pipes(&mut self) -> Option<(std::process::ChildStdin, std::process::ChildStdout)> {
        self.process.stdin.take().zip(self.process.stdout.take())
    }

    /// Returns the reason of its end, by its last lines; None while it runs.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.process.try_wait().ok()??;
        Some(format!("{status}: {}", self.close_with()))
    }

    /// Returns the text that it and its descendants wrote to standard error.
    pub fn errors(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// The last lines of its standard error.
    pub fn close_with(&self) -> String {
        let text = self.errors();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join(" / ")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        for pid in self.family() {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.process.wait();
    }
}

/// `peer launch CORE -- COMMAND`: pins this process, raises its descriptor limit, asks for a signal
/// when its parent ends, and becomes the command. Returns only after an error.
pub fn launch(core: usize, command: &[OsString]) -> io::Error {
    let Some((program, arguments)) = command.split_first() else {
        return io::Error::other("no command to launch");
    };
    let ready = pin(core).and_then(|()| raise_descriptors()).and_then(|()| {
        // TERM and not KILL: nginx and hitch stop their workers only after TERM.
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(Into::into)
    });
    match ready {
        Ok(()) => of(program)(Command::new(program).args(arguments).exec()),
        Err(e) => e,
    }
}

/// Says which file or program an error is about.
pub fn of(what: impl AsRef<Path>) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", what.as_ref().display()))
}

/// Binds the calling thread and its children to one core. Without such a core it does nothing.
pub fn pin(core: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    match rustix::thread::sched_setaffinity(None, &set) {
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Raises this process's soft limit of descriptors to its hard limit.
pub fn raise_descriptors() -> io::Result<()> {
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: maximum, maximum };
    Ok(rustix::process::setrlimit(Resource::Nofile, limit)?)
}

/// Returns the number of descriptors that this process may hold.
pub fn descriptors_max() -> usize {
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    maximum.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX)
}

/// Enough lines of a peer's error to show the faulty line of its configuration.
const LAST_LINES: usize = 3;

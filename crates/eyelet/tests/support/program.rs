//! Foreign programs as clients: found or skipped, run with a deadline, talked to line by line.
//! Dropping one kills its child.

use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use super::until;

/// True if a program is there. If not, says so, and appends the line to the file that
/// EYELET_SKIP_LOG names, for whoever wants none skipped.
pub fn need(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&paths).any(|folder| folder.join(program).is_file()) {
        return true;
    }
    skip(&format!("{program} not found"));
    false
}

/// A Python that has these modules. If none has, says so. The distribution's own one has its
/// packages, and another one may stand before it in PATH.
pub fn python_with(modules: &str) -> Option<&'static str> {
    let has_them = |python: &&str| {
        let mut command = Command::new(python);
        let ran = command.args(["-c", &format!("import {modules}")]).output();
        ran.is_ok_and(|ran| ran.status.success())
    };
    let python = ["python3", "/usr/bin/python3"].into_iter().find(has_them);
    if python.is_none() {
        skip(&format!("python3 with {modules} not found"));
    }
    python
}

/// The program by quic-go, built once. `None`: it cannot be, because the module is not on this
/// machine.
pub fn quic_go() -> Option<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    if !need("go") {
        return None;
    }
    let built = BUILT.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/quic_go");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quic_go");
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&program).arg(".").current_dir(source);
        let said = long_output(build.env("CGO_ENABLED", "0").env("GOPROXY", "off"));
        match said.status.success() {
            true => Ok(program),
            // `go mod download` in that folder has it.
            false if said.text.contains("module lookup disabled") => Err(said.text),
            false => panic!("{}", said.text),
        }
    });
    if let Err(why) = built {
        skip(&format!("quic-go not found: {why}"));
    }
    built.as_deref().ok()
}

/// Says that this test is skipped, and why.
pub fn skip(why: &str) {
    let test = thread::current().name().unwrap_or("?").to_owned();
    let line = format!("skipped: {test}: {why}");
    eprintln!("{line}");
    if let Some(log) = std::env::var_os("EYELET_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
        writeln!(log, "{line}").unwrap();
    }
}

/// The output of a program, both streams together, and its exit status.
#[derive(Debug)]
pub struct Said {
    pub text: String,
    pub status: ExitStatus,
}

/// Runs a program to its end with nothing on its standard input.
pub fn output(command: &mut Command) -> Said {
    let mut talk = Talk::start(command);
    talk.hang_up();
    talk.finish()
}

/// Runs a program to its end that takes its time: a measurement, or a compiler that has nothing in
/// its cache.
pub fn long_output(command: &mut Command) -> Said {
    let mut talk = Talk::start(command);
    talk.hang_up();
    talk.finish_within(LONG_MAX)
}

const LONG_MAX: Duration = Duration::from_mins(10);

/// A running program.
pub struct Talk {
    child: Child,
    stdin: Option<ChildStdin>,
    said: Arc<Mutex<String>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Talk {
    /// The port that it says it listens at, once it has: `port N`.
    pub fn port(&self) -> u16 {
        until("the program's port", || {
            let said = self.said();
            let (port, _) = said.split_once("port ")?.1.split_once([' ', '\n'])?;
            port.trim().parse().ok()
        })
    }

    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A program that a test has just written is busy while the child of another test, between
        // fork and exec, still has the descriptor that wrote it.
        let mut child = until("a program that can be started", || match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => None,
            child => Some(child.unwrap()),
        });
        let said = Arc::<Mutex<String>>::default();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let readers = vec![collect(stdout, &said), collect(stderr, &said)];
        let stdin = child.stdin.take();
        Self { child, stdin, said, readers }
    }

    /// Everything said until now.
    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Writes to its standard input.
    pub fn say(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    /// Waits until it has said this.
    pub fn hear(&mut self, text: &str) {
        let began = std::time::Instant::now();
        while !self.said().contains(text) {
            // What it said last may still be on its way here when it has ended.
            let ended = self.readers.iter().all(thread::JoinHandle::is_finished);
            let over = began.elapsed() > super::SOON || ended;
            assert!(!over || self.said().contains(text), "no {text:?} in:\n{}", self.said());
            super::pause(began);
        }
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Ends its standard input.
    pub fn hang_up(&mut self) {
        self.stdin = None;
    }

    /// Waits for its end.
    pub fn finish(self) -> Said {
        self.finish_within(super::SOON)
    }

    fn finish_within(mut self, limit: Duration) -> Said {
        let began = std::time::Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < limit, "it does not end; it said:\n{}", self.said());
            super::pause(began);
        };
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        Said { text: self.said(), status }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(
    mut from: impl Read + Send + 'static,
    to: &Arc<Mutex<String>>,
) -> thread::JoinHandle<()> {
    let to = Arc::clone(to);
    thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            to.lock().unwrap().push_str(&String::from_utf8_lossy(&piece[..length]));
        }
    })
}

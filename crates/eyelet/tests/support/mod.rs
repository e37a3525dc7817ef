//! The parts that the end-to-end tests share: the real binary as a child, upstreams, certificates,
//! raw hellos, foreign programs.

// Each test binary uses its own part of this.
#![allow(dead_code, unused_imports)]

pub mod browser;
pub mod client;
pub mod clock;
pub mod crowd;
pub mod dns;
pub mod edge;
pub mod frames;
pub mod gate;
pub mod hello;
pub mod machine;
pub mod memory;
pub mod namespaces;
pub mod pebble;
pub mod pki;
pub mod program;
pub mod streams;
pub mod systemd;
pub mod two;
pub mod upstream;
pub mod visits;
pub mod web;

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub use client::{End, Tls, alert_of, ending, reset};
pub use dns::Dns;
pub use edge::Edge;
pub use hello::{Hello, records};
pub use machine::Machine;
pub use namespaces::{Net, Place};
pub use pki::Pki;
pub use program::{Said, Talk, long_output, need, output};
pub use upstream::Upstream;
pub use visits::{Visited, Visits};

/// The time for which a test waits for an event. It is far more than a loaded machine with two
/// cores needs, and short enough that a hanging test ends.
pub const SOON: Duration = Duration::from_secs(60);
/// The time for which a test looks for what must not come.
pub const A_WHILE: Duration = Duration::from_millis(300);

const POLL: Duration = Duration::from_millis(3);
/// The longest time between two looks. A look may go through ten thousand lines, and many tests
/// look at a time.
const POLL_MAX: Duration = Duration::from_millis(20);
/// Looks in [`A_WHILE`].
const LOOKS: u128 = A_WHILE.as_millis() / POLL.as_millis();

/// Waits a little before another look, and longer the longer it was looked: what is seen late is so
/// by a twentieth of the time that it took.
pub fn pause(began: Instant) {
    std::thread::sleep((began.elapsed() / 20).clamp(POLL, POLL_MAX));
}

/// Polls until there is an answer; panics with `what` when there is none in [`SOON`].
pub fn until<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(began.elapsed() < SOON, "waited {SOON:?} in vain for: {what}");
        pause(began);
    }
}

/// Waits until a number has not changed for [`A_WHILE`]: what can move has moved, or the machine is
/// so slow that nothing can be seen to move. Gives the number. It looks so often that a machine
/// which has stood still shows what moves then.
pub fn settled<T: PartialEq>(mut number: impl FnMut() -> T) -> T {
    let began = Instant::now();
    let (mut seen, mut same) = (number(), 0);
    while same < LOOKS && began.elapsed() < SOON {
        std::thread::sleep(POLL);
        let now = number();
        same += 1;
        if now != seen {
            (seen, same) = (now, 0);
        }
    }
    seen
}

/// A temporary folder of one test, removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("eyelet-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// In one step: whoever looks at the file meanwhile sees the old one or the new one, and never
    /// none or a part. The edge looks at any time, and other programs do.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path = self.0.join(name);
        // Beside the folder, so that who watches that sees one change.
        let new = self.0.with_extension(format!("{}.new", COUNT.fetch_add(1, Ordering::Relaxed)));
        // Among what is written are keys, and the edge warns of those that others can read.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        file.as_mut().unwrap().write_all(text.as_ref()).unwrap();
        std::fs::rename(&new, &path).unwrap();
        path
    }
}

impl Folder {
    /// Writes a program. Another process does, so that no child of another test has it open for
    /// writing when it is started (ETXTBSY, execve(2)).
    pub fn write_program(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let source = self.write(&format!("{name}.text"), text);
        let path = self.0.join(name);
        copy_program(&source, &path);
        path
    }
}

/// Copies a program; the same.
pub fn copy_program(from: &Path, to: &Path) {
    let said = output(Command::new("install").args(["-m", "755"]).args([from, to]));
    assert!(said.status.success(), "{}", said.text);
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Reads as many bytes, which must be these.
pub fn expect(stream: &mut impl Read, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).unwrap();
    let begin = got[..got.len().min(200)].escape_ascii();
    assert!(got == bytes, "{} other bytes than were sent, from {begin}", bytes.len());
}

/// Bytes that do not repeat within any window that a proxy could confuse, the same each run.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        // xorshift64: no quality needed, only that each place differs from its neighbours.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

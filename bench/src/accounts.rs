//! An edge's own account of its memory at the end of a run, beside the kernel's figures.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::procfs;

/// The time that an edge may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const KIB: f64 = 1024.0;

/// The socket at which an edge is asked.
#[derive(Clone, Debug)]
pub struct Accounts(PathBuf);

impl Accounts {
    /// The socket `name` in a folder.
    pub fn new(folder: &Path, name: &str) -> Self {
        Self(folder.join(name).with_extension("sock"))
    }

    /// The part of the edge's configuration.
    pub fn configuration(&self) -> String {
        format!("\n[admin]\naddress = \"unix:{}\"\n", self.0.display())
    }

    /// Prints the kinds on stderr, and their sum over the process's anonymous memory.
    pub fn print(&self, label: &str) {
        match self.line() {
            Ok(line) => eprintln!("{label}: {line}"),
            Err(e) => eprintln!("{label}: /memory: {e}"),
        }
    }

    fn line(&self) -> io::Result<String> {
        let pid = self.ask("/status")?["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        let memory = self.ask("/memory")?;
        let missing = || io::Error::other("no such figure");
        let anonymous = procfs::memory(&[pid.ok_or_else(missing)?]).anon;
        let sum = memory["accounted_bytes"].as_f64().ok_or_else(missing)?;
        let kinds = memory["kinds"].as_object().ok_or_else(missing)?.iter();
        let kib = |bytes: &Value| bytes.as_f64().unwrap_or_default() / KIB;
        let kinds: Vec<String> =
            kinds.map(|(kind, bytes)| format!("{kind} {:.0}", kib(bytes))).collect();
        let (all, share) = (anonymous / KIB, sum / anonymous * 100.0);
        Ok(format!("{share:.1} % of {all:.0} KiB accounted: {}", kinds.join(", ")))
    }

    fn ask(&self, path: &str) -> io::Result<Value> {
        let mut stream = UnixStream::connect(&self.0)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let asked = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(asked.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok(serde_json::from_str(body)?)
    }
}

//! Counts the system calls of a process tree by `strace -c`. It must not be attached while CPU is
//! measured: it stops the server at every call.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::lab::Server;
use crate::peers::find_program;

/// A running strace.
pub struct Strace {
    process: Child,
    file: PathBuf,
}

/// Calls by name, most frequent first.
pub struct Counts(Vec<(String, u64)>);

/// Attaches to a server and its descendants, with all their threads.
///
/// # Errors
/// strace is not installed, or may not trace here.
pub fn attach(folder: &Path, server: &Server) -> io::Result<Strace> {
    let program = find_program("strace").ok_or_else(|| io::Error::other("no strace"))?;
    let file = folder.join("strace.txt");
    let mut command = Command::new(program);
    command.args(["-c", "-f", "-o"]).arg(&file);
    for pid in server.child.family() {
        command.args(["-p", &pid.to_string()]);
    }
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    std::thread::sleep(ATTACH);
    match process.try_wait()? {
        Some(status) => Err(io::Error::other(format!("strace {status}"))),
        None => Ok(Strace { process, file }),
    }
}

impl Strace {
    /// Detaches and reads the counts.
    pub fn read(mut self) -> Counts {
        if let Some(pid) = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::INT);
        }
        let _ = self.process.wait();
        parse(&fs::read_to_string(&self.file).unwrap_or_default())
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Lines such as ` 12.34  0.001  2  5678  12 read`: the errors column may be empty.
fn parse(text: &str) -> Counts {
    let mut counts: Vec<(String, u64)> = text
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let name = *words.last()?;
            let count = words.get(3)?.parse().ok()?;
            (name != "total").then(|| (name.to_owned(), count))
        })
        .collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    Counts(counts)
}

impl Counts {
    /// The sum and each call, divided by `connections`. Calls rarer than one in twenty are only in
    /// the sum.
    pub fn over(&self, connections: usize) -> String {
        let each = |count: u64| count as f64 / connections.max(1) as f64;
        let sum: u64 = self.0.iter().map(|(_, count)| count).sum();
        let frequent = self.0.iter().filter(|(_, count)| each(*count) >= 0.05);
        let list: Vec<String> =
            frequent.map(|(name, count)| format!("{name} {:.1}", each(*count))).collect();
        format!("{:.1} ({}), over {connections} connections", each(sum), list.join(", "))
    }
}

/// strace attaches to every thread of the server before it counts.
const ATTACH: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_strace_is_read() {
        let text = "% time     seconds  usecs/call     calls    errors syscall\n\
                    ------ ----------- ----------- --------- --------- ----------------\n \
                    60.00    0.002000           1      2000      1000 recvfrom\n \
                    40.00    0.001000           1      1000           close\n\
                    ------ ----------- ----------- --------- --------- ----------------\n\
                    100.00    0.003000           1      3000      1000 total\n";
        assert_eq!(parse(text).over(1000), "3.0 (recvfrom 2.0, close 1.0), over 1000 connections");
    }
}

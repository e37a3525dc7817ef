//! The real `eyelet serve` as a child process: its addresses, access lines, log, descriptors.
//! Dropping it kills the child.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::Value;

use super::{Folder, SOON, until};

/// A listener on a port of the kernel's choice.
pub const LISTENER: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\n";

/// The deadlines that a client of a test needs for its hello or its handshake on a busy machine,
/// where the defaults are five and ten seconds.
const LONG_DEADLINES: [&str; 2] = ["hello_timeout = \"1m\"\n", "handshake_timeout = \"1m\"\n"];

pub struct Edge {
    child: Child,
    addresses: Vec<SocketAddr>,
    lines: Arc<Mutex<Vec<Value>>>,
    log: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Edge {
    /// Starts with `rules` behind one listener; waits until it listens.
    pub fn start(folder: &Folder, rules: &str) -> Self {
        Self::start_whole(folder, &format!("{LISTENER}{rules}"), |_| ())
    }

    /// Starts with a whole configuration; `change` may wrap or alter the command. A deadline that
    /// the configuration does not set is a long one.
    pub fn start_whole(folder: &Folder, config: &str, change: impl FnOnce(&mut Command)) -> Self {
        let file = write(folder, &with_long_deadlines(config));
        let mut command = eyelet(folder);
        command.arg("serve").arg(file);
        change(&mut command);
        let listeners = config.matches("[[listener]]").count();
        Self::spawn(command, listeners)
    }

    /// Starts any command line that ends in an edge, and waits for so many listeners.
    pub fn spawn(command: Command, listeners: usize) -> Self {
        Self::spawn_to(command, listeners, Stdio::piped())
    }

    /// Starts it with another standard output, whose lines are the caller's.
    pub fn spawn_to(mut command: Command, listeners: usize, stdout: Stdio) -> Self {
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take().unwrap());
        let (lines, log) = (Arc::default(), Arc::default());
        let mut readers = Vec::new();
        if let Some(stdout) = stdout {
            let lines = Arc::clone(&lines);
            readers.push(thread::spawn(move || collect_lines(stdout, &lines)));
        }
        let to = Arc::clone(&log);
        readers.push(thread::spawn(move || collect_log(stderr, &to)));
        let mut edge = Self { child, addresses: Vec::new(), lines, log, readers };
        edge.addresses = until("the edge to listen", || {
            if let Some(status) = edge.child.try_wait().unwrap() {
                panic!("the edge ended with {status}:\n{}", edge.log());
            }
            let addresses = listening(&edge.log());
            (addresses.len() >= listeners).then_some(addresses)
        });
        edge
    }

    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub fn port(&self) -> u16 {
        self.address().port()
    }

    /// A client's plain socket to the first listener, with deadlines.
    pub fn connect(&self) -> TcpStream {
        connect(self.address())
    }

    /// All access lines until now.
    pub fn lines(&self) -> Vec<Value> {
        self.lines.lock().unwrap().clone()
    }

    /// Returns the number of access lines until now that are wanted ones.
    pub fn count(&self, wanted: impl Fn(&Value) -> bool) -> usize {
        self.lines.lock().unwrap().iter().filter(|line| wanted(line)).count()
    }

    /// Waits for an access line.
    pub fn line(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let look = || self.lines.lock().unwrap().iter().find(|line| wanted(line)).cloned();
        let began = std::time::Instant::now();
        loop {
            if let Some(line) = look() {
                return line;
            }
            if began.elapsed() > SOON {
                panic!(
                    "no access line for {what}; lines: {:#?}\nlog: {}",
                    self.lines(),
                    self.log()
                );
            }
            super::pause(began);
        }
    }

    /// Waits for the access line of a client's own port.
    pub fn line_of(&self, client: SocketAddr) -> Value {
        let client = client.to_string();
        self.line(&client, |line| line["client"] == client.as_str())
    }

    /// Waits for the only access line there is (a test with one connection).
    pub fn only_line(&self) -> Value {
        let line = self.line("the only connection", |_| true);
        assert_eq!(self.lines().len(), 1, "one connection, one line: {:#?}", self.lines());
        line
    }

    /// Everything on stderr until now.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until stderr holds `text`.
    pub fn wait_log(&self, text: &str) {
        until(&format!("{text:?} in the log"), || self.log().contains(text).then_some(()));
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Open descriptors of the edge.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Sets how many descriptors the edge may open from now on. Returns the limit before.
    pub fn limit_descriptors(&self, most: Option<u64>) -> Option<u64> {
        let limit = Rlimit { current: most, maximum: getrlimit(Resource::Nofile).maximum };
        prlimit(Some(self.pid()), Resource::Nofile, limit).unwrap().current
    }

    /// The descriptors before a test: once their number stands still, for workers open theirs
    /// when they begin, and what was there before may be closing.
    pub fn descriptors_at_rest(&self) -> usize {
        super::settled(|| self.descriptors())
    }

    /// Open sockets of the edge: its descriptors without the pipes that it keeps for later.
    pub fn sockets(&self) -> usize {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let links = folder.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    }

    /// Waits until the edge has at most so many sockets.
    pub fn wait_sockets(&self, at_most: usize) {
        let began = std::time::Instant::now();
        while self.sockets() > at_most {
            let open = self.sockets();
            assert!(began.elapsed() < SOON, "{open} sockets are open, not {at_most}");
            super::pause(began);
        }
    }

    /// Waits until the edge has at most so many descriptors.
    pub fn wait_descriptors(&self, at_most: usize) {
        let began = std::time::Instant::now();
        while self.descriptors() > at_most {
            let open = self.descriptors();
            assert!(began.elapsed() < SOON, "{open} descriptors are open, not {at_most}");
            super::pause(began);
        }
    }

    /// Resident memory in bytes, but for files': pages of code come and go.
    pub fn rss_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Waits until the edge holds at most so many bytes more than before. What is given back shows
    /// at a tick, and a line that waits for its reader is memory too: one look says nothing.
    pub fn wait_memory(&self, before: u64, grown_max: u64) {
        let began = std::time::Instant::now();
        loop {
            let grown = self.rss_bytes().saturating_sub(before);
            if grown <= grown_max {
                return eprintln!("{grown} bytes more than before");
            }
            assert!(began.elapsed() < SOON, "{grown} bytes more than before, not {grown_max}");
            super::pause(began);
        }
    }

    /// Processor time used so far, in clock ticks of a hundredth of a second.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // proc(5): utime and stime are fields 14 and 15; the name, field 2, may hold spaces.
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let fields: Vec<&str> = fields.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for the end. Afterwards `lines` and `log` have everything that was written.
    pub fn wait_exit(&mut self) -> ExitStatus {
        let status = until("the edge to end", || self.child.try_wait().unwrap());
        self.wait_readers();
        status
    }

    /// Ends this process at once.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for the end of this process, while another one goes on with its outputs.
    pub fn wait_exit_alone(&mut self) -> ExitStatus {
        until("the edge to end", || self.child.try_wait().unwrap())
    }

    /// Waits until the pipes of a process that ended are read to their end.
    fn wait_readers(&self) {
        let began = std::time::Instant::now();
        while !self.readers.iter().all(JoinHandle::is_finished) && began.elapsed() < SOON {
            super::pause(began);
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        if thread::panicking() {
            // The line that explains the failure may be on its way.
            thread::sleep(super::A_WHILE);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.wait_readers();
        let log = self.log();
        if thread::panicking() {
            let lines = self.lines();
            let last: Vec<String> = lines.iter().rev().take(5).map(Value::to_string).collect();
            eprintln!("{} access lines, the last:\n{}\n{log}", lines.len(), last.join("\n"));
        } else {
            assert!(!log.contains("panicked at"), "the edge panicked:\n{log}");
        }
    }
}

/// The program, with a runtime folder of its own for control sockets.
pub fn eyelet(folder: &Folder) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_eyelet"));
    command.env("XDG_RUNTIME_DIR", folder.path());
    command
}

/// A plain socket with deadlines, so that no test hangs in a read.
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

/// A rule that splices host.test to an upstream, with `more` keys in it or tables behind it.
pub fn splice(upstream: SocketAddr, more: &str) -> String {
    format!(
        "[[rule]]\nsni = \"host.test\"\naction = \"splice\"\nupstream = \"{upstream}\"\n{more}\n"
    )
}

/// Adds those of [`LONG_DEADLINES`] that a configuration does not set itself.
pub fn with_long_deadlines(config: &str) -> String {
    const LIMITS: &str = "[limits]\n";
    let is_set = |deadline: &str| {
        let (key, _) = deadline.split_once(' ').unwrap();
        config.lines().any(|line| line.split_once(' ').is_some_and(|(set, _)| set == key))
    };
    let long: String = LONG_DEADLINES.into_iter().filter(|deadline| !is_set(deadline)).collect();
    match config.split_once(LIMITS) {
        Some((before, after)) => format!("{before}{LIMITS}{long}{after}"),
        None => format!("{config}\n{LIMITS}{long}"),
    }
}

/// Writes a configuration under a name of its own.
pub fn write(folder: &Folder, config: &str) -> std::path::PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    folder.write(&format!("eyelet-{number}.toml"), config)
}

fn collect_lines(stdout: impl Read, lines: &Mutex<Vec<Value>>) {
    for line in BufReader::new(stdout).lines() {
        let Ok(line) = line else { return };
        // Nothing but JSON belongs there: whatever else comes shows as a line without fields.
        let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
        // A connection that goes on has a second line at its end.
        if line["event"] != "decided" {
            lines.lock().unwrap().push(line);
        }
    }
}

fn collect_log(mut stderr: impl Read, log: &Mutex<String>) {
    let mut piece = [0; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut piece) {
        log.lock().unwrap().push_str(&String::from_utf8_lossy(&piece[..length]));
    }
}

fn listening(log: &str) -> Vec<SocketAddr> {
    let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
    let after = complete.lines().filter_map(|line| line.split_once("listening on "));
    after.filter_map(|(_, rest)| rest.split_whitespace().next()?.parse().ok()).collect()
}

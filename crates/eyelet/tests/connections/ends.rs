//! Events that end the process, or must not: a worker that dies, a signal in the middle of a
//! reload, leftovers of an earlier configuration. Must not know the engine.

use std::fmt::Write as _;
use std::fs;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::edge::{self, LISTENER};
use crate::support::{Edge, Folder, Hello, SOON, ending, need, until};

const REFUSE: &str = "[[rule]]\nsni = \"a.test\"\naction = \"refuse\"\n";

/// An edge, and the file that it reads again at SIGHUP.
fn edge_of(folder: &Folder, text: &str) -> (Edge, std::path::PathBuf) {
    let file = folder.write("edge.toml", text);
    let mut command = edge::eyelet(folder);
    command.arg("serve").arg(&file);
    (Edge::spawn(command, 1), file)
}

/// The epoll of the first worker that listens: the descriptor that has a listening socket in it.
fn epoll_of_a_worker(edge: &Edge) -> String {
    let process = format!("/proc/{}", edge.pid().as_raw_nonzero());
    let sockets = fs::read_to_string(format!("{process}/net/tcp")).unwrap();
    let port = format!(":{:04X}", edge.port());
    // proc(5): local address, remote address, state (0A: listening); the inode is field 10.
    let inodes: Vec<String> = sockets
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields[1].ends_with(&port) && fields[3] == "0A")
        .map(|fields| format!("socket:[{}]", fields[9]))
        .collect();
    let entries = fs::read_dir(format!("{process}/fd")).unwrap();
    let links: Vec<(String, String)> = entries
        .filter_map(|entry| {
            let path = entry.unwrap().path();
            let link = fs::read_link(&path).ok()?.to_str()?.to_owned();
            Some((path.file_name()?.to_str()?.to_owned(), link))
        })
        .collect();
    let is_listening = |fd: &str| {
        links.iter().any(|(known, link)| known == fd && inodes.iter().any(|inode| inode == link))
    };
    let epolls = links.iter().filter(|(_, link)| link == "anon_inode:[eventpoll]");
    let mut of_workers = epolls.filter(|(fd, _)| {
        let info = fs::read_to_string(format!("{process}/fdinfo/{fd}")).unwrap();
        let mut registered = info.lines().filter_map(|line| line.strip_prefix("tfd:"));
        registered.any(|rest| is_listening(rest.split_whitespace().next().unwrap_or("")))
    });
    of_workers.next().expect("a worker listens").0.clone()
}

/// A debugger puts another file in the place of a worker's epoll: the worker cannot go on, and the
/// process must not stay with fewer of them.
#[test]
fn a_worker_that_dies_ends_the_process() {
    if !need("gdb") {
        return;
    }
    let folder = Folder::new();
    let (mut edge, _) = edge_of(&folder, &format!("workers = 2\n{LISTENER}{REFUSE}"));
    let epoll = epoll_of_a_worker(&edge);
    // Not closed: the worker closes its descriptors when it ends.
    let call = format!("call (int)__dup2(0, {epoll})");
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-p", &edge.pid().to_string(), "-ex", &call]);
    // What it says of its own troubles may come amid a line of what it has done.
    let said = gdb.stdin(Stdio::null()).output().unwrap();
    let done = String::from_utf8_lossy(&said.stdout);
    assert!(done.contains(&format!("$1 = {epoll}")), "{said:?}");
    // Both workers wake, so the one that has no epoll any more notices.
    until("the end of a worker", || {
        let _ = std::net::TcpStream::connect(edge.address());
        edge.log().contains("has ended: ").then_some(())
    });
    let status = edge.wait_exit();
    assert_eq!(status.code(), Some(1), "{}", edge.log());
    let log = edge.log();
    assert!(log.contains("a worker has ended by itself: draining"), "{log}");
}

/// Reading a large configuration takes seconds. SIGTERM is heard meanwhile.
#[test]
fn sigterm_is_heard_in_the_middle_of_a_reload() {
    const NAMES: usize = 500_000;
    let folder = Folder::new();
    let mut large = format!("{LISTENER}[[rule]]\naction = \"refuse\"\nsni = [");
    (0..NAMES).for_each(|n| _ = write!(large, "\"{n}.names.test\", "));
    large += "]\n";
    // A test that stands still may come too late for one of them, and not for all.
    until("an end that waits for no reload", || {
        let (mut edge, file) = edge_of(&folder, &format!("{LISTENER}{REFUSE}"));
        fs::write(&file, &large).unwrap();
        edge.signal(Signal::HUP);
        until("the thread that reads", || (is_reading(&edge) || has_reloaded(&edge)).then_some(()));
        edge.signal(Signal::TERM);
        assert!(edge.wait_exit().success(), "{}", edge.log());
        (!has_reloaded(&edge)).then_some(())
    });
}

/// True if the edge has the thread that reads a configuration.
fn is_reading(edge: &Edge) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", edge.pid().as_raw_nonzero())).unwrap();
    let mut names =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.any(|name| name == "reload\n")
}

fn has_reloaded(edge: &Edge) -> bool {
    edge.log().contains("serves")
}

/// A listener that stays takes over the time after which the kernel hands on a silent client.
#[test]
fn a_deferred_listener_follows_hello_timeout() {
    let folder = Folder::new();
    let text = |timeout: &str| {
        format!("{LISTENER}defer_accept = true\n{REFUSE}[limits]\nhello_timeout = \"{timeout}\"\n")
    };
    let (edge, file) = edge_of(&folder, &text("10m"));
    fs::write(&file, text("1s")).unwrap();
    edge.signal(Signal::HUP);
    edge.wait_log("configuration 2 serves");
    let silent = edge.connect();
    let line = edge.line_of(silent.local_addr().unwrap());
    assert_eq!(line["reason"], "hello_timeout before the hello", "{line}");
}

/// A full disk costs lines and says so. When there is room again, the lines go on, and none of them
/// is glued to the piece of a line that the disk still took.
#[test]
fn a_full_disk_cuts_no_line_but_one() {
    if !rustix::process::geteuid().is_root() {
        return crate::support::program::skip("only root may mount a file system");
    }
    let folder = Folder::new();
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let refuse = "[[rule]]\nsni = \"a.test\"\naction = \"refuse\"\n";
    let log = "[log]\naccess = \"disk/access.log\"\n";
    let file = folder.write("edge.toml", format!("workers = 1\n{LISTENER}{refuse}{log}"));
    let script = "mount -t tmpfs -o size=64k tmpfs \"$0\" && \
                  head -c 40960 /dev/zero >\"$0/filler\" && exec \"$1\" serve \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(&disk);
    command.arg(env!("CARGO_BIN_EXE_eyelet")).arg(&file);
    let edge = Edge::spawn(command, 1);
    let seen = format!("/proc/{}/root{}", edge.pid().as_raw_nonzero(), disk.display());
    let hello = Hello::named("nowhere.test").bytes();
    let connect = || {
        let mut client = edge.connect();
        std::io::Write::write_all(&mut client, &hello).unwrap();
        ending(&mut client, SOON);
    };
    until("the disk to be full", || {
        connect();
        edge.log().contains("cannot write the access log").then_some(())
    });
    fs::remove_file(format!("{seen}/filler")).unwrap();
    until("room", || {
        connect();
        edge.log().contains("the access log is written again").then_some(())
    });
    let text = fs::read_to_string(format!("{seen}/access.log")).unwrap();
    let whole = text.rsplit_once('\n').unwrap().0.lines();
    let broken = whole.filter(|line| serde_json::from_str::<serde_json::Value>(line).is_err());
    assert!(broken.count() <= 1, "{text}");
}

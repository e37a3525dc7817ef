//! The edge under a service manager such as systemd: what the manager hears, and the sockets that
//! it passes. The test plays the manager.

use std::fmt::Write as _;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::support::client::Offer;
use crate::support::edge::{self, LISTENER};
use crate::support::web::{get, head};
use crate::support::{A_WHILE, Edge, Hello, Pki, SOON, Talk, Tls, Upstream, output, until};
use crate::upgrade::pid_in;

/// The next message to the manager.
pub fn heard(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 1024];
    let length = manager.recv(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
fn the_manager_hears_what_happens() {
    let folder = crate::support::Folder::new();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    let file = edge::write(&folder, "[[listener]]\naddress = \"127.0.0.1:0\"\n");
    let command = |word: &str| {
        let mut command = edge::eyelet(&folder);
        command.arg(word).arg(&file).env("NOTIFY_SOCKET", &path);
        command
    };
    let mut first = Edge::spawn(command("serve"), 1);
    assert_eq!(heard(&manager), "READY=1\n");
    let said = output(&mut command("reload"));
    assert!(said.status.success(), "{}", said.text);
    let reloading = heard(&manager);
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(heard(&manager), "READY=1\n");
    let said = output(&mut command("upgrade"));
    assert!(said.status.success(), "{}", said.text);
    let second: Pid = pid_in(&said);
    let mut messages = [heard(&manager), heard(&manager)];
    messages.sort_unstable();
    let main = format!("MAINPID={}\n", second.as_raw_nonzero());
    assert_eq!(messages, [main, String::from("READY=1\n")]);
    assert!(first.wait_exit_alone().success());
    kill_process(second, Signal::TERM).unwrap();
    assert_eq!(heard(&manager), "STOPPING=1\n");
}

/// An edge with an application behind it, and its manager.
struct Service {
    pki: Pki,
    file: PathBuf,
    app: Upstream,
    manager: UnixDatagram,
}

impl Service {
    fn new(app: Upstream) -> Self {
        let pki = Pki::new();
        let manager = UnixDatagram::bind(pki.folder.path().join("notify")).unwrap();
        manager.set_read_timeout(Some(SOON)).unwrap();
        let rule = pki.terminate(&format!("http://{}", app.address), "");
        let file =
            pki.folder.write("edge.toml", format!("workers = 1\n{LISTENER}name = \"web\"\n{rule}"));
        Self { pki, file, app, manager }
    }

    fn command(&self, word: &str) -> Command {
        let mut command = edge::eyelet(&self.pki.folder);
        command.env("NOTIFY_SOCKET", self.pki.folder.path().join("notify"));
        command.arg(word).arg(&self.file);
        command
    }

    /// Has an edge replace one that is busy. Returns the new process and both ends of an exchange.
    fn replace(&mut self, first: &Edge) -> (Pid, Tls, TcpStream) {
        assert_eq!(heard(&self.manager), "READY=1\n");
        let mut client = Offer::new(&self.pki).connect(first.address(), "app.test");
        // In the middle of a chunk's first line a request cannot move.
        let fields = "Host: app.test\r\nTransfer-Encoding: chunked";
        client.write_all(format!("POST /slow HTTP/1.1\r\n{fields}\r\n\r\n5").as_bytes()).unwrap();
        client.flush().unwrap();
        let mut slow = self.app.take();
        head(&mut slow);
        let said = output(&mut self.command("upgrade"));
        assert!(said.status.success(), "{}", said.text);
        let second = pid_in(&said);
        let mut messages = [heard(&self.manager), heard(&self.manager)];
        messages.sort_unstable();
        assert_eq!(messages, [main_process(second), String::from("READY=1\n")]);
        (second, client, slow)
    }
}

fn main_process(pid: Pid) -> String {
    format!("MAINPID={}\n", pid.as_raw_nonzero())
}

/// A message of the process that was replaced would say that the service stops.
#[test]
fn a_process_that_leaves_stops_alone() {
    let mut service = Service::new(Upstream::by_hand());
    let mut first = Edge::spawn(service.command("serve"), 1);
    let (second, mut client, mut slow) = service.replace(&first);
    first.signal(Signal::TERM);
    slow.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nover").unwrap();
    assert!(head(&mut client).starts_with("HTTP/1.1 200"));
    assert!(first.wait_exit_alone().success());
    kill_process(second, Signal::TERM).unwrap();
    assert_eq!(heard(&service.manager), "STOPPING=1\n");
    until("the end", || test_kill_process(second).is_err().then_some(()));
    service.manager.set_nonblocking(true).unwrap();
    assert!(service.manager.recv(&mut [0; 99]).is_err(), "it stops once");
}

/// The new process dies before everything has moved. Afterwards it stays the main one.
#[test]
fn a_process_that_serves_again_is_the_main_one_again() {
    until("a death in the middle of an upgrade", || {
        let service = Service::new(Upstream::by_hand());
        let first = Edge::spawn(service.command("serve"), 1);
        let upgrade = Talk::start(&mut service.command("upgrade"));
        let second = until("the new main process", || {
            let said = heard(&service.manager);
            Pid::from_raw(said.strip_prefix("MAINPID=")?.trim_end().parse().ok()?)
        });
        kill_process(second, Signal::KILL).unwrap();
        if upgrade.finish().status.success() {
            // All had moved by then.
            return None;
        }
        until("the earlier main process", || {
            (heard(&service.manager) == main_process(first.pid())).then_some(())
        });
        let mut client = Offer::new(&service.pki).connect(first.address(), "app.test");
        client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        client.flush().unwrap();
        assert!(head(&mut service.app.take()).starts_with("GET / "));
        Some(())
    });
}

/// The next message to the manager, and its descriptors.
pub fn taken(manager: &UnixDatagram) -> (String, Vec<OwnedFd>) {
    let mut bytes = [0; 1024];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let length = recvmsg(manager, &mut parts, &mut control, flags).unwrap().bytes;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    (String::from_utf8_lossy(&bytes[..length]).into_owned(), descriptors)
}

const PROBE: &str = "FDSTORE=1\nFDNAME=eyelet-probe\nFDPOLL=0\n";

/// Does what a manager does that keeps descriptors when it is asked whether it does.
pub fn keep_probe(manager: &UnixDatagram) {
    let (state, probe) = taken(manager);
    assert_eq!((&*state, probe.len()), (PROBE, 1));
    assert_eq!(taken(manager).0, "BARRIER=1");
    assert_eq!(taken(manager).0, "FDSTOREREMOVE=1\nFDNAME=eyelet-probe\n");
}

/// The unit says that descriptors are kept, and the manager closes them.
#[test]
fn a_manager_that_closes_what_it_gets_costs_no_connection_its_end() {
    let service = Service::new(Upstream::http());
    let mut command = service.command("serve");
    command.env("FDSTORE", "8");
    let mut edge = Edge::spawn(command, 1);
    assert_eq!(heard(&service.manager), "READY=1\n");
    let mut client = Offer::new(&service.pki).connect(edge.address(), "app.test");
    assert_eq!(get(&mut client, "/").status, 200);
    edge.signal(Signal::TERM);
    assert_eq!(taken(&service.manager).0, PROBE);
    assert_eq!(taken(&service.manager).0, "BARRIER=1");
    assert_eq!(heard(&service.manager), "STOPPING=1\n");
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "close_notify");
    assert!(edge.wait_exit().success());
    edge.wait_log("the service manager keeps no descriptors");
    assert!(!edge.log().contains("the service manager keeps 1"), "{}", edge.log());
}

/// A command with these descriptors, as a manager passes them: from 3 on, and with names.
pub fn passing(mut command: Command, descriptors: &[OwnedFd], names: &str) -> Command {
    let mut script = format!("LISTEN_PID=$$ LISTEN_FDS={} exec \"$0\" \"$@\"", descriptors.len());
    for (number, descriptor) in (3..).zip(descriptors) {
        let copy = descriptor.as_raw_fd();
        write!(script, " {number}<&{copy} {copy}<&-").unwrap();
    }
    let mut bash = Command::new("bash");
    bash.arg("-c").arg(script).arg(command.get_program()).args(command.get_args());
    bash.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command = bash;
    command.env("LISTEN_FDNAMES", names);
    command
}

/// Copies that a child inherits, with numbers that are not those it gets.
pub fn inherited(descriptors: &[OwnedFd]) -> Vec<OwnedFd> {
    let copy = |descriptor: &OwnedFd| {
        let copy = rustix::io::fcntl_dupfd_cloexec(descriptor, 200).unwrap();
        fcntl_setfd(&copy, FdFlags::empty()).unwrap();
        copy
    };
    descriptors.iter().map(copy).collect()
}

/// An edge that has served a client, and ends for the next process.
fn leave_with_a_client(service: &Service) -> (Edge, Tls) {
    let mut command = service.command("serve");
    command.env("FDSTORE", "8");
    let edge = Edge::spawn(command, 1);
    assert_eq!(heard(&service.manager), "READY=1\n");
    let mut client = Offer::new(&service.pki).connect(edge.address(), "app.test");
    assert_eq!(get(&mut client, "/").status, 200);
    edge.signal(Signal::TERM);
    keep_probe(&service.manager);
    (edge, client)
}

/// Two processes that used the keys of one connection would break its encryption.
#[test]
fn a_process_uses_kept_connections_only_when_the_manager_has_forgotten_them() {
    const NAME: &str = "eyelet-connections";
    let service = Service::new(Upstream::http());
    let (mut first, mut client) = leave_with_a_client(&service);
    let (state, kept) = taken(&service.manager);
    assert_eq!(state, format!("FDSTORE=1\nFDNAME={NAME}\nFDPOLL=0\n"));
    assert_eq!(kept.len(), 3, "the state, the listening sockets and the connections");
    let (state, barrier) = taken(&service.manager);
    assert_eq!(state, "BARRIER=1");
    assert!(first.is_running(), "it waits until the manager has taken all");
    drop(barrier);
    assert_eq!(heard(&service.manager), "STOPPING=1\n");
    assert!(first.wait_exit().success(), "{}", first.log());
    let copies = inherited(&kept);
    let next = || {
        let names = [NAME; 3].join(":");
        let edge = Edge::spawn(passing(service.command("serve"), &copies, &names), 1);
        let (state, none) = taken(&service.manager);
        assert_eq!((&*state, none.len()), (&*format!("FDSTOREREMOVE=1\nFDNAME={NAME}\n"), 0));
        let (state, barrier) = taken(&service.manager);
        assert_eq!(state, "BARRIER=1");
        (edge, barrier)
    };
    // It dies before the manager has answered, so the manager passes all of it once more.
    let (mut second, _barrier) = next();
    second.kill();
    let (third, barrier) = next();
    client.write_all(b"GET /kept HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    client.flush().unwrap();
    client.sock.set_read_timeout(Some(A_WHILE)).unwrap();
    assert!(client.read(&mut [0]).is_err(), "the manager may have it still");
    client.sock.set_read_timeout(Some(SOON)).unwrap();
    drop(barrier);
    assert!(head(&mut client).starts_with("HTTP/1.1 200"), "{}", third.log());
    assert_eq!(heard(&service.manager), "READY=1\n");
    third.wait_log("1 connections are back");
}

/// Both processes of an upgrade keep what they have, if a restart comes in between.
#[test]
fn what_two_processes_kept_is_served() {
    let service = Service::new(Upstream::http());
    let keep = || {
        let (mut edge, client) = leave_with_a_client(&service);
        let (_, kept) = taken(&service.manager);
        drop(taken(&service.manager));
        assert_eq!(heard(&service.manager), "STOPPING=1\n");
        assert!(edge.wait_exit().success());
        (client, kept)
    };
    let [(first, mut all), (second, more)] = [keep(), keep()];
    all.extend(more);
    let copies = inherited(&all);
    let names = ["eyelet-connections"; 6].join(":");
    let edge = Edge::spawn(passing(service.command("serve"), &copies, &names), 1);
    drop([taken(&service.manager), taken(&service.manager)]);
    assert_eq!(heard(&service.manager), "READY=1\n");
    for mut client in [first, second] {
        assert_eq!(get(&mut client, "/").status, 200, "{}", edge.log());
    }
    edge.wait_log("2 connections are back");
}

/// Without `FileDescriptorStoreMax=` the process drains, and tells the manager nothing else.
#[test]
fn a_manager_that_keeps_nothing_gets_nothing() {
    let service = Service::new(Upstream::http());
    for kept_max in [None, Some("0"), Some("many")] {
        let mut command = service.command("serve");
        command.envs(kept_max.map(|max| ("FDSTORE", max)));
        let mut edge = Edge::spawn(command, 1);
        assert_eq!(heard(&service.manager), "READY=1\n");
        let mut client = Offer::new(&service.pki).connect(edge.address(), "app.test");
        assert_eq!(get(&mut client, "/").status, 200);
        edge.signal(Signal::TERM);
        assert_eq!(heard(&service.manager), "STOPPING=1\n");
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "close_notify");
        assert!(edge.wait_exit().success());
    }
}

/// A state that nobody can have written is closed, and the edge serves.
#[test]
fn what_is_no_state_of_a_connection_is_closed() {
    let service = Service::new(Upstream::http());
    let file = OwnedFd::from(std::fs::File::open(&service.file).unwrap());
    let copies = inherited(&[file]);
    let serve = || passing(service.command("serve"), &copies, "eyelet-connections");
    let mut edge = thread::scope(|scope| {
        let edge = scope.spawn(|| Edge::spawn(serve(), 1));
        assert_eq!(taken(&service.manager).0, "FDSTOREREMOVE=1\nFDNAME=eyelet-connections\n");
        assert_eq!(taken(&service.manager).0, "BARRIER=1");
        edge.join().unwrap()
    });
    edge.wait_log("1 descriptors of the service manager are closed: the state is not sealed");
    let mut client = Offer::new(&service.pki).connect(edge.address(), "app.test");
    assert_eq!(get(&mut client, "/").status, 200);
    edge.signal(Signal::TERM);
    assert!(edge.wait_exit().success());
}

#[test]
fn the_manager_passes_sockets_with_names() {
    let folder = crate::support::Folder::new();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let foreign = TcpListener::bind("127.0.0.1:0").unwrap();
    let foreign_address = foreign.local_addr().unwrap();
    let upstream = Upstream::echo();
    let rule = edge::splice(upstream.address, "");
    let config = format!("workers = 2\n[[listener]]\naddress = \"{address}\"\n{rule}");
    let mut command = edge::eyelet(&folder);
    command.arg("serve").arg(edge::write(&folder, &config));
    let null = std::fs::File::open("/dev/null").unwrap();
    let passed: [OwnedFd; 3] = [foreign.into(), socket.into(), null.into()];
    let copies = inherited(&passed);
    let edge = Edge::spawn(passing(command, &copies, "foreign:web:connection"), 1);
    drop((passed, copies));
    assert_eq!(edge.address(), address);
    edge.wait_log(&format!("\"foreign\" at {foreign_address} has no listener"));
    edge.wait_log("\"connection\" is closed: it does not listen");
    let hello = Hello::named("host.test").bytes();
    for _ in 0..8 {
        let mut stream = edge.connect();
        stream.write_all(&hello).unwrap();
        crate::support::expect(&mut stream, &hello);
    }
}

//! A drain closes the ports: who comes later is refused at once, or reaches another process. UDP
//! sockets stay for their flows.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::Signal;

use crate::quic_upgrade::{LATER, asks, echo as datagram_echo, recorded};
use crate::support::client::echo;
use crate::support::edge::{self, LISTENER, splice};
use crate::support::{Edge, Folder, Hello, Upstream, until};

/// A drain that no test waits for.
const LONG: &str = "[limits]\ndrain_timeout = \"1h\"\n";

/// A spliced client that has its echo: a drain leaves it alone until the last part.
fn served(at: SocketAddr) -> TcpStream {
    let mut client = edge::connect(at);
    echo(&mut client, &Hello::named("host.test").bytes());
    client
}

/// An edge of two workers at this port, which lets others have it too.
fn beside(folder: &Folder, port: u16, rules: &str) -> Edge {
    let listener = format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\nreuse_port = true\n");
    Edge::start_whole(folder, &format!("workers = 2\n{listener}{rules}{LONG}"), |_| ())
}

fn wait_refused(what: &str, connect: impl Fn() -> std::io::Result<()>) {
    until(what, || match connect().map_err(|error| error.kind()) {
        Err(ErrorKind::ConnectionRefused | ErrorKind::NotFound) => Some(()),
        _ => None,
    });
}

#[test]
fn a_new_client_is_refused_while_a_drain_goes_on() {
    let (folder, upstream) = (Folder::new(), Upstream::echo());
    let file = folder.path().join("edge.sock");
    let unix = format!("[[listener]]\nkind = \"connect\"\naddress = \"unix:{}\"\n", file.display());
    let rules = splice(upstream.address, "");
    let config = folder.write("edge.toml", format!("workers = 2\n{LISTENER}{unix}{rules}{LONG}"));
    let mut command = edge::eyelet(&folder);
    command.arg("serve").arg(config);
    let mut edge = Edge::spawn(command, 1);
    edge.wait_log("listening on unix:");
    let mut held = served(edge.address());
    UnixStream::connect(&file).unwrap();
    edge.signal(Signal::TERM);
    wait_refused("a port that refuses", || TcpStream::connect(edge.address()).map(drop));
    wait_refused("a file that is gone", || UnixStream::connect(&file).map(drop));
    assert!(edge.is_running(), "{}", edge.log());
    echo(&mut held, b"the drain goes on");
}

/// The process stands still while they connect, so that nobody has accepted them when it hears of
/// the drain.
#[test]
fn who_is_in_the_queue_when_a_drain_begins_is_served() {
    const QUEUED: usize = 40;
    let (folder, upstream) = (Folder::new(), Upstream::echo());
    let config = format!("workers = 2\n{LISTENER}{}{LONG}", splice(upstream.address, ""));
    let edge = Edge::start_whole(&folder, &config, |_| ());
    let hello = Hello::named("host.test").bytes();
    edge.signal(Signal::STOP);
    let mut queued: Vec<TcpStream> = (0..QUEUED).map(|_| edge.connect()).collect();
    queued.iter_mut().for_each(|client| client.write_all(&hello).unwrap());
    edge.signal(Signal::TERM);
    edge.signal(Signal::CONT);
    for client in &mut queued {
        let mut back = vec![0; hello.len()];
        client.read_exact(&mut back).unwrap();
        assert_eq!(back, hello);
    }
    wait_refused("a port that refuses", || TcpStream::connect(edge.address()).map(drop));
}

/// The kernel gives each of two processes a share of the clients, until one drains.
#[test]
fn beside_a_process_that_drains_the_other_gets_all_clients() {
    const CLIENTS: usize = 40;
    let (folder, upstream) = (Folder::new(), Upstream::echo());
    let rules = splice(upstream.address, "");
    let old = beside(&folder, 0, &rules);
    let mut held = served(old.address());
    let new = beside(&folder, old.port(), &rules);
    old.signal(Signal::TERM);
    until("the listening sockets of one process", || {
        (listening(&old) == listening(&new) && listening(&new) == 2).then_some(())
    });
    let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| served(old.address())).collect();
    echo(&mut held, b"the drain goes on");
    let mine: Vec<SocketAddr> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
    drop(clients);
    mine.into_iter().for_each(|client| drop(new.line_of(client)));
}

/// The sockets that listen at the port of an edge, whoever has them.
fn listening(edge: &Edge) -> usize {
    let sockets = format!("/proc/{}/net/tcp", edge.pid().as_raw_nonzero());
    let sockets = std::fs::read_to_string(Path::new(&sockets)).unwrap();
    let port = format!(":{:04X}", edge.port());
    // proc(5): local address, remote address, state (0A: listening).
    let is_one = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[1].ends_with(&port) && fields[3] == "0A"
    };
    sockets.lines().filter(is_one).count()
}

/// The threads of a process.
fn threads(edge: &Edge) -> usize {
    let tasks = format!("/proc/{}/task", edge.pid().as_raw_nonzero());
    std::fs::read_dir(tasks).unwrap().count()
}

/// The kernel chooses a socket by their number, so none closes while a worker has a flow. A client
/// that has no answer yet sends what would begin a flow elsewhere.
#[test]
fn clients_of_quic_keep_their_workers_while_others_end() {
    const WORKERS: usize = 8;
    const CLIENTS: usize = 4;
    let (folder, (server, is_over)) = (Folder::new(), datagram_echo());
    let rule = "[[rule]]\naction = \"splice\"\nupstream = \"127.0.0.1";
    let config = format!(
        "workers = {WORKERS}\n[[listener]]\naddress = \"127.0.0.1:0\"\nquic = true\n\
         {rule}:{server}\"\n{LONG}"
    );
    let mut edge = Edge::start_whole(&folder, &config, |_| ());
    // It has sent no hello yet, so the drain waits for it.
    let waiting = edge.connect();
    let client = || {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(edge.address()).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        client
    };
    let (clients, first) = ([(); CLIENTS].map(|()| client()), recorded());
    let all_answered = || clients.iter().all(|client| asks(client, &first));
    assert!(all_answered(), "{}", edge.log());
    let before = threads(&edge);
    edge.signal(Signal::TERM);
    // A drain ends flows that are idle.
    until("workers that have ended", || {
        assert!(all_answered(), "an open flow goes on: {}", edge.log());
        (threads(&edge) + WORKERS - CLIENTS - 1 <= before).then_some(())
    });
    assert!(all_answered(), "an open flow goes on: {}", edge.log());
    assert!(clients.iter().all(|client| asks(client, LATER)), "{}", edge.log());
    assert!(!asks(&client(), &first), "none begins");
    drop(waiting);
    assert!(edge.wait_exit().success(), "{}", edge.log());
    is_over.store(true, Ordering::Relaxed);
}

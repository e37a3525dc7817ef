//! QUIC under a service manager such as systemd, which the test plays: it passes UDP sockets, and
//! keeps flows over a restart.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

use rustix::process::Signal;

use crate::quic_upgrade::{LATER, asks, echo, recorded};
use crate::service::{heard, inherited, keep_probe, passing, taken};
use crate::support::edge;
use crate::support::{Edge, Folder, SOON};

const NAME: &str = "eyelet-connections";

fn config(port: u16, server: u16) -> String {
    format!(
        "workers = 2\n[[listener]]\naddress = \"127.0.0.1:{port}\"\nquic = true\n\
         [[rule]]\nname = \"all\"\naction = \"splice\"\nupstream = \"127.0.0.1:{server}\"\n\
         [limits]\nquic_idle_timeout = \"10m\"\n"
    )
}

fn serve(folder: &Folder, file: &Path) -> Command {
    let mut command = edge::eyelet(folder);
    command.arg("serve").arg(file);
    command
}

/// Clients that have begun a flow each.
fn clients(edge: &Edge, count: usize) -> Vec<UdpSocket> {
    let begin = |_| {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(edge.address()).unwrap();
        client.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
        assert!(asks(&client, &recorded()) && asks(&client, LATER), "{}", edge.log());
        client
    };
    (0..count).map(begin).collect()
}

/// `ListenDatagram=` beside `ListenStream=`. All clients come to the one socket, which one worker
/// reads.
#[test]
fn a_udp_socket_of_the_manager_is_read() {
    let (server, is_over) = echo();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = tcp.local_addr().unwrap();
    let Ok(udp) = UdpSocket::bind(at) else {
        // Somebody else has the port for datagrams.
        return a_udp_socket_of_the_manager_is_read();
    };
    let stray = UdpSocket::bind("127.0.0.1:0").unwrap();
    let stray_at = stray.local_addr().unwrap();
    let passed: [OwnedFd; 3] = [tcp.into(), udp.into(), stray.into()];
    let folder = Folder::new();
    let file = folder.write("edge.toml", edge::with_long_deadlines(&config(at.port(), server)));
    let copies = inherited(&passed);
    drop(passed);
    let edge = Edge::spawn(passing(serve(&folder, &file), &copies, "web:web:other"), 1);
    drop(copies);
    assert_eq!(edge.address(), at);
    let clients = clients(&edge, 4);
    let closed = format!("the service manager's socket \"other\" at {stray_at} has no listener");
    edge.wait_log(&closed);
    drop(clients);
    is_over.store(true, Ordering::Relaxed);
}

/// The server sees each flow at the address where it was: it is the same socket.
#[test]
fn flows_outlive_a_restart() {
    const FLOWS: usize = 5;
    let (server, is_over) = echo();
    let folder = Folder::new();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    let file = folder.write("edge.toml", edge::with_long_deadlines(&config(0, server)));
    let serve = || {
        let mut command = serve(&folder, &file);
        command.env("NOTIFY_SOCKET", &path).env("FDSTORE", "8");
        command
    };
    let mut first = Edge::spawn(serve(), 1);
    assert_eq!(heard(&manager), "READY=1\n");
    let clients = clients(&first, FLOWS);
    first.signal(Signal::TERM);
    keep_probe(&manager);
    let (_, kept) = taken(&manager);
    drop(taken(&manager));
    assert_eq!(heard(&manager), "STOPPING=1\n");
    assert!(first.wait_exit().success(), "{}", first.log());
    assert!(first.log().contains(&format!("{FLOWS} flows of QUIC leave")), "{}", first.log());
    // A datagram comes while nobody reads.
    clients[0].send(LATER).unwrap();
    let copies = inherited(&kept);
    drop(kept);
    let names = vec![NAME; copies.len()].join(":");
    let second = Edge::spawn(passing(serve(), &copies, &names), 1);
    drop(copies);
    for _ in ["FDSTOREREMOVE", "BARRIER"] {
        drop(taken(&manager));
    }
    assert_eq!(heard(&manager), "READY=1\n");
    second.wait_log(&format!("0 connections are back, and {FLOWS} flows of QUIC"));
    let mut bytes = [0; 2048];
    assert_eq!(clients[0].recv(&mut bytes).unwrap(), LATER.len(), "it has waited");
    let lost = clients.iter().filter(|client| !asks(client, LATER)).count();
    assert_eq!(lost, 0, "{}", second.log());
    assert!(first.lines().is_empty(), "they have not ended: {:#?}", first.lines());
    is_over.store(true, Ordering::Relaxed);
}

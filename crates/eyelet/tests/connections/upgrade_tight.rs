//! Upgrades where something is used up: descriptors, the limit of connections, the accept queue.
//! Nothing that was accepted is lost, and nothing that waits is reset.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::support::client::{TLS13, echo};
use crate::support::{Hello, Tls, edge, expect, until};
use crate::upgrade::Scene;

/// The connections in the queues take all room of the new process before the first batch arrives.
/// The held connections stay with the earlier process, and the upgrade goes on.
#[test]
fn no_connection_is_lost_where_descriptors_are_used_up() {
    // A batch of so many would not fit beside the connections that the new process accepts.
    const DESCRIPTORS: usize = 600;
    const HELD: usize = 160;
    const QUEUED: usize = 300;
    let more = "workers = 1\n[limits]\ndrain_timeout = \"10m\"\nhandshake_timeout = \"10m\"\n";
    let mut scene = Scene::limited(DESCRIPTORS, more);
    let mut held: Vec<Tls> = (0..HELD).map(|_| scene.tcp(TLS13)).collect();
    held.iter_mut().for_each(|tls| echo(tls, b"before"));
    let hello = Hello::named("host.test").bytes();
    let queued = queue(&scene, QUEUED, &hello);
    scene.edge.wait_log("accepting pauses");
    let moved = scene.upgrade();
    println!("{moved} of {HELD} moved");
    for tls in &mut held {
        echo(tls, b"after");
    }
    // Each that leaves makes room for the next.
    for mut stream in queued {
        expect(&mut stream, &hello);
    }
    held.iter_mut().for_each(|tls| echo(tls, b"last"));
}

/// The earlier process has reached its limit, so its queues fill. The new one may accept more.
#[test]
fn clients_that_wait_in_the_queues_are_served_by_the_new_process() {
    const OPEN: usize = 8;
    const QUEUED: usize = 1_000;
    let mut scene = Scene::with(&format!("workers = 2\n[limits]\nconnections_max = {OPEN}\n"));
    let mut held: Vec<TcpStream> = (0..OPEN).map(|_| scene.spliced()).collect();
    let hello = Hello::named("host.test").bytes();
    let queued = queue(&scene, QUEUED, &hello);
    scene.edge.wait_log("accepting pauses");
    scene.write("workers = 2\n[limits]\nhello_timeout = \"10m\"\n");
    assert_eq!(scene.upgrade(), OPEN);
    for mut stream in queued {
        expect(&mut stream, &hello);
    }
    for stream in &mut held {
        stream.write_all(b"after").unwrap();
        expect(stream, b"after");
    }
}

/// They go on for as long as they last, and end properly by a signal.
#[test]
fn what_the_new_process_has_no_room_for_is_served_on_and_ends_kindly() {
    const HELD: usize = 20;
    const ROOM: usize = 5;
    let mut scene = Scene::with("workers = 2\n[limits]\ndrain_timeout = \"1s\"\n");
    let mut held: Vec<Tls> = (0..HELD).map(|_| scene.tcp(TLS13)).collect();
    held.iter_mut().for_each(|tls| echo(tls, b"before"));
    scene.write(&format!("workers = 2\n[limits]\nconnections_max = {ROOM}\n"));
    assert_eq!(scene.upgrade(), ROOM);
    held.iter_mut().for_each(|tls| echo(tls, b"after"));
    scene.edge.wait_log("does not take some connections, which stay here: there is no room");
    std::thread::sleep(std::time::Duration::from_secs(2));
    held.iter_mut().for_each(|tls| echo(tls, b"long after"));
    scene.edge.signal(rustix::process::Signal::TERM);
    assert!(scene.edge.wait_exit_alone().success());
    let mut kept = 0;
    for tls in &mut held {
        tls.sock.set_nonblocking(true).unwrap();
        match tls.read(&mut [0]) {
            // By close_notify: without it this would be an error.
            Ok(read) => assert_eq!(read, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                kept += 1;
            }
        }
    }
    assert_eq!(kept, ROOM);
    let drained = |line: &serde_json::Value| line["reason"] == "drained";
    until("the access lines", || (scene.edge.count(drained) == HELD - ROOM).then_some(()));
}

/// Clients that have connected and sent a hello; nobody has answered yet.
fn queue(scene: &Scene, count: usize, hello: &[u8]) -> Vec<TcpStream> {
    let client = |_| {
        let mut stream = edge::connect(scene.address());
        stream.write_all(hello).unwrap();
        stream
    };
    (0..count).map(client).collect()
}

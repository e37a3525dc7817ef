//! Upgrades to a program of another version, and messages that the new program cannot read. What it
//! does not take stays where it is served.

use std::net::TcpStream;

use rustix::process::Pid;

use crate::support::client::{TLS12, TLS13, echo};
use crate::support::program::need;
use crate::support::web::get;
use crate::support::{Tls, until};
use crate::upgrade::{Scene, expect_echo};

const SUCCESSOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/successor.py");

/// Connections of all kinds, at rest.
struct Held {
    tcp: Vec<Tls>,
    http: Tls,
    spliced: TcpStream,
}

impl Held {
    const COUNT: usize = 6;

    fn new(scene: &Scene) -> Self {
        let tcp = [TLS13, TLS12, TLS13, TLS12].map(|versions| scene.tcp(versions)).into();
        let mut held = Self { tcp, http: scene.http(), spliced: scene.spliced() };
        held.goes_on("before");
        held
    }

    fn goes_on(&mut self, text: &str) {
        self.tcp.iter_mut().for_each(|tls| echo(tls, text.as_bytes()));
        assert_eq!(get(&mut self.http, "/").status, 200);
        expect_echo(&mut self.spliced, text.as_bytes());
    }
}

/// Upgrades to a program that differs so. Returns how many connections moved.
pub fn upgrade_to(scene: &mut Scene, how: &str) -> usize {
    let program = env!("CARGO_BIN_EXE_eyelet");
    let script = format!("#!/bin/sh\nexec python3 '{SUCCESSOR}' {how} '{program}' \"$@\"\n");
    let script = scene.pki.folder.write_program("successor", script);
    let moved = scene.upgrade_by(&["--binary", script.to_str().unwrap()]);
    let successor = until("the successor's own line", || {
        let log = scene.edge.log();
        let (_, behind) = log.split_once("successor: process ")?;
        Pid::from_raw(behind.split_once([' ', '\n'])?.0.parse().ok()?)
    });
    scene.later.push(successor);
    moved
}

#[test]
fn what_another_version_does_not_take_is_served_on() {
    if !need("python3") {
        return;
    }
    for (how, moves, why) in [
        ("older", 0, "it does not read version 5 of their format"),
        ("newer", Held::COUNT - 1, "the format has version 28672"),
        ("cut", 0, "a batch of connections has wrong lengths"),
        ("longer", 0, "a batch of connections has wrong lengths"),
    ] {
        let mut scene = Scene::with("workers = 1\n[limits]\ndrain_timeout = \"10m\"\n");
        let mut held = Held::new(&scene);
        // Requests are served for a moment before their connection is parked.
        let moved = upgrade_to(&mut scene, how);
        let log = scene.edge.log();
        assert!((moves.saturating_sub(1)..=moves).contains(&moved), "{how}: {moved}\n{log}");
        scene.edge.wait_log("does not take some connections, which stay here");
        scene.edge.wait_log(why);
        held.goes_on("after");
        echo(&mut scene.tcp(TLS13), b"new");
        // The earlier process ends with the last of them.
        drop(held);
        assert!(scene.edge.wait_exit_alone().success(), "{how}: {}", scene.edge.log());
    }
}

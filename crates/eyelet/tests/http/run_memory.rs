//! The memory of 200 echo clients, with TLS in the application and with TLS in Eyelet. The figures
//! are those of docs/from-node.md and docs/from-twisted.md: run it with `--nocapture`.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use rustix::process::Pid;

use crate::run::{Run, program, vacant_port};
use crate::support::client::{Offer, Tls, echo};
use crate::support::crowd::many;
use crate::support::memory::Memory;
use crate::support::program::skip;
use crate::support::{Pki, need, until};

/// Clients that are connected at the same time.
const CLIENTS: u64 = 200;
/// Clients before those.
const WARM_UP: u64 = 5;

/// An echo server, with TLS and without.
struct Echo {
    name: &'static str,
    with_tls: Vec<String>,
    plain: Vec<String>,
}

struct Before(Child);

impl Drop for Before {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn clients(pki: &Pki, address: SocketAddr, count: u64) -> Vec<Tls> {
    let offer = Offer::new(pki);
    let connect = |_| {
        let mut client = offer.connect(address, "app.test");
        echo(&mut client, b"hello");
        client
    };
    (0..count).map(connect).collect()
}

/// Returns the further bytes that these processes need for the clients.
fn needed(pids: &[Pid], pki: &Pki, address: SocketAddr) -> u64 {
    // Code that is loaded with the first client is not the clients'.
    drop(clients(pki, address, WARM_UP));
    let held = || pids.iter().map(|pid| Memory::at_rest(*pid).anonymous).sum::<u64>();
    let before = held();
    let clients = clients(pki, address, CLIENTS);
    let after = held();
    drop(clients);
    after.saturating_sub(before)
}

/// Bytes a client: with TLS in the application; the application alone; with Eyelet.
fn measure(echo: &Echo) -> [u64; 3] {
    let pki = Pki::new();
    let port = vacant_port();
    let files = [pki.text("edge.pem"), pki.text("edge.key")];
    let mut command = Command::new(&echo.with_tls[0]);
    command.args(&echo.with_tls[1..]).args(&files).env("PORT", &port).stdin(Stdio::null());
    let server = Before(command.spawn().unwrap());
    let address: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
    until("the server", || TcpStream::connect(address).ok());
    let with_tls = needed(&[Pid::from_child(&server.0)], &pki, address);
    drop(server);
    let plain: Vec<&str> = echo.plain.iter().map(String::as_str).collect();
    let run = Run::start(&["--tcp"], &plain);
    run.listens(1);
    let address = ([127, 0, 0, 1], run.port).into();
    let [edge, app] = run.pids();
    let both = needed(&[edge, app], &run.pki, address);
    let run = Run::start(&["--tcp"], &plain);
    run.listens(1);
    let address = ([127, 0, 0, 1], run.port).into();
    let [_, app] = run.pids();
    let alone = needed(&[app], &run.pki, address);
    [with_tls, alone, both].map(|bytes| bytes / CLIENTS)
}

#[test]
fn tls_outside_of_the_application_needs_less_memory() {
    let echo = |name, with_tls: &[&str], plain: &[&str]| {
        let own = |parts: &[&str]| {
            let part = |part: &&str| match part.contains('.') {
                true => program(part),
                false => (*part).to_owned(),
            };
            parts.iter().map(part).collect()
        };
        Echo { name, with_tls: own(with_tls), plain: own(plain) }
    };
    let twisted = Command::new("/usr/bin/python3").args(["-c", "import twisted, OpenSSL"]).output();
    let has_twisted = twisted.is_ok_and(|said| said.status.success());
    let all = [
        ("node", echo("node", &["node", "echo_tls.js"], &["node", "echo.js"])),
        ("python3", echo("asyncio", &["python3", "echo_plain.py"], &["python3", "echo_plain.py"])),
        (
            "python3",
            echo(
                "twisted",
                &["/usr/bin/python3", "echo_twisted.py"],
                &["/usr/bin/python3", "echo_twisted.py"],
            ),
        ),
    ];
    // Each has processes of its own, and waits for memory to stand still most of its time.
    many(all.len(), |nth| {
        let (program, echo) = &all[nth];
        if echo.name == "twisted" && !has_twisted {
            return skip("twisted not found");
        }
        if !need(program) {
            return;
        }
        let [with_tls, alone, both] = measure(echo);
        println!(
            "{}: {with_tls} bytes a client with TLS in the application; {both} with Eyelet, \
             of these {alone} in the application",
            echo.name
        );
        assert!(both < with_tls, "{}: {both} {with_tls}", echo.name);
    });
}

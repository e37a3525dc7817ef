//! A scan of half-open connections is no full queue. The tests run in a network namespace, because
//! the kernel counts full queues for all listeners of one.

use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::edge::{self, Edge, splice};
use crate::support::namespaces::{CLIENT, GATEWAY, socket_address};
use crate::support::program::{need, output};
use crate::support::{Folder, Net, Place, until};
use crate::upgrade::pid_in;

/// The edge's queue holds one more.
const BACKLOG: usize = 4;
/// Connections to a queue that is full. Each is a SYN that is dropped.
const DROPPED: usize = 20;
const SCANNED: usize = 1_000;
const PORT: u16 = 8443;

struct Scene {
    net: Net,
    folder: Folder,
    file: std::path::PathBuf,
    edge: Edge,
    /// The process that has replaced the first one.
    later: Option<Pid>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Some(later) = self.later {
            let _ = kill_process(later, Signal::KILL);
        }
    }
}

impl Scene {
    /// `None`, and says so, where there are no namespaces.
    fn new() -> Option<Self> {
        if !need("python3") {
            return None;
        }
        let (net, folder) = (Net::new()?, Folder::new());
        net.script(Place::Gateway, &format!("sysctl -qw net.core.somaxconn={BACKLOG}"));
        let rule = splice(socket_address(GATEWAY[0], 1), "");
        let listener = format!("[[listener]]\naddress = \"{}:{PORT}\"\n", GATEWAY[0]);
        let file = edge::write(&folder, &format!("workers = 1\n{listener}{rule}"));
        let mut command = net.command(Place::Gateway, env!("CARGO_BIN_EXE_eyelet"));
        command.arg("serve").arg(&file).env("XDG_RUNTIME_DIR", folder.path());
        let edge = Edge::spawn(command, 1);
        Some(Self { net, folder, file, edge, later: None })
    }

    /// Packets that the kernel has dropped at listeners so far, for any reason.
    fn dropped(&self) -> u64 {
        let said = output(self.net.command(Place::Gateway, "ss").arg("-tlnmH"));
        assert!(said.status.success(), "{}", said.text);
        let (_, rest) = said.text.split_once(",d").unwrap();
        rest.split(')').next().unwrap().parse().unwrap()
    }

    /// Half-open connections that are reset, until the kernel has counted them as drops.
    fn scan(&self) {
        let before = self.dropped();
        let script = self.folder.write("scan.py", include_str!("../programs/scan.py"));
        let mut command = self.net.command(Place::Client, "python3");
        command.arg(script).args([CLIENT[0], GATEWAY[0], &PORT.to_string(), &SCANNED.to_string()]);
        let said = output(&mut command);
        assert!(said.status.success(), "{}", said.text);
        until("the resets to count as drops", || {
            (self.dropped() - before >= SCANNED as u64 / 2).then_some(())
        });
    }

    /// Fills the queue of a process that does not accept for a while.
    fn fill(&self, edge: Pid) {
        kill_process(edge, Signal::STOP).unwrap();
        until("the process to stop", || {
            let state = fs::read_to_string(format!("/proc/{edge}/stat")).unwrap();
            state.contains(") T ").then_some(())
        });
        let to = socket_address(GATEWAY[0], PORT);
        self.net.at(Place::Client, || {
            let connect = || TcpStream::connect_timeout(&to, Duration::from_millis(20));
            let open: Vec<_> = (0..BACKLOG + 1 + DROPPED).filter_map(|_| connect().ok()).collect();
            assert!(open.len() <= BACKLOG + 1, "{}", open.len());
        });
        kill_process(edge, Signal::CONT).unwrap();
    }

    /// Waits for this many warnings. Returns how many drops the newest one counts since the start
    /// of its process.
    fn warned(&self, warnings: usize) -> usize {
        until("a warning of drops", || {
            let log = self.edge.log();
            let mut counts = log.split("WARN the kernel dropped ").skip(1);
            let (_, rest) = counts.nth(warnings - 1)?.split_once(" connections (")?;
            rest.split(' ').next()?.parse().ok()
        })
    }

    /// Scans, and fills the queue of this process: its warning, the nth, is of the second alone.
    fn tells_apart(&self, edge: Pid, nth: usize) {
        self.scan();
        self.fill(edge);
        // What the kernel counts in the meantime is in the same warning or in none.
        let counted = self.warned(nth);
        assert!((1..SCANNED / 2).contains(&counted), "{counted}: {}", self.edge.log());
    }
}

/// Neither in a process that has listened all the time, nor in one that has inherited the listener.
#[test]
fn a_scan_is_no_full_queue() {
    let Some(mut scene) = Scene::new() else { return };
    scene.tells_apart(scene.edge.pid(), 1);

    let mut upgrade = edge::eyelet(&scene.folder);
    let said = output(upgrade.arg("upgrade").arg(&scene.file));
    assert!(said.status.success(), "{}\n{}", said.text, scene.edge.log());
    let later = pid_in(&said);
    scene.later = Some(later);
    scene.tells_apart(later, 2);
}

//! The edge under a service manager such as systemd: what the manager hears, and the sockets that
//! it passes. The test plays the manager.

use std::io::Write;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::edge;
use crate::support::{Edge, Hello, SOON, Upstream, output};
use crate::upgrade::pid_in;

/// The next message to the manager.
fn heard(manager: &UnixDatagram) -> String {
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

#[test]
fn the_manager_passes_a_socket() {
    let folder = crate::support::Folder::new();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let upstream = Upstream::echo();
    let rule = edge::splice(upstream.address, "");
    let config = format!("workers = 2\n[[listener]]\naddress = \"{address}\"\n{rule}");
    let file = edge::write(&folder, &config);
    let program = env!("CARGO_BIN_EXE_eyelet");
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" serve \"$1\" 3<&\"$2\"";
    let number = socket.as_raw_fd().to_string();
    let mut command = Command::new("bash");
    command.env("XDG_RUNTIME_DIR", folder.path());
    command.args(["-c", script, program]).arg(&file).arg(&number);
    fcntl_setfd(&socket, FdFlags::empty()).unwrap();
    let edge = Edge::spawn(command, 1);
    fcntl_setfd(&socket, FdFlags::CLOEXEC).unwrap();
    assert_eq!(edge.address(), address);
    drop(socket);
    let hello = Hello::named("host.test").bytes();
    for _ in 0..8 {
        let mut stream = edge.connect();
        stream.write_all(&hello).unwrap();
        crate::support::expect(&mut stream, &hello);
    }
}

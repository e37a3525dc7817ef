//! Runs the real program with names that lead to this machine: in a mount namespace whose hosts
//! file has them.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::program::{Said, Talk, skip};
use crate::support::{Folder, output};

/// Runs the rest of its arguments with the hosts file that it is given first.
const WITH_HOSTS: &str = "mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"";

/// Starts the rest of its arguments as an ordinary user.
pub const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Names, and the addresses that they have outside.
pub type Hosts<'a> = &'a [(&'a str, &'a str)];

/// A sandbox that is about to be started, in a folder that it works in.
pub struct Sandbox {
    pub command: Command,
}

/// False, and says so, where this machine has no user namespaces.
pub fn is_possible() -> bool {
    let tried = Command::new("unshare").args(["--user", "--net", "--mount", "true"]).output();
    if tried.is_ok_and(|tried| tried.status.success()) {
        return true;
    }
    skip("this machine has no user namespaces");
    false
}

/// Runs the arguments that it gets with these hosts, in these namespaces.
pub fn with_hosts(folder: &Folder, hosts: Hosts<'_>, namespaces: &[&str]) -> Command {
    let lines: String = hosts.iter().map(|(name, ip)| format!("{ip} {name}\n")).collect();
    let mut file = folder.path().join("hosts");
    // Another sandbox of this folder may have mounted it, and nothing covers a file that is gone.
    if std::fs::read_to_string(&file).ok().as_ref() != Some(&lines) {
        file = folder.write("hosts", lines);
    }
    std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(namespaces).args(["sh", "-c", WITH_HOSTS, "sh"]).arg(file);
    command.current_dir(folder.path());
    command
}

impl Sandbox {
    /// One whose list is this, in `folder`.
    pub fn new(folder: &Folder, hosts: Hosts<'_>, list: &str) -> Self {
        folder.write("allow.txt", list);
        let mut sandbox = Self::without_list(folder, hosts);
        sandbox.command.args(["--allow", "allow.txt"]);
        sandbox
    }

    /// One that has no list yet.
    pub fn without_list(folder: &Folder, hosts: Hosts<'_>) -> Self {
        Self::with_program(folder, hosts, &[])
    }

    /// One that is started by this program and its arguments.
    pub fn with_program(folder: &Folder, hosts: Hosts<'_>, program: &[&str]) -> Self {
        let mut command = with_hosts(folder, hosts, &["--mount"]);
        command.args(program).arg(env!("CARGO_BIN_EXE_eyelet")).arg("sandbox");
        command.args(["--allow-private", "127.0.0.1/32"]);
        Self { command }
    }

    /// One of an ordinary user, whose list is this.
    pub fn as_nobody(folder: &Folder, hosts: Hosts<'_>, list: &str) -> Self {
        let mut sandbox = Self::with_program(folder, hosts, &NOBODY);
        let everybody = || Permissions::from_mode(0o644);
        folder.write("allow.txt", list);
        for file in ["allow.txt", "ca.pem"] {
            // Not every folder has an authority.
            let _ = std::fs::set_permissions(folder.path().join(file), everybody());
        }
        sandbox.command.args(["--allow", "allow.txt"]);
        sandbox
    }

    pub fn option(mut self, option: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.arg(option).arg(value);
        self
    }

    pub fn flag(mut self, flag: &str) -> Self {
        self.command.arg(flag);
        self
    }

    /// Runs a command in it to its end.
    pub fn run(mut self, command: &[&str]) -> Said {
        self.command.arg("--").args(command);
        output(&mut self.command)
    }

    /// Starts a command in it.
    pub fn start(mut self, command: &[&str]) -> Talk {
        self.command.arg("--").args(command);
        Talk::start(&mut self.command)
    }

    /// Runs a shell script in it.
    pub fn script(self, script: &str) -> Said {
        self.run(&["sh", "-c", script])
    }
}

/// A report that was written.
pub fn report(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("report.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

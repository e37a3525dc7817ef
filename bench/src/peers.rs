//! The servers that are measured: which are installed, what they can do, how they are started.
//! Must not know how they are measured, nor their configurations' text.

mod configurations;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::lab::{self, Lab, Server};
use configurations::Plan;

/// A program that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The program of this repository.
    Eyelet,
    /// nginx, with its stream module for splicing and TCP.
    Nginx,
    /// HAProxy.
    Haproxy,
    /// hitch, which terminates TLS only.
    Hitch,
    /// stunnel, which terminates TLS only.
    Stunnel,
    /// A tokio-rustls server without an upstream, of this program.
    RustTls,
    /// tokio-rustls and copy_bidirectional, of this program.
    RustProxy,
    /// copy_bidirectional alone, of this program.
    RustSplice,
    /// An epoll loop and splice(2), of this program.
    FloorSplice,
}

/// What a server is asked to do with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// Terminate TLS in front of an HTTP backend.
    Http,
    /// Terminate TLS, and hold a TCP connection to the backend for each client.
    Tcp,
    /// Read the ClientHello, choose the origin by its name among 1,000, and splice.
    Peek,
    /// Splice without a look at the bytes.
    Blind,
}

/// A row of a table: a program in a role.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// As in the table, and as `--against` names it.
    pub label: &'static str,
    /// Which program.
    pub kind: Kind,
    /// In which role.
    pub front: Front,
    /// With its access log on, into /dev/null.
    pub access_log: bool,
    /// Measured when `--against` names the program or nothing at all.
    pub usual: bool,
}

impl Row {
    /// A row that is measured unless `--against` leaves it out.
    pub const fn usual(label: &'static str, kind: Kind, front: Front) -> Self {
        Self { label, kind, front, access_log: false, usual: true }
    }

    /// A row that is measured only when `--against` names it.
    pub const fn asked(label: &'static str, kind: Kind, front: Front) -> Self {
        Self { label, kind, front, access_log: false, usual: false }
    }

    /// The row with the access log on.
    pub const fn logging(self) -> Self {
        Self { access_log: true, ..self }
    }
}

impl Kind {
    /// The program's name: what `--against` takes, and what is looked for in PATH.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eyelet => "eyelet",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Hitch => "hitch",
            Self::Stunnel => "stunnel",
            Self::RustTls => "rust-tls",
            Self::RustProxy => "rust-proxy",
            Self::RustSplice => "rust-splice",
            Self::FloorSplice => "floor-splice",
        }
    }

    /// Where the program is; None where it is not installed.
    fn program(self, lab: &Lab) -> Option<PathBuf> {
        match self {
            Self::Eyelet => lab.eyelet().map(Path::to_owned),
            Self::RustTls | Self::RustProxy | Self::RustSplice | Self::FloorSplice => {
                std::env::current_exe().ok()
            }
            other => find_program(other.name()),
        }
    }
}

/// What `--against` may name: programs, and rows that are not called as their program is.
pub const NAMES: [&str; 15] = [
    "eyelet",
    "eyelet-blind",
    "eyelet-log",
    "eyelet-tcp",
    "nginx",
    "nginx-blind",
    "haproxy",
    "haproxy-blind",
    "haproxy-tcp",
    "hitch",
    "stunnel",
    "rust-tls",
    "rust-proxy",
    "rust-splice",
    "floor-splice",
];

/// The rows to measure: those that `against` leaves, where installed; the missing are named on
/// stderr.
///
/// # Errors
/// No row is left.
pub fn choose(rows: &[Row], against: &[String], lab: &Lab) -> io::Result<Vec<Row>> {
    let named =
        |row: &Row, name: &String| row.label == name || (row.usual && row.kind.name() == name);
    let wanted = rows.iter().filter(|row| match against {
        [] => row.usual,
        names => names.iter().any(|name| named(row, name)),
    });
    let (there, missing): (Vec<Row>, Vec<Row>) =
        wanted.partition(|row| row.kind.program(lab).is_some());
    for row in missing {
        eprintln!("not installed: {} (its row is left out)", row.kind.name());
    }
    match there.is_empty() {
        true => Err(io::Error::other("no server to measure")),
        false => Ok(there),
    }
}

/// The first line that each installed program says of its version.
pub fn versions(lab: &Lab) -> Vec<(&'static str, String)> {
    let ask = |kind: Kind, flag: &str| {
        let output = std::process::Command::new(kind.program(lab)?).arg(flag).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        let line = text.lines().find(|line| line.contains(|c: char| c.is_ascii_digit()))?;
        Some((kind.name(), line.trim().to_owned()))
    };
    let flags = [
        (Kind::Eyelet, "--version"),
        (Kind::Nginx, "-v"),
        (Kind::Haproxy, "-v"),
        (Kind::Hitch, "--version"),
        (Kind::Stunnel, "-version"),
    ];
    flags.into_iter().filter_map(|(kind, flag)| ask(kind, flag)).collect()
}

/// Starts a row's server in front of these upstreams.
///
/// # Errors
/// Why it did not come up, in its own words.
pub fn start(lab: &Lab, row: &Row, upstreams: &[SocketAddr]) -> io::Result<Server> {
    let address = lab.free_address()?;
    start_at(lab, row, upstreams, address, false)
}

/// Starts a row's server at an address that it may share with others of its kind.
pub fn start_at(
    lab: &Lab,
    row: &Row,
    upstreams: &[SocketAddr],
    address: SocketAddr,
    shared: bool,
) -> io::Result<Server> {
    let program = row.kind.program(lab).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("{} is not installed", row.kind.name()))
    })?;
    let folder = lab.folder();
    let plan = Plan { row, address, upstreams, folder, shared };
    let file = folder.join(format!("{}-{}.conf", row.label, address.port()));
    if let Some(text) = plan.text() {
        // Renamed into place: another server on this address may be reading it just now.
        let fresh = file.with_extension("fresh");
        fs::write(&fresh, text)?;
        fs::rename(&fresh, &file)?;
    }
    let command = command(&plan, program, &file);
    lab.start_server(row.label, &command, address)
}

fn command(plan: &Plan<'_>, program: PathBuf, file: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![program.into()];
    let (folder, file) = (plan.folder, file.as_os_str());
    let own = |words: &mut Vec<OsString>, tls: bool| {
        words.extend(["peer".into(), plan.row.kind.name().into(), plan.address.to_string().into()]);
        if tls {
            words.push(folder.join(lab::CERTIFICATE).into());
            words.push(folder.join(lab::KEY).into());
        }
    };
    match plan.row.kind {
        Kind::Eyelet => words.extend(["serve".into(), file.into()]),
        Kind::Nginx => {
            let errors = folder.join("nginx.error");
            words.extend(["-p".into(), folder.into(), "-c".into(), file.into()]);
            words.extend(["-e".into(), errors.into()]);
        }
        Kind::Haproxy => words.extend(["-db".into(), "-f".into(), file.into()]),
        Kind::Hitch => words.push(format!("--config={}", file.display()).into()),
        Kind::Stunnel => words.push(file.into()),
        Kind::RustTls => own(&mut words, true),
        Kind::RustProxy => {
            own(&mut words, true);
            words.push(plan.upstreams[0].to_string().into());
        }
        Kind::RustSplice | Kind::FloorSplice => {
            own(&mut words, false);
            words.extend(plan.upstreams.iter().map(|upstream| upstream.to_string().into()));
        }
    }
    words
}

/// A program in PATH, or where Debian keeps its daemons.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}

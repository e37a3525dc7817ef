//! The servers under test: which are installed, which roles they support, how they are started.

mod configurations;
mod row;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::lab::{self, Lab, Server};
use configurations::ConfigurationPlan;
pub use row::{Row, ServerKind, ServerMode};

/// Names for `--against`: programs, and rows with a name of their own.
pub const NAMES: [&str; 23] = [
    "eyelet",
    "eyelet-blind",
    "eyelet-towards",
    "eyelet-dns",
    "eyelet-certificate",
    "eyelet-towards-12",
    "eyelet-certificate-12",
    "eyelet-limited",
    "eyelet-log",
    "eyelet-tcp",
    "nginx",
    "nginx-blind",
    "haproxy",
    "haproxy-blind",
    "haproxy-tcp",
    "caddy",
    "envoy",
    "hitch",
    "stunnel",
    "rust-tls",
    "rust-proxy",
    "rust-splice",
    "floor-splice",
];

/// The rows to measure: those that `against` selects and that are installed. Missing ones are
/// reported on stderr.
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
        wanted.partition(|row| program(row, lab).is_some());
    for row in missing {
        eprintln!("not installed: {} (its row is left out)", row.kind.name());
    }
    if there.is_empty() {
        return Err(io::Error::other("no server to measure"));
    }
    let older =
        |row: Row| (row.kind == ServerKind::Eyelet && lab.before().is_some()).then(|| row.before());
    Ok(there.into_iter().flat_map(|row| [Some(row), older(row)]).flatten().collect())
}

/// The first line of each installed program's version output.
pub fn versions(lab: &Lab) -> Vec<(&'static str, String)> {
    let ask = |kind: ServerKind, flag: &str| {
        let row = Row::usual(kind.name(), kind, ServerMode::Http);
        let output = std::process::Command::new(program(&row, lab)?).arg(flag).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        let line = text.lines().find(|line| line.contains(|c: char| c.is_ascii_digit()))?;
        Some((kind.name(), line.trim().to_owned()))
    };
    let flags = [
        (ServerKind::Eyelet, "--version"),
        (ServerKind::Nginx, "-v"),
        (ServerKind::Haproxy, "-v"),
        (ServerKind::Caddy, "version"),
        (ServerKind::Envoy, "--version"),
        (ServerKind::Hitch, "--version"),
        (ServerKind::Stunnel, "-version"),
    ];
    flags.into_iter().filter_map(|(kind, flag)| ask(kind, flag)).collect()
}

/// Starts a row's server in front of these upstreams. If connections carry their destination, the
/// upstream is the resolver.
///
/// # Errors
/// Why it did not come up, from its own output.
pub fn start(lab: &Lab, row: &Row, upstreams: &[SocketAddr]) -> io::Result<Server> {
    let address = lab.free_address()?;
    start_at(lab, row, upstreams, address, false)
}

/// Starts a row's server at an address that it may share with other processes of its kind.
pub fn start_at(
    lab: &Lab,
    row: &Row,
    upstreams: &[SocketAddr],
    address: SocketAddr,
    shared: bool,
) -> io::Result<Server> {
    let program = program(row, lab).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("{} is not installed", row.kind.name()))
    })?;
    let folder = lab.folder();
    // Servers that share an address each have a file, which may name a socket of their own.
    let name = lab.next_name(&format!("{}-{}", row.label, address.port()));
    let accounts = (row.kind == ServerKind::Eyelet).then(|| lab.accounts(&name)).flatten();
    // Envoy reads its configuration by the ending of the name.
    let ending = if row.kind == ServerKind::Envoy { "yaml" } else { "conf" };
    let file = folder.join(format!("{name}.{ending}"));
    let plan = ConfigurationPlan { row, address, upstreams, folder, shared, accounts };
    if let Some(text) = plan.text() {
        fs::write(&file, text)?;
    }
    let command = command(&plan, program, &file);
    let mut server = lab.start_server(row.label, &command, address)?;
    server.accounts = plan.accounts.map(|accounts| (accounts, row.label));
    Ok(server)
}

fn command(plan: &ConfigurationPlan<'_>, program: PathBuf, file: &Path) -> Vec<OsString> {
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
        ServerKind::Eyelet => words.extend(["serve".into(), file.into()]),
        ServerKind::Nginx => {
            let errors = folder.join("nginx.error");
            words.extend(["-p".into(), folder.into(), "-c".into(), file.into()]);
            words.extend(["-e".into(), errors.into()]);
        }
        ServerKind::Haproxy => words.extend(["-db".into(), "-f".into(), file.into()]),
        ServerKind::Caddy => {
            words.extend(["run".into(), "--adapter".into(), "caddyfile".into()]);
            words.extend(["--config".into(), file.into()]);
        }
        ServerKind::Envoy => {
            words.extend(["-c".into(), file.into(), "--concurrency".into(), "1".into()]);
            words.extend(["--base-id".into(), plan.address.port().to_string().into()]);
            words.extend(["-l".into(), "error".into()]);
        }
        ServerKind::Hitch => words.push(format!("--config={}", file.display()).into()),
        ServerKind::Stunnel => words.push(file.into()),
        ServerKind::RustTls => own(&mut words, true),
        ServerKind::RustProxy => {
            own(&mut words, true);
            words.push(plan.upstreams[0].to_string().into());
        }
        ServerKind::RustSplice | ServerKind::FloorSplice => {
            own(&mut words, false);
            words.extend(plan.upstreams.iter().map(|upstream| upstream.to_string().into()));
        }
    }
    words
}

/// The program's path; None if it is not installed.
fn program(row: &Row, lab: &Lab) -> Option<PathBuf> {
    match row.kind {
        ServerKind::Eyelet if row.before => lab.before().map(Path::to_owned),
        ServerKind::Eyelet => lab.eyelet().map(Path::to_owned),
        ServerKind::RustTls
        | ServerKind::RustProxy
        | ServerKind::RustSplice
        | ServerKind::FloorSplice => std::env::current_exe().ok(),
        other => find_program(other.name()),
    }
}

/// A program in PATH, or in Debian's folder of daemons.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}

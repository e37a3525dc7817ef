//! `eyelet doctor`: what keeps local HTTPS from working on this machine, each with the command that
//! mends it. It changes nothing.

use std::fs;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use eyelet_config::Permitted;
use eyelet_local_ca::trust::{self, Places};
use eyelet_local_ca::{
    Authority, LocalCaError, SubjectName, folder_option, folder_or_default, shell_word,
};

use crate::command::run;
use crate::command::run::ports::{self, HTTPS};
use crate::command::run::shared::place;

/// The time that a program may take that is asked: Java takes a second to start.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(20);
const PROGRAM_STEP: Duration = Duration::from_millis(10);
/// Exits with 0 if Node trusts the certificate in this file. Node before 22.15 cannot list what it
/// trusts, so that its variable is read.
const NODE_TRUSTS: &str = "\
    const fs = require('fs'), tls = require('tls'), { X509Certificate } = require('crypto');
    const print = pem => { try { return new X509Certificate(pem).fingerprint256; } catch {} };
    const own = print(fs.readFileSync(process.argv[1]));
    const split = text => text.split(/(?<=-----END CERTIFICATE-----)/);
    const extra = process.env.NODE_EXTRA_CA_CERTS;
    const all = tls.getCACertificates ? tls.getCACertificates('default')
        : extra ? split(fs.readFileSync(extra, 'utf8')) : [];
    process.exit(all.some(pem => print(pem) === own) ? 0 : 1);";
/// Exits with 0 if Node finds that this name is of this machine.
const NODE_RESOLVES: &str = "require('dns').lookup(process.argv[1], (error, address) => \
    process.exit(!error && (address === '::1' || address.startsWith('127.')) ? 0 : 1));";
/// The check of Python.
const PYTHON_RESOLVES: &str = "\
import socket, sys
found = {entry[4][0] for entry in socket.getaddrinfo(sys.argv[1], 443)}
sys.exit(0 if all(ip == '::1' or ip.startswith('127.') for ip in found) else 1)";

/// The words for a program that the variables of `eyelet run` have trust the authority.
const NOT_OUTSIDE: &str = "does not trust it outside of `eyelet run`";
/// Has programs find all names under `localhost`: a line of /etc/hosts is for one name.
const FIND_LOCALHOST: &str = "sudo apt install libnss-myhostname    # all names under localhost; \
    Fedora and Arch have it: add myhostname to hosts: in /etc/nsswitch.conf";

/// Arguments of `eyelet doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// The name that must lead to this machine; by default that of a project in this folder
    #[arg(value_name = "NAME", value_parser = run::host)]
    pub name: Option<String>,
    /// The folder of the local authority; by default the user's own
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// The state of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Good,
    /// It works, and could be better.
    Fair,
    Bad,
    /// There is no such program here, or nothing says.
    Absent,
}

#[derive(Debug, PartialEq, Eq)]
struct Check {
    what: &'static str,
    health: Health,
    seen: String,
    /// The command that mends it.
    mend: Option<String>,
}

impl Check {
    fn good(what: &'static str, seen: impl Into<String>) -> Self {
        Self { what, health: Health::Good, seen: seen.into(), mend: None }
    }

    fn absent(what: &'static str, seen: impl Into<String>) -> Self {
        Self { what, health: Health::Absent, seen: seen.into(), mend: None }
    }

    fn bad(what: &'static str, seen: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { what, health: Health::Bad, seen: seen.into(), mend: Some(mend.into()) }
    }

    fn fair(what: &'static str, seen: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { health: Health::Fair, ..Self::bad(what, seen, mend) }
    }

    fn lines(&self) -> String {
        let health = match self.health {
            Health::Good => "ok",
            Health::Fair => "note",
            Health::Bad => "bad",
            Health::Absent => "none",
        };
        let mut lines = format!("{health:<6}{:<10} {}\n", self.what, self.seen);
        if let Some(mend) = &self.mend {
            lines += &format!("{:17}-> {mend}\n", "");
        }
        lines
    }
}

/// Prints how everything is. Exits with 0 if nothing is bad.
pub fn doctor(args: &DoctorArgs, out: &mut impl Write) -> ExitCode {
    let name = args.name.clone().unwrap_or_else(run::name_here);
    let mut is_well = true;
    let mut say = |check: Check| {
        is_well &= check.health != Health::Bad;
        // If the output is closed, the exit status still says it.
        let _ = out.write_all(check.lines().as_bytes()).and_then(|()| out.flush());
    };
    let found = authority(args.folder.as_deref());
    let may_sign = may_sign(found.as_ref().ok(), &name);
    match found {
        Err(check) => say(check),
        Ok(authority) => {
            let seen = authority.certificate_path().display().to_string();
            say(Check::good("authority", seen));
            of_stores(&authority).into_iter().for_each(&mut say);
            say(of_node(&authority));
            say(of_java(&authority));
        }
    }
    match may_sign {
        Err(check) => say(check),
        Ok(()) => {
            say(resolves(&name, "Node", &["node", "-e", NODE_RESOLVES, &name]));
            say(resolves(&name, "Python", &["python3", "-c", PYTHON_RESOLVES, &name]));
        }
    }
    HTTPS.iter().for_each(|port| say(of_port(*port)));
    say(clock());
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn authority(folder: Option<&Path>) -> Result<Authority, Check> {
    let bad =
        |error: &dyn std::fmt::Display, mend| Check::bad("authority", error.to_string(), mend);
    let folder = folder_or_default(folder).map_err(|error| bad(&error, "export HOME=~".into()))?;
    let install = format!("eyelet trust --install{}", folder_option(&folder));
    // These errors say what to do, too.
    let read = Authority::read(&folder).map_err(|error| bad(&error, install.clone()))?;
    let Some(authority) = read else {
        return Err(bad(&format!("there is none in {} yet", folder.display()), install));
    };
    match authority.check_dates(SystemTime::now()) {
        Ok(()) => Ok(authority),
        Err(error @ LocalCaError::NotYet { .. }) => {
            Err(bad(&error, "date; sudo timedatectl set-ntp true".into()))
        }
        Err(error) => {
            let word = shell_word(&folder);
            let option = folder_option(&folder);
            let mend = format!("date; eyelet trust --remove{option}; rm -r {word}; {install}");
            Err(bad(&error, mend))
        }
    }
}

/// Checks that the authority, or one that is made now, may sign this name.
fn may_sign(authority: Option<&Authority>, name: &str) -> Result<(), Check> {
    let is_signed = match authority {
        Some(authority) => authority.check_name(&SubjectName::Dns(name.into())).is_ok(),
        None => Permitted::default().has_name(name),
    };
    let project = name.rsplit_once('.').map_or(name, |(project, _)| project);
    let seen = format!("the local authority may not sign {name}");
    if is_signed { Ok(()) } else { Err(Check::bad("names", seen, format!("use {project}.test"))) }
}

fn of_stores(authority: &Authority) -> Vec<Check> {
    let install = format!("eyelet trust --install{}", folder_option(&authority.folder));
    let stores = trust::look(authority, &Places::here());
    // The command for all stores would only print the ones for root.
    let is_for_root = stores.iter().all(|store| store.is_trusted || !store.of_root.is_empty());
    let check = |store: trust::StoreTrust| {
        let mend = match is_for_root {
            true => store.of_root.join(" && "),
            false => install.clone(),
        };
        match store.is_trusted {
            true => Check::good("trust", store.store),
            false => Check::bad("trust", format!("not by {}", store.store), mend),
        }
    };
    let mut checks: Vec<Check> = stores.into_iter().map(check).collect();
    if !trust::has_nss_tool() {
        let seen = "Chromium and Firefox cannot be asked without certutil (libnss3-tools)";
        checks.push(Check::absent("trust", seen));
    }
    checks
}

fn of_node(authority: &Authority) -> Check {
    let file = authority.certificate_path();
    let mend = format!("export NODE_EXTRA_CA_CERTS={}", shell_word(&file));
    match runs(&["node", "-e", NODE_TRUSTS, &file.to_string_lossy()]) {
        Answered::Nothing(why) => Check::absent("Node", why),
        Answered::Yes => Check::good("Node", "trusts it"),
        Answered::No => Check::fair("Node", NOT_OUTSIDE, mend),
    }
}

fn of_java(authority: &Authority) -> Check {
    let alias = format!("eyelet-{}", authority.id());
    let file = shell_word(&authority.certificate_path());
    let mend = format!(
        "sudo keytool -importcert -cacerts -noprompt -storepass changeit -alias {alias} \
         -file {file}"
    );
    let list = ["keytool", "-list", "-cacerts", "-storepass", "changeit", "-alias", &alias];
    match runs(&list) {
        Answered::Nothing(why) => Check::absent("Java", why),
        Answered::Yes => Check::good("Java", "trusts it"),
        Answered::No => Check::fair("Java", NOT_OUTSIDE, mend),
    }
}

fn resolves(name: &str, who: &'static str, command: &[&str]) -> Check {
    match runs(command) {
        Answered::Nothing(why) => Check::absent("names", format!("{who}: {why}")),
        Answered::Yes => Check::good("names", format!("{who} finds {name} on this machine")),
        Answered::No => {
            let mend = match name.ends_with(".localhost") {
                true => FIND_LOCALHOST.to_owned(),
                false => format!("echo '127.0.0.1 {name}' | sudo tee -a /etc/hosts"),
            };
            Check::fair("names", format!("{who} does not find {name} on this machine"), mend)
        }
    }
}

fn of_port(port: u16) -> Check {
    let error = match ports::bound(&[Ipv4Addr::LOCALHOST.into()], port) {
        Ok(_) => return Check::good("port", format!("{port} is free")),
        Err(error) => error,
    };
    if error.kind() == io::ErrorKind::PermissionDenied {
        // 80 as well, from which is redirected. sysctl forgets it at the next start.
        let mend = "echo net.ipv4.ip_unprivileged_port_start=80 | sudo tee \
                    /etc/sysctl.d/50-eyelet.conf && sudo sysctl --system";
        return Check::fair("port", format!("{port} is for root: URLs end in :{}", HTTPS[1]), mend);
    }
    let holder = ports::holder(port);
    if holder.is_some_and(|pid| eyelet_child::has_command(pid, place::COMMAND)) {
        return Check::good("port", format!("{port} is Eyelet's, for your projects"));
    }
    let who = match holder {
        Some(pid) => format!("process {pid} ({}) listens", program(pid)),
        None => "a process of another user listens".to_owned(),
    };
    let seen = format!("{who} on {port}: URLs have another one");
    let mend = format!("sudo ss -ltnp 'sport = :{port}'    # and end it, or go on with the other");
    Check::fair("port", seen, mend)
}

fn program(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

fn clock() -> Check {
    let asks = "timedatectl show --property=NTPSynchronized --value | grep -qx yes";
    if runs(&["timedatectl", "show"]) != Answered::Yes {
        return Check::absent("clock", "no timedatectl says if the network sets it");
    }
    match runs(&["sh", "-c", asks]) {
        Answered::Yes => Check::good("clock", "set by the network"),
        _ => Check::fair(
            "clock",
            "nothing sets it: certificates are valid by it",
            "date; sudo timedatectl set-ntp true",
        ),
    }
}

/// The answer of a program by its exit status.
#[derive(Debug, PartialEq, Eq)]
enum Answered {
    Yes,
    No,
    /// The reason why it says nothing.
    Nothing(String),
}

/// Asks a program, which ends with 0 or 1.
fn runs(command: &[&str]) -> Answered {
    runs_within(command, PROGRAM_TIMEOUT)
}

fn runs_within(command: &[&str], limit: Duration) -> Answered {
    let mut child = match spawn(command) {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Answered::Nothing("not here".into());
        }
        Err(error) => return Answered::Nothing(format!("cannot be run: {error}")),
    };
    let end = Instant::now() + limit;
    let why = loop {
        match child.try_wait() {
            Ok(Some(status)) => match status.code() {
                Some(0) => return Answered::Yes,
                Some(1) => return Answered::No,
                _ => return Answered::Nothing(format!("it failed ({status})")),
            },
            Ok(None) if Instant::now() < end => std::thread::park_timeout(PROGRAM_STEP),
            Ok(None) => break format!("no answer in {} s", limit.as_secs()),
            Err(error) => break error.to_string(),
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    Answered::Nothing(why)
}

fn spawn(command: &[&str]) -> io::Result<std::process::Child> {
    let (program, words) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_says_nothing() {
        let run = |script: &str| runs_within(&["sh", "-c", script], Duration::from_secs(5));
        assert_eq!([run("exit 0"), run("exit 1")], [Answered::Yes, Answered::No]);
        for script in ["exit 2", "kill -9 $$"] {
            let Answered::Nothing(why) = run(script) else { panic!("{script}") };
            assert!(why.starts_with("it failed ("), "{why}");
        }
        let slow = runs_within(&["sleep", "600"], Duration::ZERO);
        assert_eq!(slow, Answered::Nothing("no answer in 0 s".into()));
        let missing = runs_within(&["/nonexistent"], Duration::ZERO);
        assert_eq!(missing, Answered::Nothing("not here".into()));
    }
}

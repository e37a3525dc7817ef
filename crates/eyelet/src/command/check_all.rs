//! `eyelet check`: the mistakes of a configuration, and of the profiles of sandboxes in it with
//! their lists. Nothing is started, and no command that prints a secret is run.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;

use eyelet_config::{SandboxNames, SandboxProfile, sandbox_names, sandbox_profile};
use eyelet_edge::snapshot::check::{self, MISTAKES, counted};
use eyelet_process::control;
use eyelet_sandbox::{RunServing, StandIns, read_lists};

/// Says what a profile without a list needs.
const NO_LIST: &str = "it has no list: without `--allow FILE` or `--learn FILE` all is refused";

/// Prints the mistakes of `file`. Exits with 0, or with 2 if a mistake is an error.
pub fn check(file: &Path, out: &mut impl Write) -> ExitCode {
    let SandboxNames { names, are_alone } = sandbox_names(file);
    if !are_alone {
        let status = check::check(file, control::is_served, out);
        if names.is_empty() || status != ExitCode::SUCCESS {
            return status;
        }
    }
    let mut is_sound = true;
    for name in names {
        let profile = match sandbox_profile(file, &name) {
            Ok(profile) => profile,
            Err(mistakes) => {
                // They are those of all profiles. If the output is closed, the exit code still
                // gives the result.
                let _ = mistakes.iter().try_for_each(|mistake| writeln!(out, "{mistake}"));
                return ExitCode::from(MISTAKES);
            }
        };
        let checked = check_profile((file, &name), &profile);
        is_sound &= checked.is_ok();
        let _ = match checked {
            Ok(said) => writeln!(out, "{said}"),
            Err(mistakes) => print(file, &name, &mistakes, out),
        };
    }
    if is_sound { ExitCode::SUCCESS } else { ExitCode::from(MISTAKES) }
}

/// Prints mistakes, with the profile where they have no place of their own.
fn print(file: &Path, name: &str, mistakes: &str, out: &mut impl Write) -> io::Result<()> {
    for line in mistakes.lines() {
        match line.contains(": error: ") {
            true => writeln!(out, "{line}")?,
            false => writeln!(out, "{}: error: [sandbox.{name}]: {line}", file.display())?,
        }
    }
    Ok(())
}

/// Checks a profile. Returns the lines that say what it has.
fn check_profile((file, name): (&Path, &str), profile: &SandboxProfile) -> Result<String, String> {
    let (list, mut notes) = read_lists(profile)?;
    let own = RunServing::new(profile, &list, profile.dry_run, Path::new("/dev/null"));
    let serving = own.with_list_to_come(profile);
    if serving.lets_all_pass && !own.lets_all_pass && !own.asks {
        notes.push(NO_LIST.to_owned());
    }
    notes.extend(serving.check(&profile.secrets)?);
    let at = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let addresses: Vec<SocketAddr> = serving.checked_ports()?.into_iter().map(at).collect();
    serving.config(&addresses, &mut StandIns::default(), None)?;
    let file = file.display();
    let mut said: String =
        notes.iter().map(|note| format!("{file}: warning: [sandbox.{name}]: {note}\n")).collect();
    let entries = list.entries().count();
    let rules = counted(profile.rules.len(), "rule");
    let entries = format!("{entries} {}", if entries == 1 { "entry" } else { "entries" });
    said.push_str(&format!("{file}: [sandbox.{name}]: ok, {entries}, {rules}"));
    Ok(said)
}

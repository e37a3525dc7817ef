//! `eyelet check`: prints every mistake of a configuration, or its size if there is none.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use eyelet_config::{AcmeSettings, Config, Depth, Diagnostic, Loaded, Severity};
use eyelet_resolve::dns::secure::SecureDns;
use eyelet_tls::client::ClientConfigs;
use eyelet_tls::roots::EvidenceRoots;

use crate::snapshot::sources;

/// Prints the mistakes of `file`. Exits with 0, or with 2 if a mistake is an error. `is_served`
/// tells if a process serves the file.
pub fn check(file: &Path, is_served: impl Fn(&Path) -> bool, out: &mut impl Write) -> ExitCode {
    let loaded = eyelet_config::load(file, Depth::Full);
    let lacks = loaded.as_ref().ok().and_then(|loaded| lacks(&loaded.config));
    // If the output is closed, the exit code still gives the result.
    let _ = match (&loaded, &lacks) {
        (Ok(loaded), Some(error)) => print_lack(file, &loaded.warnings, error, out),
        _ => print(file, &loaded, is_served, out),
    };
    let is_sound = loaded.is_ok() && lacks.is_none();
    if is_sound { ExitCode::SUCCESS } else { ExitCode::from(MISTAKES) }
}

/// Describes what this machine lacks for a sound configuration: certificates of authorities that
/// judge upstreams. Without them `serve` does not start.
fn lacks(config: &Config) -> Option<String> {
    if let Err(error) = ClientConfigs::new(config, &Arc::default(), None) {
        return Some(error.to_string());
    }
    if let Err(error) = SecureDns::new(&config.dns) {
        return Some(format!("[dns] ca: {error}"));
    }
    let asks = config.policy.asks_certificate() || config.mints();
    let roots = asks.then(|| EvidenceRoots::new(config.evidence.ca.as_deref()));
    roots.transpose().err().map(|error| error.to_string())
}

/// Prints the warnings, and what the machine lacks, which has no line in the file.
fn print_lack(
    file: &Path,
    warnings: &[Diagnostic],
    error: &str,
    out: &mut impl Write,
) -> io::Result<()> {
    for warning in warnings {
        writeln!(out, "{warning}")?;
    }
    let file = file.display();
    write!(out, "{file}: error: {error}\n{file}: 1 error")?;
    if !warnings.is_empty() {
        write!(out, ", {}", counted(warnings.len(), "warning"))?;
    }
    writeln!(out)
}

fn print(
    file: &Path,
    loaded: &Result<Loaded, Vec<Diagnostic>>,
    is_served: impl Fn(&Path) -> bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let diagnostics = match loaded {
        Ok(loaded) => &loaded.warnings,
        Err(diagnostics) => diagnostics,
    };
    for diagnostic in diagnostics {
        writeln!(out, "{diagnostic}")?;
    }
    // Line 0 of several mistakes counts those that were left out.
    let shown = |wanted| {
        let of_text = diagnostics.iter().filter(|found| found.line > 0 || diagnostics.len() == 1);
        of_text.filter(|found| found.severity == wanted).count()
    };
    let of_host = loaded.as_ref().map(|loaded| sources::warnings(&loaded.config));
    let of_host = of_host.unwrap_or_default();
    let (errors, warnings) = (shown(Severity::Error), shown(Severity::Warning) + of_host.len());
    let (path, file) = (file, file.display());
    for warning in of_host {
        writeln!(out, "{file}: warning: {warning}")?;
    }
    match loaded {
        Ok(Loaded { config, .. }) => {
            for (_, list) in config.policy.lists().iter() {
                if let Some(file) = &list.file {
                    writeln!(out, "{file}: {}", list.list)?;
                }
            }
            let listeners = counted(config.listeners.len(), "listener");
            let rules = counted(config.rules.len(), "rule");
            write!(out, "{file}: ok, {listeners}, {rules}")?;
        }
        Err(_) => write!(out, "{file}: {}", counted(errors, "error"))?,
    }
    if warnings > 0 {
        write!(out, ", {}", counted(warnings, "warning"))?;
    }
    writeln!(out)?;
    if let Some(acme) = loaded.as_ref().ok().and_then(|loaded| loaded.config.acme.as_ref()) {
        print_wildcards(&file, acme, out)?;
    }
    let keys = loaded.as_ref().map_or(&[][..], |loaded| &loaded.upgrade_keys);
    if !keys.is_empty() && is_served(path) {
        writeln!(
            out,
            "{file}: a reload does not change {}: `eyelet upgrade {file}` does, and keeps \
             connections",
            keys.join(", "),
        )?;
    }
    Ok(())
}

/// Says how an ACME server validates wildcards.
fn print_wildcards(
    file: impl std::fmt::Display,
    acme: &AcmeSettings,
    out: &mut impl Write,
) -> io::Result<()> {
    let names: Vec<&str> = acme.wildcards().collect();
    if names.is_empty() {
        return Ok(());
    }
    write!(out, "{file}: {} by the challenge ", names.join(", "))?;
    match acme.dns_hook.first() {
        Some(hook) => writeln!(out, "DNS-01: {hook} makes and removes its DNS record"),
        None => writeln!(
            out,
            "DNS-PERSIST-01, with a DNS record that stays: `eyelet acme record {file}` prints it \
             once the file is served"
        ),
    }
}

/// The number with its noun, which has an `s` unless it is one.
pub fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Exit code for a configuration with mistakes.
pub const MISTAKES: u8 = 2;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn examples() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
    }

    #[test]
    fn the_examples_are_sound() {
        let lists = "allow.txt: 3 names\nbuilders.txt: 2 networks\n";
        for (file, lists, expected) in [
            ("acme.toml", "", "ok, 2 listeners, 1 rule, 2 warnings"),
            ("ci.toml", lists, "ok, 1 listener, 2 rules"),
            ("egress.toml", "", "ok, 1 listener, 3 rules"),
            ("gateway.toml", "", "ok, 3 listeners, 4 rules"),
            ("many-names.toml", "", "ok, 2 listeners, 8 rules"),
            ("wildcard.toml", "", "ok, 2 listeners, 1 rule, 3 warnings"),
        ] {
            let mut out = Vec::new();
            let path = examples().join(file);
            let code = check(&path, |_| false, &mut out);
            let out = String::from_utf8(out).unwrap();
            let ok = format!("{}: {expected}\n", path.display());
            let (before, after) = out.split_once(&ok).expect("a sound example");
            assert!(before.starts_with(lists), "{out}");
            let by_record = after.contains("*.app.example by the challenge DNS-PERSIST-01");
            assert_eq!((by_record, after.is_empty()), (file == "wildcard.toml", !by_record));
            // A public server issues nothing for the names of examples, and nothing else is wrong.
            let warnings = out.matches(" warning: ").count();
            let of_names = out.matches("a public ACME server issues nothing for").count();
            let expected = match file {
                "acme.toml" => 2,
                "wildcard.toml" => 3,
                _ => 0,
            };
            assert_eq!((warnings, of_names), (expected, expected));
            assert_eq!(code, ExitCode::SUCCESS);
        }
    }

    #[test]
    fn what_a_reload_does_not_change_is_said_where_a_process_serves() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edge.toml");
        let rule = "[[rule]]\naction = \"refuse\"\n[limits]\nmemory_max = \"64MiB\"\n";
        let text = format!("[[listener]]\naddress = \"127.0.0.1:443\"\n{rule}");
        std::fs::write(&path, text).unwrap();
        for is_served in [true, false] {
            let mut out = Vec::new();
            assert_eq!(check(&path, |_| is_served, &mut out), ExitCode::SUCCESS);
            let out = String::from_utf8(out).unwrap();
            assert_eq!(
                out.contains("a reload does not change limits.memory_max"),
                is_served,
                "{out}"
            );
        }
    }

    #[test]
    fn what_the_machine_lacks_comes_after_the_warnings() {
        let mut out = Vec::new();
        let warnings = ["one", "two"].map(|message| Diagnostic {
            file: "edge.toml".into(),
            line: 3,
            column: 1,
            message: message.into(),
            severity: Severity::Warning,
            source: String::new(),
        });
        print_lack(Path::new("edge.toml"), &warnings, "no CA certificates", &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        let end = "\nedge.toml: error: no CA certificates\nedge.toml: 1 error, 2 warnings\n";
        assert!(out.starts_with("edge.toml:3:1: warning: one\n") && out.ends_with(end), "{out}");
    }

    #[test]
    fn the_edge_example_lacks_only_its_certificate() {
        let mut out = Vec::new();
        let code = check(&examples().join("edge.toml"), |_| false, &mut out);
        let out = String::from_utf8(out).unwrap();
        let errors: Vec<&str> = out.lines().filter(|line| line.contains(": error: ")).collect();
        assert_eq!(code, ExitCode::from(2));
        assert_eq!(errors.len(), 2, "{out}");
        assert!(errors.iter().all(|error| error.contains("No such file")), "{out}");
        assert!(out.ends_with("edge.toml: 2 errors, 1 warning\n"), "{out}");
    }
}

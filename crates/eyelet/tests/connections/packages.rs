//! Tests the parts of packages beside the program: the configuration as it is installed, and a
//! command line that manual pages are made from.

use std::process::Command;

use crate::support::pki::Kind;
use crate::support::{Pki, output};

const CONFIGURATION: &str = include_str!("../../../../packaging/edge.toml");

const UNIT: &str = include_str!("../../../../packaging/eyelet.service");

/// The configuration with its tables that are comments.
fn with_tables() -> String {
    let mut is_table = false;
    let mut text = String::new();
    for line in CONFIGURATION.lines() {
        is_table = line.starts_with("# [") || is_table && line.starts_with("# ");
        let line = if is_table { line.trim_start_matches("# ") } else { line };
        text += &format!("{line}\n");
    }
    text
}

#[test]
fn the_packaged_configuration_passes_check_and_so_do_the_tables_in_its_comments() {
    for (text, said) in [(CONFIGURATION.to_owned(), "1 rule"), (with_tables(), "3 rules")] {
        let pki = Pki::new();
        pki.server("app", &["app.example"], Kind::P256);
        let file = pki.folder.write("edge.toml", &text);
        let checked = output(Command::new(env!("CARGO_BIN_EXE_eyelet")).arg("check").arg(file));
        assert!(checked.status.success() && checked.text.contains(said), "{text}\n{checked:?}");
    }
    // The unit makes the folder of the socket.
    assert!(with_tables().contains("\n[admin]\naddress = \"unix:/run/eyelet/"), "{CONFIGURATION}");
    assert!(UNIT.contains("\nRuntimeDirectory=eyelet\n"), "{UNIT}");
}

/// Collects what a manual page of this command would leave without a text.
fn without_text(command: &clap::Command, found: &mut Vec<String>) {
    let name = command.get_name();
    if command.get_about().is_none() {
        found.push(name.to_owned());
    }
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    for argument in shown.filter(|argument| argument.get_help().is_none()) {
        found.push(format!("{name}: {}", argument.get_id()));
    }
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        without_text(inner, found);
    }
}

#[test]
fn every_command_and_option_has_a_text_for_its_manual_page() {
    let definition = eyelet::command::cli::definition();
    definition.clone().debug_assert();
    let mut found = Vec::new();
    without_text(&definition, &mut found);
    assert!(found.is_empty(), "{found:?}");
}

//! Load tools, and side-by-side runs of Eyelet and its peers. They share no code with the program
//! under test, and are not shipped.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a tool for developers: its results are for stdout, and a broken run should stop"
)]

mod accounts;
mod board;
mod child;
mod cli;
mod client;
mod flight;
mod lab;
mod machine;
mod own;
mod peers;
mod run;

use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Parser;
use eyelet_probe::procfs;
use serde_json::{Value, json};

use cli::{Cli, Scenario};
use lab::Lab;
use run::requests::Work;
use run::{
    Findings, bulk, changes, chat, churn, compression, handshakes, idle, million, requests,
    sandbox, splice, squid, storm, svn,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.scenario {
        Scenario::Squid(_) | Scenario::Sandbox(_) if !cli.against.is_empty() => {
            Err(io::Error::other("it measures rows of its own: leave --against out"))
        }
        Scenario::Sandbox(sandbox::Options { inside: false, .. }) => sandbox::enter(),
        Scenario::Squid(squid::Options { inside: false, .. }) => squid::enter(),
        Scenario::Peer(own) => own::serve(own),
        _ => measure(&cli),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("eyelet-bench: {e}");
            ExitCode::FAILURE
        }
    }
}

fn measure(cli: &Cli) -> io::Result<()> {
    let wants_eyelet =
        cli.against.is_empty() || cli.against.iter().any(|name| name.starts_with("eyelet"));
    let eyelet = if wants_eyelet { find_eyelet(cli.eyelet.clone()) } else { None };
    let cores = (cli.server_core, cli.client_core);
    let lab = Lab::new(cores, eyelet, cli.before.clone(), cli.accounts)?;
    let load = machine::load_average();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        tokio::select! {
            outcome = scenario(cli, &lab) => outcome,
            // Returning drops and thus kills the children.
            _ = tokio::signal::ctrl_c() => Err(io::Error::other("interrupted")),
        }
    })?;
    if outcome.boards.is_empty() {
        return Err(io::Error::other("nothing was measured"));
    }
    for board in &outcome.boards {
        print!("{}", board.table());
    }
    println!();
    for note in &outcome.notes {
        println!("{note}");
    }
    println!("load average {load:.1} before, {:.1} after", machine::load_average());
    if let Some(file) = &cli.json {
        std::fs::write(file, format!("{:#}\n", report(&outcome, &lab, load)))?;
        println!("samples: {}", file.display());
    }
    Ok(())
}

async fn scenario(cli: &Cli, lab: &Lab) -> io::Result<Findings> {
    let against = &cli.against[..];
    match &cli.scenario {
        Scenario::Idle(options) => idle::run(lab, against, options).await,
        Scenario::Splice(options) => splice::run(lab, against, options).await,
        Scenario::Squid(options) => squid::run(lab, options).await,
        Scenario::Sandbox(options) => sandbox::run(lab, options).await,
        Scenario::Churn(options) => churn::run(lab, against, options).await,
        Scenario::Storm(options) => storm::run(lab, against, options).await,
        Scenario::Chat(options) => chat::run(lab, against, options).await,
        Scenario::Handshakes(options) => handshakes::run(lab, against, options).await,
        Scenario::Bulk(options) => bulk::run(lab, against, options).await,
        Scenario::Compression(options) => compression::run(lab, options).await,
        Scenario::Svn(options) => svn::run(lab, options).await,
        Scenario::Requests(options) => {
            let (options, work) = options.work();
            requests::run(lab, against, options, work).await
        }
        Scenario::Wake(options) => requests::run(lab, against, options, Work::Echo).await,
        Scenario::Million(options) => million::run(lab, options).await,
        Scenario::Changes(options) => changes::run(lab, options).await,
        Scenario::Peer(_) => Ok(Findings::default()),
    }
}

fn report(outcome: &Findings, lab: &Lab, load: f64) -> Value {
    let boards: Vec<Value> = outcome.boards.iter().map(board::Board::json).collect();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let command: Vec<String> = std::env::args().skip(1).collect();
    let versions: serde_json::Map<String, Value> = peers::versions(lab)
        .into_iter()
        .map(|(name, text)| (name.to_owned(), json!(text)))
        .collect();
    json!({
        "versions": versions,
        "command": command,
        "kernel": kernel.trim(),
        "cores": machine::cores(),
        "load_average": { "before": load, "after": machine::load_average() },
        "tables": boards,
        "notes": outcome.notes,
    })
}

/// The release binary beside this one. It is built if it is missing and cargo is installed.
fn find_eyelet(given: Option<PathBuf>) -> Option<PathBuf> {
    if given.is_some() {
        return given;
    }
    let beside = std::env::current_exe().ok()?.with_file_name("eyelet");
    if !beside.is_file() {
        eprintln!("no eyelet beside this program: cargo build --release -p eyelet");
        let build = Command::new("cargo").args(["build", "--release", "-p", "eyelet"]).status();
        if let Err(e) = build {
            eprintln!("cargo does not run: {e}");
        }
    }
    beside.is_file().then_some(beside)
}

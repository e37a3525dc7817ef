//! The command line: arguments and commands.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::sync::oneshot;

use crate::control::Control;
use crate::diagnostics::{self, Diagnostics};
use crate::signals::{Signals, StopCause};
use crate::train::{self, DictionaryCommand};
use crate::{check, control, demo, explain, serve};
use eyelet_config::Depth;
use eyelet_telemetry::counters;

/// A TLS edge: peeks at the ClientHello, decides by rules, then splices, terminates or refuses.
#[derive(Debug, Parser)]
#[command(name = "eyelet", version, about, max_term_width = 100)]
#[command(after_help = "Start with `eyelet demo`. docs/configuration.md lists every key of FILE.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an edge; SIGTERM drains, SIGHUP reloads
    ///
    /// Access-log lines go to stdout (or where [log] says), everything else to stderr. Exit status:
    /// 0 after a drain, 1 if it cannot start or continue, 2 if FILE has mistakes.
    Serve {
        /// The configuration
        file: PathBuf,
    },
    /// Read FILE and every file that it names, and print every mistake
    ///
    /// Prints each mistake as file:line:column, with what was expected. Exit status: 0 if there is
    /// no mistake, else 2.
    Check {
        /// The configuration
        file: PathBuf,
    },
    /// Have the process that serves FILE read it again
    ///
    /// The file is checked in full first; a mistake changes nothing. Exit status: 0 when the new
    /// configuration serves, 1 if no process serves FILE, or more than one, or it cannot, 2 if FILE
    /// has mistakes.
    Reload {
        /// The configuration
        file: PathBuf,
    },
    /// Show which rule of FILE decides a connection, and why no earlier rule does
    Explain(Box<explain::ExplainArgs>),
    /// Make dictionaries for compression
    #[command(subcommand)]
    Dictionary(DictionaryCommand),
    /// Run a self-contained edge on loopback, with its own CA, TLS origin and web application
    Demo(demo::DemoArgs),
}

/// Runs the command.
pub fn run() -> ExitCode {
    // This comes before the configuration is read. Its text and tables then are mappings, and
    // freeing returns them whole.
    eyelet_sys::memory::configure();
    let cli = Cli::parse();
    let diagnostics = match diagnostics::start() {
        Ok(diagnostics) => diagnostics,
        Err(error) => {
            eprintln!("eyelet: cannot write to standard error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let status = obey(cli.command, &diagnostics);
    diagnostics.finish();
    status
}

fn obey(command: Command, diagnostics: &Diagnostics) -> ExitCode {
    match command {
        Command::Serve { file } => serve(&file, diagnostics),
        Command::Check { file } => check::check(&file, &mut std::io::stdout()),
        Command::Reload { file } => control::reload(&file),
        Command::Explain(args) => explain::explain(&args, &mut std::io::stdout()),
        Command::Dictionary(command) => train::run(&command, &mut std::io::stdout()),
        Command::Demo(args) => demo::run(args),
    }
}

fn serve(file: &Path, diagnostics: &Diagnostics) -> ExitCode {
    let loaded = match eyelet_config::load(file, Depth::Files) {
        Ok(loaded) => loaded,
        Err(mistakes) => {
            for mistake in &mistakes {
                eprintln!("{mistake}");
            }
            return ExitCode::from(check::MISTAKES);
        }
    };
    for warning in &loaded.warnings {
        eprintln!("{warning}");
    }
    match run_edge(file, loaded.config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            diagnostics.line(&format!("eyelet: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run_edge(file: &Path, config: eyelet_config::Config) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { Signals::new() })?;
    // This comes before the line with the addresses: its reader may ask for a reload at once.
    let control = runtime.block_on(async { Control::open(file) });
    let control = control.inspect_err(|error| {
        tracing::warn!("no control socket: {error}; only SIGHUP reloads");
    });
    let mut running = serve::start(config)?;
    let stop = signals.until_stop(&mut running, file, control.ok());
    let stop = runtime.block_on(stop);
    match stop {
        StopCause::Signal(signal) => {
            tracing::info!("{signal}: draining; a second signal ends at once")
        }
        StopCause::Died => tracing::error!("a worker has ended by itself: draining the others"),
    }
    let (done, drained) = oneshot::channel();
    std::thread::Builder::new().name("drain".into()).spawn(move || {
        running.drain();
        // After a second signal the receiver is dropped.
        let _ = done.send(());
    })?;
    let drained = runtime.block_on(async {
        tokio::select! {
            drained = drained => drained.is_ok(),
            _ = signals.until_terminated() => false,
        }
    });
    tracing::info!("{}", counters::snapshot());
    match stop {
        StopCause::Died => Err("a worker has ended".into()),
        StopCause::Signal(_) if !drained => Err("a second signal ended the drain".into()),
        StopCause::Signal(_) => Ok(()),
    }
}

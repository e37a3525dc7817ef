//! The command line: arguments and commands.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tokio::sync::oneshot;
use tracing::Level;

use crate::command::train::{self, DictionaryCommand};
use crate::command::{check_all, demo, doctor, explain, held, local, passwd, run, sandbox};
use eyelet_config::{Config, Depth, Diagnostic};
use eyelet_edge::snapshot::{check, listen};
use eyelet_engine::worker::Order;
use eyelet_probe::ProbeArgs;
use eyelet_process::control::{self, Control};
use eyelet_process::diagnostics::{self, Diagnostics};
use eyelet_process::serve::Running;
use eyelet_process::signals::{Operated, Signals, StopCause};
use eyelet_process::store::{self, Stored};
use eyelet_process::takeover::Predecessor;
use eyelet_process::{serve, upgrade};
use eyelet_sys::service;
use eyelet_telemetry::counters;
use eyelet_top::TopArgs;

const AFTER_HELP: &str = "Start with `eyelet demo`, or `eyelet run -- node server.js`. \
    docs/configuration.md lists every key of FILE.";

/// TLS reverse proxy and egress allowlist: rules decide by the name in a client's first message.
#[derive(Debug, Parser)]
#[command(name = "eyelet", version, about, max_term_width = 100)]
#[command(after_help = AFTER_HELP)]
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
        /// Take over from the process at the other end of the standard input
        #[arg(long, hide = true)]
        handover: bool,
    },
    /// Read FILE and every file that it names, and print every mistake, also of profiles for
    /// `eyelet sandbox`
    ///
    /// Prints each mistake as file:line:column, with what was expected. Exit status: 0 if there is
    /// no mistake, else 2.
    Check {
        /// The configuration
        file: PathBuf,
    },
    /// Read FILE again in the process that serves it, without ending connections
    ///
    /// The file is checked in full first; a mistake changes nothing. Exit status: 0 when the new
    /// configuration serves, 1 if no process serves FILE, or more than one, or it cannot, 2 if FILE
    /// has mistakes.
    Reload {
        /// The configuration
        file: PathBuf,
    },
    /// Replace the program of the process that serves FILE, and keep its connections
    ///
    /// The process starts the program, which reads FILE. Then it hands over its listening sockets
    /// and its connections. Exit status: 0 when the new process serves, 1 if no process serves
    /// FILE, or more than one, or the new one cannot, 2 if FILE has mistakes. After 1 and 2 the old
    /// process serves on.
    Upgrade {
        /// The configuration
        file: PathBuf,
        /// The new program; by default the one at the path of the process that serves FILE
        #[arg(long, value_name = "NEW")]
        binary: Option<PathBuf>,
    },
    /// Show connections and requests that wait for a decision, and decide
    ///
    /// They wait by a rule with `action = "hold"`, or by `eyelet sandbox --ask`. Exit status: 0, or
    /// 1 if no process answers, or nobody waits for that name.
    Held(held::HeldArgs),
    /// Show which rule of FILE decides a connection, and why no earlier rule does
    Explain(Box<explain::ExplainArgs>),
    /// Start an application with TLS in front of it, and restart it when it ends
    ///
    /// Eyelet's lines go to stderr and begin with "eyelet:". The command's output stays as it is.
    Run(Box<run::RunArgs>),
    /// Put TLS in front of applications that run already
    Proxy(Box<run::ProxyArgs>),
    /// Show the names that `eyelet run` and `eyelet proxy` serve at their shared port
    ///
    /// Prints a line for each: its URL, where its application listens, the process that serves it,
    /// and the folder where that was started. Exit status: 0, or 1 if an edge does not answer.
    List,
    /// Say what keeps local HTTPS from working on this machine, and how to mend it
    ///
    /// Prints a line for each thing: ok, note, bad, or none for a program that is not here. Below
    /// what is bad is the command that mends it. Exit status: 0 if nothing is bad, else 1.
    Doctor(doctor::DoctorArgs),
    /// End the `eyelet run` or `eyelet proxy` that has this name
    ///
    /// Ends it as SIGTERM does: an application has 10 s. Exit status: 0 when it has ended, or 1 if
    /// none has this name.
    Stop(run::StopArgs),
    /// Be the edge of all projects of this user; `eyelet run` starts it
    #[command(name = run::shared::place::COMMAND, hide = true)]
    SharedEdge {
        /// The path of the socket that is the standard input
        socket: PathBuf,
    },
    /// Run a command whose only way out is a list of names
    ///
    /// Needs no root, no firewall rules and no proxy variables. The command gets a network of its
    /// own, in which every address leads to Eyelet. Eyelet looks up names on the list when they are
    /// dialled, and refuses others. Exit status: that of the command; 125 if it was not started,
    /// 126 or 127 if it cannot be run.
    Sandbox(Box<sandbox::SandboxArgs>),
    /// Make a list for a sandbox from access logs
    ///
    /// Prints the names and ports that were reached, sorted and counted. Exit status: 0, or 1 if a
    /// log cannot be read.
    Learn(sandbox::LearnArgs),
    /// Make dictionaries for compression
    #[command(subcommand)]
    Dictionary(DictionaryCommand),
    /// Print the DNS records for wildcards, or change the account's key
    #[command(subcommand)]
    Acme(AcmeCommand),
    /// Show which programs trust the local certificate authority; install it, or remove it
    ///
    /// Exit status of --install and --remove: 0, or 1 if something is left to be done, such as by
    /// root. Without a flag it is 0.
    Trust(local::TrustArgs),
    /// Write a certificate and its key, signed by the local certificate authority
    ///
    /// Writes NAME.pem and NAME.key, by the first name. Files of an earlier call are replaced. Exit
    /// status: 0, or 1 if there are no files.
    Cert(local::CertArgs),
    /// Make a line for the users of a proxy: a name, and the hash of a token
    ///
    /// The line goes to standard output, and a new token to standard error.
    Passwd(passwd::PasswdArgs),
    /// Show what a TLS server does, and what to do about it
    ///
    /// Works with any TLS server. Opens about twenty connections, one at a time, and prints a line
    /// for each finding: ok, note (a choice that costs something), bad, or unknown. Certificates
    /// are reported, not trusted. Exit status: 0 if a TLS server answered, 1 if none did, 2 if a
    /// flag or HOST:PORT is wrong or the file of --svg cannot be written.
    Probe(Box<ProbeArgs>),
    /// Show live what an edge does, in this terminal
    ///
    /// Asks the admin server of the edge that serves FILE, once a second: the configuration needs
    /// [admin]. Keys: q ends, p or an arrow sorts connections by the other column. Exit status: 0,
    /// 1 if no edge answers, 2 if FILE has mistakes or no [admin].
    Top(TopArgs),
    /// Serve a page on loopback that shows what the edge does: https://app.localhost:8443
    Demo(demo::DemoArgs),
}

/// Subcommands of `eyelet acme`.
#[derive(Debug, Subcommand)]
enum AcmeCommand {
    /// Give the ACME account of the process that serves FILE another key
    ///
    /// Certificates and their keys stay. The new key is stored before the ACME server is told, so a
    /// crash loses no account. Exit status: 0 when the account has the new key, 1 if no process
    /// serves FILE, or more than one, or the server refuses.
    Rollover {
        /// The configuration
        file: PathBuf,
    },
    /// Print the DNS records with which the ACME server validates wildcards of FILE
    ///
    /// Add each to its zone, once. It names the account of the process that serves FILE, and its
    /// comment says if the DNS has it now. Exit status: 0, or 1 if no process serves FILE, or it
    /// orders no wildcard, or the server cannot be used.
    Record {
        /// The configuration
        file: PathBuf,
    },
}

/// The definition of the command line. `examples/manuals.rs` makes manual pages of it.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Runs the command.
pub fn run() -> ExitCode {
    // This comes before the configuration is read. Its text and tables then are mappings, and
    // freeing returns them whole.
    eyelet_sys::memory::configure();
    let cli = Cli::parse();
    if let Command::Sandbox(args) = &cli.command
        && let Some(channel) = args.inside()
    {
        // It must have one thread.
        return eyelet_sandbox::run_inside(channel);
    }
    if let Command::SharedEdge { socket } = cli.command {
        // What it logs goes to the projects.
        return run::shared::serve(socket);
    }
    let level = match cli.command {
        Command::Sandbox(_) | Command::Run(_) | Command::Proxy(_) | Command::Demo(_) => Level::WARN,
        _ => Level::INFO,
    };
    let started = match &cli.command {
        Command::Sandbox(args) if args.is_json() => {
            diagnostics::start_to(level, sandbox::JsonLines)
        }
        _ => diagnostics::start(level),
    };
    let diagnostics = match started {
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
        Command::Serve { file, handover } => serve(&file, handover, diagnostics),
        Command::Check { file } => check_all::check(&file, &mut io::stdout()),
        Command::Reload { file } => control::reload(&file),
        Command::Upgrade { file, binary } => control::upgrade(&file, binary.as_deref()),
        Command::Held(args) => held::held(&args),
        Command::Explain(args) => {
            let typed = std::env::args_os().skip(2);
            let words: Vec<_> = typed.map(|word| word.to_string_lossy().into_owned()).collect();
            explain::explain(&args, &words, &mut io::stdout())
        }
        Command::Run(args) => run::run(&args, diagnostics),
        Command::Proxy(args) => run::proxy(&args, diagnostics),
        Command::List => run::list(&mut io::stdout()),
        Command::Stop(args) => run::stop(&args),
        Command::Doctor(args) => doctor::doctor(&args, &mut io::stdout()),
        Command::SharedEdge { socket } => run::shared::serve(socket),
        Command::Sandbox(args) => sandbox::run(&args, diagnostics),
        Command::Learn(args) => sandbox::learn(&args, &mut io::stdout()),
        Command::Dictionary(command) => train::run(&command, &mut io::stdout()),
        Command::Acme(AcmeCommand::Rollover { file }) => control::change_account_key(&file),
        Command::Acme(AcmeCommand::Record { file }) => control::acme_records(&file),
        Command::Trust(args) => local::trust(&args),
        Command::Cert(args) => local::cert(&args),
        Command::Passwd(args) => passwd::passwd(&args),
        Command::Probe(args) => eyelet_probe::run(&args, &mut io::stdout()),
        Command::Top(args) => eyelet_top::run(&args, &mut io::stdout()),
        Command::Demo(args) => demo::run(&args),
    }
}

fn serve(file: &Path, handover: bool, diagnostics: &Diagnostics) -> ExitCode {
    let program = upgrade::own_program();
    let predecessor = match handover.then(Predecessor::meet).transpose() {
        Ok(predecessor) => predecessor,
        Err(error) => {
            diagnostics.line(&format!("eyelet: --handover: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let loaded = match eyelet_config::load(file, Depth::Files) {
        Ok(loaded) => loaded,
        Err(mistakes) => {
            let text = lines(&mistakes);
            match predecessor {
                Some(predecessor) => predecessor.fail(check::MISTAKES, text),
                None => eprint!("{text}"),
            }
            return ExitCode::from(check::MISTAKES);
        }
    };
    let warnings = lines(&loaded.warnings);
    eprint!("{warnings}");
    let predecessor = predecessor.map(|process| (process, warnings));
    match run_edge(file, program, loaded.config, predecessor, diagnostics) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            diagnostics.line(&format!("eyelet: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn lines(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(|diagnostic| format!("{diagnostic}\n")).collect()
}

/// A running edge, and its control socket.
type Started = (Running, Option<Control>);

/// Starts the edge, by itself or in place of another process. The control socket is open before the
/// line with the addresses, because its reader may ask for a reload at once.
fn start(
    file: &Path,
    config: Config,
    predecessor: Option<(Predecessor, String)>,
) -> Result<Started, Box<dyn Error>> {
    let open = || {
        let failed = |error: &io::Error| {
            tracing::warn!("no control socket: {error}; only SIGHUP reloads");
        };
        Control::open(file).inspect_err(failed).ok()
    };
    let Some((predecessor, warnings)) = predecessor else {
        let control = open();
        return Ok((restart(config)?, control));
    };
    match serve::start_after(config, &predecessor.listeners, Order::Hold) {
        Ok(running) => {
            let handover = predecessor.replace(&running, warnings)?;
            let control = open();
            // Without the other process this one serves all the same.
            if let Err(error) = handover.begin() {
                tracing::error!("no connections are taken over: {error}");
            }
            Ok((running, control))
        }
        Err(error) => {
            predecessor.fail(1, format!("{error}\n"));
            Err(error.into())
        }
    }
}

/// Starts the edge with what the service manager passes: sockets, and what an earlier process had.
fn restart(config: Config) -> Result<Running, Box<dyn Error>> {
    let passed = service::passed().map_err(|error| format!("socket activation: {error}"))?;
    let activated = listen::activated(&config, passed.others);
    let Some(mut stored) = Stored::open(passed.kept) else {
        return Ok(serve::start_after(config, &activated, Order::Serve)?);
    };
    let earlier = std::mem::take(&mut stored.listeners);
    let listeners = listen::restarted(&config, activated, earlier);
    let running = serve::start_after(config, &listeners, Order::Hold)?;
    drop(listeners);
    stored.serve(&running)?;
    Ok(running)
}

/// Logs why an edge stops. A signal ends earlier processes, too.
fn log_stop(stop: StopCause, is_kept: bool, running: &Running) {
    match stop {
        StopCause::Signal(signal) => {
            let what = if is_kept { "leaving" } else { "draining" };
            tracing::info!("{signal}: {what}; a second signal ends at once");
            running.predecessors.drain();
        }
        StopCause::HandedOver => tracing::info!("handed over"),
        StopCause::Successor => tracing::info!("draining: the process that serves says so"),
        StopCause::Died(thread) => {
            tracing::error!("{thread} has ended by itself: draining")
        }
    }
}

fn run_edge(
    file: &Path,
    program: PathBuf,
    config: Config,
    predecessor: Option<(Predecessor, String)>,
    diagnostics: &Diagnostics,
) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { Signals::new() })?;
    let started = runtime.block_on(async { start(file, config, predecessor) });
    let (mut running, control) = started?;
    service::ready();
    let mut edge = Operated {
        running: &mut running,
        diagnostics,
        file,
        control,
        program,
        explain: explain::explain_served,
        upgrade: None,
    };
    let stop = runtime.block_on(signals.until_stop(&mut edge));
    // The process that replaces this one is the service then, and says what it does.
    let is_leaving = edge.is_leaving();
    drop(edge);
    running.admin.note_draining();
    let kept_max = service::kept_max().filter(|_| stop.is_for_the_next_process() && !is_leaving);
    log_stop(stop, kept_max.is_some(), &running);
    let (done, drained) = oneshot::channel();
    std::thread::Builder::new().name("drain".into()).spawn(move || {
        match kept_max.map(|max| store::keep(&running, max)) {
            None => {}
            Some(Ok(kept)) => tracing::info!("the service manager keeps {kept} connections"),
            Some(Err(error)) => tracing::error!("{error}"),
        }
        if !is_leaving {
            service::stopping();
        }
        running.drain();
        // After a second signal the receiver is dropped.
        let _ = done.send(());
    })?;
    let second_signal = async {
        // A service that stops sends one to each process, also to one that was told so.
        if stop == StopCause::Successor {
            signals.until_terminated().await;
        }
        signals.until_terminated().await;
    };
    let drained = runtime.block_on(async {
        tokio::select! {
            drained = drained => drained.is_ok(),
            () = second_signal => false,
        }
    });
    tracing::info!("{}", counters::snapshot());
    match stop {
        StopCause::Died(thread) => Err(format!("{thread} has ended").into()),
        _ if !drained => Err("a second signal ended the drain".into()),
        StopCause::Signal(_) | StopCause::HandedOver | StopCause::Successor => Ok(()),
    }
}

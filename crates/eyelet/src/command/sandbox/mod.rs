//! `eyelet sandbox`: runs a command whose only way out is an edge of its own, by a list of names.

mod args;
mod learn;
mod output;

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, BufReader, ErrorKind, PipeWriter, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use std::{env, fs};

use eyelet_config::{Config, SandboxProfile, SecretSettings, SecretSource, sandbox_names};
use eyelet_edge::snapshot::listen;
use eyelet_hold::Holds;
use eyelet_sandbox::{
    AllowList, ConfineStep, Confined, ConfinedPlan, ConfinedSockets, Existing, RefusedDials,
    ResolvedNames, RunEnd, RunOutputs, RunRecord, RunServing, RunTrust, SandboxError, read_lists,
    serve_names,
};
use eyelet_sys::child::Signal;
use eyelet_sys::file::OwnFolder;
use eyelet_tls::roots::system_roots;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::oneshot;

use self::output::Screen;
use eyelet_process::control::{
    Control, ControlCommand, ControlRequest, NOTHING_HELD, answer_held, has_said_nothing,
    own_folder,
};
use eyelet_process::diagnostics::Diagnostics;
use eyelet_process::reload::ReloadOutcome;
use eyelet_process::serve::{self, Running};
use eyelet_process::signals::Signals;

pub use self::args::SandboxArgs;
pub use self::learn::{LearnArgs, learn};
pub use self::output::JsonLines;

/// The exit status where the command was not started, as other programs that start one have it.
const NOT_STARTED: u8 = 125;
/// The exit status of a shell for a program that is not there, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// A shell adds this to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;
/// The answer to a verdict "always".
const UNCHANGED: &str = "no verdict: a sandbox does not change its list: allow the name `--for` a \
    time, and add it to the list for the next run";
/// Variables that lead a command to sockets of the user's session, or to a proxy that is not there.
const REMOVED: [&str; 14] = [
    "ALL_PROXY",
    "DBUS_SESSION_BUS_ADDRESS",
    "DOCKER_HOST",
    "FTP_PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NOTIFY_SOCKET",
    "NO_PROXY",
    "SSH_AUTH_SOCK",
    "all_proxy",
    "ftp_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Runs the command. Returns its exit status.
pub fn run(args: &SandboxArgs, diagnostics: &Diagnostics) -> ExitCode {
    let screen = Screen { diagnostics, is_json: args.json };
    match begin(args, &screen) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            error.to_string().lines().for_each(|line| screen.fail(line));
            let failed = error.downcast_ref::<SandboxError>();
            let failed = failed.filter(|failed| failed.step == ConfineStep::Command);
            ExitCode::from(match failed.map(|failed| failed.error.kind()) {
                Some(ErrorKind::NotFound) => NOT_FOUND,
                Some(_) => NOT_EXECUTABLE,
                None => NOT_STARTED,
            })
        }
    }
}

/// Says what is missing where the options allow nothing.
const NO_LIST: &str = "say what it may reach: `--allow FILE`, `--learn FILE`, `--ask`, or \
    `--config FILE` with `--profile NAME`";

/// Reads the profile, and adds what the options allow.
fn profile(args: &SandboxArgs) -> Result<SandboxProfile, String> {
    let mut profile = match (&args.config, &args.profile) {
        (Some(file), Some(name)) => {
            eyelet_config::sandbox_profile(file, name).map_err(|found| {
                found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
            })?
        }
        (Some(file), None) => {
            let names = sandbox_names(file).names.join(", ");
            return Err(format!(
                "--config needs --profile NAME, of those in {}: {names}",
                file.display()
            ));
        }
        (None, Some(_)) => return Err("--profile needs --config FILE, which has it".into()),
        (None, None) if args.allow.is_empty() && args.learn.is_none() && !args.ask => {
            return Err(NO_LIST.into());
        }
        (None, None) => SandboxProfile::default(),
    };
    profile.allow_files.extend_from_slice(&args.allow);
    // What was learnt before is allowed by its entry, also at other ports than the usual ones.
    let learnt = args.learn.iter().filter(|file| file.is_file());
    profile.allow_files.extend(learnt.cloned());
    profile.allow_private.extend_from_slice(&args.allow_private);
    profile.dry_run |= args.dry_run;
    profile.ask |= args.ask;
    Ok(profile)
}

/// The placeholders of a profile, as variables that are called as their values are.
fn placeholders(profile: &SandboxProfile) -> impl Iterator<Item = (OsString, OsString)> {
    let texts = profile.secrets.iter().map(|secret| secret.terms.placeholder.as_str());
    texts.map(|text| (text.into(), text.into()))
}

/// Secrets are read before the sandboxed command only: it could change the command that prints one,
/// or a link in the path of a file.
fn read_once(mut secrets: Vec<SecretSettings>) -> Vec<SecretSettings> {
    for secret in &mut secrets {
        match &mut secret.source {
            SecretSource::Command { refresh, .. } => *refresh = None,
            SecretSource::File(path) => {
                secret.source = SecretSource::FileOnce(std::mem::take(path));
            }
            SecretSource::FileOnce(_) => {}
        }
    }
    secrets
}

/// Confines the command, serves it, and says at the end what it did.
fn begin(args: &SandboxArgs, screen: &Screen<'_>) -> Result<u8, Box<dyn Error>> {
    let profile = profile(args)?;
    let (list, notes) = read_lists(&profile)?;
    notes.iter().for_each(|note| screen.say(note));
    let lets_all_pass = args.learn.is_some() || profile.dry_run;
    let (lines, log) = io::pipe()?;
    let log_path = PathBuf::from(format!("/proc/self/fd/{}", log.as_raw_fd()));
    let serving = RunServing::new(&profile, &list, lets_all_pass, &log_path);
    let asks = serving.asks;
    if asks {
        // The folder of control sockets is hidden from the command: see [`hidden`].
        OwnFolder::open(&own_folder())?;
    } else if list.is_empty() && !lets_all_pass {
        screen.say("the list is empty: everything is refused");
    }
    serving.check(&profile.secrets)?.iter().for_each(|note| screen.say(note));
    let mut trust = RunTrust::new(&serving.minted(), system_roots(), |name| env::var_os(name))?;
    trust.notes.iter().for_each(|note| screen.say(note));
    if args.print_env {
        return print_variables(&trust, screen).map_err(Into::into);
    }
    trust.variables.extend(placeholders(&profile));
    // They are opened before the command could put something in their place.
    let outputs = RunOutputs::open(args.report.as_deref(), args.learn.as_deref())?;
    let plan = ConfinedPlan {
        command: args.command.clone(),
        ports: serving.checked_ports()?,
        quic_ports: serving.quic_ports(),
        hidden: hidden(args, &profile),
        shown: trust.files,
        variables: trust.variables,
        removed: REMOVED.iter().map(Into::into).collect(),
    };
    let (confined, sockets) = Confined::start(inside(), &plan)?;
    let ConfinedSockets { tcp, dns, quic, refused, diag } = sockets;
    let mut names = ResolvedNames::default();
    let (addresses, mut sockets): (Vec<SocketAddr>, Vec<_>) = tcp.into_iter().unzip();
    sockets.extend(quic);
    let mut config = serving.config(&addresses, &mut names.stand_ins, trust.authority)?;
    (config.dns, config.hold) = (profile.dns, profile.hold);
    config.secrets = read_once(profile.secrets);
    let existing = existing(&list, lets_all_pass || asks);
    let names = Arc::new(Mutex::new(names));
    // A search for who asks takes time, and nothing else tells of it.
    let tells = args.learn.is_some() || args.report.is_some() || args.json;
    let diag = diag.filter(|_| tells);
    serve_names(dns, existing, names.clone(), confined.programs(diag))?;
    let tell = if screen.is_json { output::event } else { |_: &Value| () };
    let refused = RefusedDials::follow(refused, names.clone(), tell)?;
    let record = thread::Builder::new()
        .name("sandbox-record".into())
        .spawn(move || RunRecord::read(BufReader::new(lines), tell))?;
    let label = label(args);
    let run = Run { config, sockets, log, confined, asks, label };
    let (status, duration_ms) = run.serve(screen)?;
    let mut record = record.join().map_err(|_| "internal error: the record is lost")??;
    refused.note();
    let mut names = names.lock();
    record.resolve(&mut names);
    let end = RunEnd { status, duration_ms, is_dry: profile.dry_run };
    screen.end((&record, &names), &end);
    if let Err(error) = outputs.write((&record, &names), &end) {
        // Its caller could take another file for it.
        error.lines().for_each(|error| screen.say(&format!("error: {error}")));
        return Ok(if status == 0 { NOT_STARTED } else { status });
    }
    Ok(status)
}

/// Prints the variables by which programs trust the run's authority.
fn print_variables(trust: &RunTrust, screen: &Screen<'_>) -> io::Result<u8> {
    if trust.authority.is_none() {
        screen.say("no rule mints certificates for a name that may be reached: no variables");
    }
    io::stdout().write_all(&trust.lines())?;
    Ok(0)
}

/// The names that exist for the command.
fn existing(list: &AllowList, has_all: bool) -> Existing {
    match has_all {
        true => Existing::All,
        false => Existing::Listed(list.clone()),
    }
}

/// The program that confines itself, and becomes the command.
fn inside() -> Command {
    let mut inside = Command::new("/proc/self/exe");
    inside.args(["sandbox", "--inside"]);
    inside
}

/// The files of this run that are hidden from the command: those that its user could read or
/// change, the secrets of the configuration, and the local authority's folder, whose key would make
/// the command any server.
fn hidden(args: &SandboxArgs, profile: &SandboxProfile) -> Vec<PathBuf> {
    let files = profile.allow_files.iter().chain(&args.config).chain(&args.report);
    let authority = eyelet_local_ca::default_folder().ok();
    // By a control socket the command could decide for itself.
    let control = own_folder();
    let files = files.chain(&args.learn).chain(&authority).chain(&profile.secret_files);
    let files = files.chain([&control]);
    files.filter_map(|file| fs::canonicalize(file).ok()).collect()
}

/// A command that waits, and what serves it.
struct Run {
    config: Config,
    sockets: Vec<OwnedFd>,
    /// The end of a pipe to which access lines are written: the edge opens it by its path.
    log: PipeWriter,
    confined: Confined,
    /// True if people are asked: `eyelet held` finds this process then.
    asks: bool,
    /// Its name in what `eyelet held` lists.
    label: String,
}

/// The name of the profile, or of the program.
fn label(args: &SandboxArgs) -> String {
    let program = || args.command.first().map(|it| it.to_string_lossy().into_owned());
    args.profile.clone().or_else(program).unwrap_or_default()
}

impl Run {
    /// Starts an edge and the command. Returns the command's exit status, and how long it took in
    /// milliseconds.
    fn serve(mut self, screen: &Screen<'_>) -> Result<(u8, u64), Box<dyn Error>> {
        let named = |socket| (String::from("sandbox"), socket);
        let passed = self.sockets.into_iter().map(named).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut signals = Signals::with_application()?;
            let activated = listen::activated(&self.config, passed);
            let running = serve::start_for_command(self.config, &activated)?;
            // The record ends with the edge's own end of the pipe.
            drop((activated, self.log));
            let control = self.asks.then(Control::open_for_command).transpose()?;
            let began = Instant::now();
            self.confined.go()?;
            screen.begun();
            let held = Held { control, holds: running.holds(), label: self.label };
            if screen.is_json {
                output::tell_questions(&held.holds, output::event)?;
            }
            let status = until_over(self.confined, &mut signals, held).await;
            let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            drain(running, &mut signals).await;
            Ok((status?, took))
        })
    }
}

/// The held connections, and the control socket by which people decide.
struct Held {
    control: Option<Control>,
    holds: Arc<Holds>,
    label: String,
}

impl Held {
    async fn next(&mut self) -> ControlRequest {
        if let Some(control) = &mut self.control
            && let Some(request) = control.next().await
        {
            return request;
        }
        std::future::pending().await
    }

    async fn answer(&self, request: ControlRequest) {
        let outcome = match &request.command {
            ControlCommand::Held(None) => {
                let mut outcome = answer_held(&self.holds, None);
                if outcome.text != NOTHING_HELD {
                    let of = format!(", sandbox \"{}\"\n", self.label.escape_default());
                    outcome.text = outcome.text.replace('\n', &of);
                }
                outcome
            }
            ControlCommand::Held(Some(command)) => match answer_held(&self.holds, Some(command)) {
                // It waits, and there is no list to which its name could be written.
                outcome
                    if outcome.code != 0
                        && command.is_always()
                        && !has_said_nothing(&outcome.text) =>
                {
                    ReloadOutcome::failed(UNCHANGED)
                }
                outcome => outcome,
            },
            _ => ReloadOutcome::failed("a sandbox has nothing but what is held"),
        };
        request.answer(&outcome).await;
    }
}

/// Passes signals on until the command has ended. Returns its exit status.
async fn until_over(
    mut confined: Confined,
    signals: &mut Signals,
    mut held: Held,
) -> Result<u8, Box<dyn Error>> {
    let first = confined.first();
    let (sender, mut ended) = oneshot::channel();
    thread::Builder::new().name("sandbox-wait".into()).spawn(move || {
        // The receiver is dropped when this process is about to end.
        let _ = sender.send(confined.wait());
    })?;
    // A terminal sends its signals to the command, too.
    let has_terminal = fs::File::open("/dev/tty").is_ok();
    let mut is_ending = false;
    loop {
        tokio::select! {
            ended = &mut ended => return Ok(code(ended??.status)),
            request = held.next() => held.answer(request).await,
            signal = signals.next() => match signal {
                Signal::INT | Signal::QUIT if has_terminal => {}
                // All end by this: the first process cannot pass it on.
                Signal::TERM if is_ending => first.signal(Signal::KILL),
                signal => {
                    is_ending |= signal == Signal::TERM;
                    first.signal(signal);
                }
            },
        }
    }
}

/// Ends the connections that are left. A second signal ends it at once.
async fn drain(running: Running, signals: &mut Signals) {
    let (done, drained) = oneshot::channel();
    let body = move || {
        running.drain();
        // The receiver is dropped when this process is about to end.
        let _ = done.send(());
    };
    if thread::Builder::new().name("drain".into()).spawn(body).is_ok() {
        tokio::select! {
            _ = drained => {}
            _ = signals.until_terminated() => {}
        }
    }
}

/// The exit status that a shell gives.
fn code(status: ExitStatus) -> u8 {
    let by_signal = status.signal().map(|signal| BY_SIGNAL + signal);
    status.code().or(by_signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

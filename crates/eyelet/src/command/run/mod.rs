//! `eyelet run` and `eyelet proxy`: TLS in front of an application, in one command. Both make the
//! configuration that a file would have, and serve it as `serve` does, mostly by the shared edge.

mod args;
mod certificate;
mod failed;
mod memory;
mod missing;
mod name;
mod plan;
pub(crate) mod ports;
mod program;
mod served;
mod share;
pub(crate) mod shared;
mod trust;
mod upstream_trust;

use std::error::Error;
use std::fs;
use std::future::pending;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use eyelet_child::{
    Application, ChildEvent, Endpoint, LISTEN_TIMEOUT, Over, STOP_TIMEOUT, SuperviseError,
    Supervisor,
};
use eyelet_sys::child::Signal;
use tokio::sync::mpsc::{Receiver, channel};

use self::program::{NOT_EXECUTABLE, NOT_FOUND};
use self::served::{Served, ServedEvent, Wanted};
use self::shared::ProjectKind;
use eyelet_process::diagnostics::{self, Diagnostics};
use eyelet_process::signals::Signals;

pub use self::args::{ProxyArgs, RunArgs, StopArgs, host};

/// Events of the child that wait to be printed. Its thread waits for more room.
const EVENTS_MAX: usize = 16;
/// The time after which a command that was asked to end is said to have not.
const HINT_AFTER: Duration = Duration::from_secs(1);
/// The number that a shell adds to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;

/// Runs a command with TLS in front of it, until a signal.
pub fn run(args: &RunArgs, diagnostics: &Diagnostics) -> ExitCode {
    let screen = Screen(diagnostics);
    exit(&screen, begin_run(args, &screen))
}

/// Puts TLS in front of applications that run already, until a signal.
pub fn proxy(args: &ProxyArgs, diagnostics: &Diagnostics) -> ExitCode {
    let screen = Screen(diagnostics);
    exit(&screen, begin_proxy(args, &screen))
}

/// Prints the names that are served at the shared port.
pub fn list(out: &mut dyn Write) -> ExitCode {
    shared::list(out)
}

/// Ends the `eyelet run` or `eyelet proxy` that has a name.
pub fn stop(args: &StopArgs) -> ExitCode {
    shared::stop(&args.name)
}

/// The name that a project in the present folder has.
pub(crate) fn name_here() -> String {
    name::of_folder(&shared::own_folder())
}

fn exit(screen: &Screen<'_>, done: Result<u8, Box<dyn Error>>) -> ExitCode {
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            screen.say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Our lines between those of the application.
struct Screen<'a>(&'a Diagnostics);

impl Screen<'_> {
    fn say(&self, text: &str) {
        self.0.line(&format!("eyelet: {text}"));
    }
}

fn begin_run(args: &RunArgs, screen: &Screen<'_>) -> Result<u8, Box<dyn Error>> {
    check_folders(&args.watch)?;
    if let Err((why, code)) = program::check(&args.command) {
        screen.say(&why);
        return Ok(code);
    }
    if let (Some(listen), Some(port)) = (args.edge.listen, args.port)
        && eyelet_child::takes(listen, (Ipv4Addr::LOCALHOST, port).into())
    {
        return Err(format!("--listen {listen}: port {port} is the command's, by --port").into());
    }
    let name = args.name.clone().unwrap_or_else(name_here);
    let port = match args.port {
        Some(port) => ports::check_free(port)?,
        None => eyelet_child::free_port()?,
    };
    let certificate = certificate::certificate(&args.edge, &[&name], Some("--name"))?;
    let rules = vec![plan::rule_of_run(args, (&name, port), &certificate)];
    let application = Application {
        command: args.command.clone(),
        port,
        watch: args.watch.clone(),
        variables: Vec::new(),
        spared: shared::place::COMMAND,
    };
    let wanted = Wanted {
        edge: &args.edge,
        rules,
        kept: vec![port],
        certificate: &certificate,
        share: args.share,
    };
    serve(wanted, Work::Runs(application), screen)
}

/// Checks that these are folders. Without one there is nothing to serve.
fn check_folders(watched: &[PathBuf]) -> Result<(), String> {
    for path in watched {
        let why = match fs::metadata(path) {
            Ok(found) if found.is_dir() => continue,
            Ok(_) => "it is a file; name its folder".to_owned(),
            Err(error) => error.to_string(),
        };
        return Err(format!("cannot watch {}: {why}", path.display()));
    }
    Ok(())
}

fn begin_proxy(args: &ProxyArgs, screen: &Screen<'_>) -> Result<u8, Box<dyn Error>> {
    let names: Vec<&str> = args.sites.iter().map(|site| &*site.name).collect();
    let kept = args.sites.iter().filter_map(|site| ports::own_port(&site.upstream)).collect();
    let certificate = certificate::certificate(&args.edge, &names, None)?;
    let mut rules = plan::rules_of_proxy(args);
    let given = args.upstream_ca.as_deref();
    upstream_trust::add(&mut rules, given, &certificate, |text| screen.say(text))?;
    let wanted = Wanted { edge: &args.edge, rules, kept, certificate: &certificate, share: None };
    let work = if args.background { Work::Background } else { Work::IsThere };
    serve(wanted, work, screen)
}

/// The work behind the edge.
enum Work {
    /// A command that is run.
    Runs(Application),
    /// The applications that run already.
    IsThere,
    /// Applications that run already, and nobody waits for their end.
    Background,
}

impl Work {
    fn kind(&self) -> ProjectKind {
        match self {
            Self::Runs(_) => ProjectKind::Run,
            Self::IsThere => ProjectKind::Proxy,
            Self::Background => ProjectKind::Background,
        }
    }
}

/// Serves until the child is over, or without a child until a signal. Returns the exit status.
fn serve(wanted: Wanted<'_>, work: Work, screen: &Screen<'_>) -> Result<u8, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = match work {
            Work::Runs(_) => Signals::with_application()?,
            Work::IsThere | Work::Background => Signals::new()?,
        };
        let served = Served::begin(&wanted, work.kind(), |text| screen.say(text)).await?;
        let address = served.addresses().first().copied().ok_or("no listener")?;
        let urls: Vec<String> = wanted.rules.iter().map(|rule| plan::url(rule, address)).collect();
        urls.iter().for_each(|url| screen.say(&format!("serving {url}")));
        if address.ip().is_unspecified() {
            screen.say("listening on all addresses: other machines reach it");
        }
        let first = wanted.rules.first().map_or("", |rule| &*rule.site.name);
        let first = (first, urls.first().map_or("", String::as_str));
        wanted.certificate.lines(first, address).iter().for_each(|line| screen.say(line));
        let _page = match wanted.share {
            Some(ip) => {
                let reached = (ip, address.port());
                let (page, lines) = share::begin(reached, &wanted.kept, wanted.certificate).await?;
                lines.iter().for_each(|line| screen.0.line(line));
                Some(page)
            }
            None => None,
        };
        let application = match work {
            Work::Runs(mut application) => {
                application.variables =
                    trust::variables(wanted.certificate, |text| screen.say(text));
                if let Some(url) = urls.first() {
                    application.variables.push(("EYELET_URL".into(), url.into()));
                }
                Some(application)
            }
            Work::IsThere => None,
            Work::Background => {
                let absent = missing::absent(&wanted.rules, &served.addresses()).await;
                absent.iter().for_each(|line| screen.say(line));
                return Ok(0);
            }
        };
        let mut session = Session::start(served, application, wanted.wait(), screen)?;
        let code = session.until_over(&mut signals).await;
        if code.is_err() {
            session.end_child(&mut signals).await;
        }
        session.served.end(&mut signals).await;
        code
    })
}

/// An edge and its application.
struct Session<'a> {
    served: Served,
    child: Option<Supervisor>,
    /// The first word of the command.
    name: String,
    /// The port that the command was told.
    port: u16,
    events: Receiver<ChildEvent>,
    screen: &'a Screen<'a>,
    /// The signal by which the application may end, and Eyelet with it, and when it came: the
    /// terminal was closed, or somebody typed Ctrl-\\.
    hung_up: Option<(Signal, Instant)>,
    /// The words for what becomes of clients while the application listens nowhere.
    wait: String,
    /// The time at which is said that the application has not ended yet, after Ctrl-C.
    hint_at: Option<Instant>,
    /// The application's process.
    pid: u32,
}

impl<'a> Session<'a> {
    /// Starts the application, if there is one to start.
    fn start(
        served: Served,
        application: Option<Application>,
        wait: String,
        screen: &'a Screen<'a>,
    ) -> Result<Self, SuperviseError> {
        let (sender, events) = channel(EVENTS_MAX);
        let report = move |event| {
            // The receiver is dropped when the process is about to end.
            let _ = sender.blocking_send(event);
        };
        let first = application.as_ref().and_then(|application| application.command.first());
        let name = first.map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        let port = application.as_ref().map_or(0, |application| application.port);
        let child = application.map(|application| Supervisor::start(application, report));
        let child = child.transpose()?;
        let (hung_up, hint_at, pid) = (None, None, 0);
        Ok(Self { served, child, name, port, events, screen, hung_up, wait, hint_at, pid })
    }
    /// Passes signals to the application and prints its events. Returns the exit status.
    async fn until_over(&mut self, signals: &mut Signals) -> Result<u8, Box<dyn Error>> {
        let (mut is_ending, mut is_lost) = (false, false);
        loop {
            tokio::select! {
                signal = signals.next() => match (signal, &self.child) {
                    (Signal::USR1, _) => self.say_memory().await,
                    (_, None) => return Ok(0),
                    (Signal::USR2, Some(child)) => child.pass(Signal::USR2),
                    (signal @ (Signal::HUP | Signal::QUIT), Some(child)) => {
                        child.pass(signal);
                        self.hung_up = Some((signal, Instant::now()));
                    }
                    (_, Some(child)) if is_ending => {
                        self.hint_at = None;
                        child.kill();
                    }
                    (signal, Some(_)) => {
                        is_ending = true;
                        self.end(signal);
                    }
                },
                event = next(&mut self.events, self.child.is_some()) => match event {
                    Some(ChildEvent::Over(over)) => return Ok(self.over(over)),
                    Some(event) => self.obey(event).await,
                    None => return Err("internal error: nobody watches the command".into()),
                },
                () = sleep_until(self.hint_at) => {
                    self.hint_at = None;
                    let limit = STOP_TIMEOUT.as_secs();
                    let hint = format!("the command has {limit} s to end; Ctrl-C again kills it");
                    self.screen.say(&hint);
                }
                event = self.served.next(), if !is_lost => match event {
                    ServedEvent::Said(line) => self.screen.0.line(&line),
                    ServedEvent::Stop if self.child.is_none() => return Ok(0),
                    ServedEvent::Stop if is_ending => {}
                    ServedEvent::Stop => {
                        is_ending = true;
                        self.screen.say("`eyelet stop` ends the command");
                        self.end(Signal::TERM);
                    }
                    ServedEvent::Tick => {
                        let own = self.screen.0.has_died().then_some(diagnostics::THREAD);
                        if let Some(thread) = own.or_else(|| self.served.tend()) {
                            return Err(format!("{thread} has ended").into());
                        }
                    }
                    // What serves the command has ended just before it, by a signal to all.
                    ServedEvent::Lost if is_ending => is_lost = true,
                    ServedEvent::Lost => {
                        return Err("the shared edge has ended: start this command again".into());
                    }
                },
            }
        }
    }

    async fn say_memory(&mut self) {
        let line = self.served.memory().await;
        self.screen.say(&line);
    }

    /// Has the application end by this signal.
    fn end(&mut self, signal: Signal) {
        // Others are sent by who types no Ctrl-C here, such as `eyelet stop`.
        self.hint_at = (signal == Signal::INT).then(|| Instant::now() + HINT_AFTER);
        if let Some(child) = &self.child {
            child.end(signal);
        }
    }

    async fn obey(&mut self, event: ChildEvent) {
        match event {
            ChildEvent::Started { pid } => self.pid = pid,
            ChildEvent::Listening { bound, dialled } => self.listens(&bound, &dialled).await,
            ChildEvent::ListensNowhere => {
                let (waited, port) = (LISTEN_TIMEOUT.as_secs(), self.port);
                self.screen.say(&format!(
                    "the command listens nowhere after {waited} s; it should listen on \
                     127.0.0.1:{port}, which is PORT in its environment; {}",
                    self.wait
                ));
            }
            ChildEvent::ListensAtSeveral(found) => {
                let found: Vec<String> = found.iter().map(ToString::to_string).collect();
                let port = self.port;
                self.screen.say(&format!(
                    "the command listens on {}, and on none with PORT ({port}): say which port \
                     is meant with --port, or start it by itself and serve one of them with \
                     `eyelet proxy`",
                    found.join(" and ")
                ));
            }
            ChildEvent::Killed => self.screen.say("killed it"),
            ChildEvent::Changed => {
                self.screen.say("a file has changed: starting the command again")
            }
            ChildEvent::Ended { status, pause } => {
                let pause = humantime::format_duration(pause);
                let next = match self.follow_hang_up() {
                    Some(signal) => format!("so does Eyelet, after {signal}"),
                    None => format!("it is started again in {pause}"),
                };
                self.screen.say(&format!("the command ended ({status}); {next}"));
            }
            ChildEvent::NotStarted { error, pause } => {
                let next = match self.follow_hang_up() {
                    Some(signal) => format!("Eyelet ends, after {signal}"),
                    None => format!("next try in {}", humantime::format_duration(pause)),
                };
                self.screen
                    .say(&format!("cannot start the command: {}: {error}; {next}", self.name));
            }
            ChildEvent::Over(_) => {}
        }
    }

    /// Ends with the application, if such a signal came just before. Returns its name.
    fn follow_hang_up(&self) -> Option<&'static str> {
        let (signal, _) = self.hung_up.filter(|(_, at)| at.elapsed() < STOP_TIMEOUT)?;
        self.child.as_ref()?.end(signal);
        Some(if signal == Signal::HUP { "SIGHUP" } else { "SIGQUIT" })
    }

    /// Ends the application after an error of the edge. A signal kills it.
    async fn end_child(&mut self, signals: &mut Signals) {
        let Some(child) = &self.child else { return };
        child.end(Signal::TERM);
        loop {
            tokio::select! {
                event = self.events.recv() => match event {
                    None | Some(ChildEvent::Over(_)) => return,
                    Some(_) => {}
                },
                _ = signals.next() => child.kill(),
            }
        }
    }

    /// Serves the application where it listens now. It goes on if that fails.
    async fn listens(&mut self, bound: &Endpoint, dialled: &Endpoint) {
        let is_open = matches!(bound, Endpoint::Tcp(bound) if bound.ip().is_unspecified());
        let is_six = matches!(dialled, Endpoint::Tcp(dialled) if dialled.is_ipv6());
        let (pid, six) = (self.pid, if is_six { ", by IPv6 alone" } else { "" });
        let open = match is_open {
            true => "; other machines reach it too, without TLS: have it listen on 127.0.0.1",
            false => "",
        };
        let fault = match self.served.lead_to(dialled).await {
            Ok(()) => String::new(),
            Err(error) => format!("; requests cannot be sent there: {error}"),
        };
        // Not before requests go there: until then they go to PORT, where anybody may listen.
        self.screen
            .say(&format!("the command listens on {bound}{six} (process {pid}){open}{fault}"));
    }

    /// The exit status.
    fn over(&self, over: Over) -> u8 {
        match over {
            Over::Asked(status) => return code(status),
            // It was printed before.
            Over::Undecided => {}
            Over::NeverListened => self.screen.say(
                "the command ended with success and has listened nowhere. If it goes into the \
                 background, start it in the foreground",
            ),
            Over::Background(left) => {
                let left: Vec<String> = left.iter().map(ToString::to_string).collect();
                self.screen.say(&format!(
                    "the command ended and left processes in the background ({}). They were \
                     ended: a command that is restarted must stay in the foreground",
                    left.join(", ")
                ));
            }
            Over::Unstartable(error) => {
                self.screen.say(&format!("cannot start the command: {}: {error}", self.name));
                let is_missing = error.kind() == std::io::ErrorKind::NotFound;
                return if is_missing { NOT_FOUND } else { NOT_EXECUTABLE };
            }
        }
        1
    }
}

/// Waits until then. `None`: for ever.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => pending().await,
    }
}

/// The next event of the child, if there is one.
async fn next(events: &mut Receiver<ChildEvent>, has_child: bool) -> Option<ChildEvent> {
    if has_child { events.recv().await } else { pending().await }
}

/// The exit status that a shell gives.
fn code(status: ExitStatus) -> u8 {
    let by_signal = status.signal().map(|signal| BY_SIGNAL + signal);
    status.code().or(by_signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

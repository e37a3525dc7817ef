//! `eyelet run` and `eyelet proxy`: TLS in front of an application, in one command. Both make the
//! configuration that a file would have, and serve it as `serve` does.

mod args;
mod certificate;
mod memory;
mod missing;
mod plan;
pub(crate) mod ports;

use std::error::Error;
use std::fs;
use std::future::pending;
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use eyelet_child::{
    Application, ChildEvent, Endpoint, LISTEN_TIMEOUT, Over, STOP_TIMEOUT, Supervisor,
};
use eyelet_sys::child::Signal;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::oneshot;

use self::args::Site;
use self::certificate::Certificate;
use self::memory::Memory;
use self::missing::Waiting;
use self::plan::Plan;
use self::ports::Ports;
use crate::process::diagnostics::{self, Diagnostics};
use crate::process::serve::{self, Running};
use crate::process::signals::Signals;

pub use self::args::{ProxyArgs, RunArgs};

/// Events of the child that wait to be printed. Its thread waits for more room.
const EVENTS_MAX: usize = 16;
/// How often earlier configurations are freed and the workers are checked.
const TICK: Duration = Duration::from_secs(1);
/// The exit status of a shell for a program that is not there, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// What a shell adds to the number of the signal that ended a program.
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
    let listen = args.edge.listen;
    if let (Some(listen), Some(port)) = (listen, args.port)
        && eyelet_child::takes(listen, (Ipv4Addr::LOCALHOST, port).into())
    {
        return Err(format!("--listen {listen}: port {port} is the command's, by --port").into());
    }
    let port = match args.port {
        Some(port) => ports::check_free(port)?,
        None => eyelet_child::free_port()?,
    };
    let ports = Ports::choose(listen, &[&args.name], &[port], |text| screen.say(text))?;
    let certificate = certificate::certificate(&args.edge, &[&args.name], Some("--name"))?;
    let plan = Plan::of_run(args, port, &ports, &certificate);
    let application =
        Application { command: args.command.clone(), port, watch: args.watch.clone() };
    serve(plan, Work::Runs(application), &certificate, screen)
}

/// Whether these are folders. Without one there is nothing to serve.
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
    let kept: Vec<u16> =
        args.sites.iter().filter_map(|site| ports::own_port(&site.upstream)).collect();
    let ports = Ports::choose(args.edge.listen, &names, &kept, |text| screen.say(text))?;
    let certificate = certificate::certificate(&args.edge, &names, None)?;
    let plan = Plan::of_proxy(args, &ports, &certificate);
    let waiting = Waiting { is_tcp: args.edge.tcp, hold: args.edge.hold };
    let work = Work::IsThere(args.sites.clone(), waiting);
    serve(plan, work, &certificate, screen)
}

/// What is behind the edge.
enum Work {
    /// A command that is run.
    Runs(Application),
    /// What runs already, and what waits for it.
    IsThere(Vec<Site>, Waiting),
}

/// Serves until the child is over, or without a child until a signal. Returns the exit status.
fn serve(
    mut plan: Plan,
    work: Work,
    certificate: &Certificate,
    screen: &Screen<'_>,
) -> Result<u8, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = match work {
            Work::Runs(_) => Signals::with_application()?,
            Work::IsThere(..) => Signals::new()?,
        };
        let start = |plan: &Plan| Ok::<_, Box<dyn Error>>(serve::start(plan.config()?)?);
        let running = match work {
            Work::Runs(_) => start(&plan)?,
            Work::IsThere(..) => plan.apply(ports::free_http, start)?,
        };
        let address = running.addresses().first().copied().ok_or("no listener")?;
        let urls: Vec<String> = plan.urls(address).collect();
        urls.iter().for_each(|url| screen.say(&format!("serving {url}")));
        if address.ip().is_unspecified() {
            screen.say("listening on all addresses: other machines reach it");
        }
        let first = (plan.first_name(), urls.first().map_or("", String::as_str));
        certificate.lines(first, address).iter().for_each(|line| screen.say(line));
        let (sender, events) = channel(EVENTS_MAX);
        let report = move |event| {
            // The receiver is dropped when the process is about to end.
            let _ = sender.blocking_send(event);
        };
        let (child, lines) = match work {
            Work::Runs(application) => (Some(application), None),
            Work::IsThere(sites, waiting) => {
                (None, Some(missing::look_for(sites, waiting, running.addresses())))
            }
        };
        let first = child.as_ref().and_then(|application| application.command.first());
        let name = first.map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        let child = child.map(|application| Supervisor::start(application, report)).transpose()?;
        let memory = Memory::at_start();
        let mut session = Session {
            plan,
            running,
            child,
            name,
            events,
            lines,
            memory,
            screen,
            hung_up: None,
            pid: 0,
        };
        let code = session.until_over(&mut signals).await;
        if code.is_err() {
            session.end_child(&mut signals).await;
        }
        session.drain(&mut signals).await;
        code
    })
}

/// An edge and its application.
struct Session<'a> {
    plan: Plan,
    running: Running,
    child: Option<Supervisor>,
    /// The first word of the command.
    name: String,
    events: Receiver<ChildEvent>,
    /// What is to be printed about applications that run already.
    lines: Option<Receiver<String>>,
    memory: Memory,
    screen: &'a Screen<'a>,
    /// The signal by which the application may end, and Eyelet with it, and when it came: the
    /// terminal was closed, or somebody typed Ctrl-\\.
    hung_up: Option<(Signal, Instant)>,
    /// The application's process.
    pid: u32,
}

impl Session<'_> {
    /// Passes signals to the application and prints its events. Returns the exit status.
    async fn until_over(&mut self, signals: &mut Signals) -> Result<u8, Box<dyn Error>> {
        let mut tick = tokio::time::interval(TICK);
        let mut is_ending = false;
        loop {
            tokio::select! {
                signal = signals.next() => match (signal, &self.child) {
                    (Signal::USR1, _) => self.screen.say(&self.memory.report()),
                    (_, None) => {
                        self.screen.say(&self.memory.report());
                        return Ok(0);
                    }
                    (Signal::USR2, Some(child)) => child.pass(Signal::USR2),
                    (signal @ (Signal::HUP | Signal::QUIT), Some(child)) => {
                        child.pass(signal);
                        self.hung_up = Some((signal, Instant::now()));
                    }
                    (_, Some(child)) if is_ending => child.kill(),
                    (signal, Some(child)) => {
                        self.screen.say(&self.memory.report());
                        child.end(signal);
                        is_ending = true;
                    }
                },
                event = next(&mut self.events, self.child.is_some()) => match event {
                    Some(ChildEvent::Over(over)) => return Ok(self.over(over)),
                    Some(event) => self.obey(event),
                    None => return Err("internal error: nobody watches the command".into()),
                },
                line = next_line(&mut self.lines) => self.screen.say(&line),
                _ = tick.tick() => {
                    self.running.tidy();
                    self.running.log_lost_threads();
                    self.running.admin.tend();
                    let own = self.screen.0.has_died().then_some(diagnostics::THREAD);
                    if let Some(thread) = own.or_else(|| self.running.died()) {
                        return Err(format!("{thread} has ended").into());
                    }
                }
            }
        }
    }

    fn obey(&mut self, event: ChildEvent) {
        match event {
            ChildEvent::Started { pid } => self.pid = pid,
            ChildEvent::Listening { bound, dialled } => self.listens(&bound, &dialled),
            ChildEvent::ListensNowhere => {
                let (waited, port) = (LISTEN_TIMEOUT.as_secs(), self.plan.port());
                self.screen.say(&format!(
                    "the command listens nowhere after {waited} s; it should listen on \
                     127.0.0.1:{port}, which is PORT in its environment; requests wait"
                ));
            }
            ChildEvent::ListensAtSeveral(found) => {
                let found: Vec<String> = found.iter().map(ToString::to_string).collect();
                let port = self.plan.port();
                self.screen.say(&format!(
                    "the command listens on {}, and on none with PORT ({port}): say which port \
                     is meant with --port, or start it by itself and serve one of them with \
                     `eyelet proxy`",
                    found.join(" and ")
                ));
            }
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
    fn listens(&mut self, bound: &Endpoint, dialled: &Endpoint) {
        let is_open = matches!(bound, Endpoint::Tcp(bound) if bound.ip().is_unspecified());
        let is_six = matches!(dialled, Endpoint::Tcp(dialled) if dialled.is_ipv6());
        let (pid, six) = (self.pid, if is_six { ", by IPv6 alone" } else { "" });
        let open = if is_open { "; other machines reach it too, without TLS" } else { "" };
        let fault = match self.lead_to(dialled) {
            Ok(()) => String::new(),
            Err(error) => format!("; requests cannot be sent there: {error}"),
        };
        // Not before requests go there: until then they go to PORT, where anybody may listen.
        self.screen
            .say(&format!("the command listens on {bound}{six} (process {pid}){open}{fault}"));
    }

    /// Sends requests to this endpoint from now on. The plan changes only if that can be done.
    fn lead_to(&mut self, endpoint: &Endpoint) -> Result<(), Box<dyn Error>> {
        let mut plan = self.plan.clone();
        let changes = plan.lead_to(endpoint);
        // The application has its port by now, so the redirect cannot take that from it.
        if changes || plan.may_redirect() {
            plan.apply(ports::free_http, |plan| {
                let prepared = self.running.preparation().run(plan.config()?)?;
                self.running.reload(prepared)?;
                Ok::<_, Box<dyn Error>>(())
            })?;
        }
        self.plan = plan;
        Ok(())
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

    /// Ends the connections. A second signal ends it at once.
    async fn drain(self, signals: &mut Signals) {
        let (done, drained) = oneshot::channel();
        let running = self.running;
        let body = move || {
            running.drain();
            let _ = done.send(());
        };
        if std::thread::Builder::new().name("drain".into()).spawn(body).is_ok() {
            tokio::select! {
                _ = drained => {}
                _ = signals.until_terminated() => {}
            }
        }
    }
}

/// The next event of the child, if there is one.
async fn next(events: &mut Receiver<ChildEvent>, has_child: bool) -> Option<ChildEvent> {
    if has_child { events.recv().await } else { pending().await }
}

/// The next line, if there may be one.
async fn next_line(lines: &mut Option<Receiver<String>>) -> String {
    if let Some(received) = lines {
        if let Some(line) = received.recv().await {
            return line;
        }
        // Nothing is looked for any more.
        *lines = None;
    }
    pending().await
}

/// The exit status that a shell gives.
fn code(status: ExitStatus) -> u8 {
    let by_signal = status.signal().map(|signal| BY_SIGNAL + signal);
    status.code().or(by_signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

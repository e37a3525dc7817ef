//! The server of a command: the shared edge, or an edge of its own within this process.

use std::collections::VecDeque;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use eyelet_child::Endpoint;
use tokio::sync::oneshot;
use tokio::time::{Interval, interval};

use super::args::EdgeArgs;
use super::certificate::Certificate;
use super::failed;
use super::memory::Memory;
use super::missing::Lookout;
use super::plan::{Plan, PlannedRule};
use super::ports::{self, Ports, TakenPort};
use super::shared::{self, JoinError, Joining, Lease, LeaseEvent, ProjectKind};
use eyelet_process::serve::{self, Running};
use eyelet_process::signals::Signals;

/// The interval at which earlier configurations are freed and the workers are checked.
const TICK: Duration = Duration::from_secs(1);
/// The process that the kernel starts first, in a container too. All others end with it, so
/// nothing is shared there.
const FIRST_PROCESS: u32 = 1;

/// The edge that a command wants.
pub(super) struct Wanted<'a> {
    pub(super) edge: &'a EdgeArgs,
    pub(super) rules: Vec<PlannedRule>,
    /// Ports that the applications want.
    pub(super) kept: Vec<u16>,
    pub(super) certificate: &'a Certificate,
    /// The address by which other machines reach it.
    pub(super) share: Option<IpAddr>,
}

impl Wanted<'_> {
    /// Returns what becomes of clients while the application listens nowhere.
    pub(super) fn wait(&self) -> String {
        let hold = humantime::format_duration(self.edge.hold);
        match self.edge.tcp {
            true => format!("connections wait {hold}"),
            false => format!("requests wait {hold}, then get 503"),
        }
    }
}

/// The edge that serves.
pub(super) enum Served {
    Shared { lease: Lease, tick: Interval },
    Own(Box<OwnEdge>),
}

pub(super) struct OwnEdge {
    plan: Plan,
    running: Running,
    memory: Memory,
    /// Looks for applications that run already.
    lookout: Option<Lookout>,
    /// Lines about failed requests that wait to be printed: one for each name, and no new ones
    /// before these are.
    failed: VecDeque<String>,
    tick: Interval,
}

/// An event of what serves.
pub(super) enum ServedEvent {
    /// A line to print.
    Said(String),
    /// Somebody ends the command by `eyelet stop`.
    Stop,
    /// It is time for [`Served::tend`].
    Tick,
    /// It serves no more.
    Lost,
}

/// Returns what is said of a port that is taken, also by the edge that the user's other projects
/// share.
fn taken_text(port: TakenPort, edge: &EdgeArgs, is_shared_out: bool) -> String {
    let TakenPort { taken, chosen } = port;
    let holder = ports::holder(taken);
    if !holder.is_some_and(|pid| eyelet_child::has_command(pid, shared::place::COMMAND)) {
        return port.to_string();
    }
    let option = match (&edge.log, &edge.certificate) {
        _ if is_shared_out => "with --share ",
        (Some(_), _) => "with --log ",
        (None, Some(_)) => "with --certificate ",
        (None, None) => "",
    };
    format!("{taken} serves your other projects; {option}this one has a port of its own: {chosen}")
}

impl Served {
    /// Joins the shared edge, or starts one.
    pub(super) async fn begin(
        wanted: &Wanted<'_>,
        kind: ProjectKind,
        mut say: impl FnMut(&str),
    ) -> Result<Self, Box<dyn Error>> {
        let is_alone =
            wanted.edge.is_alone() || wanted.share.is_some() || std::process::id() == FIRST_PROCESS;
        if let (false, Some(joining)) = (is_alone, joining(wanted, kind)?) {
            let names: Vec<&str> = wanted.rules.iter().map(|rule| &*rule.site.name).collect();
            match Lease::join(shared::is_loopback(&names), joining).await {
                Ok((lease, notes)) => {
                    notes.iter().for_each(|note| say(note));
                    return Ok(Self::Shared { lease, tick: interval(TICK) });
                }
                Err(JoinError::Refused(why)) => return Err(why.into()),
                Err(JoinError::NoPlace(error)) if kind == ProjectKind::Background => {
                    return Err(format!("nothing can go on in the background: {error}").into());
                }
                Err(JoinError::NoPlace(error)) => {
                    say(&format!("other projects get other ports: {error}"));
                }
            }
        }
        if kind == ProjectKind::Background {
            return Err(
                "nothing can go on in the background of a container's first process: leave \
                        --background out"
                    .into(),
            );
        }
        Self::alone(wanted, kind, say)
    }

    fn alone(
        Wanted { edge, rules, kept, certificate, share }: &Wanted<'_>,
        kind: ProjectKind,
        mut say: impl FnMut(&str),
    ) -> Result<Self, Box<dyn Error>> {
        let say = |port: TakenPort| say(&taken_text(port, edge, share.is_some()));
        let names: Vec<&str> = rules.iter().map(|rule| &*rule.site.name).collect();
        let ports = match share {
            Some(ip) => ports::for_network(*ip, kept, say)?,
            None => Ports::choose(edge.listen, &names, kept, say)?,
        };
        let mut plan = Plan::new(edge, rules.clone(), &ports, certificate);
        let start = |plan: &Plan| Ok::<_, Box<dyn Error>>(serve::start(plan.config()?)?);
        let running = match kind {
            // An application that is started may want port 80 itself.
            ProjectKind::Run => start(&plan)?,
            _ => plan.apply(ports::free_http, start)?,
        };
        let lookout = match kind {
            ProjectKind::Run => None,
            _ => Some(Lookout::start(plan.rules(), running.addresses())),
        };
        let (memory, tick) = (Memory::at_start(), interval(TICK));
        let failed = VecDeque::new();
        Ok(Self::Own(Box::new(OwnEdge { plan, running, memory, lookout, failed, tick })))
    }

    /// Returns the addresses at which it listens.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        match self {
            Self::Shared { lease, .. } => lease.addresses.clone(),
            Self::Own(own) => own.running.addresses(),
        }
    }

    /// The memory of TLS, as a line.
    pub(super) async fn memory(&mut self) -> String {
        match self {
            Self::Shared { lease, .. } => lease.memory().await,
            Self::Own(own) => own.memory.report(),
        }
    }

    /// Waits for an event.
    pub(super) async fn next(&mut self) -> ServedEvent {
        match self {
            Self::Shared { lease, tick } => tokio::select! {
                event = lease.next() => match event {
                    LeaseEvent::Said(line) => ServedEvent::Said(line),
                    LeaseEvent::End => ServedEvent::Stop,
                    LeaseEvent::Lost => ServedEvent::Lost,
                },
                _ = tick.tick() => ServedEvent::Tick,
            },
            Self::Own(own) => {
                if let Some(line) = own.failed.pop_front() {
                    return ServedEvent::Said(line);
                }
                let OwnEdge { lookout, tick, .. } = &mut **own;
                tokio::select! {
                    Some(line) = next_line(lookout) => ServedEvent::Said(format!("eyelet: {line}")),
                    _ = tick.tick() => ServedEvent::Tick,
                }
            }
        }
    }

    /// Frees what earlier configurations left. Returns the thread that has ended by itself.
    pub(super) fn tend(&mut self) -> Option<&'static str> {
        let Self::Own(own) = self else { return None };
        own.note_failed();
        own.running.tidy();
        own.running.log_lost_threads();
        own.running.admin.tend();
        own.running.died()
    }

    /// Sends requests to this endpoint from now on. After an error all is as before.
    pub(super) async fn lead_to(&mut self, endpoint: &Endpoint) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Shared { lease, .. } => Ok(lease.lead_to(&endpoint.to_string()).await?),
            Self::Own(own) => own.lead_to(endpoint),
        }
    }

    /// Ends the connections of clients. A second signal ends it at once.
    pub(super) async fn end(self, signals: &mut Signals) {
        match self {
            Self::Shared { lease, .. } => tokio::select! {
                () = lease.leave() => {}
                _ = signals.until_terminated() => {}
            },
            Self::Own(own) => drain(own.running, signals).await,
        }
    }
}

impl OwnEdge {
    /// Has the requests that failed printed, and the scheme of their upstream looked at.
    fn note_failed(&mut self) {
        if !self.failed.is_empty() {
            return;
        }
        for failures in failed::take() {
            if let Some(lookout) = &self.lookout {
                lookout.alarms.note(&failures.name);
            }
            self.failed.push_back(failures.line);
        }
    }

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
        if changes || self.lookout.is_none() {
            self.lookout = Some(Lookout::of_command(plan.rules()));
        }
        self.plan = plan;
        Ok(())
    }
}

/// Returns the message to a shared edge that joins it. `None`: a given certificate is served, by no
/// shared edge.
fn joining(wanted: &Wanted<'_>, kind: ProjectKind) -> Result<Option<Joining>, Box<dyn Error>> {
    let Some(local) = &wanted.certificate.local else { return Ok(None) };
    let absolute = |rule: &PlannedRule| rule.clone().absolute();
    Ok(Some(Joining {
        folder: shared::own_folder(),
        authority: std::path::absolute(&local.folder)?,
        rules: wanted.rules.iter().map(absolute).collect::<Result<_, _>>()?,
        permits: local.permits.iter().cloned().collect(),
        kept: wanted.kept.clone(),
        kind,
    }))
}

async fn next_line(lookout: &mut Option<Lookout>) -> Option<String> {
    lookout.as_mut()?.lines.recv().await
}

async fn drain(running: Running, signals: &mut Signals) {
    let (done, drained) = oneshot::channel();
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

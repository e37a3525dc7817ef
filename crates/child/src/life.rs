//! The lives of an application, one after the other: start, look where it listens, wait for its
//! end, end what it left, pause.

use std::collections::HashSet;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use eyelet_sys::child::{self, Signal};

use crate::event::{
    Application, ChildEvent, LISTEN_TIMEOUT, Message, Messages, Over, STOP_TIMEOUT,
};
use crate::pace::{Pauses, look_after};
use crate::processes::{self, Process};
use crate::sockets::{self, Choice, Endpoint};

/// The time for which an endpoint other than the port must stay the only one before it is served.
/// Many applications open one for a debugger first, and listen only seconds later.
const SETTLED: Duration = Duration::from_secs(3);
/// The time that several endpoints must stay the same before it is too late for its port.
const UNDECIDED: Duration = Duration::from_secs(5);
/// The interval between two looks whether what an application left has ended.
const LEFT_STEP: Duration = Duration::from_millis(20);

/// Starts the application again and again.
pub(crate) struct Supervision {
    application: Application,
    messages: SyncSender<Message>,
    received: Receiver<Message>,
    report: Box<dyn FnMut(ChildEvent) + Send>,
    /// True if orphans of the application become children of this process.
    pub(crate) adopts: bool,
    /// True if a watched file has changed since the last start.
    pub(crate) changed: Arc<AtomicBool>,
    /// The endpoint at which it certainly listened in an earlier life.
    known: Option<Endpoint>,
    /// True if it has listened anywhere.
    has_listened: bool,
    /// Children of this process before the first start.
    earlier: HashSet<u32>,
}

/// The reason why a life is to end before the application does so itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Asked,
    Changed,
    Undecided,
}

struct Life {
    child: Child,
    since: Instant,
    /// Sockets that listened before it began, and are not its own.
    foreign: HashSet<u64>,
    /// The next look for its sockets. `None`: they are known.
    look_at: Option<Instant>,
    /// The endpoints at the last look, and since when they are the same.
    seen: (Vec<Endpoint>, Instant),
    /// The endpoint at which it listens, as reported.
    endpoint: Option<Endpoint>,
    is_silence_reported: bool,
    /// It was told to end, and is killed at this time.
    ending: Option<(Why, Instant)>,
}

impl Supervision {
    pub(crate) fn new(
        application: Application,
        (messages, received): Messages,
        report: Box<dyn FnMut(ChildEvent) + Send>,
    ) -> Self {
        Self {
            application,
            messages,
            received,
            report,
            adopts: false,
            changed: Arc::default(),
            known: None,
            has_listened: false,
            earlier: HashSet::new(),
        }
    }

    /// Runs the application until it is over.
    pub(crate) fn run(&mut self) {
        let mut pauses = Pauses::default();
        self.earlier = processes::children(std::process::id(), &processes::all());
        let mut last: Option<ExitStatus> = None;
        let over = loop {
            let mut life = match (self.begin(), last) {
                (Ok(life), _) => life,
                (Err(error), None) => break Over::Unstartable(error),
                // The program may be on its way from a compiler, or the machine short of memory.
                (Err(error), Some(status)) => {
                    let pause = pauses.after(Duration::ZERO);
                    (self.report)(ChildEvent::NotStarted { error, pause });
                    if self.pause(pause) {
                        break Over::Asked(status);
                    }
                    continue;
                }
            };
            let status = match self.live(&mut life) {
                Ok(status) => status,
                Err(error) => break Over::Unstartable(error),
            };
            last = Some(status);
            let left = self.clear(&mut life);
            match life.ending.map(|(why, _)| why) {
                Some(Why::Asked) => break Over::Asked(status),
                Some(Why::Undecided) => break Over::Undecided,
                Some(Why::Changed) => continue,
                None if status.success() && !left.is_empty() => break Over::Background(left),
                None if status.success() && !self.has_listened => break Over::NeverListened,
                None => {}
            }
            let pause = pauses.after(life.since.elapsed());
            (self.report)(ChildEvent::Ended { status, pause });
            if self.pause(pause) {
                break Over::Asked(status);
            }
        };
        (self.report)(ChildEvent::Over(over));
    }

    fn begin(&mut self) -> io::Result<Life> {
        // The application reads the files as they are now.
        self.changed.store(false, Relaxed);
        let foreign = sockets::listening().into_iter().map(|(number, _)| number).collect();
        let Some((program, arguments)) = self.application.command.split_first() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(program);
        command.args(arguments).env("PORT", self.application.port.to_string());
        command.envs(self.application.variables.iter().map(|(name, value)| (name, value)));
        // A process group in the background that reads the terminal is stopped.
        command.stdin(Stdio::null());
        child::lead_group(&mut command);
        let child = command.spawn()?;
        let (pid, messages) = (child.id(), self.messages.clone());
        let wait = move || {
            let _ = child::wait_for_end(pid);
            // The queue has room for the end of each life: the next one begins after it was read.
            let _ = messages.send(Message::Ended(pid));
        };
        let waiter = thread::Builder::new().name("child-end".into()).spawn(wait);
        let since = Instant::now();
        let mut life = Life {
            child,
            since,
            foreign,
            look_at: Some(since),
            seen: (Vec::new(), since),
            endpoint: None,
            is_silence_reported: false,
            ending: None,
        };
        if let Err(error) = waiter {
            life.signal(Signal::KILL);
            let _ = life.child.wait();
            return Err(error);
        }
        (self.report)(ChildEvent::Started { pid });
        Ok(life)
    }

    /// Waits for the end of a life.
    fn live(&mut self, life: &mut Life) -> io::Result<ExitStatus> {
        loop {
            let now = Instant::now();
            if life.look_at.is_some_and(|at| at <= now) {
                self.look(life, now);
            }
            if life.ending.is_some_and(|(_, at)| at <= now) {
                self.kill(life);
                life.ending = life.ending.map(|(why, _)| (why, now + STOP_TIMEOUT));
            }
            let next = [life.look_at, life.ending.map(|(_, at)| at)].into_iter().flatten().min();
            let message = match next {
                None => self.received.recv().ok(),
                Some(next) => {
                    let left = next.saturating_duration_since(Instant::now());
                    match self.received.recv_timeout(left) {
                        Ok(message) => Some(message),
                        Err(RecvTimeoutError::Timeout) => continue,
                        Err(RecvTimeoutError::Disconnected) => None,
                    }
                }
            };
            match message {
                Some(Message::Ended(pid)) if pid == life.child.id() => return life.child.wait(),
                Some(Message::Ended(_)) => {}
                Some(Message::Pass(signal)) => life.signal(signal),
                Some(Message::Kill) => self.kill(life),
                Some(Message::End(signal)) => life.end(Why::Asked, signal),
                Some(Message::Changed) if !self.is_changed() || life.ending.is_some() => {}
                Some(Message::Changed) => {
                    (self.report)(ChildEvent::Changed);
                    life.end(Why::Changed, Signal::TERM);
                }
                // Not expected: this value holds a sender itself.
                None => life.end(Why::Asked, Signal::TERM),
            }
        }
    }

    fn kill(&mut self, life: &Life) {
        life.signal(Signal::KILL);
        (self.report)(ChildEvent::Killed);
    }

    /// True if a file has changed since the last start and the last call.
    fn is_changed(&self) -> bool {
        self.changed.swap(false, Relaxed)
    }

    /// Looks where the application listens. Looks end at its port. At another endpoint they go on
    /// for a while: its port may still come. One that was alone so long is known to later lives.
    fn look(&mut self, life: &mut Life, now: Instant) {
        let endpoints = life.endpoints(self.application.port);
        if endpoints != life.seen.0 {
            life.seen = (endpoints.clone(), now);
        }
        let same = now - life.seen.1;
        let age = now - life.since;
        let is_late = age >= LISTEN_TIMEOUT;
        let goes_on = !is_late || life.endpoint.is_none() || same < SETTLED;
        life.look_at = goes_on.then_some(now + look_after(age));
        match sockets::choose(endpoints, self.application.port, self.known.as_ref()) {
            Choice::Certain(endpoint) => {
                life.look_at = None;
                self.known = Some(endpoint.clone());
                self.found(life, endpoint);
            }
            Choice::Earlier(endpoint) => self.found(life, endpoint),
            Choice::Only(endpoint) if same >= SETTLED => {
                if is_late {
                    self.known = Some(endpoint.clone());
                }
                self.found(life, endpoint);
            }
            Choice::Several(found) if same >= UNDECIDED && life.endpoint.is_none() => {
                (self.report)(ChildEvent::ListensAtSeveral(found));
                life.end(Why::Undecided, Signal::TERM);
            }
            Choice::Nowhere if is_late && !life.is_silence_reported => {
                life.is_silence_reported = true;
                (self.report)(ChildEvent::ListensNowhere);
            }
            Choice::Nowhere | Choice::Only(_) | Choice::Several(_) => {}
        }
    }

    fn found(&mut self, life: &mut Life, endpoint: Endpoint) {
        if life.endpoint.as_ref() == Some(&endpoint) {
            return;
        }
        life.endpoint = Some(endpoint.clone());
        self.has_listened = true;
        let dialled = sockets::dialled(endpoint.clone());
        (self.report)(ChildEvent::Listening { bound: endpoint, dialled });
    }

    /// Ends what an application has left behind: it may hold the port that the next one needs.
    /// Returns what there was. Being asked to end meanwhile is noted; being asked again kills.
    fn clear(&mut self, life: &mut Life) -> Vec<u32> {
        let leader = life.child.id();
        let look = || {
            let all = processes::all();
            let all = if self.adopts { all } else { of_group(leader, all) };
            let (ended, alive): (Vec<Process>, Vec<Process>) =
                processes::left_behind(leader, (std::process::id(), &self.earlier), &all)
                    .into_iter()
                    .partition(|left| left.is_zombie);
            ended.iter().for_each(|zombie| child::reap(zombie.pid));
            let is_its_own = |pid: &u32| !processes::has_command(*pid, self.application.spared);
            alive.into_iter().map(|left| left.pid).filter(is_its_own).collect::<Vec<u32>>()
        };
        let first = look();
        let began = Instant::now();
        let mut left = first.clone();
        let (mut is_asked, mut is_urgent, mut is_said) = (false, false, false);
        while !left.is_empty() && began.elapsed() < 2 * STOP_TIMEOUT {
            let is_late = is_urgent || began.elapsed() >= STOP_TIMEOUT;
            if is_late || !is_asked {
                let signal = if is_late { Signal::KILL } else { Signal::TERM };
                // They may have ended since they were seen.
                left.iter().for_each(|pid| _ = child::signal(*pid, signal));
                is_asked = true;
                if is_late && !std::mem::replace(&mut is_said, true) {
                    (self.report)(ChildEvent::Killed);
                }
            }
            match self.received.recv_timeout(LEFT_STEP) {
                Ok(Message::End(_)) => is_urgent |= !life.ask(),
                Ok(Message::Kill) => {
                    life.ask();
                    is_urgent = true;
                }
                // A change that comes now is read by the next life.
                Ok(Message::Changed | Message::Pass(_) | Message::Ended(_)) => {}
                Err(RecvTimeoutError::Timeout) => {}
                // Not expected: this value holds a sender itself.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(LEFT_STEP),
            }
            left = look();
        }
        first
    }

    /// Waits before the next start. Returns whether there is to be none.
    fn pause(&self, pause: Duration) -> bool {
        let end = Instant::now() + pause;
        loop {
            match self.received.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(Message::End(_) | Message::Kill) | Err(RecvTimeoutError::Disconnected) => {
                    return true;
                }
                // What was wrong may be mended.
                Ok(Message::Changed) if self.is_changed() => return false,
                Err(RecvTimeoutError::Timeout) => return false,
                Ok(Message::Changed | Message::Pass(_) | Message::Ended(_)) => {}
            }
        }
    }
}

fn of_group(leader: u32, all: Vec<Process>) -> Vec<Process> {
    let members = processes::members(leader, &all);
    all.into_iter().filter(|process| members.contains(&process.pid)).collect()
}

impl Life {
    /// Tells the application to end. The first reason counts, except that nothing is more urgent
    /// than being asked.
    fn end(&mut self, why: Why, signal: Signal) {
        self.signal(signal);
        self.look_at = None;
        match &mut self.ending {
            Some((known, _)) if why == Why::Asked => *known = why,
            Some(_) => {}
            None => self.ending = Some((why, Instant::now() + STOP_TIMEOUT)),
        }
    }

    /// Notes that an end was asked for. Returns whether that is new.
    fn ask(&mut self) -> bool {
        let before = self.ending.replace((Why::Asked, Instant::now()));
        before.is_none_or(|(why, _)| why != Why::Asked)
    }

    fn signal(&self, signal: Signal) {
        // The group may have ended.
        let _ = child::signal_group(self.child.id(), signal);
    }

    /// Returns the endpoints of the application: its own sockets, and whatever new socket has its
    /// port. The sockets of a process of another user cannot be seen.
    fn endpoints(&self, port: u16) -> Vec<Endpoint> {
        let members = processes::members(self.child.id(), &processes::all());
        let own = processes::sockets(&members);
        let is_port = |endpoint: &Endpoint| match endpoint {
            Endpoint::Tcp(address) => address.port() == port,
            Endpoint::Unix(_) => false,
        };
        let listening = sockets::listening().into_iter();
        let found = listening.filter(|(number, endpoint)| {
            own.contains(number) || is_port(endpoint) && !self.foreign.contains(number)
        });
        let located = |(number, endpoint)| match endpoint {
            Endpoint::Unix(path) if path.is_relative() => {
                let folders = processes::folders(&members, number);
                sockets::located(&path, folders).map(Endpoint::Unix)
            }
            endpoint => Some(endpoint),
        };
        sockets::without_control(found.filter_map(located).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{BufRead, BufReader};
    use std::sync::mpsc::sync_channel;

    use super::*;

    /// A shell that ends at once, and leaves a process that ignores SIGTERM, as it does itself.
    fn stubborn() -> (Life, u32) {
        let script = "trap '' TERM INT; sleep 600 >&- & echo $!";
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        child::lead_group(&mut command);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let _ = child.wait().unwrap();
        let since = Instant::now();
        let life = Life {
            child,
            since,
            foreign: HashSet::new(),
            look_at: None,
            seen: (Vec::new(), since),
            endpoint: None,
            is_silence_reported: false,
            ending: None,
        };
        (life, line.trim().parse().unwrap())
    }

    /// The first Ctrl-C asks, and waits for what ignores it. The second one does not.
    #[test]
    fn a_second_request_to_end_kills_what_was_left() {
        let (messages, received) = sync_channel(4);
        let (command, watch, variables) = (Vec::new(), Vec::new(), Vec::new());
        let spared = "spared";
        let application = Application { command, port: 1, watch, variables, spared };
        let queue = (messages.clone(), received);
        let mut supervision = Supervision::new(application, queue, Box::new(|_| ()));
        let (mut life, stubborn) = stubborn();
        for _ in 0..2 {
            messages.send(Message::End(Signal::INT)).unwrap();
        }
        let began = Instant::now();
        assert_eq!(supervision.clear(&mut life), [stubborn]);
        assert!(began.elapsed() < STOP_TIMEOUT, "{:?}", began.elapsed());
        assert_eq!(life.ending.map(|(why, _)| why), Some(Why::Asked));
        assert!(child::signal(stubborn, Signal::CONT).is_err() || is_zombie(stubborn));
    }

    fn is_zombie(pid: u32) -> bool {
        processes::all().iter().any(|process| process.pid == pid && process.is_zombie)
    }
}

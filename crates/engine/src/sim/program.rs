//! The program that the simulated event loop calls. It peeks, dials scripted upstreams, refuses,
//! parks, and keeps the log entries.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use eyelet_hold::{HoldDecision, HoldKey, HoldPlace, Holds, Keep, QuestionFilter, Which, Who};
use eyelet_memory::budget::{Account, Counted, CountedBuffer};
use eyelet_record::Session;
use eyelet_telemetry::held::{HeldBy, HeldVerdict};
use eyelet_telemetry::info::{ConnectionInfo, Decided, End, Outcome};
use eyelet_telemetry::reason::{HeldEnd, Limit, Reason, Stage, When};
use fastrand::Rng;

use super::peer::Peer;
use crate::park;
use crate::ready::{CLIENT, Side, UPSTREAM};
use crate::testing::plain_program;
use crate::testing::stream::Stream;
use crate::worker::WaitError;
use crate::worker::{Handle, Program, Task};
use eyelet_relay::held::{HeldConnection, HeldState};
use eyelet_relay::splice::Spliced;
use eyelet_relay::terminate::{Terminated, final_alert};
use eyelet_relay::{Flow, Relay};
use std::time::Duration;

/// The time for which a client may send nothing at first.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes that are peeked at before the connection is parked.
const PEEKED_BYTES_MAX: usize = 700;
/// The wait of a held connection: longer than any run.
const HELD_TIMEOUT: Duration = Duration::from_secs(100_000);
/// unrecognized_name, in a TLS 1.2 record.
pub const REFUSAL: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// The program's plan for a connection.
#[derive(Debug)]
pub enum Plan {
    Splice {
        /// The first flights are inspected. `true`: a server that compresses is refused.
        inspect: Option<bool>,
    },
    Terminate {
        session: Option<Box<Session>>,
        /// The upstream is dialled only when the client has sent something.
        late: bool,
        /// The bytes that the upstream gets before the client's.
        preface: Vec<u8>,
    },
    Refuse,
    /// It is held until somebody decides, and then spliced or refused.
    Hold {
        allow: bool,
    },
}

#[derive(Debug)]
pub struct Connection {
    pub plan: Plan,
    /// The bytes that the upstream gets before the client's.
    pub preface_bytes: usize,
    /// True if the program reads before it parks.
    pub peeks: bool,
    /// The bytes that an upstream will send and receive.
    pub streams: (Stream, Stream),
    pub client: Peer,
    pub upstream: Option<Peer>,
    /// True if the upstream can be dialled.
    pub is_reachable: bool,
    pub log: Vec<LogEntry>,
    /// The peers do nothing until the end.
    pub is_stalled: bool,
    /// The side that ends its stream only after it has read the other's end. `None`: neither waits.
    pub waits: Option<Side>,
}

impl Connection {
    /// Both peers end their streams, unless they wait for each other.
    pub fn finish(&mut self) {
        let Self { client, upstream, .. } = self;
        if self.waits != Some(CLIENT) || client.is_ended() || upstream.is_none() {
            client.finish(false);
        }
        if let Some(upstream) = upstream
            && (self.waits != Some(UPSTREAM) || upstream.is_ended())
        {
            upstream.finish(false);
        }
    }

    pub fn peers(&mut self) -> impl Iterator<Item = &mut Peer> {
        [Some(&mut self.client), self.upstream.as_mut()].into_iter().flatten()
    }

    /// True if the client receives an alert that is not its upstream's.
    pub fn expects_refusal(&self) -> bool {
        match self.plan {
            Plan::Refuse => true,
            Plan::Splice { .. } | Plan::Hold { allow: true } => !self.is_reachable,
            Plan::Hold { allow: false } => true,
            Plan::Terminate { .. } => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    pub outcome: Outcome,
    pub reason: Reason,
    pub bytes_to_upstream: usize,
    pub bytes_to_client: usize,
}

pub struct Simulated {
    /// The held connections of both processes.
    pub holds: Arc<Holds>,
    pub rng: RefCell<Rng>,
    /// By the client's port.
    pub connections: RefCell<Vec<Connection>>,
}

impl Simulated {
    /// Decides about a connection, if it is held.
    pub fn decide(&self, index: usize) {
        let Plan::Hold { allow } = self.connections.borrow()[index].plan else { return };
        let verdict = if allow { HeldVerdict::Allow } else { HeldVerdict::Refuse };
        let (name, by) = (index.to_string(), HeldBy::Page);
        // It is not held yet, or no more.
        let which = Which::Like(QuestionFilter::named(&name, None));
        let _ = self.holds.decide(which, HoldDecision { verdict, by }, Keep::Once, 0);
    }

    async fn serve(&self, handle: &Handle, info: &mut ConnectionInfo) -> Result<(), End> {
        handle.due_in(HELLO_TIMEOUT);
        let budget = &handle.worker.process.budget;
        let index = usize::from(info.client.port());
        let peeks = self.connections.borrow()[index].peeks;
        let mut peeked = CountedBuffer::of(budget, Account::Received);
        if peeks && handle.recv(&mut peeked, PEEKED_BYTES_MAX).await.map_err(failed)? == 0 {
            return Err(End::failed(Reason::ClientClosed(Some(BEFORE_HELLO))));
        }
        let is_held = matches!(self.connections.borrow()[index].plan, Plan::Hold { .. });
        if is_held {
            let (key, now) = (question(index), handle.worker.now_unix_ms());
            let waiting = self.holds.ask(key, who(), peeked.len(), now).expect("a place");
            let (bytes, waits) = (peeked.to_vec().into(), HeldState::Waits(waiting));
            let held = HeldConnection::new(bytes, None, HELD_TIMEOUT, waits);
            park::park(handle, info, Relay::Held(held));
            return Ok(());
        }
        let relay = match &mut self.connections.borrow_mut()[index].plan {
            Plan::Refuse => {
                park::close_with(handle, &REFUSAL);
                return Err(End { outcome: Outcome::Refused, reason: Reason::Refused("by rule") });
            }
            Plan::Hold { .. } => unreachable!("it is parked above"),
            Plan::Splice { inspect } => Relay::Splice(Spliced::new(
                {
                    let mut flow = Flow::default();
                    inspect.iter().for_each(|forbid| flow.inspect(*forbid));
                    flow
                },
                &mut info.decided,
            )),
            Plan::Terminate { session, preface, .. } => {
                let mut flow = Flow::default();
                flow.hold_partial(&peeked);
                flow.hold_preface(std::mem::take(preface));
                let session = session.take().expect("a session for each connection");
                Relay::Terminate(Terminated { session: *session, flow })
            }
        };
        let is_late =
            matches!(self.connections.borrow()[index].plan, Plan::Terminate { late: true, .. });
        let relay = if is_late { relay } else { self.dial(handle, index, relay)? };
        let relay = send_peeked(handle, info, relay, &peeked);
        park::park(handle, info, relay);
        Ok(())
    }

    fn dial(&self, handle: &Handle, index: usize, mut relay: Relay) -> Result<Relay, End> {
        let connection = &mut self.connections.borrow_mut()[index];
        if !connection.is_reachable {
            let alert = match &mut relay {
                Relay::Terminate(terminated) => final_alert(terminated, 80),
                Relay::Cleartext(_) | Relay::Held(_) | Relay::Splice(_) => REFUSAL.to_vec(),
            };
            park::close_with(handle, &alert);
            return Err(End::failed(Reason::NoAddress));
        }
        let (said, heard) = std::mem::take(&mut connection.streams);
        let (peer, socket) = Peer::new("upstream", said, heard);
        connection.upstream = Some(peer);
        handle.set_connected(socket);
        if let Relay::Terminate(terminated) = &mut relay {
            terminated.flow.preface_first();
        }
        Ok(relay)
    }

    async fn serve_woken(
        &self,
        handle: &Handle,
        info: &mut ConnectionInfo,
        relay: Relay,
    ) -> Result<(), End> {
        // Ticks may have passed before the task first runs.
        handle.due_in(HELLO_TIMEOUT);
        let pauses = self.rng.borrow_mut().usize(..4);
        for _ in 0..pauses {
            tokio::task::yield_now().await;
        }
        handle.in_time().map_err(failed)?;
        let (relay, peeked) = match relay {
            Relay::Held(held) => {
                let decision = held.decision().expect("nothing else wakes it");
                if decision.verdict == HeldVerdict::Refuse {
                    park::close_with(handle, &REFUSAL);
                    let reason = Reason::Held(HeldEnd::Refused);
                    return Err(End { outcome: Outcome::Refused, reason });
                }
                let spliced = Spliced::new(Flow::default(), &mut info.decided);
                (Relay::Splice(spliced), held.bytes().to_vec())
            }
            relay => (relay, Vec::new()),
        };
        let relay = self.dial(handle, usize::from(info.client.port()), relay)?;
        let relay = send_peeked(handle, info, relay, &peeked);
        park::park(handle, info, relay);
        Ok(())
    }
}

/// Passes on what was peeked at, as far as the upstream takes it.
fn send_peeked(handle: &Handle, info: &mut ConnectionInfo, relay: Relay, peeked: &[u8]) -> Relay {
    match relay {
        Relay::Splice(mut spliced) if !peeked.is_empty() => {
            info.bytes_to_upstream += peeked.len() as u64;
            let sent = handle.send(UPSTREAM, peeked).unwrap_or(0);
            spliced.flow.begin(&peeked[sent..]);
            Relay::Splice(spliced)
        }
        relay => relay,
    }
}

/// The question of the connection with this index.
fn question(index: usize) -> HoldKey {
    HoldKey { rule: "ask".into(), name: index.to_string().into(), port: 443, request: None }
}

fn who() -> Who {
    Who { client: [192, 0, 2, 1].into(), program: None, file: None }
}

fn failed(wait_error: WaitError) -> End {
    End::failed(wait_error.reason(Limit::Hello, BEFORE_HELLO))
}

const BEFORE_HELLO: When = When::Before(Stage::Hello);

impl Program for Simulated {
    plain_program!();

    fn accepted(self: Rc<Self>, handle: Handle, mut info: ConnectionInfo) -> Task {
        Box::pin(async move {
            if let Err(end) = self.serve(&handle, &mut info).await {
                handle.worker.emit(&info, &end);
            }
        })
    }

    fn woken(
        self: Rc<Self>,
        handle: Handle,
        mut info: ConnectionInfo,
        relay: Relay,
        counted: Counted,
    ) -> Task {
        Box::pin(async move {
            if let Err(end) = self.serve_woken(&handle, &mut info, relay).await {
                handle.worker.emit(&info, &end);
            }
            drop(counted);
        })
    }

    fn ask_again(&self, _: &ConnectionInfo, key: HoldKey, bytes: usize) -> Option<HoldPlace> {
        self.holds.ask(key, who(), bytes, 0)
    }

    fn task_bytes(&self, _: &Decided) -> usize {
        0
    }

    fn is_logging(&self) -> bool {
        true
    }

    fn log(&self, info: &ConnectionInfo, end: &End) {
        let connection = &mut self.connections.borrow_mut()[usize::from(info.client.port())];
        connection.log.push(LogEntry {
            outcome: end.outcome,
            reason: end.reason.clone(),
            bytes_to_upstream: info.bytes_to_upstream as usize,
            bytes_to_client: info.bytes_to_client as usize,
        });
    }
}

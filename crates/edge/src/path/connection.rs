//! The path of a connection: accept, peek, decide, act. Each step is one file.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use eyelet_policy::{Decision, Fact, Rules};
use eyelet_wire::hello::{Hello, HelloReader, NotTls, Peek};
use futures_util::FutureExt;

use crate::path::action;
use crate::path::action::hold::{HoldResult, Woken};
use crate::path::action::redirect::{Redirects, redirect};
use crate::path::action::terminate::Offer;
use crate::path::active::Active;
use crate::path::connect;
use crate::path::fact_source::KnownFacts;
use crate::path::intercept;
use crate::path::peek;
use crate::path::plain_http;
use crate::path::refuse;
use crate::path::refuse::RefusalMessage;
use crate::path::shadow;
use crate::snapshot::edge::Edge;
use eyelet_config::{Action, ListenerKind, Originate, TerminateUpstream};
use eyelet_downstream::connection::intermediary::outcome_of;
use eyelet_engine::worker::Handle;
use eyelet_memory::budget::{Account, Counted, CountedBuffer};
use eyelet_relay::held::HeldConnection;
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome};
use eyelet_telemetry::listing::State;
use eyelet_telemetry::reason::{RateLimit, Reason, Stage};
use eyelet_tls::server::Handshake;

/// accept -> peek -> decide -> act. Then the connection is parked, or this function logs its end.
/// The info is boxed, because a task with it would be larger than what the allocator caches.
// An `async fn` would keep its arguments twice and make every task that much larger.
#[allow(clippy::manual_async_fn)]
pub fn connection(
    edge: Rc<Edge>,
    handle: Handle,
    mut info: Box<ConnectionInfo>,
) -> impl Future<Output = ()> {
    async move {
        let connection = &mut Active { edge: &edge, handle: &handle, info: &mut info };
        let served = AssertUnwindSafe(serve(connection)).catch_unwind().await;
        // An internal error ends this connection only. It gets its access line like any other.
        if let Err(end) = served.unwrap_or_else(|_| Err(End::failed(Reason::Internal("a panic")))) {
            edge.engine.emit(&info, &end);
        }
    }
}

async fn serve(connection: &mut Active<'_>) -> Result<(), End> {
    let snapshot = &connection.edge.snapshot;
    connection.handle.due_in(snapshot.config.limits.hello_timeout);
    let local = || connection.handle.local_address();
    let client = connection.info.client;
    connection.info.decided.is_handed =
        snapshot.names.loops.is_handed(client, local, || connection.handle.is_connected());
    // All bytes that the client has sent so far. The upstream gets them byte for byte.
    let mut peeked = CountedBuffer::of(&snapshot.budget, Account::Received);
    if peek::must_name_client(connection) {
        // Boxed, as the handshake below: a task is as large as its largest branch, and few
        // connections take this one.
        Box::pin(peek::proxy_header(connection, &mut peeked)).await?;
    } else if connection.may_end_tls() && connection.has_spent_handshakes() {
        // Nothing was read, and nothing is sent: this is what costs least.
        connection.handle.reset_client();
        return Err(refused(Reason::Rate(RateLimit::Source)));
    }
    let listener = connection.listener();
    match listener.kind {
        ListenerKind::Direct | ListenerKind::Plain => {}
        ListenerKind::HttpRedirect => {
            let redirects = Redirects {
                http: &snapshot.config.http,
                acme: &snapshot.acme,
                upstream: listener.acme_upstream,
                https_port: snapshot.https_port,
            };
            return Box::pin(redirect(redirects, connection.handle, connection.info, peeked)).await;
        }
        _ => Box::pin(intercept::arrive(connection, &mut peeked)).await?,
    }
    settle(connection, &mut peeked, Woken::Anew).await
}

/// Decides, unless the rule is known, and acts. `peeked` has the bytes that were read so far.
// As above: it is part of each task.
#[allow(clippy::manual_async_fn)]
fn settle(
    connection: &mut Active<'_>,
    peeked: &mut CountedBuffer,
    woken: Woken,
) -> impl Future<Output = Result<(), End>> {
    async move {
        let ruling = match &woken {
            Woken::Goes(rule) => allowed(connection, *rule, peeked),
            Woken::Asked(_) | Woken::Anew => decide(connection, peeked).await?,
        };
        if let Woken::Asked(key) = woken
            && !matches!(&ruling, Ruling::Act { rule, .. }
                if action::hold::key(connection, *rule) == *key)
        {
            // The verdict was about something else.
            connection.info.decided.held = None;
        }
        let (rule, hello_bytes, offer) = match ruling {
            Ruling::Act { rule, hello_bytes, offer } => (rule, hello_bytes, offer),
            Ruling::Validate(with) => {
                return Box::pin(action::validate::validate(connection, with, peeked.take())).await;
            }
            Ruling::PlainHttp => return Box::pin(plain_http::serve(connection, peeked)).await,
            Ruling::Refuse(answer, end) => return connect::end(connection, &answer, end),
        };
        let action = connection.edge.snapshot.config.rules.at(rule).action;
        // A held one has its verdict, and does not ask again. Requests are asked about one by one.
        let asks = action.hold().is_some_and(|hold| !hold.of_requests);
        if asks && connection.info.decided.held.is_none() {
            match action::hold::ask(connection, rule, peeked) {
                Ok(HoldResult::Goes) => {}
                Ok(HoldResult::Waits) => return Ok(()),
                Err(end) => return action::hold::end(connection, end),
            }
        }
        let hello = peeked.get(..hello_bytes).unwrap_or_default();
        if let Err(end) = intercept::check_return(connection, hello, action) {
            return refuse::refuse(connection, &RefusalMessage::of(&end.reason), end);
        }
        emit_decision(connection, action);
        match action {
            Action::Originate(Originate { requests, .. }) => match &requests.upstream {
                TerminateUpstream::Tls(to) => {
                    Box::pin(action::originate_bytes::originate(connection, to)).await
                }
                _ => action::originate::originate(connection).await,
            },
            Action::Splice(splice) => {
                action::splice::splice(connection, splice, peeked, hello_bytes).await
            }
            Action::Terminate(terminate) => {
                if let Err(rate) = connection.take_handshake() {
                    let end = refused(Reason::Rate(rate));
                    return refuse::refuse(connection, &RefusalMessage::of(&end.reason), end);
                }
                connection.note_state(State::Handshaking);
                let peeked = (peeked.take(), offer);
                Box::pin(action::terminate::terminate(connection, rule, terminate, peeked)).await
            }
            // `decide` returns a refusal for a refuse rule, never its action.
            Action::Refuse(_) => Err(End::failed(Reason::Internal("refused without a reason"))),
        }
    }
}

fn refused(reason: Reason) -> End {
    End { outcome: Outcome::Refused, reason }
}

/// The ruling on a held connection that may go on by its rule.
fn allowed(connection: &Active<'_>, rule: u32, peeked: &[u8]) -> Ruling {
    let hello_bytes_max = connection.edge.snapshot.config.limits.hello_bytes_max;
    let (hello_bytes, offer) = match HelloReader::new(hello_bytes_max).feed(peeked) {
        Peek::Hello(hello) => (hello.raw_len(), Offer::of(&hello)),
        _ => (0, Offer::default()),
    };
    Ruling::Act { rule, hello_bytes, offer }
}

/// Goes on with a connection that was held: by its rule, or decided anew.
pub async fn resume(
    edge: Rc<Edge>,
    handle: Handle,
    mut info: Box<ConnectionInfo>,
    held: HeldConnection,
    counted: Counted,
) {
    let connection = &mut Active { edge: &edge, handle: &handle, info: &mut info };
    let served = AssertUnwindSafe(go_on(connection, held, counted)).catch_unwind().await;
    if let Err(end) = served.unwrap_or_else(|_| Err(End::failed(Reason::Internal("a panic")))) {
        edge.engine.emit(&info, &end);
    }
}

async fn go_on(
    connection: &mut Active<'_>,
    held: HeldConnection,
    counted: Counted,
) -> Result<(), End> {
    let mut peeked = CountedBuffer::of(&connection.edge.snapshot.budget, Account::Received);
    let woken = action::hold::wake(connection, &held, (&mut peeked, counted));
    // From here on nobody waits on the question for it.
    drop(held);
    match woken {
        Ok(woken) => settle(connection, &mut peeked, woken).await,
        Err(end) => action::hold::end(connection, end),
    }
}

/// Writes the line of the decision if all are wanted, or if a rule in shadow would have refused:
/// the connection's own line may come in a day.
pub fn emit_decision(connection: &Active<'_>, action: &Action) {
    let mut shadow = connection.info.decided.shadow.iter();
    let is_shadowed = shadow.any(|(_, would)| *would == Outcome::Refused);
    if !is_shadowed && !connection.edge.snapshot.config.log.decided {
        return;
    }
    let outcome = outcome_of(action);
    let now = connection.edge.engine.now_unix_ms();
    connection.edge.log.borrow_mut().decided(connection.info, outcome, now);
}

/// The result of `decide`.
enum Ruling {
    /// Take the action of this rule.
    Act {
        /// The rule's index.
        rule: u32,
        /// The number of the peeked bytes that are the hello; 0 if none was read.
        hello_bytes: usize,
        /// Facts of that hello for a terminator.
        offer: Offer,
    },
    /// Answer an ACME server that validates the name.
    Validate(Handshake),
    /// Decide each of its HTTP requests: it speaks no TLS.
    PlainHttp,
    /// Refuse with this message and this end.
    Refuse(RefusalMessage, End),
}

/// Asks the rules. Reads as much of the hello and fetches each fact as the rules ask for, and asks
/// them again until there is a verdict. From a client without TLS nothing is read.
async fn decide(connection: &mut Active<'_>, peeked: &mut CountedBuffer) -> Result<Ruling, End> {
    let mut known = KnownFacts::of(connection);
    if let Some(verdict) = known.ask_without_hello().await? {
        let ruling = ruling(known.settle(verdict), None);
        if known.connection.edge.snapshot.config.policy.has_shadows() {
            Box::pin(shadow::look(&mut known, peeked)).await?;
        }
        return Ok(match ruling {
            Ruling::Refuse(answer, end) if known.connection.takes_alert() => {
                let answer = Box::pin(peek::fit(&known.connection, peeked, answer)).await;
                Ruling::Refuse(answer, end)
            }
            ruling => ruling,
        });
    }
    if known.connection.info.owes_answer.is_some() {
        let policy = &known.connection.edge.snapshot.config.policy;
        if let Some(rules) = policy.might_take(&known.facts(None)) {
            Box::pin(connect::guarded::check(&mut known.connection, &rules)).await?;
        }
        Box::pin(connect::establish(&mut known.connection)).await?;
    }
    let mut reader = HelloReader::new(known.connection.edge.snapshot.config.limits.hello_bytes_max);
    let mut is_logged = false;
    loop {
        // Nothing that was read is held over a wait, so a waiting task stays small.
        let needed = match reader.feed(peeked) {
            Peek::NeedMore { .. } => None,
            Peek::Hello(hello) => {
                let is_first = !std::mem::replace(&mut is_logged, true);
                match judge_hello(&mut known, &hello, is_first) {
                    Judged::Ruling(ruling) => return Ok(ruling),
                    Judged::Need(fact) => Some(Some(fact)),
                    Judged::Validation => Some(None),
                }
            }
            Peek::NotTls(NotTls::Http) if known.connection.listener().plain_http => {
                return Ok(Ruling::PlainHttp);
            }
            unreadable => {
                let (answer, end) = refuse::unreadable(&unreadable);
                return Ok(Ruling::Refuse(answer, end));
            }
        };
        match needed {
            Some(Some(fact)) => Box::pin(known.wait_for(fact)).await?,
            Some(None) => {
                let found = Box::pin(action::validate::find(&known.connection)).await?;
                if let Some(with) = found {
                    return Ok(Ruling::Validate(with));
                }
            }
            None => peek::more(&known.connection, peeked, Stage::Hello).await?,
        }
    }
}

/// The rules' answer.
enum Judged {
    /// A verdict.
    Ruling(Ruling),
    /// The rules need a fact that costs something.
    Need(Fact),
    /// An ACME server may ask to validate the name. The rules were not asked.
    Validation,
}

/// Asks the rules with a hello, which is noted when it is first read.
fn judge_hello(known: &mut KnownFacts<'_>, hello: &Hello<'_>, is_first: bool) -> Judged {
    if is_first {
        peek::note_hello(&mut known.connection, hello);
        if action::validate::is_asked(&known.connection, hello) {
            return Judged::Validation;
        }
    }
    match known.ask(Some(hello)) {
        Decision::Need(fact) => Judged::Need(fact),
        Decision::Verdict(verdict) => {
            let settled = known.settle(verdict);
            shadow::note(known, Some(hello));
            Judged::Ruling(ruling(settled, Some(hello)))
        }
    }
}

fn ruling(settled: Result<u32, (RefusalMessage, End)>, hello: Option<&Hello<'_>>) -> Ruling {
    let hello_bytes = hello.map_or(0, Hello::raw_len);
    let offer = hello.map_or_else(Offer::default, Offer::of);
    match settled {
        Ok(rule) => Ruling::Act { rule, hello_bytes, offer },
        Err((answer, end)) => Ruling::Refuse(answer, end),
    }
}

/// Compile-time check: all workers share the rules, so they must be `Sync`.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Rules>();
};

#[cfg(test)]
mod tests {
    use super::*;

    /// A task and its info fit the blocks of glibc's per-thread cache, below 1032 bytes.
    #[test]
    fn a_connections_task_is_small() {
        fn size<A, B, C, F: Future>(_: impl Fn(A, B, C) -> F) -> usize {
            size_of::<F>()
        }
        let (task, info) = (size(connection), size_of::<ConnectionInfo>());
        assert!(task <= 864 && info <= 448, "{task} and {info}");
    }
    /// This future is a second allocation beside the task, counted with it
    /// (`budget::ACTIVE_BYTES`).
    #[test]
    fn what_is_awaited_of_a_handshake_is_small() {
        fn size<A, B, C, D, F: Future>(_: impl Fn(A, B, C, D) -> F) -> usize {
            size_of::<F>()
        }
        let size = size(action::terminate::terminate);
        assert!(size <= 2048, "{size}");
    }
}

//! Hold: asks the question that a connection waits on, parks it, and says what it does once there
//! is a verdict, or its time is over.

use std::net::IpAddr;

use eyelet_config::{Action, Host, HttpAddress, SpliceUpstream, Terminate};
use eyelet_downstream::connection::served_connection::held_request::who;
use eyelet_engine::park;
use eyelet_hold::{HoldDecision, HoldKey, HoldPlace};
use eyelet_memory::budget::{Counted, CountedBuffer};
use eyelet_relay::Relay;
use eyelet_relay::held::{HeldConnection, HeldState};
use eyelet_telemetry::held::{HeldBy, HeldInfo, HeldVerdict};
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome};
use eyelet_telemetry::reason::{HeldEnd, Reason};
use eyelet_wire::connect::{Target, TargetHost};

use crate::path::active::Active;
use crate::path::connect;
use crate::path::refuse::RefusalMessage;
use crate::snapshot::edge::Edge;

/// The next step of a connection that came to a hold rule.
pub enum HoldResult {
    /// It goes on: the verdict was there before it came.
    Goes,
    /// It is parked.
    Waits,
}

/// The next step of a connection that comes, or was held and wakes.
pub enum Woken {
    /// It goes on by the rule with this index.
    Goes(u32),
    /// The rules decide it anew. The verdict that allows it counts if they come to this question.
    Asked(Box<HoldKey>),
    /// The rules decide it anew: there is no verdict, or its rule is gone.
    Anew,
}

/// Asks about a connection that came to a hold rule, and parks it if there is no verdict.
///
/// # Errors
/// Its end, if it is refused.
pub fn ask(
    connection: &mut Active<'_>,
    rule: u32,
    peeked: &CountedBuffer,
) -> Result<HoldResult, End> {
    let (edge, snapshot) = (connection.edge, &connection.edge.snapshot);
    let found = snapshot.config.rules.at(rule);
    let key = key(connection, rule);
    let (who, now_unix_ms) = (who(connection.info, found.action), edge.engine.now_unix_ms());
    let Some(waiting) = snapshot.holds.ask(key, who, peeked.len(), now_unix_ms) else {
        return Err(refused(HeldEnd::TooMany));
    };
    if let Some(decision) = waiting.decision() {
        return by_verdict(connection, decision, 0).map(|()| HoldResult::Goes);
    }
    if waiting.is_first() {
        tracing::warn!("{}", waiting.question().announcement());
    }
    let (bytes, owes_answer) = (peeked.to_vec().into(), connection.info.owes_answer);
    let (wait, question) = (snapshot.config.hold.timeout, HeldState::Waits(waiting));
    let held = HeldConnection::new(bytes, owes_answer, wait, question);
    park::park(connection.handle, connection.info, Relay::Held(held));
    Ok(HoldResult::Waits)
}

/// The question about a connection that came to the rule with this index.
pub fn key(connection: &Active<'_>, rule: u32) -> HoldKey {
    let found = connection.edge.snapshot.config.rules.at(rule);
    let (name, port) = target(connection, found.action);
    HoldKey { rule: found.name.into(), name, port, request: None }
}

/// Has a connection wait again that comes from another process.
pub fn ask_again(
    edge: &Edge,
    info: &ConnectionInfo,
    key: HoldKey,
    bytes: usize,
) -> Option<HoldPlace> {
    let snapshot = &edge.snapshot;
    let action = snapshot.config.rules.iter().find(|rule| *rule.name == *key.rule)?.action;
    action.hold()?;
    let now_unix_ms = edge.engine.now_unix_ms();
    snapshot.holds.ask(key, who(info, action), bytes, now_unix_ms).map(HoldPlace::moved)
}

/// Takes the bytes of a held connection that wakes, and says what it does.
///
/// # Errors
/// Its end, if it is refused.
pub fn wake(
    connection: &mut Active<'_>,
    held: &HeldConnection,
    (peeked, counted): (&mut CountedBuffer, Counted),
) -> Result<Woken, End> {
    peeked.extend_from_slice(held.bytes());
    drop(counted);
    let (edge, info) = (connection.edge, &mut *connection.info);
    let config = &edge.snapshot.config;
    connection.handle.due_in(config.limits.hello_timeout);
    info.owes_answer = held.owes_answer;
    let target = info.decided.connect.as_deref().map(|text| Target::new(text.as_bytes()));
    info.connect = target.and_then(Result::ok).map(Box::new);
    let asked_by = info.decided.labels.generation();
    let rule = move_to_newest(edge, info, held)?;
    let is_reloaded = asked_by != edge.labels().generation();
    let waited_ms = edge.engine.now_unix_ms().saturating_sub(info.started_unix_ms());
    if let Some(decision) = held.decision() {
        by_verdict(connection, decision, waited_ms)?;
        match (rule, held.key()) {
            // The rule may ask about something else now, or not take the connection any more.
            (Some(_), Some(key)) if is_reloaded => {
                return Ok(Woken::Asked(Box::new(key.clone())));
            }
            (Some(rule), _) => return Ok(Woken::Goes(rule)),
            (None, _) => {}
        }
        // The verdict was about another rule.
        connection.info.decided.held = None;
        return Ok(Woken::Anew);
    }
    if held.is_late() {
        let decision = HoldDecision { verdict: HeldVerdict::Refuse, by: HeldBy::Timeout };
        note(connection, decision, waited_ms);
        return Err(refused(HeldEnd::Undecided));
    }
    Ok(Woken::Anew)
}

/// Has the newest configuration serve the connection. Returns the index of its rule, if that is a
/// hold rule there.
fn move_to_newest(
    edge: &Edge,
    info: &mut ConnectionInfo,
    held: &HeldConnection,
) -> Result<Option<u32>, End> {
    let (config, labels) = (&edge.snapshot.config, edge.labels());
    let decided = &mut info.decided;
    let listener = labels.listener_called(decided.labels.listener(decided.listener));
    let named = held.key().map(|key| &*key.rule);
    let is_same = |rule: u32| {
        let found = config.rules.get(rule as usize);
        found.is_some_and(|found| Some(found.name) == named && found.action.hold().is_some())
    };
    // Mostly its index is the same.
    let rule = decided.rule.filter(|rule| is_same(*rule));
    let rule = rule.or_else(|| (0..config.rules.len() as u32).find(|rule| is_same(*rule)));
    decided.listener =
        listener.ok_or(End { outcome: Outcome::Refused, reason: Reason::RuleGone })?;
    decided.labels.clone_from(labels);
    decided.rule = rule;
    Ok(rule)
}

fn by_verdict(
    connection: &mut Active<'_>,
    decision: HoldDecision,
    waited_ms: u64,
) -> Result<(), End> {
    note(connection, decision, waited_ms);
    match decision.verdict {
        HeldVerdict::Allow => Ok(()),
        HeldVerdict::Refuse => Err(refused(HeldEnd::Refused)),
    }
}

fn note(connection: &mut Active<'_>, HoldDecision { verdict, by }: HoldDecision, waited_ms: u64) {
    let ms = u32::try_from(waited_ms).unwrap_or(u32::MAX);
    let held = HeldInfo { ms, verdict, by };
    connection.info.decided.held = Some(held);
    connection.edge.snapshot.holds.count(held);
}

fn refused(why: HeldEnd) -> End {
    End { outcome: Outcome::Refused, reason: Reason::Held(why) }
}

/// Ends a connection that is refused, so that its client learns why.
pub fn end(connection: &Active<'_>, end: End) -> Result<(), End> {
    connect::end(connection, &RefusalMessage::of(&end.reason), end)
}

/// The name, or the address, and the port that are dialled once the verdict is to allow it. A name
/// that the client only says, and that nobody dials, is not asked about.
fn target(connection: &Active<'_>, action: &Action) -> (Box<str>, u16) {
    let named = || connection.info.decided.sni.clone();
    let local = || connection.handle.local_address();
    let local_port = || local().map_or(0, |local| local.port());
    match action {
        Action::Splice(splice) => match &splice.upstream {
            SpliceUpstream::Sni { port } => (named().unwrap_or_default(), *port),
            SpliceUpstream::Destination => destination(connection),
            SpliceUpstream::HostPort(to) => {
                let configured = || match &to.host {
                    Host::Name(name) => name.as_str().into(),
                    Host::Ip(ip) => ip.to_string().into(),
                };
                (named().unwrap_or_else(configured), to.port)
            }
        },
        Action::Terminate(Terminate { upstream, .. }) => {
            let is_chosen =
                upstream.as_http().is_some_and(|http| http.address == HttpAddress::Destination);
            match is_chosen && !connection.listener().is_apart {
                true => destination(connection),
                false => (named().unwrap_or_default(), local_port()),
            }
        }
        Action::Originate(_) | Action::Refuse(_) => Default::default(),
    }
}

/// The client's destination: by its CONNECT, or by the address that it dialled.
fn destination(connection: &Active<'_>) -> (Box<str>, u16) {
    let ip_text = |ip: IpAddr| ip.to_canonical().to_string().into();
    let info = &connection.info;
    if let Some(target) = info.connect.as_deref() {
        let host = match target.host {
            TargetHost::Name(name) => name.as_str().into(),
            TargetHost::Ip(ip) => ip_text(ip),
        };
        return (host, target.port);
    }
    let dialled = info.decided.destination.or_else(|| connection.handle.local_address());
    dialled.map_or_else(Default::default, |to| (ip_text(to.ip()), to.port()))
}

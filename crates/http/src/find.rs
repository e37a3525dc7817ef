//! Finds an upstream connection for a request: a kept one, or a new one. Holds the request while
//! the upstream accepts no connection.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use eyelet_balance::group::{Group, Member, Tried};
use eyelet_resolve::connect::Balanced;
use eyelet_resolve::dial::is_upstream_down;
use eyelet_telemetry::reason::Reason;
use eyelet_telemetry::upstream::OpenExchange;
use eyelet_tls::client::Spoken;

use super::exchange_error::ExchangeError;
use super::failure::Failure;
use super::pool::{HeldRequest, Shelf};
use super::route::{Route, RouteTarget};
use super::served_connection::{Record, ServedConnection};
use super::stream::Stream;
use super::upstream::Upstream;
use super::upstream::dial::{self, DialFailure, DialTerms, Dialled, spoken};
use super::upstream::request::{NoAnswer, UpstreamRequest};
use super::worker::Http;

/// A route has an HTTP upstream. Other connections are not served here.
const NO_UPSTREAM: Reason = Reason::Internal("no HTTP upstream");

/// A dial that is not the last one has this part of `connect_timeout`: an upstream that does not
/// answer leaves time for two others.
const DIALS_IN_TIME: u32 = 3;

/// Which connection a request may have.
#[derive(Clone, Copy)]
pub struct Want {
    /// Whether a kept connection of HTTP/1.1 will do.
    pub idle: bool,
    /// Whether it may be held for `upstream_wait`.
    pub hold: bool,
}

/// A connection for a request, and where it leads.
pub struct FoundUpstream {
    /// The connection.
    pub upstream: Upstream,
    /// The index of its upstream in the rule.
    pub index: usize,
    /// Its upstream, if there is something to choose from.
    pub chosen: Option<Chosen>,
}

/// An upstream whose load and health are known, and the exchange that is open at it.
pub struct Chosen {
    /// The upstream.
    pub member: Arc<Member>,
    /// The group that it was chosen from.
    pub group: Arc<Group>,
    _open: OpenExchange,
}

impl Chosen {
    fn new((group, member): (&Arc<Group>, &Arc<Member>)) -> Self {
        let open = OpenExchange::new(&member.health.counters);
        Self { member: member.clone(), group: group.clone(), _open: open }
    }
}

/// An upstream connection for the request: a kept one, one that another request dials, or a new
/// one. An upstream of `tried` is not chosen; one that could not be dialled is added.
pub async fn find(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    upstream_request: &UpstreamRequest<'_>,
    (want, tried): (Want, &mut Tried),
    record: &mut Record,
) -> Result<FoundUpstream, Failure> {
    // A reload while the request is held may have changed the upstream.
    let mut newer: Option<(_, Route)> = None;
    let (mut vain_dials, mut began) = (None, None);
    let mut held: Option<HeldRequest> = None;
    loop {
        let (worker, route) = match &newer {
            Some((worker, route)) => (worker, route),
            None => (&served.worker, served.route().map_err(Failure::Answer)?),
        };
        let index = choose(served, route, *tried).ok_or(Failure::Answer(Reason::UpstreamUnread))?;
        let target = route.target(index).ok_or(Failure::Answer(NO_UPSTREAM))?;
        let (shelf, spoken) = (target.shelf, spoken(target.to, upstream_request.by_one));
        let found = |upstream| {
            wake(&route.shelf, held.as_ref());
            FoundUpstream { upstream, index, chosen: target.balanced.map(Chosen::new) }
        };
        let in_vain = *vain_dials.get_or_insert_with(|| shelf.in_vain());
        if let Some(kept) = shelf.take(upstream_request, want.idle) {
            return Ok(found(kept));
        }
        // One deadline for other requests' dials and for its own.
        let began = *began.get_or_insert_with(Instant::now);
        let give_up_at = began + route.wait();
        if spoken != Spoken::One && shelf.is_dialled(in_vain) {
            // A dial has its own timeouts.
            stream.due_in(served.worker.shared.config.limits.connect_timeout + route.wait());
            Box::pin(while_here(stream, shelf.settled())).await?;
            continue;
        }
        let begins = Begins { spoken, began, is_last: tried.count() + 1 >= route.upstreams() };
        let dialled = Box::pin(reach(served, stream, (worker, route, &target), begins)).await?;
        let failure = match dialled {
            Ok(Dialled::One(mut connection)) => {
                // The connection's own route keeps connections to its own upstream only.
                connection.is_single_use = newer.is_some();
                return Ok(found(Upstream::One(connection)));
            }
            Ok(Dialled::Two(connection)) => {
                let asked = connection.ask(upstream_request).map(Box::new).map(Upstream::Two);
                return asked.map(found).ok_or_else(|| NoAnswer::Unread.into());
            }
            Err(failure) => failure,
        };
        let is_down = note_failed(worker, &target, (index, tried), &failure);
        let in_time = began.elapsed() < worker.dialler.connect_timeout;
        if is_down && in_time && tried.count() < route.upstreams() {
            // The next one's dials are others.
            vain_dials = None;
            continue;
        }
        let is_loop = matches!(failure.reason, Reason::Loop(_));
        let is_late = Instant::now() >= give_up_at || worker.engine.is_draining();
        if held.is_none() && want.hold && !is_loop && !is_late {
            held = route.shelf.hold();
        }
        let Some(held) = held.as_mut().filter(|_| !is_loop && !is_late) else {
            return Err(give_up(served, record, failure));
        };
        *tried = Tried::default();
        Box::pin(while_here(stream, held.wait(give_up_at))).await?;
        newer = served.newer_route().or(newer);
    }
}

/// Notes that an upstream is down, if its health is known and the dial says so. Returns whether.
fn note_failed(
    worker: &Http,
    target: &RouteTarget<'_>,
    (index, tried): (usize, &mut Tried),
    failure: &DialFailure,
) -> bool {
    let is_down = is_upstream_down(&failure.reason);
    let Some((_, member)) = target.balanced.filter(|_| is_down) else { return false };
    member.health.failed(worker.engine.now_unix_ms(), &failure.reason);
    tried.add(index);
    true
}

/// The failure of a request that has no connection and is not held.
fn give_up(served: &ServedConnection, record: &mut Record, failure: DialFailure) -> Failure {
    record.upstream = Some(failure.name.clone());
    served.note_upstream(&failure.name);
    Failure::Answer(failure.reason)
}

/// The upstream for a request that was at those of `tried`.
fn choose(served: &ServedConnection, route: &Route, tried: Tried) -> Option<usize> {
    route.choose(served.info.client.ip(), served.worker.engine.now_unix_ms(), tried)
}

/// The upstream accepts connections: wakes the requests that are held. Those of a rule with several
/// upstreams wait at the first. After a reload a held
/// request may have its connection from another shelf than those that wait with it.
fn wake(shelf: &Shelf, held: Option<&HeldRequest>) {
    shelf.wake();
    if let Some(held) = held {
        held.wake();
    }
}

/// Waits for a future, while the client is connected.
async fn while_here<T>(
    stream: &mut Stream<'_>,
    wanted: impl Future<Output = T>,
) -> Result<T, ExchangeError> {
    let mut wanted = pin!(wanted);
    poll_fn(|task| match wanted.as_mut().poll(task) {
        Poll::Ready(done) => Poll::Ready(Ok(done)),
        Poll::Pending => stream.poll_closed(task).map(Err),
    })
    .await
}

/// How a dial for a request begins.
struct Begins {
    spoken: Spoken,
    /// When the first dial for it began.
    began: Instant,
    /// No upstream is left to be dialled after it.
    is_last: bool,
}

/// Dials, while the client is connected.
async fn reach(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    (worker, route, target): (&Http, &Route, &RouteTarget<'_>),
    Begins { spoken, began, is_last }: Begins,
) -> Result<Result<Dialled, DialFailure>, Failure> {
    // The dial has its own timeouts.
    stream.due_in(served.worker.shared.config.limits.connect_timeout + route.wait());
    let dialling = (spoken != Spoken::One).then(|| target.shelf.dials());
    let limit = worker.dialler.connect_timeout;
    let wait = match is_last {
        true => limit,
        false => limit.saturating_sub(began.elapsed()).min(limit / DIALS_IN_TIME),
    };
    let now_ms = worker.engine.now_unix_ms();
    let balanced = target.balanced.map(|(group, member)| Balanced { group, member, now_ms });
    let (begins, terms) = ((spoken, &*served.preface), DialTerms { wait, balanced });
    let dialled = dial::dial(&worker.dialler, target.to, begins, terms, &served.info);
    let dialled = while_here(stream, dialled).await?;
    if let Some(dialling) = dialling {
        dialling.over(dialled.as_ref().ok());
    }
    Ok(dialled)
}

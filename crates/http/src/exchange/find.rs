//! Finds an upstream connection for a request: a kept one, or a new one. Holds the request while
//! the upstream accepts no connection.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use eyelet_balance::group::{Group, Member, Tried};
use eyelet_resolve::connect::Balanced;
use eyelet_resolve::dial::may_dial_another;
use eyelet_resolve::share::{DialTime, share};
use eyelet_telemetry::reason::Reason;
use eyelet_telemetry::upstream::OpenExchange;
use eyelet_tls::client::Spoken;
use tokio::time::sleep;

use super::{Exchange, room};
use eyelet_downstream::client::exchange_error::ExchangeError;
use eyelet_downstream::client::failure::Failure;
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::connection::route::{Route, RouteTarget};
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_downstream::connection::served_connection::by_request::NewerRoute;
use eyelet_downstream::connection::worker::Http;
use eyelet_upstream::Upstream;
use eyelet_upstream::dial::{self, DialFailure, DialTerms, Dialled, spoken};
use eyelet_upstream::http2::Http2Connection;
use eyelet_upstream::pool::{HeldRequest, Shelf};
use eyelet_upstream::request::UpstreamRequest;

/// Dials of the only upstream of a rule while each new connection ends by GOAWAY before a stream.
/// A request has as many tries: a server that stops says so, and the next one listens already.
const UNREAD_DIALS_MAX: u32 = 3;

/// The first wait of a request for which no local port was left. Each of them is twice as long as
/// the one before: nothing tells a worker that another process has freed a port.
const PORT_WAIT: Duration = Duration::from_millis(20);
const PORT_WAIT_MAX: Duration = Duration::from_millis(640);

/// A route has an HTTP upstream. Other connections are not served here.
const NO_UPSTREAM: Reason = Reason::Internal("no HTTP upstream");
/// A new connection has taken no stream.
const UNREAD: Reason = Reason::UpstreamUnread;

/// The connections that a request may have.
#[derive(Clone, Copy)]
pub struct Want {
    /// True if a kept connection of HTTP/1.1 will do.
    pub idle: bool,
    /// True if it may be held for `upstream_wait`.
    pub hold: bool,
}

/// A connection for a request, and where it leads.
pub struct FoundUpstream {
    /// The connection.
    pub upstream: Upstream,
    /// The index of its upstream in the rule. `None`: it is not kept behind the response.
    pub index: Option<usize>,
    /// Its upstream, if there is something to choose from.
    pub chosen: Option<Chosen>,
}

impl FoundUpstream {
    fn new(
        upstream: Upstream,
        index: usize,
        balanced: Option<(&Arc<Group>, &Arc<Member>)>,
    ) -> Self {
        Self { upstream, index: Some(index), chosen: balanced.map(Chosen::new) }
    }

    /// An upstream that is not kept for other requests.
    pub fn once(upstream: Upstream) -> Self {
        Self { upstream, index: None, chosen: None }
    }

    /// The stream of a request that was asked before its turn. Its route has one upstream.
    pub fn asked(served: &ServedConnection, upstream: Upstream) -> Self {
        let balanced = served.route().ok().and_then(|route| route.target(0)?.balanced);
        Self::new(upstream, 0, balanced)
    }
}

/// An upstream whose load and health are known, and the exchange that is open at it.
pub struct Chosen {
    /// The upstream.
    pub member: Arc<Member>,
    /// The group that it was chosen from.
    pub group: Arc<Group>,
    /// The exchange, which counts there.
    pub open: OpenExchange,
}

impl Chosen {
    fn new((group, member): (&Arc<Group>, &Arc<Member>)) -> Self {
        let open = OpenExchange::new(&member.health.counters);
        Self { member: member.clone(), group: group.clone(), open }
    }

    /// Notes that it closed a new connection without a response. `index` is its own in the rule.
    /// Returns whether another upstream is left.
    pub fn note_dead(
        &self,
        served: &ServedConnection,
        index: Option<usize>,
        tried: &mut Tried,
    ) -> bool {
        let why = "it closed a new connection without a response";
        self.member.health.failed(served.http.engine.now_unix_ms(), &why);
        index.inspect(|index| tried.add(*index));
        tried.count() < self.group.members.len()
    }
}

/// A dial of an upstream of a route.
struct Dial<'r> {
    /// The worker of the configuration that the route is of.
    http: &'r Http,
    route: &'r Route,
    target: &'r RouteTarget<'r>,
    /// The index of the upstream in the rule.
    index: usize,
    time: DialTime,
}

impl Exchange<'_, '_> {
    /// An upstream connection for the request: a kept one, one that another request dials, or a new
    /// one. An upstream of `tried` is not chosen; one that could not be dialled is added.
    pub(super) async fn find(
        &mut self,
        request: &UpstreamRequest<'_>,
        want: Want,
        tried: &mut Tried,
    ) -> Result<FoundUpstream, Failure> {
        let served = self.served;
        // A reload while the request is held may have changed the upstream.
        let mut newer: Option<(_, Route)> = None;
        let (mut dials, mut arrived, mut held) = (Dials::default(), None, None::<HeldRequest>);
        let mut for_port = PortWait::default();
        loop {
            let (http, route) = match &newer {
                Some((http, route)) => (http, route),
                None => (&served.http, served.route().map_err(Failure::Answer)?),
            };
            let index = choose(served, route, *tried).ok_or(Failure::Answer(UNREAD))?;
            let target = route.target(index).ok_or(Failure::Answer(NO_UPSTREAM))?;
            let shelf = target.shelf;
            let found = |mut upstream| {
                // The connection's own route keeps connections to its own upstreams only.
                if let (true, Upstream::Http1(one)) = (newer.is_some(), &mut upstream) {
                    one.is_single_use = true;
                }
                wake(&route.shelf, held.as_ref());
                FoundUpstream::new(upstream, index, target.balanced)
            };
            let in_vain = dials.in_vain(index, shelf);
            if let Some(kept) = target.take(http, request, want.idle) {
                return Ok(found(kept));
            }
            let arrived_at = *arrived.get_or_insert_with(Instant::now);
            let give_up_at = arrived_at + route.wait();
            if spoken(target.to, request.needs_http1) != Spoken::Http1 && shelf.is_dialled(in_vain)
            {
                self.stream.due_in(dial_wait(served, route));
                Box::pin(while_here(self.stream, shelf.settled())).await?;
                continue;
            }
            let limit = http.dialler.connect_timeout;
            let is_last = tried.count() + 1 >= route.upstreams();
            let time = share(limit, dials.passed(Instant::now()), is_last);
            let dial = Dial { http, route, target: &target, index, time };
            let failure = match Box::pin(self.dial(&dial, request)).await? {
                Ok(upstream) => return Ok(found(upstream)),
                Err(failure) => failure,
            };
            let has_next = dial.note_failed(&failure.reason, tried)
                || dials.may_repeat(&target, &failure.reason);
            for_port.note(&failure.reason);
            if has_next && dials.passed(Instant::now()) < limit {
                continue;
            }
            let goes_on = !http.engine.is_draining();
            let may_hold = want.hold && goes_on && Instant::now() < give_up_at;
            match failure.reason {
                // Another one of the list may have failed otherwise.
                _ if for_port.lacks && goes_on && Instant::now() < arrived_at + limit => {
                    self.wait_for_port(&mut for_port, limit).await?;
                }
                // It was reached, and waiting changes nothing.
                _ if failure.reason.is_lasting() => return Err(self.give_up(failure)),
                _ if may_hold => self.hold(&route.shelf, &mut held, give_up_at, failure).await?,
                _ => return Err(self.give_up(failure)),
            }
            (*tried, dials.began) = (Tried::default(), None);
            newer = self.newer_route(request)?.or(newer);
        }
    }

    /// Dials, while the client is connected.
    async fn dial(
        &mut self,
        dial: &Dial<'_>,
        request: &UpstreamRequest<'_>,
    ) -> Result<Result<Upstream, DialFailure>, Failure> {
        let Dial { http, route, target, time, .. } = *dial;
        let served = self.served;
        let _counted = room::take_upstream(served, target.to)?;
        // The dial has its own timeouts.
        self.stream.due_in(dial_wait(served, route));
        let spoken = spoken(target.to, request.needs_http1);
        let dialling = (spoken != Spoken::Http1).then(|| target.shelf.dials());
        let now_ms = http.engine.now_unix_ms();
        let balanced = target.balanced.map(|(group, member)| Balanced { group, member, now_ms });
        let is_early = may_leave_early(served, route, request);
        let preface = &*served.preface;
        let sources = balanced.and_then(|balanced| balanced.member.sources.some());
        let wait = time.wait;
        let terms = DialTerms { spoken, preface, wait, balanced, sources, is_early };
        let dialled = dial::dial(&http.dialler, target.to, terms, &served.info);
        let dialled = while_here(self.stream, dialled).await?;
        if let Some(dialling) = dialling {
            dialling.over(dialled.as_ref().ok());
        }
        // A reload meanwhile may refuse the request.
        self.newer_route(request)?;
        Ok(match dialled {
            Ok(Dialled::Http1(connection)) => Ok(Upstream::Http1(connection)),
            Ok(Dialled::Http2(made)) => match Http2Connection::ask(&made, request) {
                Some(asked) => Ok(Upstream::Http2(Box::new(asked))),
                None => Err(DialFailure { name: made.name.clone(), reason: UNREAD }),
            },
            Err(failure) => Err(failure),
        })
    }

    /// Waits after a dial that failed, until the upstream may accept connections.
    async fn hold(
        &mut self,
        shelf: &Rc<Shelf>,
        held: &mut Option<HeldRequest>,
        end: Instant,
        failure: DialFailure,
    ) -> Result<(), Failure> {
        if held.is_none() {
            *held = shelf.hold();
        }
        let Some(held) = held else { return Err(self.give_up(failure)) };
        Ok(Box::pin(while_here(self.stream, held.wait(end))).await?)
    }

    /// Waits until a local port may be free, or another request has used its connection: for
    /// `limit` at most.
    async fn wait_for_port(
        &mut self,
        for_port: &mut PortWait,
        limit: Duration,
    ) -> Result<(), ExchangeError> {
        self.stream.due_in(PORT_WAIT_MAX + limit);
        Box::pin(while_here(self.stream, sleep(for_port.next().min(limit)))).await
    }

    /// The route under a newer configuration, if it goes on by another.
    fn newer_route(
        &mut self,
        request: &UpstreamRequest<'_>,
    ) -> Result<Option<(Rc<Http>, Route)>, Failure> {
        match self.served.newer_route(request.parts, request.carries_secret) {
            NewerRoute::Refused(by, reason) => {
                self.record.refused_by = by;
                Err(Failure::Answer(reason))
            }
            NewerRoute::Other(http, route) => Ok(Some((http, route))),
            NewerRoute::Same => Ok(None),
        }
    }

    /// The failure of a request that has no connection and is not held.
    fn give_up(&mut self, failure: DialFailure) -> Failure {
        self.record.note_unreached(&failure.name);
        self.served.note_upstream(&failure.name);
        Failure::Answer(failure.reason)
    }
}

impl Dial<'_> {
    /// Notes that it failed, if the health of the upstream is known. Returns whether another one is
    /// left that may be dialled.
    fn note_failed(&self, reason: &Reason, tried: &mut Tried) -> bool {
        let is_over = may_dial_another(reason);
        let Some((group, member)) = self.target.balanced.filter(|_| is_over) else { return false };
        if self.time.says_down(reason) {
            member.health.failed(self.http.engine.now_unix_ms(), reason);
        }
        tried.add(self.index);
        tried.count() < group.members.len()
    }
}

/// True if the request may leave before the upstream has spoken HTTP/2: it does no harm twice, and
/// an upstream that never speaks costs it neither another upstream nor a wait for this one. That
/// saves a client behind a long way a round trip.
fn may_leave_early(
    served: &ServedConnection,
    route: &Route,
    request: &UpstreamRequest<'_>,
) -> bool {
    let is_only = route.upstreams() == 1 && route.wait().is_zero();
    request.again && is_only && served.rule.intermediary.is_near_client()
}

/// The waits of a request for a local port, or for a connection that another request has used.
#[derive(Default)]
struct PortWait {
    /// An upstream could not be dialled since the last wait, because no local port was left.
    lacks: bool,
    /// The last wait. Zero before the first.
    last: Duration,
}

impl PortWait {
    fn note(&mut self, reason: &Reason) {
        self.lacks |= matches!(reason, Reason::NoLocalPort(lack) if lack.is_in_use());
    }

    /// The time of the next wait, twice that of the last one.
    fn next(&mut self) -> Duration {
        self.lacks = false;
        self.last = (2 * self.last).clamp(PORT_WAIT, PORT_WAIT_MAX);
        self.last
    }
}

/// The dials for a request.
#[derive(Default)]
struct Dials {
    /// The vain dials of the upstream with this index when the request came to it. Each upstream
    /// has a count of its own.
    vain: Option<(usize, u64)>,
    /// Number of connections that have taken no stream.
    unread: u32,
    /// The time at which the first began. `None` again after a hold: the time of the hold is not
    /// the dials'.
    began: Option<Instant>,
}

impl Dials {
    fn in_vain(&mut self, index: usize, shelf: &Shelf) -> u64 {
        let known = self.vain.filter(|(of, _)| *of == index);
        let (_, in_vain) = *self.vain.insert(known.unwrap_or_else(|| (index, shelf.in_vain())));
        in_vain
    }

    /// True if the same upstream is dialled again at once after a dial that ended so: it is the
    /// only one.
    fn may_repeat(&mut self, target: &RouteTarget<'_>, reason: &Reason) -> bool {
        let is_again = target.balanced.is_none() && *reason == UNREAD;
        self.unread += u32::from(is_again);
        is_again && self.unread < UNREAD_DIALS_MAX
    }

    /// The time since the first, which begins now if there was none.
    fn passed(&mut self, now: Instant) -> Duration {
        now.saturating_duration_since(*self.began.get_or_insert(now))
    }
}

/// Returns how long a dial of this route's upstreams may take, waits for one that accepts included.
fn dial_wait(served: &ServedConnection, route: &Route) -> Duration {
    served.http.shared.config.limits.connect_timeout + route.wait()
}

/// The upstream for a request that was at those of `tried`.
fn choose(served: &ServedConnection, route: &Route, tried: Tried) -> Option<usize> {
    let now_ms = || served.http.engine.now_unix_ms();
    route.choose(served.info.client.ip(), now_ms, tried)
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

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn each_upstream_has_its_own_count_of_vain_dials() {
        let (shelf, other) = (Rc::<Shelf>::default(), Rc::<Shelf>::default());
        let mut dials = Dials::default();
        assert_eq!(dials.in_vain(0, &shelf), 0);
        shelf.dials().over(None);
        assert_eq!(dials.in_vain(0, &shelf), 0, "as it was when the request came");
        other.dials().over(None);
        assert_eq!(dials.in_vain(1, &other), 1);
        assert_eq!(dials.in_vain(0, &shelf), 1);
    }

    #[test]
    fn the_clock_begins_anew_after_a_hold() {
        let (mut dials, now) = (Dials::default(), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(dials.passed(now), Duration::ZERO);
        assert_eq!(dials.passed(now + 6 * second), 6 * second);
        dials.began = None;
        assert_eq!(dials.passed(now + 7 * second), Duration::ZERO);
    }
}

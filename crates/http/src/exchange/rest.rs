//! The rest of an exchange: when it begins, and how it goes on, with the next byte of either side,
//! or to end.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use eyelet_compress::fields::lists;
use http::{HeaderMap, Method, header};

use super::Exchange;
use super::ask::{Answered, HeadEvent, HeadWait, NO_FIT, ResponseTerms, RestingRequest};
use super::end::ExchangeEnd;
use super::find::FoundUpstream;
use super::passing::{BodyProgress, Passing};
use super::resting::{KeptUpstream, Resting};
use super::transfer::{Download, Upload, rest_websocket};
use eyelet_downstream::client::exchange_error::ExchangeError;
use eyelet_downstream::client::failure::{Failure, NoHead};
use eyelet_downstream::client::io::ClientLost;
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::clock;
use eyelet_downstream::connection::intermediary::Intermediary;
use eyelet_downstream::connection::log_entry::RequestLogEntry;
use eyelet_downstream::connection::originate::Translation;
use eyelet_downstream::connection::route::Route;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_downstream::connection::served_connection::by_request::{RequestRuling, RequestTraits};
use eyelet_engine::worker::WaitError;
use eyelet_http1::head::{Request, Scanner, take_request};
use eyelet_recoding::{RequestCodings, RestingCodings};
use eyelet_resting::timeout::RestTimeout;
use eyelet_resting::{
    KeptConnection, REPEAT_BYTES_MAX, RestingExchange, RestingState, RestingWait,
};
use eyelet_telemetry::reason::Reason;
use eyelet_upstream::http1::{Http1Connection, RestingConnection};
use eyelet_upstream::request::{HeadAsked, NoAnswer, UpstreamRequest};
use eyelet_upstream::{RestingUpstream, Upstream};

/// So many times longer a request of an originate rule waits before it rests: 10 seconds.
const NEAR_RESTS: u32 = 10;
/// A checked form has no such state.
const NO_EXCHANGE: Failure = Failure::Cut(Reason::Internal("an exchange at rest is none"));

/// An exchange that goes on.
pub struct ResumedExchange {
    /// The exchange.
    pub exchange: RestingExchange,
    /// The upstream that it has kept open.
    pub kept: KeptUpstream,
    /// The upstream's address.
    pub name: Arc<str>,
    /// Since when nothing has moved.
    pub since: Instant,
}

/// Goes on with an exchange until it has ended, or rests again.
pub async fn resume(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    resumed: ResumedExchange,
) -> ExchangeEnd {
    let ResumedExchange { exchange, mut kept, name, since } = resumed;
    // A connection that others share does not keep what one of its exchanges counts.
    let open = match kept.upstream {
        RestingUpstream::Shared(_) => std::mem::take(&mut kept.open),
        RestingUpstream::Socket(_) => Vec::new(),
    };
    let RestingExchange { facts, mut state, connection } = exchange;
    let method = facts.method.clone().unwrap_or_default();
    let mut log_entry = RequestLogEntry::resumed(served, facts, stream.sent());
    let RequestLogEntry { record, written, .. } = &mut log_entry;
    let written = &*written;
    record.note_kept(&name, connection.tls_info().cloned());
    let mut exchange = Exchange { served, stream, record, written };
    let end = match kept.resumed(served, connection, name, &mut state) {
        Ok(upstream) => exchange.go_on(upstream, state, (&method, since)).await,
        Err(failure) => Err(failure),
    };
    let mut end = match end {
        Ok(end) => end,
        Err(failure) => exchange.fail(&method, failure).await,
    };
    if let Some(resting) = &mut end.resting {
        resting.kept.open.extend(open);
    }
    end.of(&mut log_entry)
}

impl KeptUpstream {
    /// The upstream of an exchange that goes on at this step.
    fn resumed(
        self,
        served: &ServedConnection,
        connection: KeptConnection,
        name: Arc<str>,
        state: &mut RestingState,
    ) -> Result<Upstream, Failure> {
        let (socket, tls) = match (self.upstream, connection) {
            (RestingUpstream::Shared(two), _) => return Ok(Upstream::Http2(two)),
            (RestingUpstream::Socket(socket), KeptConnection::Own(tls)) => (socket, tls),
            (RestingUpstream::Socket(_), KeptConnection::Shared(_)) => return Err(NO_EXCHANGE),
        };
        let received = match state {
            RestingState::PassesDown(_, download) => std::mem::take(&mut download.received),
            RestingState::AwaitsHead(..)
            | RestingState::Held(_)
            | RestingState::WebSocket(_)
            | RestingState::Switched(_) => BytesMut::new(),
        };
        let resting = RestingConnection { socket, tls, name, received, open: self.open };
        let resumed = Http1Connection::resumed(&served.http.engine, resting);
        let resumed = resumed.map_err(|error| Failure::Cut(Reason::upstream_io(&error)))?;
        Ok(Upstream::Http1(Box::new(resumed)))
    }
}

/// A request's head as its upstream got it, in the form of HTTP/1.1.
fn read_head(head: &[u8]) -> Option<Request> {
    take_request(&mut head.into(), &mut Scanner::default(), REPEAT_BYTES_MAX).ok()?
}

impl<'a> Exchange<'a, '_> {
    /// Goes on with the request of this method, of which nothing has moved since then.
    async fn go_on(
        &mut self,
        upstream: Upstream,
        state: RestingState,
        (method, since): (&Method, Instant),
    ) -> Result<ExchangeEnd, Failure> {
        self.written.stream.becomes(state.kind());
        match state {
            RestingState::AwaitsHead(RestingWait { upload, codings, repeat, origin }) => {
                let upload = Upload::resumed(self.written, upload);
                let (found, download) =
                    (self.found_again(upstream, since), Download::new(self.written));
                let asked = Passing { found, upload, download, is_coded: false };
                let resting = RestingRequest { asked, since, repeat };
                let (wanted, is_last_try) = (&self.codings(codings, method), true);
                let translation = origin.as_ref().map(Translation::of_rested);
                let origin = translation.as_ref();
                let terms = ResponseTerms { wanted, origin, switch: None, is_last_try };
                self.go_on_before_head(resting, method, &terms).await
            }
            RestingState::PassesDown(upload, resting) => {
                let upload = Upload::resumed(self.written, upload);
                let download = Download::resumed(self.written, &resting).ok_or(NO_EXCHANGE)?;
                let found = FoundUpstream::once(upstream);
                let passing = Passing { found, upload, download, is_coded: false };
                self.pass_on(&mut Some(passing), Some(since)).await
            }
            RestingState::WebSocket(resting) => {
                self.record.reason = Reason::SwitchedProtocols;
                self.copy(upstream, &resting, Some(since)).await
            }
            // It has no exchange any more, or none yet.
            RestingState::Switched(_) | RestingState::Held(_) => Err(NO_EXCHANGE),
        }
    }

    /// The upstream of a request that rested. Its connection is kept behind the response if its
    /// rule surely has it. The exchange counts where the connection does.
    fn found_again(&self, mut upstream: Upstream, since: Instant) -> FoundUpstream {
        let mut index = 0;
        if let Upstream::Http1(one) = &mut upstream
            && let Some(found) = self.index_of(one)
        {
            let address = one.name.parse::<SocketAddr>().ok();
            // It was dialled before it rested.
            one.dialled = address.map(|address| (address.ip().to_canonical(), since));
            (one.is_single_use, index) = (false, found);
        }
        FoundUpstream { upstream, index: Some(index), chosen: None }
    }

    /// The index of an upstream in the rule, by its address. `None`: it is not sure. Another
    /// configuration may mean another one by it, a name had the address only when it was dialled,
    /// and TLS was verified for a name.
    fn index_of(&self, upstream: &Http1Connection) -> Option<usize> {
        let decided_by = self.served.info.decided.labels.generation();
        let is_same = decided_by == self.served.http.shared.generation && upstream.is_plain();
        self.served.route().ok().filter(|_| is_same)?.plain_at(&upstream.name)
    }

    /// Notes that an upstream has answered, if it was found again.
    fn note_health(&self, FoundUpstream { upstream, index, .. }: &FoundUpstream) {
        let is_found = matches!(upstream, Upstream::Http1(one) if !one.is_single_use);
        let target = self.served.route().ok().filter(|_| is_found);
        if let Some((_, member)) = target.and_then(|route| route.target((*index)?)?.balanced) {
            member.health.answered(self.served.http.engine.now_unix_ms());
        }
    }

    /// Goes on with a request that waits for its response.
    async fn go_on_before_head(
        &mut self,
        RestingRequest { mut asked, since, repeat }: RestingRequest<'a>,
        method: &Method,
        terms: &ResponseTerms<'_>,
    ) -> Result<ExchangeEnd, Failure> {
        let asked_for = HeadAsked { method, may_be_lines: false };
        let wait = HeadWait { asked: asked_for, may_rest: true, since: Some(since) };
        match self.wait_for_head(&mut asked, wait).await {
            Ok(HeadEvent::Response(head)) => {
                self.note_answered(&mut asked, &head);
                self.note_health(&asked.found);
                let answered = Answered { asked: &mut Some(asked), head };
                self.pass_answer(answered, &HeaderMap::new(), terms).await?.ok_or(NO_FIT)
            }
            Ok(HeadEvent::Rests(since, is_begun)) => {
                let repeat = repeat.filter(|_| !is_begun);
                self.rest_before_head(RestingRequest { asked, since, repeat }, terms)
            }
            Err(NoHead::Upstream(
                why @ (NoAnswer::Dead | NoAnswer::Alert(_) | NoAnswer::Unread),
            )) if repeat.is_some() => {
                drop(asked);
                // The fields that were added may be too many to be read.
                let request = repeat.and_then(|head| read_head(&head));
                match request.filter(|request| self.may_ask_again(request)) {
                    Some(request) => self.ask_again(&request, terms).await,
                    None => Err(why.into()),
                }
            }
            Err(NoHead::Failure(failure)) => Err(failure),
            // Its client may send it again. The body is not here any more.
            Err(NoHead::Upstream(NoAnswer::Unread)) => Err(Failure::Unprocessed),
            Err(NoHead::Upstream(why)) => Err(why.into()),
        }
    }

    /// True if the rule that serves the connection now is the one for a request that rested: the
    /// request was decided before a reload.
    fn may_ask_again(&self, Request { parts, .. }: &Request) -> bool {
        let traits = RequestTraits { is_websocket: false, may_have_others: true, held_by: None };
        matches!(self.served.rule_on(parts, traits), RequestRuling::Own)
    }

    /// Sends a request again whose upstream has closed its connection without a response.
    async fn ask_again(
        &mut self,
        Request { parts, length, .. }: &Request,
        terms: &ResponseTerms<'_>,
    ) -> Result<ExchangeEnd, Failure> {
        let authority = parts.uri.authority().ok_or(NO_EXCHANGE)?;
        // The fields about the client are in its head.
        let forwarded = Rc::default();
        // One with a secret is not sent again after it rested.
        let request = UpstreamRequest::without_body(parts, authority.as_str(), &forwarded);
        let trailers = lists(&parts.headers, &header::TE, "trailers");
        let mut request = UpstreamRequest { length: *length, trailers, again: true, ..request };
        self.ask_and_pass(&mut request, terms).await?.ok_or(NO_FIT)
    }

    /// Returns what the response needs to know about a request that rested, by the rule that it has
    /// now.
    fn codings(&self, resting: Option<RestingCodings>, method: &Method) -> RequestCodings {
        let route = self.served.route().ok();
        let rule = route.map_or(0, |route| route.rule);
        let Some(resting) = resting else { return RequestCodings::off(rule) };
        let compressors = &self.served.http.compressors;
        let terminate = route.and_then(Route::requests);
        compressors.resumed(rule, terminate, &resting, *method == Method::HEAD)
    }
}

impl Exchange<'_, '_> {
    /// Returns how long a response waits for a byte before it is checked.
    pub(super) fn first_wait(&self, passing: &Passing<'_>) -> Duration {
        let wait = self.served.progress_wait();
        if self.may_rest(passing) { wait.min(self.served.http.engine.rest_after()) } else { wait }
    }

    /// Returns how long a request waits for its response before it rests. Where its client has a
    /// connection to the upstream of its own, that is not kept behind a response that rested.
    pub(super) fn rest_after_before_head(&self) -> Duration {
        let rest_after = self.served.http.engine.rest_after();
        if self.served.rule.intermediary.is_near_client() {
            NEAR_RESTS * rest_after
        } else {
            rest_after
        }
    }

    /// Returns how long an exchange that rested waits for one, where nothing has moved since then.
    pub(super) fn wait_since(&self, since: Instant, passing: &Passing<'_>) -> Duration {
        let idle_max = self.served.idle_max(self.timeout(passing));
        self.served.http.engine.rest_after().min(idle_max.saturating_sub(clock::since(since)))
    }

    /// True if the exchange may rest where it is.
    fn may_rest(&self, passing: &Passing<'_>) -> bool {
        passing.is_at_rest() && !self.served.http.engine.is_draining() && self.client_rests()
    }

    /// The timeout of a response: nobody waits for its next byte if its end is not known, and the
    /// client has taken all that came. One that cannot rest has no more time than other bodies: it
    /// holds a task.
    pub(super) fn timeout(&self, passing: &Passing<'_>) -> RestTimeout {
        match self.stream.queued() == 0 && passing.is_at_rest() && self.client_rests() {
            true => passing.timeout(),
            false => RestTimeout::Body,
        }
    }

    /// True if the client's side may rest. That of a proxy's client does not: the task of its
    /// connection decides each of its requests anew.
    fn client_rests(&self) -> bool {
        self.stream.rests().is_some()
            && self.served.may_rest(self.stream.is_multiplexed())
            && !matches!(self.served.rule.intermediary, Intermediary::Proxy { .. })
    }

    /// Waits until the exchange may rest, or no byte has moved for too long. One that another
    /// process waits for rests at once.
    pub(super) fn poll_rest(
        &mut self,
        task: &mut Context<'_>,
        since: Instant,
        passing: &Passing<'_>,
    ) -> Poll<Result<BodyProgress, Failure>> {
        let http = &self.served.http;
        // What the client has not taken yet goes along.
        let is_due = http.engine.rests_at_once()
            || self.stream.is_late()
                && clock::since(since) >= http.engine.rest_after()
                && self.stream.queued() == 0;
        let is_over = || clock::since(since) >= self.served.idle_max(self.timeout(passing));
        let may = is_due && !is_over() && self.may_rest(passing);
        if self.stream.rests_now(may) {
            return Poll::Ready(Ok(BodyProgress::Rests(since)));
        }
        self.poll_stalled(task, since, Some(passing)).map(Err)
    }

    /// Waits until no byte has moved for too long, or other connections need the memory. `passing`:
    /// the response whose body passes meanwhile.
    pub(super) fn poll_stalled(
        &mut self,
        task: &mut Context<'_>,
        moved: Instant,
        passing: Option<&Passing<'_>>,
    ) -> Poll<Failure> {
        while let Poll::Ready(wait_error) = self.stream.poll_late(task) {
            if matches!(wait_error, WaitError::Shed | WaitError::Ended) {
                let lost = ExchangeError::ClientLost(ClientLost::Wait(wait_error));
                return Poll::Ready(lost.into());
            }
            let progress_wait = self.served.progress_wait();
            let waited = clock::since(moved);
            if matches!(wait_error, WaitError::Late) && waited < progress_wait {
                // It was only to rest.
                self.stream.due_in(progress_wait - waited);
                continue;
            }
            let timeout = passing.map_or(RestTimeout::Body, |passing| self.timeout(passing));
            match self.served.gives_up(moved, timeout) {
                Some(reason) => return Poll::Ready(Failure::Cut(reason)),
                None => self.stream.due_in(self.served.progress_wait()),
            }
        }
        Poll::Pending
    }

    /// True if a request that waits for its response rests now. Nothing has moved since then.
    pub(super) fn rests_before_head(&self, asked: &Passing<'_>, since: Instant) -> bool {
        let is_leaving = self.served.http.engine.rests_at_once();
        // Most requests wait for less.
        if !is_leaving && !self.stream.is_late() {
            return false;
        }
        let waited = clock::since(since);
        let is_due = is_leaving || waited >= self.rest_after_before_head();
        let timeout = if asked.upload.done { RestTimeout::Upstream } else { RestTimeout::Body };
        let is_over = waited >= self.served.idle_max(timeout);
        self.stream.rests_now(is_due && !is_over && self.may_rest_before_head(asked))
    }

    /// True if a request may rest before its response: its upstream has received all of it that
    /// came. The first of a body, which HTTP/2 to upstreams keeps, is not kept: an upstream that
    /// does not process a request says so before.
    fn may_rest_before_head(&self, Passing { found, upload, .. }: &Passing<'_>) -> bool {
        let may_rest = match &found.upstream {
            Upstream::Http1(one) => one.may_rest(false) && one.received.is_empty() && one.takes(),
            Upstream::Http2(two) => two.may_rest(),
        };
        may_rest
            && upload.rest().is_some()
            && !self.served.http.engine.is_draining()
            && self.stream.queued() == 0
            && self.client_rests()
    }

    /// Takes apart a request that rests before its response.
    pub(super) fn rest_before_head(
        &mut self,
        RestingRequest { asked, since, repeat }: RestingRequest<'_>,
        terms: &ResponseTerms<'_>,
    ) -> Result<ExchangeEnd, Failure> {
        let Passing { found, upload, .. } = asked;
        let rest = upload.rest().ok_or(NO_EXCHANGE)?;
        // Its bytes are counted before its upstream's socket is taken.
        drop(upload);
        let origin = terms.origin.map(Translation::rest);
        let wait = RestingWait { upload: rest, codings: terms.wanted.rest(), repeat, origin };
        let end = self.leave(found.upstream, since, RestingState::AwaitsHead(wait))?;
        Ok(end.counted_at(found.chosen))
    }

    /// Takes apart an exchange that rests.
    pub(super) fn rest(
        &mut self,
        Passing { found, upload, mut download, .. }: Passing<'_>,
        since: Instant,
    ) -> Result<ExchangeEnd, Failure> {
        let FoundUpstream { mut upstream, chosen, .. } = found;
        let step = match (rest_websocket(&upload, &mut download), &mut upstream) {
            (Some(websocket), _) => RestingState::WebSocket(websocket),
            (None, upstream) => {
                let received = match upstream {
                    Upstream::Http1(one) => std::mem::take(&mut one.received),
                    Upstream::Http2(_) => BytesMut::new(),
                };
                let upload = upload.rest().ok_or(NO_EXCHANGE)?;
                let download = download.rest(received).ok_or(NO_EXCHANGE)?;
                RestingState::PassesDown(upload, download)
            }
        };
        Ok(self.leave(upstream, since, step)?.counted_at(chosen))
    }

    /// Leaves an exchange at this step.
    fn leave(
        &mut self,
        upstream: Upstream,
        since: Instant,
        state: RestingState,
    ) -> Result<ExchangeEnd, Failure> {
        self.stream.prepare_rest()?;
        let Some(client) = self.stream.rests() else { return Err(NO_EXCHANGE) };
        let name = upstream.name().clone();
        let (upstream, connection, open) = match upstream {
            Upstream::Http1(one) => {
                let resting = one.into_resting();
                let RestingConnection { socket, tls, open, .. } =
                    resting.map_err(|error| Failure::Cut(Reason::upstream_io(&error)))?;
                (RestingUpstream::Socket(socket), KeptConnection::Own(tls), open)
            }
            Upstream::Http2(two) => {
                let connection = KeptConnection::Shared(two.connection.tls.clone());
                (RestingUpstream::Shared(two), connection, Vec::new())
            }
        };
        let (kept, facts) = (KeptUpstream { upstream, open }, None);
        let idle_max = self.served.idle_max(state.timeout());
        let resting = Resting { kept, client, name, since, idle_max, state, connection, facts };
        Ok(ExchangeEnd { resting: Some(Box::new(resting)), ..ExchangeEnd::default() })
    }
}

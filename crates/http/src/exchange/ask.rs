//! Asks an upstream for a response: finds a connection, sends the request on it, and waits for the
//! response's head. Asks again where that can do nothing twice. A request that waits rests.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::find::{Chosen, FoundUpstream, Want};
use super::pass::is_grpc;
use super::passing::Passing;
use super::request_body::RequestCoding;
use super::retry::Tries;
use super::transfer::{Download, Upload};
use super::{Exchange, room};
use eyelet_downstream::client::exchange_error::ExchangeError;
use eyelet_downstream::client::failure::{Failure, NoHead};
use eyelet_downstream::client::secrets;
use eyelet_downstream::clock;
use eyelet_downstream::connection::date::to_client;
use eyelet_downstream::connection::originate::Translation;
use eyelet_engine::iteration::others_first;
use eyelet_engine::worker::WaitError;
use eyelet_http1::fault::{RequestFault, ResponseFault};
use eyelet_http1::head::{Length, Response};
use eyelet_http1::head_lines::ReceivedHead;
use eyelet_recoding::RequestCodings;
use eyelet_resting::REPEAT_BYTES_MAX;
use eyelet_resting::timeout::RestTimeout;
use eyelet_telemetry::listing::streams::StreamKind;
use eyelet_telemetry::reason::{Limit, Reason};
use eyelet_upstream::Upstream;
use eyelet_upstream::request::{HeadAsked, NoAnswer, UpstreamRequest};

/// Interim responses to one request: each is a TLS record to the client.
const INTERIM_MAX: usize = 100;

/// A request that was sent as its client wrote it has a response that fits.
pub const NO_FIT: Failure =
    Failure::Answer(Reason::Internal("a response was to be asked for twice"));

/// A request whose response has begun.
pub struct Answered<'s, 'a> {
    /// The request, which may still be on its way.
    pub asked: &'s mut Option<Passing<'a>>,
    /// The response's head.
    pub head: ReceivedHead,
}

/// The result of a request.
pub enum AskResult {
    /// Its response has begun, with this head.
    Answered(ReceivedHead),
    /// It rests: nothing has moved since then. The head is for a further try, if there is one.
    Rests(Instant, Option<Bytes>),
}

/// A request that rests before its response.
pub struct RestingRequest<'a> {
    /// The request, as far as it came.
    pub asked: Passing<'a>,
    /// Since when nothing has moved.
    pub since: Instant,
    /// Its head, if it is sent again where its upstream closes without a response.
    pub repeat: Option<Bytes>,
}

/// Conditions that the response of a request must fit.
#[derive(Clone, Copy)]
pub struct ResponseTerms<'r> {
    /// The codings that the client and the edge accept.
    pub wanted: &'r RequestCodings,
    /// The translation of names of the origin.
    pub origin: Option<&'r Translation<'r>>,
    /// The protocols that the client wants to switch to.
    pub switch: Option<&'r HeaderValue>,
    /// True if the request rested, and its upstream has closed the connection. It may have ended
    /// that upstream, so it is not held, and no other closes for it.
    pub is_last_try: bool,
}

impl<'r> ResponseTerms<'r> {
    /// Those of a request that was not sent yet.
    pub fn new(
        wanted: &'r RequestCodings,
        origin: Option<&'r Translation<'r>>,
        switch: Option<&'r HeaderValue>,
    ) -> Self {
        Self { wanted, origin, switch, is_last_try: false }
    }

    /// True if a request may rest with them: no other needs its head.
    fn may_rest(&self) -> bool {
        self.origin.is_none_or(Translation::may_rest)
            && self.switch.is_none()
            && self.wanted.may_rest()
    }
}

/// A wait for a response's head.
#[derive(Clone, Copy)]
pub struct HeadWait<'r> {
    /// The head that is waited for.
    pub asked: HeadAsked<'r>,
    /// True if the request may rest.
    pub may_rest: bool,
    /// Since when nothing has moved, if it rested.
    pub since: Option<Instant>,
}

/// The event that ended a wait for a response's head.
pub enum HeadEvent {
    /// It came.
    Response(ReceivedHead),
    /// The request rests: nothing has moved since then. The response may have begun by an interim
    /// one.
    Rests(Instant, bool),
}

/// True if a request has no connection because of its upstream.
fn is_of_dial(reason: &Reason) -> bool {
    !matches!(
        reason,
        Reason::Shed(_) | Reason::RuleGone | Reason::RefusedRequest(_) | Reason::Loop(_)
    )
}

/// True if the head of a request, with the fields that are added, may be too long to be kept.
fn is_long(request: &UpstreamRequest<'_>) -> bool {
    let fields =
        request.parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    fields.sum::<usize>() + request.parts.uri.path().len() > REPEAT_BYTES_MAX / 2
}

impl<'a> Exchange<'a, '_> {
    /// Finds a connection, sends the request, which is then in `sent`, and waits for the response's
    /// head. Tries another
    /// connection if the upstream certainly has not processed the request. Also does so if a second
    /// try can do nothing twice, and a kept connection was dead or another upstream is left.
    pub(super) async fn ask(
        &mut self,
        request: &mut UpstreamRequest<'_>,
        terms: &ResponseTerms<'_>,
        sent: &mut Option<Passing<'a>>,
    ) -> Result<AskResult, Failure> {
        if request.length != Length::Empty && is_grpc(&request.parts.headers) {
            self.written.stream.becomes(StreamKind::Grpc);
        }
        // Others run first, so that an upstream's end is seen. Streams of HTTP/2 began behind them.
        if !self.stream.is_multiplexed() {
            others_first().await;
        }
        let may_be_lines = self.may_pass_lines(terms);
        let parts = request.parts;
        let head_asked = HeadAsked { method: &parts.method, may_be_lines };
        let mut tries = Tries::new(self.served, request, terms.is_last_try);
        request.again &= !terms.is_last_try;
        loop {
            let want = Want { idle: tries.is_first(), hold: tries.may_hold() };
            let found = match self.stream.take_asked() {
                Some(upstream) => FoundUpstream::asked(self.served, upstream),
                None => match self.find(request, want, &mut tries.tried).await {
                    // The upstream is gone, and this request may be what ended it.
                    Err(Failure::Answer(reason)) if !tries.may_hold() && is_of_dial(&reason) => {
                        return Err(NoAnswer::Dead.into());
                    }
                    found => found?,
                },
            };
            self.stream.was_asked();
            let asked = self.send(sent, found, request, &mut tries)?;
            // One that is too long to be kept would not be asked elsewhere where a connection that
            // others share dies.
            let is_shared = matches!(asked.found.upstream, Upstream::Http2(_));
            let may_rest = terms.may_rest() && !(is_shared && request.again && is_long(request));
            let wait = HeadWait { asked: head_asked, may_rest, since: None };
            let why = match self.wait_for_head(asked, wait).await {
                Ok(HeadEvent::Response(head)) => {
                    self.note_answered(asked, &head);
                    return Ok(AskResult::Answered(head));
                }
                Ok(HeadEvent::Rests(since, is_begun)) => {
                    let may_go_on = tries.may_go_on(&asked.found, request);
                    // What rests may move to another process.
                    let is_wanted = !is_begun && !request.carries_secret && may_go_on;
                    let head = is_wanted.then(|| asked.found.upstream.repeat(request).freeze());
                    // Without a longer one it is not sent again.
                    let repeat = head.filter(|head| head.len() <= REPEAT_BYTES_MAX);
                    return Ok(AskResult::Rests(since, repeat));
                }
                Err(NoHead::Failure(failure)) => return Err(failure),
                Err(NoHead::Upstream(why)) => why,
            };
            tries.body = std::mem::take(&mut asked.upload.taken);
            tries.go_on(why, &asked.found, request)?;
            *sent = None;
        }
    }

    /// True if the response may pass as lines: an HTTP/1.1 client gets it, and nothing but its
    /// coding may change its head.
    fn may_pass_lines(&mut self, terms: &ResponseTerms<'_>) -> bool {
        terms.origin.is_none()
            && terms.switch.is_none()
            && terms.wanted.may_pass_lines()
            && self.served.rule.sets_no_fields(&self.served.http.shared.config.http.headers)
            && self.stream.as_http1().is_some()
    }

    /// Makes a request ready to be sent on this connection, in `sent`.
    fn send<'s>(
        &mut self,
        sent: &'s mut Option<Passing<'a>>,
        found: FoundUpstream,
        request: &UpstreamRequest<'_>,
        tries: &mut Tries<'_>,
    ) -> Result<&'s mut Passing<'a>, Failure> {
        let upstream = &found.upstream;
        self.served.note_upstream(upstream.name());
        self.record.note_sent(upstream);
        let (head, chunked) = (upstream.head(request), upstream.is_chunked());
        let is_coded = upstream.is_coded(request);
        let length = if is_coded { Length::Chunked } else { request.length };
        let recoded = RequestCoding::of(self.served, request, is_coded)?;
        let taken = tries.take_body(upstream);
        let asked = sent.insert(Passing {
            found,
            upload: Upload::new(self.written, head, length, chunked),
            download: Download::new(self.written),
            is_coded,
        });
        if request.carries_secret {
            asked.upload.wipe_head();
        }
        asked.upload.recode(recoded);
        asked.upload.taken = taken;
        if length != Length::Empty {
            self.written.stream.becomes(StreamKind::Upload);
        }
        Ok(asked)
    }

    /// Notes that a response has come.
    pub(super) fn note_answered(&self, asked: &mut Passing<'_>, head: &ReceivedHead) {
        asked.upload.taken.end_tries();
        if let Some(Chosen { member, .. }) = &asked.found.chosen {
            member.health.answered(self.served.http.engine.now_unix_ms());
        }
        if let ReceivedHead::Fields(response) = head
            && self.served.rule.intermediary.codes_requests()
        {
            asked.found.upstream.note_coded_bodies(&response.parts, asked.is_coded);
        }
    }

    /// Waits for a response's head, or until the request rests.
    pub(super) async fn wait_for_head(
        &mut self,
        asked: &mut Passing<'_>,
        wait: HeadWait<'_>,
    ) -> Result<HeadEvent, NoHead> {
        // Reading the clock costs, and most requests are written at once.
        let (mut was_polled, is_fresh) = (false, wait.since.is_none());
        let mut began = wait.since.unwrap_or_else(clock::now);
        let (mut has_continue, mut has_interim) = (false, false);
        for interim_left in (0..=INTERIM_MAX).rev() {
            let mut poll = |task: &mut Context<'_>| {
                let Passing { found, upload, .. } = &mut *asked;
                let (was_done, before) = (upload.done, upload.moved());
                let upstream = &mut found.upstream;
                if let Poll::Ready(Err(exchange_error)) = upload.poll(task, self.stream, upstream) {
                    return Poll::Ready(Err(exchange_error.into()));
                }
                if upload.done && !was_done {
                    self.written.stream.becomes(StreamKind::Waiting);
                }
                let is_first = !std::mem::replace(&mut was_polled, true);
                let has_moved = upload.moved() > before || upload.done && !was_done;
                if has_moved || is_first && is_fresh {
                    self.record.note_moved();
                }
                if is_first && is_fresh {
                    self.due_in(upload, Duration::ZERO);
                } else if is_first || has_moved {
                    began = if has_moved { clock::now() } else { began };
                    self.due_in(upload, clock::since(began));
                }
                if let Poll::Ready(head) = self.poll_head(task, upstream, wait.asked) {
                    return Poll::Ready(head.map(HeadEvent::Response));
                }
                if !self.is_any_due(task) {
                    return Poll::Pending;
                }
                if wait.may_rest && self.rests_before_head(asked, began) {
                    self.record.note_rests(self.served, clock::since(began));
                    return Poll::Ready(Ok(HeadEvent::Rests(began, false)));
                }
                self.poll_too_late(task, asked, began).map(Err)
            };
            let waited = poll_fn(&mut poll).await;
            // A client that was asked for its body knows of no response yet.
            let is_begun = has_interim || has_continue && !asked.upload.taken.is_whole();
            let response = match waited.map_err(|no_head| no_head.after(is_begun))? {
                HeadEvent::Response(response) => response,
                HeadEvent::Rests(since, _) => return Ok(HeadEvent::Rests(since, is_begun)),
            };
            let status = response.status();
            let is_continue = status == StatusCode::CONTINUE;
            has_continue |= is_continue;
            has_interim |= !is_continue;
            if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
                self.record.note_answered(self.served, status, began);
                return Ok(HeadEvent::Response(response));
            }
            if interim_left > 0 && self.stream.takes_interim() {
                self.inform(response.into_response().map_err(Failure::from)?).await?;
                // Interim heads do not extend the upstream's timeout.
                self.due_in(&asked.upload, clock::since(began));
            }
        }
        Err(Failure::from(ResponseFault::Interim).into())
    }

    /// Returns how long nothing may move until the wait is checked: the upstream has its timeout
    /// once it has the request.
    fn wait_max(&self, upload: &Upload<'_>) -> Duration {
        match upload.done {
            true => self.served.http.shared.config.http.upstream_timeout,
            false => self.served.progress_wait(),
        }
    }

    /// Sets the deadline of a wait for a response in which nothing has moved for so long. It may
    /// rest before that.
    fn due_in(&mut self, upload: &Upload<'_>, waited: Duration) {
        let left = self.wait_max(upload).saturating_sub(waited);
        self.stream.due_in(left.min(self.rest_after_before_head()));
    }

    /// Passes an interim response on. It is written before the next head is read, so a client that
    /// does not read holds up one head, not a hundred.
    async fn inform(
        &mut self,
        Response { parts: mut head, roles, .. }: Response,
    ) -> Result<(), Failure> {
        secrets::check_fields(&self.served.http, &head.headers)?;
        let _counted = room::wait_for_interim(self.served, self.stream, &head).await?;
        to_client(&mut head, roles);
        self.stream.inform(head);
        self.flush().await
    }

    /// The next response head, interim ones included.
    fn poll_head(
        &mut self,
        task: &mut Context<'_>,
        upstream: &mut Upstream,
        asked: HeadAsked<'_>,
    ) -> Poll<Result<ReceivedHead, NoHead>> {
        if let Poll::Ready(head) = upstream.poll_head(task, asked) {
            return Poll::Ready(head.map_err(NoHead::Upstream));
        }
        if let Poll::Ready(exchange_error) = self.stream.poll_closed(task) {
            return Poll::Ready(Err(exchange_error.into()));
        }
        Poll::Pending
    }

    /// False in most polls: no deadline has passed, and nothing is to rest. Then it waits for that.
    fn is_any_due(&mut self, task: &mut Context<'_>) -> bool {
        self.stream.is_multiplexed()
            || self.served.http.engine.rests_at_once()
            || self.stream.poll_late(task).is_ready()
    }

    /// Waits until the upstream's timeout ends, or the request's body has not moved for too long.
    /// An upstream that stalled is no longer trusted: it may have vanished.
    fn poll_too_late(
        &mut self,
        task: &mut Context<'_>,
        asked: &mut Passing<'_>,
        moved: Instant,
    ) -> Poll<NoHead> {
        let Passing { found: FoundUpstream { upstream, .. }, upload, .. } = asked;
        while let Poll::Ready(wait_error) = self.stream.poll_late(task) {
            let left = self.wait_max(upload).saturating_sub(clock::since(moved));
            if matches!(wait_error, WaitError::Late) && !left.is_zero() {
                // It was only to rest. The clock of deadlines may be ahead by a step, and what
                // keeps it awake may be over later.
                let rest_in = self.rest_after_before_head().checked_sub(clock::since(moved));
                let rest_in = rest_in.filter(|it| !it.is_zero());
                self.stream.due_in(left.min(rest_in.unwrap_or(self.served.progress_wait())));
                continue;
            }
            if upload.done {
                upstream.distrust();
                let failure = Failure::Answer(Reason::Timeout(Limit::Upstream, None));
                return Poll::Ready(failure.into());
            }
            let failure = match self.served.gives_up(moved, RestTimeout::Body) {
                None => {
                    self.stream.due_in(self.served.progress_wait());
                    continue;
                }
                Some(reason @ Reason::Shed(_)) => Failure::Answer(reason),
                // Its socket may have taken the last bytes, but not it.
                Some(_) if upload.is_stalled() || !upstream.takes() => {
                    upstream.distrust();
                    Failure::Answer(Reason::Timeout(Limit::UpstreamBody, None))
                }
                Some(_) => Failure::Client(ExchangeError::Request(RequestFault::SlowBody)),
            };
            return Poll::Ready(failure.into());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_try_that_is_refused_says_so() {
        for reason in [Reason::RefusedRequest("refused"), Reason::RuleGone] {
            assert!(!is_of_dial(&reason), "{reason}");
        }
        assert!(is_of_dial(&Reason::UpstreamUnread));
    }
}

//! A request that a hold rule takes: it waits until somebody decides. A connection of HTTP/1.1 is
//! parked meanwhile (`http1/held.rs`). A stream of HTTP/2 waits in its task for a while, and then
//! rests with its connection, if its request is short.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use eyelet_downstream::client::head::asks_for_websocket;
use eyelet_downstream::client::http2::WaitBegun;
use eyelet_downstream::client::io::ClientLost;
use eyelet_downstream::client::resting_stream::{RestingStream, StreamUpstream};
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::clock;
use eyelet_downstream::connection::log_entry::RequestLogEntry;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_downstream::connection::served_connection::by_request::NewerRoute;
use eyelet_downstream::connection::served_connection::given_verdict::GivenVerdict;
use eyelet_downstream::connection::served_connection::record::Record;
use eyelet_engine::worker::WaitError;
use eyelet_hold::{HoldDecision, HoldKey, HoldPlace};
use eyelet_http1::head_bytes::request_bytes;
use eyelet_resting::hold::{RestingHold, body_bytes_max};
use eyelet_resting::{KeptConnection, RestingExchange, RestingFacts, RestingState};
use eyelet_telemetry::listing::streams::StreamKind;
use eyelet_telemetry::reason::{HeldEnd, Reason, Shed, Stage, When};
use http::request;
use zeroize::Zeroizing;

use super::incoming::IncomingRequest;
use crate::exchange::end::HeldRest;

/// The stage of a request that is held.
const VERDICT: When = When::During(Stage::Verdict);

/// The end of the wait of a request.
pub enum Waited {
    /// The wait ended with a verdict, or without one in time.
    Decided(GivenVerdict),
    /// It waits on without a task.
    Rests(HeldRest),
    /// Its client is gone. Its line is written.
    Over,
    /// It may not wait, or not on after so many milliseconds. A newer configuration may answer it.
    Refused(Option<Box<ServedConnection>>, Reason, u32),
}

impl IncomingRequest<'_, '_> {
    /// Asks about a request that `served` serves, and waits for the verdict.
    pub async fn wait_for_verdict(
        &mut self,
        connection: &ServedConnection,
        served: &ServedConnection,
        key: HoldKey,
    ) -> Waited {
        let begun = self.stream.as_http2().and_then(|two| two.take_wait(&key));
        let (since, timeout) = match &begun {
            Some(WaitBegun { since, wait, .. }) => (*since, *wait),
            None => (clock::now(), served.http.shared.config.hold.timeout),
        };
        let is_new = begun.is_none();
        let place = begun.and_then(|begun| begun.place).or_else(|| {
            let bytes = request_bytes(&self.request.headers, &self.request.uri);
            // What another process has decided meanwhile is for it, too.
            served.ask(key, bytes).map(|place| if is_new { place } else { place.moved() })
        });
        let Some(place) = place else {
            return Waited::Refused(None, Reason::Held(HeldEnd::TooMany), since_ms(since));
        };
        if is_new && place.is_first() && place.decision().is_none() {
            tracing::warn!("{}", place.question().announcement());
        }
        if place.decision().is_none() && self.stream.may_be_held() {
            return Waited::Rests(HeldRest::Connection(place));
        }
        Wait { connection, served, place, since, timeout }.run(self).await
    }
}

/// The wait of a request in its task.
struct Wait<'a> {
    connection: &'a ServedConnection,
    /// Serves its rule.
    served: &'a ServedConnection,
    place: HoldPlace,
    /// The time at which it began, perhaps in an earlier task.
    since: Instant,
    /// The time that it may take in all.
    timeout: Duration,
}

/// The reason why a request waits in its task no longer.
enum WaitEnd {
    Verdict(HoldDecision),
    Late,
    /// Its connection and all streams of it rest, with what came of its body and whether that is
    /// whole.
    Rests((bytes::Bytes, bool)),
    /// Its client is gone.
    Gone(Reason),
    /// It is ended here. A newer configuration may answer it.
    Ended(Option<Box<ServedConnection>>, Reason),
}

/// The end by a verdict. It answers the rule that asked: once a reload has had another one take the
/// request, it allows nothing.
fn decided(served: &ServedConnection, head: &request::Parts, decision: HoldDecision) -> WaitEnd {
    match served.newer_route(head, false) {
        NewerRoute::Same => WaitEnd::Verdict(decision),
        NewerRoute::Other(..) => WaitEnd::Ended(None, Reason::RuleGone),
        NewerRoute::Refused(by, reason) => WaitEnd::Ended(by, reason),
    }
}

impl Wait<'_> {
    async fn run(self, incoming: &mut IncomingRequest<'_, '_>) -> Waited {
        let IncomingRequest { stream, request, length } = incoming;
        let Self { connection, served, place, since, timeout } = self;
        // Its line is written if the task is dropped.
        let mut record = Record::new(served, request);
        record.began_before(since_ms(since));
        let mut entry = RequestLogEntry::new(served, record, stream.sent());
        entry.written.stream.becomes(StreamKind::Held);
        let engine = &served.http.engine;
        let began = clock::now();
        let body_max = body_bytes_max(request).filter(|_| !asks_for_websocket(request));
        let time = WaitTime { served, began, since, timeout };
        // At first it is only due to rest.
        stream.due_in(engine.rest_after().min(time.next()));
        let end = poll_fn(|task| {
            if let Poll::Ready(decision) = place.poll_decision(task) {
                return Poll::Ready(decided(served, request, decision));
            }
            if let Poll::Ready(gone) = stream.poll_gone(task) {
                return Poll::Ready(WaitEnd::Gone(gone.reason()));
            }
            if stream.poll_ends(task).is_ready() {
                return Poll::Ready(WaitEnd::Ended(None, Reason::Drained(Some(VERDICT))));
            }
            if connection.is_removed() {
                return Poll::Ready(WaitEnd::Ended(None, Reason::RuleGone));
            }
            if let Some(end) = time.end(stream, task) {
                return Poll::Ready(end);
            }
            let is_due = engine.rests_at_once() || clock::since(began) >= engine.rest_after();
            let may = is_due && !engine.is_draining() && !time.left().is_zero();
            let body = body_max.filter(|_| may);
            let two = stream.as_http2();
            let body = two.and_then(|two| two.prepare_hold(body?));
            match stream.is_multiplexed() && stream.rests_now(body.is_some()) {
                true => body.map_or(Poll::Pending, |body| Poll::Ready(WaitEnd::Rests(body))),
                false => Poll::Pending,
            }
        });
        let decision = match end.await {
            WaitEnd::Verdict(decision) => Some(decision),
            WaitEnd::Late => None,
            WaitEnd::Rests(body) => {
                let key = place.question().key.clone();
                let hold = RestingHold::new(key, request, *length, body, timeout);
                let resting = resting(entry.rest(), hold, (place, since));
                return Waited::Rests(HeldRest::Stream(resting));
            }
            WaitEnd::Ended(by, reason) => {
                entry.dismiss();
                return Waited::Refused(by, reason, since_ms(since));
            }
            WaitEnd::Gone(reason) => {
                (entry.record.failed, entry.record.reason) = (true, reason);
                entry.end();
                return Waited::Over;
            }
        };
        entry.dismiss();
        let key = place.question().key.clone();
        Waited::Decided(GivenVerdict { key, decision, waited_ms: since_ms(since) })
    }
}

/// The time of a wait in its task.
struct WaitTime<'a> {
    served: &'a ServedConnection,
    /// The time at which this task began to wait.
    began: Instant,
    /// The time at which the wait began, perhaps in an earlier task.
    since: Instant,
    /// The time that it may take in all.
    timeout: Duration,
}

impl WaitTime<'_> {
    fn left(&self) -> Duration {
        self.timeout.saturating_sub(clock::since(self.since))
    }

    /// The time until the next look: memory may be short before the wait is over.
    fn next(&self) -> Duration {
        self.served.progress_wait().min(self.left())
    }

    /// The end of the wait if its time is over, or memory is too short for it.
    fn end(&self, stream: &mut Stream<'_>, task: &mut Context<'_>) -> Option<WaitEnd> {
        let is_filling = || self.served.http.engine.process.budget.is_filling(0);
        while let Poll::Ready(late) = stream.poll_late(task) {
            let has_waited = clock::since(self.began) >= self.served.progress_wait();
            match late {
                WaitError::Late if self.left().is_zero() => return Some(WaitEnd::Late),
                WaitError::Late if has_waited && is_filling() => {
                    return Some(WaitEnd::Ended(None, Reason::Shed(Shed::Unfinished(VERDICT))));
                }
                WaitError::Late => stream.due_in(self.next()),
                other => return Some(WaitEnd::Gone(ClientLost::Wait(other).reason())),
            }
        }
        None
    }
}

/// A held request that rests with its connection.
fn resting(
    facts: RestingFacts,
    hold: RestingHold,
    (place, since): (HoldPlace, Instant),
) -> RestingStream {
    let (name, open, idle_max) = (Arc::default(), Vec::new(), hold.wait);
    let (state, connection) = (RestingState::Held(Box::new(hold)), KeptConnection::Own(None));
    let mut form = Zeroizing::new(Vec::new());
    RestingExchange { facts, state, connection }.pack(&mut form);
    let upstream = StreamUpstream::Held(Some(place));
    RestingStream { form, upstream, name, open, since, idle_max }
}

fn since_ms(began: Instant) -> u32 {
    u32::try_from(clock::since(began).as_millis()).unwrap_or(u32::MAX)
}

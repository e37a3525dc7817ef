//! When an exchange rests, and how it goes on: with the next byte of either side, or to end.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use http::Method;

use super::Exchange;
use super::end::ExchangeEnd;
use super::passing::{BodyProgress, Passing};
use super::resting::{Resting, RestingSocket};
use super::transfer::{Download, Upload, rest_websocket, resumed_websocket};
use eyelet_downstream::client::failure::Failure;
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::connection::log_entry::RequestLogEntry;
use eyelet_downstream::connection::resting::{RestingExchange, RestingState};
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_telemetry::reason::Reason;
use eyelet_upstream::Upstream;
use eyelet_upstream::http1::Http1Connection;

/// How long nothing has moved before an exchange rests: longer than the pauses of a response that
/// is being made. To rest and to go on costs as much as a small request.
pub const REST_AFTER: Duration = Duration::from_secs(1);

/// A checked form has no such state.
const NO_EXCHANGE: Failure = Failure::Cut(Reason::Internal("an exchange at rest is none"));

/// An exchange that goes on.
pub struct ResumedExchange {
    /// The exchange.
    pub exchange: RestingExchange,
    /// The upstream that it has kept open.
    pub kept: RestingSocket,
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
    let ResumedExchange { exchange: RestingExchange { facts, state }, kept, name, since } = resumed;
    let RestingSocket { socket, open } = kept;
    let mut log_entry = RequestLogEntry::resumed(served, facts, stream.sent());
    let RequestLogEntry { record, written, .. } = &mut log_entry;
    let written = &*written;
    record.note_unreached(&name);
    let mut exchange = Exchange { served, stream, record, written };
    let end = match state {
        RestingState::PassesDown(mut download) => {
            let received = std::mem::take(&mut download.received);
            let upstream = Http1Connection::resumed(&served.worker.engine, socket, name, received);
            match (upstream, Download::resumed(written, &download)) {
                (Ok(upstream), Some(download)) => {
                    let upload = Upload::sent(written);
                    let upstream = Upstream::Http1(Box::new(upstream));
                    let passing = Passing { upstream, upload, download };
                    exchange.pass_on(passing, None, Some(since)).await
                }
                (Err(error), _) => Err(Failure::Cut(Reason::upstream_io(&error))),
                (Ok(_), None) => Err(NO_EXCHANGE),
            }
        }
        RestingState::WebSocket(resting) => {
            let received = BytesMut::new();
            let upstream = Http1Connection::resumed(&served.worker.engine, socket, name, received);
            exchange.record.reason = Reason::SwitchedProtocols;
            match upstream {
                Ok(upstream) => {
                    let upstream = Upstream::Http1(Box::new(upstream));
                    let (upload, download) = resumed_websocket(written, &resting);
                    let passing = Passing { upstream, upload, download };
                    exchange.copy(passing, Some(since)).await
                }
                Err(error) => Err(Failure::Cut(Reason::upstream_io(&error))),
            }
        }
    };
    let mut end = match end {
        Ok(end) => end,
        Err(failure) => exchange.fail(&Method::GET, failure).await,
    };
    if let Some(resting) = &mut end.resting {
        resting.open.extend(open);
    }
    end.of(log_entry)
}

impl Exchange<'_, '_> {
    /// Returns how long a response waits for a byte before it is checked.
    pub(super) fn first_wait(&self, passing: &Passing<'_>) -> Duration {
        let wait = self.served.progress_wait();
        if self.may_rest(passing) { wait.min(REST_AFTER) } else { wait }
    }

    /// Returns how long an exchange that rested waits for one, where nothing has moved since then.
    pub(super) fn wait_since(&self, since: Instant) -> Duration {
        let body_timeout = self.served.worker.shared.config.http.body_timeout;
        REST_AFTER.min(body_timeout.saturating_sub(since.elapsed()))
    }

    /// True if the exchange may rest where it is.
    fn may_rest(&self, Passing { upstream, upload, download }: &Passing<'_>) -> bool {
        let Upstream::Http1(upstream) = upstream else { return false };
        upstream.is_plain()
            && upload.may_rest()
            && download.may_rest(&upstream.received)
            && self.record.may_rest()
            && !self.served.worker.engine.is_draining()
            && self.stream.rests().is_some()
    }

    /// Waits until the exchange may rest, or no byte has moved for too long. One that leaves for
    /// another process rests at once.
    pub(super) fn poll_rest(
        &mut self,
        task: &mut Context<'_>,
        since: Instant,
        passing: &Passing<'_>,
    ) -> Poll<Result<BodyProgress, Failure>> {
        let worker = &self.served.worker;
        // What the client has not taken yet goes along.
        let is_due = worker.engine.is_leaving()
            || self.stream.is_late() && since.elapsed() >= REST_AFTER && self.stream.queued() == 0;
        let is_over = || since.elapsed() >= worker.shared.config.http.body_timeout;
        let may = is_due && !is_over() && self.may_rest(passing);
        if self.stream.rests_now(may) {
            return Poll::Ready(Ok(BodyProgress::Rests(since)));
        }
        self.poll_stalled(task, since).map(Err)
    }

    /// Takes apart an exchange that rests.
    pub(super) fn rest(
        &mut self,
        passing: Passing<'_>,
        since: Instant,
    ) -> Result<ExchangeEnd, Failure> {
        self.stream.seal_all()?;
        let Passing { upstream, upload, mut download } = passing;
        let config = &self.served.worker.shared.config;
        let (Upstream::Http1(mut upstream), Some(client)) = (upstream, self.stream.rests()) else {
            return Err(NO_EXCHANGE);
        };
        let (received, name) = (std::mem::take(&mut upstream.received), upstream.name.clone());
        let socket = upstream.into_resting().ok_or(NO_EXCHANGE)?;
        let (socket, address) =
            socket.map_err(|error| Failure::Cut(Reason::upstream_io(&error)))?;
        let (state, idle_max) = match rest_websocket(&upload, &mut download) {
            Some(websocket) => (RestingState::WebSocket(websocket), config.limits.idle_timeout),
            None => {
                let download = download.rest(received).ok_or(NO_EXCHANGE)?;
                (RestingState::PassesDown(download), config.http.body_timeout)
            }
        };
        let open = address.into_iter().collect();
        let resting = Resting { socket, open, client, name, since, idle_max, state, facts: None };
        Ok(ExchangeEnd { resting: Some(Box::new(resting)), ..ExchangeEnd::default() })
    }
}

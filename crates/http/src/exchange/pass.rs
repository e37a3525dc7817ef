//! Passes a response on: its body down, with the rest of the request's body going up, or what both
//! sides say after they have switched protocols.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, StatusCode, header, response};

use super::Exchange;
use super::end::ExchangeEnd;
use super::find::{Chosen, FoundUpstream};
use super::passing::{BodyProgress, Passing};
use super::switched::Switched;
use super::transfer::{Broken, resumed_websocket};
use super::websocket;
use eyelet_downstream::client::failure::Failure;
use eyelet_downstream::clock;
use eyelet_engine::iteration::others_first;
use eyelet_http1::boundary::Boundary;
use eyelet_http1::fault::ResponseFault;
use eyelet_http1::head::{Length, Response};
use eyelet_http1::head_lines::ReceivedHead;
use eyelet_resting::RestingWebSocket;
use eyelet_telemetry::listing::streams::StreamKind;
use eyelet_telemetry::reason::{Detail, Reason};
use eyelet_upstream::Upstream;
use eyelet_upstream::http1::Http1Connection;
use eyelet_wire::websocket::FrameReader;

impl<'a> Exchange<'a, '_> {
    /// Begins a response whose head is final. The exchange is not moved here: that would copy it.
    pub(super) async fn begin(
        &mut self,
        passing: &Passing<'_>,
        (head, length): (ReceivedHead, Length),
    ) {
        // Other tasks run before the head is written, so that in HTTP/2 it is sent together with
        // the body. If some of the body is here, the task of the connection finds both anyway.
        if !self.stream.is_multiplexed() || passing.download.waits_for_first() {
            others_first().await;
        }
        match head {
            ReceivedHead::Fields(response) => {
                let Response { parts, .. } = *response;
                self.written.stream.becomes(kind(&parts, length));
                self.respond(parts, length);
            }
            ReceivedHead::Lines(lines) => {
                self.written.stream.becomes(StreamKind::Response);
                self.record.status = Some(lines.status().as_u16());
                // No other client was to get lines.
                if let Some(one) = self.stream.as_http1() {
                    one.respond_lines(lines);
                }
            }
        }
    }

    /// Passes the rest of a response on, until it has ended or rests. Nothing has moved `since`
    /// then, if it rested.
    pub(super) async fn pass_on(
        &mut self,
        slot: &mut Option<Passing<'a>>,
        since: Option<Instant>,
    ) -> Result<ExchangeEnd, Failure> {
        let Some(passing) = slot else { return Ok(ExchangeEnd::default()) };
        let passed = self.pass_down(passing, since).await?;
        match passed {
            BodyProgress::Rests(since) => {
                slot.take().map_or(Ok(ExchangeEnd::default()), |it| self.rest(it, since))
            }
            BodyProgress::Queued => self.flush_behind(slot).await,
            BodyProgress::Written => {
                let is_whole = passing.upload.done && passing.download.is_whole();
                if let Some(Passing { found, .. }) = slot.take() {
                    self.keep(found, is_whole);
                }
                Ok(ExchangeEnd::default())
            }
        }
    }

    /// Writes what is queued of a response that no longer needs its upstream. It counts until the
    /// client has it, and the exchange as open at its upstream.
    async fn flush_behind(
        &mut self,
        slot: &mut Option<Passing<'a>>,
    ) -> Result<ExchangeEnd, Failure> {
        let Some(Passing { found, upload, download, .. }) = slot.take() else {
            return Ok(ExchangeEnd::default());
        };
        let _at = self.keep(found, upload.done && download.is_whole());
        self.flush().await?;
        Ok(ExchangeEnd::default())
    }

    /// Keeps the upstream's connection for other requests, if its response is whole.
    fn keep(&self, found: FoundUpstream, is_whole: bool) -> Option<Chosen> {
        let FoundUpstream { upstream, index, chosen } = found;
        if let Some(index) = index.filter(|_| is_whole) {
            self.served.keep(upstream, index);
        }
        chosen
    }

    /// Passes the response's body down, and the rest of the request's body up. It returns before
    /// the client has all of it if the upstream is done: other requests can use the upstream
    /// meanwhile.
    async fn pass_down(
        &mut self,
        passing: &mut Passing<'_>,
        since: Option<Instant>,
    ) -> Result<BodyProgress, Failure> {
        // Most responses are complete already, and reading the clock costs.
        let mut moved = since;
        if let Some(since) = since {
            self.stream.due_in(self.wait_since(since, passing));
        }
        poll_fn(|task| {
            let Passing { found, upload, download, .. } = &mut *passing;
            let upstream = &mut found.upstream;
            let before = (download.taken, self.stream.queued(), upload.moved());
            // A request body that fails affects only this request.
            if let Poll::Ready(Err(_)) = upload.poll(task, self.stream, upstream) {
                upload.breaks(self.stream);
            }
            match download.poll(task, self.stream, upstream) {
                Poll::Ready(Ok(())) => return Poll::Ready(Ok(BodyProgress::Written)),
                Poll::Pending if upload.done && download.has_ended() => {
                    return Poll::Ready(Ok(BodyProgress::Queued));
                }
                Poll::Ready(Err(broken)) => return Poll::Ready(Err(broken.into())),
                Poll::Pending => {}
            }
            if before != (download.taken, self.stream.queued(), upload.moved()) {
                moved = None;
            }
            if moved.is_none() {
                self.stream.due_in(self.first_wait(passing));
            }
            if let Poll::Ready(exchange_error) = self.stream.poll_closed(task) {
                return Poll::Ready(Err(exchange_error.into()));
            }
            let moved = *moved.get_or_insert_with(clock::now);
            self.poll_rest(task, moved, passing)
        })
        .await
    }

    /// Handles an upstream that has switched protocols. `chosen` is the protocol, if the client has
    /// asked for it. Other clients get no 101.
    pub(super) async fn switched(
        &mut self,
        mut head: response::Parts,
        upstream: Upstream,
        chosen: Option<HeaderValue>,
    ) -> Result<ExchangeEnd, Failure> {
        // HTTP/2 has no 101 (RFC 9113 8.6).
        let (Some(protocol), Upstream::Http1(upstream)) = (chosen, upstream) else {
            return Err(ResponseFault::Unasked.into());
        };
        self.record.status = Some(StatusCode::SWITCHING_PROTOCOLS.as_u16());
        self.record.reason = Reason::SwitchedProtocols;
        let Some(one) = self.stream.as_http1() else {
            return self.copy_websocket(head, upstream).await;
        };
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        let switched = Some(Switched::new(upstream, &protocol));
        head.headers.insert(header::UPGRADE, protocol);
        one.switch(&head);
        self.flush().await?;
        Ok(ExchangeEnd { switched, ..ExchangeEnd::default() })
    }

    async fn copy_websocket(
        &mut self,
        mut head: response::Parts,
        upstream: Box<Http1Connection>,
    ) -> Result<ExchangeEnd, Failure> {
        websocket::to_ok(&mut head);
        self.respond(head, Length::UntilClose);
        let upstream = Upstream::Http1(upstream);
        let first =
            RestingWebSocket { frames: [FrameReader::default(); 2], passed: 0, ended: None };
        self.copy(upstream, &first, None).await
    }

    /// Copies the bytes of a WebSocket until it has ended or rests. Nothing has moved `since` then,
    /// if it rested.
    pub(super) async fn copy(
        &mut self,
        upstream: Upstream,
        begun: &RestingWebSocket,
        since: Option<Instant>,
    ) -> Result<ExchangeEnd, Failure> {
        let (upload, download) = resumed_websocket(self.written, begun);
        let found = FoundUpstream::once(upstream);
        let mut passing = Passing { found, upload, download, is_coded: false };
        self.written.stream.becomes(StreamKind::WebSocket);
        match websocket::copy(self, &mut passing, since).await? {
            Some(since) => self.rest(passing, since),
            None => Ok(ExchangeEnd::default()),
        }
    }
}

/// The kind of a response with this head.
fn kind(head: &response::Parts, length: Length) -> StreamKind {
    if matches!(length, Length::Empty | Length::Known(_)) {
        return StreamKind::Response;
    }
    match Boundary::of_body(&head.headers) {
        Boundary::Events(_) => StreamKind::Events,
        _ => StreamKind::Response,
    }
}

/// True if a request with these fields is of gRPC, or of gRPC-Web.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let of_type = headers.get(header::CONTENT_TYPE);
    of_type.is_some_and(|of| of.as_bytes().starts_with(b"application/grpc"))
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Client(exchange_error) => exchange_error.into(),
            Broken::Coding => Self::Cut(Reason::CodingFailed),
            Broken::Upstream(fault) => Self::Cut(Reason::Response(Detail::of(fault))),
        }
    }
}

//! Requests that an HTTP/1.1 client pipelines to an originate rule. Those behind a GET go to its
//! HTTP/2 upstream before their turn, so a client waits one round trip for several of them.
//! Responses stay in order (RFC 9112 section 9.3.2).

use std::collections::VecDeque;

use bytes::{Buf, BytesMut};
use eyelet_compress::fields::lists;
use eyelet_memory::budget::Counted;
use eyelet_telemetry::reason::Reason;
use http::{Method, Version, header, request};

use super::io::ClientStream;
use super::request_check::check;
use super::secrets::has_placeholder;
use crate::connection::served_connection::ServedConnection;
use crate::connection::served_connection::record::Record;
use eyelet_http1::fields;
use eyelet_http1::head::{Length, Request, Scanner, request_end, take_request};
use eyelet_http1::head_bytes::request_bytes;
use eyelet_recoding::{NearRequest, RequestCodings};
use eyelet_upstream::Upstream;
use eyelet_upstream::http2::Http2Exchange;
use eyelet_upstream::request::UpstreamRequest;

/// Most requests that are asked before their turn. Each may hold its stream's window until then.
/// svn has four connections, so 64 fill a round trip of 50 ms if a response takes a millisecond.
const AHEAD_MAX: usize = 16;
/// More are asked once so many are left, all at once: each record of TLS has 22 bytes of its own.
const AHEAD_LEFT: usize = AHEAD_MAX / 2;

/// A request that was sent to the upstream before its turn.
pub struct AskedAhead {
    /// Its stream.
    pub upstream: Box<Http2Exchange>,
    /// The request that was sent, until its exchange has it.
    pub sent: Option<(request::Parts, RequestCodings)>,
}

/// A request whose turn has not come.
pub struct PipelinedRequest {
    /// The request as its client sent it.
    pub request: Request,
    /// `None` after a reload: it is asked in its turn.
    pub asked: Option<Box<AskedAhead>>,
    _counted: Counted,
}

/// The requests of a connection that were asked before their turn, in the client's order.
#[derive(Default)]
pub struct Pipeline {
    waiting: VecDeque<PipelinedRequest>,
    /// True if others may be asked behind the request whose turn has come, and whether it was
    /// asked.
    may_be_followed: bool,
    is_followed: bool,
}

impl Pipeline {
    /// The next request, if it was asked.
    pub fn pop(&mut self) -> Option<PipelinedRequest> {
        self.waiting.pop_front()
    }

    /// True if no request waits for its turn.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Gives up what was asked: a reload has made other rules.
    pub fn forget_asked(&mut self) {
        for waiting in &mut self.waiting {
            waiting.asked = None;
        }
    }

    /// Notes the request whose turn has come.
    pub fn begin(&mut self, request: &Request) {
        (self.may_be_followed, self.is_followed) = (may_be_followed(request), false);
    }

    /// Notes that this request was asked.
    pub fn follow(&mut self) {
        self.is_followed = self.may_be_followed;
    }

    /// Asks for the requests behind one whose turn has come, if that was asked. Stops at the first
    /// one that must wait: it stays among the received bytes.
    pub fn ask(&mut self, client: &mut ClientStream, served: &ServedConnection) {
        let is_enough = self.waiting.len() > AHEAD_LEFT || client.plain.is_empty();
        if is_enough || !self.is_followed || !served.rule.intermediary.is_near_client() {
            return;
        }
        let budget = &served.http.engine.process.budget;
        while self.waiting.len() < AHEAD_MAX && !served.is_last() && !budget.is_tight(0) {
            let head_bytes_max = served.http.shared.config.http.head_bytes_max;
            let Some((next, head_bytes)) = following(&client.plain, head_bytes_max) else { return };
            let Some(next_asked) = ask(served, &next) else { return };
            client.plain.advance(head_bytes);
            // Both what came and what was sent.
            let bytes = 2 * request_bytes(&next.parts.headers, &next.parts.uri);
            let counted = Counted::new(budget, bytes);
            let asked = Some(Box::new(next_asked));
            self.waiting.push_back(PipelinedRequest { request: next, asked, _counted: counted });
        }
    }

    /// Writes the access lines of requests that the upstream has seen and whose turn never comes.
    pub fn end(self, served: &ServedConnection, reason: &Reason) {
        for waiting in self.waiting.iter().filter(|waiting| waiting.asked.is_some()) {
            let mut record = Record::new(served, &waiting.request.parts);
            record.failed = true;
            record.reason = reason.clone();
            served.emit(&record);
        }
    }
}

/// The request at the front of what was received, with the length of its head, if it is whole and
/// may be asked before its turn. Its memory is its own.
fn following(received: &[u8], head_bytes_max: usize) -> Option<(Request, usize)> {
    if !received.starts_with(b"GET ") && !received.starts_with(b"HEAD ") {
        return None;
    }
    let end = request_end(received, &mut Scanner::default(), head_bytes_max).ok()??;
    let mut head = BytesMut::from(received.get(..end)?);
    let request = take_request(&mut head, &mut Scanner::default(), head_bytes_max).ok()??;
    may_be_followed(&request).then_some((request, end))
}

/// True if what follows this request may be asked before its response: it is safe, has no body, and
/// leaves the connection what it is.
fn may_be_followed(request: &Request) -> bool {
    matches!(request.parts.method, Method::GET | Method::HEAD)
        && request.length == Length::Empty
        && request.keep_alive
        && request.parts.version == Version::HTTP_11
        && (!request.roles.may_have_hop_by_hop()
            || !request.parts.headers.contains_key(header::UPGRADE))
}

/// Asks by a kept HTTP/2 connection. `None`: there is none with room, or the request is not one for
/// the upstream.
fn ask(served: &ServedConnection, request: &Request) -> Option<AskedAhead> {
    let route = served.route().ok()?;
    let (terminate, target) = (route.requests()?, route.target(0)?);
    let compressors = &served.http.compressors;
    let is_own = compressors.answer(route.rule, &request.parts).is_some();
    // Rules decide each request in its turn.
    if !route.by_request.is_empty()
        || route.upstreams() > 1
        || is_own
        || served.is_tied(&request.parts.headers)
    {
        return None;
    }
    // Its turn says what becomes of it.
    if has_placeholder(&served.http, &request.parts) {
        return None;
    }
    let mut parts = request.parts.clone();
    let asked = check(served, &parts).ok()?;
    let origin = served.rule.intermediary.translate(&asked, &mut parts).ok()??;
    let host = origin.authority();
    let trailers = lists(&parts.headers, &header::TE, "trailers");
    fields::to_upstream(&mut parts, Length::Empty, None, request.roles);
    let forwarded = &served.identify_requester(host, &mut parts);
    let near = NearRequest { rule: route.rule, host, is_tied: false, is_harmless: true };
    let codings = compressors.request_near(near, terminate, &mut parts);
    let asked = UpstreamRequest::without_body(&parts, host, forwarded);
    let asked = UpstreamRequest { trailers, again: true, ..asked };
    match target.take(&served.http, &asked, false)? {
        Upstream::Http2(upstream) => Some(AskedAhead { upstream, sent: Some((parts, codings)) }),
        Upstream::Http1(_) => None,
    }
}

//! The facts of one request, and its access line.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eyelet_telemetry::held::HeldInfo;
use eyelet_telemetry::info::{End, Measured};
use eyelet_telemetry::log::failed;
use eyelet_telemetry::reason::Reason;
use eyelet_telemetry::request::{Coded, RequestInfo};
use eyelet_telemetry::upstream_tls::UpstreamTlsInfo;
use eyelet_upstream::Upstream;
use http::uri::PathAndQuery;
use http::{Method, StatusCode, request};

use super::ServedConnection;
use super::answer::end_of_failure;
use crate::clock;
use crate::connection::intermediary::Intermediary;
use crate::connection::trace::{EndedExchange, ExchangeTrace};
use eyelet_resting::RestingFacts;
use eyelet_resting::ruling::{RestingRuling, Shadows};
use eyelet_resting::trace::RestingTrace;

/// Paths are cut in the log, so that people can read the lines.
const PATH_CHARS_MAX: usize = 2048;

/// The facts of one request for its access line.
pub struct Record {
    /// Its start, in milliseconds since 1970.
    started_unix_ms: u64,
    method: Option<Method>,
    path: Option<PathAndQuery>,
    /// The status that the client got; none if it got none.
    pub status: Option<u16>,
    /// Milliseconds from the request's last byte to the response's head. If the upstream answered
    /// earlier, they count from the request's head.
    upstream_ms: Option<u64>,
    /// The start of `upstream_ms` by the wall clock, if the exchange rested before its response.
    /// The instant of a parked connection is only as exact as the timer wheel.
    waits_unix_ms: Option<u64>,
    pub(crate) coded: Coded,
    /// The reason why the exchange ended.
    pub reason: Reason,
    /// The client did not get a whole response of the upstream.
    pub failed: bool,
    /// The upstream that was asked.
    upstream: Option<Arc<str>>,
    upstream_tls: Option<Arc<UpstreamTlsInfo>>,
    pub(crate) bytes_to_upstream: u64,
    pub(crate) bytes_to_client: u64,
    /// The decision about it, if it was held.
    held: Option<HeldInfo>,
    /// Its refusal by a newer configuration.
    pub refused_by: Option<Box<ServedConnection>>,
    /// The rules in shadow that take it.
    shadow: Option<Shadows>,
    /// Boxed: few exchanges are traced, and all pay for the size.
    trace: Option<Box<ExchangeTrace>>,
}

impl Record {
    /// The record of a request that begins.
    pub fn new(served: &ServedConnection, request: &request::Parts) -> Self {
        let trace =
            served.http.shared.trace.as_ref().map(|tracer| {
                Box::new(ExchangeTrace::begin(tracer, request, served.trusts_client()))
            });
        let is_written = served.http.is_logging() || trace.is_some() || failed::is_watched();
        let path = request.uri.path_and_query().filter(|_| is_written).cloned();
        let (method, shadow) = (Some(request.method.clone()), served.shadows_on(request));
        Self { method, path, shadow, trace, ..Self::unread(served) }
    }

    /// The record of an exchange that rested.
    pub fn resumed(served: &ServedConnection, facts: RestingFacts) -> Self {
        let accepted_unix_ms = served.info.started_unix_ms();
        let began = facts.began_ms.map(|ms| accepted_unix_ms.saturating_add(ms));
        let (upstream_ms, waits_unix_ms) = match facts.status {
            Some(_) => (facts.upstream_ms, None),
            None => {
                (None, began.zip(facts.upstream_ms).map(|(began, ms)| began.saturating_add(ms)))
            }
        };
        let upstream = served.info.decided.upstream.as_ref().map(|name| name.to_text().into());
        let tracer = served.http.shared.trace.as_ref();
        let asked = (facts.method.as_ref(), facts.path.as_ref());
        let resumed = |trace: Box<RestingTrace>| ExchangeTrace::resumed(tracer, *trace, asked);
        let RestingRuling { held, shadow } = *facts.ruling.unwrap_or_default();
        Self {
            held,
            shadow,
            trace: facts.trace.map(|trace| Box::new(resumed(trace))),
            started_unix_ms: began.unwrap_or(0),
            method: facts.method,
            path: facts.path,
            status: facts.status,
            upstream_ms,
            waits_unix_ms,
            upstream,
            ..Self::unread(served)
        }
    }

    /// The facts of an exchange that rests. The upstream is its connection's.
    pub(crate) fn rest(&self, served: &ServedConnection) -> RestingFacts {
        let accepted_unix_ms = served.info.started_unix_ms();
        let began = Some(self.started_unix_ms).filter(|unix_ms| *unix_ms > 0);
        let waits = began.zip(self.waits_unix_ms);
        let until_wait = waits.map(|(began, waits)| waits.saturating_sub(began));
        let shown = self.path.as_ref().map(|path| cut(path.as_str()));
        RestingFacts {
            began_ms: began.map(|unix_ms| unix_ms.saturating_sub(accepted_unix_ms)),
            method: self.method.clone(),
            path: shown.and_then(|path| path.try_into().ok()),
            status: self.status,
            upstream_ms: self.upstream_ms.or(until_wait),
            bytes_to_upstream: self.bytes_to_upstream,
            bytes_to_client: self.bytes_to_client,
            is_grpc: false,
            ruling: RestingRuling::of(self.held, self.shadow.as_deref()),
            trace: self.trace.as_ref().map(|trace| Box::new(trace.rest())),
        }
    }

    /// Notes the upstream that is sent the request.
    pub fn note_sent(&mut self, upstream: &Upstream) {
        self.upstream = Some(upstream.name().clone());
        self.upstream_tls = upstream.tls().cloned();
        if let Some(trace) = &mut self.trace {
            trace.note_sent();
        }
    }

    /// Notes an upstream to which there is no connection.
    pub fn note_unreached(&mut self, name: &Arc<str>) {
        self.note_kept(name, None);
    }

    /// Notes the upstream of an exchange that rested, and what was agreed on with it.
    pub fn note_kept(&mut self, name: &Arc<str>, tls: Option<Arc<UpstreamTlsInfo>>) {
        self.upstream = Some(name.clone());
        self.upstream_tls = tls;
    }

    /// Notes that it rests, and has waited for its response for so long.
    pub fn note_rests(&mut self, served: &ServedConnection, waited: Duration) {
        let now = served.http.engine.now_unix_ms();
        self.waits_unix_ms.get_or_insert(now.saturating_sub(clock::ms(waited)));
    }

    /// Notes that its wait begins anew: more of its request was sent.
    pub fn note_moved(&mut self) {
        self.waits_unix_ms = None;
    }

    /// Notes the head of the upstream's response, which was waited for since then.
    pub fn note_answered(&mut self, served: &ServedConnection, status: StatusCode, since: Instant) {
        let waits = self.waits_unix_ms.take();
        // Reading the clock costs.
        self.upstream_ms = served.http.is_logging().then(|| match waits {
            Some(waits) => served.http.engine.now_unix_ms().saturating_sub(waits),
            None => clock::ms(clock::since(since)),
        });
        if let Some(trace) = &mut self.trace {
            trace.note_answered(status.as_u16());
        }
    }

    /// The record of a request that could not be read.
    pub fn unread(served: &ServedConnection) -> Self {
        let logs = served.http.is_logging();
        Self {
            // Without a log the time is not needed.
            started_unix_ms: if logs { served.http.engine.now_unix_ms() } else { 0 },
            method: None,
            path: None,
            status: None,
            upstream_ms: None,
            waits_unix_ms: None,
            coded: Coded::default(),
            reason: Reason::Complete,
            failed: false,
            upstream: None,
            upstream_tls: None,
            bytes_to_upstream: 0,
            bytes_to_client: 0,
            held: None,
            refused_by: None,
            shadow: None,
            trace: None,
        }
    }

    /// Notes that it was held. The time of its line begins when it came.
    pub fn note_held(&mut self, held: HeldInfo) {
        self.held = Some(held);
        self.began_before(held.ms);
    }

    /// Notes that it came so many milliseconds earlier.
    pub fn began_before(&mut self, ms: u32) {
        self.started_unix_ms = self.started_unix_ms.saturating_sub(ms.into());
    }

    /// The connection that answers it: that of its exchange, unless a newer configuration has
    /// refused it.
    pub fn answered_by<'s>(&'s self, served: &'s ServedConnection) -> &'s ServedConnection {
        self.refused_by.as_deref().unwrap_or(served)
    }

    fn info(&self) -> RequestInfo<'_> {
        RequestInfo {
            method: self.method.as_ref().map_or("", Method::as_str),
            path: cut(self.path.as_ref().map_or("", PathAndQuery::as_str)),
            status: self.status,
            upstream_ms: self.upstream_ms,
            upstream: self.upstream.as_deref(),
            upstream_tls: self.upstream_tls.as_deref(),
            coded: self.coded,
            trace: self.trace.as_ref().map(|trace| trace.ids()),
            held: self.held,
            shadow: self.shadow.as_deref().unwrap_or_default(),
        }
    }
}

/// The path, cut to the length for the log.
fn cut(path: &str) -> &str {
    if path.len() <= PATH_CHARS_MAX {
        return path;
    }
    path.char_indices().nth(PATH_CHARS_MAX).map_or(path, |(end, _)| &path[..end])
}

impl ServedConnection {
    /// Writes the access line of a request, if there is a log.
    pub fn emit(&self, record: &Record) {
        self.http.engine.count_shed(&record.reason);
        if self.http.engine.counters.request(!record.failed, &record.reason) {
            let decided = &self.info.decided;
            let rule = decided.rule.map_or("", |rule| decided.labels.rule(rule));
            failed::note(rule, &record.info(), &record.reason);
        }
        if let Some(trace) = record.trace.as_ref().filter(|trace| trace.is_recorded()) {
            trace.end(&EndedExchange {
                info: &self.info,
                end: &self.end_of(record),
                failed: record.failed,
                status: record.status,
                upstream: record.upstream.as_ref(),
            });
        }
        // A request that began while the log was off has no time.
        if !self.http.is_logging() || record.started_unix_ms == 0 {
            return;
        }
        let now = self.http.engine.now_unix_ms();
        let measured = Measured {
            id: self.info.id,
            started_unix_ms: record.started_unix_ms,
            duration_ms: now.saturating_sub(record.started_unix_ms),
            client: self.info.client,
            bytes_to_upstream: record.bytes_to_upstream,
            bytes_to_client: record.bytes_to_client,
            datagrams: None,
        };
        let end = self.end_of(record);
        self.http.emit_request(&self.info.decided, &measured, &end, &record.info());
    }

    /// Returns how a request ended.
    fn end_of(&self, record: &Record) -> End {
        let reason = record.reason.clone();
        match (record.failed, &self.rule.intermediary) {
            (true, Intermediary::Proxy { .. }) => end_of_failure(reason),
            (true, _)
                if matches!(
                    reason,
                    Reason::Held(_)
                        | Reason::Misdirected(_)
                        | Reason::Placeholder(_)
                        | Reason::RefusedRequest(_)
                        | Reason::Trace
                ) =>
            {
                end_of_failure(reason)
            }
            (true, _) => End::failed(reason),
            (false, _) => End { outcome: self.outcome(), reason },
        }
    }

    /// Tells the upstream of the trace, unless it is a stranger.
    pub fn pass_trace(&self, request: &mut request::Parts, record: &mut Record) {
        if let Some(trace) = &mut record.trace {
            trace.ask(self.rule.intermediary.tells_upstream().then_some(&mut request.headers));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_cut_between_characters() {
        for (path, chars) in [
            ("/".to_owned(), 1),
            ("\u{e9}".repeat(PATH_CHARS_MAX), PATH_CHARS_MAX),
            ("\u{e9}".repeat(PATH_CHARS_MAX + 1), PATH_CHARS_MAX),
            ("a".repeat(PATH_CHARS_MAX), PATH_CHARS_MAX),
            ("a".repeat(PATH_CHARS_MAX + 1), PATH_CHARS_MAX),
        ] {
            let cut = cut(&path);
            assert_eq!(cut.chars().count(), chars);
            assert!(path.starts_with(cut));
        }
    }
}

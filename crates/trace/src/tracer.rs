//! Decides which exchanges are recorded, makes ids for them, and has their spans sent. All workers
//! share one under a configuration.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;

use eyelet_config::{SecretFields, TraceSettings, trace_fields};
use eyelet_memory::budget::Budget;
use eyelet_tls::client::roots_config;
use eyelet_tls::server::TlsError;
use eyelet_wire::traceparent::{SpanId, TraceId, TraceParent};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::TrustAnchor;

use crate::client::CollectorClient;
use crate::exporter;
use crate::live;
use crate::queue::SpanQueue;
use crate::span::ExchangeSpans;

/// The reason why traces cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file with fields cannot be used.
    #[error("[trace] headers_file: {0}")]
    Fields(String),
    /// The roots for the collector cannot be used.
    #[error("[trace] ca: {0}")]
    Roots(#[from] TlsError),
    /// The thread could not be started.
    #[error("cannot send traces: {0}")]
    Thread(io::Error),
}

/// Traces under one configuration. Dropping it has its thread send what waits, and end.
pub struct Tracer {
    settings: TraceSettings,
    fields: SecretFields,
    /// For an https:// collector.
    roots: Option<Arc<RootCertStore>>,
    queue: Option<Arc<SpanQueue>>,
}

/// Traces of a configuration whose files were read. Nothing is sent yet.
pub enum PreparedTracer {
    /// Nothing about them has changed, and the thread is there.
    Same(Arc<Tracer>),
    /// A thread is to be started, if there is a collector.
    New(Box<NewTracer>),
}

/// The parts that a tracer needs to begin.
pub struct NewTracer {
    settings: TraceSettings,
    fields: SecretFields,
    tls: Option<Arc<ClientConfig>>,
    roots: Option<Arc<RootCertStore>>,
}

/// The place of an exchange in its trace.
#[derive(Clone, Copy, Debug)]
pub struct TracePlace {
    /// The trace, the span of the exchange, and whether it is recorded.
    pub own: TraceParent,
    /// The client's span.
    pub parent: Option<SpanId>,
}

impl PreparedTracer {
    /// Reads the files that the configuration names.
    ///
    /// # Errors
    /// [`TraceError`], if one cannot be used.
    pub fn new(
        settings: Option<&TraceSettings>,
        earlier: Option<&Arc<Tracer>>,
    ) -> Result<Option<Self>, TraceError> {
        let Some(settings) = settings else { return Ok(None) };
        let fields = match &settings.headers_file {
            Some(file) => trace_fields(file).map_err(TraceError::Fields)?,
            None => SecretFields::new(),
        };
        let (tls, roots) = match &settings.endpoint {
            Some(endpoint) if endpoint.tls => {
                let (tls, roots) = roots_config(settings.ca.as_deref())?;
                (Some(tls), Some(roots))
            }
            _ => (None, None),
        };
        if let Some(earlier) = earlier
            && !earlier.has_died()
            && (&earlier.settings, &earlier.fields) == (settings, &fields)
            && anchors(&earlier.roots) == anchors(&roots)
        {
            return Ok(Some(Self::Same(earlier.clone())));
        }
        let new = NewTracer { settings: settings.clone(), fields, tls, roots };
        Ok(Some(Self::New(Box::new(new))))
    }

    /// The tracer: the earlier one, if nothing about it has changed. What waits for a collector
    /// counts in the budget of the process, which may use `memory_max` bytes.
    ///
    /// # Errors
    /// [`TraceError`], if the thread cannot be started.
    pub fn start(self, budget: &Arc<Budget>, memory_max: usize) -> Result<Arc<Tracer>, TraceError> {
        let NewTracer { settings, fields, tls, roots } = match self {
            Self::Same(earlier) => return Ok(earlier),
            Self::New(new) => *new,
        };
        let queue = match &settings.endpoint {
            Some(endpoint) => {
                let client = CollectorClient::new(endpoint.clone(), fields.clone(), tls);
                let queue = live::queue(budget.clone(), memory_max);
                let name = settings.service_name.clone();
                exporter::start(client, name, queue.clone()).map_err(TraceError::Thread)?;
                Some(queue)
            }
            None => None,
        };
        Ok(Arc::new(Tracer { settings, fields, roots, queue }))
    }
}

impl Tracer {
    /// The place of a request with this `traceparent`, if it has a valid one. A client that is
    /// trusted says itself whether it is recorded. Others must not: they could have all of theirs
    /// recorded, and so could they by ids of their choice. Without a collector nothing is decided
    /// here: the flag passes, and that of a new trace lets the upstream decide.
    pub fn place(&self, parent: Option<TraceParent>, is_trusted: bool) -> TracePlace {
        let span_id = new_id();
        let own = TraceParent {
            trace_id: parent.map_or_else(new_trace_id, |parent| parent.trace_id),
            span_id,
            is_sampled: match parent {
                Some(parent) if is_trusted || !self.is_sending() => parent.is_sampled,
                None if !self.is_sending() => true,
                _ => is_sampled(self.settings.sample, span_id),
            },
        };
        TracePlace { own, parent: parent.map(|parent| parent.span_id) }
    }

    /// True if spans are sent anywhere.
    pub fn is_sending(&self) -> bool {
        self.queue.is_some()
    }

    /// True if the thread has ended before this, which only a failure causes. A reload starts
    /// another.
    pub fn has_died(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.is_over())
    }

    /// Has the spans of an exchange sent.
    pub fn send(&self, exchange: ExchangeSpans) {
        if let Some(queue) = &self.queue {
            queue.push(exchange);
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            queue.close();
        }
    }
}

/// Returns the anchors that a file or the system trusts.
fn anchors(roots: &Option<Arc<RootCertStore>>) -> Option<&[TrustAnchor<'static>]> {
    roots.as_ref().map(|roots| &*roots.roots)
}

/// The id of a new span. std draws keys for each thread from the system once, and never makes the
/// same hasher again: nobody can guess the next id.
pub fn new_id() -> SpanId {
    // 0 is invalid.
    RandomState::new().hash_one(0_u8).max(1).to_be_bytes()
}

fn new_trace_id() -> TraceId {
    let mut id = [0; 16];
    let (high, low) = id.split_at_mut(8);
    high.copy_from_slice(&new_id());
    low.copy_from_slice(&new_id());
    id
}

/// True if an exchange is recorded, by a number that is random and ours.
fn is_sampled(part: f64, span_id: SpanId) -> bool {
    // The upper 53 bits, as a number from 0 up to but not 1.
    let drawn = (u64::from_be_bytes(span_id) >> 11) as f64 / (1_u64 << 53) as f64;
    drawn < part
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::HashSet;

    use eyelet_config::{Host, HostPort, TraceEndpoint};

    use super::*;

    fn tracer(sample: f64) -> Arc<Tracer> {
        next(&settings(sample), None)
    }

    fn next(settings: &TraceSettings, earlier: Option<&Arc<Tracer>>) -> Arc<Tracer> {
        const MEMORY_MAX: usize = 64 << 20;
        let budget = Arc::new(Budget::new(MEMORY_MAX, 0));
        let prepared = PreparedTracer::new(Some(settings), earlier).unwrap().unwrap();
        prepared.start(&budget, MEMORY_MAX).unwrap()
    }

    /// The collector is never asked: nothing is sent.
    fn settings(sample: f64) -> TraceSettings {
        let endpoint = TraceEndpoint {
            tls: false,
            address: HostPort { host: Host::Name("collector.example".into()), port: 4318 },
            authority: "collector.example:4318".into(),
            path: "/v1/traces".into(),
        };
        TraceSettings {
            endpoint: Some(endpoint),
            sample,
            service_name: "edge".into(),
            ca: None,
            headers_file: None,
        }
    }

    #[test]
    fn a_trace_goes_on_or_begins_here() {
        let tracer = tracer(1.0);
        let parent = TraceParent { trace_id: [7; 16], span_id: [8; 8], is_sampled: true };
        let place = tracer.place(Some(parent), true);
        assert_eq!((place.own.trace_id, place.parent), ([7; 16], Some([8; 8])));
        assert_ne!(place.own.span_id, [8; 8]);
        let ids: HashSet<_> = (0..1000).map(|_| tracer.place(None, false).own.trace_id).collect();
        assert_eq!(ids.len(), 1000);
        assert_eq!(tracer.place(None, false).parent, None);
    }

    #[test]
    fn only_a_trusted_client_says_what_is_recorded() {
        for sample in [0.0, 1.0] {
            let tracer = tracer(sample);
            for is_sampled in [false, true] {
                let parent = Some(TraceParent { trace_id: [7; 16], span_id: [8; 8], is_sampled });
                assert_eq!(tracer.place(parent, true).own.is_sampled, is_sampled);
                assert_eq!(tracer.place(parent, false).own.is_sampled, sample > 0.5);
                assert_eq!(tracer.place(None, true).own.is_sampled, sample > 0.5);
            }
        }
    }

    #[test]
    fn without_a_collector_nothing_is_decided() {
        let settings = TraceSettings { endpoint: None, ..settings(0.0) };
        let tracer = next(&settings, None);
        for is_trusted in [false, true] {
            for is_sampled in [false, true] {
                let parent = Some(TraceParent { trace_id: [7; 16], span_id: [8; 8], is_sampled });
                assert_eq!(tracer.place(parent, is_trusted).own.is_sampled, is_sampled);
            }
            assert!(tracer.place(None, is_trusted).own.is_sampled);
        }
    }

    #[test]
    fn a_part_is_recorded() {
        let tracer = tracer(0.1);
        let recorded = (0..10_000).filter(|_| tracer.place(None, false).own.is_sampled).count();
        // Ten standard deviations of 30 from 1,000.
        assert!((700..1300).contains(&recorded), "{recorded}");
        assert!(is_sampled(1.0, [0xff; 8]) && !is_sampled(0.0, [0, 0, 0, 0, 0, 0, 0, 1]));
    }

    #[test]
    fn a_reload_that_changes_nothing_keeps_the_tracer() {
        let first = tracer(0.5);
        let same = next(&first.settings.clone(), Some(&first));
        assert!(Arc::ptr_eq(&first, &same));
        let other = TraceSettings { sample: 0.6, ..first.settings.clone() };
        let other = next(&other, Some(&first));
        assert!(!Arc::ptr_eq(&first, &other));
        assert!(PreparedTracer::new(None, Some(&first)).unwrap().is_none());
    }

    #[test]
    fn a_reload_replaces_a_tracer_whose_thread_has_ended() {
        let first = tracer(0.5);
        assert!(!first.has_died());
        // It says so itself when it panics.
        drop(exporter::EndsQueue(first.queue.clone().unwrap()));
        assert!(first.has_died());
        let next = next(&first.settings.clone(), Some(&first));
        assert!(!Arc::ptr_eq(&first, &next) && !next.has_died());
    }
}

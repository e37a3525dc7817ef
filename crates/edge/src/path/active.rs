//! An active connection: its edge, its handle in the event loop, and what is known of it.

use std::rc::Rc;

use eyelet_config::{Listener, ListenerKind};
use eyelet_engine::worker::Handle;
pub use eyelet_engine::worker::WaitError;
use eyelet_engine::worker::rates::HandshakeRates;
use eyelet_telemetry::info::ConnectionInfo;
use eyelet_telemetry::listing::State;
use eyelet_telemetry::reason::RateLimit;

use crate::snapshot::edge::Edge;

/// An active connection: its future moves its bytes.
pub struct Active<'a> {
    /// The edge of the worker it lives on.
    pub edge: &'a Rc<Edge>,
    /// Its handle in the event loop.
    pub handle: &'a Handle,
    /// Facts known of it.
    pub info: &'a mut ConnectionInfo,
}

impl<'a> Active<'a> {
    /// Lends it.
    pub fn reborrow(&mut self) -> Active<'_> {
        Active { edge: self.edge, handle: self.handle, info: self.info }
    }

    /// The listener that accepted it.
    pub fn listener(&self) -> &'a Listener {
        &self.edge.snapshot.config.listeners[usize::from(self.info.decided.listener)]
    }

    /// Notes what a list of connections shows of it.
    pub fn note_state(&self, state: State) {
        self.handle.note_state(state, self.info);
    }

    /// True if the client came without TLS. Asked where it is needed: kept over the waits of a
    /// connection it would make each task larger.
    pub fn is_plain(&self) -> bool {
        self.listener().kind == ListenerKind::Plain
    }

    /// Takes a token for a handshake.
    ///
    /// # Errors
    /// The rate that is reached.
    pub fn take_handshake(&self) -> Result<(), RateLimit> {
        let (rates, engine) = (self.edge.rates(), &self.edge.engine);
        // Most configurations have none.
        if rates == HandshakeRates::default() {
            return Ok(());
        }
        let taken =
            engine.process.handshakes.take(rates, self.info.client.ip(), engine.clock.steady_ns());
        taken.inspect_err(|rate| self.log_rate(*rate))
    }

    /// False where no rule ends TLS, because the listener's clients speak none.
    pub fn may_end_tls(&self) -> bool {
        !matches!(self.listener().kind, ListenerKind::Plain | ListenerKind::HttpRedirect)
    }

    /// True if the client's source has had all of its handshakes for now.
    pub fn has_spent_handshakes(&self) -> bool {
        let (rates, engine) = (self.edge.rates(), &self.edge.engine);
        let has_spent = rates.source.is_some() && {
            let now_ns = engine.clock.steady_ns();
            engine.process.handshakes.is_spent(rates, self.info.client.ip(), now_ns)
        };
        if has_spent {
            self.log_rate(RateLimit::Source);
        }
        has_spent
    }

    /// Says that handshakes are refused, unless that was said in the last minute.
    fn log_rate(&self, rate: RateLimit) {
        let engine = &self.edge.engine;
        if !engine.process.handshakes.is_news(rate, engine.clock.steady_ns()) {
            return;
        }
        let of = match rate {
            RateLimit::Process => String::new(),
            RateLimit::Source => format!(" by {}", self.info.client.ip()),
        };
        tracing::warn!(
            "handshakes are refused: {} is reached{of} (said once a minute at most; \
             connection_faults_total counts them)",
            rate.name()
        );
    }

    /// True if an alert means something to the client: it speaks TLS, and waits for nothing else.
    pub fn takes_alert(&self) -> bool {
        self.info.owes_answer.is_none() && !self.is_plain()
    }
}

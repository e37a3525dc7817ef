//! The times after which the exchanges of a connection are checked or given up.

use std::time::{Duration, Instant};

use eyelet_resting::timeout::RestTimeout;
use eyelet_telemetry::reason::{Reason, Shed};

use super::ServedConnection;
use crate::clock;

/// The time for which an exchange may hold memory that other connections need while its bodies do
/// not move.
const STALLED: Duration = Duration::from_secs(3);

impl ServedConnection {
    /// Returns how long an exchange waits for a byte of a body before it is checked.
    pub fn progress_wait(&self) -> Duration {
        self.http.shared.config.http.body_timeout.min(STALLED)
    }

    /// Returns how long nothing of an exchange may move.
    pub fn idle_max(&self, timeout: RestTimeout) -> Duration {
        let config = &self.http.shared.config;
        match timeout {
            RestTimeout::Body => config.http.body_timeout,
            RestTimeout::Upstream => config.http.upstream_timeout,
            RestTimeout::Hold(wait) => wait,
            RestTimeout::Idle => config.limits.idle_timeout,
        }
    }

    /// The reason to give up an exchange of which nothing has moved since then, if there is one.
    pub fn gives_up(&self, moved: Instant, timeout: RestTimeout) -> Option<Reason> {
        if clock::since(moved) >= self.idle_max(timeout) || self.http.engine.is_cutting() {
            return Some(Reason::Timeout(timeout.limit(), None));
        }
        self.http.engine.process.budget.is_filling(0).then_some(Reason::Shed(Shed::Stalled))
    }
}

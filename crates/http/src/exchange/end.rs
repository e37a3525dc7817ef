//! The result of an exchange: what becomes of its client's connection.

use super::find::Chosen;
use super::switched::Switched;

/// The result of an exchange.
#[derive(Default)]
pub struct ExchangeEnd {
    /// The upstream of a connection that has switched protocols.
    pub switched: Option<Switched>,
    /// The connection to the client is lost.
    pub client_lost: bool,
}

impl ExchangeEnd {
    /// A connection that has switched protocols counts at its upstream until it ends.
    pub(super) fn counted_at(mut self, at: Option<&Chosen>) -> Self {
        if let (Some(switched), Some(at)) = (&mut self.switched, at) {
            switched.count_at(&at.member.health.counters);
        }
        self
    }
}

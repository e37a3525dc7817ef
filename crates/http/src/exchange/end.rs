//! The result of an exchange: what becomes of its client's connection.

use std::rc::Rc;

use super::find::Chosen;
use super::resting::Resting;
use super::switched::Switched;
use eyelet_downstream::client::resting_stream::RestingStream;
use eyelet_downstream::connection::log_entry::RequestLogEntry;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_hold::HoldPlace;
use eyelet_telemetry::reason::Reason;

/// The result of an exchange.
#[derive(Default)]
pub struct ExchangeEnd {
    /// The upstream of a connection that has switched protocols.
    pub switched: Option<Switched>,
    /// The exchange has not ended: it rests. Boxed, because few do, and not often.
    pub resting: Option<Box<Resting>>,
    /// The request waits for a verdict, without a task. Boxed, as above.
    pub held: Option<Box<HeldRest>>,
    /// The connection to the client is lost.
    pub client_lost: bool,
    /// The reason for which the request was refused, if it was.
    pub refused: Option<Reason>,
    /// The server of the request, if another rule than the connection's took it.
    pub by_rule: Option<Rc<ServedConnection>>,
}

/// A request that waits for a verdict without a task.
pub enum HeldRest {
    /// Its connection of HTTP/1.1 is to be parked.
    Connection(HoldPlace),
    /// It rests with its connection of HTTP/2.
    Stream(RestingStream),
}

impl ExchangeEnd {
    /// True if its connection of HTTP/1.1 is to be parked.
    pub fn waits(&self) -> bool {
        self.resting.is_some() || self.held.is_some()
    }

    /// A connection that has switched protocols counts at its upstream until it ends, and an
    /// exchange that rests goes on to count.
    pub(super) fn counted_at(mut self, at: Option<Chosen>) -> Self {
        let Some(at) = at else { return self };
        if let Some(switched) = &mut self.switched {
            switched.count_at(&at.member.health.counters);
        }
        if let Some(resting) = &mut self.resting {
            resting.kept.open.push(at.open);
        }
        self
    }

    /// Ends the access line, unless the exchange rests and takes its facts along.
    pub(super) fn of(mut self, log_entry: &mut RequestLogEntry<'_>) -> Self {
        match &mut self.resting {
            Some(resting) => resting.facts = Some(log_entry.rest()),
            None => log_entry.end(),
        }
        self
    }
}

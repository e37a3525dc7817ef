//! Checks at the end of a run: what the peers heard, what was logged, and that nothing is left.

use eyelet_telemetry::info::Outcome;
use eyelet_telemetry::reason::{self, Limit, Reason};

use super::peer::{End, Peer};
use super::program::{Connection, LogEntry, Plan};
use crate::testing::tls::Said;

/// Beginnings of the reasons that the test suite's runs must reach.
pub const ENDS: &[&str] = &[
    "by rule",
    "client closed",
    "client closed before the hello",
    "client closed without close_notify",
    "client reset",
    "client sent alert",
    "client: ",
    "client closed during the wait for a verdict",
    "drained",
    "held, and refused",
    "hello_timeout",
    "idle_timeout",
    "shed: memory_max",
    "shed: memory_max, and what was sent was not taken",
    "shed: memory_max, idle for longest",
    "shed: memory_max, before a request",
    "shed: memory_max, before the hello",
    "shed: memory_max, during the wait for a verdict",
    "the second hello is for",
    "the server",
    "upstream closed",
    "upstream reset",
    "upstream: the name has no address",
];

/// The events that may happen in a run. A run with few such events tests more: more of its
/// connections must end complete.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub resets: bool,
    pub faults: bool,
    pub short_memory: bool,
    pub long_pauses: bool,
    pub drains: bool,
    pub stalls: bool,
    pub bulk: bool,
    pub hands_over: bool,
}

/// Panics unless the connection ended as it should.
pub fn check(index: usize, connection: &Connection, weather: &Weather) {
    let who = || format!("connection {index}: {connection:?}");
    let [entry] = &connection.log[..] else { panic!("not one log entry: {}", who()) };
    assert!(is_excused(entry, connection, weather), "no cause: {}", who());
    let client = &connection.client;
    let upstream = connection.upstream.as_ref();
    let heard_up =
        upstream.map_or(0, |upstream| upstream.heard.saturating_sub(connection.preface_bytes));
    let heard_down = if connection.expects_refusal() { 0 } else { client.heard };
    // No byte is invented.
    assert!(heard_up <= entry.bytes_to_upstream, "too much: {}", who());
    assert!(heard_down <= entry.bytes_to_client, "too much: {}", who());
    assert!(entry.bytes_to_upstream <= client.said, "too much: {}", who());
    assert!(entry.bytes_to_client <= upstream.map_or(0, |one| one.said), "too much: {}", who());
    // A peer that got a FIN or close_notify has received everything that was read for it.
    if got_all(client) {
        assert_eq!(heard_down, entry.bytes_to_client, "cut without a reset: {}", who());
    }
    if let Some(upstream) = upstream.filter(|upstream| got_all(upstream)) {
        let whole = connection.preface_bytes + entry.bytes_to_upstream;
        assert_eq!(upstream.heard, whole, "cut without a reset: {}", who());
    }
    if matches!(
        entry.reason,
        Reason::ClientClosed(None) | Reason::Truncated | Reason::UpstreamClosed
    ) {
        let has_gone = client.is_gone || upstream.is_some_and(|upstream| upstream.is_gone);
        assert!(has_gone || client.is_faulty || got_all(client), "not told: {}", who());
        assert!(has_gone || upstream.is_none_or(got_all), "not told: {}", who());
        if !client.is_faulty {
            assert_eq!(entry.bytes_to_upstream, client.said, "lost: {}", who());
        }
        assert_eq!(entry.bytes_to_client, upstream.map_or(0, |one| one.said), "lost: {}", who());
    }
    let mut peers = [Some(client), upstream].into_iter().flatten();
    assert!(peers.all(Peer::is_closed_by_edge), "still open: {}", who());
}

/// Panics if bytes that a peer has written stay in the edge, although the other peer reads.
pub fn check_settled(index: usize, connection: &Connection) {
    let Connection { client, upstream: Some(upstream), plan, .. } = connection else { return };
    let is_inspected = matches!(plan, Plan::Splice { inspect: Some(_) });
    if is_inspected || connection.is_stalled || !connection.log.is_empty() {
        return;
    }
    if client.has_written_all() && !upstream.is_gone {
        let whole = connection.preface_bytes + client.said;
        assert_eq!(upstream.heard, whole, "stays: connection {index}: {connection:?}");
    }
    if upstream.has_written_all() && !client.is_gone && !client.is_faulty {
        assert_eq!(client.heard, upstream.said, "stays: connection {index}: {connection:?}");
    }
}

fn got_all(peer: &Peer) -> bool {
    match peer.tls {
        Some(_) => peer.said_at_end() == Some(Said::CloseNotify),
        None => peer.end == Some(End::Fin),
    }
}

/// True if an event of the run explains this end.
fn is_excused(entry: &LogEntry, connection: &Connection, weather: &Weather) -> bool {
    let Connection { plan, client, upstream, .. } = connection;
    match &entry.reason {
        Reason::ClientClosed(None) | Reason::UpstreamClosed => true,
        Reason::Truncated => client.tls.is_some(),
        Reason::ClientReset(_) => client.is_gone,
        Reason::UpstreamReset => upstream.as_ref().is_some_and(|upstream| upstream.is_gone),
        Reason::Refused(_) => matches!(plan, Plan::Refuse),
        Reason::Held(_) => matches!(plan, Plan::Hold { allow: false }),
        Reason::NoAddress => !connection.is_reachable,
        Reason::Drained(_) => weather.drains,
        Reason::Timeout(Limit::Hello, _) | Reason::ClientClosed(Some(_)) => connection.peeks,
        Reason::Timeout(Limit::Idle, None) => weather.long_pauses || connection.is_stalled,
        Reason::Shed(_) => weather.short_memory,
        Reason::ClientAlert(_) => client.is_faulty,
        Reason::Record(_) | Reason::Io(reason::Peer::Client, _) => {
            client.is_faulty || client.is_gone
        }
        _ => matches!(plan, Plan::Splice { inspect: Some(_) }) && entry.outcome == Outcome::Refused,
    }
}

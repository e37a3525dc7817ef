//! The load of upstreams after an upgrade: connections that another process has dialled count here.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use eyelet_balance::group::Group;
use eyelet_http::RestingAt;
use eyelet_relay::{KeptExchanges, Relay};
use eyelet_sys::socket::local_address;
use eyelet_telemetry::info::{Decided, UpstreamName};
use eyelet_telemetry::upstream::{CountedAt, UpstreamCounters};

use crate::snapshot::Snapshot;

/// Counts a connection at its upstream, or each of its streams that rest at that of the stream, by
/// the rule of the same name. `upstreams` are their sockets, but for those of links. `None`: the
/// rule has no group, or none of it is known to have these addresses.
pub fn count(
    snapshot: &Snapshot,
    decided: &Decided,
    relay: &mut Relay,
    upstreams: &[BorrowedFd<'_>],
) -> Option<CountedAt> {
    let rule = decided.rule?;
    let named = (rule, decided.labels.rule(rule));
    let group = snapshot.names.upstreams.called(&snapshot.config.rules, named)?;
    // A spliced one has its address beside the fields that many share.
    let spliced = match relay {
        Relay::Splice(spliced) => spliced.upstream(),
        _ => None,
    };
    let own = spliced.or_else(|| decided.upstream.clone());
    let mut sockets = upstreams.iter();
    let flow = relay.flow();
    if let Some(state) = flow.state_mut() {
        let mut counters = Vec::new();
        eyelet_http::count_streams(state, |RestingAt { name, has_socket }| {
            let socket = if has_socket { sockets.next() } else { None };
            let dialled = name.map(UpstreamName::of).or_else(|| own.clone());
            let found = dialled.map(|dialled| counters_at(group, &dialled, socket));
            let before = counters.len();
            counters.extend(found.into_iter().flatten());
            u8::try_from(counters.len() - before).unwrap_or_default()
        });
        return CountedAt::taken_over(counters);
    }
    let is_on_link = match flow.resting() {
        Some(KeptExchanges::Exchange(form)) => eyelet_http::is_exchange(form, true),
        _ => false,
    };
    let socket = sockets.next();
    let counts = is_on_link || socket.is_some();
    let dialled = own.filter(|_| counts)?;
    CountedAt::taken_over(counters_at(group, &dialled, socket))
}

/// The counters of the upstream that was dialled so, and with its socket those of the address and
/// of the source, where these count. A link is not counted at its address: others share it.
fn counters_at(
    group: &Group,
    dialled: &UpstreamName,
    socket: Option<&BorrowedFd<'_>>,
) -> Vec<Arc<UpstreamCounters>> {
    let Some(member) = group.dialled_at(dialled) else { return Vec::new() };
    let Some(socket) = socket else { return member.counters(None) };
    let source = member.sources.some().and_then(|_| local_address(socket).ok());
    member.counters_of_moved(dialled, source.map(|source| source.ip()))
}

//! Shows the addresses that upstreams are dialled from, and how many of their ports are in use.

use std::collections::BTreeMap;

use eyelet_admin::metrics::{MetricKind, Metrics};
use eyelet_balance::table::Table;
use eyelet_edge::snapshot::Snapshot;
use serde_json::{Value, json};

/// Writes the metrics of local ports and source addresses.
pub fn write(metrics: &mut Metrics, snapshot: &Snapshot) {
    let upstreams = &snapshot.names.upstreams;
    let help = "Local ports for one source address and one upstream.";
    metrics.gauge("local_ports", help, upstreams.ports());
    let mut up = metrics.family(MetricKind::Gauge, "source_up", "1: it can be dialled from.");
    for (source, is_up) in states(upstreams) {
        up.sample(&[("source", &source)], u64::from(is_up));
    }
    let help = "Local ports of a source address in use to an upstream; without one, of any.";
    let mut used = metrics.family(MetricKind::Gauge, "source_ports_used", help);
    let mut all = in_use(upstreams);
    for (upstream, ports) in upstreams.members().flat_map(|member| member.ports_in_use()) {
        *all.entry((upstream.to_string(), String::new())).or_insert(0) += ports as usize;
    }
    for ((upstream, source), ports) in all {
        used.sample(&[("upstream", &upstream), ("source", &source)], ports);
    }
}

/// The source addresses as a document.
pub fn document(upstreams: &Table) -> Value {
    let states = states(upstreams);
    let used = in_use(upstreams).into_iter().map(|((upstream, source), used)| {
        let up = states.get(&source);
        json!({ "source": source, "upstream": upstream, "ports_used": used, "up": up })
    });
    used.collect()
}

/// Returns if each address could be dialled from at its last turn. One of several rules is up if it
/// is for all of them.
fn states(upstreams: &Table) -> BTreeMap<String, bool> {
    let mut states = BTreeMap::new();
    for (ip, is_faulty) in upstreams.members().flat_map(|member| member.sources.faulty()) {
        *states.entry(ip.to_string()).or_insert(true) &= !is_faulty;
    }
    states
}

/// The ports in use by upstream and source. Rules with different checks add up.
fn in_use(upstreams: &Table) -> BTreeMap<(String, String), usize> {
    let mut used = BTreeMap::new();
    for of in upstreams.members().flat_map(|member| member.sources.in_use()) {
        *used.entry((of.upstream.to_string(), of.source.to_string())).or_insert(0) += of.used;
    }
    used
}

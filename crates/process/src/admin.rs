//! The answers of the admin server. It reads the counts of workers and sources, on its own thread.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use eyelet_admin::metrics::{MetricKind, Metrics, Number};
use eyelet_admin::{
    AdminError, AdminServer, Answers, Document, History, LISTED_MAX, ObjectKind, Objects, SortKey,
    Sorted, Start, VerdictAsked, process, unix_seconds,
};
use eyelet_config::{Access, AdminSettings, LogFormat, RuleRef};
use eyelet_engine::listing::Connections;
use eyelet_engine::moving::batch::CONNECTION_DESCRIPTORS;
use eyelet_hold::Which;
use eyelet_memory::budget::Account;
use eyelet_telemetry::counters;
use eyelet_telemetry::held::HeldBy;
use eyelet_telemetry::listing::streams::StreamCounts;
use eyelet_telemetry::listing::{ConnectionKind, Filter, Listed, Slice, State};
use eyelet_telemetry::rule_hits::{RuleCount, RuleHits};
use eyelet_tls::tickets::{Now, TicketKeys};
use eyelet_tls::workload::SvidLack;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

use self::certificates::Soonest;
use crate::held;
use crate::lost_threads::lost;
use crate::predecessors::Predecessors;
use eyelet_edge::snapshot::Snapshot;
use eyelet_edge::snapshot::published::Published;

mod certificates;
mod sources;

/// The time that the list of what an upgrade leaves may take: an upgrade waits for it.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for which the allocator's free bytes are remembered. Counting them locks each arena,
/// and a worker that allocates then waits.
const UNUSED_TIME: Duration = Duration::from_mins(1);
/// Rules that `/metrics` names at most. `/rules` lists all.
const RULES_MAX: usize = 1_000;

/// The admin server of an edge, if its configuration has one.
pub struct AdminKeeper {
    server: Mutex<Option<AdminServer>>,
    answers: Arc<EdgeAnswers>,
    /// It outlives a server that is bound anew.
    history: Arc<History>,
}

impl AdminKeeper {
    /// Not open yet.
    pub fn new(
        published: &Arc<Published>,
        tickets: &Arc<TicketKeys>,
        connections: Connections,
        predecessors: &Arc<Predecessors>,
    ) -> Self {
        let answers = EdgeAnswers {
            // The access log ends with the last `Published`: the thread must not be who holds it.
            published: Arc::downgrade(published),
            tickets: tickets.clone(),
            is_draining: AtomicBool::new(false),
            connections,
            predecessors: predecessors.clone(),
            started: Instant::now(),
            started_unix: unix_seconds(),
            reloads: [AtomicU64::new(0), AtomicU64::new(0)],
            reloaded_unix_ms: AtomicU64::new(0),
            soonest: Mutex::default(),
            unused: Mutex::default(),
        };
        Self { server: Mutex::default(), answers: Arc::new(answers), history: Arc::default() }
    }

    /// Begins to answer, as the newest configuration says.
    pub fn open(&self, start: Start) -> Result<(), AdminError> {
        let snapshot = self.answers.snapshot();
        let settings = snapshot.as_ref().and_then(|snapshot| snapshot.config.admin.as_ref());
        *self.server.lock() = settings.map(|settings| self.start(settings, start)).transpose()?;
        Ok(())
    }

    /// Goes on by a new configuration.
    ///
    /// # Errors
    /// [`AdminError`]. Nothing has changed then.
    pub fn configure(&self, settings: Option<&AdminSettings>) -> Result<(), AdminError> {
        let mut server = self.server.lock();
        let kept = match (&mut *server, settings) {
            (Some(server), Some(settings)) => server.keeps(settings)?,
            (None, None) => true,
            _ => false,
        };
        if !kept {
            *server = settings.map(|settings| self.start(settings, Start::Alone)).transpose()?;
        }
        Ok(())
    }

    fn start(&self, settings: &AdminSettings, start: Start) -> Result<AdminServer, AdminError> {
        AdminServer::start(settings, self.answers.clone(), self.history.clone(), start)
    }

    /// Starts the server's thread again if it has ended, which only a failure causes.
    pub fn tend(&self) {
        if let Some(server) = &mut *self.server.lock() {
            server.tend();
        }
    }

    /// Answers nothing any more.
    pub fn close(&self) {
        *self.server.lock() = None;
    }

    /// From now on the process is not ready for new connections.
    pub fn note_draining(&self) {
        self.answers.is_draining.store(true, Relaxed);
    }

    /// The line on connections that go on here: its streams by kind, and its other connections
    /// where `[admin]` may list them. It is empty if no connection is open.
    pub async fn staying(&self) -> String {
        let mut others = BTreeMap::new();
        // `None`: others ask for too many lists. What is not listed in time is not named.
        let listed = self.answers.connections.ask(Filter::default(), None);
        let count = async {
            let mut slices = listed?;
            while let Some(slice) = slices.recv().await {
                for other in slice.listed.iter().filter_map(stays_as) {
                    *others.entry(other).or_insert(0_usize) += 1;
                }
            }
            Some(())
        };
        let _ = tokio::time::timeout(LIST_TIMEOUT, count).await;
        let counted = counters::snapshot();
        let (open, pid) =
            (counted.connections.saturating_sub(counted.lingering), std::process::id());
        if open == 0 {
            return String::new();
        }
        let streams = Some(counted.streams().to_string()).filter(|streams| !streams.is_empty());
        let others = others.iter().map(|(kind, count)| format!("{count} {kind}"));
        let kinds: Vec<_> = streams.into_iter().chain(others).collect();
        let colon = if kinds.is_empty() { "" } else { ": " };
        format!(
            "process {pid} goes on with {open} connections until they end or can move{colon}{}\n",
            kinds.join(", ")
        )
    }

    /// Counts a reload.
    pub fn note_reload(&self, is_served: bool) {
        self.answers.reloads[usize::from(is_served)].fetch_add(1, Relaxed);
        if is_served {
            let now_ms = (unix_seconds() * 1e3) as u64;
            self.answers.reloaded_unix_ms.store(now_ms, Relaxed);
        }
    }
}

/// Names a connection that stays. `None`: its streams are named.
fn stays_as(listed: &Listed) -> Option<&'static str> {
    match listed.kind {
        Some(ConnectionKind::Held) => Some("held"),
        Some(ConnectionKind::Spliced) => Some("spliced"),
        Some(ConnectionKind::Quic) => Some("flows of QUIC"),
        Some(ConnectionKind::Tcp) => Some("terminated to TCP"),
        Some(ConnectionKind::Originated) => Some("originated"),
        Some(
            ConnectionKind::Http1
            | ConnectionKind::Http2
            | ConnectionKind::WebSocket
            | ConnectionKind::Cleartext,
        ) => None,
        None => Some(match listed.state {
            State::Peeking => "before their hello",
            State::Deciding => "being decided",
            State::Handshaking => "in their handshake",
            State::Dialling => "dialling their upstream",
            State::Serving | State::Held | State::Moving | State::Parked => {
                "before their first request"
            }
        }),
    }
}

/// The bytes that were counted in the last [`UNUSED_TIME`], or what `count` finds now.
fn remembered(last: &mut Option<(Instant, usize)>, count: impl FnOnce() -> usize) -> usize {
    match *last {
        Some((counted, bytes)) if counted.elapsed() < UNUSED_TIME => bytes,
        _ => last.insert((Instant::now(), count())).1,
    }
}

/// Answers the server's questions.
struct EdgeAnswers {
    published: Weak<Published>,
    tickets: Arc<TicketKeys>,
    is_draining: AtomicBool,
    connections: Connections,
    predecessors: Arc<Predecessors>,
    started: Instant,
    started_unix: f64,
    /// Reloads that failed, and those that serve.
    reloads: [AtomicU64; 2],
    /// The time at which the last one served; 0: none has.
    reloaded_unix_ms: AtomicU64,
    /// The certificates that expire first, as they were found last.
    soonest: Mutex<Option<Arc<Soonest>>>,
    /// The allocator's free bytes, and when they were counted.
    unused: Mutex<Option<(Instant, usize)>>,
}

impl EdgeAnswers {
    fn snapshot(&self) -> Option<Arc<Snapshot>> {
        Some(self.published.upgrade()?.snapshot())
    }

    /// A drain ends them.
    fn lost_threads(&self) -> Vec<&'static str> {
        let snapshot = self.snapshot().filter(|_| !self.is_draining.load(Relaxed));
        snapshot
            .map_or_else(Vec::new, |snapshot| lost(&snapshot.http).map(|one| one.name).collect())
    }

    fn soonest(&self, snapshot: &Arc<Snapshot>) -> Arc<Soonest> {
        let mut soonest = self.soonest.lock();
        if let Some(one) = soonest.as_ref().filter(|one| one.is_new(snapshot.generation)) {
            return one.clone();
        }
        soonest.insert(Arc::new(Soonest::find(snapshot))).clone()
    }

    fn allocator_unused_bytes(&self) -> usize {
        let mut unused = self.unused.lock();
        remembered(&mut unused, eyelet_sys::memory::allocator_unused_bytes)
    }
}

impl Answers for EdgeAnswers {
    fn unready(&self) -> Option<&'static str> {
        if self.is_draining.load(Relaxed) {
            return Some("draining");
        }
        let snapshot = self.snapshot().filter(|snapshot| snapshot.config.spiffe.is_some())?;
        snapshot.tls.workload().certificates().err().map(|lack| match lack {
            SvidLack::NotSent => "the SPIFFE Workload API has sent no certificate",
            SvidLack::Expired => "the certificate of the SPIFFE Workload API has expired",
        })
    }

    fn metrics(&self, metrics: &mut Metrics) {
        let counted = counters::snapshot();
        process::write(metrics, &counted);
        let started = Number::Seconds(self.started_unix);
        metrics.gauge("start_time_seconds", "Start of the edge.", started);
        let mut reloads = metrics.family(MetricKind::Counter, "reloads", "Reloads, by result.");
        let [failed, served] = self.reloads.each_ref().map(|reloads| reloads.load(Relaxed));
        reloads.sample(&[("result", "failed")], failed);
        reloads.sample(&[("result", "served")], served);
        let reloaded_ms = self.reloaded_unix_ms.load(Relaxed);
        if reloaded_ms > 0 {
            let (help, seconds) = ("The last reload that serves.", reloaded_ms as f64 / 1e3);
            metrics.gauge("last_reload_timestamp_seconds", help, Number::Seconds(seconds));
        }
        let help = "Earlier processes that go on with connections that cannot move.";
        metrics.gauge("lingering_processes", help, self.predecessors.pids().len());
        let help =
            "Threads that have ended by an internal error, and that the edge serves without.";
        metrics.gauge("lost_threads", help, self.lost_threads().len());
        let start = self.tickets.period_start(Now::read());
        let help = "Start of the period whose key seals tickets.";
        metrics.gauge("ticket_key_period_start_timestamp_seconds", help, start);
        let Some(snapshot) = self.snapshot() else { return };
        let help = "The configuration's number.";
        metrics.gauge("configuration_generation", help, snapshot.generation);
        let help = "Connections that there is room for.";
        metrics.gauge("connections_max", help, snapshot.settings.connections_max);
        let help = "Connections that there is room for if each has an upstream.";
        metrics.gauge("connections_with_upstream_max", help, with_upstream_max(&snapshot));
        self.soonest(&snapshot).write(metrics);
        write_revocations(metrics, &snapshot);
        held::write(metrics, &snapshot.holds);
        write_memory(metrics, &snapshot);
        write_upstreams(metrics, &snapshot);
        sources::write(metrics, &snapshot);
        write_rules(metrics, &snapshot);
    }

    fn connections(&self, filter: Filter, ends: Option<usize>) -> Option<Receiver<Slice>> {
        self.connections.ask(filter, ends)
    }

    fn decide(&self, question: u64, verdict: VerdictAsked) -> Option<Result<String, String>> {
        let snapshot = self.snapshot()?;
        Some(held::decide(&snapshot.holds, Which::Id(question), verdict, HeldBy::Page))
    }

    fn document(&self, document: Document) -> Option<Value> {
        let snapshot = self.snapshot()?;
        Some(match document {
            Document::Status => self.status(&snapshot),
            Document::Held => held::document(&snapshot.holds),
            Document::BusiestRules => busiest_rules(&snapshot),
            Document::Memory => memory(&snapshot, self.allocator_unused_bytes()),
            Document::Upstreams => upstreams(&snapshot),
        })
    }

    fn objects(&self, of: ObjectKind, sorted: Option<Sorted>) -> Option<Objects> {
        let snapshot = self.snapshot()?;
        Some(match (of, sorted) {
            (ObjectKind::Rule, _) => rules(snapshot, sorted),
            (ObjectKind::Certificate, None) => certificates::all(snapshot),
            (ObjectKind::Certificate, Some(Sorted { limit, .. })) => {
                certificates::soonest(self.soonest(&snapshot), limit)
            }
        })
    }
}

impl EdgeAnswers {
    fn status(&self, snapshot: &Snapshot) -> Value {
        let counted = counters::snapshot();
        let addresses = self.published.upgrade().map(|published| published.listeners());
        let addresses = addresses.iter().flat_map(|all| all.iter());
        let addresses: Vec<String> = addresses.map(|one| one.address.to_string()).collect();
        let (settings, limits) = (&snapshot.settings, &snapshot.config.limits);
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "started_unix_seconds": self.started_unix,
            "uptime_seconds": self.started.elapsed().as_secs_f64(),
            "generation": snapshot.generation,
            "draining": self.is_draining.load(Relaxed),
            "access_log": match (&snapshot.config.log.access, snapshot.config.log.format) {
                (Access::Off, _) => "off",
                (_, LogFormat::Json) => "json",
                (_, LogFormat::Text) => "text",
            },
            "lost_threads": self.lost_threads(),
            "lingering": self.predecessors.pids(),
            "workers": self.published.upgrade().map(|published| published.workers()),
            "listeners": addresses,
            "connections": {
                "open": counted.connections,
                "parked": counted.parked,
                "accepted": counted.accepted,
            },
            "limits": {
                "connections_max": settings.connections_max,
                "connections_with_upstream_max": with_upstream_max(snapshot),
                "descriptors_max": settings.descriptors_max,
                "memory_max": limits.memory_max,
                "idle_timeout_seconds": settings.idle_timeout.as_secs_f64(),
                "drain_timeout_seconds": settings.drain_timeout.as_secs_f64(),
            },
        })
    }
}

/// Connections for which there are descriptors if each has an upstream.
fn with_upstream_max(snapshot: &Snapshot) -> usize {
    let settings = &snapshot.settings;
    (settings.descriptors_max / CONNECTION_DESCRIPTORS).min(settings.connections_max)
}

fn write_memory(metrics: &mut Metrics, snapshot: &Snapshot) {
    let mut kinds = metrics.family(MetricKind::Gauge, "memory_bytes", "User memory, by kind.");
    let (counted, rest) = memory_kinds(snapshot);
    for (kind, bytes) in counted.into_iter().chain([("program", rest)]) {
        kinds.sample(&[("kind", kind)], bytes);
    }
    let mut build = metrics.family(MetricKind::Gauge, "build_info", "The program.");
    build.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1_u64);
    let help = "What connections may count together.";
    metrics.gauge("memory_budget_bytes", help, snapshot.budget.bytes_max());
    let help = "What they count now, with what active ones reserve.";
    metrics.gauge("memory_budget_used_bytes", help, snapshot.budget.used());
}

/// All user memory: what is counted for connections by kind, and the rest, which is the program's
/// and what the allocator holds free.
fn memory_kinds(snapshot: &Snapshot) -> (Vec<(&'static str, usize)>, usize) {
    held_of(snapshot.budget.by_account().collect(), eyelet_sys::memory::anonymous_bytes())
}

/// Kinds in which bytes are counted before they are needed ([`eyelet_memory::budget`]), and coders,
/// whose tables are counted whole and touched as bodies need them.
const RESERVING: [&str; 3] = ["connections", "http", "compression"];

/// Sums up what is held by kind, and the rest of the process's memory. An active connection
/// reserves the most that it may need. The reserved bytes beyond the process' memory are held by
/// nobody.
fn held_of(
    mut kinds: Vec<(&'static str, usize)>,
    anonymous: usize,
) -> (Vec<(&'static str, usize)>, usize) {
    let counted: usize = kinds.iter().map(|(_, bytes)| bytes).sum();
    let mut over = counted.saturating_sub(anonymous);
    for (_, bytes) in kinds.iter_mut().filter(|(kind, _)| RESERVING.contains(kind)) {
        let unheld = over.min(*bytes);
        (*bytes, over) = (*bytes - unheld, over - unheld);
    }
    (kinds, anonymous.saturating_sub(counted))
}

/// Writes when the first revocation list expires, and how many certificates are on all of them.
fn write_revocations(metrics: &mut Metrics, snapshot: &Snapshot) {
    let known = snapshot.tls.revocations();
    let name = "revocation_list_soonest_expiry_timestamp_seconds";
    let help = "The first revocation list of clients expires.";
    let mut soonest = metrics.family(MetricKind::Gauge, name, help);
    if let Some((expiry, _)) = known {
        soonest.sample(&[], expiry);
    }
    let entries = known.map_or(0, |(_, entries)| entries);
    metrics.gauge("revoked_certificates", "Certificates on revocation lists.", entries);
}

fn write_upstreams(metrics: &mut Metrics, snapshot: &Snapshot) {
    let members = &snapshot.names.upstreams;
    let mut up = metrics.family(MetricKind::Gauge, "upstream_up", "1: the upstream is up.");
    let all = members.members().map(|member| (&*member.health.name, member.health.is_up()));
    for (name, is_up) in by_name(all) {
        up.sample(&[("upstream", name)], u64::from(is_up));
    }
    let help = "Connections and requests that are open at the upstream.";
    let mut open = metrics.family(MetricKind::Gauge, "upstream_connections", help);
    let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
    for member in members.members() {
        *by_name.entry(&member.health.name).or_default() +=
            member.health.counters.open.load(Relaxed);
    }
    for (name, count) in by_name {
        open.sample(&[("upstream", name)], count);
    }
}

/// Each name once, in alphabetical order: an upstream is a member for each check and each PROXY
/// header that it has, and is up if all of them are.
fn by_name<'a>(all: impl Iterator<Item = (&'a str, bool)>) -> BTreeMap<&'a str, bool> {
    let mut folded = BTreeMap::new();
    for (name, is_up) in all {
        *folded.entry(name).or_insert(true) &= is_up;
    }
    folded
}

/// Upstreams of a list, and those that are checked. One may be a member for each check that it has.
fn upstreams(snapshot: &Snapshot) -> Value {
    let members = snapshot.names.upstreams.members().map(|member| {
        let counters = &member.health.counters;
        json!({
            "upstream": member.health.name,
            "up": member.health.is_up(),
            "checked": member.check.is_some(),
            "open": counters.open.load(Relaxed),
            "chosen": counters.chosen.load(Relaxed),
            "failures": counters.failures.load(Relaxed),
            "check_failures": counters.check_failures.load(Relaxed),
            "downs": counters.downs.load(Relaxed),
        })
    });
    let sources = sources::document(&snapshot.names.upstreams);
    json!({ "upstreams": members.collect::<Vec<_>>(), "sources": sources })
}

fn write_rules(metrics: &mut Metrics, snapshot: &Snapshot) {
    let Some(hits) = &snapshot.hits else { return };
    let mut known = HashSet::new();
    let counts = snapshot.config.rules.iter().zip(hits.counts()).take(RULES_MAX);
    // Rules of one name have one sum.
    let counts: Vec<_> = counts.filter(|(rule, _)| known.insert(rule.name)).collect();
    let mut family = metrics.family(MetricKind::Counter, "rule_hits", "Connections by their rule.");
    for (rule, count) in &counts {
        family.sample(&[("rule", rule.name)], count.hits);
    }
    let help = "Requests that got 403 by rules on requests, by the rule.";
    let mut family = metrics.family(MetricKind::Counter, "rule_refused_requests", help);
    family.sample(&[("rule", "")], RuleHits::unruled_requests());
    for (rule, count) in counts.iter().filter(|(_, count)| count.refused_requests > 0) {
        family.sample(&[("rule", rule.name)], count.refused_requests);
    }
}

/// The rules in the order of the file, or a part of them by their hits.
fn rules(snapshot: Arc<Snapshot>, sorted: Option<Sorted>) -> Objects {
    let counts = match sorted {
        Some(sorted) => busiest(&snapshot, sorted),
        None => rule_counts(&snapshot).into_iter().enumerate().collect(),
    };
    let first = Some(("generation", json!(snapshot.generation)));
    let objects = counts
        .into_iter()
        .filter_map(move |(index, count)| Some(rule_of(&snapshot.config.rules.get(index)?, count)));
    Objects { first, name: "rules", objects: Box::new(objects) }
}

fn rule_counts(snapshot: &Snapshot) -> Vec<RuleCount> {
    snapshot.hits.as_ref().map(|hits| hits.counts()).unwrap_or_default()
}

/// The rules with the most hits, or those that were hit last, by their indexes. Those of one name
/// have one sum, and are there once.
fn busiest(snapshot: &Snapshot, sorted: Sorted) -> Vec<(usize, RuleCount)> {
    let mut counts: Vec<_> = rule_counts(snapshot).into_iter().enumerate().collect();
    counts.sort_by_key(|(_, count)| match sorted.by {
        SortKey::LastHit => Reverse((count.last_unix_ms, count.hits)),
        SortKey::Hits | SortKey::Expiry => Reverse((count.hits, count.last_unix_ms)),
    });
    let mut known = HashSet::new();
    let is_first = |(index, _): &(usize, RuleCount)| {
        snapshot.config.rules.get(*index).is_some_and(|rule| known.insert(rule.name))
    };
    counts.into_iter().filter(is_first).take(sorted.limit).collect()
}

fn rule_of(rule: &RuleRef<'_>, count: RuleCount) -> Value {
    let last = (count.hits > 0).then_some(count.last_unix_ms as f64 / 1e3);
    json!({
        "rule": rule.name,
        "action": rule.action.name(),
        "hits": count.hits,
        "last_hit_unix_seconds": last,
        "refused_requests": count.refused_requests,
    })
}

/// Makes objects for those only that are shown: there may be many thousand rules.
fn busiest_rules(snapshot: &Snapshot) -> Value {
    let counts = rule_counts(snapshot);
    let never_hit = counts.iter().filter(|count| count.hits == 0).count();
    let sorted = Sorted { by: SortKey::Hits, limit: LISTED_MAX };
    let listed = busiest(snapshot, sorted).into_iter();
    let listed: Vec<Value> = listed
        .filter_map(|(index, count)| Some(rule_of(&snapshot.config.rules.get(index)?, count)))
        .collect();
    json!({ "all": counts.len(), "never_hit": never_hit, "listed": listed })
}

fn memory(snapshot: &Snapshot, unused: usize) -> Value {
    let (held, held_bytes) = snapshot.holds.held();
    let (mut kinds, rest) = memory_kinds(snapshot);
    // Pages of free blocks may have gone back to the kernel: the rest bounds them.
    let unused = unused.min(rest);
    kinds.extend([("allocator", unused), ("program", rest - unused)]);
    let (sum, counted) =
        (kinds.iter().map(|(_, bytes)| bytes).sum::<usize>(), counters::snapshot());
    let kinds: serde_json::Map<String, Value> =
        kinds.into_iter().map(|(kind, bytes)| (kind.into(), bytes.into())).collect();
    let budget = &snapshot.budget;
    json!({
        "kinds": kinds,
        "accounted_bytes": sum,
        "kernel_bytes": eyelet_sys::memory::kernel_bytes(),
        "held": {
            "bytes": held_bytes,
            "questions": snapshot.holds.open().len(),
            "waiting": held,
        },
        "resting": {
            "bytes": counted.resting_bytes,
            "connections": counted.resting_connections,
            "streams": StreamCounts::from(counted.resting_streams),
        },
        "flows": { "bytes": budget.used_by(Account::Flows), "flows": counted.flows },
        "budget": {
            "memory_max": snapshot.config.limits.memory_max,
            "connections_bytes_max": budget.bytes_max(),
            "connections_bytes": budget.used(),
            "connections_bytes_peak": budget.peak(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocator_is_asked_once_in_a_while() {
        let mut last = None;
        assert_eq!([1, 2].map(|bytes| remembered(&mut last, || bytes)), [1, 1]);
        last = last.and_then(|(at, bytes)| Some((at.checked_sub(UNUSED_TIME)?, bytes)));
        assert_eq!(remembered(&mut last, || 3), 3);
    }

    #[test]
    fn what_is_reserved_and_not_held_is_in_no_kind() {
        let counted = |connections, http| {
            vec![("connections", connections), ("received", 50), ("http", http)]
        };
        for (anonymous, held, rest) in [
            (1_000, counted(500, 300), 150),
            (850, counted(500, 300), 0),
            (600, counted(250, 300), 0),
            (200, counted(0, 150), 0),
            (40, counted(0, 0), 0),
        ] {
            assert_eq!(held_of(counted(500, 300), anonymous), (held, rest), "{anonymous}");
        }
    }

    #[test]
    fn an_upstream_is_shown_once_and_is_up_if_all_of_it_is() {
        let all = [("b", true), ("a", true), ("b", false), ("b", true), ("a", true)];
        assert_eq!(by_name(all.into_iter()), [("a", true), ("b", false)].into());
    }
}

//! What the admin server answers: it reads what workers and sources count, on its own thread.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use eyelet_acme::Known;
use eyelet_admin::metrics::{MetricKind, Metrics, Number};
use eyelet_admin::{
    AdminError, AdminServer, Answers, Document, History, LISTED_MAX, ObjectKind, Objects,
    SOONEST_MAX, SortKey, Sorted, Start, process,
};
use eyelet_config::certificate::Description;
use eyelet_config::{Access, Action, AdminSettings, LogFormat, RuleRef};
use eyelet_engine::listing::Connections;
use eyelet_telemetry::counters;
use eyelet_telemetry::listing::{Filter, Slice};
use eyelet_telemetry::rule_hits::RuleCount;
use eyelet_tls::certificates::Described;
use eyelet_tls::tickets::{Now, TicketKeys};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

use crate::published::Published;
use crate::snapshot::Snapshot;

/// How long the soonest expiries are remembered: finding them looks at every certificate.
const EXPIRY_TIME: Duration = Duration::from_mins(1);
/// How long the allocator's free bytes are remembered: to count them locks each arena, so that a
/// worker that allocates may wait for as long as the largest heap takes.
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
    ) -> Self {
        let answers = EdgeAnswers {
            // The access log ends with the last `Published`: the thread must not be who holds it.
            published: Arc::downgrade(published),
            tickets: tickets.clone(),
            is_draining: AtomicBool::new(false),
            connections,
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
    ///
    /// # Errors
    /// [`AdminError`].
    pub fn open(&self, start: Start) -> Result<(), AdminError> {
        let snapshot = self.answers.snapshot();
        let settings = snapshot.as_ref().and_then(|snapshot| snapshot.config.admin.as_ref());
        let (answers, history) = (self.answers.clone(), self.history.clone());
        let server = settings.map(|settings| AdminServer::start(settings, answers, history, start));
        *self.server() = server.transpose()?;
        Ok(())
    }

    /// Goes on by a new configuration.
    ///
    /// # Errors
    /// [`AdminError`]. Nothing has changed then.
    pub fn configure(&self, settings: Option<&AdminSettings>) -> Result<(), AdminError> {
        let mut server = self.server();
        let kept = match (&mut *server, settings) {
            (Some(server), Some(settings)) => server.keeps(settings)?,
            (None, None) => true,
            _ => false,
        };
        if !kept {
            let (answers, history) = (self.answers.clone(), self.history.clone());
            let start = |settings| AdminServer::start(settings, answers, history, Start::Alone);
            *server = settings.map(start).transpose()?;
        }
        Ok(())
    }

    /// Answers nothing any more.
    pub fn close(&self) {
        *self.server() = None;
    }

    /// From now on the process is not ready for new connections.
    pub fn note_draining(&self) {
        self.answers.is_draining.store(true, Relaxed);
    }

    /// Counts a reload.
    pub fn note_reload(&self, is_served: bool) {
        self.answers.reloads[usize::from(is_served)].fetch_add(1, Relaxed);
        if is_served {
            let now_ms = (unix_seconds() * 1e3) as u64;
            self.answers.reloaded_unix_ms.store(now_ms, Relaxed);
        }
    }

    fn server(&self) -> MutexGuard<'_, Option<AdminServer>> {
        // A poisoned lock still holds a whole value.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unix_seconds() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
}

/// The bytes that were counted in the last [`UNUSED_TIME`], or what `count` finds now.
fn remembered(last: &mut Option<(Instant, usize)>, count: impl FnOnce() -> usize) -> usize {
    match *last {
        Some((counted, bytes)) if counted.elapsed() < UNUSED_TIME => bytes,
        _ => last.insert((Instant::now(), count())).1,
    }
}

/// What the server asks.
struct EdgeAnswers {
    published: Weak<Published>,
    tickets: Arc<TicketKeys>,
    is_draining: AtomicBool,
    connections: Connections,
    started: Instant,
    started_unix: f64,
    /// Reloads that failed, and those that serve.
    reloads: [AtomicU64; 2],
    /// When the last one served; 0: none has.
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

    fn soonest(&self, snapshot: &Arc<Snapshot>) -> Arc<Soonest> {
        let mut soonest = self.soonest.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = snapshot.generation;
        let is_new =
            |one: &&Arc<Soonest>| one.generation == generation && one.at.elapsed() < EXPIRY_TIME;
        if let Some(one) = soonest.as_ref().filter(is_new) {
            return one.clone();
        }
        let (mut count, mut unusable) = (0, 0);
        let all = expiries(snapshot).inspect(|(expiry, of)| {
            count += 1;
            unusable += usize::from(expiry.is_none() && !of.is_asked_in_vain());
        });
        let found = first(all).into_iter();
        let certificates = found.filter_map(|(expiry, of)| Some((expiry, describe(snapshot, of)?)));
        let certificates = certificates.collect();
        let at = Instant::now();
        soonest.insert(Arc::new(Soonest { at, generation, count, unusable, certificates })).clone()
    }

    fn allocator_unused_bytes(&self) -> usize {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        remembered(&mut unused, eyelet_sys::memory::allocator_unused_bytes)
    }
}

impl Answers for EdgeAnswers {
    fn is_ready(&self) -> bool {
        !self.is_draining.load(Relaxed)
    }

    fn metrics(&self, metrics: &mut Metrics) {
        let counted = counters::snapshot();
        process::write(metrics, &counted);
        metrics.gauge(
            "start_time_seconds",
            "Start of the edge.",
            Number::Seconds(self.started_unix),
        );
        let mut reloads = metrics.family(MetricKind::Counter, "reloads", "Reloads, by result.");
        let [failed, served] = self.reloads.each_ref().map(|reloads| reloads.load(Relaxed));
        reloads.sample(&[("result", "failed")], failed);
        reloads.sample(&[("result", "served")], served);
        let reloaded_ms = self.reloaded_unix_ms.load(Relaxed);
        if reloaded_ms > 0 {
            let (help, seconds) = ("The last reload that serves.", reloaded_ms as f64 / 1e3);
            metrics.gauge("last_reload_timestamp_seconds", help, Number::Seconds(seconds));
        }
        let start = self.tickets.period_start(Now::read());
        let help = "Start of the period whose key seals tickets.";
        metrics.gauge("ticket_key_period_start_timestamp_seconds", help, start);
        let Some(snapshot) = self.snapshot() else { return };
        metrics.gauge(
            "configuration_generation",
            "The configuration's number.",
            snapshot.generation,
        );
        write_certificates(metrics, &self.soonest(&snapshot));
        write_memory(metrics, &snapshot);
        write_upstreams(metrics, &snapshot);
        write_rules(metrics, &snapshot);
    }

    fn connections(&self, filter: Filter, ends: bool) -> Option<Receiver<Slice>> {
        self.connections.ask(filter, ends)
    }

    fn document(&self, document: Document) -> Option<Value> {
        let snapshot = self.snapshot()?;
        Some(match document {
            Document::Status => self.status(&snapshot),
            Document::BusiestRules => busiest_rules(&snapshot),
            Document::Memory => memory(&snapshot, self.allocator_unused_bytes()),
            Document::Upstreams => upstreams(&snapshot),
        })
    }

    fn objects(&self, of: ObjectKind, sorted: Option<Sorted>) -> Option<Objects> {
        let snapshot = self.snapshot()?;
        Some(match (of, sorted) {
            (ObjectKind::Rule, _) => rules(snapshot, sorted),
            (ObjectKind::Certificate, None) => certificates(None, described(snapshot)),
            (ObjectKind::Certificate, Some(Sorted { limit, .. })) => {
                let soonest = self.soonest(&snapshot);
                let all = Some(("all", json!(soonest.count)));
                let few = few_of(&soonest.certificates, limit);
                certificates(
                    all,
                    few.filter_map(move |at| Some(soonest.certificates.get(at)?.1.clone())),
                )
            }
        })
    }
}

impl EdgeAnswers {
    fn status(&self, snapshot: &Snapshot) -> Value {
        let counted = counters::snapshot();
        let addresses = self.published.upgrade().map(|published| published.listeners());
        let addresses: Vec<String> = addresses
            .iter()
            .flat_map(|all| all.iter())
            .map(|one| one.address.to_string())
            .collect();
        let (settings, limits) = (&snapshot.settings, &snapshot.config.limits);
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "started_unix_seconds": self.started_unix,
            "uptime_seconds": self.started.elapsed().as_secs_f64(),
            "generation": snapshot.generation,
            "draining": !self.is_ready(),
            "access_log": match (&snapshot.config.log.access, snapshot.config.log.format) {
                (Access::Off, _) => "off",
                (_, LogFormat::Json) => "json",
                (_, LogFormat::Text) => "text",
            },
            "workers": self.published.upgrade().map(|published| published.workers()),
            "listeners": addresses,
            "connections": {
                "open": counted.connections,
                "parked": counted.parked,
                "accepted": counted.accepted,
            },
            "limits": {
                "connections_max": settings.connections_max,
                "descriptors_max": settings.descriptors_max,
                "memory_max": limits.memory_max,
                "idle_timeout_seconds": settings.idle_timeout.as_secs_f64(),
                "drain_timeout_seconds": settings.drain_timeout.as_secs_f64(),
            },
        })
    }
}

fn write_certificates(metrics: &mut Metrics, soonest: &Soonest) {
    if let Some(expiry) = soonest.certificates.iter().find_map(|(expiry, _)| *expiry) {
        let help = "When the first certificate that is served expires.";
        let name = "certificate_soonest_expiry_timestamp_seconds";
        metrics.gauge(name, help, Number::Seconds(expiry as f64));
    }
    let help = "Certificates that cannot be used.";
    metrics.gauge("unusable_certificates", help, soonest.unusable);
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

/// What is held of what is counted, and the rest of the process's memory. An active connection
/// reserves the most that it may need: where that is more than the process has, the difference is
/// held by nobody.
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

fn write_upstreams(metrics: &mut Metrics, snapshot: &Snapshot) {
    let members = &snapshot.names.upstreams;
    let mut up = metrics.family(MetricKind::Gauge, "upstream_up", "1: the upstream is up.");
    let all = members.members().map(|member| (&*member.health.name, member.health.is_up()));
    for (name, is_up) in by_name(all) {
        up.sample(&[("upstream", name)], u64::from(is_up));
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
    json!({ "upstreams": members.collect::<Vec<_>>() })
}

fn write_rules(metrics: &mut Metrics, snapshot: &Snapshot) {
    let Some(hits) = &snapshot.hits else { return };
    let mut family = metrics.family(MetricKind::Counter, "rule_hits", "Connections by their rule.");
    let mut known = HashSet::new();
    for (rule, count) in snapshot.config.rules.iter().zip(hits.counts()).take(RULES_MAX) {
        // Rules of one name have one sum.
        if known.insert(rule.name) {
            family.sample(&[("rule", rule.name)], count.hits);
        }
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
    let action = match rule.action {
        Action::Originate(_) => "originate",
        Action::Splice(_) => "splice",
        Action::Terminate(_) => "terminate",
        Action::Refuse(_) => "refuse",
    };
    let last = (count.hits > 0).then_some(count.last_unix_ms as f64 / 1e3);
    json!({
        "rule": rule.name,
        "action": action,
        "hits": count.hits,
        "last_hit_unix_seconds": last,
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

/// A certificate: its source, where it is from, and what it says.
type Origin = (&'static str, String, Result<Description, String>);

/// When a certificate expires, in seconds since 1970, and the certificate. `None`: it cannot be
/// read.
type Expiring = (Option<i64>, Origin);

/// The certificates that expire first, as they were found.
struct Soonest {
    at: Instant,
    /// The configuration that they are of.
    generation: u64,
    /// How many certificates there are in all.
    count: usize,
    /// How many of them cannot be used.
    unusable: usize,
    /// Those of [`first`].
    certificates: Vec<Expiring>,
}

/// [`SOONEST_MAX`] that cannot be read, and behind them as many that expire first, in order: those
/// do not hide these from `/metrics`. Three times [`SOONEST_MAX`] are held at a time.
fn first<T>(all: impl Iterator<Item = (Option<i64>, T)>) -> Vec<(Option<i64>, T)> {
    let (mut kept, mut readable) = (Vec::new(), Vec::new());
    let trim = |readable: &mut Vec<(Option<i64>, T)>| {
        readable.sort_by_key(|(expiry, _)| *expiry);
        readable.truncate(SOONEST_MAX);
    };
    for one in all {
        match one.0 {
            None if kept.len() < SOONEST_MAX => kept.push(one),
            None => {}
            Some(_) => readable.push(one),
        }
        if readable.len() == 2 * SOONEST_MAX {
            trim(&mut readable);
        }
    }
    trim(&mut readable);
    kept.append(&mut readable);
    kept
}

/// So many of [`first`]: those that cannot be read leave half of the places to those that expire.
fn few_of(soonest: &[Expiring], limit: usize) -> impl Iterator<Item = usize> + use<> {
    let unreadable = soonest.partition_point(|(expiry, _)| expiry.is_none());
    let readable = (soonest.len() - unreadable).min(limit / 2);
    let kept = unreadable.min(limit - readable);
    (0..kept).chain((unreadable..soonest.len()).take(limit - kept))
}

/// Each certificate that is served. It is read when it is asked for. Those that the local authority
/// signs are not among them: each is signed anew before its end, so that the end of the authority
/// is the only one to look out for.
fn described(snapshot: Arc<Snapshot>) -> impl Iterator<Item = Origin> + Send {
    let acme = snapshot.acme.all().into_iter().map(issued);
    let local = authority(&snapshot);
    let sets = 0..snapshot.config.rules.certificates_len() as u32;
    let files = sets.flat_map(move |set| snapshot.tls.describe_set(&snapshot.config.rules, set));
    local.into_iter().chain(files.map(from_file)).chain(acme)
}

fn authority(snapshot: &Snapshot) -> Option<Origin> {
    let (file, described) = snapshot.tls.describe_local()?;
    Some(("local", file.display().to_string(), described.ok_or("unreadable".into())))
}

fn from_file((files, described): Described) -> Origin {
    ("file", files.certificate.display().to_string(), described.map_err(|why| why.to_string()))
}

fn issued(known: Known) -> Origin {
    let described = match known.served {
        Ok(served) => served.first().and_then(|leaf| leaf.describe()).ok_or("unreadable".into()),
        Err(lack) => Err(lack.to_string()),
    };
    ("acme", known.name.into(), described)
}

/// A certificate that is not described yet.
enum Undescribed {
    Authority,
    File { set: u32, index: usize },
    Issued(Known),
}

impl Undescribed {
    /// Strangers choose such names, so an operator is not told of them by a metric.
    fn is_asked_in_vain(&self) -> bool {
        matches!(self, Self::Issued(Known { served: Err(_), is_asked: true, .. }))
    }
}

/// Those of [`described`], with the time when each expires. `None`: it cannot be used.
fn expiries(snapshot: &Snapshot) -> impl Iterator<Item = (Option<i64>, Undescribed)> + '_ {
    let acme = snapshot.acme.all().into_iter().map(|known| {
        let leaf = known.served.as_ref().ok().and_then(|served| served.first());
        (leaf.and_then(|leaf| leaf.expiry()), Undescribed::Issued(known))
    });
    let local = authority(snapshot).map(|(_, _, described)| {
        (described.ok().map(|described| described.not_after), Undescribed::Authority)
    });
    let rules = &snapshot.config.rules;
    let files = (0..rules.certificates_len() as u32).flat_map(move |set| {
        let all = snapshot.tls.expiries(rules, set).into_iter().enumerate();
        all.map(move |(index, expiry)| (expiry, Undescribed::File { set, index }))
    });
    local.into_iter().chain(files).chain(acme)
}

fn describe(snapshot: &Snapshot, of: Undescribed) -> Option<Origin> {
    match of {
        Undescribed::Authority => authority(snapshot),
        Undescribed::File { set, index } => {
            let all = snapshot.tls.describe_set(&snapshot.config.rules, set);
            all.into_iter().nth(index).map(from_file)
        }
        Undescribed::Issued(known) => Some(issued(known)),
    }
}

fn certificates(
    first: Option<(&'static str, Value)>,
    all: impl Iterator<Item = Origin> + Send + 'static,
) -> Objects {
    let objects = all.map(|(source, from, described)| match described {
        Ok(description) => json!({
            "source": source,
            "from": from,
            "names": description.names,
            "not_before_unix_seconds": description.not_before,
            "not_after_unix_seconds": description.not_after,
        }),
        Err(why) => json!({ "source": source, "from": from, "error": why }),
    });
    Objects { first, name: "certificates", objects: Box::new(objects) }
}

fn memory(snapshot: &Snapshot, unused: usize) -> Value {
    let (mut kinds, rest) = memory_kinds(snapshot);
    // Pages of free blocks may have gone back to the kernel: the rest bounds them.
    let unused = unused.min(rest);
    kinds.extend([("allocator", unused), ("program", rest - unused)]);
    let sum: usize = kinds.iter().map(|(_, bytes)| bytes).sum();
    let kinds: serde_json::Map<String, Value> =
        kinds.into_iter().map(|(kind, bytes)| (kind.into(), bytes.into())).collect();
    let budget = &snapshot.budget;
    json!({
        "kinds": kinds,
        "accounted_bytes": sum,
        "kernel_bytes": eyelet_sys::memory::kernel_bytes(),
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
    fn those_that_expire_first_are_kept() {
        let one =
            |expiry: Option<i64>| (expiry, ("file", format!("{expiry:?}.pem"), Err(String::new())));
        // 1,000 different ones, in no order.
        let all = (0..1_000).map(|n| one(Some(n * 617 % 1_009)));
        let mut expected: Vec<Option<i64>> = all.clone().map(|(expiry, _)| expiry).collect();
        expected.sort_unstable();
        expected.truncate(SOONEST_MAX);
        let expiries = |kept: Vec<Expiring>| -> Vec<Option<i64>> {
            kept.into_iter().map(|(expiry, _)| expiry).collect()
        };
        assert_eq!(expiries(first(all.clone())), expected);
        assert_eq!(first([one(Some(7))].into_iter()).len(), 1);
        // Those that cannot be read are before them, and hide none of them.
        let unreadable = vec![None; SOONEST_MAX];
        let both = all.chain((0..=SOONEST_MAX).map(|_| one(None)));
        assert_eq!(expiries(first(both)), [unreadable, expected].concat());
    }

    #[test]
    fn those_that_cannot_be_read_hide_none_that_expires() {
        let one = |expiry: Option<i64>| (expiry, ("file", String::new(), Err(String::new())));
        for (unreadable, readable, limit, expected) in [
            (100, 100, 50, (25, 25)),
            (100, 1, 50, (49, 1)),
            (2, 100, 50, (2, 48)),
            (0, 100, 50, (0, 50)),
            (100, 0, 50, (50, 0)),
            (2, 3, 50, (2, 3)),
            (1, 1, 1, (1, 0)),
            (1, 1, 0, (0, 0)),
        ] {
            let broken = (0..unreadable).map(|_| one(None));
            let all: Vec<Expiring> = broken.chain((0..readable).map(|at| one(Some(at)))).collect();
            let kept: Vec<Option<i64>> = few_of(&all, limit).map(|at| all[at].0).collect();
            let count = |is_read| kept.iter().filter(|one| one.is_some() == is_read).count();
            assert_eq!((count(false), count(true)), expected, "{unreadable} {readable} {limit}");
            // The first of them, in order.
            let first = (0..expected.1 as i64).map(Some);
            assert!(kept.into_iter().filter(Option::is_some).eq(first));
        }
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

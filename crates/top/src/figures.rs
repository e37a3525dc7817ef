//! One look at the edge: its documents, and rates since an earlier look.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::metrics::MetricsText;
use crate::source::{AdminSource, SourceError};

/// Rates over less than this are noise.
const RATE_TIME_MIN: Duration = Duration::from_millis(500);
/// A certificate that expires sooner is a warning, in seconds: two weeks. For one that lives less
/// than six weeks it is the last third: it should have been renewed by then.
const EXPIRY_WARNING: f64 = 14.0 * 86_400.0;
/// The time for which certificates are remembered: the edge looks for them once a minute, too.
const CERTIFICATES_TIME: Duration = Duration::from_mins(1);
/// Rules that were hit last, and certificates that expire first: as many as the edge sorts. A rule
/// that is busy now was hit just now. One that was busy once may have more hits.
const RULES: &str = "/rules?sort=last_hit&limit=1000";
const CERTIFICATES: &str = "/certificates?sort=expiry&limit=100";

/// The order of connections: the edge can sort by two things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortOrder {
    /// The oldest first.
    Age,
    /// Those with most bytes first.
    Bytes,
}

impl SortOrder {
    /// Returns the admin server's name of it.
    pub fn key(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Bytes => "bytes",
        }
    }

    /// The other one.
    pub fn next(self) -> Self {
        match self {
            Self::Age => Self::Bytes,
            Self::Bytes => Self::Age,
        }
    }
}

/// The edge's figures of itself.
#[derive(Clone, Debug)]
pub struct Figures {
    /// `/status`.
    pub status: Value,
    /// `/metrics`.
    pub metrics: MetricsText,
    /// `/rules`, those that were hit last first.
    pub rules: Vec<RuleRow>,
    /// Those that cannot be read, then the soonest first.
    pub expiries: Vec<Expiry>,
    /// `/memory`.
    pub memory: Value,
    /// `/connections`, sorted by the edge.
    pub connections: Vec<Value>,
    /// The newest lines of the access log, the oldest first.
    pub log: Vec<String>,
    at: Instant,
    certificates_at: Instant,
    base: Option<Base>,
}

/// The expiry of a certificate.
#[derive(Clone, Debug)]
pub struct Expiry {
    /// Its first name, or where it is from.
    pub name: String,
    /// In seconds of Unix time. `None`: it cannot be read.
    pub after: Option<f64>,
    /// The part of its life from which on it is a warning, in seconds.
    pub warning: f64,
}

#[derive(Clone, Debug)]
pub struct RuleRow {
    pub name: String,
    /// The action of the rule.
    pub action: String,
    /// Connections that it decided.
    pub hits: f64,
}

/// The counters of the earlier look.
#[derive(Clone, Debug)]
struct Base {
    at: Instant,
    metrics: MetricsText,
    hits: BTreeMap<String, f64>,
}

impl Figures {
    /// Asks for all documents. `earlier` is what was known before.
    pub fn ask(
        source: &AdminSource,
        order: SortOrder,
        limit: usize,
        earlier: Option<&Self>,
    ) -> Result<Self, SourceError> {
        let at = Instant::now();
        let status = json("/status", &source.get("/status")?)?;
        let metrics = source.get("/metrics")?;
        let list = format!("/connections?sort={}&limit={limit}", order.key());
        let connections = json("/connections", &source.exchange("/connections", &list)?)?;
        let remembered = earlier.filter(|one| at - one.certificates_at < CERTIFICATES_TIME);
        let (expiries, certificates_at) = match remembered {
            Some(earlier) => (earlier.expiries.clone(), earlier.certificates_at),
            None => {
                let soonest = source.exchange("/certificates", CERTIFICATES)?;
                (expiries(&json("/certificates", &soonest)?), at)
            }
        };
        let mut figures = Self {
            rules: rules(&json("/rules", &source.exchange("/rules", RULES)?)?),
            memory: json("/memory", &source.get("/memory")?)?,
            metrics: MetricsText::parse(&String::from_utf8_lossy(&metrics)),
            connections: connections.as_array().cloned().unwrap_or_default(),
            log: Vec::new(),
            base: None,
            status,
            expiries,
            certificates_at,
            at,
        };
        figures.base = earlier.and_then(|earlier| figures.base_of(earlier));
        Ok(figures)
    }

    /// Counters to compare with: none of another process, whose counters began at 0.
    fn base_of(&self, earlier: &Self) -> Option<Base> {
        if earlier.status["pid"] != self.status["pid"] {
            return None;
        }
        if self.at - earlier.at < RATE_TIME_MIN {
            return earlier.base.clone();
        }
        let hits = earlier.rules.iter().map(|rule| (rule.name.clone(), rule.hits));
        Some(Base { at: earlier.at, metrics: earlier.metrics.clone(), hits: hits.collect() })
    }

    fn seconds(&self, base: &Base) -> f64 {
        (self.at - base.at).max(RATE_TIME_MIN).as_secs_f64()
    }

    /// Returns the growth of a counter in a second, over all labels.
    pub fn rate(&self, metric: &str) -> Option<f64> {
        let base = self.base.as_ref()?;
        Some((self.metrics.sum(metric) - base.metrics.sum(metric)) / self.seconds(base))
    }

    /// The growth in a second of one label.
    pub fn rate_of(&self, metric: &str, label: &str) -> Option<f64> {
        let base = self.base.as_ref()?;
        let [now, before] = [&self.metrics, &base.metrics].map(|all| all.of(metric, &[label]));
        Some((now - before) / self.seconds(base))
    }

    /// Hits of a rule in a second.
    pub fn hits_rate(&self, rule: &RuleRow) -> Option<f64> {
        let base = self.base.as_ref()?;
        Some((rule.hits - base.hits.get(&rule.name)?) / self.seconds(base))
    }
}

fn json(name: &'static str, body: &[u8]) -> Result<Value, SourceError> {
    serde_json::from_slice(body).map_err(|error| SourceError::Answer(name, error.to_string()))
}

/// The text of a member, or nothing.
pub fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value[member].as_str().unwrap_or_default()
}

/// The number of a member, or 0.
pub fn number(value: &Value, member: &str) -> f64 {
    value[member].as_f64().unwrap_or_default()
}

/// Rules of one name have one sum in the document: it is shown once.
fn rules(document: &Value) -> Vec<RuleRow> {
    let mut rules: Vec<RuleRow> = Vec::new();
    for rule in document["rules"].as_array().into_iter().flatten() {
        let name = text(rule, "rule").to_owned();
        if rules.iter().all(|known| known.name != name) {
            let action = text(rule, "action").to_owned();
            rules.push(RuleRow { name, action, hits: number(rule, "hits") });
        }
    }
    rules
}

fn expiries(document: &Value) -> Vec<Expiry> {
    let all = document["certificates"].as_array().into_iter().flatten();
    let mut expiries: Vec<Expiry> = all
        .map(|one| {
            let name = one["names"][0].as_str().unwrap_or_else(|| text(one, "from")).to_owned();
            let after = one["not_after_unix_seconds"].as_f64();
            let before = number(one, "not_before_unix_seconds");
            let life = after.map_or(0.0, |after| after - before);
            Expiry { name, after, warning: EXPIRY_WARNING.min(life / 3.0) }
        })
        .collect();
    let key = |one: &Expiry| one.after.unwrap_or(f64::NEG_INFINITY);
    expiries.sort_by(|one, other| key(one).total_cmp(&key(other)));
    expiries
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    const METRICS: &str = "eyelet_connections{state=\"parked\"} 12000\n\
        eyelet_connections{state=\"serving\"} 345\neyelet_accepted_connections_total 20000\n\
        eyelet_handshakes_total{version=\"1.3\",resumed=\"true\"} 100\n\
        eyelet_connection_ends_total{class=\"refused\"} 7\n\
        eyelet_connection_ends_total{class=\"closed\"} 9000\n\
        eyelet_connection_outcomes_total{outcome=\"refused\"} 7\n\
        eyelet_ended_connection_bytes_total{to=\"client\"} 1024000\n\
        eyelet_ended_connection_bytes_total{to=\"upstream\"} 102400\n\
        eyelet_upstream_up{upstream=\"a.example:443\"} 1\n\
        eyelet_upstream_up{upstream=\"b.example:443\"} 0\n";

    /// An edge with some of everything, ten seconds after an earlier look.
    pub(crate) fn sample() -> Figures {
        let at = Instant::now();
        let earlier = METRICS
            .replace("20000", "19000")
            .replace("} 1024000", "} 0")
            .replace("} 102400", "} 0");
        let rules = rules(&json!({"rules": [
            {"rule": "api", "action": "splice", "hits": 900},
            {"rule": "old clients", "action": "refuse", "hits": 7},
            {"rule": "api", "action": "splice", "hits": 900}]}));
        let connection = json!({"id": "0-17", "state": "parked", "kind": "spliced",
            "rule": "api", "client": "192.0.2.7:50312", "sni": "api.example\u{1b}[2J",
            "age_ms": 81_240, "bytes_to_upstream": 1830, "bytes_to_client": 52_011});
        Figures {
            status: json!({"version": "0.2.0", "pid": 7, "uptime_seconds": 90_000.0,
                "generation": 3, "draining": false, "limits":
                {"connections_max": 19_361, "connections_with_upstream_max": 9_680}}),
            metrics: MetricsText::parse(METRICS),
            rules,
            expiries: expiries(&json!({"certificates": [
                {"names": ["late.example"], "not_after_unix_seconds": 4e9},
                {"from": "x.pem", "error": "cannot be read"},
                {"names": ["soon.example"], "not_after_unix_seconds": 3e9}]})),
            memory: json!({"accounted_bytes": 2_306_048, "kernel_bytes": null,
                "budget": {"connections_bytes": 1_000, "connections_bytes_max": 1e6,
                    "memory_max": 536_870_912},
                "kinds": {"program": 1_696_556, "allocator": 608_240, "http": 0}}),
            connections: vec![connection; 40],
            log: vec!["09:30:00 refused    b.example 192.0.2.7:5 by no: refused by name".into(); 9],
            at,
            certificates_at: at,
            base: Some(Base {
                at: at.checked_sub(Duration::from_secs(10)).unwrap(),
                metrics: MetricsText::parse(&earlier),
                hits: [("api".to_owned(), 880.0)].into(),
            }),
        }
    }

    #[test]
    fn rates_are_since_the_earlier_look_at_the_same_process() {
        let figures = sample();
        assert_eq!(figures.rate("accepted_connections_total"), Some(100.0));
        assert_eq!(figures.rate_of("connection_ends_total", "closed"), Some(0.0));
        assert_eq!(figures.rules.len(), 2);
        assert_eq!(figures.hits_rate(&figures.rules[0]), Some(2.0));
        assert_eq!(figures.hits_rate(&figures.rules[1]), None);
        assert_eq!((&*figures.expiries[0].name, figures.expiries[0].after), ("x.pem", None));
        assert_eq!(figures.expiries[1].name, "soon.example");
        assert_eq!(figures.expiries[1].warning, EXPIRY_WARNING);
        let brief = json!({"certificates": [{"names": ["brief.example"],
            "not_before_unix_seconds": 1e9, "not_after_unix_seconds": 1e9 + 6.0 * 86_400.0}]});
        assert_eq!(expiries(&brief)[0].warning, 2.0 * 86_400.0);
        let mut later = figures.clone();
        later.at += Duration::from_millis(10);
        assert_eq!(later.base_of(&figures).unwrap().at, figures.base.as_ref().unwrap().at);
        later.at += RATE_TIME_MIN;
        assert_eq!(later.base_of(&figures).unwrap().at, figures.at);
        later.status["pid"] = json!(8);
        assert!(later.base_of(&figures).is_none());
    }
}

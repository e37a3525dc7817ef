//! A checked configuration as a whole, for `serve`, `check` and `explain`.

use crate::model::{
    Dictionaries, Dns, EvidenceSettings, HttpLimits, Limits, Listener, LogSettings, Tickets,
};
use crate::rules::RuleList;

/// A whole configuration, checked and indexed.
#[derive(Debug)]
pub struct Config {
    /// At least one, in the order of the file; `Facts::listener` is an index into this.
    pub listeners: Vec<Listener>,
    /// In the order of the file; a `RuleId` is an index into this.
    pub rules: RuleList,
    /// The matchers of `rules`, indexed.
    pub policy: eyelet_policy::Rules,
    /// Limits.
    pub limits: Limits,
    /// Limits of HTTP.
    pub http: HttpLimits,
    /// What is logged, and where.
    pub log: LogSettings,
    /// Where dictionaries are stored.
    pub dictionaries: Dictionaries,
    /// Who resolves the names of upstreams.
    pub dns: Dns,
    /// How evidence for names is gathered.
    pub evidence: EvidenceSettings,
    /// Session tickets.
    pub tickets: Tickets,
    /// Worker threads. `None`: one per core.
    pub workers: Option<usize>,
    /// Whether a reload ends the connections whose rule it removes.
    pub reload_ends_removed: bool,
}

impl Config {
    /// Takes from the configuration that is served what only a restart can change. Gives the keys
    /// that differ.
    pub fn keep_until_restart(&mut self, served: &Self) -> Vec<&'static str> {
        let mut differ = Vec::new();
        if std::mem::replace(&mut self.workers, served.workers) != served.workers {
            differ.push("workers");
        }
        let memory_max = served.limits.memory_max;
        if std::mem::replace(&mut self.limits.memory_max, memory_max) != memory_max {
            differ.push("limits.memory_max");
        }
        let dictionaries = served.dictionaries.clone();
        if std::mem::replace(&mut self.dictionaries, dictionaries) != served.dictionaries {
            differ.push("dictionary");
        }
        differ
    }
}

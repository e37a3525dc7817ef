//! A checked configuration as a whole, for `serve`, `check` and `explain`.

use crate::model::{
    Dictionaries, Dns, EvidenceSettings, HttpLimits, Limits, Listener, LogSettings,
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
    /// Worker threads. `None`: one per core.
    pub workers: Option<usize>,
}

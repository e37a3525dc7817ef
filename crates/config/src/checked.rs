//! A checked configuration as a whole, for `serve`, `check` and `explain`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::model::dns::Dns;
use crate::model::limits::{HttpLimits, Limits};
use crate::model::{
    Action, CertificateSource, Dictionaries, EvidenceSettings, Listener, LogSettings, Tickets,
};
use crate::rules::RuleList;
use crate::rules::lists::ListFiles;
use crate::rules::mint::RunAuthority;
use crate::sections::acme::AcmeSettings;
use crate::sections::admin::AdminSettings;
use crate::sections::fleet::FleetSettings;
use crate::sections::hold::HoldSettings;
use crate::sections::secret::SecretSettings;
use crate::sections::spiffe::SpiffeSettings;
use crate::sections::trace::TraceSettings;
use crate::settings::local::LocalSettings;
use eyelet_files::read;

/// A whole configuration, checked and indexed.
#[derive(Debug)]
pub struct Config {
    /// The listeners, at least one, in the order of the file;
    pub listeners: Vec<Listener>,
    /// In the order of the file; a `RuleId` is an index into this.
    pub rules: RuleList,
    /// The matchers of `rules`, indexed.
    pub policy: eyelet_policy::Rules,
    /// The files of the lists in `policy`.
    pub lists: ListFiles,
    pub limits: Limits,
    /// The terms on which connections are held.
    pub hold: HoldSettings,
    pub http: HttpLimits,
    /// The settings of the log.
    pub log: LogSettings,
    /// The settings of stored dictionaries.
    pub dictionaries: Dictionaries,
    /// The servers that resolve the names of upstreams.
    pub dns: Dns,
    /// The settings by which evidence for names is gathered.
    pub evidence: EvidenceSettings,
    /// Session tickets.
    pub tickets: Tickets,
    /// The local certificate authority.
    pub local: LocalSettings,
    /// In a sandbox: the authority by which rules without one mint.
    pub run_authority: Option<RunAuthority>,
    /// The settings of the admin server, which answers questions about the edge.
    pub admin: Option<AdminSettings>,
    /// The requests that are traced, and the collector that takes the spans.
    pub trace: Option<TraceSettings>,
    /// The store that several edges share.
    pub fleet: Option<FleetSettings>,
    /// The ACME server that certificates are ordered from.
    pub acme: Option<AcmeSettings>,
    /// The SPIFFE Workload API, if a rule needs it.
    pub spiffe: Option<SpiffeSettings>,
    /// Secrets that clients never have.
    pub secrets: Vec<SecretSettings>,
    /// Worker threads. `None`: one per core.
    pub workers: Option<usize>,
    /// True if a reload ends the connections whose rule it removes.
    pub reload_ends_removed: bool,
    /// The file itself, with `watch = true`.
    pub watch: Option<WatchedFile>,
}

/// A configuration file that is read again when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedFile {
    /// The file, as it was named.
    pub file: PathBuf,
    /// Stands for the text that was read.
    pub digest: u64,
}

impl WatchedFile {
    pub(super) fn new(file: &Path, text: &str) -> Self {
        Self { file: file.to_owned(), digest: digest(text) }
    }

    /// Stands for the text that is in the file now.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn digest_now(&self) -> Result<u64, String> {
        let read = read(&self.file).map(|text| digest(&text));
        read.map_err(|why| format!("{}: {why}", self.file.display()))
    }
}

fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl Config {
    /// True if a rule orders certificates when clients ask for them.
    pub fn has_acme_on_demand(&self) -> bool {
        let on_demand = CertificateSource::Acme { on_demand: true };
        self.rules
            .iter()
            .any(|rule| matches!(rule.action, Action::Terminate(t) if t.certificates == on_demand))
    }

    /// True if a rule mints certificates, for which it must see those of origins.
    pub fn mints(&self) -> bool {
        let mints = |action: &Action| match action {
            Action::Terminate(rule) => rule.certificates == CertificateSource::Mint,
            Action::Originate(_) | Action::Splice(_) | Action::Refuse(_) => false,
        };
        self.rules.iter().any(|rule| mints(rule.action))
    }

    /// Takes from the configuration that is served what a reload cannot change. Gives the keys
    /// that differ.
    pub fn keep_until_upgrade(&mut self, served: &Self) -> Vec<&'static str> {
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

//! The evidence of a process, shared by all workers and bounded: what is remembered, and how much
//! may be under way. It must not know how it is gathered, or what a rule makes of it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::cache::Cache;
use crate::certificate::{Asker, RootsError, Shown};
use crate::permits::Permits;
use crate::resolved::Resolved;
use crate::resolver::{Dialled, Found};
use eyelet_config::Config;
use eyelet_telemetry::evidence::AddressEvidence;

/// The part of `memory_max` that evidence of each kind may take, and the names that are dialled:
/// 8 MiB by default, which is more than 16,384 names with a few addresses.
const MEMORY_PARTS: usize = 64;
/// Questions to DNS at once, each with a descriptor a resolver.
const QUESTIONS_MAX: usize = 128;
/// Side handshakes at once, each with a descriptor.
const HANDSHAKES_MAX: usize = 64;
/// Names at once that are looked up to dial them.
const LOOKUPS_MAX: usize = 256;
/// How soon a destination with which no handshake could be made is tried again.
const FAULT_FRESH_MS: u64 = 5_000;

/// A name, and whether its IPv6 or its IPv4 addresses are asked for.
pub type Question = (Box<str>, bool);
/// A destination, and the name that it is asked for.
pub type Visit = (SocketAddr, Option<Box<str>>);

/// The evidence of a process, and what it has looked up to dial it.
pub struct EvidenceStore {
    pub(crate) dns: Arc<Cache<Question, Arc<Resolved>>>,
    pub(crate) certificates: Arc<Cache<Visit, Arc<Attempt>>>,
    /// Addresses of names that are dialled.
    pub dialled: Arc<Cache<Dialled, Arc<Found>>>,
    pub(crate) asker: Option<Asker>,
    pub(crate) questions: Arc<Permits>,
    pub(crate) handshakes: Arc<Permits>,
    /// For the names that clients want dialled.
    pub lookups: Arc<Permits>,
}

/// What came of a side handshake.
#[derive(Debug)]
pub struct Attempt {
    /// What was shown, or why nothing was.
    pub shown: Result<Shown, Box<str>>,
    pub(crate) fresh_until_ms: u64,
}

/// What DNS says of a name and an address.
#[derive(Debug)]
pub struct ByDns {
    /// Whether the address is one of the name's; `None`: that cannot be known.
    pub agrees: Option<bool>,
    /// What was answered, if anything was.
    pub told: Option<Arc<AddressEvidence>>,
    /// Why it cannot be known.
    pub fault: Option<Box<str>>,
}

impl EvidenceStore {
    /// No evidence yet. The roots are read, if a rule asks for a certificate.
    ///
    /// # Errors
    /// If they cannot be.
    pub fn new(config: &Config) -> Result<Self, RootsError> {
        let asks = config.policy.asks_certificate();
        let asker = asks.then(|| Asker::new(config)).transpose()?;
        let bytes_max = config.limits.memory_max / MEMORY_PARTS;
        Ok(Self {
            dns: Arc::new(Cache::new(bytes_max)),
            certificates: Arc::new(Cache::new(bytes_max)),
            dialled: Arc::new(Cache::new(bytes_max)),
            asker,
            questions: Permits::new(QUESTIONS_MAX),
            handshakes: Permits::new(HANDSHAKES_MAX),
            lookups: Permits::new(LOOKUPS_MAX),
        })
    }

    /// The same under a new configuration. It forgets certificates that other roots have judged.
    ///
    /// # Errors
    /// If the roots cannot be read.
    pub fn reloaded(&self, config: &Config) -> Result<Self, RootsError> {
        let asks = config.policy.asks_certificate();
        let asker = asks.then(|| Asker::new(config)).transpose()?;
        let is_judged = match (&self.asker, &asker) {
            (Some(old), Some(new)) => old.trusts_as(new),
            _ => false,
        };
        let certificates = match is_judged {
            true => self.certificates.clone(),
            false => Arc::new(Cache::new(config.limits.memory_max / MEMORY_PARTS)),
        };
        Ok(Self {
            dns: self.dns.clone(),
            certificates,
            dialled: self.dialled.clone(),
            asker,
            questions: self.questions.clone(),
            handshakes: self.handshakes.clone(),
            lookups: self.lookups.clone(),
        })
    }

    /// Descriptors that gathering may take at most.
    pub fn descriptors_max(config: &Config) -> usize {
        let resolvers = config.dns.servers.len().max(2);
        let questions = if config.policy.asks_dns() { QUESTIONS_MAX * resolvers } else { 0 };
        questions + if config.policy.asks_certificate() { HANDSHAKES_MAX } else { 0 }
    }

    /// Entries and bytes, of addresses and of certificates.
    pub fn size(&self) -> [(usize, usize); 2] {
        [self.dns.size(), self.certificates.size()]
    }
}

impl ByDns {
    pub(crate) fn of(resolved: &Resolved, address: IpAddr, now_ms: u64, history: Duration) -> Self {
        // An answer that is stale by now was fresh when it was waited for.
        let agrees = resolved
            .has(address, now_ms, history)
            .or_else(|| (resolved.is_complete() && resolved.fault().is_none()).then_some(false));
        let fault = match agrees {
            Some(_) => None,
            None => Some(resolved.fault().unwrap_or("no answer").into()),
        };
        Self { agrees, told: Some(resolved.told.clone()), fault }
    }

    pub(crate) fn unknown(why: &str) -> Self {
        Self { agrees: None, told: None, fault: Some(why.into()) }
    }
}

impl Attempt {
    pub(crate) fn failed(why: &str, now_ms: u64) -> Arc<Self> {
        Arc::new(Self { shown: Err(why.into()), fresh_until_ms: now_ms + FAULT_FRESH_MS })
    }

    /// Whether it still counts, by the steady clock, and by the wall clock for a certificate.
    pub(crate) fn is_fresh(&self, steady_ms: u64, wall_ms: u64) -> bool {
        let is_over = |shown: &Shown| shown.certificate.valid && wall_ms >= shown.expires_unix_ms;
        steady_ms < self.fresh_until_ms && !self.shown.as_ref().is_ok_and(is_over)
    }

    /// For rules.
    pub fn certificate(&self) -> Option<&eyelet_policy::Certificate> {
        self.shown.as_ref().ok().map(|shown| &shown.certificate)
    }

    pub(crate) fn bytes(&self) -> usize {
        let shown = self.shown.as_ref();
        size_of::<Self>() + shown.map_or_else(|why| why.len(), Shown::bytes)
    }
}

#[cfg(test)]
mod tests {
    use eyelet_telemetry::evidence::CertificateEvidence;

    use super::*;

    #[test]
    fn a_certificate_does_not_outlive_its_end_by_the_wall_clock() {
        let shown = |valid| Shown {
            certificate: eyelet_policy::Certificate {
                names: [].into(),
                issuer: [].into(),
                trusted: valid,
                valid,
            },
            told: Arc::new(CertificateEvidence {
                names: [].into(),
                issuer: "".into(),
                fault: None,
                at_unix_ms: 0,
            }),
            expires_unix_ms: 1_000,
        };
        let attempt = |shown| Attempt { shown, fresh_until_ms: 500 };
        let sound = attempt(Ok(shown(true)));
        assert!(sound.is_fresh(499, 999) && sound.is_fresh(499, 0));
        assert!(!sound.is_fresh(500, 0), "by the steady clock");
        assert!(!sound.is_fresh(0, 1_000), "the wall clock was set");
        // What is not valid anyway, or is no certificate, is asked for again by age alone.
        assert!(attempt(Ok(shown(false))).is_fresh(0, 2_000));
        assert!(attempt(Err("none".into())).is_fresh(0, 2_000));
    }
}

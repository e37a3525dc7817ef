//! The evidence of a process, shared by all workers: its caches, and the limits on how much is
//! gathered at once.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::cache::Cache;
use crate::certificate::{Prober, Shown};
use crate::dns::found::Found;
use crate::dns::resolved::Resolved;
use crate::dns::resolver::DialledName;
use crate::dns::secure::SecureDns;
use crate::dns::server::ServerMemory;
use crate::permits::Permits;
use eyelet_config::{Config, Dns};
use eyelet_telemetry::evidence::AddressEvidence;
use eyelet_tls::roots::{EvidenceRoots, RootsError};

/// Evidence of each kind, and names that are dialled, may take one such part of `memory_max`: 8 MiB
/// by default, enough for more than 16,384 names with a few addresses.
const MEMORY_PARTS: usize = 64;
/// DNS questions at once, each with a descriptor per resolver.
const QUESTIONS_MAX: usize = 128;
/// Side handshakes at once, each with a descriptor.
const HANDSHAKES_MAX: usize = 64;
/// Look-ups of dialled names at once.
const LOOKUPS_MAX: usize = 256;
/// The time until a destination is tried again after a failed handshake.
const HANDSHAKE_RETRY_MS: u64 = 5_000;
/// The time until such a try where a client waits for a certificate that is minted after the
/// destination's: one slow dial must not keep all clients from it. Short, but a destination that is
/// down is not asked by each of them.
const MINT_RETRY_MS: u64 = 250;

/// A name, and whether its IPv6 addresses are wanted (else IPv4).
pub type DnsKey = (Box<str>, bool);
/// A destination, and the name that it is asked for.
pub type Visit = (SocketAddr, Option<Box<str>>);

/// The evidence of a process, and the addresses of names that it dials.
#[derive(Clone)]
pub struct EvidenceStore {
    pub(crate) dns: Arc<Cache<DnsKey, Arc<Resolved>>>,
    pub(crate) certificates: Arc<Cache<Visit, Arc<Attempt>>>,
    /// Addresses of names that are dialled.
    pub dialled: Arc<Cache<DialledName, Arc<Found>>>,
    /// Silent servers, and those that know no EDNS.
    pub(crate) servers: Arc<ServerMemory>,
    /// For resolvers that are asked over TLS, if there are any.
    pub(crate) secure_dns: Option<Arc<SecureDns>>,
    pub(crate) prober: Option<Prober>,
    /// The roots that the next prober trusts, if a rule asks for a certificate.
    roots: Option<Arc<EvidenceRoots>>,
    /// The settings of the resolvers whose answers the caches hold.
    dns_settings: Dns,
    pub(crate) questions: Arc<Permits>,
    pub(crate) handshakes: Arc<Permits>,
    /// For names that clients want dialled.
    pub lookups: Arc<Permits>,
}

/// The purpose for which a certificate is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The rules ask. A destination that failed is left alone for some seconds.
    Rules,
    /// A certificate is made after it. A destination that failed is soon asked again.
    Mint,
}

/// The result of a side handshake.
#[derive(Debug)]
pub struct Attempt {
    /// The certificate, or why there is none.
    pub shown: Result<Shown, Lack>,
    pub(crate) fresh_until_ms: u64,
}

/// The reason why there is no certificate.
#[derive(Debug)]
pub enum Lack {
    /// The destination gave none, or may not be asked.
    Failed(Box<str>),
    /// The destination was not asked: too many side handshakes were under way, or this process or
    /// host lacked something for it.
    Unasked(Box<str>),
}

/// Authorities that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AuthoritiesError {
    /// Those that vouch for destinations.
    #[error("[evidence] ca: {0}")]
    Evidence(RootsError),
    /// Those that vouch for resolvers.
    #[error("[dns] ca: {0}")]
    Dns(RootsError),
}

/// The answer of DNS about a name and an address.
#[derive(Debug)]
pub struct ByDns {
    /// True if the address is one of the name's. `None`: unknown.
    pub agrees: Option<bool>,
    /// The answer for the access log, if there was one.
    pub logged: Option<Arc<AddressEvidence>>,
    /// The reason why it is unknown.
    pub fault: Option<Box<str>>,
}

impl EvidenceStore {
    /// An empty store. It reads the trusted roots if a rule asks for a certificate, or a resolver
    /// is asked over TLS.
    ///
    /// # Errors
    /// If the roots cannot be read.
    pub fn new(config: &Config) -> Result<Self, AuthoritiesError> {
        let (roots, prober) = trusted(config).map_err(AuthoritiesError::Evidence)?;
        let bytes_max = config.limits.memory_max / MEMORY_PARTS;
        Ok(Self {
            dns: Arc::new(Cache::new(bytes_max)),
            certificates: Arc::new(Cache::new(bytes_max)),
            dialled: Arc::new(Cache::new(bytes_max)),
            servers: Arc::default(),
            secure_dns: SecureDns::new(&config.dns).map_err(AuthoritiesError::Dns)?,
            prober,
            roots,
            dns_settings: config.dns.clone(),
            questions: Permits::new(QUESTIONS_MAX),
            handshakes: Permits::new(HANDSHAKES_MAX),
            lookups: Permits::new(LOOKUPS_MAX),
        })
    }

    /// The store under a new configuration. It has the addresses of dialled names asked anew, and
    /// forgets certificates that other roots have judged, and evidence that other resolvers gave.
    ///
    /// # Errors
    /// If the roots cannot be read.
    pub fn reloaded(&self, config: &Config) -> Result<Self, AuthoritiesError> {
        let mut next = Self {
            dialled: self.stale(config),
            questions: self.questions.clone(),
            handshakes: self.handshakes.clone(),
            lookups: self.lookups.clone(),
            ..Self::new(config)?
        };
        if let (Some(old), Some(roots)) = (&self.prober, &next.roots)
            && old.trusts(&roots.store())
            && old.sees_enough(config)
        {
            next.certificates = self.certificates.clone();
        }
        let trusts_alike = match (&self.secure_dns, &next.secure_dns) {
            (Some(old), Some(new)) => old.trusts_as(new),
            (old, new) => old.is_none() && new.is_none(),
        };
        if self.dns_settings == config.dns && trusts_alike {
            next.dns = self.dns.clone();
        }
        Ok(next)
    }

    /// Returns a store by the roots that were read last. It forgets certificates that others have
    /// judged.
    ///
    /// # Errors
    /// If rustls refuses the roots.
    pub fn by_newest_roots(&self, config: &Config) -> Result<Self, RootsError> {
        let (Some(prober), Some(roots)) = (&self.prober, &self.roots) else {
            return Ok(self.clone());
        };
        let store = roots.store();
        if prober.trusts(&store) {
            return Ok(self.clone());
        }
        let prober = Some(Prober::new(config, store)?);
        let certificates = Arc::new(Cache::new(config.limits.memory_max / MEMORY_PARTS));
        Ok(Self { certificates, prober, ..self.clone() })
    }

    /// The store after the system's resolvers or hosts have changed: it has the addresses of
    /// dialled names asked anew.
    #[must_use]
    pub fn by_newest_resolvers(&self, config: &Config) -> Self {
        Self { dialled: self.stale(config), servers: Arc::default(), ..self.clone() }
    }

    /// The configured names, with the addresses through which each rotates: kept connections follow
    /// these. No connection that is kept leads to a name that a client chose.
    fn stale(&self, config: &Config) -> Arc<Cache<DialledName, Arc<Found>>> {
        let stale = Cache::new(config.limits.memory_max / MEMORY_PARTS);
        let configured = self.dialled.entries().filter(|((_, is_chosen), _)| !is_chosen);
        for ((name, is_chosen), found) in configured {
            let hash = stale.hash((&*name, is_chosen));
            let bytes = found.bytes() + name.len();
            stale.keep(hash, (name, is_chosen), Arc::new(found.stale()), bytes);
        }
        Arc::new(stale)
    }

    /// The roots that side handshakes trust, as a file that may change.
    pub fn roots(&self) -> Option<&Arc<EvidenceRoots>> {
        self.roots.as_ref()
    }

    /// Most descriptors that gathering evidence may take.
    pub fn descriptors_max(config: &Config) -> usize {
        let resolvers = config.dns.servers.len().max(2);
        let questions = if config.policy.asks_dns() { QUESTIONS_MAX * resolvers } else { 0 };
        questions + if sees_certificates(config) { HANDSHAKES_MAX } else { 0 }
    }

    /// Entries and bytes of the two caches: addresses, certificates.
    pub fn size(&self) -> [(usize, usize); 2] {
        [self.dns.size(), self.certificates.size()]
    }
}

/// True if a rule asks for destinations' certificates, or mints after them.
fn sees_certificates(config: &Config) -> bool {
    config.policy.asks_certificate() || config.mints()
}

/// Reads the roots if a rule asks for a certificate.
fn trusted(config: &Config) -> Result<(Option<Arc<EvidenceRoots>>, Option<Prober>), RootsError> {
    if !sees_certificates(config) {
        return Ok((None, None));
    }
    let roots = EvidenceRoots::new(config.evidence.ca.as_deref())?;
    let prober = Prober::new(config, roots.store())?;
    Ok((Some(Arc::new(roots)), Some(prober)))
}

impl ByDns {
    pub(crate) fn of(resolved: &Resolved, address: IpAddr, now_ms: u64, history: Duration) -> Self {
        // An answer that has expired since was valid when the wait for it began.
        let agrees = resolved
            .has(address, now_ms, history)
            .or_else(|| (resolved.is_complete() && resolved.fault().is_none()).then_some(false));
        let fault = match agrees {
            Some(_) => None,
            None => Some(resolved.fault().unwrap_or("no answer").into()),
        };
        Self { agrees, logged: Some(resolved.logged.clone()), fault }
    }

    pub(crate) fn unknown(why: &str) -> Self {
        Self { agrees: None, logged: None, fault: Some(why.into()) }
    }
}

impl Attempt {
    pub(crate) fn failed(why: &str, now_ms: u64) -> Arc<Self> {
        let shown = Err(Lack::Failed(why.into()));
        Arc::new(Self { shown, fresh_until_ms: now_ms + HANDSHAKE_RETRY_MS })
    }

    /// The destination was not asked. Nobody may remember this of it.
    pub(crate) fn unasked(why: &str) -> Arc<Self> {
        Arc::new(Self { shown: Err(Lack::Unasked(why.into())), fresh_until_ms: 0 })
    }

    pub(crate) fn is_unasked(&self) -> bool {
        matches!(self.shown, Err(Lack::Unasked(_)))
    }

    /// True if it is still valid: by the steady clock, and for a certificate also by the wall
    /// clock.
    pub(crate) fn is_fresh(&self, steady_ms: u64, wall_ms: u64) -> bool {
        let is_over = |shown: &Shown| shown.certificate.valid && wall_ms >= shown.expires_unix_ms;
        steady_ms < self.fresh_until_ms && !self.shown.as_ref().is_ok_and(is_over)
    }

    /// True if it is still valid for this purpose, as [`Self::is_fresh`].
    pub(crate) fn is_fresh_for(&self, purpose: Purpose, steady_ms: u64, wall_ms: u64) -> bool {
        let is_over = self.shown.is_err()
            && purpose == Purpose::Mint
            && steady_ms + HANDSHAKE_RETRY_MS >= self.fresh_until_ms + MINT_RETRY_MS;
        !is_over && self.is_fresh(steady_ms, wall_ms)
    }

    /// For rules.
    pub fn certificate(&self) -> Option<&eyelet_policy::CertificateFacts> {
        self.shown.as_ref().ok().map(|shown| &shown.certificate)
    }

    pub(crate) fn bytes(&self) -> usize {
        let shown = self.shown.as_ref();
        size_of::<Self>() + shown.map_or_else(|lack| lack.text().len(), Shown::bytes)
    }
}

impl Lack {
    /// For the access log.
    pub fn text(&self) -> &str {
        match self {
            Self::Failed(why) | Self::Unasked(why) => why,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;
    use std::time::SystemTime;

    use eyelet_config::{Depth, parse};
    use eyelet_telemetry::evidence::CertificateEvidence;

    use super::*;
    use crate::dns::answer::Answer;

    #[test]
    fn a_reload_asks_anew_and_remembers_what_a_name_rotates_through() {
        let text = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[rule]]\naction = \"refuse\"\n";
        let now = SystemTime::UNIX_EPOCH;
        let config = parse(Path::new("a.toml"), text, Depth::Files, now).unwrap().config;
        let ip = |last| IpAddr::from([192, 0, 2, last]);
        let found = |last, now_ms| Found::new(Ok(Answer::new(vec![ip(last)], 60)), now_ms);
        let second = found(2, 2_000).after(&found(1, 1_000));
        let rotates = found(1, 3_000).after(&second);
        let store = EvidenceStore::new(&config).unwrap();
        let of = |store: &EvidenceStore, is_chosen| {
            let hash = store.dialled.hash(("app.test", is_chosen));
            let key = (Box::from("app.test"), is_chosen);
            (hash, key.clone(), store.dialled.read(hash, |known| *known == key, Arc::clone))
        };
        let rotates = Arc::new(rotates);
        for is_chosen in [false, true] {
            let (hash, key, _) = of(&store, is_chosen);
            store.dialled.keep(hash, key, rotates.clone(), rotates.bytes());
        }
        for next in [store.reloaded(&config).unwrap(), store.by_newest_resolvers(&config)] {
            let kept = of(&next, false).2.unwrap();
            assert_eq!((kept.asked_ms, kept.fresh_until_ms), (0, 0), "it is asked anew");
            assert_eq!(kept.usable(4_000), Some(vec![ip(1), ip(2)]));
            let asked = found(3, 4_000).after(&kept);
            assert_eq!(asked.usable(400_000), Some(vec![ip(3), ip(1), ip(2)]));
            assert!(of(&next, true).2.is_none(), "no connection that is kept needs it");
        }
    }

    #[test]
    fn a_certificate_does_not_outlive_its_end_by_the_wall_clock() {
        let shown = |valid| {
            let certificate = eyelet_policy::CertificateFacts {
                names: [].into(),
                issuer: [].into(),
                trusted: valid,
                valid,
            };
            let logged = CertificateEvidence {
                names: [].into(),
                issuer: "".into(),
                fault: None,
                at_unix_ms: 0,
            };
            Shown::new(certificate, logged, 1_000)
        };
        let attempt = |shown| Attempt { shown, fresh_until_ms: 500 };
        let sound = attempt(Ok(shown(true)));
        assert!(sound.is_fresh(499, 999) && sound.is_fresh(499, 0));
        assert!(!sound.is_fresh(500, 0), "by the steady clock");
        assert!(!sound.is_fresh(0, 1_000), "the wall clock was set");
        // An invalid certificate, or none, is asked for again by age alone.
        assert!(attempt(Ok(shown(false))).is_fresh(0, 2_000));
        assert!(attempt(Err(Lack::Failed("none".into()))).is_fresh(0, 2_000));
    }

    #[test]
    fn who_mints_soon_asks_again_after_a_failure() {
        let failed = Attempt::failed("no handshake in time", 1_000);
        let fresh = |purpose, at| failed.is_fresh_for(purpose, at, 0);
        assert!(fresh(Purpose::Mint, 1_000) && fresh(Purpose::Mint, 999 + MINT_RETRY_MS));
        assert!(!fresh(Purpose::Mint, 1_000 + MINT_RETRY_MS));
        assert!(fresh(Purpose::Rules, 999 + HANDSHAKE_RETRY_MS));
        assert!(!fresh(Purpose::Rules, 1_000 + HANDSHAKE_RETRY_MS));
    }
}

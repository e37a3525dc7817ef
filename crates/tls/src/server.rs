//! rustls' server configurations, shared by rules that differ in certificates only, and the
//! certificates, which are loaded at first use into a bounded store.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{
    KeyLog, RootCertStore, ServerConfig, SignatureAlgorithm, SupportedProtocolVersion, version,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};
use zeroize::Zeroizing;

use crate::client_chain;
use crate::provider::PROVIDER;
use crate::tickets::{SourceId, TicketKeys, client_certificates};
use eyelet_config::certificate::{self, CertificateError};
use eyelet_config::{Action, Config, RuleList, Terminate, Version};

/// Up to so many sets of certificates are loaded at the start, so that a bad file is found then.
/// Loading more would take too long; `eyelet check` reads them all.
const EAGER_MAX: usize = 64;

/// Tickets sent after a full or resumed TLS 1.3 handshake. One, as in Go: every connection brings
/// the next one's, and each costs a client 220 bytes and us a key derivation.
const TICKETS: usize = 1;

/// The number of the next set of authorities for clients. Reloads would take it round only after
/// four billion sets.
static NEXT_ROOTS: AtomicU32 = AtomicU32::new(1);

/// Why a configuration could not be made. It names the file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate or its key.
    #[error("{0}")]
    Certificate(#[from] CertificateError),
    /// The file of CA certificates for client certificates.
    #[error("client_ca {path}: {reason}")]
    ClientCa {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The file of CA certificates for upstreams.
    #[error("upstream_ca {path}: {reason}")]
    UpstreamCa {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// rustls refuses the configuration.
    #[error("{0}")]
    Rustls(#[from] rustls::Error),
}

/// Bytes that a loaded certificate counts besides its leaf: its key in Rust and in C, and the slot.
/// Measured at 860 bytes for P-256.
const KEY_BYTES: usize = 1 << 10;
/// The same for an RSA key, per byte of its public half. Measured at 6.4 KiB for 2048 bits; most of
/// it the library keeps after the first signature, to make later ones fast.
const RSA_KEY_FACTOR: usize = 24;
/// The part of `memory_max` that loaded certificates may take. Beyond it, those that were not used
/// lately are dropped and read again when needed.
const CERTIFICATES_PART: usize = 8;

/// The rustls configurations and the certificates of all terminate rules. Rules that differ only in
/// their certificates share a configuration.
pub struct ServerConfigs {
    /// By action: an index into `made`. Only those of terminate rules are used.
    by_action: Box<[u32]>,
    made: Vec<Made>,
    certificates: Store,
}

/// A rustls configuration, and who may sign the certificates of its clients.
#[derive(Clone)]
struct Made {
    of: Arc<ServerConfig>,
    min: Version,
    client_ca: Option<(PathBuf, Arc<RootCertStore>)>,
    /// Stands for `client_ca`: the same as long as its file and what is in it are. 0: none.
    client_roots: u32,
}

/// Certificates that are loaded when first needed, and may be dropped.
struct Store {
    /// By the number of the set.
    slots: Box<[Mutex<Slot>]>,
    /// The certificates above the leaves. Thousands of leaves share one, which is larger than they
    /// are.
    issuers: Mutex<HashSet<Issuers>>,
    /// Bytes loaded, and their limit. The set that was loaded last does not count against it.
    loaded: AtomicUsize,
    loaded_max: usize,
    /// Where the search for an unused set goes on (the clock algorithm).
    hand: AtomicUsize,
}

#[derive(Default)]
struct Slot {
    certificates: Option<Arc<Certificates>>,
    used: bool,
}

/// The certificates of one rule. The first that the client can verify is used.
pub type Certificates = [Certificate];

/// A certificate and its key, in a small form: rustls' own form holds a copy of the issuers for
/// each leaf.
#[derive(Debug)]
pub struct Certificate {
    leaf: Box<[u8]>,
    issuers: Issuers,
    key: Arc<dyn SigningKey>,
    /// The path of the certificate, for the group of tickets.
    source: SourceId,
}

/// The certificates from the leaf's issuer upwards. Empty if the file has only the leaf.
type Issuers = Arc<[CertificateDer<'static>]>;

impl ServerConfigs {
    /// Makes the configurations for `config`, and loads the certificates if they are few. `keys`
    /// seal the tickets.
    pub fn new(
        config: &Config,
        keys: &Arc<TicketKeys>,
        earlier: Option<&Self>,
    ) -> Result<Self, TlsError> {
        let (mut by_action, mut made) = (vec![0; config.rules.actions_len()], Vec::new());
        let mut settings = HashMap::new();
        for rule in config.rules.iter() {
            let Action::Terminate(terminate) = rule.action else { continue };
            let key = (&terminate.alpn_select, &terminate.client_ca, terminate.tls_version_min);
            let index = match settings.entry(key) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    made.push(make(config, terminate, keys, earlier)?);
                    *new.insert((made.len() - 1) as u32)
                }
            };
            by_action[rule.action_number as usize] = index;
        }
        let certificates = Store::new(config);
        let sets = config.rules.certificates_len();
        if sets <= EAGER_MAX {
            for set in 0..sets as u32 {
                certificates.of(&config.rules, set)?;
            }
        }
        Ok(Self { by_action: by_action.into(), made, certificates })
    }

    /// The authorities of a terminate rule's clients, as a number that never means others; 0: it
    /// asks for no certificate.
    pub fn client_roots(&self, rules: &RuleList, rule: u32) -> u32 {
        let action = rules.get(rule as usize).map(|rule| rule.action_number as usize);
        let made = action.and_then(|action| self.by_action.get(action));
        made.and_then(|made| self.made.get(*made as usize)).map_or(0, |made| made.client_roots)
    }

    /// What a handshake of this terminate rule needs.
    pub fn of(
        &self,
        rules: &RuleList,
        rule: u32,
    ) -> Result<(Arc<ServerConfig>, Arc<Certificates>), TlsError> {
        let rule = rules.at(rule);
        let made = &self.made[self.by_action[rule.action_number as usize] as usize];
        Ok((made.of.clone(), self.certificates.of(rules, rule.certificates_number)?))
    }
}

impl Store {
    fn new(config: &Config) -> Self {
        let slots = 0..config.rules.certificates_len();
        Self {
            slots: slots.map(|_| Mutex::default()).collect(),
            issuers: Mutex::default(),
            loaded: AtomicUsize::new(0),
            loaded_max: config.limits.memory_max / CERTIFICATES_PART,
            hand: AtomicUsize::new(0),
        }
    }

    fn of(&self, rules: &RuleList, set: u32) -> Result<Arc<Certificates>, TlsError> {
        let locked = || lock(&self.slots[set as usize]);
        {
            let mut slot = locked();
            slot.used = true;
            if let Some(loaded) = &slot.certificates {
                return Ok(loaded.clone());
            }
        }
        // Loaded without the lock: if two workers do it at once, one result is kept.
        let files = rules.certificates(set);
        let loaded = files.map(|files| {
            let source = source(rules, &files.certificate);
            Ok(self.certificate(certificate::load(&files)?, source))
        });
        let loaded: Arc<Certificates> = loaded.collect::<Result<_, TlsError>>()?;
        let before = locked().certificates.replace(loaded.clone());
        self.loaded.fetch_add(bytes(&loaded), Relaxed);
        self.loaded.fetch_sub(before.as_deref().map_or(0, bytes), Relaxed);
        while self.loaded.load(Relaxed) > self.loaded_max && self.drop_one(set as usize) {}
        Ok(loaded)
    }

    fn certificate(&self, loaded: CertifiedKey, source: SourceId) -> Certificate {
        let mut chain = loaded.cert.into_iter();
        // A chain has at least its leaf.
        let leaf = chain.next().map_or_else(Vec::new, |leaf| leaf.to_vec());
        let issuers = self.issuers(chain.collect());
        Certificate { leaf: leaf.into(), issuers, key: loaded.key, source }
    }

    /// The shared copy of these issuers.
    fn issuers(&self, read: Issuers) -> Issuers {
        let mut known = lock(&self.issuers);
        if let Some(known) = known.get(&read) {
            return known.clone();
        }
        if known.len() == known.capacity() {
            // Before the set grows, issuers without leaves are removed.
            known.retain(|issuers| Arc::strong_count(issuers) > 1);
        }
        known.insert(read.clone());
        read
    }

    /// Drops the next set, from the hand on, that was not used since the hand last passed it.
    /// `false` if there is none.
    fn drop_one(&self, keep: usize) -> bool {
        for _ in 0..2 * self.slots.len() {
            let at = self.hand.fetch_add(1, Relaxed) % self.slots.len();
            let mut slot = lock(&self.slots[at]);
            if at == keep || slot.certificates.is_none() || std::mem::take(&mut slot.used) {
                continue;
            }
            let dropped = slot.certificates.take();
            self.loaded.fetch_sub(dropped.as_deref().map_or(0, bytes), Relaxed);
            return true;
        }
        false
    }
}

impl Certificate {
    /// In rustls' form, for one handshake: a copy of some kilobytes.
    fn certified(&self) -> Arc<CertifiedKey> {
        let mut chain = Vec::with_capacity(1 + self.issuers.len());
        chain.push(CertificateDer::from(self.leaf.to_vec()));
        chain.extend(self.issuers.iter().cloned());
        Arc::new(CertifiedKey::new(chain, self.key.clone()))
    }

    fn bytes(&self) -> usize {
        let key = match (self.key.algorithm(), self.key.public_key()) {
            (SignatureAlgorithm::RSA, Some(public)) => public.len() * RSA_KEY_FACTOR,
            _ => KEY_BYTES,
        };
        self.leaf.len() + key
    }
}

fn bytes(certificates: &Certificates) -> usize {
    certificates.iter().map(Certificate::bytes).sum()
}

/// No operation under these locks can panic half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn source(rules: &RuleList, path: &Path) -> SourceId {
    SourceId::new(rules.as_written(path).as_os_str().as_encoded_bytes())
}

fn make(
    config: &Config,
    terminate: &Terminate,
    keys: &Arc<TicketKeys>,
    earlier: Option<&ServerConfigs>,
) -> Result<Made, TlsError> {
    let (tickets, rules) = (&config.tickets, &config.rules);
    let client_ca = match &terminate.client_ca {
        None => None,
        Some(path) => Some((path.clone(), client_roots(path)?)),
    };
    let alike = |known: &&Made| {
        known.of.alpn_protocols == terminate.alpn_select
            && known.min == terminate.tls_version_min
            && known.is_for(client_ca.as_ref())
            && known.of.ticketer.enabled() == tickets.enabled
    };
    if let Some(known) = earlier.and_then(|earlier| earlier.made.iter().find(alike)) {
        return Ok(known.clone());
    }
    let versions: &[&SupportedProtocolVersion] = match terminate.tls_version_min {
        Version::Tls12 => &[&version::TLS13, &version::TLS12],
        Version::Tls13 => &[&version::TLS13],
    };
    let builder =
        ServerConfig::builder_with_provider(PROVIDER.clone()).with_protocol_versions(versions)?;
    let mut group = None;
    let builder = match &client_ca {
        None => builder.with_no_client_auth(),
        Some((path, roots)) => {
            let verifier = client_verifier(path, roots.clone())?;
            group = Some((source(rules, path), verifier.clone()));
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(Chosen));
    config.alpn_protocols.clone_from(&terminate.alpn_select);
    // Clients hold sessions in tickets; a session cache would grow here.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    if tickets.enabled {
        config.ticketer = Arc::new(Ticketer { keys: keys.clone(), client_ca: group });
        config.send_tls13_tickets = TICKETS;
    }
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(Capture);
    let vouched = |known: &&Made| known.client_roots > 0 && known.is_for(client_ca.as_ref());
    let known = earlier.and_then(|earlier| earlier.made.iter().find(vouched));
    let client_roots = match (&client_ca, known) {
        (None, _) => 0,
        (Some(_), Some(known)) => known.client_roots,
        (Some(_), None) => NEXT_ROOTS.fetch_add(1, Relaxed),
    };
    let (of, min) = (Arc::new(config), terminate.tls_version_min);
    Ok(Made { of, min, client_ca, client_roots })
}

impl Made {
    /// Whether it asks for the same client certificates.
    fn is_for(&self, client_ca: Option<&(PathBuf, Arc<RootCertStore>)>) -> bool {
        match (&self.client_ca, client_ca) {
            (None, None) => true,
            (Some((path, roots)), Some((other, others))) => {
                path == other && roots.roots == others.roots
            }
            _ => false,
        }
    }
}

fn client_fault(path: &Path, reason: String) -> TlsError {
    TlsError::ClientCa { path: path.display().to_string(), reason }
}

fn client_roots(path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let fault = |reason| client_fault(path, reason);
    let mut roots = RootCertStore::empty();
    let text = certificate::read(path).map_err(|error| fault(error.to_string()))?;
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| fault(error.to_string()))?;
        roots.add(certificate).map_err(|error| fault(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(fault("no certificate in it".into()));
    }
    Ok(Arc::new(roots))
}

fn client_verifier(
    path: &Path,
    roots: Arc<RootCertStore>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    WebPkiClientVerifier::builder_with_provider(roots, PROVIDER.clone())
        .build()
        .map(client_chain::none_empty)
        .map_err(|error| client_fault(path, error.to_string()))
}

/// Calls rustls with the certificates that its resolver will return. rustls calls the resolver
/// synchronously, inside this call, so all rules can share one configuration.
pub fn with_certificates<T>(certificates: &Arc<Certificates>, call: impl FnOnce() -> T) -> T {
    let before = CHOSEN.replace(Some(certificates.clone()));
    let result = call();
    CHOSEN.set(before);
    result
}

/// The resolver of every configuration. It returns the certificates of the decided rule.
#[derive(Debug)]
struct Chosen;

impl ResolvesServerCert for Chosen {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        CHOSEN.with_borrow(|chosen| {
            let chosen = chosen.as_deref()?;
            // rustls has removed schemes that do not fit the version and the suites.
            let fits = |certificate: &&Certificate| {
                certificate.key.choose_scheme(hello.signature_schemes()).is_some()
            };
            // If none fits, the first one makes rustls report why.
            chosen.iter().find(fits).or(chosen.first()).map(Certificate::certified)
        })
    }
}

/// Seals and opens the tickets of the rules with one `client_ca`, or of those without.
#[derive(Debug)]
struct Ticketer {
    keys: Arc<TicketKeys>,
    client_ca: Option<(SourceId, Arc<dyn ClientCertVerifier>)>,
}

impl Ticketer {
    /// Binds a ticket to `client_ca` and to the certificates of the decided rule.
    fn group(&self) -> Vec<u8> {
        let client_ca = self.client_ca.as_ref().map_or(SourceId::NONE, |(source, _)| *source);
        let mut group = client_ca.bytes().to_vec();
        CHOSEN.with_borrow(|chosen| {
            let certificates = chosen.iter().flat_map(|chosen| chosen.iter());
            certificates.for_each(|certificate| group.extend(certificate.source.bytes()));
        });
        group
    }

    /// Whether today's `client_ca` still vouches for the client of a session. rustls does not check
    /// it again.
    fn still_vouches(&self, session: &[u8]) -> bool {
        let Some((_, verifier)) = &self.client_ca else { return true };
        let Some(chain) = client_certificates(session) else { return false };
        let Some((leaf, issuers)) = chain.split_first() else { return false };
        verifier.verify_client_cert(leaf, issuers, UnixTime::now()).is_ok()
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.keys.lifetime_secs()
    }

    fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
        self.keys.seal(&self.group(), session)
    }

    /// `None` makes the handshake a full one.
    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let session = self.keys.open(&self.group(), ticket)?;
        self.still_vouches(&session).then_some(session)
    }
}

/// The application traffic secrets of a TLS 1.3 handshake, generation 0, and the client's handshake
/// secret.
#[derive(Default)]
pub struct TrafficSecrets {
    /// For opening the client's Finished: it distinguishes that from early data, which is skipped.
    pub client_handshake: Zeroizing<Vec<u8>>,
    /// For the client's records.
    pub client: Zeroizing<Vec<u8>>,
    /// For our records.
    pub server: Zeroizing<Vec<u8>>,
}

thread_local! {
    /// Filled while rustls runs: it calls its key log synchronously, inside our call.
    static CAPTURED: RefCell<TrafficSecrets> = RefCell::default();
    static CHOSEN: RefCell<Option<Arc<Certificates>>> = const { RefCell::new(None) };
}

/// Takes the secrets that the key log received since the last call on this thread.
pub fn take_captured() -> TrafficSecrets {
    CAPTURED.take()
}

/// A key log that keeps these secrets for the handover and writes nothing.
struct Capture;

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capture")
    }
}

impl KeyLog for Capture {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        CAPTURED.with_borrow_mut(|captured| match label {
            "CLIENT_HANDSHAKE_TRAFFIC_SECRET" => {
                captured.client_handshake = Zeroizing::new(secret.to_vec());
            }
            "CLIENT_TRAFFIC_SECRET_0" => captured.client = Zeroizing::new(secret.to_vec()),
            "SERVER_TRAFFIC_SECRET_0" => captured.server = Zeroizing::new(secret.to_vec()),
            _ => {}
        });
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(
            label,
            "CLIENT_HANDSHAKE_TRAFFIC_SECRET"
                | "CLIENT_TRAFFIC_SECRET_0"
                | "SERVER_TRAFFIC_SECRET_0"
        )
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        Self::other(error)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::fs;

    use super::*;
    use eyelet_config::{Depth, load};

    #[test]
    fn certificates_that_were_not_used_lately_go_first_and_come_again() {
        let folder = std::env::temp_dir().join(format!("eyelet-tls-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut text = String::from("[[listener]]\naddress = \"127.0.0.1:0\"\n");
        for name in ["a.test", "b.test", "c.test", "d.test"] {
            let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
            fs::write(folder.join(format!("{name}.pem")), made.cert.pem()).unwrap();
            fs::write(folder.join(format!("{name}.key")), made.signing_key.serialize_pem())
                .unwrap();
            text += &format!(
                "[[rule]]\nsni = \"{name}\"\naction = \"terminate\"\nupstream = \"tcp://a:1\"\n\
                 certificate = \"{name}.pem\"\nkey = \"{name}.key\"\n"
            );
        }
        fs::write(folder.join("edge.toml"), text).unwrap();
        let mut config = load(&folder.join("edge.toml"), Depth::Files).unwrap().config;
        // Room for three: a leaf has less than 500 bytes.
        config.limits.memory_max = CERTIFICATES_PART * 3 * (KEY_BYTES + 500);
        let store = Store::new(&config);
        let held = || -> Vec<bool> {
            store.slots.iter().map(|slot| lock(slot).certificates.is_some()).collect()
        };
        let load = |set| drop(store.of(&config.rules, set).unwrap());
        (0..3).for_each(load);
        assert_eq!(held(), [true, true, true, false]);
        // All were used since the hand passed them: the first goes, and all marks are cleared.
        load(3);
        assert_eq!(held(), [false, true, true, true]);
        // The second was used since then, the third was not.
        load(1);
        load(0);
        assert_eq!(held(), [true, true, false, true]);
        let slots = store.slots.iter();
        let sum: usize = slots.map(|s| lock(s).certificates.as_deref().map_or(0, bytes)).sum();
        assert_eq!(store.loaded.load(Relaxed), sum);
        fs::remove_dir_all(&folder).unwrap();
    }
}

//! rustls' server configurations, shared by rules that differ in certificates only. The files that
//! they were made from may change: what was read from them is replaced.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustls::compress::{CertCompressor, CompressionCache, CompressionFailed, CompressionLevel};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateCompressionAlgorithm, KeyLog, ServerConfig, SupportedProtocolVersion, version,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use zeroize::Zeroizing;

use crate::certificates::{
    Certificate, CertificateMaker, CertificateStore, Certificates, Described, PairPlaces,
};
use crate::compression::ChainCoding;
pub use crate::error::TlsError;
use crate::local::LocalCertificates;
use crate::mint::MintedCertificates;
use crate::provider::PROVIDER;
use crate::tickets::{SourceId, TicketKeys, client_certificates};
use crate::verify::authorities::{Authorities, ClientFiles};
use crate::verify::client_trust::ClientTrust;
use crate::workload::Workload;
use eyelet_config::{
    Action, CertificateFiles, CertificateSource, Config, RuleList, RunAuthority, Terminate,
    UnchangedPairs, Version,
};
use eyelet_local_ca::LocalCaError;
use eyelet_memory::budget::Budget;
use eyelet_pki::certificate::{self, AuthorityFault, CertificateError, Description, Pair};
use eyelet_pki::crl::Revocations;
use eyelet_sys::file::{Stamp, regular_mode};

/// Tickets sent after a full or resumed TLS 1.3 handshake. One, as in Go: every connection brings
/// the next one's, and each costs a client 220 bytes and us a key derivation.
const TICKETS: usize = 1;

/// The codings of certificates that a client may ask for, the better one first (RFC 8879). zstd is
/// left out: no client of note asks for it alone.
const CODINGS: [&dyn CertCompressor; 2] = [&ChainCoding::Brotli, &ChainCoding::Zlib];

/// The rustls configurations and the certificates of all terminate rules. Rules that differ only in
/// their certificates share a configuration.
pub struct ServerConfigs {
    /// By action: an index into `made`. Only those of terminate rules are used.
    by_action: Box<[u32]>,
    made: Box<[Arc<Made>]>,
    tickets: TicketSettings,
    certificates: CertificateStore,
    /// The certificates that are signed here, if a rule has some.
    local: Option<Arc<LocalCertificates>>,
    /// The minted certificates, if a rule mints.
    mint: Option<Arc<MintedCertificates>>,
    /// The authority of rules that mint and have none, in the run of a sandbox.
    run: Option<Arc<Certificates>>,
    /// The newest message of the SPIFFE Workload API.
    workload: Arc<Workload>,
}

/// The settings of tickets: what seals them.
#[derive(Clone)]
struct TicketSettings {
    keys: Arc<TicketKeys>,
    /// True if clients get tickets.
    are_enabled: bool,
}

/// A rustls configuration, and who verifies its clients.
struct Made {
    alpn: Vec<Vec<u8>>,
    min: Version,
    /// Stands for `client_ca` or `client_spiffe` in tickets.
    source: SourceId,
    has_tickets: bool,
    /// Replaced when the files of its clients' authorities change.
    built: Mutex<Built>,
}

#[derive(Clone)]
struct Built {
    config: Arc<ServerConfig>,
    /// `None`: no certificate is asked for.
    clients: Option<ClientTrust>,
}

/// The configuration of a handshake.
pub struct Handshake {
    /// rustls' configuration.
    pub config: Arc<ServerConfig>,
    /// The certificates to choose from.
    pub certificates: Arc<Certificates>,
    /// The authorities that verify the client, as [`ServerConfigs::client_roots`].
    pub client_roots: u64,
}

impl ServerConfigs {
    /// Reads every file, and makes the configurations for `config`. `keys` seal the tickets.
    pub fn new(
        config: &Config,
        keys: &Arc<TicketKeys>,
        earlier: Option<(&Self, &RuleList)>,
    ) -> Result<Self, TlsError> {
        let (mut by_action, mut made) = (vec![0; config.rules.actions_len()], Vec::new());
        let mut settings = HashMap::new();
        let tickets = TicketSettings { keys: keys.clone(), are_enabled: config.tickets.enabled };
        let known = earlier.map_or(&[][..], |(earlier, _)| &earlier.made);
        let workload = earlier.map_or_else(Arc::default, |(earlier, _)| earlier.workload.clone());
        for rule in config.rules.iter() {
            let Action::Terminate(terminate) = rule.action else { continue };
            let clients = (ClientFiles::of(terminate), &terminate.client_spiffe);
            let key = (&terminate.alpn_select, clients, terminate.tls_version_min);
            let index = match settings.entry(key) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    let authorities = authorities(made.iter().chain(known));
                    let clients = ClientTrust::read(terminate, &workload, &authorities)?;
                    made.push(make(&config.rules, terminate, clients, &tickets, known)?);
                    *new.insert((made.len() - 1) as u32)
                }
            };
            by_action[rule.action_number as usize] = index;
        }
        let certificates = CertificateStore::new(
            config,
            earlier.map(|(earlier, rules)| (&earlier.certificates, rules)),
        )?;
        let local = LocalCertificates::new(config, earlier.and_then(|e| e.0.local.as_ref()))?;
        let mint = match earlier.and_then(|e| e.0.mint.clone()).filter(|_| config.mints()) {
            None if config.mints() => {
                Some(Arc::new(MintedCertificates::new().map_err(TlsError::Local)?))
            }
            known => known,
        };
        let run = config.run_authority.as_ref().map(of_run).transpose()?;
        let (by_action, made) = (by_action.into(), made.into());
        let configs = Self { by_action, made, tickets, certificates, local, mint, run, workload };
        configs.check_authorities(&config.rules)?;
        Ok(configs)
    }

    /// Fails where a rule mints by a pair that is no authority's. One that has expired harms its
    /// own rule only: [`Self::mint`] fails then.
    fn check_authorities(&self, rules: &RuleList) -> Result<(), TlsError> {
        for number in minting(rules) {
            let Ok(pair) = self.certificates.of(number) else { continue };
            if let (Some(pair), Some(files)) = (pair.first(), rules.certificates(number).next()) {
                check_authority(pair, &files).map_err(|fault| mint_fault(&files, fault))?;
            }
        }
        Ok(())
    }

    /// The certificate that a rule shows instead of an origin's, signed by the rule's authority, or
    /// by one that nobody trusts. It costs one signature for each certificate of an origin.
    ///
    /// # Errors
    /// If the authority cannot sign, or the origin's certificate cannot be parsed.
    pub fn mint(
        &self,
        rules: &RuleList,
        rule: u32,
        (origin, is_trusted): (&CertificateDer<'_>, bool),
        budget: &Arc<Budget>,
    ) -> Result<Arc<Certificates>, TlsError> {
        let pair = self.certificates.of(rules.at(rule).certificates_number);
        let pair = pair.map_err(TlsError::Unread)?;
        let of_run = || self.run.as_ref()?.first();
        let (Some(mint), Some(authority)) = (&self.mint, pair.first().or_else(of_run)) else {
            return Err(TlsError::Unread("no authority".into()));
        };
        if let (Err(fault), Some(files)) =
            (check_dates(authority), rules.certificates(rules.at(rule).certificates_number).next())
        {
            return Err(mint_fault(&files, fault));
        }
        mint.of(authority, (origin, is_trusted), budget).map_err(TlsError::Local)
    }

    /// The authorities of a terminate rule's clients, as a number that never means others; 0: it
    /// asks for no certificate.
    pub fn client_roots(&self, rules: &RuleList, rule: u32) -> u64 {
        let action = rules.get(rule as usize).map(|rule| rule.action_number as usize);
        let made = action.and_then(|action| self.by_action.get(action));
        let made = made.and_then(|made| self.made.get(*made as usize));
        made.map_or(0, |made| made.built.lock().client_roots())
    }

    /// Returns the time at which the first revocation list of clients' authorities expires, in
    /// seconds since 1970, and how many certificates are on all of them. `None`: no rule has any.
    pub fn revocations(&self) -> Option<(u64, usize)> {
        let mut all: Vec<Arc<Revocations>> = Vec::new();
        for made in &self.made {
            let authorities = made.authorities();
            let lists = authorities.as_ref().and_then(|authorities| authorities.revocations());
            if !lists.is_some_and(|lists| all.iter().any(|known| Arc::ptr_eq(known, lists))) {
                all.extend(lists.cloned());
            }
        }
        let lists = all.iter().filter_map(|lists| Some((lists.soonest_expiry()?, lists.entries())));
        lists.reduce(|one, other| (one.0.min(other.0), one.1 + other.1))
    }

    /// Returns the parts that a handshake of this terminate rule needs, with a client that asks for
    /// `name`. It reads no file.
    pub fn of(
        &self,
        rules: &RuleList,
        rule: u32,
        name: Option<&str>,
    ) -> Result<Handshake, TlsError> {
        let rule = rules.at(rule);
        let made = &self.made[self.by_action[rule.action_number as usize] as usize];
        let built = made.built.lock().clone();
        let source = match rule.action {
            Action::Terminate(terminate) => terminate.certificates,
            Action::Originate(_) | Action::Splice(_) | Action::Refuse(_) => {
                CertificateSource::Files
            }
        };
        let certificates = match (source, &self.local) {
            (CertificateSource::Local(names), Some(local)) => local.of(name, names)?,
            // An authority is never shown. What it signs comes from `mint`, and that of a workload
            // from `workload`.
            (CertificateSource::Mint | CertificateSource::Spiffe, _) => Arc::new([]),
            _ => self.certificates.of(rule.certificates_number).map_err(TlsError::Unread)?,
        };
        Ok(Handshake { client_roots: built.client_roots(), config: built.config, certificates })
    }

    /// The newest message of the SPIFFE Workload API. It outlives reloads.
    pub fn workload(&self) -> &Arc<Workload> {
        &self.workload
    }

    /// Reads again each file that has changed, or could not be read. `note` gets the first file of
    /// each source that was read, and whether it was replaced, or why it was not.
    pub fn refresh(&self, rules: &RuleList, mut note: impl FnMut(&Path, Result<bool, TlsError>)) {
        for made in &self.made {
            let Some(before) = made.authorities() else { continue };
            let Some(path) = before.changed() else { continue };
            let renewed = Authorities::read(before.files(), &authorities(&self.made))
                .and_then(|authorities| made.renew(authorities, &self.tickets));
            note(path, renewed);
        }
        if let Some((path, result)) = self.local.as_ref().and_then(|local| local.refresh()) {
            note(&path, result.map_err(TlsError::from));
        }
        let minting: HashSet<u32> = minting(rules).collect();
        let check = |number, set: &Certificates, files: &CertificateFiles| {
            let Some(pair) = set.first().filter(|_| minting.contains(&number)) else {
                return Ok(());
            };
            let checked = check_authority(pair, files).and_then(|()| check_dates(pair));
            let file = || files.certificate.clone();
            checked.map_err(|fault| CertificateError::Authority { file: file(), fault })
        };
        self.certificates.refresh(rules, check, |files, result| {
            note(&files.certificate, result.map_err(TlsError::from));
        });
    }

    /// Describes the certificates of `config`, which this was made from, whose files have not
    /// changed since they were read.
    pub fn unchanged(self: &Arc<Self>, config: &Arc<Config>) -> UnchangedPairs {
        let (tls, config) = (self.clone(), config.clone());
        let places = PairPlaces::new(&config.rules);
        Box::new(move |files| {
            let place = places.of(&config.rules, files)?;
            tls.certificates.describe(place, files)
        })
    }

    /// Describes the certificates of a set from files as they are served now, or why one is not.
    /// The sets have the numbers below [`RuleList::certificates_len`].
    pub fn describe_set(&self, rules: &RuleList, number: u32) -> Vec<Described> {
        self.certificates.describe_set(rules, number)
    }

    /// Returns the time at which each certificate of such a set expires, in seconds since 1970.
    /// `None`: it cannot be read. Each is parsed once.
    pub fn expiries(&self, rules: &RuleList, number: u32) -> Vec<Option<i64>> {
        self.certificates.expiries(rules, number)
    }

    /// Describes the authority that signs certificates on the spot, with the file of its
    /// certificate. What it signs ends before it does. `None`: no rule needs it.
    pub fn describe_local(&self) -> Option<(PathBuf, Option<Description>)> {
        self.local.as_ref().map(|local| local.describe())
    }

    /// The files that it was made from.
    pub fn files<'a>(&'a self, rules: &'a RuleList) -> impl Iterator<Item = Cow<'a, Path>> + 'a {
        let paths = |of: &Authorities| of.files().paths().map(Path::to_owned).collect::<Vec<_>>();
        let authorities = self.made.iter().filter_map(|made| made.authorities());
        let authorities = authorities.flat_map(move |of| paths(&of));
        let sets = (0..rules.certificates_len() as u32).flat_map(|set| rules.certificates(set));
        let pairs = sets.flat_map(|files| [files.certificate, files.key].map(Cow::Owned));
        let local = self.local.iter().map(|local| Cow::Owned(local.file()));
        authorities.map(Cow::Owned).chain(pairs).chain(local)
    }
}

/// The sets of certificates that rules mint by.
fn minting(rules: &RuleList) -> impl Iterator<Item = u32> + '_ {
    let mints = |action: &Action| match action {
        Action::Terminate(rule) => rule.certificates == CertificateSource::Mint,
        Action::Originate(_) | Action::Splice(_) | Action::Refuse(_) => false,
    };
    let minting = rules.iter().filter(move |rule| mints(rule.action));
    minting.map(|rule| rule.certificates_number)
}

/// The authority of a run, as certificates of files are.
fn of_run(authority: &RunAuthority) -> Result<Arc<Certificates>, TlsError> {
    let key = Zeroizing::new(authority.key.clone_key());
    let failed = || TlsError::Local(LocalCaError::Library("its own key cannot sign".into()));
    let signing = certificate::signing_key(&key).ok_or_else(failed)?;
    let certified = CertifiedKey::new(vec![authority.certificate.clone()], signing);
    let pair = Pair { certified, key, stamps: [Stamp::default(); 2] };
    Ok(CertificateMaker::new().make(pair, SourceId::NONE))
}

/// Checks that a pair may sign, whatever its dates, and that nobody else may read its key.
fn check_authority(pair: &Certificate, files: &CertificateFiles) -> Result<(), AuthorityFault> {
    let unusable = |why: String| AuthorityFault::Unusable(why);
    let mode = regular_mode(&files.key);
    let mode = mode.map_err(|why| unusable(format!("{}: {why}", files.key.display())))?;
    certificate::check_key_mode(&files.key, mode)?;
    let leaf = pair.chain().next().ok_or(AuthorityFault::Unreadable)?;
    certificate::check_authority(&leaf)?;
    pair.authority().map(drop).map_err(|why| unusable(why.to_string()))
}

fn check_dates(pair: &Certificate) -> Result<(), AuthorityFault> {
    let leaf = pair.chain().next().ok_or(AuthorityFault::Unreadable)?;
    certificate::check_authority_dates(&leaf, SystemTime::now())
}

fn mint_fault(files: &CertificateFiles, fault: AuthorityFault) -> TlsError {
    TlsError::MintAuthority { path: files.certificate.display().to_string(), fault }
}

impl Built {
    fn client_roots(&self) -> u64 {
        self.clients.as_ref().map_or(0, ClientTrust::number)
    }
}

/// The authorities of clients.
fn authorities<'a>(of: impl IntoIterator<Item = &'a Arc<Made>>) -> Vec<Arc<Authorities>> {
    of.into_iter().filter_map(|made| made.authorities()).collect()
}

impl Made {
    /// The authorities of its clients, if they come from files.
    fn authorities(&self) -> Option<Arc<Authorities>> {
        self.built.lock().clients.as_ref()?.authorities().cloned()
    }

    /// Verifies clients by other authorities from now on, if they differ. Returns whether they do.
    fn renew(
        &self,
        authorities: Arc<Authorities>,
        tickets: &TicketSettings,
    ) -> Result<bool, TlsError> {
        let (before, clients) = (self.built.lock().clone(), ClientTrust::Authorities(authorities));
        let differs = !before.clients.is_some_and(|known| known.is_as(&clients));
        let config = match differs {
            true => build(&self.alpn, self.min, Some((self.source, &clients)), tickets)?,
            false => before.config,
        };
        *self.built.lock() = Built { config, clients: Some(clients) };
        Ok(differs)
    }
}

fn make(
    rules: &RuleList,
    terminate: &Terminate,
    clients: Option<ClientTrust>,
    tickets: &TicketSettings,
    known: &[Arc<Made>],
) -> Result<Arc<Made>, TlsError> {
    let alike = |known: &&Arc<Made>| {
        known.alpn == terminate.alpn_select
            && known.min == terminate.tls_version_min
            && known.has_tickets == tickets.are_enabled
            && match (&known.built.lock().clients, &clients) {
                (Some(known), Some(new)) => known.is_as(new),
                (known, new) => known.is_none() && new.is_none(),
            }
    };
    if let Some(known) = known.iter().find(alike) {
        return Ok(known.clone());
    }
    let (alpn, min) = (terminate.alpn_select.clone(), terminate.tls_version_min);
    let source = clients.as_ref().map_or(SourceId::NONE, |clients| clients.source(rules));
    let config = build(&alpn, min, clients.as_ref().map(|clients| (source, clients)), tickets)?;
    let built = Mutex::new(Built { config, clients });
    let has_tickets = tickets.are_enabled;
    Ok(Arc::new(Made { alpn, min, source, has_tickets, built }))
}

fn build(
    alpn: &[Vec<u8>],
    min: Version,
    clients: Option<(SourceId, &ClientTrust)>,
    tickets: &TicketSettings,
) -> Result<Arc<ServerConfig>, TlsError> {
    let versions: &[&SupportedProtocolVersion] = match min {
        Version::Tls12 => &[&version::TLS13, &version::TLS12],
        Version::Tls13 => &[&version::TLS13],
    };
    let builder =
        ServerConfig::builder_with_provider(PROVIDER.clone()).with_protocol_versions(versions)?;
    let mut group = None;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some((source, clients)) => {
            let verifier = clients.verifier()?;
            group = Some((source, verifier.clone()));
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(Chosen));
    config.alpn_protocols = alpn.to_vec();
    // Clients hold sessions in tickets; a session cache would grow here.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    if tickets.are_enabled {
        config.ticketer = Arc::new(Ticketer { keys: tickets.keys.clone(), client_ca: group });
        config.send_tls13_tickets = TICKETS;
    }
    config.cert_compressors = CODINGS.to_vec();
    // Each certificate has its own, which also knows what does not shrink.
    config.cert_compression_cache = Arc::new(CompressionCache::Disabled);
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(Capture);
    Ok(Arc::new(config))
}

/// The configuration for validations by TLS-ALPN-01 (RFC 8737): TLS 1.2 or later, this protocol
/// alone, and no session to resume.
///
/// # Errors
/// If rustls refuses it.
pub fn for_validation() -> Result<Arc<ServerConfig>, TlsError> {
    // No key is ever made: tickets are off.
    let keys = Arc::new(TicketKeys::new(Duration::ZERO));
    let tickets = TicketSettings { keys, are_enabled: false };
    build(&[ACME_TLS.to_vec()], Version::Tls12, None, &tickets)
}

/// The protocol of TLS-ALPN-01 in ALPN (RFC 8737 section 6.2).
pub const ACME_TLS: &[u8] = b"acme-tls/1";

/// Calls rustls with the certificates that its resolver will return. rustls calls the resolver
/// synchronously, inside this call, so all rules can share one configuration.
pub fn with_certificates<T>(certificates: &Arc<Certificates>, call: impl FnOnce() -> T) -> T {
    let before = CHOSEN.replace(Some(certificates.clone()));
    let result = call();
    CHOSEN.set(before);
    result
}

impl CertCompressor for ChainCoding {
    /// Takes the coded form from the certificate of this handshake. An error sends the message as
    /// it is.
    fn compress(
        &self,
        message: Vec<u8>,
        _: CompressionLevel,
    ) -> Result<Vec<u8>, CompressionFailed> {
        let coded = |certificate: &Certificate| certificate.compressed(*self, &message);
        picked(coded).flatten().ok_or(CompressionFailed)
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        match self {
            Self::Brotli => CertificateCompressionAlgorithm::Brotli,
            Self::Zlib => CertificateCompressionAlgorithm::Zlib,
        }
    }
}

/// Calls with the certificate that the resolver has returned in this call of rustls.
fn picked<T>(call: impl FnOnce(&Certificate) -> T) -> Option<T> {
    CHOSEN.with_borrow(|chosen| chosen.as_deref()?.get(PICKED.get()).map(call))
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
                let key = certificate.signing_key();
                key.is_some_and(|key| key.choose_scheme(hello.signature_schemes()).is_some())
            };
            let fitting = chosen.iter().position(|certificate| fits(&certificate));
            UNFIT.set(fitting.is_none());
            PICKED.set(fitting.unwrap_or(0));
            // A resumed session needs no certificate. In other handshakes rustls fails when it is
            // about to sign.
            chosen.get(PICKED.get()).and_then(Certificate::certified)
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
            certificates.for_each(|certificate| group.extend(certificate.source().bytes()));
        });
        group
    }

    /// True if today's `client_ca` still vouches for the client of a session. rustls does not check
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
    /// The index of the certificate that the resolver has returned.
    static PICKED: Cell<usize> = const { Cell::new(0) };
    /// The last hello that was resolved has no signature scheme in common with its certificates.
    static UNFIT: Cell<bool> = const { Cell::new(false) };
}

/// True if rustls has just resolved a hello that has no signature scheme for any certificate.
pub fn take_unfit() -> bool {
    UNFIT.take()
}

/// Takes the secrets that the key log received since the last call on this thread.
pub fn take_captured() -> TrafficSecrets {
    CAPTURED.take()
}

/// A key log that keeps these secrets for the handover and writes nothing.
pub(crate) struct Capture;

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

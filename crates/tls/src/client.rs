//! rustls' configurations for upstreams with TLS: four for each set of files: roots, and a
//! certificate for upstreams that ask. They may change: what was made of them is replaced.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, ClientConfig, Error, InvalidMessage, NoKeyLog, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::provider::PROVIDER;
use crate::roots;
use crate::server::{Capture, TlsError};
use crate::verify::pinned::{IS_AUTHORITY, Pinned, PinningVerifier};
use crate::verify::revoked::{self, ServerVerifier};
use crate::verify::spiffe_verifier::{ShowsSvid, SpiffeVerifier};
use crate::workload::Workload;
use eyelet_config::{Config, UpstreamFiles, UpstreamTls};
use eyelet_pki::certificate;
use eyelet_pki::crl::Revocations;
use eyelet_sys::file::Stamp;
use eyelet_wire::alert::AlertDescription;

/// The versions of HTTP that are offered on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Spoken {
    /// The upstream chooses.
    Either,
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/2 alone.
    Http2,
}

/// The configurations of all https:// upstreams.
#[derive(Default)]
pub struct ClientConfigs {
    by_files: HashMap<UpstreamFiles, Mutex<Made>>,
    workload: Arc<Workload>,
}

/// The values that were made of the files for upstreams.
#[derive(Clone)]
struct Made {
    offers: Offers,
    stamps: Stamps,
}

/// The versions of files. The system's roots have none.
#[derive(Clone)]
struct Stamps {
    ca: Option<Stamp>,
    /// Those of a certificate and its key.
    pair: Option<[Stamp; 2]>,
    /// Those of revocation lists.
    crl: Vec<Stamp>,
}

/// The contents of the files.
struct Contents {
    trust: UpstreamTrust,
    shown: OwnCertificate,
}

/// The verifier of an upstream.
enum UpstreamTrust {
    /// Authorities, those of them that are servers, too, and revocation lists.
    Authorities(Arc<RootCertStore>, Arc<Pinned>, Option<Arc<Revocations>>),
    /// The newest bundle of its trust domain.
    Spiffe(SpiffeVerifier),
}

/// The certificate for an upstream that asks for one.
#[derive(Clone)]
enum OwnCertificate {
    Nothing,
    /// A certificate of files.
    Pair(Arc<CertifiedKey>),
    /// The newest one of the SPIFFE Workload API.
    Svid(Arc<Workload>),
}

/// A set of roots. One that was read again and has not changed is the same.
#[derive(Clone, Debug)]
pub struct Roots {
    store: Arc<RootCertStore>,
}

impl PartialEq for Roots {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.store, &other.store)
    }
}

/// Configurations of the same files, which differ in ALPN. The record layer gets their secrets:
/// [`crate::client_handshake`].
#[derive(Clone)]
struct Offers {
    /// `None`: the upstream is verified by its SPIFFE id.
    authorities: Option<(Roots, Arc<ServerVerifier>)>,
    shown: OwnCertificate,
    either: Arc<ClientConfig>,
    one: Arc<ClientConfig>,
    two: Arc<ClientConfig>,
    /// Without ALPN.
    bytes: Arc<ClientConfig>,
}

impl ClientConfigs {
    /// Reads every file that a rule names, and the system's roots if a rule names none. What
    /// `earlier` made of the same contents is used again.
    pub fn new(
        config: &Config,
        workload: &Arc<Workload>,
        earlier: Option<&Self>,
    ) -> Result<Self, TlsError> {
        let mut by_files = HashMap::new();
        for rule in config.rules.iter() {
            let Some(terminate) = rule.action.requests() else { continue };
            // All upstreams of a rule have the same files.
            let Some(tls) = terminate.upstream.tls() else { continue };
            if !by_files.contains_key(&tls.files) {
                let known = earlier.and_then(|earlier| earlier.by_files.get(&tls.files));
                let known = known.map(|made| made.lock().clone());
                let made = Made::of(&tls.files, workload, known)?;
                by_files.insert(tls.files.clone(), Mutex::new(made));
            }
        }
        Ok(Self { by_files, workload: workload.clone() })
    }

    /// The roots that verify an upstream. A file of the same name may hold others later. `None`: it
    /// is verified by its SPIFFE id.
    pub fn roots(&self, tls: &UpstreamTls) -> Option<Roots> {
        Some(self.offers(tls)?.authorities?.0)
    }

    /// The configuration for an upstream.
    pub fn of(&self, tls: &UpstreamTls, spoken: Spoken) -> Option<Arc<ClientConfig>> {
        let offers = self.offers(tls)?;
        Some(match spoken {
            Spoken::Either => offers.either,
            Spoken::Http1 => offers.one,
            Spoken::Http2 => offers.two,
        })
    }

    /// The configuration for a `tls://` upstream.
    pub fn of_bytes(&self, tls: &UpstreamTls) -> Option<Arc<ClientConfig>> {
        Some(self.offers(tls)?.bytes)
    }

    /// True if the roots for an upstream lead to a chain, as [`is_trusted`], or its leaf is one.
    pub fn trusts(&self, tls: &UpstreamTls, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        let authorities = self.offers(tls).and_then(|offers| offers.authorities);
        authorities.is_some_and(|(_, by)| is_trusted(&by.verifier, chain, now))
    }

    /// Returns what is wrong with a server's chain by the roots for an upstream.
    pub fn fault(
        &self,
        tls: &UpstreamTls,
        server: &ServerName<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Option<Error> {
        let [leaf, issuers @ ..] = chain else { return None };
        let (_, verifier) = self.offers(tls)?.authorities?;
        verifier.verify_server_cert(leaf, issuers, server, &[], now).err()
    }

    /// The files that it was made from. The system's roots are not among them.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.by_files.keys().flat_map(files)
    }

    /// Reads again what has changed. `note` gets each file that has changed, and whether what was
    /// made of it was replaced, or why it was not. Returns whether anything was.
    pub fn refresh(&self, mut note: impl FnMut(&Path, Result<bool, TlsError>)) -> bool {
        let mut is_any_new = false;
        for (of, made) in &self.by_files {
            let known = made.lock().stamps.clone();
            let Some(path) = changed(of, &known) else { continue };
            let renewed = renew(of, made, &self.workload);
            is_any_new |= matches!(renewed, Ok(true));
            note(path, renewed);
        }
        is_any_new
    }

    fn offers(&self, tls: &UpstreamTls) -> Option<Offers> {
        self.by_files.get(&tls.files).map(|made| made.lock().offers.clone())
    }
}

/// True if a root leads to a chain, whatever name its leaf is for, and whether or not the leaf is
/// valid now. These two are for whoever sees the leaf.
pub fn is_trusted(
    verifier: &dyn ServerCertVerifier,
    chain: &[CertificateDer<'_>],
    now: UnixTime,
) -> bool {
    let Some((leaf, issuers)) = chain.split_first() else { return false };
    let Some(dates) = certificate::describe(leaf) else { return false };
    let secs = |time: i64| u64::try_from(time).unwrap_or(0);
    let (start, end) = (secs(dates.not_before), secs(dates.not_after));
    // A leaf that ends before it begins is valid never.
    let at = now.as_secs().max(start).min(end);
    let at = UnixTime::since_unix_epoch(Duration::from_secs(at));
    // The chain is verified before the name is.
    let any = ServerName::from(Ipv4Addr::UNSPECIFIED);
    let verified = verifier.verify_server_cert(leaf, issuers, &any, &[], at);
    matches!(
        verified,
        Ok(_)
            | Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
            ))
    )
}

/// The faults of a certificate whose authority, or which itself, is not known here.
pub const UNTRUSTED: [&str; 2] = [
    "no authority that is trusted here signed it",
    "it is an authority's own, and not one for a server",
];

/// The fault of a server that answers a hello by something else than a record.
pub const NO_TLS: &str = "the server speaks no TLS";

/// Returns the reason why a handshake with a server failed. rustls says of a server that speaks no
/// TLS which part of a record's header is wrong, and has names of its own for alerts.
pub fn describe(error: &Error) -> String {
    match error {
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) => NO_TLS.into(),
        Error::AlertReceived(alert) => match AlertDescription::from_code((*alert).into()) {
            Some(alert) => format!("the server sent alert {alert}"),
            None => format!("the server sent alert {}", u8::from(*alert)),
        },
        Error::InvalidCertificate(fault) => {
            format!("invalid peer certificate: {}", describe_certificate(fault))
        }
        other => other.to_string(),
    }
}

/// Returns the reason why a stream of TLS to a server has failed.
pub fn describe_stream(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(of_tls) => describe(of_tls),
        // rustls adds a page of its own.
        None if error.kind() == io::ErrorKind::UnexpectedEof => "the server closed it".into(),
        None => error.to_string(),
    }
}

/// Returns the reason why a server's certificate is refused. rustls shows names as it stores them
/// and dates in seconds, and has no words for a fault that only webpki names.
pub fn describe_certificate(fault: &CertificateError) -> String {
    let clock = |time: &UnixTime| certificate::date(time.as_secs());
    match fault {
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|name| shown_name(name)).collect();
            let own = if names.is_empty() { "nothing".into() } else { names.join(", ") };
            format!("not valid for name \"{}\"; it is for {own}", expected.to_str())
        }
        CertificateError::ExpiredContext { time, not_after } => {
            let (clock, end) = (clock(time), clock(not_after));
            format!("it expired on {end}; this machine's clock says {clock}")
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            let (clock, begin) = (clock(time), clock(not_before));
            format!("it is valid from {begin}; this machine's clock says {clock}")
        }
        CertificateError::UnknownIssuer => UNTRUSTED[0].into(),
        CertificateError::Other(fault) => match fault.to_string().as_str() {
            IS_AUTHORITY => UNTRUSTED[1].to_owned(),
            other => other.to_owned(),
        },
        other => other.to_string(),
    }
}

/// The name in rustls' `DnsName("a.example")`, or the address in `IpAddress(192.0.2.1)`.
fn shown_name(presented: &str) -> &str {
    let inner = presented.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(presented).trim_matches('"')
}

/// Has a configuration give the secrets of its connections to
/// [`crate::client_handshake::ClientHandshake`].
pub fn give_secrets(config: &mut ClientConfig) {
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(Capture);
}

/// A configuration for HTTP/1.1 to a server that is no upstream, verified by the roots of a file or
/// of the system, and the roots.
///
/// # Errors
/// If the roots cannot be read.
pub fn roots_config(
    ca: Option<&Path>,
) -> Result<(Arc<ClientConfig>, Arc<RootCertStore>), TlsError> {
    let (store, ..) = read_roots(ca)?;
    let trust = UpstreamTrust::Authorities(store.clone(), Arc::default(), None);
    let offers = make(Contents { trust, shown: OwnCertificate::Nothing })?;
    let mut config = ClientConfig::clone(&offers.one);
    // rustls keeps its connections: nobody would take the secrets.
    config.enable_secret_extraction = false;
    config.key_log = Arc::new(NoKeyLog);
    Ok((Arc::new(config), store))
}

/// Reads files again. Returns whether what was made of them was replaced.
fn renew(
    of: &UpstreamFiles,
    made: &Mutex<Made>,
    workload: &Arc<Workload>,
) -> Result<bool, TlsError> {
    // Read without the lock, which dials take.
    let (contents, stamps) = read(of, workload)?;
    // Long lists are compared without it, too.
    let known = made.lock().offers.clone();
    let differs = !known.are_of(&contents);
    let offers = differs.then(|| make(contents)).transpose()?;
    let mut made = made.lock();
    made.stamps = stamps;
    if let Some(offers) = offers {
        made.offers = offers;
    }
    Ok(differs)
}

/// The first of the files that has changed since it was read.
fn changed<'a>(of: &'a UpstreamFiles, known: &Stamps) -> Option<&'a Path> {
    let stamps = known.ca.iter().chain(known.pair.iter().flatten()).chain(&known.crl);
    let mut each = files(of).zip(stamps);
    each.find(|(path, known)| !known.is_same(Stamp::at(path))).map(|(path, _)| path)
}

/// The paths, in the order of their [`Stamps`].
fn files(of: &UpstreamFiles) -> impl Iterator<Item = &Path> {
    let pair = of.certificate.as_ref().map(|pair| [&*pair.certificate, &*pair.key]);
    let crl = of.crl.iter().map(|path| &**path);
    of.ca.as_deref().into_iter().chain(pair.into_iter().flatten()).chain(crl)
}

impl Made {
    /// Reads files, unless `known` has them: a revocation list may be long. What `known` made of
    /// the same contents is used again, and so are kept connections.
    fn of(
        of: &UpstreamFiles,
        workload: &Arc<Workload>,
        known: Option<Self>,
    ) -> Result<Self, TlsError> {
        let known = match known {
            Some(known) if known.is_current(of) => return Ok(known),
            known => known.map(|known| known.offers),
        };
        let (contents, stamps) = read(of, workload)?;
        let offers = match known.filter(|known| known.are_of(&contents)) {
            Some(known) => known,
            None => make(contents)?,
        };
        Ok(Self { offers, stamps })
    }

    /// True if all is of files that have not changed. The system's roots are of none.
    fn is_current(&self, of: &UpstreamFiles) -> bool {
        self.stamps.ca.is_some() && changed(of, &self.stamps).is_none()
    }
}

impl Offers {
    /// True if they were made of the same contents.
    fn are_of(&self, contents: &Contents) -> bool {
        let is_same_trust = match (&self.authorities, &contents.trust) {
            (Some((roots, verifier)), UpstreamTrust::Authorities(read, pinned, lists)) => {
                verifier.revocations == *lists
                    && verifier.verifier.pins(pinned)
                    && roots.store.roots == read.roots
            }
            // The ids are no contents of files.
            (None, UpstreamTrust::Spiffe(_)) => true,
            (Some(_), UpstreamTrust::Spiffe(_)) | (None, UpstreamTrust::Authorities(..)) => false,
        };
        is_same_trust && self.shown == contents.shown
    }
}

impl PartialEq for OwnCertificate {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, Self::Nothing) | (Self::Svid(_), Self::Svid(_)) => true,
            (Self::Pair(one), Self::Pair(other)) => one.cert == other.cert,
            (Self::Nothing | Self::Pair(_) | Self::Svid(_), _) => false,
        }
    }
}

fn read(of: &UpstreamFiles, workload: &Arc<Workload>) -> Result<(Contents, Stamps), TlsError> {
    let (shown, pair) = match &of.certificate {
        None if of.shows_svid => (OwnCertificate::Svid(workload.clone()), None),
        None => (OwnCertificate::Nothing, None),
        Some(files) => {
            let pair = certificate::load(files)?;
            (OwnCertificate::Pair(Arc::new(pair.certified)), Some(pair.stamps))
        }
    };
    if !of.ids.is_empty() {
        let trust = UpstreamTrust::Spiffe(SpiffeVerifier::new(workload, &of.ids));
        return Ok((Contents { trust, shown }, Stamps { ca: None, pair, crl: Vec::new() }));
    }
    let (roots, pinned, ca) = read_roots(of.ca.as_deref())?;
    let (lists, crl) = revoked::revocations(&of.crl, of.ca.as_deref(), of.accepts_expired_crl)?;
    let trust = UpstreamTrust::Authorities(roots, pinned, lists);
    Ok((Contents { trust, shown }, Stamps { ca, pair, crl }))
}

type ReadRoots = (Arc<RootCertStore>, Arc<Pinned>, Option<Stamp>);

fn read_roots(ca: Option<&Path>) -> Result<ReadRoots, TlsError> {
    if let Some(path) = ca {
        let fault = |reason| TlsError::UpstreamCa { path: path.display().to_string(), reason };
        let (roots, certificates, stamp) = roots::all_of(path).map_err(fault)?;
        // A file of many may have those of the system. One alone is meant.
        let system = match certificates.len() {
            0 | 1 => Vec::new(),
            _ => roots::system_certificates(),
        };
        let pinned = Pinned::of(certificates, &system);
        return Ok((Arc::new(roots), Arc::new(pinned), Some(stamp)));
    }
    let mut roots = RootCertStore::empty();
    // rustls may refuse some of a system's roots; the others count.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let reason = "no certificate found; install ca-certificates, or name a file by \
                      `upstream_ca`";
        return Err(TlsError::UpstreamCa { path: "of the system".into(), reason: reason.into() });
    }
    Ok((Arc::new(roots), Arc::default(), None))
}

fn make(Contents { trust, shown }: Contents) -> Result<Offers, TlsError> {
    let builder = ClientConfig::builder_with_provider(PROVIDER.clone());
    let builder = builder.with_safe_default_protocol_versions()?;
    let (builder, authorities) = match trust {
        UpstreamTrust::Authorities(store, pinned, revocations) => {
            let verifier = PinningVerifier::new(store.clone(), pinned)?;
            let verifier = Arc::new(ServerVerifier { verifier, revocations });
            let builder = builder.dangerous().with_custom_certificate_verifier(verifier.clone());
            (builder, Some((Roots { store }, verifier)))
        }
        UpstreamTrust::Spiffe(verifier) => {
            (builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)), None)
        }
    };
    let shows_svid = matches!(shown, OwnCertificate::Svid(_));
    let mut config = match shown.clone() {
        OwnCertificate::Nothing => builder.with_no_client_auth(),
        OwnCertificate::Pair(pair) => {
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
        }
        OwnCertificate::Svid(workload) => {
            builder.with_client_cert_resolver(Arc::new(ShowsSvid(workload)))
        }
    };
    if shows_svid || authorities.is_none() {
        // A session that is resumed is not verified again, and bundles change every day.
        config.resumption = Resumption::disabled();
    }
    give_secrets(&mut config);
    let offer = |protocols: &[&str]| {
        // The copies share the roots and the tickets.
        let mut config = config.clone();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    };
    Ok(Offers {
        authorities,
        shown,
        either: offer(&["h2", "http/1.1"]),
        one: offer(&["http/1.1"]),
        two: offer(&["h2"]),
        bytes: Arc::new(config),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_a_server_are_said_in_words() {
        let at = |secs| UnixTime::since_unix_epoch(Duration::from_secs(secs));
        let end = io::Error::new(io::ErrorKind::UnexpectedEof, "see the page of the manual");
        assert_eq!(describe_stream(&end), "the server closed it");
        let said = |fault| {
            describe_stream(&io::Error::other(Error::InvalidCertificate(fault)))
                .replace("invalid peer certificate: ", "")
        };
        for presented in [&[][..], &["DnsName(\"a.example\")", "IpAddress(192.0.2.1)", "Other"]] {
            let Ok(expected) = ServerName::try_from("app.example".to_owned()) else {
                unreachable!("it is a name")
            };
            let own = if presented.is_empty() { "nothing" } else { "a.example, 192.0.2.1, Other" };
            let presented = presented.iter().map(|name| (*name).to_owned()).collect();
            let fault = CertificateError::NotValidForNameContext { expected, presented };
            assert_eq!(said(fault), format!("not valid for name \"app.example\"; it is for {own}"));
        }
        assert_eq!(
            said(CertificateError::ExpiredContext { time: at(86_400), not_after: at(0) }),
            "it expired on 1970-01-01T00:00:00Z; this machine's clock says 1970-01-02T00:00:00Z"
        );
        assert_eq!(
            said(CertificateError::NotValidYetContext { time: at(0), not_before: at(86_400) }),
            "it is valid from 1970-01-02T00:00:00Z; this machine's clock says 1970-01-01T00:00:00Z"
        );
    }
}

//! The side handshake: it asks a destination for its certificate for a name, lets the server prove
//! that it has the key, and verifies the chain.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::{CertificateError, ClientConfig, ClientConnection, Error, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use crate::guard::{self, is_guarded};
use eyelet_config::{Action, Config, UpstreamTls};
use eyelet_telemetry::clip::clip;
use eyelet_telemetry::evidence::CertificateEvidence;
use eyelet_tls::client::{self, ClientConfigs, Roots, is_trusted};
use eyelet_tls::provider::{self, PROVIDER};
use eyelet_tls::roots::RootsError;

/// Most bytes that a server may send until its handshake is done. rustls takes no message of more
/// than 64 KiB, and a chain is one message. The rest of a flight is below 8 KiB.
const FLIGHT_BYTES_MAX: usize = 72 << 10;
/// Bytes read at once.
const READ_BYTES: usize = 8 << 10;
/// Names of a certificate that a log entry shows.
const LOGGED_MAX: usize = 8;

/// The certificate that a server has shown, for rules and for the access log.
#[derive(Debug)]
pub struct Shown {
    /// For rules.
    pub certificate: eyelet_policy::CertificateFacts,
    /// For the access log.
    pub logged: Arc<CertificateEvidence>,
    /// The end of the leaf's validity, in milliseconds since 1970.
    pub expires_unix_ms: u64,
    /// The chain as it was shown, leaf first, if a rule mints certificates after those of origins.
    /// Empty otherwise.
    pub chain: Box<[CertificateDer<'static>]>,
    /// True if a trusted root leads to the chain, whatever its names and the leaf's dates.
    pub is_trusted: bool,
    /// The name or address that it must be for, if its chain is kept.
    server: Option<ServerName<'static>>,
    /// The judgement by the roots of the upstream that was asked for last: verifying a chain costs
    /// as much as half a handshake.
    judged: Mutex<Option<(Roots, Judgement)>>,
}

/// The judgement of the roots for an upstream on a certificate.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// True if they lead to the chain, whatever its names and the leaf's dates.
    pub is_trusted: bool,
    /// For the access log, with the fault that they find.
    pub logged: Arc<CertificateEvidence>,
}

/// Makes side handshakes, and trusts the same roots always.
#[derive(Clone)]
pub struct Prober {
    verifier: Arc<WebPkiServerVerifier>,
    config: Arc<ClientConfig>,
    config_nameless: Arc<ClientConfig>,
    /// The `upstream_allow` networks of all rules.
    allow: Vec<IpNet>,
    roots: Arc<RootCertStore>,
    /// True if chains are kept, for rules that mint.
    keeps_chains: bool,
}

impl Prober {
    /// Trusts these roots.
    ///
    /// # Errors
    /// If rustls refuses them.
    pub fn new(edge: &Config, roots: Arc<RootCertStore>) -> Result<Self, RootsError> {
        let allow = allowed(edge);
        let rustls = |error: &dyn std::fmt::Display| RootsError::Rustls(error.to_string());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), PROVIDER.clone())
            .build()
            .map_err(|error| rustls(&error))?;
        let named = provider::key_only().map_err(|error| rustls(&error))?;
        let mut nameless = named.clone();
        nameless.enable_sni = false;
        let (config, config_nameless) = (Arc::new(named), Arc::new(nameless));
        let keeps_chains = edge.mints();
        Ok(Self { verifier, config, config_nameless, allow, roots, keeps_chains })
    }

    /// True if it judges a certificate by these roots.
    pub fn trusts(&self, roots: &RootCertStore) -> bool {
        self.roots.roots == roots.roots
    }

    /// True if what it has seen is enough for the rules of this configuration.
    pub fn sees_enough(&self, config: &Config) -> bool {
        self.keeps_chains || !config.mints()
    }

    /// Returns the reason why an address that a client chose must not be asked, if there is one.
    /// Who may not reach internal addresses must not learn from our handshakes what is open there.
    pub fn declines(&self, ip: IpAddr) -> Option<String> {
        is_guarded(ip, &self.allow).then(|| guard::fault(ip))
    }

    /// Does a handshake with `destination`, on a socket that is connected to it, with or without a
    /// name. It ends when the server has proved that it has its key. The caller must set a timeout.
    pub async fn ask(
        &self,
        mut stream: TcpStream,
        destination: IpAddr,
        name: Option<&str>,
        now_ms: u64,
    ) -> Result<Shown, String> {
        let (server, config) = match name {
            Some(name) => (ServerName::try_from(name.to_owned()).ok(), &self.config),
            None => (Some(ServerName::from(destination)), &self.config_nameless),
        };
        let server = server.ok_or("a certificate cannot contain such a name")?;
        let tls = ClientConnection::new(config.clone(), server.clone());
        let mut tls = tls.map_err(|why| why.to_string())?;
        let shaken = shake(&mut tls, &mut stream).await;
        // A server that asks for our certificate has shown its own before it refuses.
        let Some(chain @ [leaf, intermediates @ ..]) = tls.peer_certificates() else {
            return Err(shaken.err().unwrap_or_else(|| "the server sent no certificate".into()));
        };
        let verified = self
            .verifier
            .verify_server_cert(leaf, intermediates, &server, &[], UnixTime::now())
            .map(|_| ());
        let mut shown = describe(leaf, verified, now_ms)?;
        if self.keeps_chains {
            shown.chain = chain.into();
            shown.is_trusted = is_trusted(&*self.verifier, &shown.chain, UnixTime::now());
            shown.server = Some(server);
        }
        Ok(shown)
    }
}

/// Returns the networks that any rule allows: the rule that will match is not known yet.
fn allowed(config: &Config) -> Vec<IpNet> {
    let allows = config.rules.iter().filter_map(|rule| match rule.action {
        Action::Splice(splice) => Some(&splice.upstream_allow),
        // The client's destination, in a rule that mints.
        Action::Terminate(terminate) => terminate.upstream.as_http()?.chosen.as_ref(),
        Action::Originate(_) | Action::Refuse(_) => None,
    });
    IpNet::aggregate(&allows.flatten().copied().collect())
}

/// Shakes hands until the server has shown its chain and proved that it has the key, by a signature
/// over the randoms and the key exchange (RFC 5246 section 7.4.3) or over the transcript (RFC 8446
/// section 4.4.3).
async fn shake(tls: &mut ClientConnection, stream: &mut TcpStream) -> Result<(), String> {
    let mut received = 0;
    let mut buffer = Vec::new();
    let io = |error: io::Error| error.to_string();
    loop {
        buffer.clear();
        while tls.wants_write() {
            tls.write_tls(&mut buffer).map_err(io)?;
        }
        stream.write_all(&buffer).await.map_err(io)?;
        if !tls.is_handshaking() || tls.peer_certificates().is_some() {
            return Ok(());
        }
        buffer.resize(READ_BYTES, 0);
        let read = stream.read(&mut buffer).await.map_err(io)?;
        received += read;
        if read == 0 {
            return Err("the server closed the connection in the handshake".into());
        }
        if received > FLIGHT_BYTES_MAX {
            return Err(format!("the server sent more than {FLIGHT_BYTES_MAX} bytes"));
        }
        let mut unread = &buffer[..read];
        while !unread.is_empty() {
            tls.read_tls(&mut unread).map_err(io)?;
            tls.process_new_packets().map_err(|error| client::describe(&error))?;
        }
    }
}

fn describe(
    leaf: &CertificateDer<'_>,
    verified: Result<(), Error>,
    now_ms: u64,
) -> Result<Shown, String> {
    let unreadable = |_| "the certificate cannot be parsed".to_owned();
    let (_, parsed) = parse_x509_certificate(leaf).map_err(unreadable)?;
    let alternative = parsed.subject_alternative_name().ok().flatten();
    let general = alternative.map_or(&[][..], |extension| &extension.value.general_names);
    let names: Box<[Box<str>]> = general
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase().into()),
            _ => None,
        })
        .collect();
    let issuer = parsed.issuer();
    let parts = issuer.iter_common_name().chain(issuer.iter_organization());
    let parts = parts.filter_map(|part| part.as_str().ok()).map(Box::from);
    let whole: Box<str> = issuer.to_string().into();
    // The name is checked separately: a certificate for another name may still have a valid chain.
    let trusted = matches!(
        verified,
        Ok(())
            | Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
            ))
    );
    let logged = CertificateEvidence {
        names: names.iter().take(LOGGED_MAX).map(clip).collect(),
        issuer: clip(&whole),
        // rustls lists all names of a certificate that is for others.
        fault: verified.as_ref().err().map(clip),
        at_unix_ms: now_ms,
    };
    let issuers = [whole].into_iter().chain(parts).collect();
    let expires = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
    let valid = verified.is_ok();
    let certificate = eyelet_policy::CertificateFacts { names, issuer: issuers, trusted, valid };
    let expires_unix_ms = expires.saturating_mul(1000);
    Ok(Shown::new(certificate, logged, expires_unix_ms))
}

impl Shown {
    /// A certificate without its chain.
    pub(crate) fn new(
        certificate: eyelet_policy::CertificateFacts,
        logged: CertificateEvidence,
        expires_unix_ms: u64,
    ) -> Self {
        let (logged, is_trusted) = (Arc::new(logged), certificate.trusted);
        let (chain, judged) = (Box::default(), Mutex::default());
        Self { certificate, logged, expires_unix_ms, chain, is_trusted, server: None, judged }
    }

    /// Returns the judgement by the roots for an upstream. `None`: there are no such roots.
    pub fn judged_by(&self, configs: &ClientConfigs, tls: &UpstreamTls) -> Option<Judgement> {
        let roots = configs.roots(tls)?;
        // No operation under this lock can panic half done. All workers share it, so nobody
        // verifies under it: two at once may verify the same.
        let judged = || self.judged.lock();
        if let Some((by, judgement)) = &*judged()
            && *by == roots
        {
            return Some(judgement.clone());
        }
        let now = UnixTime::now();
        let is_trusted = configs.trusts(tls, &self.chain, now);
        let server = self.server.as_ref();
        let fault = server.and_then(|server| configs.fault(tls, server, &self.chain, now));
        let fault: Option<Box<str>> = fault.map(clip);
        let logged = match fault == self.logged.fault {
            true => self.logged.clone(),
            false => Arc::new(CertificateEvidence { fault, ..(*self.logged).clone() }),
        };
        let judgement = Judgement { is_trusted, logged };
        *judged() = Some((roots, judgement.clone()));
        Some(judgement)
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        let texts = |list: &[Box<str>]| -> usize {
            list.iter().map(|text| text.len() + size_of::<Box<str>>()).sum()
        };
        let logged = size_of::<CertificateEvidence>()
            + texts(&self.logged.names)
            + self.logged.issuer.len()
            + self.logged.fault.as_ref().map_or(0, |fault| fault.len());
        // The second one is a judgement's, which comes later.
        let logged = if self.chain.is_empty() { logged } else { 2 * logged };
        size_of::<Self>()
            + logged
            + self.server.as_ref().map_or(0, |server| server.to_str().len())
            + texts(&self.certificate.names)
            + texts(&self.certificate.issuer)
            + self.chain.iter().map(|part| size_of_val(part) + part.len()).sum::<usize>()
    }
}

//! The side handshake: what certificate a destination shows to who asks for a name, proved by its
//! key, and whether it is valid. It must not know rules, or the connection that asked.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use ipnet::IpNet;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use crate::guard::is_guarded;
use eyelet_config::certificate;
use eyelet_config::{Action, Config};
use eyelet_telemetry::evidence::CertificateEvidence;
use eyelet_tls::provider::{self, KeyOnly, PROVIDER};

/// Bytes that a server may send until its handshake is done. rustls takes no message of more than
/// 64 KiB, and a chain is one message; the rest of a flight is below 8 KiB.
const FLIGHT_BYTES_MAX: usize = 72 << 10;
/// Bytes read at once.
const READ_BYTES: usize = 8 << 10;
/// Names of a certificate that an access line shows.
const TOLD_MAX: usize = 8;

/// Where systems keep the roots that they trust, in the order of looking: Debian, Fedora, SUSE,
/// Alpine.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// What was shown, in the words of rules and in those of the access line.
#[derive(Debug)]
pub struct Shown {
    /// For rules.
    pub certificate: eyelet_policy::Certificate,
    /// For the access line.
    pub told: Arc<CertificateEvidence>,
    /// The end of the leaf's validity, in milliseconds since 1970.
    pub expires_unix_ms: u64,
}

/// Who is trusted, read once, and how a side handshake is made.
pub struct Asker {
    verifier: Arc<WebPkiServerVerifier>,
    config: Arc<ClientConfig>,
    config_nameless: Arc<ClientConfig>,
    /// What any rule has in `upstream_allow`.
    allow: Vec<IpNet>,
    roots: Arc<RootCertStore>,
}

/// Why the roots cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// The file is at fault.
    #[error("{0}")]
    File(#[from] certificate::CertificateError),
    /// No file of the system's was found.
    #[error("no roots of this system at {}; name a file in [evidence] ca", SYSTEM_ROOTS.join(", "))]
    NoSystem,
    /// None of the certificates can be a root.
    #[error("{file}: no certificate that can be a root")]
    NoRoot {
        /// The file.
        file: String,
    },
    /// rustls does not take them.
    #[error("roots: {0}")]
    Rustls(String),
}

impl Asker {
    /// Reads the roots in `[evidence] ca`, or the system's.
    ///
    /// # Errors
    /// If there are none.
    pub fn new(config: &Config) -> Result<Self, RootsError> {
        let ca = config.evidence.ca.as_deref();
        let allow = allowed(config);
        let system = || SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists());
        let file = ca.or_else(system).ok_or(RootsError::NoSystem)?;
        let mut roots = RootCertStore::empty();
        // A system's list may have one or the other that is too old to be read: the rest counts.
        let (added, _) = roots.add_parsable_certificates(certificate::chain(file)?);
        if added == 0 {
            return Err(RootsError::NoRoot { file: file.display().to_string() });
        }
        let roots = Arc::new(roots);
        let rustls = |error: &dyn std::fmt::Display| RootsError::Rustls(error.to_string());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), PROVIDER.clone())
            .build()
            .map_err(|error| rustls(&error))?;
        let named = provider::key_only().map_err(|error| rustls(&error))?;
        let mut nameless = named.clone();
        nameless.enable_sni = false;
        let (config, config_nameless) = (Arc::new(named), Arc::new(nameless));
        Ok(Self { verifier, config, config_nameless, allow, roots })
    }

    /// Whether both judge a certificate alike.
    pub fn trusts_as(&self, other: &Self) -> bool {
        self.roots.roots == other.roots.roots
    }

    /// Why an address that a client chose is not asked, where it is not: who may not reach the
    /// inside may not learn by our handshakes what is open there.
    pub fn declines(&self, ip: IpAddr) -> Option<String> {
        is_guarded(ip, &self.allow)
            .then(|| format!("{ip} is an inside address, which upstream_allow lacks"))
    }

    /// Does a handshake with `destination`, on a socket that is connected to it, for `name`
    /// or for none, until it has shown whose key it has, and says what was shown.
    /// It has no clock of its own: the caller bounds it.
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
        let server = server.ok_or("no certificate can have such a name")?;
        let witness = Arc::new(Witness::default());
        let mut config = ClientConfig::clone(config);
        config.dangerous().set_certificate_verifier(witness.clone());
        let tls = ClientConnection::new(config.into(), server.clone());
        let mut tls = tls.map_err(|why| why.to_string())?;
        let shaken = shake(&mut tls, &mut stream, &witness).await;
        // Who wants a certificate of ours as well has shown its own by then, and says no after it.
        let Some([leaf, intermediates @ ..]) = witness.proven() else {
            return Err(shaken.err().unwrap_or_else(|| "no certificate".into()));
        };
        let verified = self
            .verifier
            .verify_server_cert(leaf, intermediates, &server, &[], UnixTime::now())
            .map(|_| ());
        describe(leaf, verified, now_ms)
    }
}

/// Before it is known which rule will match, what one of them allows is allowed.
fn allowed(config: &Config) -> Vec<IpNet> {
    let allows = config.rules.iter().filter_map(|rule| match rule.action {
        Action::Splice(splice) => Some(&splice.upstream_allow),
        Action::Terminate(_) | Action::Refuse(_) => None,
    });
    IpNet::aggregate(&allows.flatten().copied().collect())
}

/// What the server of one handshake has shown.
#[derive(Debug, Default)]
struct Witness {
    chain: OnceLock<Vec<CertificateDer<'static>>>,
    /// Its key has signed what this handshake alone has: both randoms and the key exchange
    /// (RFC 5246 section 7.4.3), or all of the transcript (RFC 8446 section 4.4.3).
    is_proven: AtomicBool,
}

impl Witness {
    /// The chain of who has its key.
    fn proven(&self) -> Option<&[CertificateDer<'static>]> {
        self.chain.get().map(Vec::as_slice).filter(|_| self.is_proven.load(Relaxed))
    }

    fn note(
        &self,
        signed: Result<HandshakeSignatureValid, Error>,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.is_proven.store(signed.is_ok(), Relaxed);
        signed
    }
}

impl ServerCertVerifier for Witness {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain = [end_entity].into_iter().chain(intermediates);
        let chain = chain.map(|certificate| certificate.clone().into_owned()).collect();
        // One handshake has one chain.
        self.chain.set(chain).map_err(|_| Error::General("two chains".into()))?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.note(KeyOnly.verify_tls12_signature(message, cert, dss))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.note(KeyOnly.verify_tls13_signature(message, cert, dss))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        KeyOnly.supported_verify_schemes()
    }
}

async fn shake(
    tls: &mut ClientConnection,
    stream: &mut TcpStream,
    witness: &Witness,
) -> Result<(), String> {
    let mut received = 0;
    let mut buffer = Vec::new();
    let io = |error: io::Error| error.to_string();
    loop {
        buffer.clear();
        while tls.wants_write() {
            tls.write_tls(&mut buffer).map_err(io)?;
        }
        stream.write_all(&buffer).await.map_err(io)?;
        if !tls.is_handshaking() || witness.proven().is_some() {
            return Ok(());
        }
        buffer.resize(READ_BYTES, 0);
        let read = stream.read(&mut buffer).await.map_err(io)?;
        received += read;
        if read == 0 {
            return Err("closed in the handshake".into());
        }
        if received > FLIGHT_BYTES_MAX {
            return Err(format!("more than {FLIGHT_BYTES_MAX} bytes in the handshake"));
        }
        let mut unread = &buffer[..read];
        while !unread.is_empty() {
            tls.read_tls(&mut unread).map_err(io)?;
            tls.process_new_packets().map_err(|error| error.to_string())?;
        }
    }
}

fn describe(
    leaf: &CertificateDer<'_>,
    verified: Result<(), Error>,
    now_ms: u64,
) -> Result<Shown, String> {
    let unreadable = |_| "its certificate cannot be read".to_owned();
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
    let issuers = [whole.clone()].into_iter().chain(parts).collect();
    // The name is looked at after the chain: a certificate for another name is a sound one.
    let trusted = matches!(
        verified,
        Ok(())
            | Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
            ))
    );
    let told = CertificateEvidence {
        names: names.iter().take(TOLD_MAX).cloned().collect(),
        issuer: whole,
        fault: verified.as_ref().err().map(|why| why.to_string().into()),
        at_unix_ms: now_ms,
    };
    let expires = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
    let valid = verified.is_ok();
    let certificate = eyelet_policy::Certificate { names, issuer: issuers, trusted, valid };
    let expires_unix_ms = expires.saturating_mul(1000);
    Ok(Shown { certificate, told: Arc::new(told), expires_unix_ms })
}

impl Shown {
    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        let texts = |list: &[Box<str>]| -> usize {
            list.iter().map(|text| text.len() + size_of::<Box<str>>()).sum()
        };
        size_of::<Self>()
            + size_of::<CertificateEvidence>()
            + texts(&self.certificate.names)
            + texts(&self.certificate.issuer)
            + texts(&self.told.names)
            + self.told.issuer.len()
            + self.told.fault.as_ref().map_or(0, |fault| fault.len())
    }
}

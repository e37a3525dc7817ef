//! rustls configurations, one for each different terminate action, made at first use.
//! It must not know sockets or the record layer.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, LazyLock, OnceLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{KeyLog, RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use zeroize::Zeroizing;

use crate::certificate::{self, CertificateError};
use crate::config::{Action, Config, Terminate, TlsVersion};

/// As many configurations are made at the start, so that a bad file is found then. With more the
/// start would take too long; `eyelet check` reads them all.
const EAGER_MAX: usize = 64;

/// Why a configuration could not be made. It says which file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate or its key.
    #[error("{0}")]
    Certificate(#[from] CertificateError),
    /// The file with the authorities that sign client certificates.
    #[error("client_ca {path}: {reason}")]
    ClientCa {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The file with the authorities that sign upstreams' certificates.
    #[error("upstream_ca {path}: {reason}")]
    UpstreamCa {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// rustls does not take what was configured.
    #[error("{0}")]
    Rustls(#[from] rustls::Error),
}

/// The cryptography of every handshake, ours and with upstreams.
pub static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));

/// The configurations of all terminate rules.
pub struct ServerConfigs {
    /// By rule: which slot. Rules with equal actions share one.
    slots: Box<[u32]>,
    made: Box<[OnceLock<Arc<ServerConfig>>]>,
    /// Seals tickets of all rules that ask for no client certificate.
    tickets: Arc<dyn ProducesTickets>,
}

impl ServerConfigs {
    /// Prepares for `config`, and makes the configurations if they are few.
    pub fn new(config: &Config) -> Result<Self, TlsError> {
        let mut known = HashMap::new();
        let slots: Box<[u32]> = config
            .rules
            .iter()
            .map(|rule| {
                let next = known.len() as u32;
                *known.entry(Arc::as_ptr(&rule.action)).or_insert(next)
            })
            .collect();
        let made = (0..known.len()).map(|_| OnceLock::new()).collect();
        let all = Self { slots, made, tickets: aws_lc_rs::Ticketer::new()? };
        if all.made.len() <= EAGER_MAX {
            for (index, rule) in config.rules.iter().enumerate() {
                if let Action::Terminate(terminate) = &*rule.action {
                    all.of(index as u32, terminate)?;
                }
            }
        }
        Ok(all)
    }

    /// The configuration of a rule.
    pub fn of(&self, rule: u32, terminate: &Terminate) -> Result<Arc<ServerConfig>, TlsError> {
        let slot = &self.made[self.slots[rule as usize] as usize];
        if let Some(made) = slot.get() {
            return Ok(made.clone());
        }
        // Two workers may both make it; one is kept.
        let made = Arc::new(make(terminate, &self.tickets)?);
        Ok(slot.get_or_init(|| made).clone())
    }
}

fn make(
    terminate: &Terminate,
    tickets: &Arc<dyn ProducesTickets>,
) -> Result<ServerConfig, TlsError> {
    let versions: &[&SupportedProtocolVersion] = match terminate.tls_version_min {
        TlsVersion::Tls12 => &[&version::TLS13, &version::TLS12],
        TlsVersion::Tls13 => &[&version::TLS13],
    };
    let builder =
        ServerConfig::builder_with_provider(PROVIDER.clone()).with_protocol_versions(versions)?;
    let builder = match &terminate.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(client_verifier(path)?),
    };
    let keys = terminate.certificates.iter().map(|files| certificate::load(files).map(Arc::new));
    let certificates = Certificates { keys: keys.collect::<Result<_, _>>()? };
    let mut config = builder.with_cert_resolver(Arc::new(certificates));
    config.alpn_protocols.clone_from(&terminate.alpn_select);
    // Sessions live in tickets that clients hold, not in a cache that grows here.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = match &terminate.client_ca {
        None => tickets.clone(),
        // A ticket stands for the certificate that was verified: it must not open another rule.
        Some(_) => aws_lc_rs::Ticketer::new()?,
    };
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(Capture);
    Ok(config)
}

fn client_verifier(
    path: &Path,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let fault = |reason: String| TlsError::ClientCa { path: path.display().to_string(), reason };
    let mut roots = RootCertStore::empty();
    let certificates =
        CertificateDer::pem_file_iter(path).map_err(|error| fault(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| fault(error.to_string()))?;
        roots.add(certificate).map_err(|error| fault(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(fault("no certificate in it".into()));
    }
    WebPkiClientVerifier::builder_with_provider(roots.into(), PROVIDER.clone())
        .build()
        .map_err(|error| fault(error.to_string()))
}

/// The certificates of one rule; the first that the client can verify is shown.
#[derive(Debug)]
struct Certificates {
    keys: Vec<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // rustls has left only schemes that go with the version and the suites.
        let fits =
            |key: &&Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        // Where none fits the first one makes rustls say why.
        self.keys.iter().find(fits).or(self.keys.first()).cloned()
    }
}

/// The two application traffic secrets of a TLS 1.3 handshake, generation 0.
#[derive(Default)]
pub struct TrafficSecrets {
    /// What the client sends with.
    pub client: Zeroizing<Vec<u8>>,
    /// What we send with.
    pub server: Zeroizing<Vec<u8>>,
}

thread_local! {
    /// rustls tells its key log synchronously, inside the call that is being made.
    static CAPTURED: RefCell<TrafficSecrets> = RefCell::default();
}

/// Takes what the key log was told since the last call on this thread.
pub fn take_captured() -> TrafficSecrets {
    CAPTURED.take()
}

/// A key log that keeps the application traffic secrets for the handover and writes nothing.
struct Capture;

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capture")
    }
}

impl KeyLog for Capture {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        CAPTURED.with_borrow_mut(|captured| match label {
            "CLIENT_TRAFFIC_SECRET_0" => captured.client = Zeroizing::new(secret.to_vec()),
            "SERVER_TRAFFIC_SECRET_0" => captured.server = Zeroizing::new(secret.to_vec()),
            _ => {}
        });
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, "CLIENT_TRAFFIC_SECRET_0" | "SERVER_TRAFFIC_SECRET_0")
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        Self::other(error)
    }
}

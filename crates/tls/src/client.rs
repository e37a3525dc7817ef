//! rustls' configurations for https:// upstreams: three for each set of roots, made at the start.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::provider::PROVIDER;
use crate::server::TlsError;
use eyelet_config::{Action, Config, TerminateUpstream, UpstreamTls};

/// Which versions of HTTP are offered on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Spoken {
    /// The upstream chooses.
    Either,
    /// HTTP/1.1 alone.
    One,
    /// HTTP/2 alone.
    Two,
}

/// The configurations of all https:// upstreams.
#[derive(Default)]
pub struct ClientConfigs {
    by_roots: HashMap<Option<PathBuf>, Offers>,
}

/// Configurations with the same roots; they differ in ALPN.
struct Offers {
    either: Arc<ClientConfig>,
    one: Arc<ClientConfig>,
    two: Arc<ClientConfig>,
}

impl ClientConfigs {
    /// Reads every file that a rule names, and the system's roots if a rule names none.
    pub fn new(config: &Config) -> Result<Self, TlsError> {
        let mut by_roots = HashMap::new();
        for rule in config.rules.iter() {
            let Action::Terminate(terminate) = rule.action else { continue };
            let TerminateUpstream::Http(upstream) = &terminate.upstream else { continue };
            let Some(tls) = &upstream.tls else { continue };
            if !by_roots.contains_key(&tls.ca) {
                by_roots.insert(tls.ca.clone(), make(tls.ca.as_deref())?);
            }
        }
        Ok(Self { by_roots })
    }

    /// The configuration for an upstream.
    pub fn of(&self, tls: &UpstreamTls, spoken: Spoken) -> Option<Arc<ClientConfig>> {
        let offers = self.by_roots.get(&tls.ca)?;
        Some(match spoken {
            Spoken::Either => offers.either.clone(),
            Spoken::One => offers.one.clone(),
            Spoken::Two => offers.two.clone(),
        })
    }
}

fn make(ca: Option<&Path>) -> Result<Offers, TlsError> {
    let fault = |path: &str, reason: String| TlsError::UpstreamCa { path: path.into(), reason };
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            let shown = path.display().to_string();
            let found = CertificateDer::pem_file_iter(path);
            for certificate in found.map_err(|error| fault(&shown, error.to_string()))? {
                let certificate = certificate.map_err(|error| fault(&shown, error.to_string()))?;
                roots.add(certificate).map_err(|error| fault(&shown, error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(fault(&shown, "no certificate in it".into()));
            }
        }
        None => {
            // rustls may refuse some of a system's roots; the others count.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(fault("of the system", "no certificate found".into()));
            }
        }
    }
    let builder = ClientConfig::builder_with_provider(PROVIDER.clone());
    let builder = builder.with_safe_default_protocol_versions()?.with_root_certificates(roots);
    let config = builder.with_no_client_auth();
    let offer = |protocols: &[&str]| {
        // The copies share the roots and the tickets.
        let mut config = config.clone();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    };
    Ok(Offers {
        either: offer(&["h2", "http/1.1"]),
        one: offer(&["http/1.1"]),
        two: offer(&["h2"]),
    })
}

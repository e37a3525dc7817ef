//! rustls' configurations for https:// upstreams: three for each set of roots, made at the start.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::provider::PROVIDER;
use crate::server::TlsError;
use eyelet_config::certificate;
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

/// Configurations with the same roots; they differ in ALPN.
#[derive(Clone)]
struct Offers {
    roots: Roots,
    either: Arc<ClientConfig>,
    one: Arc<ClientConfig>,
    two: Arc<ClientConfig>,
}

impl ClientConfigs {
    /// Reads every file that a rule names, and the system's roots if a rule names none. What
    /// `earlier` made of the same roots is used again.
    pub fn new(config: &Config, earlier: Option<&Self>) -> Result<Self, TlsError> {
        let mut by_roots = HashMap::new();
        for rule in config.rules.iter() {
            let Action::Terminate(terminate) = rule.action else { continue };
            // All upstreams of a rule have the same roots.
            let TerminateUpstream::Http(upstream) = &terminate.upstream else { continue };
            let Some(tls) = &upstream.tls else { continue };
            if !by_roots.contains_key(&tls.ca) {
                let roots = read(tls.ca.as_deref())?;
                let known = earlier.and_then(|earlier| earlier.by_roots.get(&tls.ca));
                let offers = match known.filter(|known| known.roots.store.roots == roots.roots) {
                    Some(known) => known.clone(),
                    None => make(roots)?,
                };
                by_roots.insert(tls.ca.clone(), offers);
            }
        }
        Ok(Self { by_roots })
    }

    /// Which roots verify an upstream. A file of the same name may hold others after a reload.
    pub fn roots(&self, tls: &UpstreamTls) -> Option<&Roots> {
        self.by_roots.get(&tls.ca).map(|offers| &offers.roots)
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

/// A configuration for HTTP/1.1 to a server that is no upstream, verified by the roots of a file or
/// of the system.
///
/// # Errors
/// If the roots cannot be read.
pub fn roots_config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    Ok(make(read(ca)?)?.one)
}

fn read(ca: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let fault = |path: &str, reason: String| TlsError::UpstreamCa { path: path.into(), reason };
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            let shown = path.display().to_string();
            let text = certificate::read(path);
            let text = text.map_err(|error| fault(&shown, error.to_string()))?;
            for certificate in CertificateDer::pem_slice_iter(&text) {
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
    Ok(roots)
}

fn make(roots: RootCertStore) -> Result<Offers, TlsError> {
    let store = Arc::new(roots);
    let builder = ClientConfig::builder_with_provider(PROVIDER.clone());
    let builder = builder.with_safe_default_protocol_versions()?;
    let builder = builder.with_root_certificates(store.clone());
    let config = builder.with_no_client_auth();
    let offer = |protocols: &[&str]| {
        // The copies share the roots and the tickets.
        let mut config = config.clone();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    };
    Ok(Offers {
        roots: Roots { store },
        either: offer(&["h2", "http/1.1"]),
        one: offer(&["http/1.1"]),
        two: offer(&["h2"]),
    })
}

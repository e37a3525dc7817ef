//! The authorities that may sign the certificates of clients, and those of these that are revoked.
//! Their files may change.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use eyelet_pki::crl::Revocations;
use eyelet_sys::file::Stamp;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use crate::error::TlsError;
use crate::provider::PROVIDER;
use crate::roots;
use crate::verify::client_chain;
use crate::verify::revoked::revocations;

/// The files that say who may sign the certificates of clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientFiles {
    /// The authorities.
    pub ca: PathBuf,
    /// Their revocation lists.
    pub crl: Vec<PathBuf>,
    /// True if these lists count although they have expired.
    pub accepts_expired: bool,
}

/// The authorities that may sign the certificates of clients.
pub struct Authorities {
    files: ClientFiles,
    roots: Arc<RootCertStore>,
    /// Stands for `roots`, also in the next process: equal numbers mean equal certificates. Never
    /// 0.
    of_roots: u64,
    /// Stands for the terms of all of them: see [`Authorities::number`].
    number: u64,
    revocations: Option<Arc<Revocations>>,
    /// The versions of the files, in their order.
    stamps: Vec<Stamp>,
}

impl ClientFiles {
    /// The files of a terminate rule. `None`: it asks for no certificate.
    pub fn of(rule: &eyelet_config::Terminate) -> Option<Self> {
        let (crl, accepts_expired) = (rule.client_crl.clone(), rule.accepts_expired_crl);
        Some(Self { ca: rule.client_ca.clone()?, crl, accepts_expired })
    }

    /// Their paths.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        [&*self.ca].into_iter().chain(self.crl.iter().map(|path| &**path))
    }

    /// Stands for these authorities with the lists that count beside them, by their names: a
    /// client that was verified without a list may be on it.
    fn number(&self, of_roots: u64) -> u64 {
        if self.crl.is_empty() {
            return of_roots;
        }
        let lists = self.crl.iter().map(|path| path.as_os_str().as_encoded_bytes());
        let (of_roots, accepts) = (of_roots.to_be_bytes(), [u8::from(self.accepts_expired)]);
        roots::number_of_parts([&of_roots[..], &accepts[..]].into_iter().chain(lists))
    }
}

impl Authorities {
    /// Reads the files. What `known` has of them, or of their certificates, is shared.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn read(files: &ClientFiles, known: &[Arc<Self>]) -> Result<Arc<Self>, TlsError> {
        let is_same = |known: &&Arc<Self>| known.files == *files && known.changed().is_none();
        if let Some(same) = known.iter().find(is_same) {
            return Ok(same.clone());
        }
        let fault = |reason| client_fault(&files.ca, reason);
        let (roots, _, stamp) = roots::all_of(&files.ca).map_err(fault)?;
        let (revocations, of_lists) =
            revocations(&files.crl, Some(&files.ca), files.accepts_expired)?;
        let of_roots = roots::number_of(&roots);
        let known = known.iter().find(|known| known.of_roots == of_roots);
        let roots = known.map_or_else(|| Arc::new(roots), |known| known.roots.clone());
        let stamps = [stamp].into_iter().chain(of_lists).collect();
        let (files, number) = (files.clone(), files.number(of_roots));
        Ok(Arc::new(Self { files, roots, of_roots, number, revocations, stamps }))
    }

    pub fn files(&self) -> &ClientFiles {
        &self.files
    }

    /// A number that stands for the certificates, and for the files of the revocation lists and
    /// for what counts of them. A new list in a file does not change it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The revocation lists, if there are any.
    pub fn revocations(&self) -> Option<&Arc<Revocations>> {
        self.revocations.as_ref()
    }

    /// The first of the files that has changed since it was read.
    pub fn changed(&self) -> Option<&Path> {
        let mut each = self.files.paths().zip(&self.stamps);
        each.find(|(path, stamp)| !stamp.is_same(Stamp::at(path))).map(|(path, _)| path)
    }

    /// True if these verify clients as others do: by the same files, the same authorities, and the
    /// same lists, which are not compared if they were read twice.
    pub fn are_as(&self, other: &Self) -> bool {
        let are_same_lists = match (&self.revocations, &other.revocations) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        self.files == other.files && self.number == other.number && are_same_lists
    }

    /// The verifier of clients.
    ///
    /// # Errors
    /// If rustls refuses the authorities.
    pub fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let roots = self.roots.clone();
        WebPkiClientVerifier::builder_with_provider(roots, PROVIDER.clone())
            .build()
            .map(|verifier| client_chain::strict(verifier, self.revocations.clone()))
            .map_err(|error| client_fault(&self.files.ca, error.to_string()))
    }
}

fn client_fault(path: &Path, reason: String) -> TlsError {
    TlsError::ClientCa { path: path.display().to_string(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_the_lists_too() {
        let of = |crl: &[&str], accepts_expired| {
            let crl = crl.iter().map(PathBuf::from).collect();
            ClientFiles { ca: "ca.pem".into(), crl, accepts_expired }.number(7)
        };
        // Without a list there is none that could have expired.
        assert_eq!((of(&[], false), of(&[], true)), (7, 7));
        let one = of(&["a.crl"], false);
        assert_eq!(one, of(&["a.crl"], false));
        for other in [of(&[], false), of(&["a.crl"], true), of(&["b.crl"], false)] {
            assert_ne!(one, other);
        }
        assert_ne!(of(&["a.crl", "b.crl"], false), of(&["a.crlb.crl"], false));
    }
}

//! Certificates of rules with `certificate = "mint"`: made after those of origins at the first
//! handshake that meets one, and shown again as long as the origin shows the same. All have one of
//! two keys, which are in this process only: making an RSA key takes far longer than a handshake.

use std::sync::Arc;

use aws_lc_rs::digest;
use eyelet_local_ca::{KeyKind, LeafKey, LocalCaError, MintAuthority};
use eyelet_memory::budget::{Budget, Counted};
use eyelet_pki::certificate::{Pair, signing_key};
use eyelet_sys::file::Stamp;
use quick_cache::sync::Cache;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls_pki_types::CertificateDer;

use crate::certificates::{Certificate, CertificateMaker, Certificates};
use crate::tickets::SourceId;

/// Most certificates that are held: with 4 KiB for each, about 4 MiB. One that was not shown lately
/// is signed again.
const MINTED_MAX: usize = 1024;
/// Most bytes of one that is held, so all have at most 8 MiB. A larger one, with hundreds of names,
/// is signed for each handshake: an origin chooses how many names it has.
const MINTED_LEAF_BYTES_MAX: usize = 8 << 10;
/// Bytes of one beside those of its chain and its key.
const MINTED_BYTES: usize = 512;

/// The certificates that were minted, and the authorities that sign them.
pub(crate) struct MintedCertificates {
    ecdsa: Key,
    rsa: Key,
    /// For origins whose issuers are not trusted, or whose names the authority may not sign.
    untrusted: MintAuthority,
    maker: CertificateMaker,
    /// By the digest of the authority's certificate, of the origin's, and of whether that is
    /// trusted.
    minted: Cache<[u8; 32], Minted>,
}

/// A key, also in the form that signs.
struct Key {
    leaf: LeafKey,
    signing: Arc<dyn SigningKey>,
}

#[derive(Clone)]
struct Minted {
    certificates: Arc<Certificates>,
    _counted: Arc<Counted>,
}

impl MintedCertificates {
    /// Makes the keys, which takes a tenth of a second or so.
    pub(crate) fn new() -> Result<Self, LocalCaError> {
        Ok(Self {
            ecdsa: Key::new(LeafKey::generate()?)?,
            rsa: Key::new(LeafKey::generate_rsa()?)?,
            untrusted: MintAuthority::untrusted()?,
            maker: CertificateMaker::new(),
            minted: Cache::new(MINTED_MAX),
        })
    }

    /// The certificate that is shown instead of an origin's.
    pub(crate) fn of(
        &self,
        authority: &Certificate,
        (origin, is_trusted): (&CertificateDer<'_>, bool),
        budget: &Arc<Budget>,
    ) -> Result<Arc<Certificates>, LocalCaError> {
        let digest = number_of(authority, origin, is_trusted);
        if let Some(known) = self.minted.get(&digest) {
            return Ok(known.certificates);
        }
        let key = match KeyKind::of(origin) {
            KeyKind::Ecdsa => &self.ecdsa,
            KeyKind::Rsa => &self.rsa,
        };
        let signed = is_trusted.then(|| signed(authority, origin, &key.leaf));
        let chain = match signed {
            // Some clients, as Java's, do not look at an authority's constraints.
            None | Some(Err(LocalCaError::NoName)) => {
                vec![self.untrusted.mint(origin, &key.leaf)?]
            }
            Some(signed) => signed?,
        };
        let is_held = chain.first().is_some_and(|leaf| leaf.len() <= MINTED_LEAF_BYTES_MAX);
        let pair = Pair {
            certified: CertifiedKey::new(chain, key.signing.clone()),
            key: key.leaf.der(),
            stamps: [Stamp::default(); 2],
        };
        let leaf_bytes: usize = pair.certified.cert.iter().map(|part| part.len()).sum();
        let held_bytes = MINTED_BYTES + leaf_bytes + pair.key.secret_der().len();
        // A ticket is good while the origin shows this very certificate: a resumed session shows
        // none.
        let certificates = self.maker.make_shared(pair, SourceId::new(&digest));
        if is_held {
            let _counted = Arc::new(Counted::new(budget, held_bytes));
            self.minted.insert(digest, Minted { certificates: certificates.clone(), _counted });
        }
        Ok(certificates)
    }
}

impl Key {
    fn new(leaf: LeafKey) -> Result<Self, LocalCaError> {
        let failed = || LocalCaError::Library("the key that it made cannot sign".into());
        let signing = signing_key(&leaf.der()).ok_or_else(failed)?;
        Ok(Self { leaf, signing })
    }
}

/// The chain of a certificate like the origin's that the authority signs.
fn signed(
    authority: &Certificate,
    origin: &CertificateDer<'_>,
    key: &LeafKey,
) -> Result<Vec<CertificateDer<'static>>, LocalCaError> {
    let signer = authority.authority()?;
    let mut chain = vec![signer.mint(origin, key)?];
    if !signer.is_root() {
        chain.extend(authority.chain().map(CertificateDer::into_owned));
    }
    Ok(chain)
}

fn number_of(authority: &Certificate, origin: &CertificateDer<'_>, is_trusted: bool) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in authority.chain() {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(&part);
    }
    context.update(&[u8::from(is_trusted)]);
    context.update(origin);
    let digest = context.finish();
    digest.as_ref().first_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use eyelet_local_ca::run_authority;
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    #[test]
    fn a_large_certificate_is_not_kept() {
        let minted = MintedCertificates::new().unwrap();
        let key = LeafKey::generate().unwrap();
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let shown = |names: usize| {
            let names: Vec<_> = (0..names).map(|n| format!("name{n}.app.example")).collect();
            let params = CertificateParams::new(names).unwrap();
            let origin = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            let pair = Pair {
                certified: CertifiedKey::new(
                    vec![origin.der().clone()],
                    signing_key(&key.der()).unwrap(),
                ),
                key: key.der(),
                stamps: [Stamp::default(); 2],
            };
            let authority = minted.maker.make(pair, SourceId::NONE);
            // Its issuer is not trusted, so the authority does not sign.
            let once = || minted.of(&authority[0], (origin.der(), false), &budget).unwrap();
            Arc::ptr_eq(&once(), &once())
        };
        assert!(shown(10));
        assert!(!shown(600));
    }

    #[test]
    fn the_authority_does_not_sign_for_names_that_it_may_not_sign() {
        let minted = MintedCertificates::new().unwrap();
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let run = run_authority(Some(&["a.example".to_owned()])).unwrap();
        let pair = Pair {
            certified: CertifiedKey::new(
                vec![run.certificate.clone()],
                signing_key(&run.key).unwrap(),
            ),
            key: run.key.clone_key().into(),
            stamps: [Stamp::default(); 2],
        };
        let authority = minted.maker.make(pair, SourceId::NONE);
        for (name, is_signed) in [("a.example", true), ("b.example", false)] {
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            let origin = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            let shown = minted.of(&authority[0], (origin.der(), true), &budget).unwrap();
            let leaf = shown[0].chain().next().unwrap();
            let issuer = b"Eyelet: the issuer of the origin's certificate is not trusted";
            let is_untrusted = leaf.windows(issuer.len()).any(|part| part == issuer);
            assert_eq!(is_untrusted, !is_signed, "{name}");
        }
    }
}

//! The cryptography of handshakes: aws-lc's, but for the key schedule of TLS 1.3, which is ring's.
//! It must not know a configuration.

use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};
use rustls::{SupportedCipherSuite, Tls13CipherSuite};

/// The cryptography of every handshake, ours and with upstreams.
///
/// aws-lc has the post-quantum exchange and the faster curves. A TLS 1.3 handshake derives some
/// twenty secrets (RFC 8446 section 7.1), and each is a few blocks of SHA-256: with ring they are
/// just that, with aws-lc each is a walk through EVP with allocations on its way. It was measured:
/// docs/aead.md.
pub static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    let mut provider = aws_lc_rs::default_provider();
    for suite in &mut provider.cipher_suites {
        if let Some(mixed) = MIXED.iter().find(|mixed| mixed.common.suite == suite.suite()) {
            *suite = SupportedCipherSuite::Tls13(mixed);
        }
    }
    Arc::new(provider)
});

/// Suites of both libraries: hash and key schedule of ring, AEAD of aws-lc.
static MIXED: LazyLock<Vec<Tls13CipherSuite>> = LazyLock::new(|| {
    let suites = aws_lc_rs::ALL_CIPHER_SUITES.iter().filter_map(SupportedCipherSuite::tls13);
    suites.filter_map(mixed).collect()
});

fn mixed(suite: &Tls13CipherSuite) -> Option<Tls13CipherSuite> {
    let of_ring = ring::ALL_CIPHER_SUITES.iter().filter_map(SupportedCipherSuite::tls13);
    let same = of_ring.into_iter().find(|other| other.common.suite == suite.common.suite)?;
    let common = rustls::crypto::CipherSuiteCommon {
        suite: suite.common.suite,
        hash_provider: same.common.hash_provider,
        confidentiality_limit: suite.common.confidentiality_limit,
    };
    let hkdf_provider = same.hkdf_provider;
    Some(Tls13CipherSuite { common, hkdf_provider, aead_alg: suite.aead_alg, quic: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a handshake offers does not change by whose hash it takes.
    #[test]
    fn every_suite_is_still_there_in_its_order() {
        let names = |suites: &[SupportedCipherSuite]| {
            suites.iter().map(SupportedCipherSuite::suite).collect::<Vec<_>>()
        };
        let plain = aws_lc_rs::default_provider();
        assert_eq!(names(&PROVIDER.cipher_suites), names(&plain.cipher_suites));
        assert_eq!(MIXED.len(), 3);
    }
}

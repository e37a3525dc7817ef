//! The cryptography of handshakes: aws-lc's, except for the key schedule of TLS 1.3, which is
//! ring's. Also clients that only ask a server to prove that it has its key.

use std::cell::Cell;
use std::sync::{Arc, LazyLock};

use rustls::client::Resumption;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::crypto::cipher::{
    AeadKey, Iv, MessageDecrypter, MessageEncrypter, OutboundOpaqueMessage, OutboundPlainMessage,
    Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};
use rustls::{
    ClientConfig, ConnectionTrafficSecrets, Error, SupportedCipherSuite, Tls13CipherSuite,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// The cryptography of every handshake, with clients and with upstreams.
///
/// aws-lc has the post-quantum exchange and the faster curves. A TLS 1.3 handshake derives some
/// twenty secrets (RFC 8446 section 7.1), each from a few blocks of SHA-256. ring does only that;
/// aws-lc goes through EVP and allocates. crates/record/README.md has the measurements.
pub static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    let mut provider = aws_lc_rs::default_provider();
    for suite in &mut provider.cipher_suites {
        if let Some(mixed) = MIXED.iter().find(|mixed| mixed.common.suite == suite.suite()) {
            *suite = SupportedCipherSuite::Tls13(mixed);
        }
    }
    Arc::new(provider)
});

/// Makes [`PROVIDER`] the one that other libraries use. aws-lc's and ring's are both compiled in,
/// so rustls does not choose by itself, and panics.
pub fn install() {
    // It fails only if it was done before.
    let _ = CryptoProvider::install_default((**PROVIDER).clone());
}

/// Suites from both libraries: hash and key schedule from ring, AEAD from aws-lc.
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
    // Leaked once for each suite, because rustls requires a static reference.
    let aead_alg = Box::leak(Box::new(Numbered(suite.aead_alg)));
    Some(Tls13CipherSuite { common, hkdf_provider, aead_alg, quic: None })
}

thread_local! {
    /// Set while rustls runs: it seals synchronously, inside our call.
    static NEXT_SEQ: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Calls rustls, and also returns the sequence number of its next TLS 1.3 record. `None`: in this
/// call it sealed nothing, and installed no new key for sealing.
pub fn with_next_seq<T>(call: impl FnOnce() -> T) -> (T, Option<u64>) {
    // Another connection of this thread may have left its number.
    NEXT_SEQ.set(None);
    let result = call();
    (result, NEXT_SEQ.take())
}

/// An AEAD of TLS 1.3 that notes the sequence numbers of sealed records.
struct Numbered(&'static dyn Tls13AeadAlgorithm);

struct NumberedEncrypter(Box<dyn MessageEncrypter>);

impl Tls13AeadAlgorithm for Numbered {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        // A new key starts at 0 (RFC 8446 section 5.3).
        NEXT_SEQ.set(Some(0));
        Box::new(NumberedEncrypter(self.0.encrypter(key, iv)))
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        self.0.decrypter(key, iv)
    }

    fn key_len(&self) -> usize {
        self.0.key_len()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv)
    }

    fn fips(&self) -> bool {
        self.0.fips()
    }
}

impl MessageEncrypter for NumberedEncrypter {
    fn encrypt(
        &mut self,
        message: OutboundPlainMessage<'_>,
        seq: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        NEXT_SEQ.set(seq.checked_add(1));
        self.0.encrypt(message, seq)
    }

    fn encrypted_payload_len(&self, payload_len: usize) -> usize {
        self.0.encrypted_payload_len(payload_len)
    }
}

/// The methods of a verifier that verify signatures, by [`PROVIDER`]. The argument says what
/// becomes of an error.
macro_rules! verifies_signatures {
    ($fault:expr) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &rustls_pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = &crate::provider::PROVIDER.signature_verification_algorithms;
            rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
                .map_err($fault)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &rustls_pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = &crate::provider::PROVIDER.signature_verification_algorithms;
            rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
                .map_err($fault)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            crate::provider::PROVIDER.signature_verification_algorithms.supported_schemes()
        }
    };
}
pub(crate) use verifies_signatures;

/// A configuration for clients that only let the server prove that it has its certificate's key.
/// The certificate is verified afterwards. No application data goes over such a connection.
///
/// # Errors
/// If rustls refuses [`PROVIDER`].
pub fn key_only() -> Result<ClientConfig, Error> {
    let mut config = ClientConfig::builder_with_provider(PROVIDER.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(KeyOnly))
        .with_no_client_auth();
    // rustls gives the chain of a resumed session before the server has proved that it has its key.
    // Evidence takes each chain that it is given as proved.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Accepts any certificate whose key signs the handshake.
#[derive(Debug)]
pub struct KeyOnly;

impl ServerCertVerifier for KeyOnly {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    verifies_signatures!(std::convert::identity);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rustls::sign::{CertifiedKey, SingleCertAndKey};
    use rustls::version::{TLS12, TLS13};
    use rustls::{ClientConnection, HandshakeKind, ServerConfig, ServerConnection};

    use super::*;

    /// The source of the hash does not change what a handshake offers.
    #[test]
    fn every_suite_is_still_there_in_its_order() {
        let names = |suites: &[SupportedCipherSuite]| {
            suites.iter().map(SupportedCipherSuite::suite).collect::<Vec<_>>()
        };
        let plain = aws_lc_rs::default_provider();
        assert_eq!(names(&PROVIDER.cipher_suites), names(&plain.cipher_suites));
        assert_eq!(MIXED.len(), 3);
    }
    /// The record layer continues from rustls' own count.
    #[test]
    fn the_number_of_the_next_record_is_that_of_rustls() {
        let made = rcgen::generate_simple_self_signed(["app.test".to_owned()]).unwrap();
        let key = made.signing_key.serialize_der().try_into().unwrap();
        let mut config = ServerConfig::builder_with_provider(PROVIDER.clone())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        config.enable_secret_extraction = true;
        config.send_tls13_tickets = 3;
        let mut server = ServerConnection::new(config.into()).unwrap();
        let name = ServerName::try_from("app.test").unwrap();
        let mut client = ClientConnection::new(key_only().unwrap().into(), name).unwrap();
        let mut seen = Vec::new();
        for _ in 0..2 {
            let mut said = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut said).unwrap();
            }
            server.read_tls(&mut &said[..]).unwrap();
            // The client also seals on this thread.
            let (processed, next) = with_next_seq(|| server.process_new_packets());
            processed.unwrap();
            seen.push(next);
            said.clear();
            while server.wants_write() {
                server.write_tls(&mut said).unwrap();
            }
            client.read_tls(&mut &said[..]).unwrap();
            client.process_new_packets().unwrap();
        }
        assert_eq!(seen, [Some(0), Some(1)], "a new key, and tickets in one record under it");
        assert_eq!(with_next_seq(|| ()).1, None);
        assert_eq!(server.dangerous_extract_secrets().unwrap().tx.0, 1);
    }

    /// A server must have its certificate's key, whatever name the certificate is for.
    #[test]
    fn a_certificate_is_believed_with_its_key_alone() {
        let made = || rcgen::generate_simple_self_signed(["another.test".to_owned()]).unwrap();
        let (own, others) = (made(), made());
        for version in [&TLS12, &TLS13] {
            for (of, is_believed) in [(&own, true), (&others, false)] {
                let key = of.signing_key.serialize_der().try_into().unwrap();
                let key = aws_lc_rs::sign::any_supported_type(&key).unwrap();
                let shown = CertifiedKey::new(vec![own.cert.der().clone()], key);
                let config = ServerConfig::builder_with_provider(PROVIDER.clone())
                    .with_protocol_versions(&[version])
                    .unwrap()
                    .with_no_client_auth()
                    .with_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
                let mut server = ServerConnection::new(config.into()).unwrap();
                let name = ServerName::try_from("app.test").unwrap();
                let mut client = ClientConnection::new(key_only().unwrap().into(), name).unwrap();
                let shaken = shake(&mut client, &mut server);
                assert_eq!(shaken.is_ok(), is_believed, "{shaken:?}");
            }
        }
    }

    /// Does a handshake, and reads what the server sends behind it.
    fn shake(client: &mut ClientConnection, server: &mut ServerConnection) -> Result<(), Error> {
        while client.wants_write() || server.wants_write() {
            let mut said = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut said).unwrap();
            }
            server.read_tls(&mut &said[..]).unwrap();
            server.process_new_packets().unwrap();
            said.clear();
            while server.wants_write() {
                server.write_tls(&mut said).unwrap();
            }
            client.read_tls(&mut &said[..]).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    /// A resumed session proves no key: the server that answers may be another one. Other clients
    /// resume here.
    #[test]
    fn no_session_is_resumed() {
        let made = rcgen::generate_simple_self_signed(["app.test".to_owned()]).unwrap();
        for version in [&TLS12, &TLS13] {
            let key = made.signing_key.serialize_der().try_into().unwrap();
            let mut config = ServerConfig::builder_with_provider(PROVIDER.clone())
                .with_protocol_versions(&[version])
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![made.cert.der().clone()], key)
                .unwrap();
            config.ticketer = aws_lc_rs::Ticketer::new().unwrap();
            let config = Arc::new(config);
            let own = Arc::new(key_only().unwrap());
            let mut other = key_only().unwrap();
            other.resumption = Resumption::default();
            for (client, expected) in
                [(own, HandshakeKind::Full), (Arc::new(other), HandshakeKind::Resumed)]
            {
                let mut kind = None;
                for _ in 0..2 {
                    let name = ServerName::try_from("app.test").unwrap();
                    let mut client = ClientConnection::new(client.clone(), name).unwrap();
                    let mut server = ServerConnection::new(config.clone()).unwrap();
                    shake(&mut client, &mut server).unwrap();
                    kind = server.handshake_kind();
                }
                assert_eq!(kind, Some(expected), "{version:?}");
            }
        }
    }
}

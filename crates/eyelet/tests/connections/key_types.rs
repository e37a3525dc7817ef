//! Several certificates for one name: the first that fits the signatures which a client accepts.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};
use rustls::{ClientConfig, SignatureScheme};

use crate::support::client::handshake;
use crate::support::edge::{LISTENER, connect};
use crate::support::pki::Kind;
use crate::support::{Edge, Pki, Upstream};

/// A client that accepts these signatures of servers.
fn config(pki: &Pki, mut provider: CryptoProvider, rsa_only: bool) -> Arc<ClientConfig> {
    if rsa_only {
        let is_rsa = |scheme: &SignatureScheme| format!("{scheme:?}").starts_with("RSA");
        let known = provider.signature_verification_algorithms;
        let mapping: Vec<_> =
            known.mapping.iter().copied().filter(|(scheme, _)| is_rsa(scheme)).collect();
        // For the length of the test: rustls wants a static reference.
        provider.signature_verification_algorithms.mapping = mapping.leak();
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(provider));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_root_certificates(pki.roots()).with_no_client_auth())
}

#[test]
fn a_client_gets_the_first_certificate_that_fits_what_it_offers() {
    let (pki, upstream) = (Pki::new(), Upstream::echo());
    let kinds = [("pq", Kind::MlDsa65), ("ec", Kind::P256), ("rsa", Kind::Rsa)];
    let [pq, ec, rsa] = kinds.map(|(file, kind)| pki.server(file, &["app.test"], kind).certificate);
    let rule = format!(
        "[[rule]]\nsni = \"app.test\"\naction = \"terminate\"\n\
         certificate = [\"pq.pem\", \"ec.pem\", \"rsa.pem\"]\n\
         key = [\"pq.key\", \"ec.key\", \"rsa.key\"]\nupstream = \"tcp://{}\"\n",
        upstream.address
    );
    let edge = Edge::start_whole(&pki.folder, &format!("workers = 1\n{LISTENER}{rule}"), |_| ());
    for (name, provider, rsa_only, expected) in [
        ("ML-DSA", aws_lc_rs::default_provider(), false, &pq),
        ("no ML-DSA", ring::default_provider(), false, &ec),
        ("RSA alone", ring::default_provider(), true, &rsa),
    ] {
        let tls = handshake(config(&pki, provider, rsa_only), connect(edge.address()), "app.test");
        let tls = tls.unwrap_or_else(|error| panic!("{name}: {error}\n{}", edge.log()));
        let shown = tls.conn.peer_certificates().and_then(|chain| chain.first());
        assert_eq!(shown, Some(expected), "{name}");
    }
}

//! The agreement of a TLS connection to an upstream, read from rustls.

use rustls::{ClientConnection, HandshakeKind};

use eyelet_telemetry::upstream_tls::UpstreamTlsInfo;

/// Returns the agreement of a connection. `None` before the end of its handshake.
pub fn tls_info(tls: &ClientConnection) -> Option<UpstreamTlsInfo> {
    let suite = tls.negotiated_cipher_suite()?.suite().as_str()?;
    let group = tls.negotiated_key_exchange_group();
    let alpn = tls.alpn_protocol();
    Some(UpstreamTlsInfo {
        version: tls.protocol_version()?.into(),
        cipher_suite: registered_name(suite).into(),
        group: group.and_then(|group| group.name().as_str()).map(Into::into),
        alpn: alpn.map(|name| String::from_utf8_lossy(name).into()),
        resumed: tls.handshake_kind() == Some(HandshakeKind::Resumed),
    })
}

/// The name of a suite in the IANA registry. rustls writes `TLS13_` for `TLS_` in those of TLS 1.3.
fn registered_name(suite: &'static str) -> &'static str {
    const NAMES: [(&str, &str); 3] = [
        ("TLS13_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
        ("TLS13_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
        ("TLS13_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256"),
    ];
    NAMES.iter().find(|(known, _)| *known == suite).map_or(suite, |(_, registered)| registered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyelet_tls::provider::PROVIDER;

    #[test]
    fn suites_have_their_registered_names() {
        for suite in &PROVIDER.cipher_suites {
            let name = registered_name(suite.suite().as_str().unwrap_or_default());
            assert!(name.starts_with("TLS_"), "{name}");
        }
    }
}

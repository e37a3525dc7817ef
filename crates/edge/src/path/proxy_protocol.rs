//! Writes the PROXY v2 header for upstreams whose rule asks for it.

use eyelet_record::Version;
use eyelet_wire::proxy::{Command, Ssl, Tlvs, V2_WRITTEN_BYTES_MAX, write_v2};

use crate::path::active::Connection;

/// The contents of the TLS TLVs for a terminated connection.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The negotiated version.
    pub version: Version,
    /// The cipher suite by its OpenSSL name.
    pub cipher: &'static str,
    /// Whether the session was resumed.
    pub resumed: bool,
    /// The protocol that ALPN selected.
    pub alpn: Option<Vec<u8>>,
    /// Whether the client sent a certificate, which then was verified.
    pub certificate: bool,
    pub common_name: Option<String>,
}

/// The header. `tls` is `None` unless TLS ends here.
pub fn header(connection: &Connection<'_>, tls: Option<&Tls>) -> Vec<u8> {
    let destination =
        connection.info.decided.destination.or_else(|| connection.handle.local_address());
    let command = match destination {
        Some(destination) => Command::Proxy { client: connection.info.client, destination },
        None => Command::Local,
    };
    let ssl = tls.map(|tls| Ssl {
        version: match tls.version {
            Version::Tls12 => "TLSv1.2",
            Version::Tls13 => "TLSv1.3",
        },
        cipher: tls.cipher,
        common_name: tls.common_name.as_deref(),
        client_certificate: tls.certificate,
        client_certificate_here: tls.certificate && !tls.resumed,
    });
    let tlvs = Tlvs {
        alpn: tls.and_then(|tls| tls.alpn.as_deref()),
        // A hello that only shadow rules have read is not passed to the upstream.
        authority: connection
            .info
            .decided
            .sni
            .as_deref()
            .filter(|_| connection.info.decided.tls_compression.is_some()),
        ssl,
    };
    written(command, tlvs)
}

/// The bytes of a header, and no room behind them: a parked connection may hold them for hours.
fn written(command: Command, mut tlvs: Tlvs<'_>) -> Vec<u8> {
    let mut out = vec![0; V2_WRITTEN_BYTES_MAX];
    let len = write_v2(&mut out, command, &tlvs).or_else(|_| {
        // Only a common name can be too long. A truncated name would be another's name.
        tlvs.ssl = tlvs.ssl.map(|ssl| Ssl { common_name: None, ..ssl });
        write_v2(&mut out, command, &tlvs)
    });
    out.truncate(len.unwrap_or(0));
    out.shrink_to_fit();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_holds_no_more_than_its_bytes() {
        let tlvs = Tlvs { alpn: Some(b"h2"), authority: Some("a.example"), ssl: None };
        let header = written(Command::Local, tlvs);
        assert!((16..64).contains(&header.len()), "{header:?}");
        assert_eq!(header.capacity(), header.len());
    }
}

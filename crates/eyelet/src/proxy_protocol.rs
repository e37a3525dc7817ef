//! The PROXY v2 header that an upstream is sent where its rule asks for it.
//! It must not know when it is sent.

use eyelet_record::Version;
use eyelet_wire::proxy::{Command, Ssl, Tlvs, V2_WRITTEN_BYTES_MAX, write_v2};

use crate::connection_handle::ConnectionHandle;
use eyelet_telemetry::info::ConnectionInfo;

/// What the TLS TLVs tell of a terminated connection.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The version in force.
    pub version: Version,
    /// The suite in force, named as OpenSSL does.
    pub cipher: &'static str,
    /// Whether the session was resumed.
    pub resumed: bool,
    /// The protocol selected.
    pub alpn: Option<Vec<u8>>,
    /// Whether the client showed a certificate, which was then verified.
    pub certificate: bool,
    /// Its common name.
    pub common_name: Option<String>,
}

/// The header. `tls` is `None` where TLS does not end here.
pub fn header(connection: &ConnectionHandle, info: &ConnectionInfo, tls: Option<&Tls>) -> Vec<u8> {
    let destination = info.decided.destination.or_else(|| connection.handle.local_address());
    let command = match destination {
        Some(destination) => Command::Proxy { client: info.client, destination },
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
    let mut tlvs = Tlvs {
        alpn: tls.and_then(|tls| tls.alpn.as_deref()),
        // A hello that only rules in shadow have looked at is nothing to the upstream.
        authority: info.decided.sni.as_deref().filter(|_| info.decided.tls_compression.is_some()),
        ssl,
    };
    let mut out = vec![0; V2_WRITTEN_BYTES_MAX];
    let len = write_v2(&mut out, command, &tlvs).or_else(|_| {
        // Only a common name can be too long: half a name would be another's.
        tlvs.ssl = tlvs.ssl.map(|ssl| Ssl { common_name: None, ..ssl });
        write_v2(&mut out, command, &tlvs)
    });
    out.truncate(len.unwrap_or(0));
    out
}

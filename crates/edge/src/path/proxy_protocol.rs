//! Writes the PROXY v2 header for upstreams whose rule asks for it.

use eyelet_record::Version;
use eyelet_wire::local_peer::LocalPeer;
use eyelet_wire::proxy::{Command, Ssl, Tlvs, V2_WRITTEN_BYTES_MAX, write_v2};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::path::active::Active;
use crate::path::handshake::Handshaken;

/// The header. `tls` is the handshake with the client, if TLS ends here.
pub fn header(connection: &Active<'_>, tls: Option<&Handshaken>) -> Vec<u8> {
    let Active { handle, info, .. } = connection;
    let destination = info.decided.destination.or_else(|| handle.local_address());
    // The header of a client of a Unix socket has no address to give.
    let is_local = LocalPeer::of(info.client.ip()).is_some();
    let command = match destination.filter(|_| !is_local) {
        Some(destination) => Command::Proxy { client: info.client, destination },
        None => Command::Local,
    };
    let common_name = tls.and_then(common_name);
    let ssl = tls.map(|tls| Ssl {
        version: match tls.session.version() {
            Version::Tls12 => "TLSv1.2",
            Version::Tls13 => "TLSv1.3",
        },
        cipher: tls.suite,
        common_name: common_name.as_deref(),
        client_certificate: tls.certificate.is_some(),
        client_certificate_here: tls.certificate.is_some() && !tls.resumed,
    });
    let tlvs = Tlvs {
        alpn: tls.and_then(|tls| tls.alpn.as_deref()),
        // A hello that only shadow rules have read is not passed to the upstream.
        authority: info.decided.sni.as_deref().filter(|_| info.decided.tls_compression.is_some()),
        ssl,
    };
    written(command, tlvs)
}

/// The common name in the client's certificate, which was verified.
fn common_name(done: &Handshaken) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(done.certificate.as_ref()?).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_owned())
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

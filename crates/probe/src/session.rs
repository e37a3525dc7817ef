//! Real handshakes with rustls: ALPN, the chain, resumption, early data, half-close.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use eyelet_tls::provider::{KeyOnly, PROVIDER};
use rustls::client::Resumption;
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, HandshakeKind, StreamOwned,
    SupportedProtocolVersion, version,
};

use crate::report::{Grade, ProbeReport};
use crate::scan::Versions;
use crate::target::{Bounded, ProbeTarget};
use crate::two;

/// A TLS connection with deadlines.
pub type ProbeClient = StreamOwned<ClientConnection, Bounded>;

/// The ways to speak with a server, for the steps after the first handshake.
#[derive(Clone, Copy, Debug)]
pub struct SpokenVersions {
    /// The newest version of TLS that both speak.
    pub version: &'static SupportedProtocolVersion,
    /// The server answers requests by HTTP/2, and none by HTTP/1.1.
    pub is_two_only: bool,
}

impl SpokenVersions {
    /// The only protocol to offer, so that requests are by it.
    pub const fn alpn(self) -> [&'static str; 1] {
        [if self.is_two_only { H2 } else { HTTP_1 }]
    }
}

/// ALPN's names of protocols (RFC 7301 section 6, RFC 9113 section 3.1).
const H2: &str = "h2";
const HTTP_1: &str = "http/1.1";

/// Tickets kept for one server; most send one or two.
const TICKETS: usize = 8;
/// Most bytes of an answer that is read only to take tickets along.
const DRAIN_BYTES_MAX: usize = 1 << 20;

/// A client of this version. It proves that the server has the key of its certificate, and trusts
/// any certificate: the chain is a finding of its own.
///
/// # Errors
/// As `Other`, if rustls has no suite of this version.
pub fn config(
    version: &'static SupportedProtocolVersion,
    resumes: bool,
    alpn: &[&str],
) -> io::Result<Arc<ClientConfig>> {
    let mut config = ClientConfig::builder_with_provider(PROVIDER.clone())
        .with_protocol_versions(&[version])
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(KeyOnly))
        .with_no_client_auth();
    config.resumption = match resumes {
        true => Resumption::in_memory_sessions(TICKETS),
        false => Resumption::disabled(),
    };
    config.enable_early_data = resumes;
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

/// Connects and shakes hands.
///
/// # Errors
/// The socket's, or rustls'.
pub fn open(target: &ProbeTarget, config: &Arc<ClientConfig>) -> io::Result<ProbeClient> {
    let mut tls = begin(target, config)?;
    finish(&mut tls)?;
    Ok(tls)
}

/// Connects and sends the hello.
///
/// # Errors
/// The socket's, or rustls'.
pub fn begin(target: &ProbeTarget, config: &Arc<ClientConfig>) -> io::Result<ProbeClient> {
    let connection = ClientConnection::new(Arc::clone(config), target.server_name()?);
    let connection = connection.map_err(io::Error::other)?;
    let mut tls = StreamOwned::new(connection, target.connect()?);
    while tls.conn.wants_write() {
        tls.conn.write_tls(&mut tls.sock)?;
    }
    Ok(tls)
}

/// Shakes hands.
///
/// # Errors
/// The socket's, or rustls'.
pub fn finish(tls: &mut ProbeClient) -> io::Result<()> {
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock)?;
    }
    Ok(())
}

/// The version with which a handshake is possible for this client.
fn newest(versions: Versions) -> Option<&'static SupportedProtocolVersion> {
    match versions {
        Versions { tls13: true, .. } => Some(&version::TLS13),
        Versions { tls12: true, .. } => Some(&version::TLS12),
        _ => None,
    }
}

/// Looks at handshakes of each version. `None`: none is possible.
pub fn look(
    target: &ProbeTarget,
    versions: Versions,
    path: &str,
    report: &mut ProbeReport,
) -> Option<SpokenVersions> {
    let Some(version) = newest(versions) else {
        report.unknown("handshake", "no version is known that both speak");
        return None;
    };
    let tls = match config(version, false, &[H2, HTTP_1]).and_then(|config| open(target, &config)) {
        Ok(tls) => tls,
        Err(error) => {
            report.unknown("handshake", error);
            return Some(SpokenVersions { version, is_two_only: false });
        }
    };
    first(target, &tls, report);
    let chose_two = tls.conn.alpn_protocol() == Some(H2.as_bytes());
    drop(tls);
    let needs_http1 = answered(target, version, path, false);
    let spoken = SpokenVersions { version, is_two_only: chose_two && is_refusal(&needs_http1) };
    for (speaks, version, name) in [
        (versions.tls13, &version::TLS13, "resumption-1.3"),
        (versions.tls12, &version::TLS12, "resumption-1.2"),
    ] {
        if speaks {
            resume(target, SpokenVersions { version, ..spoken }, path, (name, report));
        }
    }
    match needs_http1 {
        Ok(true) => half_close(target, version, path, report),
        _ => report.unknown("half-close", "a whole connection gets no answer of HTTP/1.1"),
    }
    Some(spoken)
}

fn first(target: &ProbeTarget, tls: &ProbeClient, report: &mut ProbeReport) {
    let connection = &tls.conn;
    if let Some(group) = connection.negotiated_key_exchange_group() {
        let retried = connection.handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest);
        let retry = if retried { ", after a HelloRetryRequest" } else { "" };
        let seen = format!("{:?} with a current client{retry}", group.name());
        report.add("key-exchange", if retried { Grade::Note } else { Grade::Good }, seen);
    }
    match connection.alpn_protocol() {
        Some(chosen) => {
            report.add("alpn", Grade::Good, format!("chose {}", chosen.escape_ascii()));
        }
        None => report.advise("alpn", Grade::Note, "nothing of h2, http/1.1", ADVICE_ALPN),
    }
    crate::certificate::look(target, connection.peer_certificates().unwrap_or_default(), report);
}

/// Shakes hands twice. A request in between has a TLS 1.3 server send its tickets.
fn resume(
    target: &ProbeTarget,
    spoken: SpokenVersions,
    path: &str,
    (name, report): (&'static str, &mut ProbeReport),
) {
    let mut twice = || -> io::Result<(ClientConnection, u32)> {
        let config = config(spoken.version, true, &spoken.alpn())?;
        let mut tls = open(target, &config)?;
        drain(target, spoken, path, &mut tls);
        let tickets = tls.conn.tls13_tickets_received();
        drop(tls);
        let connection = ClientConnection::new(config, target.server_name()?);
        let mut connection = connection.map_err(io::Error::other)?;
        let early = connection.early_data().map(|early| early.bytes_left());
        if spoken.version.version == rustls::ProtocolVersion::TLSv1_3 {
            early_data(report, early);
        }
        let mut stream = target.connect()?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        Ok((connection, tickets))
    };
    match twice() {
        Ok((connection, tickets))
            if connection.handshake_kind() == Some(HandshakeKind::Resumed) =>
        {
            let count = match tickets {
                0 => String::new(),
                1 => ", one ticket a handshake".to_owned(),
                tickets => format!(", {tickets} tickets a handshake"),
            };
            report.add(name, Grade::Good, format!("yes{count}"));
        }
        Ok(_) => report.advise(name, Grade::Note, "no: a full handshake again", ADVICE_RESUME),
        Err(error) => report.unknown(name, error),
    }
}

fn early_data(report: &mut ProbeReport, bytes: Option<usize>) {
    match bytes {
        Some(bytes @ 1..) => {
            let seen = format!("tickets allow {bytes} bytes");
            report.advise("early-data", Grade::Note, seen, ADVICE_EARLY);
        }
        _ => report.add("early-data", Grade::Good, "not offered"),
    }
}

/// Asks for something that ends soon, and reads until the server ends or has sent enough.
fn drain(target: &ProbeTarget, spoken: SpokenVersions, path: &str, tls: &mut ProbeClient) {
    if spoken.is_two_only {
        // Tickets come before the answer, or with it.
        let _ = two::get(tls, (&target.authority(), path), "identity");
        return;
    }
    let authority = target.authority();
    let request = format!("HEAD {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
    // A server that speaks no HTTP may close, which is as good.
    let _ = tls.write_all(request.as_bytes());
    tls.sock.wait(target.wait.min(SETTLE));
    let (mut buffer, mut total) = ([0; 4096], 0);
    while total < DRAIN_BYTES_MAX {
        match tls.read(&mut buffer) {
            Ok(more @ 1..) => total += more,
            _ => break,
        }
    }
}

/// Says if a GET by HTTP/1.1 is answered. With `halves` close_notify and FIN follow it.
fn answered(
    target: &ProbeTarget,
    version: &'static SupportedProtocolVersion,
    path: &str,
    halves: bool,
) -> io::Result<bool> {
    let mut tls = open(target, &config(version, false, &[HTTP_1])?)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", target.authority());
    tls.write_all(request.as_bytes())?;
    if halves {
        tls.conn.send_close_notify();
        while tls.conn.wants_write() {
            tls.conn.write_tls(&mut tls.sock)?;
        }
        tls.sock.stream.shutdown(std::net::Shutdown::Write)?;
    }
    let mut first = [0; HTTP.len()];
    tls.read_exact(&mut first)?;
    Ok(first == *HTTP)
}

/// True if the server refuses HTTP/1.1: by the alert for it, by a close in place of an answer, or
/// by bytes that are no HTTP. What is late or has another fault says nothing.
fn is_refusal(answered: &io::Result<bool>) -> bool {
    let error = match answered {
        Ok(is_http) => return !is_http,
        Err(error) => error,
    };
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let no_protocol = rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol);
    inner == Some(&no_protocol)
        || matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)
}

/// Sends a request and close_notify, and looks whether the answer still comes.
fn half_close(
    target: &ProbeTarget,
    version: &'static SupportedProtocolVersion,
    path: &str,
    report: &mut ProbeReport,
) {
    match answered(target, version, path, true) {
        Ok(true) => report.add("half-close", Grade::Good, "the answer comes after a half-close"),
        _ => report.advise("half-close", Grade::Note, "the answer is lost", ADVICE_HALF),
    }
}

/// The beginning of each answer of HTTP/1.1.
const HTTP: &[u8; 5] = b"HTTP/";
/// The time that tickets may take on an open connection.
const SETTLE: std::time::Duration = std::time::Duration::from_secs(2);

const ADVICE_ALPN: &str = "clients speak HTTP/1.1 then; nginx: http2 on";
const ADVICE_RESUME: &str =
    "enable tickets with shared keys; a full handshake costs CPU and a signature";
const ADVICE_EARLY: &str = "early data can be replayed: answer 425 to what is not safe (RFC 8470)";
const ADVICE_HALF: &str = "TLS 1.3 allows to close one direction (RFC 8446 6.1)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_says_that_there_is_no_http_1() {
        let alert = |alert| Err(io::Error::other(rustls::Error::AlertReceived(alert)));
        for (answered, is_refused) in [
            (Ok(true), false),
            (Ok(false), true),
            (alert(AlertDescription::NoApplicationProtocol), true),
            (alert(AlertDescription::InternalError), false),
            (Err(ErrorKind::UnexpectedEof.into()), true),
            (Err(ErrorKind::ConnectionReset.into()), true),
            (Err(ErrorKind::TimedOut.into()), false),
            (Err(ErrorKind::ConnectionRefused.into()), false),
        ] {
            assert_eq!(is_refusal(&answered), is_refused, "{answered:?}");
        }
    }
}

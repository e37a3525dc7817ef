//! The TLS handshake by rustls, fed exactly one TLS record at a time, and the handover of its
//! secrets to the record layer. The one file that knows rustls' unbuffered API.
//!
//! One record at a time, because rustls would otherwise open application data or a KeyUpdate that
//! came with the client's Finished: the data would have to be carried over as plaintext, and the
//! KeyUpdate's answer would be lost with rustls.

use std::sync::Arc;

use eyelet_record::{Role, Session, Suite, Version};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{
    CipherSuite, ConnectionTrafficSecrets, ExtractedSecrets, HandshakeKind, ProtocolVersion,
    ServerConfig,
};
use rustls_pki_types::CertificateDer;

use crate::active::{Active, Stop, client_failure};
use crate::budget::{Counted, HELLO_BYTES};
use crate::lot::CLIENT;
use crate::story::End;
use crate::tls::{Certificates, TrafficSecrets, take_captured, with_certificates};

/// Bytes read at once: a client's second flight, with certificates, is rarely more.
const READ_BYTES: usize = 16 << 10;
/// Bytes that one handshake may hold unread: the largest record that rustls takes, twice, so
/// that a message of 64 KiB in several records is bounded by rustls' own limit, not by this one.
const HELD_BYTES_MAX: usize = 128 << 10;
/// The header of a TLS record, and the most that may follow it (RFC 5246 6.2.3).
const HEADER_BYTES: usize = 5;
const RECORD_BYTES_MAX: usize = (16 << 10) + 2048;

/// What a handshake leaves.
pub struct Handshaken {
    /// Secrets and sequence numbers.
    pub session: Session,
    /// Ciphertext that came behind the handshake.
    pub leftover: Vec<u8>,
    /// The version as on the wire.
    pub version: u16,
    /// The suite.
    pub suite: &'static str,
    /// The protocol selected.
    pub alpn: Option<Vec<u8>>,
    /// The client's own certificate, verified.
    pub certificate: Option<CertificateDer<'static>>,
    /// Whether a ticket was taken.
    pub resumed: bool,
}

/// Why a handshake failed, and whether the client was told by an alert.
pub struct HandshakeFailure {
    /// For the access line.
    pub end: End,
    /// The alert that rustls wants sent, sealed or not; empty where there is nobody to tell.
    pub alert: Vec<u8>,
}

impl From<End> for HandshakeFailure {
    fn from(end: End) -> Self {
        Self { end, alert: Vec::new() }
    }
}

/// Does the handshake. `incoming` is what was peeked.
pub async fn handshake(
    active: &Active,
    (config, certificates): (Arc<ServerConfig>, Arc<Certificates>),
    incoming: Vec<u8>,
) -> Result<Handshaken, HandshakeFailure> {
    let tls = UnbufferedServerConnection::new(config)
        .map_err(|error| End::failed(format!("handshake: {error}")))?;
    let mut machine =
        Machine { tls, incoming, fed: 0, outgoing: Vec::new(), secrets: TrafficSecrets::default() };
    let budget = &active.worker.edge.budget;
    let mut counted = Counted::new(budget, 0);
    loop {
        let step = with_certificates(&certificates, || machine.step());
        let outgoing = std::mem::take(&mut machine.outgoing);
        if let Err(error) = step {
            let end = End::failed(format!("handshake: {error}"));
            return Err(HandshakeFailure { end, alert: outgoing });
        }
        if !outgoing.is_empty() {
            active.send_all(CLIENT, &outgoing).await.map_err(stopped)?;
        }
        if matches!(step, Ok(Step::Done)) {
            return machine.hand_over().map_err(HandshakeFailure::from);
        }
        if machine.incoming.len() > HELD_BYTES_MAX {
            return Err(End::failed("handshake: the client's message is too long").into());
        }
        counted.set(machine.incoming.len().saturating_sub(HELLO_BYTES));
        match active.recv(&mut machine.incoming, READ_BYTES).await {
            Ok(0) => return Err(End::failed("client closed in the handshake").into()),
            Ok(_) => {}
            Err(stop) => return Err(stopped(stop).into()),
        }
    }
}

fn stopped(stop: Stop) -> End {
    End::failed(match stop {
        Stop::Drained => "drained in the handshake".into(),
        Stop::Shed => "shed: memory_max, in the handshake".into(),
        Stop::Late => "handshake_timeout".into(),
        Stop::Io(error) => client_failure(&error, "the handshake"),
    })
}

enum Step {
    /// rustls has had all there is.
    NeedMore,
    /// Application data can flow.
    Done,
}

struct Machine {
    tls: UnbufferedServerConnection,
    /// What was received and not discarded by rustls.
    incoming: Vec<u8>,
    /// How much of it rustls was shown: 0 <= fed <= incoming.len(), and a record's end.
    fed: usize,
    outgoing: Vec<u8>,
    secrets: TrafficSecrets,
}

impl Machine {
    /// Goes on until rustls needs more, is done, or fails; then `outgoing` has the alert.
    fn step(&mut self) -> Result<Step, rustls::Error> {
        loop {
            let Self { tls, incoming, fed, outgoing, secrets } = self;
            let UnbufferedStatus { discard, state } =
                tls.process_tls_records(&mut incoming[..*fed]);
            let captured = take_captured();
            if !captured.client.is_empty() {
                *secrets = captured;
            }
            let blocked = match state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    append(outgoing, |room| data.encode(room))?;
                    false
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    // Sent with what follows: one flight, one write.
                    data.done();
                    false
                }
                Ok(ConnectionState::BlockedHandshake) => true,
                Ok(ConnectionState::WriteTraffic(_)) => {
                    incoming.drain(..discard);
                    return Ok(Step::Done);
                }
                Ok(_) => return Err(rustls::Error::General("the client closed".into())),
                Err(error) => {
                    drain_alert(tls, outgoing);
                    return Err(error);
                }
            };
            incoming.drain(..discard);
            *fed -= discard;
            if blocked {
                match record_end(incoming, *fed) {
                    Some(end) => *fed = end,
                    None => return Ok(Step::NeedMore),
                }
            }
        }
    }

    fn hand_over(self) -> Result<Handshaken, End> {
        let Self { tls, incoming, secrets, .. } = self;
        let fault = |what: &str| End::failed(format!("handshake: {what}"));
        let version = match tls.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => 0x0303,
            Some(ProtocolVersion::TLSv1_3) => 0x0304,
            _ => return Err(fault("no version")),
        };
        let suite = tls.negotiated_cipher_suite().ok_or_else(|| fault("no suite"))?.suite();
        let alpn = tls.alpn_protocol().map(<[u8]>::to_vec);
        let resumed = tls.handshake_kind() == Some(HandshakeKind::Resumed);
        let certificate = tls
            .peer_certificates()
            .and_then(<[CertificateDer<'_>]>::first)
            .map(|certificate| certificate.clone().into_owned());
        let (keys, _kernel) =
            tls.dangerous_into_kernel_connection().map_err(|error| fault(&error.to_string()))?;
        let session = session(version, &keys, &secrets).ok_or_else(|| fault("handover"))?;
        let suite = suite_name(suite);
        Ok(Handshaken { session, leftover: incoming, version, suite, alpn, certificate, resumed })
    }
}

/// Encodes into the end of `outgoing`; rustls says how much room it needs.
fn append(
    outgoing: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), rustls::Error> {
    /// Most records of a flight; a certificate chain says how much more it needs.
    const ROOM_BYTES: usize = 512;
    let at = outgoing.len();
    let mut room = ROOM_BYTES;
    loop {
        outgoing.resize(at + room, 0);
        match encode(&mut outgoing[at..]) {
            Ok(len) => {
                outgoing.truncate(at + len);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(needed)) if needed.required_size > room => {
                room = needed.required_size;
            }
            Err(error) => return Err(rustls::Error::General(error.to_string())),
        }
    }
}

/// After an error rustls has records queued of which the last is the alert. It gives them before
/// it looks at its input, and it must not look: its deframer holds ranges of bytes that are gone.
/// So nothing is shown to it, and it is not called again once the alert is there.
fn drain_alert(tls: &mut UnbufferedServerConnection, outgoing: &mut Vec<u8>) {
    /// A server's whole flight, record by record: ServerHello, CCS, and the alert.
    const RECORDS_MAX: usize = 8;
    for _ in 0..RECORDS_MAX {
        let UnbufferedStatus { state, .. }: UnbufferedStatus<'_, '_, ServerConnectionData> =
            tls.process_tls_records(&mut []);
        let Ok(ConnectionState::EncodeTlsData(mut data)) = state else { return };
        let at = outgoing.len();
        if append(outgoing, |room| data.encode(room)).is_err() || is_alert(&outgoing[at..]) {
            return;
        }
    }
}

/// An alert in the clear, or sealed: two bytes, the content type and a tag of 16 are 19, which no
/// handshake message is short enough for.
fn is_alert(record: &[u8]) -> bool {
    matches!(record, [21, ..] | [23, _, _, 0, 19, ..])
}

/// Where the record that begins at `at` ends, if it is there whole. A header that no record may
/// have is an end too: rustls has the alert for it.
fn record_end(incoming: &[u8], at: usize) -> Option<usize> {
    let header = incoming.get(at..at + HEADER_BYTES)?;
    let fragment = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if fragment > RECORD_BYTES_MAX {
        return Some(incoming.len());
    }
    let end = at + HEADER_BYTES + fragment;
    (end <= incoming.len()).then_some(end)
}

/// The record layer's session from rustls' secrets, or `None` where the two do not agree.
fn session(version: u16, keys: &ExtractedSecrets, secrets: &TrafficSecrets) -> Option<Session> {
    let ((tx_seq, tx), (rx_seq, rx)) = (&keys.tx, &keys.rx);
    let (suite, tx_key, tx_iv) = parts(tx)?;
    let (_, rx_key, rx_iv) = parts(rx)?;
    let role = Role::Server;
    let session = if version == 0x0303 {
        Session::tls12(role, suite, rx_key, rx_iv, tx_key, tx_iv, *rx_seq, *tx_seq)
    } else {
        Session::tls13(role, suite, &secrets.client, &secrets.server, *rx_seq, *tx_seq)
    }
    .ok()?;
    debug_assert_eq!(session.version() == Version::Tls12, version == 0x0303);
    // With one record at a time no KeyUpdate can have gone before: the keys that rustls ended
    // with are those of generation 0, or the handover is wrong and must not be used.
    session.has_keys((rx_key, rx_iv), (tx_key, tx_iv)).then_some(session)
}

fn parts(secrets: &ConnectionTrafficSecrets) -> Option<(Suite, &[u8], &[u8])> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => {
            Some((Suite::Aes128Gcm, key.as_ref(), iv.as_ref()))
        }
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
            Some((Suite::Aes256Gcm, key.as_ref(), iv.as_ref()))
        }
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            Some((Suite::ChaCha20Poly1305, key.as_ref(), iv.as_ref()))
        }
        _ => None,
    }
}

/// The suite as OpenSSL names it, which is what PROXY's readers expect.
fn suite_name(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => "ECDHE-ECDSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => "ECDHE-ECDSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => {
            "ECDHE-ECDSA-CHACHA20-POLY1305"
        }
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => "ECDHE-RSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => "ECDHE-RSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-RSA-CHACHA20-POLY1305",
        other => other.as_str().unwrap_or("unknown"),
    }
}

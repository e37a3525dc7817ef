//! The TLS handshake by rustls, fed exactly one TLS record at a time, and the handover of its
//! secrets to the record layer. The one file that knows rustls' unbuffered API; what it does not
//! judge, or not as the RFCs do, is in `handshake/`.
//!
//! One record at a time, because rustls would otherwise open application data or a KeyUpdate that
//! came with the client's Finished: the data would have to be carried over as plaintext, and the
//! KeyUpdate's answer would be lost with rustls.

mod alerts;
mod incoming;

use std::sync::Arc;

use eyelet_record::{Role, Session, Suite};
use eyelet_wire::alert::AlertDescription;
use eyelet_wire::hello::{HelloReader, Peek};
use eyelet_wire::version::{TLS12, TLS13};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{
    CipherSuite, ClientConnection, ConnectionTrafficSecrets, ExtractedSecrets, HandshakeKind,
    ProtocolVersion, ServerConfig,
};
use rustls_pki_types::CertificateDer;

use crate::connection_handle::{ConnectionHandle, WaitError};
use eyelet_engine::ready::CLIENT;
use eyelet_memory::budget::{Account, Counted, CountedBuffer};
use eyelet_telemetry::info::End;
use eyelet_telemetry::reason::{Detail, HandshakeFault, Limit, Reason, Stage, When};
use eyelet_tls::provider::with_next_seq;
use eyelet_tls::server::{Certificates, TrafficSecrets, take_captured, with_certificates};
use incoming::{Next, is_early_data, next_record};

/// Bytes read at once: a client's second flight, with certificates, is rarely more.
const READ_BYTES: usize = 16 << 10;
/// Bytes that one handshake may hold unread: the largest record that rustls takes, twice, so
/// that a message of 64 KiB in several records is bounded by rustls' own limit, not by this one.
const HELD_BYTES_MAX: usize = 128 << 10;
/// Early data that is skipped, records with their headers: 2^14 bytes as rustls, in a few records.
const EARLY_BYTES_MAX: usize = (16 << 10) + 1024;

/// What a handshake leaves.
pub struct Handshaken {
    /// Secrets and sequence numbers.
    pub session: Session,
    /// Ciphertext that came behind the handshake.
    pub leftover: CountedBuffer,
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
    /// The alert that is to be sent, sealed or not; empty where there is nobody to tell.
    pub alert: Vec<u8>,
}

impl From<End> for HandshakeFailure {
    fn from(end: End) -> Self {
        Self { end, alert: Vec::new() }
    }
}

/// Does the handshake. `incoming` is what was peeked; `early_data`: its hello announces some;
/// `asks_certificate`: the client may show one.
pub async fn handshake(
    connection: &ConnectionHandle,
    (config, certificates): (Arc<ServerConfig>, Arc<Certificates>),
    incoming: CountedBuffer,
    early_data: bool,
    asks_certificate: bool,
) -> Result<Handshaken, HandshakeFailure> {
    let tls = UnbufferedServerConnection::new(config).map_err(|error| alerts::end(&error))?;
    let mut machine = Machine::new(tls, incoming, early_data);
    let budget = &connection.worker.snapshot.budget;
    machine.transcript = asks_certificate.then(|| Counted::of(budget, Account::Received, 0));
    loop {
        let step = with_certificates(&certificates, || machine.step());
        let outgoing = std::mem::take(&mut machine.outgoing);
        if let Err(error) = step {
            return Err(HandshakeFailure { end: alerts::end(&error), alert: outgoing });
        }
        if !outgoing.is_empty() {
            connection.handle.send_all(CLIENT, &outgoing).await.map_err(stopped)?;
        }
        if matches!(step, Ok(Step::Done)) {
            return machine.hand_over().map_err(HandshakeFailure::from);
        }
        if machine.incoming.len() > HELD_BYTES_MAX {
            let detail = Detail::of("the client's message is too long");
            return Err(End::failed(Reason::Handshake(HandshakeFault::Protocol, detail)).into());
        }
        match connection.handle.recv(&mut machine.incoming, READ_BYTES).await {
            Ok(0) => return Err(End::failed(Reason::ClientClosed(Some(SHAKING))).into()),
            Ok(_) => {}
            Err(wait_error) => return Err(stopped(wait_error).into()),
        }
    }
}

const SHAKING: When = When::During(Stage::Handshake);

fn stopped(wait_error: WaitError) -> End {
    End::failed(match wait_error {
        WaitError::Late => Reason::Timeout(Limit::Handshake, None),
        other => other.reason(Limit::Handshake, SHAKING),
    })
}

/// Does the handshake with a client in this process, without a socket.
pub fn warm_up(
    (config, certificates): (Arc<ServerConfig>, Arc<Certificates>),
    client: &mut ClientConnection,
    incoming: CountedBuffer,
) -> Result<Handshaken, String> {
    /// Of each side; a HelloRetryRequest would make it one more.
    const FLIGHTS_MAX: usize = 4;
    let tls = UnbufferedServerConnection::new(config).map_err(|error| error.to_string())?;
    let mut machine = Machine::new(tls, incoming, false);
    for _ in 0..FLIGHTS_MAX {
        while client.wants_write() {
            let written = machine.incoming.edit(|bytes| client.write_tls(bytes));
            written.map_err(|error| error.to_string())?;
        }
        let step = with_certificates(&certificates, || machine.step());
        let step = step.map_err(|error| error.to_string())?;
        let mut outgoing = machine.outgoing.as_slice();
        while !outgoing.is_empty() {
            client.read_tls(&mut outgoing).map_err(|error| error.to_string())?;
            client.process_new_packets().map_err(|error| error.to_string())?;
        }
        machine.outgoing.clear();
        if matches!(step, Step::Done) {
            return machine.hand_over().map_err(|end| end.reason.to_string());
        }
    }
    Err("no end".into())
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
    incoming: CountedBuffer,
    /// How much of it rustls was shown: 0 <= fed <= incoming.len(), and a record's end.
    fed: usize,
    outgoing: Vec<u8>,
    /// The number of our next TLS 1.3 record, as rustls has counted under the key that it uses.
    next_seq: Option<u64>,
    secrets: TrafficSecrets,
    /// How much early data may still be skipped, in bytes; 0 where none was announced, or once
    /// the client's handshake has gone on.
    skip_bytes: usize,
    /// Where rustls keeps the whole transcript, to verify the client's signature over it.
    transcript: Option<Counted>,
    /// Bytes that rustls was shown.
    shown: usize,
}

impl Machine {
    fn new(tls: UnbufferedServerConnection, incoming: CountedBuffer, early_data: bool) -> Self {
        let skip_bytes = if early_data { EARLY_BYTES_MAX } else { 0 };
        let (outgoing, secrets) = (Vec::new(), TrafficSecrets::default());
        let (transcript, shown, next_seq) = (None, 0, None);
        Self { tls, incoming, fed: 0, outgoing, next_seq, secrets, skip_bytes, transcript, shown }
    }

    /// Goes on until rustls needs more, is done, or fails; then `outgoing` has the alert.
    fn step(&mut self) -> Result<Step, rustls::Error> {
        loop {
            let Self { tls, incoming, fed, outgoing, next_seq, secrets, .. } = self;
            // It seals in this call; what it encodes later is sealed already.
            let (UnbufferedStatus { discard, state }, counted) =
                with_next_seq(|| tls.process_tls_records(&mut incoming[..*fed]));
            *next_seq = counted.or(*next_seq);
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
                    incoming.consume(discard);
                    return Ok(Step::Done);
                }
                Ok(_) => return Err(rustls::Error::General("the client closed".into())),
                Err(error) => return Err(self.failed(error)),
            };
            incoming.consume(discard);
            *fed -= discard;
            if blocked && !self.feed()? {
                return Ok(Step::NeedMore);
            }
        }
    }

    /// Puts the next record before rustls, or skips it; `false`: there is none yet.
    fn feed(&mut self) -> Result<bool, rustls::Error> {
        loop {
            let sealed = !self.secrets.server.is_empty();
            let end = match next_record(&self.incoming, self.fed, sealed) {
                Next::NeedMore => return Ok(false),
                Next::Record(end) => end,
                // That alert has to be sealed, and only rustls can: it shall find out by itself.
                Next::Refused(..) if self.tls12_is_sealed() => self.incoming.len(),
                Next::Refused(alert, what) => {
                    self.append_alert(alert);
                    return Err(rustls::Error::General(what.into()));
                }
            };
            if !(sealed && self.skips(end)) {
                self.shown += end - self.fed;
                if let Some(transcript) = &mut self.transcript {
                    // It grows by doubling.
                    transcript.set(2 * self.shown);
                }
                self.fed = end;
                return Ok(true);
            }
            // rustls would keep it, and count it again with each record.
            self.incoming.edit(|bytes| drop(bytes.drain(self.fed..end)));
        }
    }

    /// Whether the record up to `end` is early data to be skipped.
    fn skips(&mut self, end: usize) -> bool {
        let record = &self.incoming[self.fed..end];
        if self.skip_bytes == 0 || !incoming::is_application_data(record) {
            return false;
        }
        // After a HelloRetryRequest no early data may follow (RFC 8446 section 4.2.10).
        let retried = self.tls.handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest);
        let skipped = !retried
            && suite_of(&self.tls)
                .is_some_and(|suite| is_early_data(suite, &self.secrets.client_handshake, record));
        let left = self.skip_bytes.checked_sub(record.len()).filter(|_| skipped);
        self.skip_bytes = left.unwrap_or(0);
        left.is_some()
    }

    /// What rustls failed by, with an alert queued in `outgoing`: rustls' or our own.
    fn failed(&mut self, error: rustls::Error) -> rustls::Error {
        let said = drain_alert(&mut self.tls, &mut self.outgoing);
        let tls12 = self.tls.protocol_version() == Some(ProtocolVersion::TLSv1_2);
        // What rustls fails by is not discarded: a hello is there from its first record on.
        let lacking = match HelloReader::new(self.incoming.len()).feed(&self.incoming) {
            Peek::Hello(hello) => incoming::is_lacking(&hello),
            _ => false,
        };
        if let Some(alert) = alerts::ours(&error, tls12, lacking, said.is_some())
            && !self.tls12_is_sealed()
        {
            if let Some(at) = said {
                // The number of a record that is never sent is free again.
                self.outgoing.truncate(at);
                self.next_seq = self.next_seq.and_then(|seq| seq.checked_sub(1));
            }
            self.append_alert(alert);
        }
        error
    }

    /// Whether we have sent ChangeCipherSpec in TLS 1.2 and the client has not finished: only
    /// where a session is resumed is our Finished the first.
    fn tls12_is_sealed(&self) -> bool {
        self.tls.protocol_version() == Some(ProtocolVersion::TLSv1_2)
            && self.tls.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Queues that alert: sealed once our direction has its application keys, else in the clear.
    fn append_alert(&mut self, alert: AlertDescription) {
        if self.secrets.server.is_empty() {
            self.outgoing.extend_from_slice(&alert.fatal_record());
        } else if self.tls.is_handshaking()
            && let (Some(suite), Some(next_seq)) = (suite_of(&self.tls), self.next_seq)
        {
            alerts::append_sealed(suite, &self.secrets, alert, next_seq, &mut self.outgoing);
        }
    }

    fn hand_over(self) -> Result<Handshaken, End> {
        let Self { tls, incoming, secrets, next_seq, .. } = self;
        let fault =
            |what: &str| End::failed(Reason::Handshake(HandshakeFault::Internal, Detail::of(what)));
        let name = tls.negotiated_cipher_suite().ok_or_else(|| fault("no suite"))?.suite();
        let alpn = tls.alpn_protocol().map(<[u8]>::to_vec);
        let resumed = tls.handshake_kind() == Some(HandshakeKind::Resumed);
        let certificate = tls
            .peer_certificates()
            .and_then(<[CertificateDer<'_>]>::first)
            .map(|certificate| certificate.clone().into_owned());
        let (version, session) = match tls.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => (TLS12, session12(tls)),
            Some(ProtocolVersion::TLSv1_3) => (TLS13, session13(tls, &secrets, next_seq)),
            _ => return Err(fault("no version")),
        };
        let session = session.ok_or_else(|| fault("handover"))?;
        let suite = suite_name(name);
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
    /// A whole flight with a small chain: it need not grow by halves.
    const FLIGHT_BYTES: usize = 2048;
    let at = outgoing.len();
    if at == 0 {
        outgoing.reserve(FLIGHT_BYTES);
    }
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

/// After an error rustls may have records queued, of which the last is the alert. It gives them
/// before it looks at its input, and it must not look: its deframer holds ranges of bytes that are
/// gone, and panics. So it is called only while something is queued. Returns where in `outgoing`
/// the alert is.
fn drain_alert(tls: &mut UnbufferedServerConnection, outgoing: &mut Vec<u8>) -> Option<usize> {
    while tls.wants_write() {
        let UnbufferedStatus { state, .. }: UnbufferedStatus<'_, '_, ServerConnectionData> =
            tls.process_tls_records(&mut []);
        let Ok(ConnectionState::EncodeTlsData(mut data)) = state else { return None };
        let at = outgoing.len();
        append(outgoing, |room| data.encode(room)).ok()?;
        if is_alert(&outgoing[at..]) {
            return Some(at);
        }
    }
    None
}

/// An alert in the clear, or sealed: two bytes, the content type and a tag of 16 are 19, which no
/// handshake message is short enough for.
fn is_alert(record: &[u8]) -> bool {
    matches!(record, [21, ..] | [23, _, _, 0, 19, ..])
}

/// The suite of a TLS 1.3 handshake, once it is agreed on.
fn suite_of(tls: &UnbufferedServerConnection) -> Option<Suite> {
    match tls.negotiated_cipher_suite()?.suite() {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Suite::Aes128Gcm),
        CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Suite::Aes256Gcm),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(Suite::ChaCha20Poly1305),
        _ => None,
    }
}

/// The record layer's session of a TLS 1.3 connection, at the sequence numbers where rustls left
/// off. The client's is 0: of what follows its Finished rustls was shown nothing. Ours is the one
/// that rustls itself would use next (`provider.rs`): to seal another record under a number that
/// was used would give its key away. Without it there is no session.
///
/// rustls tells both numbers only with keys, which it would derive for nobody: that is a twentieth
/// of a handshake. So the keys are compared where tests run.
fn session13(
    tls: UnbufferedServerConnection,
    secrets: &TrafficSecrets,
    tx_seq: Option<u64>,
) -> Option<Session> {
    let (suite, tx_seq) = (suite_of(&tls)?, tx_seq?);
    let session =
        Session::tls13(Role::Server, suite, &secrets.client, &secrets.server, 0, tx_seq).ok()?;
    debug_assert!(is_handed_over(tls, &session, tx_seq), "not the keys or numbers of rustls");
    Some(session)
}

/// Whether rustls ended with these keys and sequence numbers.
fn is_handed_over(tls: UnbufferedServerConnection, session: &Session, tx_seq: u64) -> bool {
    let Ok((keys, _kernel)) = tls.dangerous_into_kernel_connection() else { return false };
    let ExtractedSecrets { tx: (their_tx_seq, tx), rx: (rx_seq, rx) } = &keys;
    let (Some((_, tx_key, tx_iv)), Some((_, rx_key, rx_iv))) = (parts(tx), parts(rx)) else {
        return false;
    };
    (*rx_seq, *their_tx_seq) == (0, tx_seq) && session.has_keys((rx_key, rx_iv), (tx_key, tx_iv))
}

/// The same of TLS 1.2, where rustls' keys are all there is.
fn session12(tls: UnbufferedServerConnection) -> Option<Session> {
    let (keys, _kernel) = tls.dangerous_into_kernel_connection().ok()?;
    let ((tx_seq, tx), (rx_seq, rx)) = (&keys.tx, &keys.rx);
    let (suite, tx_key, tx_iv) = parts(tx)?;
    let (_, rx_key, rx_iv) = parts(rx)?;
    Session::tls12(Role::Server, suite, rx_key, rx_iv, tx_key, tx_iv, *rx_seq, *tx_seq).ok()
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

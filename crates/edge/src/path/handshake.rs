//! The TLS handshake by rustls, which gets exactly one TLS record at a time, and the export of its
//! secrets to the record layer. This is the only file that uses rustls' unbuffered API.
//! `handshake/` has the checks that rustls lacks, or does not make as the RFCs ask.
//!
//! rustls gets one record at a time for this reason: it would open application data or a KeyUpdate
//! that came with the client's Finished. The data would have to be carried over as plaintext, and
//! the answer to the KeyUpdate would be lost with rustls.

mod alerts;
mod incoming;

use eyelet_record::{Role, Session, Suite};
use eyelet_wire::alert::AlertDescription;
use eyelet_wire::hello::{HelloReader, Peek};
use eyelet_wire::record::{APPLICATION_DATA, HANDSHAKE};
use eyelet_wire::version::{TLS12, TLS13};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{
    CipherSuite, ClientConnection, Error, ExtractedSecrets, HandshakeKind, PeerIncompatible,
    ProtocolVersion,
};
use rustls_pki_types::CertificateDer;

use crate::path::active::{Active, WaitError};
use alerts::{HandshakeError, SHAKING};
use eyelet_engine::ready::CLIENT;
use eyelet_memory::budget::{Account, Counted, CountedBuffer};
use eyelet_telemetry::info::End;
use eyelet_telemetry::reason::{Detail, HandshakeFault, Limit, Reason};
use eyelet_tls::provider::with_next_seq;
use eyelet_tls::secrets::{parts, tls13_suite};
use eyelet_tls::server::{Handshake, TrafficSecrets, take_captured, take_unfit, with_certificates};
use incoming::{BadRecord, EarlyData, Next, content_type, is_early_data, next_record};

/// Bytes of one read: a client's second flight, with certificates, is rarely more.
const READ_BYTES: usize = 16 << 10;
/// Unread bytes that one handshake may hold. It is twice the largest record that rustls takes, so
/// that rustls' own limit bounds a message of 64 KiB in several records.
const HELD_BYTES_MAX: usize = 128 << 10;

/// The result of a handshake.
pub struct Handshaken {
    /// Secrets and sequence numbers.
    pub session: Session,
    /// Ciphertext that followed the handshake.
    pub leftover: CountedBuffer,
    /// The negotiated version, as on the wire.
    pub version: u16,
    /// The cipher suite.
    pub suite: &'static str,
    /// The group of the key exchange.
    pub group: &'static str,
    /// The protocol that ALPN selected.
    pub alpn: Option<Vec<u8>>,
    /// The client's own certificate, verified.
    pub certificate: Option<CertificateDer<'static>>,
    /// True if the session was resumed by a ticket.
    pub resumed: bool,
}

/// The reason why a handshake failed, and the alert for the client.
pub struct HandshakeFailure {
    /// For the access line.
    pub end: End,
    /// The alert to send, sealed or not; empty if none is due.
    pub alert: Vec<u8>,
}

impl From<End> for HandshakeFailure {
    fn from(end: End) -> Self {
        Self { end, alert: Vec::new() }
    }
}

/// Does the handshake. `incoming` has the peeked bytes. `early_data` says that the hello announces
/// some. `asks_certificate` says that the server requests a client certificate.
pub async fn handshake(
    connection: &Active<'_>,
    with: Handshake,
    incoming: CountedBuffer,
    early_data: bool,
    asks_certificate: bool,
) -> Result<Handshaken, HandshakeFailure> {
    let Handshake { config, certificates, .. } = with;
    let tls =
        UnbufferedServerConnection::new(config).map_err(|error| alerts::end(&error.into()))?;
    let mut machine = Machine::new(tls, incoming, early_data);
    let budget = &connection.edge.snapshot.budget;
    machine.transcript = asks_certificate.then(|| Counted::of(budget, Account::Received, 0));
    loop {
        let step = with_certificates(&certificates, || machine.step());
        let outgoing = std::mem::take(&mut machine.outgoing);
        if let Err(failure) = step {
            return Err(HandshakeFailure { end: alerts::end(&failure), alert: outgoing });
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

fn stopped(wait_error: WaitError) -> End {
    End::failed(match wait_error {
        WaitError::Late => Reason::Timeout(Limit::Handshake, None),
        other => other.reason(Limit::Handshake, SHAKING),
    })
}

/// Does the handshake with a client in this process, without a socket.
pub fn warm_up(
    with: Handshake,
    client: &mut ClientConnection,
    incoming: CountedBuffer,
) -> Result<Handshaken, String> {
    /// Flights of each side. A HelloRetryRequest would add one.
    const FLIGHTS_MAX: usize = 4;
    let Handshake { config, certificates, .. } = with;
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
    /// rustls has read all complete records.
    NeedMore,
    /// Application data can flow.
    Done,
}

struct Machine {
    tls: UnbufferedServerConnection,
    /// Received bytes that rustls has not discarded.
    incoming: CountedBuffer,
    /// The number of these bytes that rustls was given: 0 <= fed <= incoming.len(), and a record
    /// ends there.
    fed: usize,
    outgoing: Vec<u8>,
    /// The sequence number of our next TLS 1.3 record, as rustls counted it under the current key.
    next_seq: Option<u64>,
    secrets: TrafficSecrets,
    /// `None` if no early data was announced, or once the client's handshake has continued.
    early_data: Option<EarlyData>,
    /// The transcript that rustls keeps whole, to verify the client's signature over it.
    transcript: Option<Counted>,
    /// Bytes that rustls was given.
    shown: usize,
}

impl Machine {
    fn new(tls: UnbufferedServerConnection, incoming: CountedBuffer, early_data: bool) -> Self {
        let early_data = early_data.then(EarlyData::new);
        let (outgoing, secrets) = (Vec::new(), TrafficSecrets::default());
        let (transcript, shown, next_seq) = (None, 0, None);
        Self { tls, incoming, fed: 0, outgoing, next_seq, secrets, early_data, transcript, shown }
    }

    /// Runs until rustls needs more, is done, or fails. After a failure `outgoing` ends with the
    /// alert.
    fn step(&mut self) -> Result<Step, HandshakeError> {
        loop {
            let Self { tls, incoming, fed, outgoing, next_seq, secrets, .. } = self;
            // This call seals records. Later states only encode sealed ones.
            let (UnbufferedStatus { discard, state }, counted) =
                with_next_seq(|| tls.process_tls_records(&mut incoming[..*fed]));
            *next_seq = counted.or(*next_seq);
            let is_unfit = take_unfit();
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
                    // Sent with the following records: one write for the flight.
                    data.done();
                    false
                }
                Ok(ConnectionState::BlockedHandshake) => true,
                Ok(ConnectionState::WriteTraffic(_)) => {
                    incoming.consume(discard);
                    return Ok(Step::Done);
                }
                Ok(_) => return Err(HandshakeError::Closed),
                // rustls finds this in TLS 1.2 when it is about to sign.
                Err(Error::General(_)) if is_unfit => {
                    let error = PeerIncompatible::NoSignatureSchemesInCommon;
                    return Err(self.failed(error.into()).into());
                }
                Err(error) => return Err(self.failed(error).into()),
            };
            incoming.consume(discard);
            *fed -= discard;
            if blocked && !self.feed()? {
                return Ok(Step::NeedMore);
            }
        }
    }

    /// Gives rustls the next record. Returns `false` if none is complete yet.
    fn feed(&mut self) -> Result<bool, HandshakeError> {
        self.feed_record().map_err(|bad| {
            self.append_alert(bad.alert());
            bad.into()
        })
    }

    fn feed_record(&mut self) -> Result<bool, BadRecord> {
        loop {
            let is_sealed = !self.secrets.server.is_empty();
            let end = match next_record(&self.incoming, self.fed, is_sealed) {
                Next::NeedMore => return Ok(false),
                Next::Record(end) => end,
                // This alert must be sealed, and only rustls can seal it, so rustls finds the error
                // itself.
                Next::Refused(_) if self.tls12_is_sealed() => self.incoming.len(),
                Next::Refused(bad) => return Err(bad),
            };
            if !self.skips(end)? {
                self.shown += end - self.fed;
                if let Some(transcript) = &mut self.transcript {
                    // The transcript's buffer grows by doubling.
                    transcript.set(2 * self.shown);
                }
                self.fed = end;
                return Ok(true);
            }
            // rustls would keep these bytes and process them again with each record.
            self.incoming.edit(|bytes| drop(bytes.drain(self.fed..end)));
        }
    }

    /// Says if the record that ends at `end` is early data to skip (RFC 8446 section 4.2.10).
    /// rustls would skip less after a HelloRetryRequest: it counts what sealing adds, too.
    fn skips(&mut self, end: usize) -> Result<bool, BadRecord> {
        let Some(early_data) = &mut self.early_data else { return Ok(false) };
        let record = &self.incoming[self.fed..end];
        let is_sealed = !self.secrets.server.is_empty();
        let is_retried =
            self.tls.handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest);
        let (is_early, too_much) = match content_type(record) {
            // "discarding records which fail deprotection"
            Some(APPLICATION_DATA) if is_sealed => {
                let secret = &self.secrets.client_handshake;
                let suite = suite_of(&self.tls);
                let is_early = suite.is_some_and(|suite| is_early_data(suite, secret, record));
                (is_early, BadRecord::Undecryptable)
            }
            // "skipping all records with an external content type of "application_data""
            Some(APPLICATION_DATA) if is_retried => (true, BadRecord::EarlyData),
            // None may follow the second hello.
            Some(HANDSHAKE) if is_retried => (false, BadRecord::EarlyData),
            _ => return Ok(false),
        };
        if !is_early {
            self.early_data = None;
            return Ok(false);
        }
        if early_data.skip(record.len()) { Ok(true) } else { Err(too_much) }
    }

    /// Queues an alert in `outgoing` after rustls failed: rustls' own or ours.
    fn failed(&mut self, error: Error) -> Error {
        let mut said = drain_alert(&mut self.tls, &mut self.outgoing);
        let is_sealed = |at: usize| content_type(&self.outgoing[at..]) == Some(APPLICATION_DATA);
        if self.secrets.server.is_empty() && said.is_some_and(is_sealed) {
            // rustls fails between its ServerHello and its Finished. Nothing of such a flight was
            // sent, so the client learns of the failure by an alert in the clear, and of no more.
            self.outgoing.clear();
            said = None;
        }
        let tls12 = self.tls.protocol_version() == Some(ProtocolVersion::TLSv1_2);
        // rustls does not discard the bytes that it fails on, so a hello is here from its first
        // record on.
        let lacking = match HelloReader::new(self.incoming.len()).feed(&self.incoming) {
            Peek::Hello(hello) => incoming::is_lacking(&hello),
            _ => false,
        };
        if let Some(alert) = alerts::ours(&error, tls12, lacking, said.is_some())
            && !self.tls12_is_sealed()
        {
            if let Some(at) = said {
                // The record is never sent, so its sequence number can be used again.
                self.outgoing.truncate(at);
                self.next_seq = self.next_seq.and_then(|seq| seq.checked_sub(1));
            }
            self.append_alert(alert);
        }
        error
    }

    /// True if we have sent ChangeCipherSpec in TLS 1.2 before the client finished. Our Finished is
    /// first only if a session is resumed.
    fn tls12_is_sealed(&self) -> bool {
        self.tls.protocol_version() == Some(ProtocolVersion::TLSv1_2)
            && self.tls.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Queues this alert: sealed once our direction has its application keys, else in the clear.
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
        let group = tls.negotiated_key_exchange_group().and_then(|group| group.name().as_str());
        let group = group.unwrap_or("unknown");
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
        let leftover = incoming;
        Ok(Handshaken { session, leftover, version, suite, group, alpn, certificate, resumed })
    }
}

/// Encodes at the end of `outgoing`. rustls returns the size if there is too little room.
fn append(
    outgoing: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), Error> {
    /// Room for most records of a flight. rustls reports what a longer certificate chain needs.
    const ROOM_BYTES: usize = 512;
    /// A whole flight with a small chain, so that the buffer need not grow twice.
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
            Err(error) => return Err(Error::General(error.to_string())),
        }
    }
}

/// Takes queued records out of rustls after an error; the last one is the alert. rustls returns
/// them before it reads its input. It must not read the input: its deframer holds ranges of bytes
/// that are gone, and it would panic. So this calls it only while records are queued. Returns where
/// in `outgoing` the alert is.
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

/// True if a record is an alert: in the clear it has two bytes. Sealed it has 19, with the content
/// type and a tag of 16. No handshake message is that short.
fn is_alert(record: &[u8]) -> bool {
    matches!(record, [21, ..] | [23, _, _, 0, 19, ..])
}

/// The suite of a TLS 1.3 handshake, once it is negotiated.
fn suite_of(tls: &UnbufferedServerConnection) -> Option<Suite> {
    tls13_suite(tls.negotiated_cipher_suite()?)
}

/// The record layer's session of a TLS 1.3 connection, at the sequence numbers where rustls
/// stopped. The client's number is 0: rustls was given nothing that followed its Finished. Ours is
/// the one that rustls itself would use next (`provider.rs`): a second record under a used number
/// would reveal the key. Without the number there is no session.
///
/// rustls returns both numbers only together with keys. Deriving those costs a twentieth of a
/// handshake, so the keys are compared in tests only.
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

/// True if rustls ended with these keys and sequence numbers.
fn is_handed_over(tls: UnbufferedServerConnection, session: &Session, tx_seq: u64) -> bool {
    let Ok((keys, _kernel)) = tls.dangerous_into_kernel_connection() else { return false };
    let ExtractedSecrets { tx: (their_tx_seq, tx), rx: (rx_seq, rx) } = &keys;
    let (Some((_, tx_key, tx_iv)), Some((_, rx_key, rx_iv))) = (parts(tx), parts(rx)) else {
        return false;
    };
    (*rx_seq, *their_tx_seq) == (0, tx_seq) && session.has_keys((rx_key, rx_iv), (tx_key, tx_iv))
}

/// The session of a TLS 1.2 connection. rustls gives out its keys only.
fn session12(tls: UnbufferedServerConnection) -> Option<Session> {
    let (keys, _kernel) = tls.dangerous_into_kernel_connection().ok()?;
    let ((tx_seq, tx), (rx_seq, rx)) = (&keys.tx, &keys.rx);
    let (suite, tx_key, tx_iv) = parts(tx)?;
    let (_, rx_key, rx_iv) = parts(rx)?;
    Session::tls12(Role::Server, suite, rx_key, rx_iv, tx_key, tx_iv, *rx_seq, *tx_seq).ok()
}

/// The OpenSSL name of the suite, which readers of PROXY headers expect.
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

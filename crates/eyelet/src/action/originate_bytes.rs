//! Originate for any protocol: dials a `tls://` upstream for a client without TLS, shakes hands in
//! its place, and parks the pair. The server may speak first, so the client is not waited for.

use std::io::{Read, Write};
use std::time::Duration;

use eyelet_config::TlsUpstream;
use eyelet_engine::park;
use eyelet_engine::ready::{CLIENT, READ, UPSTREAM};
use eyelet_engine::relay::terminate::Terminated;
use eyelet_engine::relay::{Flow, Relay};
use eyelet_memory::budget::{Account, CountedBuffer};
use eyelet_record::{RECORD_BYTES_MAX, Role, Session};
use eyelet_resolve::connect::DialOptions;
use eyelet_resolve::dial::DialTarget;
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome};
use eyelet_telemetry::listing::State;
use eyelet_telemetry::reason::{Detail, Limit, Reason, Stage, When};
use eyelet_tls::server::{TrafficSecrets, take_captured};
use eyelet_wire::record::RecordHeader;
use rustls::{ClientConnection, ProtocolVersion};
use rustls_pki_types::ServerName;

use crate::connection_handle::{ConnectionHandle, WaitError};
use crate::handshake::parts;
use crate::upstream;

/// Bytes of one read: a server's flight with its chain is rarely more.
const READ_BYTES: usize = 16 << 10;
/// How long rustls stays for a ticket after a handshake by TLS 1.3 (RFC 8446 section 4.6.1). A
/// server sends it with its first answer or before that, so most connections wait for less.
const TICKET_WAIT: Duration = Duration::from_secs(1);

/// Originates the connection. A client whose upstream cannot be had reads nothing but the end.
pub async fn originate(
    connection: &ConnectionHandle,
    info: &mut ConnectionInfo,
    to: &TlsUpstream,
) -> Result<(), End> {
    connection.handle.see(State::Dialling, info);
    match begin(connection, info, to).await {
        Ok(originated) => {
            park::park(&connection.handle, info, Relay::Terminate(originated));
            Ok(())
        }
        Err(end) => {
            park::close_with(&connection.handle, &[]);
            Err(end)
        }
    }
}

async fn begin(
    connection: &ConnectionHandle,
    info: &mut ConnectionInfo,
    to: &TlsUpstream,
) -> Result<Terminated, End> {
    let target = DialTarget::Configured(&to.address);
    upstream::dial(connection, info, &target, &DialOptions::default()).await?;
    connection.handle.no_delay();
    connection.handle.see(State::Handshaking, info);
    connection.handle.due_in(connection.worker.snapshot.config.limits.handshake_timeout);
    let mut shaking = Shaking::new(connection, to)?;
    shaking.shake(connection).await?;
    if shaking.tls.protocol_version() == Some(ProtocolVersion::TLSv1_3) {
        shaking.await_ticket(connection, info).await?;
    }
    shaking.hand_over(info)
}

/// A handshake as a client, and what follows it until a ticket has come.
struct Shaking {
    tls: ClientConnection,
    /// Received, and not given to rustls yet: it gets one record at a time.
    incoming: CountedBuffer,
    secrets: TrafficSecrets,
    /// For the client.
    opened: Vec<u8>,
}

impl Shaking {
    fn new(connection: &ConnectionHandle, to: &TlsUpstream) -> Result<Self, End> {
        let snapshot = &connection.worker.snapshot;
        let config = snapshot.http.upstream_tls.of_bytes(&to.tls);
        let config = config.ok_or_else(|| failed("no configuration"))?;
        let name = ServerName::try_from(to.tls.name.clone()).map_err(failed)?;
        let tls = ClientConnection::new(config, name).map_err(failed)?;
        let incoming = CountedBuffer::of(&snapshot.budget, Account::Received);
        Ok(Self { tls, incoming, secrets: TrafficSecrets::default(), opened: Vec::new() })
    }

    async fn shake(&mut self, connection: &ConnectionHandle) -> Result<(), End> {
        loop {
            self.flush(connection).await?;
            if !self.tls.is_handshaking() {
                return Ok(());
            }
            if self.feed(connection).await? {
                continue;
            }
            match connection.handle.recv_from(UPSTREAM, &mut self.incoming, READ_BYTES).await {
                Ok(0) => return Err(failed("the upstream has closed during the handshake")),
                Ok(_) => {}
                Err(wait_error) => return Err(stopped(&wait_error)),
            }
        }
    }

    /// Passes bytes both ways by rustls, until the upstream sends its first, or the time for a
    /// ticket is over. What comes after that passes without rustls.
    async fn await_ticket(
        &mut self,
        connection: &ConnectionHandle,
        info: &mut ConnectionInfo,
    ) -> Result<(), End> {
        let handle = &connection.handle;
        handle.due_in(TICKET_WAIT);
        let mut piece = vec![0; READ_BYTES];
        while self.opened.is_empty() {
            if self.feed(connection).await? {
                continue;
            }
            match handle.ready(&[CLIENT, UPSTREAM], READ).await {
                Ok(()) => {}
                Err(WaitError::Late) => return Ok(()),
                Err(wait_error) => return Err(stopped(&wait_error)),
            }
            let of_client = |error| End::failed(Reason::client_io(&error, None));
            match handle.recv_now(CLIENT, &mut piece).map_err(of_client)? {
                // The relay reads this end again, and passes it on.
                Some(0) => return Ok(()),
                Some(read) => {
                    self.tls.writer().write_all(&piece[..read]).map_err(failed)?;
                    handle.due_in(connection.worker.snapshot.config.limits.handshake_timeout);
                    self.flush(connection).await?;
                    handle.due_in(TICKET_WAIT);
                    info.bytes_to_upstream += read as u64;
                }
                None => {}
            }
            let of_upstream = |error| End::failed(Reason::upstream_io(&error));
            match handle.recv_now(UPSTREAM, &mut piece).map_err(of_upstream)? {
                Some(0) => return Ok(()),
                Some(read) => self.incoming.extend_from_slice(&piece[..read]),
                None => {}
            }
        }
        Ok(())
    }

    /// Gives rustls the next record. Returns `false` if none is complete.
    async fn feed(&mut self, connection: &ConnectionHandle) -> Result<bool, End> {
        let Some(header) = RecordHeader::read(&self.incoming) else { return Ok(false) };
        let len = header.record_len();
        if len > RECORD_BYTES_MAX {
            return Err(failed("a record is too long"));
        }
        let Some(mut record) = self.incoming.get(..len) else { return Ok(false) };
        while !record.is_empty() {
            self.tls.read_tls(&mut record).map_err(failed)?;
        }
        let processed = self.tls.process_new_packets();
        let captured = take_captured();
        if !captured.client.is_empty() {
            self.secrets = captured;
        }
        self.incoming.consume(len);
        match processed {
            Err(error) => {
                // The upstream learns why by an alert, if it still reads.
                let _ = self.flush(connection).await;
                Err(failed(error))
            }
            // The record layer would not know of it.
            Ok(state) if state.peer_has_closed() => {
                let reason = Reason::UpstreamClosed;
                Err(End { outcome: Outcome::Originated, reason })
            }
            Ok(state) => {
                let at = self.opened.len();
                self.opened.resize(at + state.plaintext_bytes_to_read(), 0);
                self.tls.reader().read_exact(&mut self.opened[at..]).map_err(failed)?;
                self.flush(connection).await?;
                Ok(true)
            }
        }
    }

    /// Sends what rustls has sealed.
    async fn flush(&mut self, connection: &ConnectionHandle) -> Result<(), End> {
        let mut sealed = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut sealed).map_err(failed)?;
        }
        let sent = connection.handle.send_all(UPSTREAM, &sealed).await;
        sent.map_err(|wait_error| stopped(&wait_error))
    }

    /// The session at the numbers where rustls stopped, and what is in transit.
    fn hand_over(self, info: &mut ConnectionInfo) -> Result<Terminated, End> {
        let Self { tls, incoming, secrets, opened } = self;
        info.decided.tls_version = None;
        let session = session(tls, &secrets).ok_or_else(|| failed("handover"))?;
        // This relay has the two sides exchanged: see `Terminated::is_originated`.
        let mut flow = Flow::default();
        flow.hold_partial(&incoming);
        flow.hold(UPSTREAM, &opened);
        info.bytes_to_client += opened.len() as u64;
        Ok(Terminated { session, flow })
    }
}

/// The keys are compared with those of rustls: after a KeyUpdate the captured secrets are old.
fn session(tls: ClientConnection, secrets: &TrafficSecrets) -> Option<Session> {
    let version = tls.protocol_version();
    let keys = tls.dangerous_extract_secrets().ok()?;
    let ((tx_seq, tx), (rx_seq, rx)) = (&keys.tx, &keys.rx);
    let (suite, tx_key, tx_iv) = parts(tx)?;
    let (_, rx_key, rx_iv) = parts(rx)?;
    let (role, rx_seq, tx_seq) = (Role::Client, *rx_seq, *tx_seq);
    if version == Some(ProtocolVersion::TLSv1_2) {
        return Session::tls12(role, suite, rx_key, rx_iv, tx_key, tx_iv, rx_seq, tx_seq).ok();
    }
    let session =
        Session::tls13(role, suite, &secrets.client, &secrets.server, rx_seq, tx_seq).ok()?;
    session.has_keys((rx_key, rx_iv), (tx_key, tx_iv)).then_some(session)
}

fn failed(why: impl std::fmt::Display) -> End {
    End::failed(Reason::UpstreamTls(Detail::of(why)))
}

fn stopped(wait_error: &WaitError) -> End {
    let when = When::During(Stage::Handshake);
    End::failed(match wait_error {
        WaitError::Io(error) => Reason::upstream_io(error),
        other => other.reason(Limit::Handshake, when),
    })
}

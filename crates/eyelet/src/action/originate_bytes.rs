//! Originate for any protocol: dials a `tls://` upstream for a client without TLS, shakes hands in
//! its place, and parks the pair. The server may speak first, so the client is not waited for.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use eyelet_config::TlsUpstream;
use eyelet_engine::connection_table::Phase;
use eyelet_engine::park;
use eyelet_engine::ready::{CLIENT, READ, UPSTREAM, WRITE};
use eyelet_engine::relay::terminate::Terminated;
use eyelet_engine::relay::{Flow, Relay};
use eyelet_memory::budget::{Account, CountedBuffer};
use eyelet_record::{RECORD_BYTES_MAX, Role, Session};
use eyelet_resolve::connect::DialOptions;
use eyelet_resolve::dial::DialTarget;
use eyelet_telemetry::info::{ConnectionInfo, End};
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
    let shaken = match begin(connection, info, to).await {
        Ok(shaken) => shaken,
        Err(end) => {
            park::close_with(&connection.handle, &[]);
            return Err(end);
        }
    };
    match shaken.finish(connection, info).await {
        Ok(originated) => {
            park::park(&connection.handle, info, Relay::Terminate(originated));
            Ok(())
        }
        Err(end) => {
            // It has no TLS, so a FIN would end its stream as a whole one.
            connection.handle.reset_client();
            Err(end)
        }
    }
}

async fn begin(
    connection: &ConnectionHandle,
    info: &mut ConnectionInfo,
    to: &TlsUpstream,
) -> Result<Shaking, End> {
    let target = DialTarget::Configured(&to.address);
    upstream::dial(connection, info, &target, &DialOptions::default()).await?;
    connection.handle.no_delay();
    connection.handle.see(State::Handshaking, info);
    connection.handle.due_in(connection.worker.snapshot.config.limits.handshake_timeout);
    let mut shaking = Shaking::new(connection, to)?;
    shaking.shake(connection).await?;
    Ok(shaking)
}

/// A handshake as a client, and what follows it until a ticket has come.
struct Shaking {
    tls: ClientConnection,
    /// Received, and not given to rustls yet: it gets one record at a time.
    incoming: CountedBuffer,
    /// Sealed, and not sent yet.
    sealed: CountedBuffer,
    secrets: TrafficSecrets,
    /// For the client.
    opened: CountedBuffer,
    /// The upstream's close_notify. The record layer opens it again, so that it knows of it.
    end: Option<CountedBuffer>,
}

/// What became of the next record.
#[derive(PartialEq, Eq)]
enum Fed {
    /// It is not complete.
    NotYet,
    /// rustls has it.
    Taken,
    /// It was the upstream's close_notify.
    End,
}

impl Shaking {
    fn new(connection: &ConnectionHandle, to: &TlsUpstream) -> Result<Self, End> {
        let snapshot = &connection.worker.snapshot;
        let config = snapshot.http.upstream_tls.of_bytes(&to.tls);
        let config = config.ok_or_else(|| failed("no configuration"))?;
        let name = ServerName::try_from(to.tls.name.clone()).map_err(failed)?;
        let tls = ClientConnection::new(config, name).map_err(failed)?;
        let buffer = || CountedBuffer::of(&snapshot.budget, Account::Received);
        let (incoming, sealed, opened) = (buffer(), buffer(), buffer());
        let secrets = TrafficSecrets::default();
        Ok(Self { tls, incoming, sealed, secrets, opened, end: None })
    }

    async fn shake(&mut self, connection: &ConnectionHandle) -> Result<(), End> {
        loop {
            self.flush(connection).await.map_err(|wait_error| stopped(&wait_error))?;
            if !self.tls.is_handshaking() {
                return Ok(());
            }
            match self.feed() {
                Ok(Fed::NotYet) => {}
                Ok(Fed::Taken) => continue,
                Ok(Fed::End) => return Err(closed()),
                Err(end) => return Err(self.fail(connection, end).await),
            }
            match connection.handle.recv_from(UPSTREAM, &mut self.incoming, READ_BYTES).await {
                Ok(0) => return Err(closed()),
                Ok(_) => {}
                Err(wait_error) => return Err(stopped(&wait_error)),
            }
        }
    }

    /// Waits for a ticket, if one may come, and leaves the rest to the record layer.
    async fn finish(
        mut self,
        connection: &ConnectionHandle,
        info: &mut ConnectionInfo,
    ) -> Result<Terminated, End> {
        // Its bytes pass from now on, so it is not the first to be shed.
        connection.worker.engine.enters(connection.handle.key(), Phase::Busy);
        if self.tls.protocol_version() == Some(ProtocolVersion::TLSv1_3) {
            connection.handle.due_in(TICKET_WAIT);
            match self.await_ticket(connection, info).await {
                // Nothing is lost: what is not sent yet is held.
                Ok(()) | Err(Waited::Stopped(WaitError::Late)) => {}
                Err(Waited::Stopped(wait_error)) => return Err(stopped(&wait_error)),
                Err(Waited::Failed(end)) => return Err(self.fail(connection, end).await),
            }
        }
        self.hand_over(info)
    }

    /// Passes bytes both ways by rustls, until the upstream sends a ticket, its first bytes or its
    /// end, or the time for a ticket is over. What comes after that passes without rustls.
    async fn await_ticket(
        &mut self,
        connection: &ConnectionHandle,
        info: &mut ConnectionInfo,
    ) -> Result<(), Waited> {
        let handle = &connection.handle;
        while self.opened.is_empty() && self.tls.tls13_tickets_received() == 0 {
            match self.feed().map_err(Waited::Failed)? {
                Fed::Taken => {
                    self.flush(connection).await?;
                    continue;
                }
                Fed::End => return Ok(()),
                Fed::NotYet => {}
            }
            // A side that is readable is not looked at for its deadline.
            handle.in_time()?;
            handle.ready(&[CLIENT, UPSTREAM], READ).await?;
            let of_client = |error| Waited::Failed(End::failed(Reason::client_io(&error, None)));
            let mut plain =
                CountedBuffer::of(&connection.worker.snapshot.budget, Account::Received);
            match handle.recv_into(CLIENT, &mut plain, READ_BYTES).map_err(of_client)? {
                // The relay reads this end again, and passes it on.
                Some(0) => return Ok(()),
                Some(read) => {
                    let written = self.tls.writer().write_all(&plain);
                    written.map_err(|error| Waited::Failed(failed(error)))?;
                    drop(plain);
                    info.bytes_to_upstream += read as u64;
                    self.flush(connection).await?;
                }
                None => {}
            }
            let of_upstream = |error| Waited::Failed(End::failed(Reason::upstream_io(&error)));
            let read = handle.recv_into(UPSTREAM, &mut self.incoming, READ_BYTES);
            if read.map_err(of_upstream)? == Some(0) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Gives rustls the next record.
    fn feed(&mut self) -> Result<Fed, End> {
        let Some(header) = RecordHeader::read(&self.incoming) else { return Ok(Fed::NotYet) };
        let len = header.record_len();
        if len > RECORD_BYTES_MAX {
            return Err(failed("a record is too long"));
        }
        let Some(mut record) = self.incoming.get(..len) else { return Ok(Fed::NotYet) };
        while !record.is_empty() {
            self.tls.read_tls(&mut record).map_err(failed)?;
        }
        let processed = self.tls.process_new_packets();
        let captured = take_captured();
        if !captured.client.is_empty() {
            self.secrets = captured;
        }
        let state = processed.map_err(failed)?;
        if state.peer_has_closed() {
            let behind = self.incoming.split_off(len);
            self.end = Some(std::mem::replace(&mut self.incoming, behind));
            return Ok(Fed::End);
        }
        self.incoming.consume(len);
        let (at, opened) = (self.opened.len(), state.plaintext_bytes_to_read());
        let Self { tls, opened: bytes, .. } = self;
        bytes.edit(|bytes| bytes.resize(at + opened, 0));
        tls.reader().read_exact(&mut bytes[at..]).map_err(failed)?;
        Ok(Fed::Taken)
    }

    /// Tells the upstream by an alert why it fails, if the upstream still reads.
    async fn fail(&mut self, connection: &ConnectionHandle, end: End) -> End {
        let _ = self.flush(connection).await;
        end
    }

    /// Sends what rustls has sealed. What is not sent at an error stays.
    async fn flush(&mut self, connection: &ConnectionHandle) -> Result<(), WaitError> {
        while self.tls.wants_write() {
            let Self { tls, sealed, .. } = self;
            sealed.edit(|sealed| tls.write_tls(sealed))?;
        }
        while !self.sealed.is_empty() {
            match connection.handle.send(UPSTREAM, &self.sealed) {
                Ok(sent) => self.sealed.consume(sent),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    connection.handle.ready(&[UPSTREAM], WRITE).await?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The session at the numbers where rustls stopped, and what is in transit.
    fn hand_over(self, info: &mut ConnectionInfo) -> Result<Terminated, End> {
        let Self { tls, incoming, sealed, secrets, opened, end } = self;
        info.decided.tls_version = None;
        // A close_notify is opened a second time.
        let again = u64::from(end.is_some());
        let session = session(tls, &secrets, again).ok_or_else(|| failed("handover"))?;
        // This relay has the two sides exchanged: see `Terminated::is_originated`.
        let mut flow = Flow::default();
        match end {
            // What follows a close_notify is ignored (RFC 8446 section 6.1).
            Some(end) => flow.hold_partial(&end),
            None => flow.hold_partial(&incoming),
        }
        flow.hold(CLIENT, &sealed);
        flow.hold(UPSTREAM, &opened);
        info.bytes_to_client += opened.len() as u64;
        Ok(Terminated { session, flow })
    }
}

/// Why the wait for a ticket ended without one.
enum Waited {
    /// A wait did.
    Stopped(WaitError),
    /// A side has failed.
    Failed(End),
}

impl From<WaitError> for Waited {
    fn from(wait_error: WaitError) -> Self {
        Self::Stopped(wait_error)
    }
}

/// The keys are compared with those of rustls: after a KeyUpdate the captured secrets are old. So
/// many of the last records are opened again.
fn session(tls: ClientConnection, secrets: &TrafficSecrets, again: u64) -> Option<Session> {
    let version = tls.protocol_version();
    let keys = tls.dangerous_extract_secrets().ok()?;
    let ((tx_seq, tx), (rx_seq, rx)) = (&keys.tx, &keys.rx);
    let (suite, tx_key, tx_iv) = parts(tx)?;
    let (_, rx_key, rx_iv) = parts(rx)?;
    let (role, rx_seq, tx_seq) = (Role::Client, rx_seq.checked_sub(again)?, *tx_seq);
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

fn closed() -> End {
    failed("the upstream has closed during the handshake")
}

fn stopped(wait_error: &WaitError) -> End {
    let when = When::During(Stage::Handshake);
    End::failed(match wait_error {
        WaitError::Io(error) => Reason::upstream_io(error),
        other => other.reason(Limit::Handshake, when),
    })
}

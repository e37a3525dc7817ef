//! Originate for any protocol: dials a `tls://` upstream for a client without TLS, shakes hands in
//! its place, and parks the pair. The server may speak first, so the client is not waited for.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use eyelet_config::TlsUpstream;
use eyelet_engine::park;
use eyelet_engine::ready::{CLIENT, READ, UPSTREAM, WRITE};
use eyelet_engine::table::Phase;
use eyelet_memory::budget::{Account, CountedBuffer};
use eyelet_record::{Keys, PAYLOAD_BYTES_MAX, Session};
use eyelet_relay::terminate::Terminated;
use eyelet_relay::{Flow, Relay};
use eyelet_resolve::connect::DialOptions;
use eyelet_resolve::dial::DialTarget;
use eyelet_telemetry::info::End;
use eyelet_telemetry::listing::State;
use eyelet_telemetry::reason::{Detail, Limit, Reason, Stage, When};
use eyelet_tls::client_handshake::{ClientHandshake, ClientHandshakeFault};
use eyelet_upstream::tls_info::tls_info;
use rustls_pki_types::ServerName;

use crate::path::active::{Active, WaitError};
use crate::path::upstream;

/// Bytes of one read: a server's flight with its chain is rarely more.
const READ_BYTES: usize = 16 << 10;
/// The time for which rustls stays for a ticket after a handshake by TLS 1.3 (RFC 8446 section
/// 4.6.1). A server sends it with its first answer or before that, so most connections wait for
/// less.
const TICKET_WAIT: Duration = Duration::from_secs(1);

/// Originates the connection. A client whose upstream cannot be had reads nothing but the end.
pub async fn originate(connection: &mut Active<'_>, to: &TlsUpstream) -> Result<(), End> {
    let shaken = match begin(connection, to).await {
        Ok(shaken) => shaken,
        Err(end) => {
            park::close_with(connection.handle, &[]);
            return Err(end);
        }
    };
    match shaken.finish(connection).await {
        Ok(originated) => {
            park::park(connection.handle, connection.info, Relay::Terminate(originated));
            Ok(())
        }
        Err(end) => {
            // It has no TLS, so a FIN would end its stream as a whole one.
            connection.handle.reset_client();
            Err(end)
        }
    }
}

async fn begin(connection: &mut Active<'_>, to: &TlsUpstream) -> Result<Shaking, End> {
    let target = DialTarget::Configured(&to.address);
    upstream::dial(connection, &target, &DialOptions::default()).await?;
    connection.handle.no_delay();
    connection.note_state(State::Handshaking);
    connection.handle.due_in(connection.edge.snapshot.config.limits.handshake_timeout);
    let mut shaking = Shaking::new(connection, to)?;
    shaking.shake(connection).await?;
    Ok(shaking)
}

/// A handshake as a client, and what follows it until a ticket may have come.
struct Shaking {
    tls: ClientHandshake,
    /// Received. In the handshake without the records that rustls has: it gets one at a time.
    incoming: CountedBuffer,
    /// Sealed, and not sent yet.
    sealed: CountedBuffer,
}

impl Shaking {
    fn new(connection: &Active<'_>, to: &TlsUpstream) -> Result<Self, End> {
        let snapshot = &connection.edge.snapshot;
        let config = snapshot.http.upstream_tls.of_bytes(&to.tls);
        let config = config.ok_or_else(|| failed("no configuration"))?;
        let name = ServerName::try_from(to.tls.name.clone()).map_err(failed)?;
        let tls = ClientHandshake::new(config, name, Some(to.alpn.clone())).map_err(fault)?;
        let buffer = || CountedBuffer::of(&snapshot.budget, Account::Received);
        let (incoming, sealed) = (buffer(), buffer());
        Ok(Self { tls, incoming, sealed })
    }

    async fn shake(&mut self, connection: &Active<'_>) -> Result<(), End> {
        loop {
            let sent = self.send_from_rustls(connection).await;
            sent.map_err(|wait_error| stopped(&wait_error))?;
            if !self.tls.is_handshaking() {
                return Ok(());
            }
            match self.tls.feed(&self.incoming) {
                Ok(Some(len)) => {
                    self.incoming.consume(len);
                    continue;
                }
                Ok(None) => {}
                Err(why) => {
                    // Tells the upstream by an alert why it fails, if the upstream still reads.
                    let _ = self.send_from_rustls(connection).await;
                    return Err(fault(why));
                }
            }
            match connection.handle.recv_from(UPSTREAM, &mut self.incoming, READ_BYTES).await {
                Ok(0) => return Err(closed()),
                Ok(_) => {}
                Err(wait_error) => return Err(stopped(&wait_error)),
            }
        }
    }

    /// Waits for a ticket, if one may come, and leaves the rest to the record layer.
    async fn finish(self, connection: &mut Active<'_>) -> Result<Terminated, End> {
        // Its bytes pass from now on, so it is not the first to be shed.
        connection.edge.engine.enters(connection.handle.key(), Phase::Busy);
        let Self { tls, mut incoming, mut sealed } = self;
        let upstream_tls = tls_info(tls.tls());
        let (mut session, tickets) = tls.finish().ok_or_else(|| failed("handover"))?;
        if let Some(tls) = tickets {
            let mut shaken = Self { tls, incoming, sealed };
            connection.handle.due_in(TICKET_WAIT);
            match shaken.await_ticket(connection, &mut session).await {
                // Nothing is lost: what is not sent yet is held.
                Ok(()) | Err(Waited::Stopped(WaitError::Late)) => {}
                Err(Waited::Stopped(wait_error)) => return Err(stopped(&wait_error)),
                Err(Waited::Failed(end)) => return Err(end),
            }
            Self { incoming, sealed, .. } = shaken;
        }
        connection.info.decided.tls_version = None;
        connection.info.decided.upstream_tls = upstream_tls.map(Arc::new);
        // This relay has the two sides exchanged: see `Terminated::is_originated`.
        let mut flow = Flow::default();
        flow.hold_partial(&incoming);
        flow.hold(CLIENT, &sealed);
        Ok(Terminated { session: session.unboxed(), flow })
    }

    /// Passes the client's bytes until the upstream has sent a whole record or its end, or the time
    /// for a ticket is over. The record layer opens it too: a KeyUpdate, an alert or a part of a
    /// message must change its state, and would be lost with rustls.
    async fn await_ticket(
        &mut self,
        connection: &mut Active<'_>,
        session: &mut Session,
    ) -> Result<(), Waited> {
        let handle = connection.handle;
        // A record that rustls does not take is the record layer's to judge.
        while let Ok(None) = self.tls.feed(&self.incoming) {
            // A side that is readable is not looked at for its deadline.
            handle.in_time()?;
            handle.ready(&[CLIENT, UPSTREAM], READ).await?;
            let of_client = |error| Waited::Failed(End::failed(Reason::client_io(&error, None)));
            let prefix = session.prefix_len();
            let mut slot = CountedBuffer::of(&connection.edge.snapshot.budget, Account::Received);
            slot.edit(|slot| slot.resize(prefix, 0));
            match handle.recv_into(CLIENT, &mut slot, PAYLOAD_BYTES_MAX).map_err(of_client)? {
                // The relay reads this end again, and passes it on.
                Some(0) => return Ok(()),
                Some(read) => {
                    let len = session.record_len(read);
                    slot.edit(|slot| slot.resize(len, 0));
                    let sealed = slot.edit(|slot| session.seal(&mut Keys::new(), slot, read));
                    sealed.map_err(|fault| Waited::Failed(failed(fault)))?;
                    self.sealed = slot;
                    connection.info.bytes_to_upstream += read as u64;
                    self.send_sealed(connection).await?;
                }
                None => drop(slot),
            }
            let of_upstream = |error| Waited::Failed(End::failed(Reason::upstream_io(&error)));
            let read = handle.recv_into(UPSTREAM, &mut self.incoming, READ_BYTES);
            if read.map_err(of_upstream)? == Some(0) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends what rustls has sealed, as long as the handshake lasts.
    async fn send_from_rustls(&mut self, connection: &Active<'_>) -> Result<(), WaitError> {
        let Self { tls, sealed, .. } = self;
        sealed.edit(|sealed| tls.write(sealed));
        self.send_sealed(connection).await
    }

    /// Sends what was sealed. What is not sent at an error stays.
    async fn send_sealed(&mut self, connection: &Active<'_>) -> Result<(), WaitError> {
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
}

/// The reason why the wait for a ticket ended without one.
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

fn fault(fault: ClientHandshakeFault) -> End {
    match fault {
        ClientHandshakeFault::Alert(alert) => End::failed(Reason::UpstreamAlert(alert)),
        fault @ ClientHandshakeFault::Certificate(_) => {
            End::failed(Reason::UpstreamUntrusted(Detail::of(fault)))
        }
        other => failed(other),
    }
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

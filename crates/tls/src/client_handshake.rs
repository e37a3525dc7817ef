//! A handshake as a client. rustls gets one record at a time, so that the record layer goes on
//! exactly where the handshake ends: see `handshake.rs` of `edge`.

use std::sync::Arc;

use eyelet_record::{RECORD_BYTES_MAX, Role, Session};
use eyelet_wire::record::{APPLICATION_DATA, CHANGE_CIPHER_SPEC, RecordHeader, VERSION_MAJOR};
use rustls::{ClientConfig, ClientConnection, Error, ProtocolVersion};
use rustls_pki_types::ServerName;

use crate::client::{NO_TLS, describe};
use crate::secrets::{parts, tls13_suite};
use crate::server::{TrafficSecrets, take_captured};

/// The reason why a handshake with a server failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ClientHandshakeFault {
    /// The server sent this alert.
    #[error("the server sent alert {0}")]
    Alert(u8),
    /// The server answers by something else than a record.
    #[error("{}", NO_TLS)]
    NoTls,
    /// A record's header says more bytes than a record may have.
    #[error("a record is too long")]
    TooLong,
    /// The server's certificate is not accepted.
    #[error("{}", describe(.0))]
    Certificate(Error),
    /// rustls says so.
    #[error("{}", describe(.0))]
    Failed(Error),
}

impl From<Error> for ClientHandshakeFault {
    fn from(error: Error) -> Self {
        match error {
            Error::AlertReceived(alert) => Self::Alert(alert.into()),
            Error::InvalidCertificate(_) => Self::Certificate(error),
            other => Self::Failed(other),
        }
    }
}

/// A handshake, and rustls' end of its connection behind it.
pub struct ClientHandshake {
    tls: ClientConnection,
    secrets: TrafficSecrets,
}

impl ClientHandshake {
    /// Begins a handshake by a configuration that gives its secrets:
    /// [`crate::client::give_secrets`]. `alpn` takes the place of its protocols.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn new(
        config: Arc<ClientConfig>,
        server: ServerName<'static>,
        alpn: Option<Vec<Vec<u8>>>,
    ) -> Result<Self, ClientHandshakeFault> {
        let tls = match alpn {
            Some(alpn) => ClientConnection::new_with_alpn(config, server, alpn)?,
            None => ClientConnection::new(config, server)?,
        };
        Ok(Self { tls, secrets: TrafficSecrets::default() })
    }

    /// True until the handshake is done.
    pub fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// rustls' end, for what was agreed on.
    pub fn tls(&self) -> &ClientConnection {
        &self.tls
    }

    /// Appends what rustls has sealed, as long as the handshake lasts. From then on the record
    /// layer seals by the same key and from the same number, so nothing of rustls may be sent any
    /// more: it would be a second record under one nonce (RFC 8446 section 5.3).
    pub fn write(&mut self, out: &mut Vec<u8>) {
        // A write to memory does not fail.
        while self.tls.wants_write() && self.tls.write_tls(out).is_ok_and(|written| written > 0) {}
    }

    /// Gives rustls the first of the records that were received. Returns its length, or `None` if
    /// it is not complete.
    ///
    /// # Errors
    /// The server's fault. An alert may be there to be written.
    pub fn feed(&mut self, received: &[u8]) -> Result<Option<usize>, ClientHandshakeFault> {
        let Some(header) = RecordHeader::read(received) else { return Ok(None) };
        // Before its length, which is nonsense then.
        if !is_tls(header) {
            return Err(ClientHandshakeFault::NoTls);
        }
        let len = header.record_len();
        if len > RECORD_BYTES_MAX {
            return Err(ClientHandshakeFault::TooLong);
        }
        let Some(mut record) = received.get(..len) else { return Ok(None) };
        while !record.is_empty() {
            let read = self.tls.read_tls(&mut record);
            read.map_err(|error| Error::General(error.to_string()))?;
        }
        let processed = self.tls.process_new_packets();
        let captured = take_captured();
        if !captured.client.is_empty() {
            self.secrets = captured;
        }
        processed?;
        Ok(Some(len))
    }

    /// The record layer's session of a handshake that is done, and rustls' end of it where tickets
    /// may follow, as in TLS 1.3 (RFC 8446 section 4.6.1). `None`: it has no such secrets.
    ///
    /// The session is boxed: a move of its own would leave a copy that is not wiped.
    pub fn finish(self) -> Option<(Box<Session>, Option<Self>)> {
        match self.tls.protocol_version()? {
            ProtocolVersion::TLSv1_3 => Some((self.session13()?, Some(self))),
            _ => Some((session12(self.tls)?, None)),
        }
    }

    /// Each direction begins with the number 0: rustls was given no record that followed the
    /// server's Finished, and has sealed none after its own.
    fn session13(&self) -> Option<Box<Session>> {
        let TrafficSecrets { client, server, .. } = &self.secrets;
        let suite = tls13_suite(self.tls.negotiated_cipher_suite()?)?;
        Session::boxed_tls13(Role::Client, suite, client, server).ok()
    }
}

/// The session of a TLS 1.2 connection, at the numbers where rustls stopped.
fn session12(tls: ClientConnection) -> Option<Box<Session>> {
    let keys = tls.dangerous_extract_secrets().ok()?;
    let ((tx_seq, tx), (rx_seq, rx)) = (&keys.tx, &keys.rx);
    let (suite, tx_key, tx_iv) = parts(tx)?;
    let (_, rx_key, rx_iv) = parts(rx)?;
    let directions = [(rx_key, rx_iv, *rx_seq), (tx_key, tx_iv, *tx_seq)];
    Session::boxed_tls12(Role::Client, suite, directions).ok()
}

/// True if it may be the header of a record: of a type that exists, and of any version.
fn is_tls(header: RecordHeader) -> bool {
    let is_known = matches!(header.content_type, CHANGE_CIPHER_SPEC..=APPLICATION_DATA);
    is_known && header.version >> 8 == u16::from(VERSION_MAJOR)
}

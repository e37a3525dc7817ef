//! A connection to an upstream with TLS: rustls does the handshake, and then the record layer opens
//! and seals. So all that is needed to go on later, also in another process, is a [`RestingTls`].

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use eyelet_record::{Incoming, Keys, OpenFailure, Opened, PAYLOAD_BYTES_MAX, Session, alert};
use eyelet_telemetry::upstream_tls::UpstreamTlsInfo;
use eyelet_tls::client_handshake::{ClientHandshake, ClientHandshakeFault};
use eyelet_wire::record::RecordHeader;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::plain::Plain;
use crate::tls_info::tls_info;

/// Bytes of one read in a handshake: a server's flight with its chain is rarely more.
const READ_BYTES: usize = 16 << 10;

/// A connection whose handshake is done.
pub struct TlsSocket {
    plain: Plain,
    /// Boxed, as in [`RestingTls`].
    session: Box<Session>,
    keys: Keys,
    /// Received, and not opened: the beginning of a record, or what followed the handshake.
    sealed_in: Vec<u8>,
    /// True if there may be whole records in it.
    is_fresh: bool,
    /// Opened, and not taken.
    opened: BytesMut,
    /// Sealed, and not sent.
    sealed_out: BytesMut,
    /// The reason why nothing more can be opened.
    failure: Option<OpenFailure>,
    /// rustls' end, until data has come: it gets copies of the records before, for the tickets in
    /// them.
    tickets: Option<Box<ClientHandshake>>,
    /// Version, suite and the like, as the access log shows them.
    info: Option<Arc<UpstreamTlsInfo>>,
}

/// The part of TLS that is kept while nothing of its connection moves.
#[derive(Debug)]
pub struct RestingTls {
    /// Secrets and sequence numbers. Boxed: a move leaves a copy that is not wiped.
    pub session: Box<Session>,
    /// Version, suite and the like, as the access log shows them.
    pub info: Option<Arc<UpstreamTlsInfo>>,
}

/// The reason why a handshake with an upstream failed.
#[derive(Debug, Error)]
pub enum ShakeError {
    /// The upstream, or what it showed.
    #[error(transparent)]
    Fault(#[from] ClientHandshakeFault),
    /// The upstream has ended the connection.
    #[error("tls handshake eof")]
    Closed,
    /// The socket.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The record layer cannot go on with what was agreed on.
    #[error("handover")]
    Handover,
}

/// The reason why a connection ended that had begun: the source of an [`io::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TlsFailure {
    /// The upstream sent this alert.
    #[error("the upstream sent alert {0}")]
    Alert(u8),
    /// The upstream broke the protocol.
    #[error(transparent)]
    Fault(#[from] eyelet_record::RecordFault),
}

/// Shakes hands with an upstream.
///
/// # Errors
/// [`ShakeError`]. The upstream was sent an alert then, if it could be.
pub async fn shake(
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
    mut plain: Plain,
) -> Result<TlsSocket, ShakeError> {
    let mut handshake = ClientHandshake::new(config, server, None)?;
    let (mut received, mut sealed) = (BytesMut::new(), Vec::new());
    loop {
        handshake.write(&mut sealed);
        plain.write_all(&sealed).await?;
        sealed.clear();
        if !handshake.is_handshaking() {
            break;
        }
        match handshake.feed(&received) {
            Ok(Some(len)) => {
                received.advance(len);
                continue;
            }
            Ok(None) => {}
            Err(fault) => {
                handshake.write(&mut sealed);
                plain.write_now(&sealed);
                return Err(fault.into());
            }
        }
        let read = poll_fn(|task| plain.poll_recv(task, &mut received, READ_BYTES)).await?;
        if read == 0 {
            return Err(ShakeError::Closed);
        }
    }
    let info = tls_info(handshake.tls()).map(Arc::new);
    let (session, tickets) = handshake.finish().ok_or(ShakeError::Handover)?;
    Ok(TlsSocket {
        sealed_in: received.to_vec(),
        is_fresh: true,
        tickets: tickets.map(Box::new),
        ..TlsSocket::new(plain, session, info)
    })
}

impl TlsSocket {
    fn new(plain: Plain, session: Box<Session>, info: Option<Arc<UpstreamTlsInfo>>) -> Self {
        Self {
            plain,
            session,
            keys: Keys::new(),
            sealed_in: Vec::new(),
            is_fresh: false,
            opened: BytesMut::new(),
            sealed_out: BytesMut::new(),
            failure: None,
            tickets: None,
            info,
        }
    }

    /// The connection that rested.
    pub fn resumed(plain: Plain, RestingTls { session, info }: RestingTls) -> Self {
        Self::new(plain, session, info)
    }

    /// True if it may rest: all that has come is taken and sent, and its upstream has ended or not.
    pub fn may_rest(&self, has_ended: bool) -> bool {
        let held = [self.sealed_in.len(), self.opened.len(), self.sealed_out.len()];
        let is_read = self.session.read_closed() == has_ended;
        is_read && self.failure.is_none() && !self.session.control_due() && held == [0; 3]
    }

    /// Takes it apart, if it may rest. The socket is registered nowhere then.
    ///
    /// # Errors
    /// The kernel's.
    pub fn into_resting(self) -> io::Result<(OwnedFd, RestingTls)> {
        let Self { plain, session, info, .. } = self;
        Ok((plain.into_socket()?, RestingTls { session, info }))
    }

    /// The socket below.
    pub fn plain(&self) -> &Plain {
        &self.plain
    }

    /// Version, suite and the like, as the access log shows them.
    pub fn info(&self) -> Option<&Arc<UpstreamTlsInfo>> {
        self.info.as_ref()
    }

    /// Forgets the task that waited for it, and its expanded keys.
    pub fn rest(&mut self) {
        self.plain.rest();
        self.keys.clear();
    }

    /// True if nothing that is sealed waits to be sent.
    pub fn is_sent(&self) -> bool {
        self.sealed_out.is_empty()
    }

    /// Opens what has come, and lends at most `max` bytes of it. Returns how many. 0 is the end, by
    /// close_notify.
    ///
    /// # Errors
    /// The kernel's; [`TlsFailure`]; an end without close_notify, by which anybody on the way could
    /// have cut it (RFC 8446 section 6.1).
    pub fn poll_recv_by(
        &mut self,
        task: &mut Context<'_>,
        max: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        loop {
            self.reply(task);
            if !self.opened.is_empty() {
                let len = self.opened.len().min(max);
                take(&self.opened[..len]);
                self.opened.advance(len);
                if self.opened.is_empty() {
                    self.opened = BytesMut::new();
                }
                return Poll::Ready(Ok(len));
            }
            if let Some(failure) = self.failure {
                return Poll::Ready(Err(failed(failure)));
            }
            if self.session.read_closed() {
                return Poll::Ready(Ok(0));
            }
            if self.is_fresh {
                let mut input = std::mem::take(&mut self.sealed_in);
                self.open(&mut input, 0, |_| ());
            } else if let taken @ 1.. = ready!(self.poll_open(task, max, &mut take))? {
                self.reply(task);
                return Poll::Ready(Ok(taken));
            }
        }
    }

    /// Reads once, and opens in the worker's buffer. Returns how many bytes were taken.
    fn poll_open(
        &mut self,
        task: &mut Context<'_>,
        max: usize,
        take: &mut impl FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        let (plain, held) = (self.plain.clone(), std::mem::take(&mut self.sealed_in));
        // The rest of a record is read at once, however few bytes of it are wanted.
        let record = RecordHeader::read(&held).map_or(0, |header| header.record_len());
        let max_read = max.max(record.saturating_sub(held.len()));
        let mut taken = 0;
        let read = plain.poll_recv_behind(task, &held, max_read, |input| {
            if input.len() > held.len() {
                taken = self.open(input, max, &mut *take);
            }
        });
        let read = match read {
            Poll::Ready(Ok(read)) => read,
            other => {
                self.sealed_in = held;
                return other;
            }
        };
        if read == 0 {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        Poll::Ready(Ok(taken))
    }

    /// Opens the whole records of `input`, in place. `take` gets at most `max` bytes of them. Keeps
    /// the others, and the unfinished record. Returns how many bytes were taken.
    fn open(&mut self, input: &mut [u8], max: usize, mut take: impl FnMut(&[u8])) -> usize {
        let (mut at, mut end) = (0, 0);
        self.is_fresh = false;
        while self.failure.is_none() {
            let record = self.for_tickets(&input[at..]);
            let (consumed, what) = match self.session.open(&mut self.keys, &mut input[at..]) {
                Ok(Opened::Record { consumed, what }) => (consumed, what),
                Ok(Opened::NeedMore { .. }) => break,
                Err(fault) => {
                    self.failure = Some(fault.into());
                    self.alert(fault.alert());
                    break;
                }
            };
            match what {
                Incoming::Data(data) => {
                    self.tickets = None;
                    let len = data.len();
                    input.copy_within(at + data.start..at + data.end, end);
                    end += len;
                }
                Incoming::PeerAlert(code) => self.failure = Some(OpenFailure::Alert(code)),
                Incoming::CloseNotify | Incoming::Nothing | Incoming::Reply => {
                    self.take_ticket(record.as_deref());
                }
            }
            at += consumed;
        }
        self.sealed_in = input[at..].to_vec();
        let taken = end.min(max);
        if taken > 0 {
            take(&input[..taken]);
        }
        self.opened.extend_from_slice(&input[taken..end]);
        taken
    }

    /// A copy of the next record, if rustls waits for tickets.
    fn for_tickets(&self, input: &[u8]) -> Option<Vec<u8>> {
        self.tickets.as_ref()?;
        let len = RecordHeader::read(input)?.record_len();
        input.get(..len).map(<[u8]>::to_vec)
    }

    /// Gives rustls a record without data. What it does not take is the record layer's to judge.
    fn take_ticket(&mut self, record: Option<&[u8]>) {
        if let (Some(tickets), Some(record)) = (&mut self.tickets, record)
            && tickets.feed(record).is_err()
        {
            self.tickets = None;
        }
    }

    fn alert(&mut self, description: u8) {
        let record = self.session.alert(&mut self.keys, description);
        self.sealed_out.extend_from_slice(&record);
    }

    /// Sends as many waiting bytes as the socket takes, and then the control record that is due. An
    /// error comes again with the next read or write.
    fn reply(&mut self, task: &mut Context<'_>) {
        if !self.sealed_out.is_empty() {
            let _ = self.poll_flush(task);
        }
        // While earlier records wait, many requests are one reply (RFC 8446 section 4.6.3).
        if self.sealed_out.is_empty()
            && self.session.control_due()
            && let Ok(record) = self.session.control(&mut self.keys)
        {
            self.sealed_out.extend_from_slice(&record);
            let _ = self.poll_flush(task);
        }
    }

    /// Seals one record of these bytes, and sends what the socket takes. Returns how many bytes it
    /// has of them. The rest of the record waits for [`TlsSocket::poll_flush`].
    ///
    /// # Errors
    /// The kernel's, or that nothing more can be sealed.
    pub fn poll_write_vectored(
        &mut self,
        task: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(task))?;
        let sealed = self.seal(slices).map_err(|fault| failed(fault.into()))?;
        match self.poll_flush(task) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(sealed)),
        }
    }

    fn seal(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, eyelet_record::RecordFault> {
        let control = self.session.control(&mut self.keys)?;
        let all: usize = slices.iter().map(|slice| slice.len()).sum();
        let payload = all.min(PAYLOAD_BYTES_MAX);
        let out = &mut self.sealed_out;
        out.reserve(control.len() + self.session.record_len(payload));
        out.extend_from_slice(&control);
        let at = out.len();
        out.resize(at + self.session.prefix_len(), 0);
        let mut left = payload;
        for slice in slices {
            let part = slice.len().min(left);
            out.extend_from_slice(&slice[..part]);
            left -= part;
        }
        out.resize(at + self.session.record_len(payload), 0);
        let sealed = self.session.seal(&mut self.keys, &mut out[at..], payload);
        // Nothing unsealed may stay: it would be sent.
        out.truncate(at + *sealed.as_ref().unwrap_or(&0));
        sealed.map(|_| payload)
    }

    /// Sends what is sealed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn poll_flush(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.sealed_out.is_empty() {
            match ready!(Pin::new(&mut self.plain).poll_write(task, &self.sealed_out))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sealed_out.advance(sent),
            }
        }
        self.sealed_out = BytesMut::new();
        Poll::Ready(Ok(()))
    }

    /// Ends the stream to the upstream: close_notify, then FIN.
    ///
    /// # Errors
    /// The kernel's.
    pub fn poll_shutdown(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The session seals one only.
        self.alert(alert::CLOSE_NOTIFY);
        ready!(self.poll_flush(task))?;
        Pin::new(&mut self.plain).poll_shutdown(task)
    }
}

fn failed(failure: OpenFailure) -> io::Error {
    let failure = match failure {
        OpenFailure::Alert(code) => TlsFailure::Alert(code),
        OpenFailure::Fault(fault) => TlsFailure::Fault(fault),
    };
    io::Error::new(io::ErrorKind::InvalidData, failure)
}

//! Reading what comes before a decision: the PROXY header of trusted sources, and the hello.
//! It must not know what is decided by it.

use std::io;
use std::pin::pin;
use std::time::Duration;

use eyelet_sys::epoll::FAILED;
use eyelet_wire::hello::{Hello, HelloReader, NotTls, Peek, Sni};
use eyelet_wire::proxy::{self, Command, ProxyPeek};
use futures_util::future::{Either, select};
use tokio::time::Instant;

use crate::action::refuse::RefusalMessage;
use crate::connection_handle::{ConnectionHandle, WaitError};
use crate::fingerprint;
use eyelet_engine::ready::CLIENT;
use eyelet_memory::budget::CountedBuffer;
use eyelet_telemetry::info::{Alpn, ConnectionInfo, End, TlsCompression};
use eyelet_telemetry::reason::{Limit, Reason, Stage, When};

/// Bytes asked for at once: a hello is one or two segments, an early upload need not be read.
const READ_BYTES: usize = 16 << 10;

/// How long the first bytes of a client are waited for only to answer in its own protocol.
const FIRST_BYTES_WAIT: Duration = Duration::from_millis(100);

/// Whether the client is a source that must send a PROXY header.
pub fn must_name_client(connection: &ConnectionHandle, info: &ConnectionInfo) -> bool {
    let listener = &connection.worker.snapshot.config.listeners[usize::from(info.decided.listener)];
    let client = info.client.ip();
    listener.proxy_protocol_from.iter().any(|net| net.contains(&client))
}

/// Reads the PROXY header; what came behind it is left in `raw`.
pub async fn proxy_header(
    connection: &ConnectionHandle,
    info: &mut ConnectionInfo,
    raw: &mut CountedBuffer,
) -> Result<(), End> {
    loop {
        match proxy::read(raw) {
            ProxyPeek::NeedMore { .. } => more(connection, raw, Stage::ProxyHeader).await?,
            ProxyPeek::NotProxy => return Err(End::failed(Reason::NoProxyHeader)),
            ProxyPeek::Malformed(fault) => {
                return Err(End::failed(Reason::MalformedProxyHeader(fault)));
            }
            ProxyPeek::Header(header) => {
                if let Command::Proxy { client, destination } = header.command {
                    info.client = client;
                    info.decided.destination = Some(destination);
                }
                raw.consume(header.len);
                return Ok(());
            }
        }
    }
}

/// Reads on. `stage` is what is being read.
pub async fn more(
    connection: &ConnectionHandle,
    raw: &mut CountedBuffer,
    stage: Stage,
) -> Result<(), End> {
    let received = connection.handle.recv(raw, READ_BYTES).await;
    let when = When::reading(stage, raw);
    match received {
        Ok(0) => Err(End::failed(Reason::ClientClosed(Some(when)))),
        Ok(_) => Ok(()),
        Err(wait_error) => Err(End::failed(wait_error.reason(Limit::Hello, when))),
    }
}

/// Fetches what a rule asks for, while there is a client who may want to know. One that has sent
/// its FIN may: it cannot be told from one that closed. One that was reset does not.
pub async fn while_there(
    connection: &ConnectionHandle,
    fetch: impl Future<Output = ()>,
    stage: Stage,
) -> Result<(), End> {
    let wait_error =
        match select(pin!(fetch), pin!(connection.handle.ready(&[CLIENT], FAILED))).await {
            Either::Left(_) => return Ok(()),
            Either::Right((Ok(()), _)) => io::Error::from(io::ErrorKind::ConnectionReset).into(),
            Either::Right((Err(wait_error), _)) => wait_error,
        };
    Err(End::failed(wait_error.reason(Limit::Hello, When::During(stage))))
}

/// Reads on for who only looks: whether anything came by then. A client that closed goes on as one
/// that says nothing; one that reset does not: what it sent would be passed on as if it were whole.
pub async fn glance(
    connection: &ConnectionHandle,
    raw: &mut CountedBuffer,
    until: Instant,
) -> Result<bool, End> {
    match tokio::time::timeout_at(until, connection.handle.recv(raw, READ_BYTES)).await {
        Ok(Ok(1..)) => return Ok(true),
        Ok(Err(wait_error @ (WaitError::Io(_) | WaitError::Unregistered(_)))) => {
            return Err(unseen(&wait_error, raw));
        }
        _ => {}
    }
    match connection.handle.in_time() {
        Err(wait_error @ (WaitError::Shed | WaitError::Drained)) => Err(unseen(&wait_error, raw)),
        _ => Ok(false),
    }
}

fn unseen(wait_error: &WaitError, raw: &[u8]) -> End {
    End::failed(wait_error.reason(Limit::Hello, When::reading(Stage::Hello, raw)))
}

/// The answer to a client that is refused before its hello was needed: one that speaks HTTP is
/// told so in HTTP. A client that says nothing soon gets the alert.
pub async fn fit(
    connection: &ConnectionHandle,
    raw: &mut CountedBuffer,
    answer: RefusalMessage,
) -> RefusalMessage {
    if raw.is_empty() {
        let read = connection.handle.recv(raw, READ_BYTES);
        // Whatever comes of it, the refusal stands.
        let _ = tokio::time::timeout(FIRST_BYTES_WAIT, read).await;
    }
    match HelloReader::new(READ_BYTES).feed(raw) {
        Peek::NotTls(NotTls::Http) => RefusalMessage::BadRequest,
        _ => answer,
    }
}

/// What the info keeps of a hello; of what only the access line needs, nothing if none is kept.
pub fn note_hello(connection: &ConnectionHandle, info: &mut ConnectionInfo, hello: &Hello<'_>) {
    let decided = &mut info.decided;
    if let Sni::Name(name) = hello.sni() {
        decided.sni = Some((&**name).into());
    }
    decided.ech = hello.has_ech();
    decided.tls_version = Some(hello.version_max());
    decided.tls_compression = Some(match hello.offers_compression() {
        true => TlsCompression::Offered,
        false => TlsCompression::None,
    });
    if !connection.worker.engine.logs() {
        return;
    }
    decided.alpn = Alpn::new(hello.alpn());
    if connection.worker.snapshot.config.log.ja4 {
        decided.ja4 = Some(fingerprint::ja4(hello).as_str().into());
    }
}

//! Reads what precedes a decision: the PROXY header of trusted sources, and the hello.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use eyelet_sys::epoll::FAILED;
use eyelet_wire::hello::{Hello, HelloReader, NotTls, Peek, Sni};
use eyelet_wire::proxy::{self, Command, ProxyPeek};
use futures_util::future::{Either, select};
use tokio::time::Instant;

use crate::path::active::{Active, WaitError};
use crate::path::fingerprint;
use crate::path::refuse::RefusalMessage;
use crate::path::requester;
use crate::snapshot::edge::Edge;
use eyelet_engine::ready::CLIENT;
use eyelet_engine::worker::Handle;
use eyelet_memory::budget::CountedBuffer;
use eyelet_telemetry::info::{Alpn, DestinationSource, End, Outcome, TlsCompression};
use eyelet_telemetry::reason::{Limit, Reason, Stage, When};

/// Bytes of one read: a hello is one or two segments, and an early upload need not be read.
const READ_BYTES: usize = 16 << 10;

/// The wait for a client's first bytes, only to answer in its own protocol.
const FIRST_BYTES_WAIT: Duration = Duration::from_millis(100);

/// True if the client is a source that must send a PROXY header.
pub fn must_name_client(connection: &Active<'_>) -> bool {
    let client = connection.info.client.ip();
    connection.listener().proxy_protocol_from.iter().any(|net| net.contains(&client))
}

/// Reads the PROXY header. Bytes behind it stay in `raw`.
pub async fn proxy_header(connection: &mut Active<'_>, raw: &mut CountedBuffer) -> Result<(), End> {
    loop {
        match proxy::read(raw) {
            ProxyPeek::NeedMore { .. } => more(connection, raw, Stage::ProxyHeader).await?,
            ProxyPeek::NotProxy => return Err(End::failed(Reason::NoProxyHeader)),
            ProxyPeek::Malformed(fault) => {
                return Err(End::failed(Reason::MalformedProxyHeader(fault)));
            }
            ProxyPeek::Header(header) => {
                requester::note_certificate(connection, raw.get(..header.len).unwrap_or_default());
                if let Command::Proxy { client, destination } = header.command {
                    connection.info.client = client;
                    connection.info.decided.destination = Some(destination);
                    connection.info.decided.destination_source = DestinationSource::ProxyHeader;
                }
                raw.consume(header.len);
                let room = connection.edge.engine.check_source(connection.info.client.ip());
                return room.map_err(|reason| End { outcome: Outcome::Refused, reason });
            }
        }
    }
}

/// Reads more bytes. `stage` is what they belong to.
pub async fn more(
    connection: &Active<'_>,
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

/// Fetches a fact while the client is connected. A client that sent FIN may still read, as
/// half-close and close look the same. A client that was reset does not.
pub async fn while_there(
    edge: &Edge,
    handle: &Handle,
    fetch: impl Future<Output = ()>,
    stage: Stage,
) -> Result<(), End> {
    let engine = &edge.engine;
    let began = engine.begins().filter(|_| stage != Stage::Handshake);
    let wait_error = match select(pin!(fetch), pin!(handle.ready(&[CLIENT], FAILED))).await {
        Either::Left(_) => {
            engine.ends(&engine.counters.evidence, began);
            return Ok(());
        }
        Either::Right((Ok(()), _)) => io::Error::from(io::ErrorKind::ConnectionReset).into(),
        Either::Right((Err(wait_error), _)) => wait_error,
    };
    Err(End::failed(wait_error.reason(Limit::Hello, When::During(stage))))
}

/// Reads more until a deadline, for a caller that does not need it. Returns whether bytes arrived.
/// A client that closed counts as silent. A client that was reset is an error: its bytes would be
/// forwarded as if they were whole.
pub async fn glance(
    connection: &Active<'_>,
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
        Err(wait_error @ (WaitError::Shed | WaitError::Ended | WaitError::Drained)) => {
            Err(unseen(&wait_error, raw))
        }
        _ => Ok(false),
    }
}

fn unseen(wait_error: &WaitError, raw: &[u8]) -> End {
    End::failed(wait_error.reason(Limit::Hello, When::reading(Stage::Hello, raw)))
}

/// The answer to a client that is refused without its hello. A client that speaks HTTP gets HTTP,
/// and one that stays silent the alert, unless the rule refuses without a word.
pub async fn fit(
    connection: &Active<'_>,
    raw: &mut CountedBuffer,
    answer: RefusalMessage,
) -> RefusalMessage {
    if answer == RefusalMessage::Nothing {
        return answer;
    }
    if raw.is_empty() {
        let read = connection.handle.recv(raw, READ_BYTES);
        // The refusal stands, whatever this read returns.
        let _ = tokio::time::timeout(FIRST_BYTES_WAIT, read).await;
    }
    match HelloReader::new(READ_BYTES).feed(raw) {
        Peek::NotTls(NotTls::Http) => RefusalMessage::BadRequest,
        _ => answer,
    }
}

/// Sees each hello that is read, on the worker's thread.
pub type HelloObserver = Box<dyn Fn(SocketAddr, &Hello<'_>) + Send + Sync>;

/// Unset in a server, where it costs a hello one load.
static OBSERVER: OnceLock<HelloObserver> = OnceLock::new();

/// Shows each hello from now on to this observer, as the demo's page does. Only the first counts.
pub fn observe(observer: HelloObserver) {
    let _ = OBSERVER.set(observer);
}

/// Copies facts of a hello into the info: what rules may ask again after a reload, and the
/// fingerprint if the log shows it.
pub fn note_hello(connection: &mut Active<'_>, hello: &Hello<'_>) {
    if let Some(observe) = OBSERVER.get() {
        observe(connection.info.client, hello);
    }
    let decided = &mut connection.info.decided;
    match hello.sni() {
        Sni::Name(name) => decided.sni = Some((&**name).into()),
        Sni::Malformed(_) => decided.sni_malformed = true,
        Sni::Absent => {}
    }
    decided.alpn = Alpn::new(hello.alpn());
    let kept_bytes = decided.alpn.as_ref().map_or(0, Alpn::len_bytes);
    decided.alpn_whole = kept_bytes == hello.alpn_list().len();
    decided.ech = hello.has_ech();
    decided.tls_version = Some(hello.version_max());
    decided.tls_compression = Some(match hello.offers_compression() {
        true => TlsCompression::Offered,
        false => TlsCompression::None,
    });
    if connection.edge.engine.logs() && connection.edge.snapshot.config.log.ja4 {
        decided.ja4 = Some(fingerprint::ja4(hello));
    }
}

//! Streams that stay open and move no bytes: a response that pauses, a request that waits for its
//! answer, a WebSocket. By HTTP/1.1 one a connection, by HTTP/2 several.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::ext::Protocol;
use h2::{RecvStream, SendStream};
use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::http2::{self, RequestSender};
use super::tls;
use crate::lab::{NAMES, host_name};

/// A kind of stream that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldKind {
    /// An event stream, after its first event.
    Events,
    /// A request that the backend does not answer.
    Poll,
    /// A WebSocket, after an echo.
    WebSocket,
}

/// A connection with what was opened on it.
pub enum HeldLink {
    Http1(Box<TlsStream<TcpStream>>),
    Http2(RequestSender, Vec<HeldStream>),
}

/// An open stream of HTTP/2.
pub enum HeldStream {
    /// Its answer has not begun.
    Waits(ResponseFuture),
    /// Its answer has begun. `_upload` keeps a request open that goes on.
    Begun { _upload: Option<SendStream<Bytes>>, body: RecvStream },
}

impl HeldLink {
    /// True if all of it is still open.
    pub fn is_alive(&mut self) -> bool {
        match self {
            Self::Http1(stream) => is_open(stream.get_ref().0),
            Self::Http2(sender, streams) => {
                let mut task = Context::from_waker(Waker::noop());
                !matches!(sender.poll_ready(&mut task), Poll::Ready(Err(_)))
                    && streams.iter_mut().all(|stream| match stream {
                        HeldStream::Waits(answer) => Pin::new(answer).poll(&mut task).is_pending(),
                        HeldStream::Begun { body, .. } => body.poll_data(&mut task).is_pending(),
                    })
            }
        }
    }
}

/// True if the server still holds a connection: there may be bytes to read, but no end.
pub fn is_open(stream: &TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match stream.try_read(&mut buffer) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

/// Opens one by HTTP/1.1.
///
/// # Errors
/// The connection has failed, or the answer is another one.
pub async fn open_http1(
    config: &Arc<ClientConfig>,
    (target, i): (SocketAddr, usize),
    kind: HeldKind,
) -> io::Result<HeldLink> {
    let mut stream = tls::open(config, target, i, NAMES).await?;
    let more = if kind == HeldKind::WebSocket { UPGRADE } else { "" };
    let host = host_name(i);
    let head = format!("GET {} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n", path(kind));
    stream.write_all(head.as_bytes()).await?;
    stream.flush().await?;
    match kind {
        HeldKind::Events => read_until(&mut stream, EVENT).await?,
        HeldKind::Poll => {}
        HeldKind::WebSocket => {
            read_until(&mut stream, b"\r\n\r\n").await?;
            stream.write_all(MESSAGE).await?;
            stream.flush().await?;
            read_until(&mut stream, ECHO).await?;
        }
    }
    Ok(HeldLink::Http1(Box::new(stream)))
}

/// Opens so many on one connection by HTTP/2. `config` must offer it.
///
/// # Errors
/// The connection or a stream has failed, or the answer is another one.
pub async fn open_http2(
    config: &Arc<ClientConfig>,
    (target, i): (SocketAddr, usize),
    kind: HeldKind,
    streams: usize,
) -> io::Result<HeldLink> {
    let mut sender = http2::open(config, target, i, NAMES).await?;
    let mut held = Vec::with_capacity(streams);
    for _ in 0..streams {
        held.push(open_stream(&mut sender, kind).await?);
    }
    Ok(HeldLink::Http2(sender, held))
}

async fn open_stream(sender: &mut RequestSender, kind: HeldKind) -> io::Result<HeldStream> {
    let is_websocket = kind == HeldKind::WebSocket;
    // It is known with the server's SETTINGS.
    while is_websocket && !sender.is_extended_connect_protocol_enabled() {
        tokio::time::sleep(SETTINGS_POLL).await;
    }
    std::future::poll_fn(|task| sender.poll_ready(task)).await.map_err(io::Error::other)?;
    let request = http::Request::builder().uri(format!("https://{}{}", host_name(0), path(kind)));
    let request = match is_websocket {
        true => request
            .method(http::Method::CONNECT)
            .extension(Protocol::from_static("websocket"))
            .header("sec-websocket-version", "13"),
        false => request,
    };
    let request = request.body(()).map_err(io::Error::other)?;
    let sent = sender.send_request(request, !is_websocket).map_err(io::Error::other)?;
    let (answer, mut upload) = sent;
    if kind == HeldKind::Poll {
        return Ok(HeldStream::Waits(answer));
    }
    let (head, mut body) = answer.await.map_err(io::Error::other)?.into_parts();
    if head.status != http::StatusCode::OK {
        return Err(io::Error::other(format!("answered {}", head.status)));
    }
    if is_websocket {
        upload.send_data(Bytes::from_static(MESSAGE), false).map_err(io::Error::other)?;
    }
    let wanted = if is_websocket { ECHO } else { EVENT };
    let mut got = Vec::new();
    while !got.ends_with(wanted) {
        let data = body.data().await.ok_or(io::ErrorKind::UnexpectedEof)?;
        let data = data.map_err(io::Error::other)?;
        body.flow_control().release_capacity(data.len()).map_err(io::Error::other)?;
        got.extend_from_slice(&data);
    }
    Ok(HeldStream::Begun { _upload: is_websocket.then_some(upload), body })
}

async fn read_until(stream: &mut TlsStream<TcpStream>, end: &[u8]) -> io::Result<()> {
    let (mut buffer, mut got) = ([0; HEAD_BYTES_MAX], 0);
    loop {
        let read = stream.read(buffer.get_mut(got..).unwrap_or_default()).await?;
        got += read;
        let seen = &buffer[..got];
        if seen.windows(end.len()).any(|part| part == end) {
            return Ok(());
        }
        if read == 0 {
            let line =
                String::from_utf8_lossy(seen).lines().next().unwrap_or("no bytes").to_owned();
            return Err(io::Error::other(format!("answered {line}")));
        }
    }
}

const fn path(kind: HeldKind) -> &'static str {
    match kind {
        HeldKind::Events => "/events",
        HeldKind::Poll => "/poll",
        HeldKind::WebSocket => "/websocket",
    }
}

/// The event that the backend sends before it pauses.
pub const EVENT: &[u8] = b"data: one\n\n";
const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
/// A text of five bytes with a mask of zeros (RFC 6455 section 5.2), and what comes back.
const MESSAGE: &[u8] = b"\x81\x85\0\0\0\0hello";
const ECHO: &[u8] = b"\x81\x05hello";
const HEAD_BYTES_MAX: usize = 4096;
const SETTINGS_POLL: std::time::Duration = std::time::Duration::from_millis(2);

//! The demo's web application, in the clear: pages, JSON, an event stream, a WebSocket echo, a
//! download.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use futures_util::{SinkExt, StreamExt};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::permits::ConnectionPermits;

/// Connections served at a time, so that load on the demo ends at a limit and does not use up the
/// machine's descriptors.
const CONNECTIONS_MAX: usize = 4096;
/// The largest `/big`: enough for a measurement, and a typing error still ends.
const BIG_BYTES_MAX: u64 = 1 << 30;
/// `/big` without a size.
const BIG_BYTES_DEFAULT: u64 = 1 << 20;
/// One chunk of `/big`. It is static, so a download of any size allocates nothing.
static ZEROS: [u8; 16 * 1024] = [0; 16 * 1024];
/// Largest WebSocket message: the echo holds a message whole.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
const EVENT_EVERY: Duration = Duration::from_secs(1);

/// Accepts connections until it is dropped.
pub async fn serve(listener: TcpListener) {
    let permits = ConnectionPermits::new(CONNECTIONS_MAX);
    loop {
        let (stream, permit) = permits.accept(&listener).await;
        tokio::spawn(async move {
            // A client that disconnects early is no error of the demo.
            let _ = answer(stream).await;
            drop(permit);
        });
    }
}

async fn answer(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let service = service_fn(async |request| Ok::<_, Infallible>(route(request)));
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await
        .map_err(io::Error::other)
}

fn route(request: Request<Incoming>) -> Response<Content> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
    }
    match request.uri().path() {
        "/" => whole("text/html; charset=utf-8", Bytes::from_static(PAGE)),
        "/api/time" => json(&serde_json::json!({ "time": now() })),
        "/api/items" => json(&items()),
        "/events" => events(),
        "/ws" => websocket(request),
        "/big" => big(request.uri().query()),
        _ => plain(StatusCode::NOT_FOUND, "no such page\n"),
    }
}

static PAGE: &[u8] = include_bytes!("page.html");

fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

fn items() -> serde_json::Value {
    serde_json::json!([
        { "id": 1, "name": "hook", "price": "0.20" },
        { "id": 2, "name": "eyelet", "price": "0.10" },
        { "id": 3, "name": "lace", "price": "1.50" },
    ])
}

fn big(query: Option<&str>) -> Response<Content> {
    let asked = query.and_then(|q| q.split('&').find_map(|pair| pair.strip_prefix("bytes=")));
    let bytes = asked.map_or(Ok(BIG_BYTES_DEFAULT), str::parse::<u64>);
    match bytes {
        Ok(bytes) if bytes <= BIG_BYTES_MAX => {
            typed("application/octet-stream", Content::Zeros { left: bytes })
        }
        _ => plain(StatusCode::BAD_REQUEST, "bytes= wants a number up to 1073741824\n"),
    }
}

fn events() -> Response<Content> {
    let mut every = tokio::time::interval(EVENT_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut response = typed("text/event-stream", Content::Events { every, sent: 0 });
    let never = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, never);
    response
}

/// RFC 6455 section 4.2.2: sends the accept key; after it the echo owns the bytes.
fn websocket(mut request: Request<Incoming>) -> Response<Content> {
    let asked = |name, value: &str| {
        let text = request.headers().get(name).and_then(|v| v.to_str().ok());
        text.is_some_and(|v| v.split(',').any(|t| t.trim().eq_ignore_ascii_case(value)))
    };
    let upgrades = asked(header::CONNECTION, "upgrade") && asked(header::UPGRADE, "websocket");
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY);
    let accept = key.map(|k| derive_accept_key(k.as_bytes()));
    let accept = accept.and_then(|a| HeaderValue::try_from(a).ok());
    let (true, true, Some(accept)) = (upgrades, asked(header::SEC_WEBSOCKET_VERSION, "13"), accept)
    else {
        let mut response = plain(StatusCode::UPGRADE_REQUIRED, "a WebSocket is spoken here\n");
        let version = HeaderValue::from_static("13");
        response.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, version);
        return response;
    };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        if let Ok(stream) = upgrade.await {
            // A client that disconnects early is no error of the demo.
            let _ = echo(TokioIo::new(stream)).await;
        }
    });
    let mut response = Response::new(Content::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    response
}

type Upgraded = TokioIo<hyper::upgrade::Upgraded>;

async fn echo(stream: Upgraded) -> Result<(), tokio_tungstenite::tungstenite::Error> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    while let Some(message) = socket.next().await {
        let message = message?;
        // The library answers pings and the closing handshake.
        if message.is_text() || message.is_binary() {
            socket.send(message).await?;
        }
    }
    Ok(())
}

fn json(value: &serde_json::Value) -> Response<Content> {
    whole("application/json", Bytes::from(format!("{value}\n")))
}

fn plain(status: StatusCode, text: &'static str) -> Response<Content> {
    let mut response = whole("text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()));
    *response.status_mut() = status;
    response
}

fn whole(kind: &'static str, bytes: Bytes) -> Response<Content> {
    typed(kind, Content::Whole(Some(bytes)))
}

fn typed(kind: &'static str, content: Content) -> Response<Content> {
    let mut response = Response::new(content);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A body: bytes, a number of zeros, or events without end.
enum Content {
    Whole(Option<Bytes>),
    Zeros { left: u64 },
    Events { every: Interval, sent: u64 },
}

impl Content {
    fn empty() -> Self {
        Self::Whole(None)
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match self.get_mut() {
            Self::Whole(bytes) => bytes.take(),
            Self::Zeros { left: 0 } => None,
            Self::Zeros { left } => {
                let piece = ZEROS.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= piece as u64;
                Some(Bytes::from_static(&ZEROS[..piece]))
            }
            Self::Events { every, sent } => {
                std::task::ready!(every.poll_tick(cx));
                *sent += 1;
                Some(Bytes::from(format!("id: {sent}\ndata: {}\n\n", now())))
            }
        };
        Poll::Ready(piece.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None) | Self::Zeros { left: 0 })
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            Self::Zeros { left } => SizeHint::with_exact(*left),
            Self::Events { .. } => SizeHint::new(),
        }
    }
}

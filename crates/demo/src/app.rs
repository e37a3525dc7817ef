//! The application behind the page, in the clear on a Unix socket: the page, its events, and what
//! its buttons do. It answers to its own name and to its own page only.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio_rustls::TlsConnector;

use crate::content::{Content, events, json, plain, typed, whole};
use crate::feed::Feed;
use crate::hellos::Hellos;
use crate::park::{CROWD_MAX, Park};
use crate::permits::ConnectionPermits;
use crate::{codings, lie, manual};
use eyelet_wire::proxy::{self, Command, HEADER_BYTES_MAX, ProxyPeek};

/// Connections served at a time: some for each page that is open.
const CONNECTIONS_MAX: usize = 256;
/// The time for which the page waits for the log line of its own connection; `LINE_EVERY` is the
/// interval of its looks.
const LINE_WAIT: Duration = Duration::from_secs(5);
const LINE_EVERY: Duration = Duration::from_millis(20);
/// The interval at which open pages get the newest lines and the gauge.
const EVENT_EVERY: Duration = Duration::from_millis(400);
/// Bytes of a PROXY v2 header before its length is known, that included.
const PROXY_FIXED_BYTES: usize = 16;

/// The state that the page's requests need.
pub(crate) struct App {
    /// Host and port of the page, as a URL has them.
    pub(crate) authority: String,
    /// The page, and its Content-Security-Policy.
    pub(crate) html: Bytes,
    pub(crate) policy: HeaderValue,
    pub(crate) feed: Feed,
    pub(crate) hellos: Arc<Hellos>,
    pub(crate) park: Park,
    pub(crate) connector: TlsConnector,
    /// The listeners of the page and of the gateway, and the origin.
    pub(crate) page: SocketAddr,
    pub(crate) gateway: SocketAddr,
    pub(crate) origin: SocketAddr,
    /// Returns the text of `eyelet explain --log-line` about a line.
    pub(crate) explain: Box<dyn Fn(&str) -> String + Send + Sync>,
}

/// Accepts connections until it is dropped.
pub(crate) async fn serve(listener: UnixListener, app: Arc<App>) {
    let permits = ConnectionPermits::new(CONNECTIONS_MAX);
    loop {
        let (stream, permit) = permits.accept(async || Ok(listener.accept().await?.0)).await;
        let app = app.clone();
        tokio::spawn(async move {
            // A client that disconnects early is no error of the demo.
            let _ = answer(stream, &app).await;
            drop(permit);
        });
    }
}

/// Sends new log lines and the gauge to open pages until it is dropped.
pub(crate) async fn follow(app: Arc<App>) {
    let mut every = tokio::time::interval(EVENT_EVERY);
    loop {
        every.tick().await;
        app.feed.refresh(&app.hellos);
        if app.feed.has_subscribers() {
            app.feed.publish(&app.park.gauge());
        }
    }
}

async fn answer(mut stream: UnixStream, app: &App) -> io::Result<()> {
    let client = read_client(&mut stream).await?;
    let service = service_fn(async |request| {
        let mut response = app.route(&request, client).await;
        app.protect(&mut response);
        Ok::<_, Infallible>(response)
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(io::Error::other)
}

/// The client of the edge's connection, which its PROXY header names.
async fn read_client(stream: &mut UnixStream) -> io::Result<SocketAddr> {
    let mut header = vec![0; PROXY_FIXED_BYTES];
    stream.read_exact(&mut header).await?;
    let length = usize::from(u16::from_be_bytes([header[14], header[15]]));
    if PROXY_FIXED_BYTES + length > HEADER_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    header.resize(PROXY_FIXED_BYTES + length, 0);
    stream.read_exact(&mut header[PROXY_FIXED_BYTES..]).await?;
    match proxy::read(&header) {
        ProxyPeek::Header(proxy::ProxyHeader {
            command: Command::Proxy { client, .. }, ..
        }) => Ok(client),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

impl App {
    async fn route(&self, request: &Request<Incoming>, client: SocketAddr) -> Response<Content> {
        // A page of another origin whose name leads here by DNS rebinding says its own name.
        if field(request, &header::HOST) != Some(&self.authority) {
            return plain(StatusCode::MISDIRECTED_REQUEST, "another host\n");
        }
        let path = request.uri().path();
        // Another site needs a link to the page, and none of what would hold a stream or a wait
        // (W3C Fetch Metadata).
        let site = field(request, &SEC_FETCH_SITE);
        if path != "/" && site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
            return plain(StatusCode::FORBIDDEN, "another site\n");
        }
        match *request.method() {
            Method::GET | Method::HEAD => self.show(path, client).await,
            // Any page may send a POST here, and a browser says which one did.
            Method::POST if !self.is_own_page(request) => {
                plain(StatusCode::FORBIDDEN, "another origin\n")
            }
            Method::POST => self.act(path, request.uri().query()).await,
            _ => plain(StatusCode::METHOD_NOT_ALLOWED, "GET or POST\n"),
        }
    }

    fn is_own_page(&self, request: &Request<Incoming>) -> bool {
        let origin = field(request, &header::ORIGIN).and_then(|text| text.strip_prefix("https://"));
        origin == Some(&self.authority)
    }

    async fn show(&self, path: &str, client: SocketAddr) -> Response<Content> {
        match path {
            "/" => typed("text/html; charset=utf-8", self.html.clone()),
            "/page.js" => whole("text/javascript; charset=utf-8", include_bytes!("page/page.js")),
            "/icon.svg" => whole("image/svg+xml", include_bytes!("page/icon.svg")),
            "/api/hello" => self.hello(client).await,
            "/events" => match self.feed.subscribe() {
                Some(receiver) => events(receiver),
                None => plain(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open\n"),
            },
            codings::EARLIER_PATH => cached(manual::EARLIER.as_bytes()),
            _ if path.starts_with(NEWEST_PREFIX) => cached(manual::NEWEST.as_bytes()),
            _ => plain(StatusCode::NOT_FOUND, "no such page\n"),
        }
    }

    async fn act(&self, path: &str, query: Option<&str>) -> Response<Content> {
        match path {
            "/api/park" => {
                let count = query.and_then(|query| query.strip_prefix("count="));
                match count.map_or(Ok(CROWD_MAX), str::parse) {
                    Ok(count) if count > 0 => outcome(self.park.fill(count).map(|()| json!({}))),
                    _ => plain(StatusCode::BAD_REQUEST, "count= takes a number\n"),
                }
            }
            "/api/release" => {
                self.park.empty();
                json(&json!({}))
            }
            "/api/codings" => {
                let measured = codings::measure(self.page, &self.connector, &self.authority).await;
                outcome(measured.map_err(|error| error.to_string()))
            }
            "/api/lie" => json(&lie::tell(self.gateway, self.origin, &self.connector).await),
            _ => plain(StatusCode::NOT_FOUND, "no such button\n"),
        }
    }

    /// The hello of the client's own connection, and why its rule took it.
    async fn hello(&self, client: SocketAddr) -> Response<Content> {
        let mut waited = Duration::ZERO;
        loop {
            self.feed.refresh(&self.hellos);
            match self.hellos.of(client) {
                Some((mut parts, Some(line))) => {
                    let logged: Value = serde_json::from_str(&line).unwrap_or_default();
                    parts["client"] = client.to_string().into();
                    parts["ja4"] = logged["ja4"].clone();
                    parts["rule"] = logged["rule"].clone();
                    parts["id"] = logged["id"].clone();
                    parts["explained"] = (self.explain)(&line).into();
                    return json(&parts);
                }
                _ if waited >= LINE_WAIT => {
                    return plain(StatusCode::NOT_FOUND, "this hello is not remembered\n");
                }
                _ => {
                    tokio::time::sleep(LINE_EVERY).await;
                    waited += LINE_EVERY;
                }
            }
        }
    }

    /// Fields that every response has: nothing may be loaded from elsewhere, run inline, or framed.
    fn protect(&self, response: &mut Response<Content>) {
        let fields = response.headers_mut();
        fields.insert(header::CONTENT_SECURITY_POLICY, self.policy.clone());
        for (name, value) in FIXED_FIELDS {
            fields.insert(name, HeaderValue::from_static(value));
        }
        fields.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
}

/// The beginning of the paths of the newest edition. A browser that shall fetch it again asks for
/// another one of them.
const NEWEST_PREFIX: &str = "/manual/2";

/// Says if the page that asks is of the same site. Only browsers send it.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

const FIXED_FIELDS: [(HeaderName, &str); 3] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// A file that may become a dictionary: it needs some freshness.
fn cached(bytes: &'static [u8]) -> Response<Content> {
    let mut response = whole("text/plain; charset=utf-8", bytes);
    let fresh = HeaderValue::from_static("public, max-age=600");
    response.headers_mut().insert(header::CACHE_CONTROL, fresh);
    response
}

/// JSON, or an error for the page to show.
fn outcome(done: Result<Value, String>) -> Response<Content> {
    done.map_or_else(|error| json(&json!({ "error": error })), |value| json(&value))
}

fn field<'a>(request: &'a Request<Incoming>, name: &HeaderName) -> Option<&'a str> {
    request.headers().get(name)?.to_str().ok()
}

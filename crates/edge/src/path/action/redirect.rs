//! A listener of kind `http_redirect`: it answers one plain request with a redirect to https://, or
//! an ACME server's request for the answer to its challenge (RFC 8555 section 8.3).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::{Method, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::snapshot::listen::HTTPS_PORT;
use eyelet_acme::Acme;
use eyelet_downstream::client::stream::write_head;
use eyelet_downstream::connection::date::stamp;
use eyelet_downstream::connection::page::page;
use eyelet_downstream::connection::reason::request_reason;
use eyelet_engine::park;
use eyelet_engine::worker::Handle;
use eyelet_engine::worker::WaitError;
use eyelet_http1::fault::RequestFault;
use eyelet_http1::head::{Length, Request, Scanner, counted_request, request_end};
use eyelet_memory::budget::CountedBuffer;
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome};
use eyelet_telemetry::reason::{IoFailure, Limit, Reason, Stage, When};

/// Bytes read at once: a browser's first request.
const READ_BYTES: usize = 4 << 10;
/// The stage until the response.
const HEAD: When = When::During(Stage::RequestHead);

const HTTP_PORT: u16 = 80;
/// The path at which a server of HTTP-01 looks for the answer to a token.
const CHALLENGES: &str = "/.well-known/acme-challenge/";

/// Bytes of another client's response: a key authorization has less than 200.
const UPSTREAM_BYTES_MAX: u64 = 16 << 10;
/// For that response. A server waits for about ten seconds.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of a listener of this kind.
pub struct Redirects<'a> {
    /// The limits of a request's head.
    pub http: &'a eyelet_config::HttpLimits,
    /// The answers to challenges.
    pub acme: &'a Acme,
    /// Another ACME client that may have the answer.
    pub upstream: Option<SocketAddr>,
    /// The port that clients are sent to, see [`crate::snapshot::listen::https_port`].
    pub https_port: u16,
}

/// Serves a connection.
pub async fn redirect(
    Redirects { http, acme, upstream, https_port }: Redirects<'_>,
    handle: &Handle,
    info: &mut ConnectionInfo,
    mut received: CountedBuffer,
) -> Result<(), End> {
    handle.due_in(http.head_timeout);
    let mut scanner = Scanner::default();
    let request = loop {
        match request_end(&received, &mut scanner, http.head_bytes_max) {
            Ok(Some(end)) => break counted_request(received, end),
            Ok(None) => {}
            Err(fault) => break Err(fault),
        }
        match handle.recv(&mut received, READ_BYTES).await {
            Ok(0) => return Err(End::failed(Reason::ClientClosed(Some(HEAD)))),
            Ok(_) => {}
            Err(WaitError::Late) => break Err(RequestFault::SlowHead),
            Err(wait_error) => return Err(End::failed(wait_error.reason(Limit::Head, HEAD))),
        }
    };
    let (words, end) = match request {
        Ok(request) => {
            let token = request.parts.uri.path().strip_prefix(CHALLENGES);
            let own_port = handle.local_address().map(|address| address.port());
            let answer = match token {
                Some(token) => answer(acme, upstream, token, &request).await,
                None => Ok(None),
            };
            match (answer, location(&request.parts.uri, (own_port, https_port))) {
                (Ok(Some(answer)), _) => {
                    let reason = match is_ok(&answer) {
                        true => Reason::Validated,
                        false => Reason::ClosedAfterResponse,
                    };
                    (answer, End { outcome: Outcome::Terminated, reason })
                }
                (answer, Some(location)) => {
                    let failure = answer.err().map(|error| IoFailure::from(&error));
                    let reason = failure.map_or(Reason::Redirected, Reason::AcmeUpstream);
                    let end = End { outcome: Outcome::Redirected, reason };
                    (words(&request.parts.method, StatusCode::OK, Some(location)), end)
                }
                (_, None) => fault(RequestFault::Host),
            }
        }
        Err(broken) => fault(broken),
    };
    info.bytes_to_client += words.len() as u64;
    park::close_with(handle, &words);
    Err(end)
}

fn fault(fault: RequestFault) -> (Vec<u8>, End) {
    let words = words(&Method::GET, fault.status(), None);
    (words, End { outcome: Outcome::Refused, reason: request_reason(fault) })
}

/// This URL with https://. It has the port of https, unless the client came to the port of this
/// listener itself: where another machine translates ports, ours mean nothing to the client.
fn location(uri: &http::Uri, (own_port, https_port): (Option<u16>, u16)) -> Option<HeaderValue> {
    let authority = uri.authority()?;
    let host = authority.host();
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let path = if path == "*" { "/" } else { path };
    let is_direct = own_port == Some(authority.port_u16().unwrap_or(HTTP_PORT));
    let location = match is_direct && https_port != HTTPS_PORT {
        true => format!("https://{host}:{https_port}{path}"),
        false => format!("https://{host}{path}"),
    };
    HeaderValue::from_str(&location).ok()
}

/// The response to an ACME server: from our own order, or from another client. `None`: nobody is
/// asked.
///
/// # Errors
/// If the other client cannot be asked, or gives no response.
async fn answer(
    acme: &Acme,
    upstream: Option<SocketAddr>,
    token: &str,
    request: &Request,
) -> io::Result<Option<Vec<u8>>> {
    if let Some(answer) = acme.answer(token).await {
        return Ok(Some(challenge(&answer)));
    }
    let upstream = upstream.filter(|_| request.parts.method == Method::GET);
    let (Some(upstream), Some(host)) = (upstream, request.parts.uri.authority()) else {
        return Ok(None);
    };
    let path = request.parts.uri.path();
    // In HTTP/1.0 the response ends with the connection, and no body comes in chunks.
    let head = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let asked = async {
        let mut stream = TcpStream::connect(upstream).await?;
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(UPSTREAM_BYTES_MAX).read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = tokio::time::timeout(UPSTREAM_TIMEOUT, asked).await;
    let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    match answer.starts_with(b"HTTP/1.") {
        true => Ok(Some(answer)),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "no response of HTTP/1")),
    }
}

/// True if a response has the status 200: another client may know no answer either.
fn is_ok(answer: &[u8]) -> bool {
    answer.get(b"HTTP/1.1".len()..).is_some_and(|rest| rest.starts_with(b" 200"))
}

/// The response with a key authorization.
fn challenge(answer: &str) -> Vec<u8> {
    let (mut head, ()) = http::Response::new(()).into_parts();
    let octets = HeaderValue::from_static("application/octet-stream");
    head.headers.insert(header::CONTENT_TYPE, octets);
    head.headers.insert(header::CONTENT_LENGTH, answer.len().into());
    head.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    stamp(&mut head);
    [&write_head(&head)[..], answer.as_bytes()].concat()
}

fn words(method: &Method, status: StatusCode, location: Option<HeaderValue>) -> Vec<u8> {
    let moved = match *method {
        Method::GET | Method::HEAD => StatusCode::MOVED_PERMANENTLY,
        // RFC 9110 15.4.9: the method stays the same.
        _ => StatusCode::PERMANENT_REDIRECT,
    };
    let (mut head, length, body) = page(if location.is_some() { moved } else { status }, method);
    if let Some(location) = location {
        head.headers.remove(header::CACHE_CONTROL);
        head.headers.insert(header::LOCATION, location);
    }
    head.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    stamp(&mut head);
    let mut words = write_head(&head).to_vec();
    if length != Length::Empty {
        words.extend_from_slice(&body);
    }
    words
}

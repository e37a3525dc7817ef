//! A listener of kind `http_redirect`: it answers one plain request with a redirect to https://.

use http::header::{self, HeaderValue};
use http::{Method, StatusCode};

use super::fault::RequestFault;
use super::fields;
use super::head::{Length, Request, Scanner, request_end, take_request};
use super::page::page;
use super::stream::write_head;
use eyelet_engine::handle::Stop;
use eyelet_engine::park;
use eyelet_engine::worker::Handle;
use eyelet_memory::budget::CountedBuffer;
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome};
use eyelet_telemetry::reason::{Limit, Reason, Stage, When};

/// Bytes read at once: a browser's first request.
const READ_BYTES: usize = 4 << 10;
/// The stage until the response.
const HEAD: When = When::During(Stage::RequestHead);

/// Serves a connection.
pub async fn redirect(
    handle: &Handle,
    http: &eyelet_config::Http,
    info: &mut ConnectionInfo,
    mut received: CountedBuffer,
) -> Result<(), End> {
    handle.due_in(http.head_timeout);
    let mut scanner = Scanner::default();
    let request = loop {
        match request_end(&received, &mut scanner, http.head_bytes_max) {
            Ok(Some(end)) => break whole(&received[..end], http.head_bytes_max),
            Ok(None) => {}
            Err(fault) => break Err(fault),
        }
        match handle.recv(&mut received, READ_BYTES).await {
            Ok(0) => return Err(End::failed(Reason::ClientClosed(Some(HEAD)))),
            Ok(_) => {}
            Err(Stop::Late) => break Err(RequestFault::SlowHead),
            Err(stop) => return Err(End::failed(stop.reason(Limit::Head, HEAD))),
        }
    };
    let (words, end) = match request {
        Ok(request) => match location(&request.parts.uri) {
            Some(location) => {
                let end = End { outcome: Outcome::Redirected, reason: Reason::Redirected };
                (words(&request.parts.method, StatusCode::OK, Some(location)), end)
            }
            None => fault(RequestFault::Host),
        },
        Err(broken) => fault(broken),
    };
    info.bytes_to_client += words.len() as u64;
    park::close_with(handle, &words);
    Err(end)
}

/// Parses a complete head.
fn whole(head: &[u8], head_bytes_max: usize) -> Result<Request, RequestFault> {
    let request = take_request(&mut head.into(), &mut Scanner::default(), head_bytes_max)?;
    request.ok_or(RequestFault::Line)
}

fn fault(fault: RequestFault) -> (Vec<u8>, End) {
    let words = words(&Method::GET, fault.status(), None);
    (words, End { outcome: Outcome::Refused, reason: fault.into() })
}

/// The same URL with https://. Without the client's port, which is this listener's.
fn location(uri: &http::Uri) -> Option<HeaderValue> {
    let host = uri.authority()?.host();
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let path = if path == "*" { "/" } else { path };
    HeaderValue::from_str(&format!("https://{host}{path}")).ok()
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
    fields::stamp(&mut head);
    let mut words = write_head(&head).to_vec();
    if length != Length::Empty {
        words.extend_from_slice(&body);
    }
    words
}

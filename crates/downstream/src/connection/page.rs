//! The small pages that Eyelet itself answers with. They say what helps a visitor; the cause is in
//! the access log.

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, StatusCode, response};

use eyelet_http1::head::Length;
use eyelet_telemetry::reason::Reason;

/// The methods that are passed on: all except CONNECT and TRACE. These are the common ones.
pub const ALLOW: HeaderValue =
    HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH");

/// A page: head, length of the body, body.
pub fn page(status: StatusCode, method: &Method) -> (response::Parts, Length, Bytes) {
    let text = match status {
        StatusCode::BAD_GATEWAY => {
            "The application behind this address gave no usable answer. Please try again."
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            "The application behind this address is not running. Please try again later."
        }
        StatusCode::GATEWAY_TIMEOUT => {
            "The application behind this address did not answer in time. Please try again."
        }
        StatusCode::MISDIRECTED_REQUEST => "This name is not served on this connection.",
        StatusCode::REQUEST_TIMEOUT => "The request did not come in time.",
        status if status.is_redirection() => "This is served by https:// only.",
        _ => "This request cannot be served.",
    };
    said(status, method, text)
}

/// The page for a request that has no response of an upstream, for this reason.
pub fn failure_page(
    status: StatusCode,
    method: &Method,
    reason: &Reason,
) -> (response::Parts, Length, Bytes) {
    match reason {
        Reason::UpstreamUntrusted(_) => said(
            status,
            method,
            "The certificate of the application behind this address is not trusted.",
        ),
        _ => page(status, method),
    }
}

fn said(status: StatusCode, method: &Method, text: &str) -> (response::Parts, Length, Bytes) {
    let reason = status.canonical_reason().unwrap_or("Error");
    text_page(status, method, format!("{} {reason}\n\n{text}\n", status.as_u16()).into())
}

/// The page for a request or a response that a secret is in. Who sends a placeholder knows it, so
/// the reason may be said.
pub fn secret_page(
    status: StatusCode,
    method: &Method,
    reason: &Reason,
) -> (response::Parts, Length, Bytes) {
    let phrase = status.canonical_reason().unwrap_or("Error");
    let text = format!(
        "{} {phrase}\n\nThis page is from Eyelet, not from the server.\n{reason}.\n",
        status.as_u16()
    );
    text_page(status, method, text.into())
}

/// A page with this text.
pub fn text_page(
    status: StatusCode,
    method: &Method,
    body: Bytes,
) -> (response::Parts, Length, Bytes) {
    let (mut head, ()) = http::Response::new(()).into_parts();
    head.status = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    head.headers.insert(header::CONTENT_TYPE, plain);
    head.headers.insert(header::CONTENT_LENGTH, body.len().into());
    // A cache must not keep a temporary failure.
    head.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        head.headers.insert(header::ALLOW, ALLOW);
    }
    match *method {
        Method::HEAD => (head, Length::Empty, Bytes::new()),
        _ => (head, Length::Known(body.len() as u64), body),
    }
}

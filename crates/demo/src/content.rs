//! Bodies of the page's responses, and responses with them.

use std::convert::Infallible;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream::{self, StreamExt};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use crate::identity::{NOBODY_NAME, ORIGIN_NAME};

/// A body: bytes, or events until the page is closed.
pub(crate) type Content = UnsyncBoxBody<Bytes, Infallible>;

fn of_body(kind: &'static str, body: Content) -> Response<Content> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A response of this type.
pub(crate) fn typed(kind: &'static str, bytes: Bytes) -> Response<Content> {
    of_body(kind, Full::new(bytes).boxed_unsync())
}

pub(crate) fn whole(kind: &'static str, bytes: &'static [u8]) -> Response<Content> {
    typed(kind, Bytes::from_static(bytes))
}

pub(crate) fn json(value: &Value) -> Response<Content> {
    typed("application/json", Bytes::from(format!("{value}\n")))
}

pub(crate) fn events(mut events: Receiver<Bytes>) -> Response<Content> {
    let events = stream::poll_fn(move |task| events.poll_recv(task));
    let frames = StreamBody::new(events.map(|event| Ok(Frame::data(event))));
    of_body("text/event-stream", frames.boxed_unsync())
}

/// The page, and the value of its Content-Security-Policy. Its style is inside, so that the first
/// paint waits for nothing else, and the policy has the hash of that style.
pub(crate) fn page(port: &str) -> (Bytes, String) {
    const STYLE: &str = concat!("\n", include_str!("page/page.css"));
    let style = format!("<style>{STYLE}</style>");
    let html = include_str!("page/index.html").replace("<style></style>", &style);
    let hash = STANDARD.encode(digest(&SHA256, STYLE.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; script-src 'self'; img-src 'self'; \
         connect-src 'self' https://{ORIGIN_NAME}:{port} https://{NOBODY_NAME}:{port}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    (Bytes::from(html), policy)
}

/// A response that is no success.
pub(crate) fn plain(status: StatusCode, text: &'static str) -> Response<Content> {
    let mut response = whole("text/plain; charset=utf-8", text.as_bytes());
    *response.status_mut() = status;
    response
}

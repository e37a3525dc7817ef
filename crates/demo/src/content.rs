//! Bodies of the page's responses, and responses with them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use crate::identity::{NOBODY_NAME, ORIGIN_NAME};

/// A body: bytes, or events until the page is closed.
pub(crate) enum Content {
    Whole(Option<Bytes>),
    Events(Receiver<Bytes>),
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
            Self::Events(events) => std::task::ready!(events.poll_recv(cx)),
        };
        Poll::Ready(piece.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Events(_) => SizeHint::new(),
        }
    }
}

/// A response of this type.
pub(crate) fn typed(kind: &'static str, content: Content) -> Response<Content> {
    let mut response = Response::new(content);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

pub(crate) fn whole(kind: &'static str, bytes: &'static [u8]) -> Response<Content> {
    typed(kind, Content::Whole(Some(Bytes::from_static(bytes))))
}

pub(crate) fn json(value: &Value) -> Response<Content> {
    let bytes = Bytes::from(format!("{value}\n"));
    typed("application/json", Content::Whole(Some(bytes)))
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

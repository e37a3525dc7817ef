//! WebSocket over HTTP/2 (RFC 8441): the upstream gets the request by HTTP/1.1, and after its 101
//! bytes are copied.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Instant;

use base64::Engine;
use bytes::BytesMut;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, StatusCode, request, response};

use super::front::{Front, Written};
use super::head::Length;
use super::stream::{Stream, Trouble};
use super::transfer::{Broken, Download, Upload};
use super::upstream::Upstream;
use eyelet_telemetry::reason::{Limit, Reason};

const ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");
const KEY: HeaderName = HeaderName::from_static("sec-websocket-key");

/// Whether a CONNECT asks for a WebSocket.
pub fn is_asked(request: &request::Parts) -> bool {
    let protocol = request.extensions.get::<h2::ext::Protocol>();
    request.method == Method::CONNECT && protocol.is_some_and(|name| name.as_str() == "websocket")
}

/// Turns it into the GET that an HTTP/1.1 upstream knows (RFC 6455 4.1). Returns the protocol to
/// ask for.
pub fn to_get(request: &mut request::Parts) -> Option<HeaderValue> {
    let mut nonce = [0; 16];
    aws_lc_rs::rand::fill(&mut nonce).ok()?;
    let key = base64::engine::general_purpose::STANDARD.encode(nonce);
    request.method = Method::GET;
    request.headers.insert(KEY, HeaderValue::from_str(&key).ok()?);
    Some(HeaderValue::from_static("websocket"))
}

/// Turns the upstream's 101 into HTTP/2's form.
pub fn to_ok(head: &mut response::Parts) {
    head.status = StatusCode::OK;
    head.headers.remove(header::CONNECTION);
    head.headers.remove(header::UPGRADE);
    head.headers.remove(ACCEPT);
}

/// Why a copy ended before both directions had.
pub enum End {
    /// By the client.
    Client(Trouble),
    /// By the upstream, or after `idle_timeout` without a byte.
    Other(Reason),
}

/// Copies both ways until the upstream has ended its stream.
pub async fn copy(
    front: &Front,
    stream: &mut Stream<'_>,
    mut upstream: Upstream,
    written: &Written<'_>,
) -> Result<(), End> {
    let idle_timeout = front.worker.shared.config.limits.idle_timeout;
    let mut up = Upload::new(&front.worker, written, BytesMut::new(), Length::UntilClose, false);
    let mut down = Download::new(&front.worker, Length::UntilClose);
    let mut told = false;
    let mut moved = Instant::now();
    let patience = front.patience().min(idle_timeout);
    stream.due_in(patience);
    poll_fn(|task| {
        let before = (up.written, down.taken);
        if let Poll::Ready(Err(trouble)) = up.poll(task, stream, &mut upstream) {
            return Poll::Ready(Err(End::Client(trouble)));
        }
        if up.done && !told {
            // The close frame was sent before, so an error does not matter.
            told = upstream.poll_shutdown(task).is_ready();
        }
        match down.poll(task, stream, &mut upstream) {
            Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
            Poll::Ready(Err(Broken::Client(trouble))) => {
                return Poll::Ready(Err(End::Client(trouble)));
            }
            Poll::Ready(Err(_)) => return Poll::Ready(Err(End::Other(Reason::UpstreamReset))),
            Poll::Pending => {}
        }
        if before != (up.written, down.taken) {
            moved = Instant::now();
            stream.due_in(patience);
        }
        if let Poll::Ready(trouble) = stream.poll_gone(task) {
            return Poll::Ready(Err(End::Client(trouble)));
        }
        while stream.poll_late(task).is_ready() {
            if moved.elapsed() >= idle_timeout {
                return Poll::Ready(Err(End::Other(Reason::Timeout(Limit::Idle, None))));
            }
            // Treated like a body that does not move. A silent connection without held bytes is
            // fine.
            let holds = stream.queued() > 0 || stream.is_leaving() || up.is_stalled();
            if holds && let Some(reason) = front.gives_up(moved) {
                return Poll::Ready(Err(End::Other(reason)));
            }
            stream.due_in(patience.min(idle_timeout.saturating_sub(moved.elapsed())));
        }
        Poll::Pending
    })
    .await
}

//! WebSocket over HTTP/2 (RFC 8441): the upstream gets the request by HTTP/1.1, and after its 101
//! bytes are copied.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Instant;

use base64::Engine;
use bytes::BytesMut;
use eyelet_compress::CodingError;
use eyelet_wire::websocket::{CLOSE_TO_CLIENT, close_to_server};
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, StatusCode, request, response};

use super::boundary::Boundary;
use super::exchange_error::ExchangeError;
use super::head::Length;
use super::served_connection::{ServedConnection, Written};
use super::stream::Stream;
use super::transfer::{Broken, Download, Upload};
use super::upstream::Upstream;
use eyelet_telemetry::reason::{Limit, Reason};

const ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");
const KEY: HeaderName = HeaderName::from_static("sec-websocket-key");

/// Turns an extended CONNECT into the GET that an HTTP/1.1 upstream knows (RFC 6455 4.1). Returns
/// the protocol to ask for.
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

/// Ends both directions by close frames if both are between frames.
fn leave(
    stream: &mut Stream<'_>,
    up: &mut Upload<'_>,
    down: &mut Download<'_>,
) -> Result<(), CodingError> {
    if up.is_between_frames()
        && down.is_between_frames()
        && let Some(mask) = eyelet_sys::process::random()
    {
        up.end_with(&close_to_server(mask));
        down.end_with(&CLOSE_TO_CLIENT, stream)?;
    }
    Ok(())
}

/// Why a copy ended before both directions had.
pub enum CopyEnd {
    /// By the client.
    Client(ExchangeError),
    /// By the upstream, or after `idle_timeout` without a byte.
    Other(Reason),
}

/// Copies both ways until the upstream has ended its stream.
pub async fn copy(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    mut upstream: Upstream,
    written: &Written<'_>,
) -> Result<(), CopyEnd> {
    let idle_timeout = served.worker.shared.config.limits.idle_timeout;
    let mut up = Upload::new(&served.worker, written, BytesMut::new(), Length::UntilClose, false);
    let mut down = Download::new(&served.worker, written, Length::UntilClose);
    up.follow(Boundary::of_frames());
    down.follow(Boundary::of_frames());
    let mut shut_down = false;
    let mut moved = Instant::now();
    let progress_wait = served.progress_wait().min(idle_timeout);
    stream.due_in(progress_wait);
    poll_fn(|task| {
        if (stream.poll_ends(task).is_ready() || served.is_removed())
            && leave(stream, &mut up, &mut down).is_err()
        {
            return Poll::Ready(Err(CopyEnd::Other(Reason::CodingFailed)));
        }
        let before = (up.written, down.taken);
        if let Poll::Ready(Err(exchange_error)) = up.poll(task, stream, &mut upstream) {
            return Poll::Ready(Err(CopyEnd::Client(exchange_error)));
        }
        if up.done && !shut_down {
            // The close frame was sent before, so an error does not matter.
            shut_down = upstream.poll_shutdown(task).is_ready();
        }
        match down.poll(task, stream, &mut upstream) {
            Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
            Poll::Ready(Err(Broken::Client(exchange_error))) => {
                return Poll::Ready(Err(CopyEnd::Client(exchange_error)));
            }
            Poll::Ready(Err(_)) => return Poll::Ready(Err(CopyEnd::Other(Reason::UpstreamReset))),
            Poll::Pending => {}
        }
        if before != (up.written, down.taken) {
            moved = Instant::now();
            stream.due_in(progress_wait);
        }
        if let Poll::Ready(exchange_error) = stream.poll_closed(task) {
            return Poll::Ready(Err(CopyEnd::Client(exchange_error)));
        }
        while stream.poll_late(task).is_ready() {
            if moved.elapsed() >= idle_timeout {
                return Poll::Ready(Err(CopyEnd::Other(Reason::Timeout(Limit::Idle, None))));
            }
            // Treated like a body that does not move. A silent connection without held bytes is
            // fine.
            let holds = stream.queued() > 0 || stream.is_leaving() || up.is_stalled();
            if holds && let Some(reason) = served.gives_up(moved) {
                return Poll::Ready(Err(CopyEnd::Other(reason)));
            }
            stream.due_in(progress_wait.min(idle_timeout.saturating_sub(moved.elapsed())));
        }
        Poll::Pending
    })
    .await
}

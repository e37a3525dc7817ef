//! Memory for heads and for connections to upstreams: how much a long head takes, and whether there
//! is room.

use std::future::poll_fn;
use std::task::Poll;

use http::{request, response};

use eyelet_config::HttpUpstream;
use eyelet_downstream::client::exchange_error::ExchangeError;
use eyelet_downstream::client::failure::Failure;
use eyelet_downstream::client::io::ClientLost;
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::clock;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_engine::worker::WaitError;
use eyelet_http1::head_bytes::{map_bytes, request_bytes, text_bytes};
use eyelet_memory::budget::{
    Counted, UPSTREAM_HTTP2_BYTES, UPSTREAM_STREAM_BYTES, UPSTREAM_TLS_BYTES,
};
use eyelet_telemetry::reason::Shed;
use eyelet_upstream::windows::STREAM_WINDOW_BYTES;

/// The bytes that a new connection by TLS to an upstream may take a moment later: its state, and
/// the first window of its response. Many are dialled at once, and none of them holds this yet.
const UPSTREAM_NEW_BYTES: usize = UPSTREAM_TLS_BYTES
    + UPSTREAM_HTTP2_BYTES
    + UPSTREAM_STREAM_BYTES
    + STREAM_WINDOW_BYTES as usize;
/// Bytes of a head that a connection's count includes.
const HEAD_BYTES_COUNTED: usize = 4 << 10;
/// Most memory of an ordinary request's head, which is always served. 28 fields take 3 KiB in the
/// map, and 4 KiB of texts, cookies included, exist three times.
const HEAD_BYTES_ORDINARY: usize = 16 << 10;
/// Bytes of a request's head that an HTTP/2 stream's count includes: half of its share for the
/// heads both ways.
const STREAM_HEAD_BYTES_COUNTED: usize = 8 << 10;

/// Counts an HTTP/1.1 request's head if there is room for it. An HTTP/2 head was counted before its
/// stream was served.
pub fn take_request(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    request: &request::Parts,
) -> Result<Counted, Failure> {
    let bytes = match stream.as_http1() {
        Some(_) => request_bytes(&request.headers, &request.uri),
        None => 0,
    };
    let budget = &served.http.engine.process.budget;
    if bytes > HEAD_BYTES_ORDINARY && budget.is_tight(bytes) {
        return Err(Failure::no_room(Shed::RequestHead));
    }
    Ok(Counted::new(budget, bytes.saturating_sub(HEAD_BYTES_COUNTED)))
}

/// Counts a response's head, also an interim one, if there is room for it. A queue holds one
/// at a time, and the connection's or stream's count includes an ordinary one.
pub fn take_response(
    served: &ServedConnection,
    response: &response::Parts,
) -> Result<Counted, Failure> {
    let budget = &served.http.engine.process.budget;
    let bytes = map_bytes(&response.headers) + text_bytes(&response.headers);
    let bytes = bytes.saturating_sub(HEAD_BYTES_COUNTED);
    if bytes > 0 && budget.is_tight(bytes) {
        return Err(Failure::no_room(Shed::ResponseHead));
    }
    Ok(Counted::new(budget, bytes))
}

/// Counts a new connection to an upstream if it is by TLS and there is room for it. Its socket
/// counts it as soon as there is one.
pub fn take_upstream(
    served: &ServedConnection,
    upstream: &HttpUpstream,
) -> Result<Option<Counted>, Failure> {
    let engine = &served.http.engine;
    if upstream.tls.is_none() {
        // The count of an exchange includes it.
        return Ok(None);
    }
    if !engine.make_room_to_grow(served.info.client.ip(), UPSTREAM_NEW_BYTES) {
        return Err(Failure::no_room(Shed::Upstream));
    }
    Ok(Some(Counted::new(&engine.process.budget, UPSTREAM_NEW_BYTES)))
}

/// Waits for room for an interim response's head, as long as for a body that does not move, and
/// counts it. Only a long one waits. It is never dropped: RFC 9110 15.2 requires a proxy to pass it
/// on.
pub async fn wait_for_interim(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    head: &response::Parts,
) -> Result<Counted, Failure> {
    let began = clock::now();
    poll_fn(|task| {
        let failure = match take_response(served, head) {
            Err(failure) if clock::since(began) < served.progress_wait() => failure,
            taken => return Poll::Ready(taken),
        };
        served.http.engine.wants_memory(task);
        if let Poll::Ready(exchange_error) = stream.poll_closed(task) {
            return Poll::Ready(Err(exchange_error.into()));
        }
        match stream.poll_late(task) {
            // The wait has its own deadline, which names the cause.
            Poll::Pending | Poll::Ready(WaitError::Late) => Poll::Pending,
            Poll::Ready(WaitError::Shed) => Poll::Ready(Err(failure)),
            Poll::Ready(wait_error) => {
                Poll::Ready(Err(ExchangeError::ClientLost(ClientLost::Wait(wait_error)).into()))
            }
        }
    })
    .await
}

/// Bytes that the head of an HTTP/2 request takes beyond its stream's count.
pub fn beyond_stream(request: &request::Parts) -> usize {
    let bytes = request_bytes(&request.headers, &request.uri);
    bytes.saturating_sub(STREAM_HEAD_BYTES_COUNTED)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use http::Uri;
    use http::header::{HeaderMap, HeaderName, HeaderValue};

    use super::*;

    /// A browser's request is never refused on a connection that is served.
    #[test]
    fn a_browsers_request_is_ordinary() {
        let mut fields = HeaderMap::with_capacity(26);
        for n in 0..21 {
            let name = HeaderName::try_from(format!("sec-ch-ua-{n}")).unwrap();
            fields.insert(name, HeaderValue::from_static("\"a browser\";v=\"140\""));
        }
        fields.insert("cookie", "s=1".repeat(1_000).try_into().unwrap());
        let bytes = request_bytes(&fields, &Uri::from_static("https://app.example/a/page?q=1"));
        assert!(bytes > HEAD_BYTES_COUNTED, "{bytes}");
        assert!(bytes <= HEAD_BYTES_ORDINARY, "{bytes}");
    }
}

//! Room for heads: how much memory a long one takes, and whether it is there.
//! It must not know what a head says.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Instant;

use http::header::HeaderMap;
use http::{Uri, request, response};

use super::failure::Failure;
use super::front::Front;
use super::io::Gone;
use super::stream::{Stream, Trouble};
use crate::active::Stop;
use eyelet_memory::budget::Counted;

/// A field in the map of the `http` crate: hash, name, value and links make 104 bytes, and its
/// index at most 8. The capacity is counted, for the map grows by doubling.
const FIELD_BYTES: usize = 112;
/// Another value of a name that is there: value and two links make 72 bytes, in a vector that
/// grows by doubling.
const EXTRA_VALUE_BYTES: usize = 144;
/// What a field counts for beyond its name and value (RFC 9113 6.5.2).
const LISTED_BYTES_MIN: usize = 32;
/// The longest field that one byte may name: the table is as long by default (RFC 7541 4.2).
const TABLE_BYTES: usize = 4 << 10;
/// How often the texts of a request's head are here: in its fields, and as the upstream is sent
/// them, in a buffer that grows by doubling.
const HEAD_COPIES: usize = 3;
/// Bytes of a head that a connection is counted as.
const HEAD_BYTES_COUNTED: usize = 4 << 10;
/// What an ordinary request's head takes at the most. It is served wherever its connection is: 28
/// fields take 3 KiB in the map, and 4 KiB of texts, cookies among them, are here three times.
const HEAD_BYTES_ORDINARY: usize = 16 << 10;
/// Bytes of a request's head that an HTTP/2 stream is counted as: half of what it is counted as
/// for the heads both ways.
const STREAM_HEAD_BYTES_COUNTED: usize = 8 << 10;

/// Counts a request's head by HTTP/1.1 if there is room for it. By HTTP/2 it was counted before
/// the stream was served.
pub fn take_request(
    front: &Front,
    stream: &mut Stream<'_>,
    request: &request::Parts,
) -> Result<Counted, Failure> {
    let bytes = match stream.as_one() {
        Some(_) => request_bytes(&request.headers, &request.uri),
        None => 0,
    };
    let budget = &front.worker.edge.budget;
    if bytes > HEAD_BYTES_ORDINARY && budget.is_tight(bytes) {
        return Err(Failure::no_room("a request's head"));
    }
    Ok(Counted::new(budget, bytes.saturating_sub(HEAD_BYTES_COUNTED)))
}

/// Counts a response's head if there is room for it, an interim one too: the library or the queue
/// has one of them at a time, and what is ordinary is counted with the connection or the stream.
pub fn take_response(front: &Front, response: &response::Parts) -> Result<Counted, Failure> {
    let budget = &front.worker.edge.budget;
    let bytes = map_bytes(&response.headers) + text_bytes(&response.headers);
    let bytes = bytes.saturating_sub(HEAD_BYTES_COUNTED);
    if bytes > 0 && budget.is_tight(bytes) {
        return Err(Failure::no_room("a response's head"));
    }
    Ok(Counted::new(budget, bytes))
}

/// Waits for room for an interim response's head, as long as for a body that does not move, and
/// counts it. Only a long one waits. RFC 9110 15.2 has a proxy pass it on, so it is never left out.
pub async fn wait_for_interim(
    front: &Front,
    stream: &mut Stream<'_>,
    head: &response::Parts,
) -> Result<Counted, Failure> {
    let began = Instant::now();
    poll_fn(|task| {
        let failure = match take_response(front, head) {
            Err(failure) if began.elapsed() < front.patience() => failure,
            taken => return Poll::Ready(taken),
        };
        front.worker.wants_memory(task);
        if let Poll::Ready(trouble) = stream.poll_gone(task) {
            return Poll::Ready(Err(trouble.into()));
        }
        match stream.poll_late(task) {
            // The wait has an end of its own, which names the cause.
            Poll::Pending | Poll::Ready(Stop::Late) => Poll::Pending,
            Poll::Ready(Stop::Shed) => Poll::Ready(Err(failure)),
            Poll::Ready(stop) => Poll::Ready(Err(Trouble::Gone(Gone::Stop(stop)).into())),
        }
    })
    .await
}

/// What the head of an HTTP/2 request takes beyond what its stream is counted as.
pub fn beyond_stream<B>(request: &http::Request<B>) -> usize {
    let bytes = request_bytes(request.headers(), request.uri());
    bytes.saturating_sub(STREAM_HEAD_BYTES_COUNTED)
}

/// Bytes that a request's head takes while it is served. On HTTP/2's wire it may be a thousandth.
fn request_bytes(fields: &HeaderMap, uri: &Uri) -> usize {
    let target = uri.path_and_query().map_or(0, |path| path.as_str().len());
    map_bytes(fields) + HEAD_COPIES * (text_bytes(fields) + target)
}

/// The most that a block of so many bytes on HTTP/2's wire takes when it is decoded. A field has at
/// least one byte there, and counts for at least 32 of what the library takes as a head (RFC 9113
/// 6.5.2). The map has room for twice as many fields as are in it, as it grows by doubling.
pub fn decoded(block_bytes: usize, head_bytes_max: usize) -> usize {
    let fields = block_bytes.min(head_bytes_max / LISTED_BYTES_MIN);
    let texts = block_bytes.saturating_mul(TABLE_BYTES).min(head_bytes_max);
    fields * 2 * FIELD_BYTES + texts
}

/// Bytes of a map of fields beside their texts.
fn map_bytes(fields: &HeaderMap) -> usize {
    let extra = fields.len() - fields.keys_len();
    fields.capacity() * FIELD_BYTES + extra * EXTRA_VALUE_BYTES
}

/// Bytes of names and values, as if they were shared with nothing.
fn text_bytes(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use http::header::{HeaderName, HeaderValue};

    use super::*;

    /// A browser's request is not refused on a connection that is served.
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

    /// What is counted for a block is no less than what becomes of it.
    #[test]
    fn trailers_take_no_more_than_is_counted() {
        let mut fields = HeaderMap::new();
        for n in 0..1_700 {
            let name = HeaderName::try_from(format!("x{n}")).unwrap();
            fields.insert(name, HeaderValue::from_static(""));
        }
        let taken = map_bytes(&fields) + text_bytes(&fields);
        assert!(taken <= decoded(1_700 * 8, 64 << 10), "{taken}");
        // One byte may name the longest field of the table.
        assert!(decoded(15, 64 << 10) >= 15 * (4 << 10));
        assert!(decoded(1 << 20, 64 << 10) <= 1 << 20);
    }
}

//! Chooses a response's coding, by its head and by the first bytes of its body.

use std::future::poll_fn;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{header, response};

use super::transfer::Download;
use crate::client::exchange_error::ExchangeError;
use crate::client::failure::Failure;
use crate::client::io::ClientLost;
use crate::client::stream::Stream;
use crate::connection::decoding::Decoding;
use crate::connection::served_connection::ServedConnection;
use eyelet_engine::handle::WaitError;
use eyelet_http1::boundary::Boundary;
use eyelet_http1::fault::ResponseFault;
use eyelet_http1::head::Length;
use eyelet_recoding::{BodyInfo, RequestCodings};
use eyelet_upstream::Upstream;

/// How long a response's head waits for the first bytes of its body.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// Chooses the coding of a response: one with a body by its first bytes as well. Returns the length
/// of the body as it will be sent. `None`: it cannot be decoded, and may be asked for again.
pub async fn choose(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    (download, upstream, length): (&mut Download<'_>, &mut Upstream, Length),
    (wanted, parts): (&RequestCodings, &mut response::Parts),
    is_uploaded: bool,
) -> Result<Option<Length>, Failure> {
    let compressors = &served.worker.compressors;
    if length == Length::Empty {
        download.through(compressors.response(wanted, parts, None, &[]));
        return Ok(Some(length));
    }
    // Not before the request's body is sent: the response's body may wait for it.
    let wait = || is_uploaded && compressors.wants_first(wanted, parts, known(length));
    let here = first(served, stream, download, upstream, wait).await?;
    if compressors.is_of_other(wanted, parts, &here.0) {
        return Ok(None);
    }
    match begin(served, wanted, parts, length, download, here) {
        Err(ResponseFault::NoRoom) if compressors.can_repeat(wanted) => Ok(None),
        begun => Ok(Some(begun?)),
    }
}

/// The first bytes of a body, to choose its coding by. If none are here and it `may_wait`, this
/// waits for them for [`FIRST_WAIT`]. A head that comes long before its body is passed on alone.
async fn first(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    download: &mut Download<'_>,
    upstream: &mut Upstream,
    may_wait: impl Fn() -> bool,
) -> Result<(Bytes, bool), Failure> {
    let mut wait = None;
    poll_fn(|task| {
        loop {
            if let Poll::Ready(first) = download.poll_first(task, upstream) {
                return Poll::Ready(first.map_err(Failure::from));
            }
            // Checked only here, as most bodies have arrived by now.
            if wait.is_none() && may_wait() {
                stream.due_in(FIRST_WAIT.min(served.worker.shared.config.http.body_timeout));
                wait = Some(true);
            }
            if wait != Some(true) {
                return Poll::Ready(Ok((Bytes::new(), false)));
            }
            if let Poll::Ready(exchange_error) = stream.poll_closed(task) {
                return Poll::Ready(Err(exchange_error.into()));
            }
            match ready!(stream.poll_late(task)) {
                WaitError::Late => wait = Some(false),
                wait_error => {
                    return Poll::Ready(Err(ExchangeError::ClientLost(ClientLost::Wait(
                        wait_error,
                    ))
                    .into()));
                }
            }
        }
    })
    .await
}

/// The body's length, if its head gives one.
fn known(length: Length) -> Option<u64> {
    match length {
        Length::Known(bytes) => Some(bytes),
        Length::Empty | Length::Chunked | Length::UntilClose => None,
    }
}

/// Chooses the response's coding. Returns the length of the body as it will be sent.
///
/// # Errors
/// There is no memory to decode the body.
fn begin(
    served: &ServedConnection,
    wanted: &RequestCodings,
    head: &mut response::Parts,
    length: Length,
    download: &mut Download<'_>,
    (first, complete): (Bytes, bool),
) -> Result<Length, ResponseFault> {
    let body = BodyInfo { length: known(length), complete };
    // Before they are coded here, and after they are decoded, the bytes have a boundary. A body
    // with a length ends by itself.
    let before = known(length).is_none().then(|| Boundary::of_body(&head.headers));
    let mut coder = served.worker.compressors.response(wanted, head, Some(body), &first);
    let budget = &served.worker.engine.process.budget;
    let decoding = |undone| Decoding::new(undone, budget, &served.decoders);
    let undone = coder.take_undone().map(decoding).transpose()?;
    let (is_coded, is_undone) = (!coder.is_identity(), undone.is_some());
    download.through(coder);
    if let Some(decoding) = undone {
        download.follow(Boundary::of_body(&head.headers));
        download.decode(decoding);
    } else if let Some(before) = before {
        download.follow(before);
    }
    if !is_coded && !is_undone {
        return Ok(length);
    }
    head.headers.remove(header::CONTENT_LENGTH);
    Ok(Length::Chunked)
}

//! Chooses a response's coding, by its head and by the first bytes of its body.

use std::future::poll_fn;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{header, response};

use super::boundary::Boundary;
use super::exchange_error::ExchangeError;
use super::failure::Failure;
use super::head::Length;
use super::io::ClientLost;
use super::served_connection::ServedConnection;
use super::stream::Stream;
use super::transfer::Download;
use super::upstream::Upstream;
use crate::compress::{BodyInfo, Compressors, RequestCodings};
use eyelet_engine::handle::WaitError;

/// How long a response's head waits for the first bytes of its body.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The first bytes of a body, to choose its coding by. If none are here and it `may_wait`, this
/// waits for them for [`FIRST_WAIT`]. A head that comes long before its body is passed on alone.
pub async fn first(
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
pub fn known(length: Length) -> Option<u64> {
    match length {
        Length::Known(bytes) => Some(bytes),
        Length::Empty | Length::Chunked | Length::UntilClose => None,
    }
}

/// Chooses the response's coding. Returns the length of the body as it will be sent.
pub fn begin(
    compressors: &Compressors,
    wanted: &RequestCodings,
    head: &mut response::Parts,
    length: Length,
    download: &mut Download<'_>,
    (first, complete): (Bytes, bool),
) -> Length {
    if known(length).is_none() {
        download.follow(Boundary::of_body(&head.headers));
    }
    let body = BodyInfo { length: known(length), complete };
    let coder = compressors.response(wanted, head, Some(body), &first);
    let coded = !coder.is_identity();
    download.through(coder);
    if !coded {
        return length;
    }
    head.headers.remove(header::CONTENT_LENGTH);
    Length::Chunked
}

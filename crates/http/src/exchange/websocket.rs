//! WebSocket over HTTP/2 (RFC 8441): the upstream gets the request by HTTP/1.1, and after its 101
//! bytes are copied.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use eyelet_compress::CodingError;
use eyelet_compress::fields::lists;
use eyelet_wire::websocket::{CLOSE_TO_CLIENT, close_to_server};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{StatusCode, response};

use super::Exchange;
use super::passing::Passing;
use super::transfer::{Broken, Download, Upload};
use eyelet_downstream::client::exchange_error::ExchangeError;
use eyelet_downstream::client::failure::Failure;
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::clock;
use eyelet_downstream::connection::date::stamp;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_http1::fault::{RequestFault, ResponseFault};
use eyelet_resting::timeout::RestTimeout;
use eyelet_telemetry::reason::{Limit, Reason};
use eyelet_upstream::Upstream;

const ACCEPT: HeaderName = header::SEC_WEBSOCKET_ACCEPT;
const KEY: HeaderName = header::SEC_WEBSOCKET_KEY;

/// Checks the 101 of an upstream that has switched to `websocket`, as RFC 6455 section 4.1 has its
/// client do it. An HTTP/2 client cannot: it has sent no key, and it does not see the fields of the
/// hop. `asked` are the fields that the upstream got.
pub fn check(asked: &HeaderMap, head: &response::Parts) -> Result<(), ResponseFault> {
    let said = &head.headers;
    if !lists(said, &header::CONNECTION, "upgrade") {
        return Err(ResponseFault::NoUpgrade);
    }
    let key = asked.get(KEY).map(HeaderValue::as_bytes).unwrap_or_default();
    let mut accepts = said.get_all(ACCEPT).iter();
    match (accepts.next(), accepts.next()) {
        (Some(accept), None) if accept.as_bytes() == accept_of(key).as_bytes() => {}
        _ => return Err(ResponseFault::Accept),
    }
    let offered = |field| elements(asked, field).collect::<Vec<_>>();
    let protocols = said.get_all(header::SEC_WEBSOCKET_PROTOCOL);
    let offered_protocols = offered(&header::SEC_WEBSOCKET_PROTOCOL);
    let mut chosen = protocols.iter().map(HeaderValue::as_bytes);
    if chosen.next().is_some_and(|chosen| !offered_protocols.contains(&chosen))
        || chosen.next().is_some()
    {
        return Err(ResponseFault::Unoffered);
    }
    let extensions = offered(&header::SEC_WEBSOCKET_EXTENSIONS);
    let is_offered = |chosen: &[u8]| {
        extensions.iter().any(|one| name_of(one).eq_ignore_ascii_case(name_of(chosen)))
    };
    match elements(said, &header::SEC_WEBSOCKET_EXTENSIONS).all(is_offered) {
        true => Ok(()),
        false => Err(ResponseFault::Unoffered),
    }
}

/// The value by which the upstream proves that it has read this WebSocket key.
fn accept_of(key: &[u8]) -> String {
    let text = [key, b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"].concat();
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &text))
}

/// The elements of a field's lines. A parameter's value is a token, also within quotes, so that it
/// has no comma (RFC 6455 section 9.1).
fn elements<'a>(
    headers: &'a HeaderMap,
    field: &'a HeaderName,
) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let lines = headers.get_all(field).iter().map(HeaderValue::as_bytes);
    lines.flat_map(|line| line.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// An extension without its parameters.
fn name_of(extension: &[u8]) -> &[u8] {
    extension.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

/// Turns the upstream's 101 into HTTP/2's form, which is a final response.
pub fn to_ok(head: &mut response::Parts) {
    head.status = StatusCode::OK;
    head.headers.remove(header::CONNECTION);
    head.headers.remove(header::UPGRADE);
    head.headers.remove(ACCEPT);
    stamp(head);
}

/// Ends the directions that are open by close frames, if each is between two frames.
fn leave(
    stream: &mut Stream<'_>,
    up: &mut Upload<'_>,
    down: &mut Download<'_>,
) -> Result<(), CodingError> {
    if !up.may_end() || !down.may_end() {
        return Ok(());
    }
    if !up.has_ended()
        && let Some(mask) = eyelet_sys::process::random()
    {
        up.end_with(&close_to_server(mask));
    }
    if !down.has_ended() {
        down.end_with(&CLOSE_TO_CLIENT, stream)?;
    }
    Ok(())
}

/// Copies both ways until both have ended, or nothing moves and it rests: returns since when.
/// END_STREAM of one side becomes the FIN of the other. Nothing has moved `since` then, if it
/// rested.
pub async fn copy(
    Exchange { served, stream, .. }: &mut Exchange<'_, '_>,
    Passing { found, upload: up, download: down, .. }: &mut Passing<'_>,
    since: Option<Instant>,
) -> Result<Option<Instant>, Failure> {
    let upstream = &mut found.upstream;
    let idle_timeout = served.http.shared.config.limits.idle_timeout;
    // The end of a side that rested is passed on.
    let (mut up_over, mut down_over) = (up.done, down.has_ended());
    let mut moved = since.unwrap_or_else(clock::now);
    let progress_wait = served.progress_wait().min(idle_timeout);
    // It may rest before it is checked.
    let first_wait = || progress_wait.min(served.http.engine.rest_after());
    stream.due_in(first_wait().min(idle_timeout.saturating_sub(clock::since(moved))));
    poll_fn(|task| {
        let is_to_end = stream.poll_ends(task).is_ready() || served.is_removed();
        if is_to_end && leave(stream, up, down).is_err() {
            return Poll::Ready(Err(Failure::Cut(Reason::CodingFailed)));
        }
        let before = (up.written, down.taken);
        // What an upstream does not take any more is read and dropped.
        if !up_over || up.broken {
            up_over = match poll_up(task, stream, upstream, up) {
                // The client has all that the upstream had to say.
                Poll::Ready(Err(_)) if down_over => true,
                Poll::Ready(Err(exchange_error)) => {
                    return Poll::Ready(Err(exchange_error.into()));
                }
                passed => passed.is_ready(),
            };
        }
        if !down_over {
            down_over = poll_down(task, stream, upstream, down)?.is_ready();
        }
        if up_over && down_over {
            return Poll::Ready(Ok(None));
        }
        if before != (up.written, down.taken) {
            moved = clock::now();
            stream.due_in(first_wait());
        }
        if let Poll::Ready(exchange_error) = stream.poll_closed(task) {
            return Poll::Ready(Err(exchange_error.into()));
        }
        let may_rest = !is_to_end && is_quiet(served, stream, moved);
        let may_rest = may_rest && is_up_settled(up, up_over);
        if stream.rests_now(may_rest && is_down_settled(upstream, down, down_over)) {
            return Poll::Ready(Ok(Some(moved)));
        }
        while stream.poll_late(task).is_ready() {
            if clock::since(moved) >= idle_timeout {
                return Poll::Ready(Err(Failure::Cut(Reason::Timeout(Limit::Idle, None))));
            }
            // Treated like a body that does not move. A silent connection without held bytes is
            // fine, unless it is to end and waits for its client alone.
            let is_leaving = stream.is_leaving() && !down_over;
            let holds =
                stream.queued() > 0 || is_leaving || up.is_stalled() || is_to_end && down_over;
            if holds
                && clock::since(moved) >= progress_wait
                && let Some(reason) = served.gives_up(moved, RestTimeout::Body)
            {
                return Poll::Ready(Err(Failure::Cut(reason)));
            }
            stream.due_in(progress_wait.min(idle_timeout.saturating_sub(clock::since(moved))));
        }
        Poll::Pending
    })
    .await
}

/// True if nothing has moved for long enough, and the client's side may rest.
fn is_quiet(served: &ServedConnection, stream: &Stream<'_>, moved: Instant) -> bool {
    let engine = &served.http.engine;
    let is_due =
        engine.rests_at_once() || stream.is_late() && clock::since(moved) >= engine.rest_after();
    let is_over = || clock::since(moved) >= served.http.shared.config.limits.idle_timeout;
    is_due && !is_over() && !engine.is_draining() && stream.rests().is_some()
}

/// True if all that has come from the client is passed on, its end too.
fn is_up_settled(up: &Upload<'_>, is_over: bool) -> bool {
    if is_over { up.done && !up.broken } else { up.may_rest_open() }
}

/// True if all that has come from the upstream is passed on, its end too.
fn is_down_settled(upstream: &Upstream, down: &Download<'_>, is_over: bool) -> bool {
    let Upstream::Http1(upstream) = upstream else { return false };
    let received = &upstream.received;
    upstream.may_rest(is_over) && received.is_empty() && (is_over || down.may_rest(received))
}

/// Moves the upstream's bytes, and passes their end on. Ready when that is done.
fn poll_down(
    task: &mut Context<'_>,
    stream: &mut Stream<'_>,
    upstream: &mut Upstream,
    down: &mut Download<'_>,
) -> Poll<Result<(), Failure>> {
    down.poll(task, stream, upstream).map_err(|broken| match broken {
        Broken::Client(exchange_error) => exchange_error.into(),
        Broken::Coding | Broken::Upstream(_) => Failure::Cut(Reason::UpstreamReset),
    })
}

/// Moves the client's bytes, and passes their end on. Ready when that is done, or when the upstream
/// takes no more.
fn poll_up(
    task: &mut Context<'_>,
    stream: &mut Stream<'_>,
    upstream: &mut Upstream,
    up: &mut Upload<'_>,
) -> Poll<Result<(), ExchangeError>> {
    loop {
        match ready!(up.poll(task, stream, upstream)) {
            // The end of the client's stream ends this direction, as by HTTP/1.1.
            Err(ExchangeError::Request(RequestFault::Cut)) => up.end_with(b""),
            Err(exchange_error) => return Poll::Ready(Err(exchange_error)),
            Ok(()) if up.broken => return Poll::Ready(Ok(())),
            // An error does not matter: nothing follows.
            Ok(()) => return upstream.poll_shutdown(task).map(Ok),
        }
    }
}

#[cfg(test)]
mod tests;

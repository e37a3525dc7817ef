//! One request and its response, for either version of HTTP: checks the request, passes it to the
//! upstream, returns the response, and writes the access line.

mod coding;
pub mod end;
mod find;
mod request_body;
mod retry;
pub mod room;
pub mod switched;
pub mod transfer;
mod websocket;

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use eyelet_compress::Coding;
use eyelet_compress::fields::lists;
use http::{Method, StatusCode, header, request, response};

use self::switched::Switched;
use crate::client::exchange_error::ExchangeError;
use crate::client::failure::{Failure, NoHead, status};
use crate::client::head::asks_for_websocket;
use crate::client::io::ClientLost;
use crate::client::request_check::{check, may_be_sent_again};
use crate::client::stream::Stream;
use crate::connection::date::to_client;
use crate::connection::originate::{self, Translation};
use crate::connection::reason::request_reason;
use crate::connection::served_connection::{Record, RequestLogEntry, ServedConnection, Written};
use coding::choose;
use end::ExchangeEnd;
use eyelet_engine::event_loop::others_first;
use eyelet_engine::handle::WaitError;
use eyelet_http1::fault::{RequestFault, ResponseFault};
use eyelet_http1::fields;
use eyelet_http1::head::{Length, Response, SPARE_FIELDS_MAX, give_back};
use eyelet_recoding::RequestCodings;
use eyelet_telemetry::reason::{Detail, Limit, Reason};
use eyelet_telemetry::request::Coded;
use eyelet_upstream::request::{BodyCodings, NoAnswer, UpstreamRequest};
use eyelet_upstream::{Upstream, http1};
use find::{Chosen, FoundUpstream, Want, find};
use request_body::RequestCoding;
use retry::Tries;
use transfer::{Broken, Download, Upload};

/// Interim responses to one request: each is a TLS record to the client.
const INTERIM_MAX: usize = 100;

/// A request that was made as its client makes it has a response that fits.
const NO_FIT: Failure = Failure::Answer(Reason::Internal("a response was to be asked for twice"));

/// Runs one exchange to its end, and writes its access line. It takes the fields of the request.
/// The request stays where it is, because a move into each future would be a copy.
pub async fn exchange(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    request: &mut request::Parts,
    length: Length,
) -> ExchangeEnd {
    let mut log_entry = RequestLogEntry::new(served, Record::new(served, request), stream.sent());
    let RequestLogEntry { record, written, .. } = &mut log_entry;
    // Counted before cookies are joined: joining reduces the fields but keeps their memory.
    let spare = request.headers.len() <= SPARE_FIELDS_MAX;
    let done = match serve(served, stream, request, length, record, written).await {
        Ok(done) => done,
        // Boxed, as all rare branches: an exchange is as large as its largest branch.
        Err(failure) => Box::pin(fail(served, stream, &request.method, failure, record)).await,
    };
    if spare {
        give_back(std::mem::take(&mut request.headers));
    }
    log_entry.end();
    done
}

async fn fail(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    method: &Method,
    failure: Failure,
    record: &mut Record,
) -> ExchangeEnd {
    record.failed = true;
    let status = match failure {
        Failure::Answer(reason) => {
            record.reason = reason;
            status(&record.reason)
        }
        Failure::Client(ExchangeError::Request(fault)) => {
            record.reason = request_reason(fault);
            stream.close_after();
            fault.status()
        }
        Failure::Client(exchange_error) => {
            record.reason = exchange_error.reason();
            stream.cut();
            return ExchangeEnd { client_lost: true, ..ExchangeEnd::default() };
        }
        Failure::Cut(reason) => {
            record.reason = reason;
            stream.cut();
            return ExchangeEnd { client_lost: true, ..ExchangeEnd::default() };
        }
        Failure::Unprocessed => {
            record.reason = Reason::UpstreamUnread;
            if stream.refuse() {
                return ExchangeEnd { client_lost: true, ..ExchangeEnd::default() };
            }
            status(&record.reason)
        }
    };
    if record.status.is_some() {
        stream.cut();
        return ExchangeEnd { client_lost: true, ..ExchangeEnd::default() };
    }
    // The rest of the request's body was dropped already, so it is no longer counted.
    stream.refuse_rest();
    let client_lost = !answer(served, stream, status, method, record).await;
    ExchangeEnd { client_lost, ..ExchangeEnd::default() }
}

/// Answers with a page of Eyelet. Returns whether the client took it.
pub async fn answer(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    status: StatusCode,
    method: &Method,
    record: &mut Record,
) -> bool {
    if !stream.is_request_done() {
        stream.close_after();
    }
    let (mut head, length, body) = served.page(status, method, &record.reason);
    to_client(&mut head);
    respond(served, stream, head, length, record);
    stream.push(body);
    if length != Length::Empty {
        stream.finish(None);
    }
    let flushed = flush(served, stream).await;
    if let Err(Failure::Cut(reason)) = &flushed {
        record.reason = reason.clone();
    }
    if flushed.is_err() {
        stream.cut();
    }
    flushed.is_ok()
}

/// Queues a response's head with the fields that the configuration sets, and notes its status for
/// the access line.
fn respond(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    mut head: response::Parts,
    length: Length,
    record: &mut Record,
) {
    record.status = Some(head.status.as_u16());
    request_body::offer(served, &mut head, record.failed);
    served.set_fields(&mut head.headers);
    stream.respond(head, length);
}

/// Writes all queued bytes, while the client takes some of them in time.
async fn flush(served: &ServedConnection, stream: &mut Stream<'_>) -> Result<(), Failure> {
    let mut moved = Instant::now();
    stream.due_in(served.progress_wait());
    poll_fn(|task| {
        let before = stream.queued();
        if let Poll::Ready(flushed) = stream.poll_flush(task) {
            return Poll::Ready(flushed.map_err(Failure::from));
        }
        if stream.queued() != before {
            moved = Instant::now();
            stream.due_in(served.progress_wait());
        }
        poll_stalled(task, served, stream, moved).map(Err)
    })
    .await
}

/// Waits until no byte has moved for too long, or other connections need the memory.
fn poll_stalled(
    task: &mut Context<'_>,
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    moved: Instant,
) -> Poll<Failure> {
    while let Poll::Ready(wait_error) = stream.poll_late(task) {
        if matches!(wait_error, WaitError::Shed | WaitError::Ended) {
            return Poll::Ready(ExchangeError::ClientLost(ClientLost::Wait(wait_error)).into());
        }
        match served.gives_up(moved) {
            Some(reason) => return Poll::Ready(Failure::Cut(reason)),
            None => stream.due_in(served.progress_wait()),
        }
    }
    Poll::Pending
}

async fn serve(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    request: &mut request::Parts,
    length: Length,
    record: &mut Record,
    written: &Written<'_>,
) -> Result<ExchangeEnd, Failure> {
    let route = served.route().map_err(Failure::Answer)?;
    let host = check(served, request)?;
    let origin = originate::begin(served.originate(), &host, request).map_err(Failure::Answer)?;
    let host = origin.as_ref().map_or(host.as_str(), |origin| origin.authority());
    let own = served.worker.compressors.answer(route.rule, request);
    if let Some(own) = own.or_else(|| fields::ends_here(request).then(options)) {
        return Box::pin(answer_own(served, stream, &request.method, own, record, written)).await;
    }
    let switch = switch(stream, request, length);
    let trailers = lists(&request.headers, &header::TE, "trailers");
    let (length, decoded_from) =
        to_upstream(served, stream, request, length, switch.clone(), record)?;
    let forwarded = &served.identify_requester(host, request);
    let Some(terminate) = route.requests() else { return Ok(ExchangeEnd::default()) };
    let compressors = &served.worker.compressors;
    let by_one = switch.is_some();
    let again = may_be_sent_again(request, length) && !by_one;
    let mut wanted = match (stream.take_sent(), served.originate()) {
        (Some((sent, wanted)), _) => {
            *request = sent;
            wanted
        }
        (None, Some(_)) => {
            let is_tied = served.is_tied(&request.headers);
            compressors.request_near(route.rule, terminate, (host, is_tied, again), request)
        }
        (None, None) => compressors.request(route.rule, terminate, host, request),
    };
    let coded = request_body::coded(served, request, length, host);
    let body = BodyCodings { coded: coded.as_deref(), decoded_from };
    let asked =
        UpstreamRequest { parts: request, body, host, forwarded, length, trailers, again, by_one };
    let _counted = room::take_request(served, stream, request)?;
    let terms = (origin.as_ref(), switch.as_ref());
    let end = ask_and_pass(served, stream, asked, &wanted, terms, (&mut *record, written)).await?;
    if let Some(end) = end {
        return Ok(end);
    }
    let Some(parts) = compressors.again(&mut wanted, request) else { return Err(NO_FIT) };
    let asked = UpstreamRequest { parts: &parts, ..asked };
    let end = ask_and_pass(served, stream, asked, &wanted, terms, (record, written));
    Box::pin(end).await?.ok_or(NO_FIT)
}

/// Asks an upstream and passes its response on. `None`: nothing was passed on, because the response
/// does not fit the client; the request may be made again.
async fn ask_and_pass(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    asked: UpstreamRequest<'_>,
    wanted: &RequestCodings,
    (origin, switch): (Option<&Translation<'_>>, Option<&http::HeaderValue>),
    (record, written): (&mut Record, &Written<'_>),
) -> Result<Option<ExchangeEnd>, Failure> {
    // The exchange counts as open at its upstream as long as `at` lives.
    let Answered { mut upstream, index, chosen: at, mut upload, response } =
        ask(served, stream, asked, record, written).await?;
    let Response { mut parts, length: response_length, .. } = response;
    if served.worker.compressors.is_unfit(wanted, &parts) {
        return Ok(None);
    }
    let _counted = room::take_response(served, &parts)?;
    let chosen = switch.and_then(|wanted| fields::chosen(wanted, &parts));
    let is_switch = parts.status == StatusCode::SWITCHING_PROTOCOLS && chosen.is_some();
    if is_switch && stream.as_one().is_none() {
        websocket::check(&asked.parts.headers, &parts)?;
    }
    to_client(&mut parts);
    originate::to_client(origin, &mut parts.headers);
    if parts.status == StatusCode::SWITCHING_PROTOCOLS {
        let end = Box::pin(switched(served, stream, parts, upstream, chosen, record, written));
        return Ok(Some(end.await?.counted_at(at.as_ref())));
    }
    if stream.as_one().is_none() && switch.is_some() && parts.status.is_success() {
        // A 2xx would tell an HTTP/2 client that the protocols were switched.
        return Err(ResponseFault::Unasked.into());
    }
    if !upload.done || served.why_last().is_some() {
        stream.close_after();
    }
    let mut download = Download::new(&served.worker, written, response_length);
    let from = (&mut download, &mut upstream, response_length);
    let choice = (wanted, &mut parts);
    let Some(length) = choose(served, stream, from, choice, upload.done).await? else {
        return Ok(None);
    };
    others_before_head(stream, &download).await;
    respond(served, stream, parts, length, record);
    let passed = pass_down(served, stream, &mut upstream, &mut upload, &mut download).await?;
    if upload.done && download.is_whole() {
        served.keep(upstream, index);
    }
    passed.end(served, stream).await.map(Some)
}

/// Lets other tasks run before a head is written, so that in HTTP/2 it is sent together with the
/// body. If some of the body is here, the task of an HTTP/2 connection finds both anyway.
async fn others_before_head(stream: &mut Stream<'_>, download: &Download<'_>) {
    if stream.as_one().is_some() || download.waits_for_first() {
        others_first().await;
    }
}

/// The protocol that the client asks to switch to. An extended CONNECT becomes a GET.
fn switch(
    stream: &mut Stream<'_>,
    request: &mut request::Parts,
    length: Length,
) -> Option<http::HeaderValue> {
    match stream.as_one() {
        Some(_) => fields::upgrade(request, length),
        None if asks_for_websocket(request) => websocket::to_get(request),
        None => None,
    }
}

/// Turns a client's request into the upstream's. Returns the length of its body, and the coding
/// that it is decoded from.
fn to_upstream(
    served: &ServedConnection,
    stream: &Stream<'_>,
    request: &mut request::Parts,
    length: Length,
    switch: Option<http::HeaderValue>,
    record: &mut Record,
) -> Result<(Length, Option<Coding>), Failure> {
    let decoded_from = request_body::decoded(served, request, length)?;
    let length = if decoded_from.is_some() { Length::Chunked } else { length };
    fields::to_upstream(request, length, switch);
    served.pass_trace(request, record);
    // `Content-Length: 0` also means that there is no body.
    let has_none = length == Length::Known(0) && stream.is_request_done();
    Ok((if has_none { Length::Empty } else { length }, decoded_from))
}

/// The answer to `OPTIONS *`: the allowed methods.
fn options() -> http::Response<Bytes> {
    let mut response = http::Response::new(Bytes::new());
    response.headers_mut().insert(header::ALLOW, crate::connection::page::ALLOW);
    response.headers_mut().insert(header::CONTENT_LENGTH, 0.into());
    response
}

/// Sends an answer of Eyelet that is no page: a dictionary.
async fn answer_own(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    method: &Method,
    own: http::Response<Bytes>,
    record: &mut Record,
    written: &Written<'_>,
) -> Result<ExchangeEnd, Failure> {
    let (mut head, body) = own.into_parts();
    to_client(&mut head);
    if !stream.is_request_done() {
        stream.close_after();
    }
    record.reason = Reason::Answered;
    let length = match *method {
        Method::HEAD => Length::Empty,
        _ => Length::Known(body.len() as u64),
    };
    respond(served, stream, head, length, record);
    if length != Length::Empty {
        let bytes_sent = body.len() as u64;
        written.note_coded(Coded { bytes_sent, ..Coded::default() });
        stream.push(body);
        stream.finish(None);
    }
    flush(served, stream).await?;
    Ok(ExchangeEnd::default())
}

/// An upstream and its response's head.
struct Answered<'a> {
    upstream: Upstream,
    /// The index of its upstream in the rule.
    index: usize,
    chosen: Option<Chosen>,
    upload: Upload<'a>,
    response: Response,
}

/// Finds a connection, sends the request and waits for the response's head. It tries another
/// connection if the upstream certainly has not processed the request. It also does so if a second
/// try can do nothing twice, and a kept connection was dead or another upstream is left.
async fn ask<'a>(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    mut upstream_request: UpstreamRequest<'_>,
    record: &mut Record,
    written: &'a Written<'_>,
) -> Result<Answered<'a>, Failure> {
    // Others run first, so that an upstream's end is seen. Streams of HTTP/2 began behind them.
    if stream.as_one().is_some() {
        others_first().await;
    }
    let UpstreamRequest { parts, length, .. } = upstream_request;
    let mut tries = Tries::new(&upstream_request);
    loop {
        let want = Want { idle: tries.is_first(), hold: tries.may_hold() };
        let mut found = match stream.take_asked() {
            Some(upstream) => FoundUpstream::asked(served, upstream),
            None => {
                let want = (want, &mut tries.tried);
                match find(served, stream, &upstream_request, want, record).await {
                    // The upstream is gone, and this request may be what ended it.
                    Err(Failure::Answer(_)) if !tries.may_hold() => {
                        return Err(NoAnswer::Dead.into());
                    }
                    found => found?,
                }
            }
        };
        stream.was_asked();
        let upstream = &mut found.upstream;
        served.note_upstream(upstream.name());
        record.note_sent(upstream);
        let (head, chunked) = (upstream.head(&upstream_request), upstream.is_chunked());
        let is_coded = upstream.is_coded(&upstream_request);
        let length = if is_coded { Length::Chunked } else { length };
        let mut upload = Upload::new(&served.worker, written, head, length, chunked);
        upload.recode(RequestCoding::of(served, &upstream_request, is_coded)?);
        upload.taken = tries.take_body(upstream);
        let method = &parts.method;
        let waited = wait_for_head(served, stream, upstream, &mut upload, method, record);
        let why = match waited.await {
            Ok(response) => {
                upload.taken.end_tries();
                if let Some(Chosen { member, .. }) = &found.chosen {
                    member.health.answered(served.worker.engine.now_unix_ms());
                }
                if served.originate().is_some() {
                    upstream.note_coded_bodies(&response.parts, is_coded);
                }
                let FoundUpstream { upstream, index, chosen } = found;
                return Ok(Answered { upstream, index, chosen, upload, response });
            }
            Err(NoHead::Failure(failure)) => return Err(failure),
            Err(NoHead::Upstream(why)) => why,
        };
        tries.body = std::mem::take(&mut upload.taken);
        tries.go_on(why, served, &found, &mut upstream_request)?;
    }
}

async fn wait_for_head(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    upstream: &mut Upstream,
    upload: &mut Upload<'_>,
    method: &Method,
    record: &mut Record,
) -> Result<Response, NoHead> {
    let upstream_timeout = served.worker.shared.config.http.upstream_timeout;
    let (mut began, mut was_polled) = (Instant::now(), false);
    let (mut has_continue, mut has_interim) = (false, false);
    for interim_left in (0..=INTERIM_MAX).rev() {
        let mut wait = |task: &mut Context<'_>| {
            let (was_done, before) = (upload.done, upload.moved());
            if let Poll::Ready(Err(exchange_error)) = upload.poll(task, stream, upstream) {
                return Poll::Ready(Err(exchange_error.into()));
            }
            // Most requests are written at once, and reading the clock costs.
            let again = std::mem::replace(&mut was_polled, true);
            if !again || upload.moved() > before || upload.done && !was_done {
                began = if again { Instant::now() } else { began };
                stream.due_in(if upload.done { upstream_timeout } else { served.progress_wait() });
            }
            let head = poll_head(task, stream, upstream, method);
            if head.is_ready() {
                return head;
            }
            poll_too_late(task, served, stream, upload, upstream, began).map(Err)
        };
        let waited = poll_fn(&mut wait).await;
        // A client that was asked for its body knows of no response yet.
        let is_begun = has_interim || has_continue && !upload.taken.is_whole();
        let response = waited.map_err(|no_head| no_head.after(is_begun))?;
        let is_continue = response.parts.status == StatusCode::CONTINUE;
        (has_continue, has_interim) = (has_continue || is_continue, has_interim || !is_continue);
        if !response.parts.status.is_informational()
            || response.parts.status == StatusCode::SWITCHING_PROTOCOLS
        {
            let logs = served.worker.is_logging();
            let ms = logs.then(|| began.elapsed().as_millis() as u64);
            record.note_answered(response.parts.status, ms);
            return Ok(response);
        }
        if interim_left > 0 && stream.takes_interim() {
            inform(served, stream, response.parts).await?;
            // Interim heads do not extend the upstream's timeout.
            let left = upstream_timeout.saturating_sub(began.elapsed());
            stream.due_in(if upload.done { left } else { served.progress_wait() });
        }
    }
    Err(Failure::from(ResponseFault::Interim).into())
}

/// Passes an interim response on. It is written before the next head is read, so a client that does
/// not read holds up one head, not a hundred.
async fn inform(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    mut head: response::Parts,
) -> Result<(), Failure> {
    let _counted = room::wait_for_interim(served, stream, &head).await?;
    to_client(&mut head);
    stream.inform(head);
    flush(served, stream).await
}

/// The next response head, interim ones included.
fn poll_head(
    task: &mut Context<'_>,
    stream: &mut Stream<'_>,
    upstream: &mut Upstream,
    method: &Method,
) -> Poll<Result<Response, NoHead>> {
    if let Poll::Ready(head) = upstream.poll_head(task, method) {
        return Poll::Ready(head.map_err(NoHead::Upstream));
    }
    if let Poll::Ready(exchange_error) = stream.poll_closed(task) {
        return Poll::Ready(Err(exchange_error.into()));
    }
    Poll::Pending
}

/// Waits until the upstream's timeout ends, or the request's body has not moved for too long. An
/// upstream that stalled is no longer trusted: it may have vanished.
fn poll_too_late(
    task: &mut Context<'_>,
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    upload: &Upload<'_>,
    upstream: &mut Upstream,
    moved: Instant,
) -> Poll<NoHead> {
    while stream.poll_late(task).is_ready() {
        if upload.done {
            upstream.distrust();
            let failure = Failure::Answer(Reason::Timeout(Limit::Upstream, None));
            return Poll::Ready(failure.into());
        }
        match served.gives_up(moved) {
            None => stream.due_in(served.progress_wait()),
            Some(reason @ Reason::Shed(_)) => return Poll::Ready(Failure::Answer(reason).into()),
            // Its socket may have taken the last bytes, but not it.
            Some(_) if upload.is_stalled() || !upstream.takes() => {
                upstream.distrust();
                let failure = Failure::Answer(Reason::Timeout(Limit::UpstreamBody, None));
                return Poll::Ready(failure.into());
            }
            Some(_) => return Poll::Ready(ExchangeError::Request(RequestFault::SlowBody).into()),
        }
    }
    Poll::Pending
}

/// Progress of a response.
#[derive(PartialEq, Eq)]
enum Passed {
    /// The rest no longer needs the upstream.
    Queued,
    /// The client's socket has taken all of it.
    Written,
}

impl Passed {
    /// Waits until the client has taken all of it.
    async fn end(
        self,
        served: &ServedConnection,
        stream: &mut Stream<'_>,
    ) -> Result<ExchangeEnd, Failure> {
        if self == Self::Queued {
            flush(served, stream).await?;
        }
        Ok(ExchangeEnd::default())
    }
}

/// Passes the response's body down, and the rest of the request's body up. It returns before the
/// client has all of it if the upstream is done: other requests can use the upstream meanwhile.
async fn pass_down(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    upstream: &mut Upstream,
    upload: &mut Upload<'_>,
    download: &mut Download<'_>,
) -> Result<Passed, Failure> {
    // Most responses are complete already, and reading the clock costs.
    let mut moved = None;
    poll_fn(|task| {
        let before = (download.taken, stream.queued(), upload.moved());
        // A request body that fails affects only this request.
        if let Poll::Ready(Err(_)) = upload.poll(task, stream, upstream) {
            upload.breaks(stream);
        }
        match download.poll(task, stream, upstream) {
            Poll::Ready(Ok(())) => return Poll::Ready(Ok(Passed::Written)),
            Poll::Pending if upload.done && download.has_ended() => {
                return Poll::Ready(Ok(Passed::Queued));
            }
            Poll::Ready(Err(Broken::Client(exchange_error))) => {
                return Poll::Ready(Err(exchange_error.into()));
            }
            Poll::Ready(Err(Broken::Coding)) => {
                return Poll::Ready(Err(Failure::Cut(Reason::CodingFailed)));
            }
            Poll::Ready(Err(Broken::Upstream(fault))) => {
                return Poll::Ready(Err(Failure::Cut(Reason::Response(Detail::of(fault)))));
            }
            Poll::Pending => {}
        }
        if before != (download.taken, stream.queued(), upload.moved()) {
            moved = None;
        }
        if moved.is_none() {
            stream.due_in(served.progress_wait());
        }
        if let Poll::Ready(exchange_error) = stream.poll_closed(task) {
            return Poll::Ready(Err(exchange_error.into()));
        }
        let moved = *moved.get_or_insert_with(Instant::now);
        poll_stalled(task, served, stream, moved).map(Err)
    })
    .await
}

/// Handles an upstream that has switched protocols. Only a client that asked for it may get the
/// 101.
async fn switched(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    mut head: response::Parts,
    upstream: Upstream,
    chosen: Option<http::HeaderValue>,
    record: &mut Record,
    written: &Written<'_>,
) -> Result<ExchangeEnd, Failure> {
    // HTTP/2 has no 101 (RFC 9113 8.6).
    let (Some(protocol), Upstream::One(upstream)) = (chosen, upstream) else {
        return Err(ResponseFault::Unasked.into());
    };
    record.status = Some(head.status.as_u16());
    record.reason = Reason::SwitchedProtocols;
    let Some(one) = stream.as_one() else {
        return over_two(served, stream, head, upstream, record, written).await;
    };
    let connection = http::HeaderValue::from_static("upgrade");
    head.headers.insert(header::CONNECTION, connection);
    let switched = Some(Switched::new(upstream, &protocol));
    head.headers.insert(header::UPGRADE, protocol);
    one.switch(&head);
    flush(served, stream).await?;
    Ok(ExchangeEnd { switched, ..ExchangeEnd::default() })
}

async fn over_two(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    mut head: response::Parts,
    upstream: Box<http1::Http1Connection>,
    record: &mut Record,
    written: &Written<'_>,
) -> Result<ExchangeEnd, Failure> {
    websocket::to_ok(&mut head);
    respond(served, stream, head, Length::UntilClose, record);
    match websocket::copy(served, stream, Upstream::One(upstream), written).await {
        Ok(()) => Ok(ExchangeEnd::default()),
        Err(websocket::CopyEnd::Client(exchange_error)) => Err(exchange_error.into()),
        Err(websocket::CopyEnd::Other(reason)) => Err(Failure::Cut(reason)),
    }
}

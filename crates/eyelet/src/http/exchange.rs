//! One request and its response: checked, passed to the upstream, answered, told.
//! It must not know which version of HTTP the client speaks.

use std::borrow::Cow;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::{Method, StatusCode, header, request, response};

use super::fault::{RequestFault, ResponseFault};
use super::fields::{self, Asker};
use super::front::{Front, Record};
use super::head::{Length, Response, Scanner, take_response};
use super::page::page;
use super::stream::{Stream, Trouble};
use super::transfer::{Broken, Download, Upload};
use super::upstream::{Upstream, dial};
use super::websocket;
use crate::budget::Counted;
use crate::compress::{Asked, Body, Compressors};

/// What is left when an exchange is over.
#[derive(Default)]
pub struct Done {
    /// The upstream of a connection that has switched protocols.
    pub switched: Option<Upstream>,
    /// The client is gone.
    pub gone: bool,
}

/// Why there is no response of the upstream's to pass on.
enum Failure {
    /// The client's doing: it is gone, or its request is broken.
    Client(Trouble),
    /// An answer of ours, and its cause.
    Answer(StatusCode, Cow<'static, str>),
    /// The response was cut behind its head.
    Cut(Cow<'static, str>),
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        Self::Client(trouble)
    }
}

/// Does an exchange to its end, whatever that is, and writes its access line.
pub async fn exchange(
    front: &Front,
    stream: &mut Stream<'_>,
    request: request::Parts,
    length: Length,
) -> Done {
    let mut record = Record::new(front, &request);
    let method = request.method.clone();
    let sent_before = stream.sent();
    let done = match serve(front, stream, request, length, &mut record).await {
        Ok(done) => done,
        Err(failure) => fail(front, stream, &method, failure, &mut record).await,
    };
    record.bytes_to_client = stream.sent() - sent_before;
    front.bytes_to_upstream.update(|bytes| bytes + record.bytes_to_upstream);
    front.tell(record);
    done
}

async fn fail(
    front: &Front,
    stream: &mut Stream<'_>,
    method: &Method,
    failure: Failure,
    record: &mut Record,
) -> Done {
    record.failed = true;
    let status = match failure {
        Failure::Answer(status, reason) => {
            record.reason = reason;
            status
        }
        Failure::Client(Trouble::Request(fault)) => {
            record.reason = format!("request: {fault}").into();
            stream.close_after();
            fault.status()
        }
        Failure::Client(trouble) => {
            record.reason = trouble.reason().into();
            stream.cut();
            return Done { gone: true, ..Done::default() };
        }
        Failure::Cut(reason) => {
            record.reason = reason;
            stream.cut();
            return Done { gone: true, ..Done::default() };
        }
    };
    if record.told.status.is_some() {
        stream.cut();
        return Done { gone: true, ..Done::default() };
    }
    let gone = answer(front, stream, status, method, record).await.is_err();
    Done { gone, ..Done::default() }
}

/// Answers with a page of ours.
pub async fn answer(
    front: &Front,
    stream: &mut Stream<'_>,
    status: StatusCode,
    method: &Method,
    record: &mut Record,
) -> Result<(), Trouble> {
    if !stream.is_request_done() {
        stream.close_after();
    }
    let (mut head, length, body) = page(status, method);
    fields::to_client(&mut head);
    stream.due_in(front.worker.edge.config.http.body_timeout);
    stream.respond(head, length)?;
    record.told.status = Some(status.as_u16());
    stream.push(body);
    if length != Length::Empty {
        stream.finish(None);
    }
    poll_fn(|task| stream.poll_flush(task)).await
}

async fn serve(
    front: &Front,
    stream: &mut Stream<'_>,
    mut request: request::Parts,
    length: Length,
    record: &mut Record,
) -> Result<Done, Failure> {
    let host = check(front, &request)?;
    if let Some(own) = front.worker.compressors.answer(front.rule, &request) {
        return answer_own(front, stream, &request.method, own, record).await;
    }
    let switch = match stream.as_one() {
        Some(_) => fields::upgrade(&request, length),
        None if websocket::is_asked(&request) => websocket::to_get(&mut request),
        None => None,
    };
    let method = request.method.clone();
    let asker =
        Asker { client: front.story.client.ip(), trusted: front.trusts_client(), host: &host };
    fields::to_upstream(&mut request, length, &asker, switch.clone());
    let Some(terminate) = front.terminate() else { return Ok(Done::default()) };
    let compressors = &front.worker.compressors;
    let wanted = compressors.request(front.rule, terminate, &host, &mut request);
    let head = fields::write_request(&request, &host);
    // It is here three times: read, in fields, and written again.
    let _counted = Counted::new(&front.worker.edge.budget, beyond(3 * head.len()));
    // RFC 9110 9.2.2: what may be sent again without harm, and can be.
    let again = method.is_idempotent() && length == Length::Empty && switch.is_none();
    let answered = ask(front, stream, &method, length, &head, again, record).await?;
    let Answered { mut upstream, mut upload, response } = answered;
    let Response { mut parts, length: response_length, keep_alive } = response;
    fields::to_client(&mut parts);
    if parts.status == StatusCode::SWITCHING_PROTOCOLS {
        return switched(front, stream, parts, upstream, switch, record).await;
    }
    if stream.as_one().is_none() && switch.is_some() && parts.status.is_success() {
        // For HTTP/2's client success would mean that the protocols were switched.
        return Err(ResponseFault::Unasked.into());
    }
    if !upload.done {
        stream.close_after();
    }
    let mut download = Download::new(&front.worker, response_length);
    let length = match response_length {
        Length::Empty => {
            download.through(compressors.response(wanted, &mut parts, None, &[]));
            Length::Empty
        }
        // Not while the request's body is on its way: the response's may wait for it.
        length => {
            let wait = upload.done && matches!(length, Length::Known(_));
            let (first, complete) =
                first(front, stream, &mut download, &mut upstream, wait).await?;
            begin(compressors, wanted, &mut parts, length, &mut download, &first, complete)
        }
    };
    record.told.status = Some(parts.status.as_u16());
    stream.respond(parts, length)?;
    let passed = pass_down(front, stream, &mut upstream, &mut upload, &mut download).await;
    record.bytes_to_upstream += upload.written;
    record.told.coded = download.told();
    passed?;
    if upload.done && keep_alive && upstream.received.is_empty() {
        front.keep_idle(upstream);
    }
    Ok(Done::default())
}

/// What a request's head costs beyond what a connection or a stream is counted as.
fn beyond(bytes: usize) -> usize {
    bytes.saturating_sub(4 << 10)
}

/// What of a body there is to choose its coding by.
async fn first(
    front: &Front,
    stream: &mut Stream<'_>,
    download: &mut Download,
    upstream: &mut Upstream,
    wait: bool,
) -> Result<(Bytes, bool), Failure> {
    stream.due_in(front.worker.edge.config.http.body_timeout);
    poll_fn(|task| {
        if let Poll::Ready(first) = download.poll_first(task, upstream, wait) {
            return Poll::Ready(first.map_err(Failure::from));
        }
        if let Poll::Ready(trouble) = stream.poll_gone(task) {
            return Poll::Ready(Err(trouble.into()));
        }
        stream.poll_late(task).map(|_| {
            let reason = "upstream: body_timeout".into();
            Err(Failure::Answer(StatusCode::GATEWAY_TIMEOUT, reason))
        })
    })
    .await
}

/// Chooses the response's coding; gives the length of its body as it will be sent.
fn begin(
    compressors: &Compressors,
    wanted: Asked,
    head: &mut response::Parts,
    length: Length,
    download: &mut Download,
    first: &[u8],
    complete: bool,
) -> Length {
    let known = match length {
        Length::Known(bytes) => Some(bytes),
        Length::Empty | Length::Chunked | Length::UntilClose => None,
    };
    let body = Body { length: known, complete };
    let coder = compressors.response(wanted, head, Some(body), first);
    let coded = !coder.is_identity();
    download.through(coder);
    if !coded {
        return length;
    }
    head.headers.remove(header::CONTENT_LENGTH);
    Length::Chunked
}

/// An answer of ours that is no page: a dictionary.
async fn answer_own(
    front: &Front,
    stream: &mut Stream<'_>,
    method: &Method,
    own: http::Response<Bytes>,
    record: &mut Record,
) -> Result<Done, Failure> {
    let (mut head, body) = own.into_parts();
    fields::to_client(&mut head);
    if !stream.is_request_done() {
        stream.close_after();
    }
    record.told.status = Some(head.status.as_u16());
    record.reason = "answered by Eyelet".into();
    let length = match *method {
        Method::HEAD => Length::Empty,
        _ => Length::Known(body.len() as u64),
    };
    stream.due_in(front.worker.edge.config.http.body_timeout);
    stream.respond(head, length)?;
    if length != Length::Empty {
        record.told.coded.bytes_sent = body.len() as u64;
        stream.push(body);
        stream.finish(None);
    }
    poll_fn(|task| stream.poll_flush(task)).await?;
    Ok(Done::default())
}

/// What every request must be, before anybody is asked; gives the host to ask for.
fn check(front: &Front, request: &request::Parts) -> Result<String, Failure> {
    if request.method == Method::TRACE {
        // It shows what a proxy adds, cookies among it, and nobody needs it.
        let reason = "TRACE is not passed on".into();
        return Err(Failure::Answer(StatusCode::METHOD_NOT_ALLOWED, reason));
    }
    let Some(authority) = request.uri.authority() else {
        // HTTP/1.0 without Host: the name of the connection is all there is.
        let sni = front.story.decided.sni.as_deref().filter(|sni| !sni.is_empty());
        return match sni {
            Some(sni) => Ok(sni.to_owned()),
            None => Err(Failure::Client(Trouble::Request(RequestFault::Host))),
        };
    };
    if !front.serves(authority) {
        let reason = format!("{} does not lead to this rule", authority.host()).into();
        return Err(Failure::Answer(StatusCode::MISDIRECTED_REQUEST, reason));
    }
    Ok(authority.as_str().to_owned())
}

/// An upstream that has answered.
struct Answered {
    upstream: Upstream,
    upload: Upload,
    response: Response,
}

/// Finds a connection, sends the request and waits for the response's head. A pooled connection
/// that was dead already is no answer: the next one is asked, if nothing can have been done twice.
async fn ask(
    front: &Front,
    stream: &mut Stream<'_>,
    method: &Method,
    length: Length,
    head: &[u8],
    again: bool,
    record: &mut Record,
) -> Result<Answered, Failure> {
    let mut pooled = true;
    loop {
        let idle = if pooled { front.take_idle() } else { None };
        let (mut upstream, first) = match idle {
            Some(upstream) => (upstream, head.to_vec()),
            None => (reach(front, stream, record).await?, [&front.preface, head].concat()),
        };
        front.note_upstream(&upstream.name);
        record.upstream = Some(upstream.name.clone());
        let mut upload = Upload::new(&front.worker, first, length);
        let waited = wait_for_head(front, stream, &mut upstream, &mut upload, method, record);
        let waited = waited.await;
        if waited.is_err() {
            record.bytes_to_upstream += upload.written;
        }
        match waited {
            Ok(response) => return Ok(Answered { upstream, upload, response }),
            Err(NoHead::Failure(failure)) => return Err(failure),
            // Nothing of the body was read from the client where `again` holds.
            Err(NoHead::Dead) if upstream.reused && again => pooled = false,
            Err(NoHead::Dead) => {
                let reason = format!("upstream: {}", ResponseFault::Cut).into();
                return Err(Failure::Answer(StatusCode::BAD_GATEWAY, reason));
            }
        }
    }
}

/// Dials, as long as the client is there.
async fn reach(
    front: &Front,
    stream: &mut Stream<'_>,
    record: &mut Record,
) -> Result<Upstream, Failure> {
    let Some(to) = front.upstream() else {
        return Err(Failure::Answer(StatusCode::BAD_GATEWAY, "no HTTP upstream".into()));
    };
    // The dial has its own bounds.
    stream.due_in(front.worker.edge.config.limits.connect_timeout + to.wait);
    let mut dialling = pin!(dial(&front.worker, to));
    let dialled = poll_fn(|task| {
        if let Poll::Ready(dialled) = dialling.as_mut().poll(task) {
            return Poll::Ready(Ok(dialled));
        }
        stream.poll_gone(task).map(Err)
    });
    dialled.await?.map_err(|failure| {
        record.upstream = Some(failure.name.clone());
        front.note_upstream(&failure.name);
        let status = match failure.late {
            true => StatusCode::GATEWAY_TIMEOUT,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        Failure::Answer(status, format!("upstream: {}", failure.reason).into())
    })
}

enum NoHead {
    /// It was closed before the first byte of a response.
    Dead,
    Failure(Failure),
}

impl From<Failure> for NoHead {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<Trouble> for NoHead {
    fn from(trouble: Trouble) -> Self {
        Self::Failure(Failure::Client(trouble))
    }
}

impl From<ResponseFault> for Failure {
    fn from(fault: ResponseFault) -> Self {
        Self::Answer(StatusCode::BAD_GATEWAY, format!("upstream: {fault}").into())
    }
}

async fn wait_for_head(
    front: &Front,
    stream: &mut Stream<'_>,
    upstream: &mut Upstream,
    upload: &mut Upload,
    method: &Method,
    record: &mut Record,
) -> Result<Response, NoHead> {
    let upstream_timeout = front.worker.edge.config.http.upstream_timeout;
    let mut scanner = Scanner::default();
    let mut began = Instant::now();
    stream.due_in(front.patience());
    loop {
        let mut wait = |task: &mut Context<'_>| {
            let (was_done, before) = (upload.done, upload.written);
            if let Poll::Ready(Err(trouble)) = upload.poll(task, stream, upstream) {
                return Poll::Ready(Err(trouble.into()));
            }
            if upload.done && !was_done {
                began = Instant::now();
                stream.due_in(upstream_timeout);
            } else if upload.written > before {
                began = Instant::now();
                stream.due_in(front.patience());
            }
            let head = poll_head(task, stream, upstream, &mut scanner, method);
            if head.is_ready() {
                return head;
            }
            poll_too_late(task, front, stream, upload, began).map(Err)
        };
        let response = poll_fn(&mut wait).await?;
        if !response.parts.status.is_informational()
            || response.parts.status == StatusCode::SWITCHING_PROTOCOLS
        {
            record.told.upstream_ms = Some(began.elapsed().as_millis() as u64);
            return Ok(response);
        }
        if stream.takes_interim() {
            let mut head = response.parts;
            fields::to_client(&mut head);
            stream.inform(head)?;
            poll_fn(|task| stream.poll_flush(task)).await?;
        }
    }
}

/// The next response's head, interim ones too.
fn poll_head(
    task: &mut Context<'_>,
    stream: &mut Stream<'_>,
    upstream: &mut Upstream,
    scanner: &mut Scanner,
    method: &Method,
) -> Poll<Result<Response, NoHead>> {
    loop {
        match take_response(&mut upstream.received, scanner, method) {
            Ok(Some(response)) => return Poll::Ready(Ok(response)),
            Ok(None) => {}
            Err(fault) => return Poll::Ready(Err(Failure::from(fault).into())),
        }
        match upstream.poll_fill(task) {
            Poll::Pending => break,
            Poll::Ready(Ok(1..)) => {}
            Poll::Ready(_) if upstream.received.is_empty() => {
                return Poll::Ready(Err(NoHead::Dead));
            }
            Poll::Ready(_) => {
                return Poll::Ready(Err(Failure::from(ResponseFault::Cut).into()));
            }
        }
    }
    if let Poll::Ready(trouble) = stream.poll_gone(task) {
        return Poll::Ready(Err(trouble.into()));
    }
    Poll::Pending
}

/// Waits until the upstream has had its time, or the request's body has not moved for too long.
fn poll_too_late(
    task: &mut Context<'_>,
    front: &Front,
    stream: &mut Stream<'_>,
    upload: &Upload,
    moved: Instant,
) -> Poll<NoHead> {
    while stream.poll_late(task).is_ready() {
        if upload.done {
            let reason = "upstream: upstream_timeout".into();
            let failure = Failure::Answer(StatusCode::GATEWAY_TIMEOUT, reason);
            return Poll::Ready(failure.into());
        }
        match front.gives_up(moved) {
            None => stream.due_in(front.patience()),
            Some(reason) if reason.starts_with("shed") => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                return Poll::Ready(Failure::Answer(status, reason.into()).into());
            }
            Some(_) => return Poll::Ready(Trouble::Request(RequestFault::SlowBody).into()),
        }
    }
    Poll::Pending
}

/// The response's body, and what is left of the request's.
async fn pass_down(
    front: &Front,
    stream: &mut Stream<'_>,
    upstream: &mut Upstream,
    upload: &mut Upload,
    download: &mut Download,
) -> Result<(), Failure> {
    let mut moved = Instant::now();
    stream.due_in(front.patience());
    poll_fn(|task| {
        let before = (download.taken, stream.queued(), upload.written);
        // A request whose end does not come any more costs only itself.
        if let Poll::Ready(Err(_)) = upload.poll(task, stream, upstream) {
            upload.broken = true;
        }
        match download.poll(task, stream, upstream) {
            Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
            Poll::Ready(Err(Broken::Client(trouble))) => return Poll::Ready(Err(trouble.into())),
            Poll::Ready(Err(Broken::Coding)) => {
                return Poll::Ready(Err(Failure::Cut("the coding failed".into())));
            }
            Poll::Ready(Err(Broken::Upstream(fault))) => {
                return Poll::Ready(Err(Failure::Cut(format!("upstream: {fault}").into())));
            }
            Poll::Pending => {}
        }
        if before != (download.taken, stream.queued(), upload.written) {
            moved = Instant::now();
            stream.due_in(front.patience());
        }
        if let Poll::Ready(trouble) = stream.poll_gone(task) {
            return Poll::Ready(Err(trouble.into()));
        }
        while stream.poll_late(task).is_ready() {
            match front.gives_up(moved) {
                Some(reason) => return Poll::Ready(Err(Failure::Cut(reason.into()))),
                None => stream.due_in(front.patience()),
            }
        }
        Poll::Pending
    })
    .await
}

/// The upstream has switched protocols, which only a client that asked for it may see.
async fn switched(
    front: &Front,
    stream: &mut Stream<'_>,
    mut head: response::Parts,
    upstream: Upstream,
    asked: Option<http::HeaderValue>,
    record: &mut Record,
) -> Result<Done, Failure> {
    let Some(protocol) = asked else { return Err(ResponseFault::Unasked.into()) };
    record.told.status = Some(head.status.as_u16());
    record.reason = "switched protocols".into();
    stream.due_in(front.worker.edge.config.http.body_timeout);
    let Some(one) = stream.as_one() else {
        return over_two(front, stream, head, upstream, record).await;
    };
    let connection = http::HeaderValue::from_static("upgrade");
    head.headers.insert(header::CONNECTION, connection);
    head.headers.entry(header::UPGRADE).or_insert(protocol);
    one.switch(&head);
    poll_fn(|task| stream.poll_flush(task)).await?;
    Ok(Done { switched: Some(upstream), ..Done::default() })
}

async fn over_two(
    front: &Front,
    stream: &mut Stream<'_>,
    mut head: response::Parts,
    mut upstream: Upstream,
    record: &mut Record,
) -> Result<Done, Failure> {
    websocket::to_ok(&mut head);
    record.told.status = Some(head.status.as_u16());
    stream.respond(head, Length::UntilClose)?;
    let written = &mut record.bytes_to_upstream;
    match websocket::copy(front, stream, &mut upstream, written).await {
        Ok(()) => Ok(Done::default()),
        Err(websocket::End::Client(trouble)) => Err(trouble.into()),
        Err(websocket::End::Other(reason)) => Err(Failure::Cut(reason.into())),
    }
}

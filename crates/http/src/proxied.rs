//! The requests of a client for `http://` URLs, one after another: of a proxy's, or of one that
//! dialled their host and was intercepted. The program decides each of them anew. A connection to
//! an upstream is kept for this client only.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use eyelet_config::{
    Action, Compression, CompressionMode, HttpUpstream, Terminate, TerminateUpstream,
};
use eyelet_engine::shedding::CountedTask;
use eyelet_engine::table::Phase;
use eyelet_engine::worker::Handle;
use eyelet_telemetry::info::{ConnectionInfo, Decided, End, Outcome};
use eyelet_telemetry::reason::{Limit, Reason};
use eyelet_wire::connect::Target;
use http::uri::{Authority, Scheme};
use http::{StatusCode, header};

use crate::exchange::serve::{RequestRefusal, exchange, refuse};
use crate::http1::{self, NextRequest};
use eyelet_downstream::client::io::ClientStream;
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::connection::intermediary::Intermediary;
use eyelet_downstream::connection::reason::request_reason;
use eyelet_downstream::connection::route::Route;
use eyelet_downstream::connection::served_connection::{ByteCounts, ClientInfo, ServedConnection};
use eyelet_downstream::connection::worker::Http;
use eyelet_http1::fault::RequestFault;
use eyelet_http1::head::Request;
use eyelet_upstream::pool::Shelf;

/// The time that a client may take to ask again. Its task stays, because only a connection with TLS
/// or an upstream of its own is parked. A program that downloads asks within a round trip.
const AWAKE: Duration = Duration::from_secs(10);
/// The port of an `http://` URL without one.
const HTTP_PORT: u16 = 80;

/// A client whose requests come in the clear.
pub struct ProxiedClient {
    client: ClientStream,
    bytes_to_upstream: Rc<Cell<u64>>,
    /// The upstream of its last request, and the connections that are kept to it.
    last: Option<(HttpUpstream, Rc<Shelf>)>,
    /// The end of its connection if it asks for no more: any request passed, or all were refused.
    so_far: Option<End>,
    /// The port that an intercepted client has dialled. Its requests name their host by `Host`.
    dialled: Option<u16>,
    _task: CountedTask,
}

/// The refusal of a request, with the message of its rule.
pub struct ProxiedRefusal<'a> {
    /// The reason.
    pub reason: Reason,
    /// The message, if its rule has one.
    pub message: Option<&'a str>,
}

/// A request that was read.
pub struct ProxiedRequest {
    request: Request,
    /// The host and the port of its URL.
    pub target: Target,
}

/// The rule and the upstream of a request.
pub struct ProxiedRoute {
    /// The rule that decided.
    pub rule: u32,
    /// The upstream to dial.
    pub upstream: HttpUpstream,
    /// The PROXY header that the upstream gets first; empty if none.
    pub preface: Vec<u8>,
}

impl ProxiedRequest {
    /// Its `Proxy-Authorization`. Several are read as one that is wrong.
    pub fn authorization(&self) -> Option<&[u8]> {
        let fields = self.request.parts.headers.get_all(header::PROXY_AUTHORIZATION);
        let mut fields = fields.iter();
        match (fields.next(), fields.next()) {
            (Some(_), Some(_)) => Some(&[]),
            (field, _) => field.map(header::HeaderValue::as_bytes),
        }
    }
}

impl ProxiedClient {
    /// A client that has sent these bytes. `destination` is that of its listener's kind, if it has
    /// one.
    pub fn new(
        handle: Handle,
        client: IpAddr,
        destination: Option<SocketAddr>,
        received: &[u8],
    ) -> Self {
        let task = handle.worker.count_task(client);
        Self {
            client: ClientStream::cleartext(handle, received),
            dialled: destination.map(|destination| destination.port()),
            bytes_to_upstream: Rc::default(),
            last: None,
            so_far: None,
            _task: task,
        }
    }

    /// Has a list of connections show the bytes of its requests as they pass.
    pub fn count_live(&self, info: &ConnectionInfo) {
        let live = (&self.bytes_to_upstream, &self.client.bytes_to_client);
        self.client.handle.count_live(info, live);
    }

    /// The next request.
    ///
    /// # Errors
    /// The end of the connection. A malformed request was answered, and the info has nothing of the
    /// request before.
    pub async fn next(
        &mut self,
        http: &Rc<Http>,
        info: &mut ConnectionInfo,
    ) -> Result<ProxiedRequest, End> {
        if self.client.plain.is_empty() {
            // A client that has not asked again is among the first to go when memory is short.
            http.engine.enters(self.client.handle.key(), Phase::HalfOpen);
        }
        let so_far = self.so_far.clone();
        let over = |reason| match so_far {
            Some(End { outcome: Outcome::Spliced, .. }) => {
                End { outcome: Outcome::Spliced, reason }
            }
            Some(refused) => refused,
            None => End::failed(reason),
        };
        let mut request = Request::empty();
        let fault = match http1::next(&mut self.client, http, AWAKE, &mut request).await {
            NextRequest::Request => match target(&request, self.dialled) {
                Ok(target) => return Ok(ProxiedRequest { request, target }),
                Err(fault) => fault,
            },
            NextRequest::Fault(fault) => fault,
            NextRequest::Rest => return Err(over(Reason::Timeout(Limit::Idle, None))),
            NextRequest::End(reason) => return Err(over(reason)),
            NextRequest::ClientLost(client_lost) => return Err(End::failed(client_lost.reason())),
        };
        forget(info);
        let served = self.served(http, info, None, Vec::new());
        http1::refuse(&mut self.client, &served, fault).await;
        Err(End { outcome: Outcome::Refused, reason: request_reason(fault) })
    }

    /// Passes a request on, and its response back.
    ///
    /// # Errors
    /// The end of the connection, if it takes no more requests.
    pub async fn pass(
        &mut self,
        http: &Rc<Http>,
        info: &ConnectionInfo,
        request: ProxiedRequest,
        to: ProxiedRoute,
    ) -> Result<(), End> {
        let ProxiedRoute { rule, upstream, preface } = to;
        let kept = self.last.take().filter(|(last, _)| *last == upstream);
        let shelf = kept.map(|(_, shelf)| shelf).unwrap_or_default();
        self.last = Some((upstream.clone(), shelf.clone()));
        let route = Route::proxied(rule, Arc::new(terminate(upstream)), shelf);
        let served = self.served(http, info, Some(route), preface);
        let Request { mut parts, length, keep_alive, roles, .. } = request.request;
        let for_proxies = parts.headers.keys().filter(|name| is_for_proxies(name));
        for name in for_proxies.cloned().collect::<Vec<_>>() {
            parts.headers.remove(name);
        }
        let close = !keep_alive || served.is_last();
        let mut stream = Stream::one(&mut self.client, length, parts.version, close);
        stream.note_roles(roles);
        let done = exchange(&served, &mut stream, &mut parts, length).await;
        let is_over = done.client_lost || stream.as_http1().is_none_or(|one| one.close);
        let (outcome, reason) = match done.refused {
            Some(reason) => (Outcome::Refused, reason),
            None if done.client_lost => (Outcome::Spliced, Reason::Cut),
            None => (Outcome::Spliced, served.why_last().unwrap_or(Reason::ClosedAfterResponse)),
        };
        self.note(End { outcome, reason }, is_over)
    }

    /// Notes the end of a request. It is that of the connection, too, if that `is_over`.
    fn note(&mut self, end: End, is_over: bool) -> Result<(), End> {
        if self.so_far.as_ref().is_none_or(|end| end.outcome == Outcome::Refused) {
            self.so_far = Some(end.clone());
        }
        if is_over { Err(end) } else { Ok(()) }
    }

    /// Refuses a request, and says why.
    ///
    /// # Errors
    /// The end of the connection, if the client may have sent a body, or asked to close.
    pub async fn refuse(
        &mut self,
        http: &Rc<Http>,
        info: &ConnectionInfo,
        request: ProxiedRequest,
        ProxiedRefusal { reason, message }: ProxiedRefusal<'_>,
    ) -> Result<(), End> {
        let mut served = self.served(http, info, None, Vec::new());
        served.rule.intermediary = Intermediary::Proxy { message: message.map(Into::into) };
        let Request { parts, length, keep_alive, .. } = request.request;
        let mut stream = Stream::one(&mut self.client, length, parts.version, !keep_alive);
        let refusal = RequestRefusal { status: StatusCode::FORBIDDEN, reason: reason.clone() };
        let is_taken = refuse(&served, &mut stream, Some(&parts), refusal).await;
        let is_over = !is_taken || stream.as_http1().is_none_or(|one| one.close);
        self.note(End { outcome: Outcome::Refused, reason }, is_over)
    }

    /// Adds what was moved to the info, and returns the bytes that were not sent.
    pub fn end(mut self, info: &mut ConnectionInfo) -> Vec<u8> {
        info.bytes_to_client += self.client.bytes_to_client.get();
        info.bytes_to_upstream += self.bytes_to_upstream.get();
        self.client.unsent()
    }

    fn served(
        &self,
        http: &Rc<Http>,
        info: &ConnectionInfo,
        route: Option<Route>,
        preface: Vec<u8>,
    ) -> ServedConnection {
        let to_upstream = self.bytes_to_upstream.clone();
        let counts = ByteCounts { to_upstream, to_client: self.client.bytes_to_client.clone() };
        let handle = Rc::downgrade(&self.client.handle);
        let client = ClientInfo { info: info.copy(), preface, counts, handle };
        ServedConnection::proxied(http.clone(), client, route)
    }
}

/// Forgets what was decided of the request before.
pub fn forget(info: &mut ConnectionInfo) {
    let Decided { labels, listener, is_handed, requester, .. } = std::mem::take(&mut info.decided);
    info.decided = Decided { labels, listener, is_handed, requester, ..Decided::default() };
    info.connect = None;
}

/// The host and the port of the request's URL. Only `http://` URLs are for a proxy. An intercepted
/// client has said the port when it dialled, and a request to another one is refused.
fn target(request: &Request, dialled: Option<u16>) -> Result<Target, RequestFault> {
    let uri = &request.parts.uri;
    let (Some(authority), Some(scheme)) = (uri.authority(), uri.scheme()) else {
        return Err(RequestFault::Target);
    };
    let port = match dialled {
        None if *scheme != Scheme::HTTP => return Err(RequestFault::Target),
        None => authority.port_u16().unwrap_or(HTTP_PORT),
        Some(dialled) if authority.port_u16().is_some_and(|said| said != dialled) => {
            return Err(RequestFault::Target);
        }
        Some(dialled) => dialled,
    };
    let named = format!("{}:{port}", Authority::host(authority));
    Target::new(named.as_bytes()).map_err(|_| RequestFault::Target)
}

/// True if a field is for this proxy. A client may switch protocols by CONNECT only.
fn is_for_proxies(name: &header::HeaderName) -> bool {
    name.as_str().starts_with("proxy-") || *name == header::UPGRADE
}

/// Returns what an exchange asks of a rule: nothing but the upstream.
fn terminate(upstream: HttpUpstream) -> Action {
    Action::Terminate(Terminate {
        compression: Compression { mode: CompressionMode::Off, ..Compression::default() },
        ..Terminate::to(TerminateUpstream::Http(upstream))
    })
}

//! An exchange at rest: nothing of it moves, and it waits for its upstream. It knows neither how
//! its client's side is framed nor who keeps it. Packed, it is what a parked connection holds of
//! it, and what another process gets: crates/handover/README.md describes the form.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use eyelet_compress::WhyNot;
use eyelet_http1::body::{Decoder, DecoderPlace, Encoder};
use eyelet_http1::boundary::Boundary;
use eyelet_http1::head::METHOD_BYTES_MAX;
use eyelet_recoding::{RestingCodings, RestingCodingsForm};
use eyelet_telemetry::upstream_tls::UpstreamTlsInfo;
use eyelet_upstream::socket::tls::RestingTls;
use eyelet_wire::websocket::{EXPORT_BYTES, FrameReader};
use http::Method;
use http::uri::{Authority, PathAndQuery};
use serde::{Deserialize, Serialize};

use self::hold::{HoldV1, RestingHold};
use self::origin::RestingOrigin;
use self::ruling::{RestingRuling, RulingV1};
use self::tls::{AgreedV1, TlsV1, no_export};
use self::trace::RestingTrace;

pub mod hold;
pub mod kind;
pub mod link;
pub mod origin;
pub mod ruling;
pub mod timeout;
pub mod tls;
pub mod trace;

/// The version of the form. It stands in the first byte, with bits that say what is behind.
const VERSION: u8 = 1;
const HAS_TLS: u8 = 2;
const HAS_TRACE: u8 = 4;
const IS_SHARED: u8 = 8;
const IS_GRPC: u8 = 16;
const HAS_RULING: u8 = 32;
const IS_HELD: u8 = 64;
const ALL_BITS: u8 = HAS_TLS | HAS_TRACE | IS_SHARED | IS_GRPC | HAS_RULING | IS_HELD;
/// Most bytes that rest undecoded: a chunk's first line, or trailers (`body.rs` of `http1`).
pub const RECEIVED_BYTES_MAX: usize = 16 << 10;
/// Most bytes of a path: each of the characters that the log shows has up to four.
const PATH_BYTES_MAX: usize = 4 * 2048;
/// Upper bound of a request's head that is kept to send it again: half of the memory of an ordinary
/// one that is served (`room.rs` of `http`).
pub const REPEAT_BYTES_MAX: usize = 8 << 10;
/// Most bytes that an exchange has moved: more than any does, and their sums fit.
const MOVED_BYTES_MAX: u64 = 1 << 62;

/// An exchange at rest.
#[derive(Debug)]
pub struct RestingExchange {
    /// The facts for its access line.
    pub facts: RestingFacts,
    /// The step that it goes on with.
    pub state: RestingState,
    /// The connection to its upstream.
    pub connection: KeptConnection,
}

/// The connection to the upstream of an exchange at rest.
#[derive(Debug)]
pub enum KeptConnection {
    /// It has one for itself: TLS on it.
    Own(Option<RestingTls>),
    /// A stream of one that others share: what TLS has agreed on there.
    Shared(Option<Arc<UpstreamTlsInfo>>),
}

impl KeptConnection {
    /// The terms that TLS has agreed on.
    pub fn tls_info(&self) -> Option<&Arc<UpstreamTlsInfo>> {
        match self {
            Self::Own(tls) => tls.as_ref()?.info.as_ref(),
            Self::Shared(info) => info.as_ref(),
        }
    }
}

/// The facts for the access line of an exchange at rest.
#[derive(Debug, Default, PartialEq)]
pub struct RestingFacts {
    /// The time at which it began: milliseconds after its connection was accepted. `None`: there
    /// was no log.
    pub began_ms: Option<u64>,
    /// The request's method.
    pub method: Option<Method>,
    /// The request's path, as far as the log shows it.
    pub path: Option<PathAndQuery>,
    /// The status that the client got.
    pub status: Option<u16>,
    /// Milliseconds until the response's head. Before it: those from its beginning until the wait
    /// for it began.
    pub upstream_ms: Option<u64>,
    /// Bytes written to the upstream.
    pub bytes_to_upstream: u64,
    /// Bytes written to the client.
    pub bytes_to_client: u64,
    /// It counts as gRPC, at whatever step it is.
    pub is_grpc: bool,
    /// The decisions about it that its line tells.
    pub ruling: Option<Box<RestingRuling>>,
    /// Its place in a trace, and what its spans say. Boxed: few have one.
    pub trace: Option<Box<RestingTrace>>,
}

/// The step that an exchange at rest goes on with.
#[derive(Debug, PartialEq)]
pub enum RestingState {
    /// Its upstream has not begun to answer.
    AwaitsHead(RestingWait),
    /// Its response passes down unchanged, and all before is written.
    PassesDown(RestingUpload, RestingDownload),
    /// It is a WebSocket by HTTP/2 (RFC 8441), and all before is written.
    WebSocket(RestingWebSocket),
    /// Its request is held, and no upstream was asked. Boxed: its head is large.
    Held(Box<RestingHold>),
    /// Its connection has switched protocols by HTTP/1.1, and its access line is written. It has no
    /// facts: where the frames of a WebSocket's client and those of its upstream are.
    Switched(Option<[FrameReader; 2]>),
}

impl RestingState {
    /// True if the client has the head of its response.
    pub fn is_answered(&self) -> bool {
        !matches!(self, Self::AwaitsHead(..) | Self::Held(_))
    }

    /// True if its connection has switched protocols by HTTP/1.1.
    pub fn has_switched(&self) -> bool {
        matches!(self, Self::Switched(_))
    }

    /// True if all of the request was read.
    pub fn is_request_done(&self) -> bool {
        match self {
            Self::AwaitsHead(RestingWait { upload, .. }) | Self::PassesDown(upload, _) => {
                *upload == RestingUpload::Sent
            }
            Self::WebSocket(websocket) => websocket.ended == Some(EndedSide::Client),
            Self::Held(hold) => hold.is_whole,
            Self::Switched(_) => true,
        }
    }

    /// True if the upstream has ended its side, and the client has got that end.
    pub fn has_upstream_ended(&self) -> bool {
        self.ended_side() == Some(EndedSide::Upstream)
    }

    fn ended_side(&self) -> Option<EndedSide> {
        match self {
            Self::WebSocket(websocket) => websocket.ended,
            Self::AwaitsHead(..) | Self::Held(_) | Self::PassesDown(..) | Self::Switched(_) => None,
        }
    }

    /// True if TLS to the upstream of an exchange at this step is like that: one side has ended it
    /// where nothing more comes from there.
    fn fits(&self, tls: &RestingTls) -> bool {
        let ended = self.ended_side();
        tls.session.write_closed() == (ended == Some(EndedSide::Client))
            && tls.session.read_closed() == (ended == Some(EndedSide::Upstream))
    }

    /// Bytes of the response's body so far.
    pub fn passed(&self) -> u64 {
        match self {
            Self::AwaitsHead(..) | Self::Held(_) | Self::Switched(_) => 0,
            Self::PassesDown(_, download) => download.passed,
            Self::WebSocket(websocket) => websocket.passed,
        }
    }
}

/// True if TLS goes to the upstream of an exchange in this form.
pub fn has_tls(form: &[u8]) -> bool {
    form.first().is_some_and(|bits| bits & HAS_TLS != 0)
}

/// A request that waits for its response.
#[derive(Debug, PartialEq)]
pub struct RestingWait {
    /// Its body.
    pub upload: RestingUpload,
    /// The codings that its response may have. `None`: the rule has no compression.
    pub codings: Option<RestingCodings>,
    /// Its head as the upstream got it, if it is sent again where that closes without a response:
    /// [`REPEAT_BYTES_MAX`] at most.
    pub repeat: Option<Bytes>,
    /// The authorities that its response is translated by, if an originate rule serves it.
    pub origin: Option<RestingOrigin>,
}

/// A request's body. All that has come of it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestingUpload {
    /// It has ended.
    Sent,
    /// More may come, and the upstream gets it framed so.
    Open(Encoder),
}

/// The side of a WebSocket that has ended. The other one got that end, and goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedSide {
    /// The client's.
    Client,
    /// The upstream's.
    Upstream,
}

/// A WebSocket of which one side at least is open.
#[derive(Debug, PartialEq)]
pub struct RestingWebSocket {
    /// The places in the frames of its client and in those of its upstream.
    pub frames: [FrameReader; 2],
    /// Bytes that the upstream has sent so far.
    pub passed: u64,
    /// The side that has ended.
    pub ended: Option<EndedSide>,
}

/// A response's body that passes down unchanged.
#[derive(Debug, PartialEq)]
pub struct RestingDownload {
    /// The place of its decoder, and the bytes of chunk extensions so far.
    pub place: (DecoderPlace, usize),
    /// Bytes that the decoder has not taken.
    pub received: BytesMut,
    /// The last bytes of an event stream: [`Boundary::Events`].
    pub events: Option<[u8; 3]>,
    /// Bytes of the body so far.
    pub passed: u64,
    /// The reason why it is not coded, for the access line.
    pub why_not: Option<WhyNot>,
}

impl RestingDownload {
    /// Its boundary.
    pub fn boundary(&self) -> Boundary {
        self.events.map_or(Boundary::Unknown, Boundary::Events)
    }
}

/// Version 1 of the form, behind the byte of the version. Its types never change.
#[derive(Deserialize, Serialize)]
struct ExchangeV1<'a> {
    began_ms: Option<u64>,
    method: Option<&'a str>,
    path: Option<&'a str>,
    status: Option<u16>,
    upstream_ms: Option<u64>,
    bytes_to_upstream: u64,
    bytes_to_client: u64,
    #[serde(borrow)]
    state: StateV1<'a>,
}

/// [`RestingState`].
#[derive(Deserialize, Serialize)]
enum StateV1<'a> {
    PassesDown {
        place: PlaceV1,
        extension_bytes: u32,
        received: &'a [u8],
        events: Option<[u8; 3]>,
        passed: u64,
        why_not: Option<&'a str>,
        upload: UploadV1,
    },
    WebSocket {
        frames: [Option<[u8; EXPORT_BYTES]>; 2],
        passed: u64,
    },
    AwaitsHead {
        upload: UploadV1,
        codings: Option<RestingCodingsForm>,
        repeat: Option<&'a [u8]>,
    },
    Switched(Option<[Option<[u8; EXPORT_BYTES]>; 2]>),
    /// A WebSocket whose client has ended its side.
    EndedWebSocket {
        frames: [Option<[u8; EXPORT_BYTES]>; 2],
        passed: u64,
    },
    /// A WebSocket whose upstream has ended its side.
    WebSocketBehindUpstream {
        frames: [Option<[u8; EXPORT_BYTES]>; 2],
        passed: u64,
    },
    /// A request that is held.
    Held(#[serde(borrow)] HoldV1<'a>),
    /// A request of an originate rule that waits for its response.
    AwaitsTranslated {
        upload: UploadV1,
        codings: Option<RestingCodingsForm>,
        repeat: Option<&'a [u8]>,
        client: &'a str,
        upstream: &'a str,
    },
}

/// [`RestingUpload`].
#[derive(Clone, Copy, Deserialize, Serialize)]
enum UploadV1 {
    Sent,
    Plain,
    Chunked,
}

/// [`DecoderPlace`].
#[derive(Clone, Copy, Deserialize, Serialize)]
pub enum PlaceV1 {
    /// So many bytes are left.
    Left(u64),
    /// Its end is that of the connection.
    UntilClose,
    /// Before the size of a chunk.
    Size,
    /// In a chunk, of which so many bytes are left.
    Chunk(u64),
    /// Before the line end behind a chunk.
    ChunkEnd,
    /// In the trailers.
    Trailers,
}

impl RestingExchange {
    /// Appends its form, which may hold secrets.
    pub fn pack(&self, out: &mut Vec<u8>) {
        let Self { facts, state, connection } = self;
        let (tls, agreed) = match connection {
            KeptConnection::Own(tls) => (tls.as_ref(), None),
            KeptConnection::Shared(info) => (None, Some(info)),
        };
        let form = ExchangeV1 {
            began_ms: facts.began_ms,
            method: facts.method.as_ref().map(Method::as_str),
            path: facts.path.as_ref().map(PathAndQuery::as_str),
            status: facts.status,
            upstream_ms: facts.upstream_ms,
            bytes_to_upstream: facts.bytes_to_upstream,
            bytes_to_client: facts.bytes_to_client,
            state: StateV1::of(state),
        };
        let has_tls = if tls.is_some() { HAS_TLS } else { 0 };
        let has_trace = if facts.trace.is_some() { HAS_TRACE } else { 0 };
        let is_shared = if agreed.is_some() { IS_SHARED } else { 0 };
        let is_grpc = if facts.is_grpc { IS_GRPC } else { 0 };
        let is_held = if matches!(state, RestingState::Held(_)) { IS_HELD } else { 0 };
        let has_ruling = if facts.ruling.is_some() { HAS_RULING } else { 0 };
        out.push(VERSION | has_tls | has_trace | is_shared | is_grpc | has_ruling | is_held);
        append(&form, out);
        if let Some(trace) = &facts.trace {
            append(trace, out);
        }
        if let Some(ruling) = &facts.ruling {
            append(&ruling.export(), out);
        }
        if let Some(info) = agreed {
            append(&info.as_deref().map(AgreedV1::of), out);
        }
        // The last one: if the form grew later, it would leave a copy that is not wiped.
        if let Some(tls) = tls {
            append(&TlsV1::of(tls, &mut no_export()), out);
        }
    }

    /// Reads the form. `None`: no exchange rests so, or another version wrote it.
    pub fn unpack(form: &[u8]) -> Option<Self> {
        let (bits, form) = form.split_first()?;
        // At most one of these tells what its upstream is.
        let upstream = bits & (HAS_TLS | IS_SHARED | IS_HELD);
        if bits & !ALL_BITS != VERSION || upstream.count_ones() > 1 {
            return None;
        }
        let (form, mut behind): (ExchangeV1<'_>, _) = postcard::take_from_bytes(form).ok()?;
        let mut exchange = form.exchange()?;
        if matches!(exchange.state, RestingState::Held(_)) != (bits & IS_HELD != 0) {
            return None;
        }
        exchange.facts.is_grpc = bits & IS_GRPC != 0;
        if bits & HAS_TRACE != 0 {
            let (trace, rest): (RestingTrace, _) = postcard::take_from_bytes(behind).ok()?;
            let trace = Some(trace).filter(RestingTrace::is_possible)?;
            (exchange.facts.trace, behind) = (Some(Box::new(trace)), rest);
        }
        if bits & HAS_RULING != 0 {
            let (ruling, rest): (RulingV1<'_>, _) = postcard::take_from_bytes(behind).ok()?;
            (exchange.facts.ruling, behind) = (Some(ruling.ruling()?), rest);
        }
        if bits & HAS_TLS != 0 {
            let (tls, rest): (TlsV1<'_>, _) = postcard::take_from_bytes(behind).ok()?;
            let tls = tls.tls().filter(|tls| exchange.state.fits(tls))?;
            (exchange.connection, behind) = (KeptConnection::Own(Some(tls)), rest);
        }
        if bits & IS_SHARED != 0 {
            let (agreed, rest): (Option<AgreedV1<'_>>, _) =
                postcard::take_from_bytes(behind).ok()?;
            let info = match agreed {
                Some(agreed) => Some(Arc::new(agreed.info()?)),
                None => None,
            };
            (exchange.connection, behind) = (KeptConnection::Shared(info), rest);
        }
        behind.is_empty().then_some(exchange)
    }

    /// True if the exchange of a form is held: it has no upstream.
    pub fn is_held(form: &[u8]) -> bool {
        form.first().is_some_and(|bits| bits & IS_HELD != 0)
    }

    /// True if the exchange of a form has an upstream's socket for itself.
    pub fn has_socket(form: &[u8]) -> bool {
        !Self::is_shared(form) && !Self::is_held(form)
    }

    /// True if the exchange of a form rests on a stream of a connection that others share.
    pub fn is_shared(form: &[u8]) -> bool {
        form.first().is_some_and(|bits| bits & IS_SHARED != 0)
    }
}

/// Appends the form of a value.
pub fn append(value: &impl Serialize, out: &mut Vec<u8>) {
    // The values are plain, so neither step can fail. An empty form would not be read.
    let (at, len) = (out.len(), postcard::experimental::serialized_size(value).unwrap_or(0));
    out.resize(at + len, 0);
    if postcard::to_slice(value, &mut out[at..]).is_err() {
        out.truncate(at);
    }
}

impl ExchangeV1<'_> {
    fn exchange(self) -> Option<RestingExchange> {
        let moved = [self.bytes_to_upstream, self.bytes_to_client];
        let is_long = self.method.is_some_and(|method| method.len() > METHOD_BYTES_MAX)
            || self.path.is_some_and(|path| path.len() > PATH_BYTES_MAX);
        let is_status = self.status.is_none_or(|status| (100..1000).contains(&status));
        if is_long || !is_status || moved.iter().any(|bytes| *bytes > MOVED_BYTES_MAX) {
            return None;
        }
        let method = self.method.map(|method| Method::from_bytes(method.as_bytes()));
        let path = self.path.map(PathAndQuery::try_from);
        let facts = RestingFacts {
            began_ms: self.began_ms,
            method: method.transpose().ok()?,
            path: path.transpose().ok()?,
            status: self.status,
            upstream_ms: self.upstream_ms,
            bytes_to_upstream: self.bytes_to_upstream,
            bytes_to_client: self.bytes_to_client,
            is_grpc: false,
            ruling: None,
            trace: None,
        };
        let state = self.state.state()?;
        // A request that waits has a method, which says how its response is framed, and no status.
        let is_of_facts = state.is_answered() || facts.status.is_none() && facts.method.is_some();
        let connection = KeptConnection::Own(None);
        is_of_facts.then_some(RestingExchange { facts, state, connection })
    }
}

impl<'a> StateV1<'a> {
    fn of(state: &'a RestingState) -> Self {
        match state {
            RestingState::AwaitsHead(RestingWait { upload, codings, repeat, origin }) => {
                let codings = codings.as_ref().map(RestingCodings::export);
                let (upload, repeat) = ((*upload).into(), repeat.as_deref());
                match origin {
                    None => Self::AwaitsHead { upload, codings, repeat },
                    Some(RestingOrigin { client, upstream }) => {
                        Self::AwaitsTranslated { upload, codings, repeat, client, upstream }
                    }
                }
            }
            RestingState::PassesDown(upload, download) => Self::PassesDown {
                place: download.place.0.into(),
                extension_bytes: u32::try_from(download.place.1).unwrap_or(u32::MAX),
                received: &download.received,
                events: download.events,
                passed: download.passed,
                why_not: download.why_not.map(WhyNot::text),
                upload: (*upload).into(),
            },
            RestingState::WebSocket(RestingWebSocket { frames, passed, ended }) => {
                let (frames, passed) = (exports(*frames), *passed);
                match ended {
                    None => Self::WebSocket { frames, passed },
                    Some(EndedSide::Client) => Self::EndedWebSocket { frames, passed },
                    Some(EndedSide::Upstream) => Self::WebSocketBehindUpstream { frames, passed },
                }
            }
            RestingState::Held(hold) => Self::Held(hold.export()),
            RestingState::Switched(frames) => Self::Switched(frames.map(exports)),
        }
    }

    fn state(self) -> Option<RestingState> {
        let (upload, download) = match self {
            Self::AwaitsHead { upload, codings, repeat } => {
                return wait((upload, codings, repeat), None);
            }
            Self::AwaitsTranslated { upload, codings, repeat, client, upstream } => {
                let is_read = [client, upstream].into_iter().all(|authority| {
                    RestingOrigin::takes(authority) && authority.parse::<Authority>().is_ok()
                });
                let origin = RestingOrigin { client: client.into(), upstream: upstream.into() };
                return wait((upload, codings, repeat), Some(origin)).filter(|_| is_read);
            }
            Self::PassesDown {
                place,
                extension_bytes,
                received,
                events,
                passed,
                why_not,
                upload,
            } => {
                let download = RestingDownload {
                    place: (place.into(), usize::try_from(extension_bytes).ok()?),
                    received: BytesMut::from(received),
                    events,
                    passed,
                    // Another release may have others.
                    why_not: why_not.and_then(WhyNot::of_text),
                };
                (upload.into(), download)
            }
            Self::WebSocket { frames, passed } => return websocket(frames, passed, None),
            Self::EndedWebSocket { frames, passed } => {
                return websocket(frames, passed, Some(EndedSide::Client));
            }
            Self::WebSocketBehindUpstream { frames, passed } => {
                return websocket(frames, passed, Some(EndedSide::Upstream));
            }
            Self::Held(form) => return Some(RestingState::Held(Box::new(form.hold()?))),
            Self::Switched(None) => return Some(RestingState::Switched(None)),
            Self::Switched(Some(frames)) => {
                return Some(RestingState::Switched(Some(readers(frames)?)));
            }
        };
        Decoder::at(download.place.0, download.place.1)?;
        let is_short = download.received.len() <= RECEIVED_BYTES_MAX;
        let may_be = is_short && download.passed <= MOVED_BYTES_MAX;
        may_be.then_some(RestingState::PassesDown(upload, download))
    }
}

/// A request that waits. `None`: its codings are not read, or its head is none that is sent again.
fn wait(
    (upload, codings, repeat): (UploadV1, Option<RestingCodingsForm>, Option<&[u8]>),
    origin: Option<RestingOrigin>,
) -> Option<RestingState> {
    let codings = match codings {
        Some(form) => Some(RestingCodings::import(form)?),
        None => None,
    };
    let (upload, repeat) = (upload.into(), repeat.map(Bytes::copy_from_slice));
    // A body is not sent again.
    let may_be = repeat
        .as_ref()
        .is_none_or(|head| head.len() <= REPEAT_BYTES_MAX && upload == RestingUpload::Sent);
    let wait = RestingWait { upload, codings, repeat, origin };
    may_be.then_some(RestingState::AwaitsHead(wait))
}

impl From<RestingUpload> for UploadV1 {
    fn from(upload: RestingUpload) -> Self {
        match upload {
            RestingUpload::Sent => Self::Sent,
            RestingUpload::Open(Encoder::Plain) => Self::Plain,
            RestingUpload::Open(Encoder::Chunked) => Self::Chunked,
        }
    }
}

impl From<UploadV1> for RestingUpload {
    fn from(upload: UploadV1) -> Self {
        match upload {
            UploadV1::Sent => Self::Sent,
            UploadV1::Plain => Self::Open(Encoder::Plain),
            UploadV1::Chunked => Self::Open(Encoder::Chunked),
        }
    }
}

/// Most rest between two frames.
fn exports(frames: [FrameReader; 2]) -> [Option<[u8; EXPORT_BYTES]>; 2] {
    frames.map(|reader| (!reader.is_between()).then(|| reader.export()))
}

/// A WebSocket. `None`: it has moved more than any does, or is at no place of a frame.
fn websocket(
    frames: [Option<[u8; EXPORT_BYTES]>; 2],
    passed: u64,
    ended: Option<EndedSide>,
) -> Option<RestingState> {
    let frames = readers(frames).filter(|_| passed <= MOVED_BYTES_MAX)?;
    Some(RestingState::WebSocket(RestingWebSocket { frames, passed, ended }))
}

fn readers(frames: [Option<[u8; EXPORT_BYTES]>; 2]) -> Option<[FrameReader; 2]> {
    let reader = |frames: Option<_>| match frames {
        Some(bytes) => FrameReader::import(bytes),
        None => Some(FrameReader::default()),
    };
    let [up, down] = frames;
    Some([reader(up)?, reader(down)?])
}

impl From<DecoderPlace> for PlaceV1 {
    fn from(place: DecoderPlace) -> Self {
        match place {
            DecoderPlace::Left(left) => Self::Left(left),
            DecoderPlace::UntilClose => Self::UntilClose,
            DecoderPlace::Size => Self::Size,
            DecoderPlace::Chunk(left) => Self::Chunk(left),
            DecoderPlace::ChunkEnd => Self::ChunkEnd,
            DecoderPlace::Trailers => Self::Trailers,
        }
    }
}

impl From<PlaceV1> for DecoderPlace {
    fn from(place: PlaceV1) -> Self {
        match place {
            PlaceV1::Left(left) => Self::Left(left),
            PlaceV1::UntilClose => Self::UntilClose,
            PlaceV1::Size => Self::Size,
            PlaceV1::Chunk(left) => Self::Chunk(left),
            PlaceV1::ChunkEnd => Self::ChunkEnd,
            PlaceV1::Trailers => Self::Trailers,
        }
    }
}

pub mod end;
#[cfg(test)]
mod tests;

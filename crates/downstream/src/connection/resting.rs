//! An exchange at rest: nothing of it moves, and it waits for its upstream. It knows neither how
//! its client's side is framed nor who keeps it. Packed, it is what a parked connection holds of
//! it, and what another process gets: docs/handover-format.md describes the form.

use bytes::{Bytes, BytesMut};
use eyelet_compress::WhyNot;
use eyelet_http1::body::{Decoder, DecoderPlace, Encoder};
use eyelet_http1::boundary::Boundary;
use eyelet_http1::head::METHOD_BYTES_MAX;
use eyelet_recoding::{RestingCodings, RestingCodingsForm};
use eyelet_wire::websocket::{EXPORT_BYTES, FrameReader};
use http::Method;
use http::uri::PathAndQuery;
use serde::{Deserialize, Serialize};

/// The version of the form. It stands in the first byte.
const VERSION: u8 = 1;
/// Most bytes that rest undecoded: a chunk's first line, or trailers (`body.rs` of `http1`).
pub const RECEIVED_BYTES_MAX: usize = 16 << 10;
/// Most bytes of a path: each of the characters that the log shows has up to four.
const PATH_BYTES_MAX: usize = 4 * 2048;
/// Most bytes of a request's head that are kept to send it again: half of what an ordinary one
/// takes while it is served (`room.rs` of `http`).
pub const REPEAT_BYTES_MAX: usize = 8 << 10;
/// Most bytes that an exchange has moved: more than any does, and their sums fit.
const MOVED_BYTES_MAX: u64 = 1 << 62;

/// An exchange at rest.
#[derive(Debug, PartialEq)]
pub struct RestingExchange {
    /// The facts for its access line.
    pub facts: RestingFacts,
    /// The step that it goes on with.
    pub state: RestingState,
}

/// The facts for the access line of an exchange at rest.
#[derive(Debug, PartialEq)]
pub struct RestingFacts {
    /// When it began: milliseconds after its connection was accepted. `None`: there was no log.
    pub began_ms: Option<u64>,
    /// The request's method.
    pub method: Option<Method>,
    /// The request's path, as far as the log shows it.
    pub path: Option<PathAndQuery>,
    /// The status that the client got.
    pub status: Option<u16>,
    /// Milliseconds until the response's head.
    pub upstream_ms: Option<u64>,
    /// Bytes written to the upstream.
    pub bytes_to_upstream: u64,
    /// Bytes written to the client.
    pub bytes_to_client: u64,
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
}

impl RestingState {
    /// True if the client has the head of its response.
    pub fn is_answered(&self) -> bool {
        !matches!(self, Self::AwaitsHead(..))
    }

    /// True if all of the request was read.
    pub fn is_request_done(&self) -> bool {
        match self {
            Self::AwaitsHead(RestingWait { upload, .. }) | Self::PassesDown(upload, _) => {
                *upload == RestingUpload::Sent
            }
            Self::WebSocket(_) => false,
        }
    }

    /// Bytes of the response's body so far.
    pub fn passed(&self) -> u64 {
        match self {
            Self::AwaitsHead(..) => 0,
            Self::PassesDown(_, download) => download.passed,
            Self::WebSocket(websocket) => websocket.passed,
        }
    }
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
}

/// A request's body. All that has come of it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestingUpload {
    /// It has ended.
    Sent,
    /// More may come, and the upstream gets it framed so.
    Open(Encoder),
}

/// A WebSocket that is open both ways.
#[derive(Debug, PartialEq)]
pub struct RestingWebSocket {
    /// Where the frames of its client and those of its upstream are.
    pub frames: [FrameReader; 2],
    /// Bytes that the upstream has sent so far.
    pub passed: u64,
}

/// A response's body that passes down unchanged.
#[derive(Debug, PartialEq)]
pub struct RestingDownload {
    /// Where its decoder is, and the bytes of chunk extensions so far.
    pub place: (DecoderPlace, usize),
    /// Bytes that the decoder has not taken.
    pub received: BytesMut,
    /// The last bytes of an event stream: [`Boundary::Events`].
    pub events: Option<[u8; 3]>,
    /// Bytes of the body so far.
    pub passed: u64,
    /// Why it is not coded, for the access line.
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
pub(crate) enum PlaceV1 {
    Left(u64),
    UntilClose,
    Size,
    Chunk(u64),
    ChunkEnd,
    Trailers,
}

impl RestingExchange {
    /// Appends its form.
    pub fn pack(&self, out: &mut Vec<u8>) {
        let Self { facts, state } = self;
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
        out.push(VERSION);
        // The values are plain, so neither step can fail. An empty form would not be read.
        let (at, len) = (out.len(), postcard::experimental::serialized_size(&form).unwrap_or(0));
        out.resize(at + len, 0);
        if postcard::to_slice(&form, &mut out[at..]).is_err() {
            out.truncate(at);
        }
    }

    /// Reads the form. `None`: no exchange rests so, or another version wrote it.
    pub fn unpack(form: &[u8]) -> Option<Self> {
        let (&VERSION, form) = form.split_first()? else { return None };
        let (form, behind): (ExchangeV1<'_>, _) = postcard::take_from_bytes(form).ok()?;
        behind.is_empty().then(|| form.exchange()).flatten()
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
        };
        let state = self.state.state()?;
        // A request that waits has a method, which says how its response is framed, and no status.
        let is_of_facts = state.is_answered() || facts.status.is_none() && facts.method.is_some();
        is_of_facts.then_some(RestingExchange { facts, state })
    }
}

impl<'a> StateV1<'a> {
    fn of(state: &'a RestingState) -> Self {
        match state {
            RestingState::AwaitsHead(RestingWait { upload, codings, repeat }) => Self::AwaitsHead {
                upload: (*upload).into(),
                codings: codings.as_ref().map(RestingCodings::export),
                repeat: repeat.as_deref(),
            },
            RestingState::PassesDown(upload, download) => Self::PassesDown {
                place: download.place.0.into(),
                extension_bytes: u32::try_from(download.place.1).unwrap_or(u32::MAX),
                received: &download.received,
                events: download.events,
                passed: download.passed,
                why_not: download.why_not.map(WhyNot::text),
                upload: (*upload).into(),
            },
            // Most rest between two frames.
            RestingState::WebSocket(RestingWebSocket { frames, passed }) => Self::WebSocket {
                frames: frames.map(|reader| (!reader.is_between()).then(|| reader.export())),
                passed: *passed,
            },
        }
    }

    fn state(self) -> Option<RestingState> {
        let (upload, download) = match self {
            Self::AwaitsHead { upload, codings, repeat } => {
                let codings = match codings {
                    Some(form) => Some(RestingCodings::import(form)?),
                    None => None,
                };
                let (upload, repeat) = (upload.into(), repeat.map(Bytes::copy_from_slice));
                // A body is not sent again.
                let may_be = repeat.as_ref().is_none_or(|head| {
                    head.len() <= REPEAT_BYTES_MAX && upload == RestingUpload::Sent
                });
                let wait = RestingWait { upload, codings, repeat };
                return may_be.then_some(RestingState::AwaitsHead(wait));
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
            Self::WebSocket { passed, .. } if passed > MOVED_BYTES_MAX => return None,
            Self::WebSocket { frames: [up, down], passed } => {
                let reader = |frames: Option<_>| match frames {
                    Some(bytes) => FrameReader::import(bytes),
                    None => Some(FrameReader::default()),
                };
                let frames = [reader(up)?, reader(down)?];
                return Some(RestingState::WebSocket(RestingWebSocket { frames, passed }));
            }
        };
        Decoder::at(download.place.0, download.place.1)?;
        let is_short = download.received.len() <= RECEIVED_BYTES_MAX;
        let may_be = is_short && download.passed <= MOVED_BYTES_MAX;
        may_be.then_some(RestingState::PassesDown(upload, download))
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    /// [`events`] in version 1.
    const STORED: &[u8] =
        b"\x01\x01\x90\xbf\x05\x01\x03GET\x01\x12/events?topic=news\x01\xc8\x01\x01\
        \x0c\xac\x02\xf0\xa2\x04\x00\x02\x00\x00\x01x\n\n\xe8\xfb\x03\x01\x0cnot accepted\x00";

    /// [`poll`] in version 1.
    const STORED_POLL: &[u8] = b"\x01\x01\x90\xbf\x05\x01\x03GET\x01\x12/events?topic=news\x00\x00\
        \xac\x02\xf0\xa2\x04\x02\x00\x01\x0c\x01\xe9\x07\x00\xf5\x03\x00\x00\x00\x00\x01\x03GET";

    const PATH: &str = "/events?topic=news";

    fn events(path: &str) -> RestingExchange {
        let facts = RestingFacts {
            began_ms: Some(90_000),
            method: Some(Method::GET),
            path: Some(path.try_into().unwrap()),
            status: Some(200),
            upstream_ms: Some(12),
            bytes_to_upstream: 300,
            bytes_to_client: 70_000,
        };
        let download = RestingDownload {
            place: (DecoderPlace::Size, 0),
            received: BytesMut::new(),
            events: Some(*b"x\n\n"),
            passed: 65_000,
            why_not: Some(WhyNot::NotAccepted),
        };
        RestingExchange { facts, state: RestingState::PassesDown(RestingUpload::Sent, download) }
    }

    fn poll_repeat() -> Option<Bytes> {
        Some(Bytes::from_static(b"GET"))
    }

    /// A request that waits for its response.
    fn poll() -> RestingExchange {
        let facts = RestingFacts { status: None, upstream_ms: None, ..events(PATH).facts };
        let codings = RestingCodings::import((12, Some([1_001, 0, 501, 0, 0, 0, 0])));
        let wait = RestingWait { upload: RestingUpload::Sent, codings, repeat: poll_repeat() };
        RestingExchange { facts, state: RestingState::AwaitsHead(wait) }
    }

    fn packed(exchange: &RestingExchange) -> Vec<u8> {
        let mut form = Vec::new();
        exchange.pack(&mut form);
        form
    }

    /// Bytes of an event stream at rest. With its slot (240), what the slot points to (40) and what
    /// the allocator adds to both, it stays below 400.
    #[test]
    fn an_event_stream_is_small() {
        assert_eq!(packed(&events(PATH)).len(), STORED.len());
        assert_eq!(STORED.len(), 66);
    }

    /// Another process may have written it, of any release since this version.
    #[test]
    fn the_stored_form_is_read_for_ever() {
        let exchange = events(PATH);
        assert_eq!(packed(&exchange), STORED, "version 1 has changed, which it must not");
        assert_eq!(RestingExchange::unpack(STORED), Some(exchange));
        assert_eq!(packed(&poll()), STORED_POLL, "version 1 has changed, which it must not");
        assert_eq!(RestingExchange::unpack(STORED_POLL), Some(poll()));
    }

    /// Bytes of a request that waits: with its slot (240), what the slot points to (40) and what
    /// the allocator adds, a long poll stays far below 600.
    #[test]
    fn a_request_that_waits_is_small() {
        assert_eq!(packed(&poll()).len(), 54, "of which the head has 4");
    }

    #[test]
    fn a_request_that_waits_has_one_form() {
        let wait = |change: &dyn Fn(&mut RestingWait)| {
            let mut exchange = poll();
            let RestingState::AwaitsHead(wait) = &mut exchange.state else { panic!() };
            change(wait);
            exchange
        };
        for upload in [
            RestingUpload::Sent,
            RestingUpload::Open(Encoder::Plain),
            RestingUpload::Open(Encoder::Chunked),
        ] {
            let repeat = || poll_repeat().filter(|_| upload == RestingUpload::Sent);
            for exchange in [
                wait(&|wait| (wait.upload, wait.repeat) = (upload, repeat())),
                wait(&|wait| (wait.upload, wait.repeat, wait.codings) = (upload, None, None)),
            ] {
                let form = packed(&exchange);
                assert_eq!(RestingExchange::unpack(&form), Some(exchange));
                for len in 0..form.len() {
                    assert!(RestingExchange::unpack(&form[..len]).is_none(), "{len}");
                }
            }
        }
        let long = Some(Bytes::from_static(&[b'a'; REPEAT_BYTES_MAX + 1]));
        for exchange in [
            wait(&|wait| wait.upload = RestingUpload::Open(Encoder::Plain)),
            wait(&|wait| wait.repeat.clone_from(&long)),
        ] {
            assert!(RestingExchange::unpack(&packed(&exchange)).is_none());
        }
        let answered = RestingFacts { status: Some(200), ..poll().facts };
        let unknown = RestingFacts { method: None, ..poll().facts };
        for facts in [answered, unknown] {
            let exchange = RestingExchange { facts, ..poll() };
            assert!(RestingExchange::unpack(&packed(&exchange)).is_none());
        }
    }

    #[test]
    fn an_exchange_has_one_form_and_is_the_same_behind_it() {
        for place in [
            DecoderPlace::Left(1 << 40),
            DecoderPlace::UntilClose,
            DecoderPlace::Size,
            DecoderPlace::Chunk(7),
            DecoderPlace::ChunkEnd,
            DecoderPlace::Trailers,
        ] {
            let mut exchange = events("/");
            let RestingState::PassesDown(_, download) = &mut exchange.state else { panic!() };
            (download.place.0, download.received) = (place, BytesMut::from(&b"3;a"[..]));
            let form = packed(&exchange);
            assert_eq!(RestingExchange::unpack(&form).as_ref(), Some(&exchange));
            for len in 0..form.len() {
                assert!(RestingExchange::unpack(&form[..len]).is_none(), "{place:?}: {len}");
            }
            let longer = [&form[..], &[0]].concat();
            assert!(RestingExchange::unpack(&longer).is_none(), "{place:?}");
        }
    }

    #[test]
    fn what_no_exchange_has_is_not_read() {
        let changes: [fn(&mut RestingExchange); 7] = [
            |one| one.facts.status = Some(99),
            |one| one.facts.status = Some(1000),
            |one| one.facts.bytes_to_client = MOVED_BYTES_MAX + 1,
            |one| one.facts.path = Some("/".repeat(PATH_BYTES_MAX + 1).try_into().unwrap()),
            |one| one.facts.method = Method::from_bytes(&[b'A'; METHOD_BYTES_MAX + 1]).ok(),
            |one| {
                let RestingState::PassesDown(_, download) = &mut one.state else { panic!() };
                download.place.0 = DecoderPlace::Chunk(u64::MAX);
            },
            |one| {
                let RestingState::PassesDown(_, download) = &mut one.state else { panic!() };
                download.received = BytesMut::zeroed(RECEIVED_BYTES_MAX + 1);
            },
        ];
        for (nth, change) in changes.into_iter().enumerate() {
            let mut exchange = events("/");
            change(&mut exchange);
            assert!(RestingExchange::unpack(&packed(&exchange)).is_none(), "{nth}");
        }
        assert!(RestingExchange::unpack(&[VERSION + 1]).is_none());
    }

    /// A WebSocket in the middle of a frame both ways, or between two.
    #[test]
    fn a_websocket_has_one_form() {
        let mut part = FrameReader::default();
        part.read(&[0x81, 0x85, 1]);
        for (frames, bytes) in
            [([FrameReader::default(); 2], 46), ([part; 2], 46 + 2 * EXPORT_BYTES)]
        {
            let state = RestingState::WebSocket(RestingWebSocket { frames, passed: 70_000 });
            let exchange = RestingExchange { facts: events(PATH).facts, state };
            let form = packed(&exchange);
            assert_eq!(form.len(), bytes);
            assert_eq!(RestingExchange::unpack(&form), Some(exchange));
            for len in 0..form.len() {
                assert!(RestingExchange::unpack(&form[..len]).is_none(), "{len}");
            }
        }
        let state = RestingWebSocket { frames: [part; 2], passed: MOVED_BYTES_MAX + 1 };
        let facts = events("/").facts;
        let exchange = RestingExchange { facts, state: RestingState::WebSocket(state) };
        assert!(RestingExchange::unpack(&packed(&exchange)).is_none());
    }
}

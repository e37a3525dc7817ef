//! A request's body that is decoded or coded on its way to the upstream: decoded for an
//! application, coded for an upstream that accepts it.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use eyelet_compress::request::{self, RequestBody};
use eyelet_compress::validators::without_digests;
use eyelet_compress::{Coding, CodingError};
use eyelet_engine::worker::Worker;
use http::header::ACCEPT_ENCODING;
use http::{HeaderMap, StatusCode, request::Parts, response};

use eyelet_downstream::client::exchange_error::ExchangeError;
use eyelet_downstream::client::failure::Failure;
use eyelet_downstream::connection::decoding::Decoding;
use eyelet_downstream::connection::route::Route;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_http1::body::Piece;
use eyelet_http1::fault::RequestFault;
use eyelet_http1::head::Length;
use eyelet_http1::write_queue::coded_piece;
use eyelet_recoding::{Compressors, DecodedCoding, UploadCoder};
use eyelet_upstream::request::UpstreamRequest;

/// A body whose coding changes on its way.
pub struct RequestCoding {
    work: Work,
    /// Bytes of the body that were taken from the client, and how many may be.
    taken: u64,
    taken_max: u64,
    /// Bytes that it was decoded to.
    decoded: u64,
    /// Bytes that came from the client and are not released to it: they are held here.
    pub unreleased: usize,
}

enum Work {
    Decode(Decoding),
    Code {
        coder: UploadCoder,
        /// The body's end, with its trailers. It waits for the bytes before it.
        end: Option<Option<HeaderMap>>,
    },
}

impl RequestCoding {
    /// Returns what becomes of the body of a request, if anything. `is_coded`: its upstream expects
    /// it coded.
    ///
    /// # Errors
    /// There is no memory to decode it.
    pub fn of(
        served: &ServedConnection,
        upstream_request: &UpstreamRequest<'_>,
        is_coded: bool,
    ) -> Result<Option<Box<Self>>, Failure> {
        let coding = match upstream_request.body.decoded_from {
            None if !is_coded => return Ok(None),
            None => Self::code(&served.http.compressors),
            Some(coding) => Self::decode(coding, served).map_err(ExchangeError::Request)?,
        };
        Ok(Some(Box::new(coding)))
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// There is no memory for it.
    fn decode(coding: Coding, served: &ServedConnection) -> Result<Self, RequestFault> {
        let budget = &served.http.engine.process.budget;
        // A few bytes of a client make a window of megabytes.
        if budget.is_filling(0) {
            return Err(RequestFault::NoRoom);
        }
        let decoded_coding = DecodedCoding { coding, dictionary: None };
        let decoding = Decoding::new(decoded_coding, budget, &served.decoders);
        let decoding = decoding.map_err(|_| RequestFault::NoRoom)?;
        Ok(Self::new(Work::Decode(decoding)))
    }

    /// Codes a body.
    fn code(compressors: &Compressors) -> Self {
        Self::new(Work::Code { coder: UploadCoder::new(compressors), end: None })
    }

    fn new(work: Work) -> Self {
        Self { work, taken: 0, taken_max: 0, decoded: 0, unreleased: 0 }
    }

    /// Bytes of the body that were taken from the client.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Lets so many more bytes be taken from the client. A body that compresses well takes much and
    /// gives nothing, so its output does not bound the work.
    pub fn allow(&mut self, bytes: u64) {
        self.taken_max = self.taken + bytes;
    }

    /// True if these bytes are taken.
    pub fn is_spent(&self) -> bool {
        self.taken >= self.taken_max
    }

    /// The next piece of the body as it is sent. `read` gives those of the body as it comes. Wakes
    /// its task where the allowed bytes are taken: other tasks run first.
    pub fn poll(
        &mut self,
        task: &mut Context<'_>,
        mut read: impl FnMut(&mut Context<'_>) -> Poll<Result<Piece, ExchangeError>>,
    ) -> Poll<Result<Piece, ExchangeError>> {
        let Self { work, taken, taken_max, decoded, .. } = self;
        let mut read = |task: &mut Context<'_>| -> Poll<Result<Piece, ExchangeError>> {
            if *taken >= *taken_max {
                task.waker().wake_by_ref();
                return Poll::Pending;
            }
            let piece = ready!(read(task))?;
            if let Piece::Data(data) = &piece {
                *taken += data.len() as u64;
            }
            Poll::Ready(Ok(piece))
        };
        match work {
            Work::Decode(decoding) => {
                let piece = ready!(decoding.poll(task, read))?;
                if let Piece::Data(data) = &piece {
                    *decoded += data.len() as u64;
                }
                if request::is_bomb(*taken, *decoded) {
                    return Poll::Ready(Err(ExchangeError::Request(RequestFault::Bomb)));
                }
                Poll::Ready(Ok(piece))
            }
            Work::Code { coder, end } => loop {
                if let Some(trailers) = end.take() {
                    return Poll::Ready(Ok(Piece::End(trailers.and_then(without_digests))));
                }
                let out = match ready!(read(task))? {
                    Piece::Data(data) => coder.push(&data)?,
                    Piece::End(trailers) => {
                        *end = Some(trailers);
                        coder.finish()?
                    }
                };
                if !out.is_empty() {
                    return Poll::Ready(Ok(Piece::Data(coded_piece(out))));
                }
            },
        }
    }

    /// Ends the body if its decoder holds much, and others need that.
    pub fn give_way(&self, task: &Context<'_>, engine: &Worker) -> Result<(), ExchangeError> {
        match &self.work {
            Work::Decode(decoding) => Ok(decoding.give_way(task, engine)?),
            Work::Code { .. } => Ok(()),
        }
    }

    /// Returns what the coder holds back, for when the way to the upstream would be idle otherwise.
    pub fn flush(&mut self) -> Result<Bytes, CodingError> {
        match &mut self.work {
            Work::Decode(_) => Ok(Bytes::new()),
            Work::Code { coder, .. } => coder.flush().map(coded_piece),
        }
    }
}

/// Says which codings are accepted, if the rule decodes. `is_own`: Eyelet has failed the request,
/// and not the application.
pub fn offer(served: &ServedConnection, head: &mut response::Parts, is_own: bool) {
    if served.route().is_ok_and(Route::decodes_requests) && may_offer(head.status, is_own) {
        head.headers.insert(ACCEPT_ENCODING, request::ACCEPTED);
    }
}

/// True if a response of this status may say which codings are accepted. In a 415 it says that the
/// coding was the reason (RFC 7694 section 3), which an application's 415 had not. Eyelet's 503 may
/// come from the lack of memory to decode.
fn may_offer(status: StatusCode, is_own: bool) -> bool {
    match status {
        StatusCode::UNSUPPORTED_MEDIA_TYPE => is_own,
        StatusCode::SERVICE_UNAVAILABLE => !is_own,
        _ => true,
    }
}

/// The coding that a request's body is decoded from, if its rule decodes. Changes its fields.
///
/// # Errors
/// The body has a coding that cannot be decoded (RFC 9110 section 15.5.16).
pub fn decoded(
    served: &ServedConnection,
    parts: &mut Parts,
    length: Length,
) -> Result<Option<Coding>, Failure> {
    if !served.route().is_ok_and(Route::decodes_requests)
        || matches!(length, Length::Empty | Length::Known(0))
    {
        return Ok(None);
    }
    match request::coding(&parts.headers) {
        RequestBody::AsIs => Ok(None),
        RequestBody::Unknown => Err(ExchangeError::Request(RequestFault::ContentCoding).into()),
        RequestBody::Coded(coding) => {
            request::decode(&mut parts.headers);
            Ok(Some(coding))
        }
    }
}

/// The request with its body coded, for an upstream that accepts it, if it may be coded. A response
/// speaks of its own resource only (RFC 7694 section 3), so the rule says that it is so for all.
pub fn coded(
    served: &ServedConnection,
    parts: &Parts,
    length: Length,
    host: &str,
) -> Option<Box<Parts>> {
    let length = match length {
        Length::Known(bytes) => Some(bytes),
        Length::Chunked => None,
        Length::Empty | Length::UntilClose => return None,
    };
    let may_code = served.rule.intermediary.codes_requests();
    if !may_code || !request::may_code(&parts.headers, length, host) {
        return None;
    }
    let mut coded = Box::new(parts.clone());
    request::code(&mut coded.headers);
    Some(coded)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::task::Waker;

    use eyelet_memory::budget::Budget;

    use super::*;
    use eyelet_recoding::SharedDictionaries;

    const PIECE_BYTES: usize = 16 << 10;

    fn compressors() -> Compressors {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edge.toml");
        let text = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[rule]]\naction = \"refuse\"\n";
        std::fs::write(&path, text).unwrap();
        let config = eyelet_config::load(&path, eyelet_config::Depth::Files).unwrap().config;
        let budget = Arc::new(Budget::new(1 << 30, 0));
        let shared = SharedDictionaries::start(&config, &budget).unwrap();
        Compressors::new(&config, &shared, &budget)
    }

    /// Zeros give the coder nothing to send for a long time.
    #[test]
    fn a_client_that_is_always_ready_does_not_keep_the_worker() {
        let mut coding = RequestCoding::code(&compressors());
        let mut task = Context::from_waker(Waker::noop());
        let mut taken = 0;
        for round in 1..=3 {
            let allowed = 256 << 10;
            coding.allow(allowed as u64);
            loop {
                let piece = coding.poll(&mut task, |_| {
                    taken += PIECE_BYTES;
                    assert!(taken <= round * allowed, "{taken} in round {round}");
                    Poll::Ready(Ok(Piece::Data(vec![0; PIECE_BYTES].into())))
                });
                match piece {
                    Poll::Ready(piece) => drop(piece.unwrap()),
                    Poll::Pending => break,
                }
            }
            assert!(coding.is_spent() && taken == round * allowed, "{taken}");
        }
    }

    /// A near edge would take such a 415 for a refusal of its coding.
    #[test]
    fn only_responses_that_mean_it_offer_codings() {
        for (status, is_own, expected) in [
            (200, false, true),
            (415, true, true),
            (415, false, false),
            (503, true, false),
            (503, false, true),
            (400, true, true),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(may_offer(status, is_own), expected, "{status} {is_own}");
        }
    }
}

//! Bodies that rest. Only those that pass unchanged do: a coder's state stays where it is.

use super::{Download, Upload};
use bytes::BytesMut;
use eyelet_compress::WhyNot;
use eyelet_downstream::connection::log_entry::Written;
use eyelet_http1::body::{Decoder, Encoder};
use eyelet_http1::boundary::Boundary;
use eyelet_http1::head::Length;
use eyelet_resting::timeout::RestTimeout;
use eyelet_resting::{
    EndedSide, RECEIVED_BYTES_MAX, RestingDownload, RestingUpload, RestingWebSocket,
};

impl<'a> Upload<'a> {
    /// The upload of a request whose exchange rested. Its head is written.
    pub fn resumed(counts: &'a Written<'a>, resting: RestingUpload) -> Self {
        let (length, is_chunked) = match resting {
            RestingUpload::Sent => (Length::Empty, false),
            RestingUpload::Open(Encoder::Plain) => (Length::UntilClose, false),
            RestingUpload::Open(Encoder::Chunked) => (Length::Chunked, true),
        };
        let mut upload = Self::new(counts, BytesMut::new(), length, is_chunked);
        upload.done = resting == RestingUpload::Sent;
        upload.taken.lose();
        upload
    }

    /// True if all that has come of it is written, and more may come.
    pub fn may_rest_open(&self) -> bool {
        !self.read && !self.broken && self.queue.is_empty() && self.recoded.is_none()
    }

    /// Returns what rests of it. `None`: something of it is on its way, or the upstream takes no
    /// more of it.
    pub fn rest(&self) -> Option<RestingUpload> {
        if self.done && !self.broken {
            return Some(RestingUpload::Sent);
        }
        let is_open = self.may_rest_open() && !self.taken.has_more();
        is_open.then_some(RestingUpload::Open(self.encoder))
    }
}

impl<'a> Download<'a> {
    /// The download of a body that rested.
    pub fn resumed(counts: &'a Written<'a>, resting: &RestingDownload) -> Option<Self> {
        let mut download = Self::new(counts);
        let (place, extension_bytes) = resting.place;
        download.decoder = Decoder::at(place, extension_bytes)?;
        download.boundary = resting.boundary();
        download.why_not = resting.why_not.map(WhyNot::text);
        (download.taken, download.given) = (resting.passed, resting.passed);
        download.has_begun = true;
        Some(download)
    }

    /// True if it may rest with these bytes of it, which the decoder has not taken. A response
    /// without a body has no place to go on from: an HTTP/2 upstream may end its stream later.
    pub fn may_rest(&self, received: &[u8]) -> bool {
        self.is_plain()
            && !self.ended
            && self.decoder.place().is_some()
            && self.taken == self.given
            && received.len() <= RECEIVED_BYTES_MAX
    }

    /// The timeout of a body that may rest with these bytes of it.
    pub fn timeout(&self, received: &[u8]) -> RestTimeout {
        let place = self.decoder.place();
        place.map_or(RestTimeout::Body, |(place, _)| RestTimeout::of_response(place, received))
    }

    /// Returns what rests of it. `None`: it has ended.
    pub fn rest(&mut self, received: BytesMut) -> Option<RestingDownload> {
        let place = self.decoder.place()?;
        let events = match self.boundary {
            Boundary::Events(last) => Some(last),
            Boundary::Unknown | Boundary::Frames(_) => None,
        };
        let why_not = self.coding_info().why_not.and_then(WhyNot::of_text);
        self.has_begun = false;
        Some(RestingDownload { place, received, events, passed: self.taken, why_not })
    }
}

/// Returns what rests of a WebSocket. `None`: it is none.
pub fn rest_websocket(up: &Upload<'_>, down: &mut Download<'_>) -> Option<RestingWebSocket> {
    let frames = [up.boundary.frames()?, down.boundary.frames()?];
    down.has_begun = false;
    let ended = match (up.done, down.ended) {
        (true, _) => Some(EndedSide::Client),
        (false, true) => Some(EndedSide::Upstream),
        (false, false) => None,
    };
    Some(RestingWebSocket { frames, passed: down.taken, ended })
}

/// Both directions of a WebSocket that rested.
pub fn resumed_websocket<'a>(
    counts: &'a Written<'a>,
    &RestingWebSocket { frames: [up, down], passed, ended }: &RestingWebSocket,
) -> (Upload<'a>, Download<'a>) {
    let mut upload = match ended {
        None | Some(EndedSide::Upstream) => {
            Upload::new(counts, BytesMut::new(), Length::UntilClose, false)
        }
        Some(EndedSide::Client) => Upload::resumed(counts, RestingUpload::Sent),
    };
    let mut download = Download::new(counts);
    download.begin(Length::UntilClose);
    upload.follow(Boundary::Frames(up));
    download.follow(Boundary::Frames(down));
    (download.taken, download.given) = (passed, passed);
    download.ended = ended == Some(EndedSide::Upstream);
    (upload, download)
}

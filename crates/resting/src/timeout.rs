//! Timeouts of exchanges that rest: which of them bounds how long nothing moves.

use std::time::Duration;

use eyelet_engine::worker::Settings;
use eyelet_http1::body::DecoderPlace;
use eyelet_telemetry::reason::Limit;

use super::{ExchangeV1, RestingState, RestingUpload, StateV1, UploadV1};

/// The timeout that bounds how long nothing of an exchange moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestTimeout {
    /// `body_timeout`.
    Body,
    /// `hold.timeout`, as it was when the request came.
    Hold(Duration),
    /// `upstream_timeout`: its request is sent, and its response has not begun.
    Upstream,
    /// `idle_timeout`: it is a WebSocket, or has switched protocols, or its response has no known
    /// end, as an event stream: its upstream owes no byte. What its request owes waits as long.
    Idle,
}

impl RestTimeout {
    /// The timeout of a response whose body is at this place, with bytes that are not decoded yet.
    pub fn of_response(place: DecoderPlace, received: &[u8]) -> Self {
        match place.is_open_ended() && received.is_empty() {
            true => Self::Idle,
            false => Self::Body,
        }
    }

    /// Reads the timeout from the form of an exchange, without a copy. `None`: it is no such form.
    pub fn of(form: &[u8]) -> Option<Self> {
        let (form, _): (ExchangeV1<'_>, _) = postcard::take_from_bytes(form.get(1..)?).ok()?;
        Some(match form.state {
            StateV1::AwaitsHead { upload: UploadV1::Sent, .. }
            | StateV1::AwaitsTranslated { upload: UploadV1::Sent, .. } => Self::Upstream,
            StateV1::AwaitsHead { .. } | StateV1::AwaitsTranslated { .. } => Self::Body,
            StateV1::Held(hold) => Self::Hold(hold.wait()),
            StateV1::PassesDown { place, received, .. } => {
                Self::of_response(place.into(), received)
            }
            StateV1::WebSocket { .. }
            | StateV1::EndedWebSocket { .. }
            | StateV1::WebSocketBehindUpstream { .. }
            | StateV1::Switched(_) => Self::Idle,
        })
    }

    /// Its name in the access log.
    pub fn limit(self) -> Limit {
        match self {
            Self::Body => Limit::Body,
            Self::Upstream => Limit::Upstream,
            // Nobody gives up so: the verdict, or that there is none, is the end.
            Self::Hold(_) | Self::Idle => Limit::Idle,
        }
    }

    /// Its value.
    pub fn by(self, settings: &Settings) -> Duration {
        match self {
            Self::Body => settings.body_timeout,
            Self::Upstream => settings.upstream_timeout,
            Self::Hold(wait) => wait,
            Self::Idle => settings.idle_timeout,
        }
    }
}

impl RestingState {
    /// The timeout that bounds how long nothing of it moves.
    pub fn timeout(&self) -> RestTimeout {
        match self {
            Self::AwaitsHead(wait) if wait.upload == RestingUpload::Sent => RestTimeout::Upstream,
            Self::AwaitsHead(_) => RestTimeout::Body,
            Self::PassesDown(_, download) => {
                RestTimeout::of_response(download.place.0, &download.received)
            }
            Self::Held(hold) => RestTimeout::Hold(hold.wait),
            Self::WebSocket(_) | Self::Switched(_) => RestTimeout::Idle,
        }
    }
}

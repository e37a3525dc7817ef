//! The kind of an exchange at rest, read from its form without a copy.

use eyelet_telemetry::listing::ListedRequest;
use eyelet_telemetry::listing::streams::StreamKind;

use super::{ExchangeV1, IS_GRPC, RestingState, StateV1, UploadV1};

/// The kind of an exchange by its form. `None`: it is not read.
pub fn kind_of(form: &[u8]) -> Option<StreamKind> {
    let (bits, form) = form.split_first()?;
    if bits & IS_GRPC != 0 {
        return Some(StreamKind::Grpc);
    }
    let (form, _): (ExchangeV1<'_>, _) = postcard::take_from_bytes(form).ok()?;
    Some(form.state.kind())
}

/// The exchange of a form as a list shows it, with the name of its upstream. `None`: it is not
/// read.
pub fn listed(form: &[u8], upstream: Option<&str>) -> Option<ListedRequest> {
    let (kind, form) = (kind_of(form)?, form.get(1..)?);
    let (form, _): (ExchangeV1<'_>, _) = postcard::take_from_bytes(form).ok()?;
    let (path, upstream) = match &form.state {
        // Without an access log, no other has its path.
        StateV1::Held(hold) => (Some(hold.target()), None),
        _ => (form.path, upstream),
    };
    Some(ListedRequest::new(kind, form.method, path, upstream))
}

/// True if the upstream of the exchange of a form has ended its side: its socket has nothing more.
pub fn has_upstream_ended(form: &[u8]) -> bool {
    let form = form.get(1..).and_then(|form| postcard::take_from_bytes(form).ok());
    form.is_some_and(|(form, _): (ExchangeV1<'_>, _)| {
        matches!(form.state, StateV1::WebSocketBehindUpstream { .. })
    })
}

impl RestingState {
    /// Its kind, where it is not gRPC.
    pub fn kind(&self) -> StreamKind {
        StateV1::of(self).kind()
    }
}

impl StateV1<'_> {
    fn kind(&self) -> StreamKind {
        match self {
            Self::AwaitsHead { upload: UploadV1::Sent, .. }
            | Self::AwaitsTranslated { upload: UploadV1::Sent, .. } => StreamKind::Waiting,
            Self::AwaitsHead { .. } | Self::AwaitsTranslated { .. } => StreamKind::Upload,
            Self::Held(_) => StreamKind::Held,
            Self::PassesDown { events: Some(_), .. } => StreamKind::Events,
            Self::PassesDown { .. } => StreamKind::Response,
            Self::WebSocket { .. }
            | Self::EndedWebSocket { .. }
            | Self::WebSocketBehindUpstream { .. }
            | Self::Switched(Some(_)) => StreamKind::WebSocket,
            Self::Switched(None) => StreamKind::Switched,
        }
    }
}

//! Converts faults of requests, and errors of the HTTP/2 library, into typed reasons.

use eyelet_h2::ErrorCode;
use eyelet_telemetry::reason::{Detail, Http2Failure, Limit, Peer, Reason, Stage, When};

use super::fault::RequestFault;

impl From<RequestFault> for Reason {
    fn from(fault: RequestFault) -> Self {
        match fault {
            RequestFault::Cut => Self::ClientClosed(Some(When::During(Stage::Request))),
            RequestFault::SlowBody => Self::Timeout(Limit::RequestBody, None),
            RequestFault::SlowHead => Self::Timeout(Limit::Head, None),
            other => Self::Request(other.status().as_u16(), Detail::of(other)),
        }
    }
}

/// Why a peer's HTTP/2 connection or stream ended. `received`: the peer sent the code.
pub fn http2_code(peer: Peer, code: ErrorCode, received: bool) -> Reason {
    Reason::Http2(peer, Http2Failure { code: code.0, received })
}

/// Why a peer's HTTP/2 connection or stream ended.
pub fn http2(peer: Peer, error: &h2::Error) -> Reason {
    match (error.get_io(), error.reason(), peer) {
        (Some(error), _, Peer::Client) => Reason::client_io(error, None),
        (Some(error), _, Peer::Upstream) => Reason::upstream_io(error),
        (None, Some(code), _) => {
            let failure = Http2Failure { code: code.into(), received: error.is_remote() };
            Reason::Http2(peer, failure)
        }
        (None, None, _) => Reason::Internal("HTTP/2's library was misused"),
    }
}

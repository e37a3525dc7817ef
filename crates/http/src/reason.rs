//! Converts faults of requests, and error codes of HTTP/2, into typed reasons.

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

//! Converts error codes of HTTP/2 into typed reasons.

use eyelet_h2::ErrorCode;
use eyelet_telemetry::reason::{Http2Failure, Peer, Reason};

/// Returns the reason why a peer's HTTP/2 connection or stream ended. `received`: the peer sent the
/// code.
pub fn http2_code(peer: Peer, code: ErrorCode, received: bool) -> Reason {
    Reason::Http2(peer, Http2Failure { code: code.0, received })
}

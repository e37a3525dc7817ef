//! Converts faults of requests into typed reasons.

use eyelet_http1::fault::RequestFault;
use eyelet_telemetry::reason::{Detail, Limit, Reason, Stage, When};

/// Returns the reason that the access line of a request with this fault has.
pub fn request_reason(fault: RequestFault) -> Reason {
    match fault {
        RequestFault::Cut => Reason::ClientClosed(Some(When::During(Stage::Request))),
        RequestFault::SlowBody => Reason::Timeout(Limit::RequestBody, None),
        RequestFault::SlowHead => Reason::Timeout(Limit::Head, None),
        other => Reason::Request(other.status().as_u16(), Detail::of(other)),
    }
}

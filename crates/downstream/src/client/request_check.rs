//! The checks of a request before an upstream is asked.

use http::uri::Authority;
use http::{Method, request};

use super::exchange_error::ExchangeError;
use super::failure::Failure;
use crate::connection::served_connection::ServedConnection;
use eyelet_http1::fault::RequestFault;
use eyelet_http1::head::Length;
use eyelet_telemetry::reason::Reason;

/// Checks that every request must pass before an upstream is asked. Returns its host.
pub fn check(served: &ServedConnection, request: &request::Parts) -> Result<Authority, Failure> {
    if request.method == Method::TRACE {
        // TRACE shows the fields that a proxy adds, and cookies. No client needs it.
        return Err(Failure::Answer(Reason::Trace));
    }
    let Some(authority) = request.uri.authority() else {
        // For HTTP/1.0 without Host, the connection's name is the only host known.
        let sni = served.info.decided.sni.as_deref().and_then(|sni| sni.parse().ok());
        return sni.ok_or(Failure::Client(ExchangeError::Request(RequestFault::Host)));
    };
    if !served.is_for(authority) {
        let reason = Reason::Misdirected(authority.host().into());
        return Err(Failure::Answer(reason));
    }
    Ok(authority.clone())
}

/// True if sending this request twice is harmless (RFC 9110 9.2.2) and possible.
pub fn may_be_sent_again(request: &request::Parts, length: Length) -> bool {
    request.method.is_idempotent() && length == Length::Empty
}

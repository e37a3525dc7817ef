//! The reasons why an exchange has no response from the upstream, and the response that the client
//! gets instead.

use http::StatusCode;

use super::exchange_error::ExchangeError;
use eyelet_http1::fault::ResponseFault;
use eyelet_telemetry::reason::{Detail, Reason, Shed};
use eyelet_upstream::request::NoAnswer;

/// The reason why there is no response from the upstream to pass on.
pub enum Failure {
    /// By the client: it is gone, or its request is malformed.
    Client(ExchangeError),
    /// Our own response: its cause, which determines the status.
    Answer(Reason),
    /// The response was cut after its head.
    Cut(Reason),
    /// The upstream has not processed the request, and Eyelet cannot send it again. A client of
    /// HTTP/2 can.
    Unprocessed,
}

impl Failure {
    /// Memory is too short for something long.
    pub fn no_room(of: Shed) -> Self {
        Self::Answer(Reason::Shed(of))
    }
}

/// The status for a request that ended for this reason.
pub fn status(reason: &Reason) -> StatusCode {
    StatusCode::from_u16(reason.status()).unwrap_or(StatusCode::BAD_GATEWAY)
}

impl From<ExchangeError> for Failure {
    fn from(exchange_error: ExchangeError) -> Self {
        match exchange_error {
            ExchangeError::Refused(reason) => Self::Answer(reason),
            other => Self::Client(other),
        }
    }
}

impl From<ResponseFault> for Failure {
    fn from(fault: ResponseFault) -> Self {
        Self::Answer(Reason::Response(Detail::of(fault)))
    }
}

impl From<NoAnswer> for Failure {
    fn from(why: NoAnswer) -> Self {
        Self::Answer(why.into())
    }
}

/// The reason why there is no response head.
pub enum NoHead {
    /// The exchange has failed.
    Failure(Failure),
    /// This upstream gave none; another may.
    Upstream(NoAnswer),
}

impl NoHead {
    /// This failure, or one after an interim response: the upstream has begun to answer, and the
    /// client may know it, so that no other one is asked.
    pub fn after(self, has_interim: bool) -> Self {
        match self {
            Self::Upstream(why) if has_interim => Self::Failure(why.into()),
            other => other,
        }
    }
}

impl From<Failure> for NoHead {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<ExchangeError> for NoHead {
    fn from(exchange_error: ExchangeError) -> Self {
        Self::Failure(exchange_error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_not_repeated_after_an_interim_response() {
        for why in [NoAnswer::Dead, NoAnswer::Http1Wanted, NoAnswer::Unread] {
            assert!(matches!(NoHead::Upstream(why).after(true), NoHead::Failure(_)));
        }
        let before = NoHead::Upstream(NoAnswer::Dead).after(false);
        assert!(matches!(before, NoHead::Upstream(NoAnswer::Dead)));
    }
}

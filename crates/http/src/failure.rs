//! Why an exchange has no response of the upstream's to pass on, and which answer that is.
//! It must not know how an exchange is done.

use std::borrow::Cow;

use http::StatusCode;

use super::fault::ResponseFault;
use super::stream::Trouble;
use super::upstream::question::NoAnswer;

/// Why there is no response of the upstream's to pass on.
pub enum Failure {
    /// The client's doing: it is gone, or its request is broken.
    Client(Trouble),
    /// An answer of ours, and its cause.
    Answer(StatusCode, Cow<'static, str>),
    /// The response was cut behind its head.
    Cut(Cow<'static, str>),
}

impl Failure {
    /// Memory is too short for something long.
    pub fn no_room(of: &str) -> Self {
        Self::Answer(StatusCode::SERVICE_UNAVAILABLE, format!("shed: memory_max, {of}").into())
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        Self::Client(trouble)
    }
}

impl From<ResponseFault> for Failure {
    fn from(fault: ResponseFault) -> Self {
        Self::Answer(StatusCode::BAD_GATEWAY, format!("upstream: {fault}").into())
    }
}

impl From<NoAnswer> for Failure {
    fn from(why: NoAnswer) -> Self {
        let (status, reason) = match why {
            NoAnswer::NoRoom => return Self::no_room("a response's head"),
            NoAnswer::Broken(reason) => (StatusCode::BAD_GATEWAY, reason),
            NoAnswer::Dead => return ResponseFault::Cut.into(),
            NoAnswer::Fault(fault) => return fault.into(),
            NoAnswer::OneWanted => (StatusCode::BAD_GATEWAY, "it wants HTTP/1.1".to_owned()),
            NoAnswer::Unread => {
                (StatusCode::SERVICE_UNAVAILABLE, "the request was not taken".to_owned())
            }
        };
        Self::Answer(status, format!("upstream: {reason}").into())
    }
}

/// Why there is no head of a response.
pub enum NoHead {
    /// The exchange has failed.
    Failure(Failure),
    /// The upstream gives none: another may.
    Upstream(NoAnswer),
}

impl From<Failure> for NoHead {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<Trouble> for NoHead {
    fn from(trouble: Trouble) -> Self {
        Self::Failure(Failure::Client(trouble))
    }
}

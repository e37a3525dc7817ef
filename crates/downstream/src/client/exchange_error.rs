//! The reasons why an exchange cannot continue: its client is gone, its request is malformed, or
//! its HTTP/2 stream was reset.

use super::io::ClientLost;
use crate::connection::decoding::NotDecoded;
use crate::connection::reason::request_reason;
use eyelet_compress::CodingError;
use eyelet_engine::worker::WaitError;
use eyelet_http1::fault::RequestFault;
use eyelet_telemetry::reason::{Http2Failure, Peer, Reason, Stage, When};

/// The reason why an exchange cannot continue.
#[derive(Debug)]
pub enum ExchangeError {
    /// The client is gone.
    ClientLost(ClientLost),
    /// The request's body could not be coded.
    Coding,
    /// The client has ended its stream, and the HTTP/2 response waits for a WINDOW_UPDATE.
    NoWindow,
    /// The request is refused, after it began.
    Refused(Reason),
    /// The request is malformed.
    Request(RequestFault),
    /// The HTTP/2 stream was reset, or its connection has failed.
    Reset(Http2Failure),
}

impl From<ClientLost> for ExchangeError {
    fn from(client_lost: ClientLost) -> Self {
        Self::ClientLost(client_lost)
    }
}

impl From<CodingError> for ExchangeError {
    fn from(_: CodingError) -> Self {
        Self::Coding
    }
}

impl From<NotDecoded> for ExchangeError {
    fn from(why: NotDecoded) -> Self {
        Self::Request(match why {
            NotDecoded::Fault(_) => RequestFault::ContentBroken,
            NotDecoded::NoRoom => RequestFault::NoRoom,
        })
    }
}

impl ExchangeError {
    /// The connection has ended below the exchange.
    pub fn closed() -> Self {
        let error = std::io::ErrorKind::ConnectionReset.into();
        Self::ClientLost(ClientLost::Wait(WaitError::Io(error)))
    }

    /// Returns the reason.
    pub fn reason(&self) -> Reason {
        match self {
            Self::ClientLost(client_lost) => client_lost.reason(),
            Self::Coding => Reason::CodingFailed,
            Self::NoWindow => Reason::ClientClosed(Some(When::During(Stage::Window))),
            Self::Refused(reason) => reason.clone(),
            Self::Request(fault) => request_reason(*fault),
            Self::Reset(failure) => Reason::Http2(Peer::Client, *failure),
        }
    }
}

//! The pages for requests of a rule that mints which have no response of an upstream. The browser
//! shows them under the name of a stranger's server, so they say that they are not from there.

use bytes::Bytes;
use eyelet_telemetry::reason::{Limit, Peer, Reason};
use eyelet_wire::alert::AlertDescription;
use http::{Method, StatusCode, response};

use super::page::text_page;
use super::refusal::Id;
use eyelet_http1::head::Length;

const NO_APPLICATION_PROTOCOL: u8 = AlertDescription::NoApplicationProtocol.code();

/// The one that has given no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Respondent {
    /// The server that the client meant.
    Origin,
    /// The operator's inspector.
    Inspector,
}

/// A request that has no response. The reader of its page cannot mend the cause, so the page is a
/// general one. The log line of the connection with this id has the exact cause.
pub struct Unanswered<'a> {
    /// The inspector that should have answered.
    pub by: Respondent,
    /// The reason why there is no response.
    pub reason: &'a Reason,
    /// The connection.
    pub id: u64,
}

impl Unanswered<'_> {
    pub fn page(&self, status: StatusCode, method: &Method) -> (response::Parts, Length, Bytes) {
        let phrase = status.canonical_reason().unwrap_or("Error");
        let text = format!(
            "{} {phrase}\n\nThis page is from the gateway that inspects this connection, and not \
             from the server.\n{}\nConnection: {}\n",
            status.as_u16(),
            self.cause(status),
            Id(self.id)
        );
        text_page(status, method, text.into())
    }

    fn cause(&self, status: StatusCode) -> &'static str {
        match (of_upstream(self.reason), self.by) {
            (Some(_), Respondent::Inspector) => {
                "Its inspector gave no usable answer. Try again later."
            }
            (Some(cause), Respondent::Origin) => cause,
            (None, _) => match status {
                StatusCode::MISDIRECTED_REQUEST => {
                    "It does not serve this name on this connection."
                }
                StatusCode::REQUEST_TIMEOUT => "The request did not come in time.",
                StatusCode::SERVICE_UNAVAILABLE => {
                    "It has no room for this request. Try again later."
                }
                _ => "It cannot serve this request.",
            },
        }
    }
}

/// Describes the fault of the server, if it has one.
fn of_upstream(reason: &Reason) -> Option<&'static str> {
    Some(match reason {
        Reason::UpstreamTls(_) | Reason::UpstreamUntrusted(_) => {
            "It could make no sound TLS connection to the server. The server's certificate may not \
             be valid."
        }
        // RFC 7301 section 3.2: as from a server of HTTP/2 alone for a client of HTTP/1.1.
        Reason::UpstreamAlert(NO_APPLICATION_PROTOCOL) => {
            "The server does not speak the version of HTTP that this connection has."
        }
        Reason::UpstreamAlert(_) => {
            "The server has ended the TLS connection. It may require a certificate of the client."
        }
        Reason::Timeout(Limit::Connect | Limit::Upstream | Limit::UpstreamBody, _) => {
            "The server did not answer in time. Try again later."
        }
        Reason::Dns(_)
        | Reason::NoAddress
        | Reason::NoLocalPort(_)
        | Reason::Io(Peer::Upstream, _) => "The server could not be reached. Try again later.",
        Reason::Guarded(_) | Reason::Loop(_) => "It may not connect to this server.",
        Reason::Response(_)
        | Reason::Http2(Peer::Upstream, _)
        | Reason::UpstreamClosed
        | Reason::UpstreamReset
        | Reason::UpstreamUnread
        | Reason::UpstreamWantsHttp1 => "The server gave no usable answer. Try again later.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use eyelet_telemetry::reason::{Detail, Shed};

    use super::*;

    #[test]
    fn the_cause_is_a_general_one() {
        let tls = Reason::UpstreamUntrusted(Detail::of("invalid peer certificate: Expired"));
        let late = Reason::Timeout(Limit::Upstream, None);
        let shed = Reason::Shed(Shed::Stream);
        for (by, status, reason, expected) in [
            (Respondent::Origin, 503, &tls, "certificate may not be valid."),
            (Respondent::Origin, 502, &Reason::UpstreamAlert(116), "certificate of the client."),
            (Respondent::Origin, 502, &Reason::UpstreamAlert(120), "version of HTTP"),
            (Respondent::Origin, 504, &late, "did not answer in time."),
            (Respondent::Origin, 503, &Reason::NoAddress, "could not be reached."),
            (Respondent::Origin, 503, &shed, "no room"),
            (Respondent::Origin, 421, &Reason::RuleGone, "does not serve this name"),
            (Respondent::Inspector, 503, &Reason::NoAddress, "Its inspector"),
            (Respondent::Inspector, 400, &Reason::Trace, "It cannot serve this request."),
        ] {
            let status = StatusCode::from_u16(status).unwrap_or_default();
            let cause = Unanswered { by, reason, id: 0 }.cause(status);
            assert!(cause.contains(expected), "{status} {reason}");
        }
    }
}

//! The reason why a connection or a request ended, as one typed value. Counters, the access log,
//! TLS alerts and HTTP statuses are derived from it. Its text is for people: no code depends on it.

mod error;
pub(crate) mod named;
mod parts;
mod text;

use eyelet_record::{RecordFault, Whose};
use eyelet_wire::alert::AlertDescription;
use eyelet_wire::connect::ConnectFault;
use eyelet_wire::hello::{Malformed, NotTls, SniFault};
use eyelet_wire::proxy::ProxyFault;
use eyelet_wire::quic::QuicFault;
use eyelet_wire::socks::SocksFault;

pub use error::{Detail, Http2Failure, IoFailure, PortLack};
pub use parts::{
    CertificateLack, Class, Guarded, HandshakeFault, HeldEnd, Limit, Loop, NotConnect, Party, Peer,
    RateLimit, SecondHello, ServerFault, Shed, Stage, StreamFlood, UserLack, When,
};

/// The reason why a connection or a request ended. docs/access-log.md has a table of all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The client was redirected to https://, because the other ACME client gave no answer to its
    /// request. Any stranger can ask while nobody listens.
    AcmeUpstream(IoFailure),
    /// The request was answered without an upstream.
    Answered,
    /// The client sent this alert after its handshake.
    ClientAlert(u8),
    /// The client ended its stream.
    ClientClosed(Option<When>),
    /// The client reset the connection.
    ClientReset(Option<When>),
    /// The connection was closed after a response.
    ClosedAfterResponse,
    /// A response's body could not be coded.
    CodingFailed,
    /// The request got its whole response.
    Complete,
    /// A certificate or key of the rule cannot be used.
    Configuration(Detail),
    /// The last exchange was cut. Its own entry says why.
    Cut,
    /// The upstream's name has no answer.
    Dns(Detail),
    /// The process ends.
    Drained(Option<When>),
    /// An operator ended it.
    Ended,
    /// Too much other evidence was being gathered, so the origin was not asked for its certificate.
    EvidenceBusy(Detail),
    /// The client's name or request leads to an internal address.
    Guarded(Box<Guarded>),
    /// The handshake failed.
    Handshake(HandshakeFault, Detail),
    /// A peer's HTTP/2 connection or stream ended by an error code.
    Http2(Peer, Http2Failure),
    /// It was held, and is refused.
    Held(HeldEnd),
    /// An internal error.
    Internal(&'static str),
    /// A peer's socket failed.
    Io(Peer, IoFailure),
    /// A refusal while facts were unknown.
    LacksFacts(Box<LacksFacts>),
    /// The connection would come back to this edge.
    Loop(Loop),
    /// A malformed CONNECT request.
    MalformedConnect(ConnectFault),
    /// A malformed ClientHello.
    MalformedHello(Malformed),
    /// A client's first packets of QUIC are faulty.
    MalformedQuic(QuicFault),
    /// A malformed name in a ClientHello.
    MalformedName(SniFault),
    MalformedProxyHeader(ProxyFault),
    /// A malformed message of SOCKS, or one that asks for what Eyelet does not have.
    MalformedSocks(SocksFault),
    /// The request is for a host that leads to another rule.
    Misdirected(Box<str>),
    /// The upstream has another address family than the client whose address it would be dialled
    /// from.
    MixedFamilies,
    /// The upstream's name has no address.
    NoAddress,
    /// No address of this host is left to dial from.
    NoLocalPort(Box<PortLack>),
    /// The rule splices to a destination or name that the connection does not have.
    NoDestination,
    /// There is no certificate for the name, for this reason.
    NoCertificate(CertificateLack),
    /// There is no PROXY header, but the source must send one.
    NoProxyHeader,
    /// A placeholder of a secret stands where no secret may. The text names it.
    Placeholder(Detail),
    /// There is no CONNECT request where one was expected.
    NotConnect(NotConnect),
    /// There is no TLS where a ClientHello was expected.
    NotTls(NotTls),
    /// The client of a proxy did not say who it is.
    NoUser(UserLack),
    /// A rate of handshakes is reached.
    Rate(RateLimit),
    /// The client broke the record layer's protocol, or the keys are used up.
    Record(RecordFault),
    /// The client was redirected to https://.
    Redirected,
    /// The newest configuration has no rule that serves the connection.
    RuleGone,
    /// The upstream's response shows a secret. The text names its placeholder.
    Reflected(Detail),
    /// A rule refused it, or none matched. The text names the rule's matcher.
    Refused(&'static str),
    /// A rule refused the request, or none takes it.
    RefusedRequest(&'static str),
    /// The request is malformed: the status of the response, and what is wrong.
    Request(u16, Detail),
    /// The upstream's response is malformed.
    Response(Detail),
    /// A second hello of a spliced connection may not pass.
    SecondHello(Box<SecondHello>),
    /// The server of a spliced connection sent something that may not pass.
    Server(ServerFault),
    /// Memory is short.
    Shed(Shed),
    /// The client opens and drops too many streams.
    StreamFlood(StreamFlood),
    /// The client reset the stream before it was served.
    StreamReset,
    /// The upstream switched protocols, as the client had asked.
    SwitchedProtocols,
    /// A time limit passed.
    Timeout(Limit, Option<When>),
    /// The request is a TRACE, which would reveal what a proxy adds.
    Trace,
    /// The client ended its stream without close_notify (RFC 8446 section 6.1).
    Truncated,
    /// The kernel registers no more descriptors in epoll.
    Unregistered(IoFailure),
    /// The upstream sent this alert, in its handshake or after it.
    UpstreamAlert(u8),
    /// The upstream ended its stream.
    UpstreamClosed,
    /// The upstream speaks no TLS.
    UpstreamNotTls,
    /// The upstream reset the connection.
    UpstreamReset,
    /// TLS with the upstream failed.
    UpstreamTls(Detail),
    /// No rule has the target of a proxy's client. The text names the lists: "not in allow.txt".
    Unlisted(Box<str>),
    /// An ACME server validated the name here.
    Validated,
    /// The upstream says that it has not processed the request.
    UpstreamUnread,
    /// The upstream's certificate is not accepted.
    UpstreamUntrusted(Detail),
    /// The upstream requires HTTP/1.1.
    UpstreamWantsHttp1,
}

/// A refusal that may come from unknown facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LacksFacts {
    /// The refusal without these facts.
    pub refusal: Reason,
    /// The reason why the destination is not known.
    pub no_destination: Option<Reason>,
    /// The evidence that is unknown, and why.
    pub unknown: Box<[Box<str>]>,
}

/// The status for an upstream that gave no usable response.
const BAD_GATEWAY: u16 = 502;
/// The status if the upstream cannot be reached, or memory is short.
const SERVICE_UNAVAILABLE: u16 = 503;
/// The status for an upstream that was too slow.
const GATEWAY_TIMEOUT: u16 = 504;

impl Reason {
    /// A failed read or write of the client's socket.
    pub fn client_io(error: &std::io::Error, when: Option<When>) -> Self {
        match IoFailure::from(error) {
            failure if failure.is_reset() => Self::ClientReset(when),
            failure if failure.kind() == std::io::ErrorKind::UnexpectedEof => Self::Truncated,
            failure => Self::Io(Peer::Client, failure),
        }
    }

    /// A failed read or write of a connected upstream's socket.
    pub fn upstream_io(error: &std::io::Error) -> Self {
        match IoFailure::from(error) {
            failure if failure.is_reset() => Self::UpstreamReset,
            failure => Self::Io(Peer::Upstream, failure),
        }
    }

    /// The kind of this end.
    pub fn class(&self) -> Class {
        match self {
            Self::ClientClosed(Some(_))
            | Self::ClientReset(_)
            | Self::StreamReset
            | Self::Truncated => Class::Left,
            Self::Http2(Peer::Client, failure) if failure.is_leave() => Class::Left,
            Self::AcmeUpstream(_)
            | Self::Answered
            | Self::ClientClosed(None)
            | Self::ClosedAfterResponse
            | Self::Complete
            | Self::Cut
            | Self::Record(RecordFault::SequenceExhausted)
            | Self::Redirected
            | Self::SwitchedProtocols
            | Self::UpstreamClosed
            | Self::Validated => Class::Closed,
            Self::Configuration(_) | Self::NoCertificate(_) => Class::Configuration,
            Self::MixedFamilies | Self::NoDestination => Class::Configuration,
            Self::Drained(_) => Class::Drained,
            Self::Ended => Class::Ended,
            Self::CodingFailed | Self::Internal(_) | Self::Unregistered(_) => Class::Internal,
            Self::Handshake(HandshakeFault::Internal, _) => Class::Internal,
            Self::Record(fault) if fault.whose() == Whose::Ours => Class::Internal,
            Self::ClientAlert(_)
            | Self::Handshake(..)
            | Self::Http2(..)
            | Self::MalformedConnect(_)
            | Self::MalformedHello(_)
            | Self::MalformedQuic(_)
            | Self::MalformedName(_)
            | Self::MalformedProxyHeader(_)
            | Self::MalformedSocks(_)
            | Self::NoProxyHeader
            | Self::NotConnect(_)
            | Self::NotTls(_)
            | Self::Record(_)
            | Self::Reflected(_)
            | Self::Request(..)
            | Self::Response(_)
            | Self::SecondHello(_)
            | Self::StreamFlood(_)
            | Self::UpstreamWantsHttp1 => Class::Protocol,
            Self::Server(ServerFault::Malformed(_) | ServerFault::ThirdHello) => Class::Protocol,
            Self::Placeholder(_) | Self::RefusedRequest(_) | Self::Trace => Class::Refused,
            Self::EvidenceBusy(_)
            | Self::Guarded(_)
            | Self::Held(_)
            | Self::Loop(_)
            | Self::Misdirected(_)
            | Self::NoUser(_)
            | Self::Rate(_)
            | Self::Refused(_)
            | Self::RuleGone
            | Self::Server(_)
            | Self::Unlisted(_) => Class::Refused,
            Self::LacksFacts(lacks) => lacks.refusal.class(),
            Self::UpstreamReset | Self::Io(Peer::Client, _) => Class::Reset,
            Self::Shed(_) => Class::Shed,
            Self::Timeout(..) => Class::Timeout,
            Self::Dns(_) | Self::NoAddress | Self::NoLocalPort(_) => Class::Unreachable,
            Self::Io(Peer::Upstream, _)
            | Self::UpstreamAlert(_)
            | Self::UpstreamNotTls
            | Self::UpstreamUnread => Class::Unreachable,
            Self::UpstreamTls(_) | Self::UpstreamUntrusted(_) => Class::Unreachable,
        }
    }

    /// Returns the party that can do something about it.
    pub fn whose(&self) -> Party {
        match self {
            Self::Http2(peer, _) | Self::Io(peer, _) => match peer {
                Peer::Client => Party::Client,
                Peer::Upstream => Party::Upstream,
            },
            Self::LacksFacts(lacks) => lacks.refusal.whose(),
            Self::NoLocalPort(_) | Self::Unregistered(_) => Party::Operator,
            Self::Misdirected(_)
            | Self::NoUser(_)
            | Self::Placeholder(_)
            | Self::Trace
            | Self::Rate(RateLimit::Source)
            | Self::Shed(Shed::Excess) => Party::Client,
            Self::Reflected(_)
            | Self::Response(_)
            | Self::Server(_)
            | Self::UpstreamReset
            | Self::UpstreamWantsHttp1 => Party::Upstream,
            Self::Timeout(limit, _) => limit.whose(),
            other => match other.class() {
                Class::Closed => Party::Nobody,
                Class::Configuration
                | Class::Drained
                | Class::Ended
                | Class::Refused
                | Class::Shed => Party::Operator,
                Class::Internal => Party::Eyelet,
                Class::Left | Class::Protocol | Class::Reset => Party::Client,
                // The limits are handled above.
                Class::Timeout => Party::Nobody,
                Class::Unreachable => Party::Upstream,
            },
        }
    }

    /// The alert for this reason, before the handshake is done. `None`: the client would not
    /// understand one, or is gone. A refuse rule may have its own alert.
    pub fn alert(&self) -> Option<AlertDescription> {
        match self {
            Self::MalformedHello(malformed) => Some(malformed.why.alert()),
            Self::NotTls(NotTls::SslV2) => Some(AlertDescription::ProtocolVersion),
            Self::NotTls(NotTls::Http | NotTls::Ssh | NotTls::ProxyHeader) => None,
            Self::NotConnect(NotConnect::Method | NotConnect::NotHttp) => None,
            // RFC 8446 section 5 requires this alert for an unexpected record type.
            Self::NotTls(_) | Self::NotConnect(NotConnect::Tls) => {
                Some(AlertDescription::UnexpectedMessage)
            }
            // The client gets no alert: it is this process, or has sent nothing yet.
            Self::Loop(Loop::Dialled | Loop::Own | Loop::ToListener) => None,
            Self::MalformedName(_) => Some(AlertDescription::DecodeError),
            // It may come again. access_denied would say that it may not.
            Self::Rate(_) => Some(AlertDescription::InternalError),
            Self::NoCertificate(_) => Some(AlertDescription::HandshakeFailure),
            Self::Record(fault) => AlertDescription::from_code(fault.alert()),
            // RFC 8446 section 4.1.2: the second hello equals the first except for a few fields.
            Self::SecondHello(_) => Some(AlertDescription::IllegalParameter),
            other => match other.class() {
                Class::Closed | Class::Left | Class::Reset => None,
                Class::Refused => Some(AlertDescription::AccessDenied),
                _ => Some(AlertDescription::InternalError),
            },
        }
    }

    /// True if each dial of the same upstream ends so, until somebody changes something.
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::Loop(_) | Self::UpstreamNotTls | Self::UpstreamUntrusted(_))
    }

    /// The HTTP status for this reason, if no response was sent yet.
    pub fn status(&self) -> u16 {
        match self {
            Self::Misdirected(_) | Self::RuleGone => 421,
            Self::Held(_) | Self::Placeholder(_) => 403,
            Self::Request(status, _) => *status,
            Self::RefusedRequest(_) => 403,
            Self::Trace => 405,
            Self::Timeout(Limit::Head | Limit::RequestBody, _) => 408,
            // RFC 9209 sections 2.3.14 and 2.3.15: it was reached, and has said no, or nonsense.
            Self::UpstreamAlert(_) | Self::UpstreamNotTls => BAD_GATEWAY,
            _ => match self.class() {
                Class::Drained | Class::Shed | Class::Unreachable => SERVICE_UNAVAILABLE,
                Class::Timeout => GATEWAY_TIMEOUT,
                _ => BAD_GATEWAY,
            },
        }
    }
}

#[cfg(test)]
mod tests;

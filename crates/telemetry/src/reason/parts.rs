//! Parts of reasons: the responsible party, the class of an end, and details.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use eyelet_wire::hello::{Malformed, NotTls, SniFault};
use thiserror::Error;

use super::named::named;

named! {
    /// The party that can do something about such an end.
    Party {
        /// The client, or something between it and us.
        Client = "client",
        /// This program: please report it.
        Eyelet = "eyelet",
        /// Nobody: this is how connections end.
        Nobody = "nobody",
        /// The operator: rules, limits, certificates, a restart.
        Operator = "operator",
        /// The upstream, its name, or the way to it.
        Upstream = "upstream",
    }
}

named! {
    /// The class of an end. Counters count by class.
    Class {
        /// A normal end.
        Closed = "closed",
        /// Something in the configuration cannot be used.
        Configuration = "configuration",
        /// The process ends.
        Drained = "drained",
        /// An operator ended it.
        Ended = "ended",
        /// An internal error.
        Internal = "internal",
        /// The client left: it closed a tab, lost its network, or was only looking.
        Left = "left",
        /// A peer broke a protocol, or speaks another one.
        Protocol = "protocol",
        /// Refused by a rule or a limit of the configuration.
        Refused = "refused",
        /// A connection was reset, or its socket failed.
        Reset = "reset",
        /// Memory is short.
        Shed = "shed",
        /// A time limit passed.
        Timeout = "timeout",
        /// The upstream cannot be reached.
        Unreachable = "unreachable",
    }
}

named! {
    /// The reason for which a connection that came to a hold rule is refused.
    HeldEnd {
        /// Nobody has decided in time.
        Undecided = "held, and nobody decided",
        /// Somebody has refused it.
        Refused = "held, and refused",
        /// The limit of connections or questions that wait is reached.
        TooMany = "too many connections are held",
        /// Its path is longer than what somebody is asked about.
        TooLong = "its path is too long to ask about",
    }
}

named! {
    /// The rate of handshakes that is reached.
    RateLimit {
        /// `limits.handshakes_per_second`.
        Process = "handshakes_per_second",
        /// `limits.source_handshakes_per_second`.
        Source = "source_handshakes_per_second",
    }
}

named! {
    /// The reason why there is no certificate of an ACME server, or of the SPIFFE Workload API.
    CertificateLack {
        /// The last one that the Workload API has sent has expired.
        Expired = "that of the SPIFFE Workload API has expired",
        /// The Workload API has sent none, or has taken it back.
        NotSent = "the SPIFFE Workload API has sent none",
        /// More names are asked for at once than can be ordered.
        Busy = "too many names are asked for at once",
        /// A wildcard is ordered whose certificate does not cover the name.
        Deep = "a wildcard's covers one label only",
        /// The last order failed. The diagnostics say why.
        Failed = "the last order failed",
        /// The hello has no name.
        NoName = "the hello has no name",
        /// It is ordered, and not issued yet.
        Ordered = "it is ordered, and not issued yet",
        /// It was not issued while the client waited.
        Slow = "it was not issued while the client waited",
        /// More names are served than may be ordered for clients.
        TooMany = "more names are served than may be ordered for clients",
    }
}

named! {
    /// One of the two peers of a connection.
    Peer {
        /// The one that connected.
        Client = "client",
        /// The one that was dialled.
        Upstream = "upstream",
    }
}

named! {
    /// The stage of a connection.
    Stage {
        /// Sending the 200.
        ConnectAnswer = "the answer to CONNECT",
        /// Reading the head of a CONNECT.
        ConnectRequest = "the CONNECT request",
        /// Finding out the client's destination.
        Destination = "the search for the destination",
        /// Dialling the upstream.
        Dial = "the dial",
        /// Resolving the upstream's name.
        Dns = "DNS",
        /// Gathering evidence for the name.
        Evidence = "the evidence",
        /// The TLS handshake.
        Handshake = "the handshake",
        /// Reading the ClientHello.
        Hello = "the hello",
        /// Reading the PROXY header.
        ProxyHeader = "the PROXY header",
        /// Reading or serving a request.
        Request = "a request",
        /// Reading a request's head.
        RequestHead = "a request's head",
        /// Reading or answering messages of SOCKS.
        Socks = "the SOCKS request",
        /// Being held until somebody decides.
        Verdict = "the wait for a verdict",
        /// Sending the response.
        Response = "the response",
        /// Waiting for room in the client's flow-control window.
        Window = "a response that waits for WINDOW_UPDATE",
    }
}

/// The moment at which a connection stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Nothing of this stage had arrived.
    Before(Stage),
    /// The stage had begun.
    During(Stage),
}

impl When {
    /// While reading a message; `received` is the part that has arrived.
    pub const fn reading(stage: Stage, received: &[u8]) -> Self {
        if received.is_empty() { Self::Before(stage) } else { Self::During(stage) }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before(stage) => write!(f, "before {stage}"),
            Self::During(stage) => write!(f, "during {stage}"),
        }
    }
}

named! {
    /// The time limit that passed.
    Limit {
        /// `http.body_timeout`, for a response.
        Body = "body_timeout",
        /// `limits.connect_timeout`.
        Connect = "upstream: connect_timeout",
        /// `limits.handshake_timeout`.
        Handshake = "handshake_timeout",
        /// `http.head_timeout`.
        Head = "head_timeout",
        /// `limits.hello_timeout`.
        Hello = "hello_timeout",
        /// `http.http2_idle_timeout`.
        Http2Idle = "http2_idle_timeout",
        /// `limits.idle_timeout`.
        Idle = "idle_timeout",
        /// `http.body_timeout`, for the client's body.
        RequestBody = "request: body_timeout",
        /// The client did not read its response within the time of its request.
        Taking = "client was too slow",
        /// `http.upstream_timeout`.
        Upstream = "upstream: upstream_timeout",
        /// `http.body_timeout`, for an upstream that does not read the body.
        UpstreamBody = "upstream: body_timeout",
    }
}

impl Limit {
    /// Returns the party that was too slow.
    pub const fn whose(self) -> Party {
        match self {
            Self::Handshake | Self::Head | Self::Hello | Self::RequestBody | Self::Taking => {
                Party::Client
            }
            Self::Connect | Self::Upstream | Self::UpstreamBody => Party::Upstream,
            // Either peer may have stopped a body.
            Self::Body | Self::Http2Idle | Self::Idle => Party::Nobody,
        }
    }
}

/// The kind of connection that was ended when memory was short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shed {
    /// A new connection of a source that holds more than its share.
    Excess,
    /// The connection that was idle longest.
    Idle,
    /// A new connection.
    New,
    /// A request with a long head.
    RequestHead,
    /// A response with a long head.
    ResponseHead,
    /// An exchange whose bodies did not move.
    Stalled,
    /// A stream that was not served yet.
    Stream,
    /// The oldest unfinished connection.
    Unfinished(When),
    /// A parked connection whose peer did not read what it was sent.
    Untaken,
    /// A request that needs a new TLS connection to its upstream.
    Upstream,
}

impl fmt::Display for Shed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("shed: memory_max")?;
        f.write_str(match self {
            Self::Excess => ", and this source holds more than its share",
            Self::Idle => ", idle for longest",
            Self::New => "",
            Self::RequestHead => ", a request's head",
            Self::ResponseHead => ", a response's head",
            Self::Stalled => ", and no body moved",
            Self::Stream => ", a stream",
            Self::Unfinished(when) => return write!(f, ", {when}"),
            Self::Untaken => ", and what was sent was not taken",
            Self::Upstream => ", a connection to the upstream",
        })
    }
}

/// The way in which a connection would come back to this process.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Loop {
    /// The client dialled a listener that only takes redirected connections.
    #[error("it was not redirected here, but dialled this listener")]
    Dialled,
    /// The upstream is a listener, and the connection came from this process.
    #[error("{0} is a listener of this edge, and it came from this edge")]
    Handed(Box<SocketAddr>),
    /// The upstream is a listener.
    #[error("{0} is a listener of this edge")]
    Listener(Box<SocketAddr>),
    /// This process dialled it.
    #[error("this edge dialled it itself, and was redirected to itself")]
    Own,
    /// This process sent its hello.
    #[error("this edge sent this hello itself, and it came back")]
    Returned,
    /// It was meant for a listener before it was intercepted.
    #[error("it was meant for a listener of this edge")]
    ToListener,
}

/// The reason why a second hello of a spliced connection may not pass.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SecondHello {
    #[error("malformed second hello: {0}")]
    Malformed(Malformed),
    #[error("malformed name in the second hello: {0}")]
    MalformedName(SniFault),
    /// It has another name.
    #[error("the second hello is for {0}")]
    Name(Box<str>),
    /// It has no name, and the first has one.
    #[error("the second hello is for no name")]
    Nameless,
    #[error("second hello: {0}")]
    NotTls(NotTls),
}

/// The reason why the bytes of a spliced connection's server may not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ServerFault {
    /// It chose TLS compression, which a rule forbids.
    #[error("the server chose TLS compression")]
    Compression,
    /// Its hello is malformed.
    #[error("malformed hello of the server: {0}")]
    Malformed(Malformed),
    /// It does not speak TLS, and a rule forbids TLS compression.
    #[error("the server speaks no TLS")]
    NotTls,
    /// It asks for a third hello (RFC 8446 section 4.1.4 allows a second).
    #[error("the server asks for a third hello")]
    ThirdHello,
}

named! {
    /// The kind of bytes that arrived instead of a CONNECT request.
    NotConnect {
        /// An HTTP request with another method.
        Method = "another method than CONNECT",
        /// Neither HTTP nor TLS.
        NotHttp = "not HTTP where CONNECT was expected",
        /// A TLS record.
        Tls = "TLS where CONNECT was expected",
    }
}

named! {
    /// The reason why the client of a proxy is nobody that rules know.
    UserLack {
        /// It named nobody, and a rule might take it if it did.
        Missing = "the rules ask for a user",
        /// It named a user that is not there, or with a wrong token.
        Wrong = "wrong user or password",
    }
}

/// The kind of fault that ended a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeFault {
    /// The client sent this alert.
    Alert(u8),
    /// The client's certificate is missing or not accepted.
    Certificate,
    /// Client and rule have nothing in common: version, suite, group or protocol.
    Incompatible,
    /// The client broke TLS.
    Protocol,
    /// Not the client's fault.
    Internal,
}

impl HandshakeFault {
    /// Says what it is, without what differs from one handshake to another.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Alert(_) => "handshake: the client sent an alert",
            Self::Certificate => "handshake: the client's certificate is missing or not accepted",
            Self::Incompatible => "handshake: client and rule have nothing in common",
            Self::Protocol => "handshake: the client broke TLS",
            Self::Internal => "handshake: an error of this edge",
        }
    }
}

named! {
    /// Floods of streams that a client opens and drops (CVE-2023-44487).
    StreamFlood {
        /// Malformed streams, or streams dropped before their response was complete.
        Dropped = "client: HTTP/2: ENHANCE_YOUR_CALM: too many streams were dropped",
        /// Streams reset before they were served.
        Reset = "client: HTTP/2: ENHANCE_YOUR_CALM: streams were reset before they were served",
    }
}

/// An internal address that a client's name or request leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// The address.
    pub ip: IpAddr,
    /// The name that resolves to it; `None` if the client asked for the address.
    pub name: Option<Box<str>>,
}

impl fmt::Display for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("upstream: ")?;
        if let Some(name) = &self.name {
            write!(f, "{name} resolves to ")?;
        }
        write!(f, "{}, which upstream_allow does not list", self.ip)
    }
}

//! Parts of reasons: the responsible party, the class of an end, and details.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use eyelet_wire::hello::{Malformed, NotTls, SniFault};

/// Who can do something about such an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// The client, or something between it and us.
    Client,
    /// This program: please report it.
    Eyelet,
    /// Nobody: this is how connections end.
    Nobody,
    /// The operator: rules, limits, certificates, a restart.
    Operator,
    /// The upstream, its name, or the way to it.
    Upstream,
}

impl Party {
    /// Its name in documents and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Eyelet => "eyelet",
            Self::Nobody => "nobody",
            Self::Operator => "operator",
            Self::Upstream => "upstream",
        }
    }
}

/// The class of an end. Counters count by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A normal end.
    Closed,
    /// Something in the configuration cannot be used.
    Configuration,
    /// The process ends.
    Drained,
    /// An operator ended it.
    Ended,
    /// An internal error.
    Internal,
    /// The client left: it closed a tab, lost its network, or was only looking.
    Left,
    /// A peer broke a protocol, or speaks another one.
    Protocol,
    /// Refused by a rule or a limit of the configuration.
    Refused,
    /// A connection was reset, or its socket failed.
    Reset,
    /// Memory is short.
    Shed,
    /// A time limit passed.
    Timeout,
    /// The upstream cannot be reached.
    Unreachable,
}

/// Counters are indexed by class: each is in its place in the list.
const _: () = {
    let mut index = 0;
    while index < Class::ALL.len() {
        assert!(Class::ALL[index] as usize == index);
        index += 1;
    }
    assert!(Class::Unreachable as usize + 1 == Class::ALL.len());
};

impl Class {
    /// All of them, in the order of the enum.
    pub const ALL: [Self; 12] = [
        Self::Closed,
        Self::Configuration,
        Self::Drained,
        Self::Ended,
        Self::Internal,
        Self::Left,
        Self::Protocol,
        Self::Refused,
        Self::Reset,
        Self::Shed,
        Self::Timeout,
        Self::Unreachable,
    ];

    /// Its name in documents and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Configuration => "configuration",
            Self::Drained => "drained",
            Self::Ended => "ended",
            Self::Internal => "internal",
            Self::Left => "left",
            Self::Protocol => "protocol",
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::Shed => "shed",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
        }
    }
}

/// Why there is no certificate for a name that is ordered from an ACME server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateLack {
    /// More names are asked for at once than can be ordered.
    Busy,
    /// The last order failed. The diagnostics say why.
    Failed,
    /// The hello has no name.
    NoName,
    /// It is ordered, and not issued yet.
    Ordered,
    /// It was not issued while the client waited.
    Slow,
    /// More names are served than may be ordered for clients.
    TooMany,
}

impl fmt::Display for CertificateLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "too many names are asked for at once",
            Self::Failed => "the last order failed",
            Self::NoName => "the hello has no name",
            Self::Ordered => "it is ordered, and not issued yet",
            Self::Slow => "it was not issued while the client waited",
            Self::TooMany => "more names are served than may be ordered for clients",
        })
    }
}

/// One of the two peers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The one that connected.
    Client,
    /// The one that was dialled.
    Upstream,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Upstream => "upstream",
        })
    }
}

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Sending the 200.
    ConnectAnswer,
    /// Reading the head of a CONNECT.
    ConnectRequest,
    /// Finding out the client's destination.
    Destination,
    /// Dialling the upstream.
    Dial,
    /// Resolving the upstream's name.
    Dns,
    /// Gathering evidence for the name.
    Evidence,
    /// The TLS handshake.
    Handshake,
    /// Reading the ClientHello.
    Hello,
    /// Reading the PROXY header.
    ProxyHeader,
    /// Reading or serving a request.
    Request,
    /// Reading a request's head.
    RequestHead,
    /// Sending the response.
    Response,
    /// Waiting for room in the client's flow-control window.
    Window,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConnectAnswer => "the answer to CONNECT",
            Self::ConnectRequest => "the CONNECT request",
            Self::Destination => "the search for the destination",
            Self::Dial => "the dial",
            Self::Dns => "DNS",
            Self::Evidence => "the evidence",
            Self::Handshake => "the handshake",
            Self::Hello => "the hello",
            Self::ProxyHeader => "the PROXY header",
            Self::Request => "a request",
            Self::RequestHead => "a request's head",
            Self::Response => "the response",
            Self::Window => "a response that waits for WINDOW_UPDATE",
        })
    }
}

/// Where a connection was when it stopped.
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

/// The time limit that passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `http.body_timeout`, for a response.
    Body,
    /// `limits.connect_timeout`.
    Connect,
    /// `limits.handshake_timeout`.
    Handshake,
    /// `http.head_timeout`.
    Head,
    /// `limits.hello_timeout`.
    Hello,
    /// `http.http2_idle_timeout`.
    Http2Idle,
    /// `limits.idle_timeout`.
    Idle,
    /// `http.body_timeout`, for the client's body.
    RequestBody,
    /// The client did not read its response within the time of its request.
    Taking,
    /// `http.upstream_timeout`.
    Upstream,
    /// `http.body_timeout`, for an upstream that does not read the body.
    UpstreamBody,
}

impl Limit {
    /// Who was too slow.
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

impl Limit {
    /// Its text in the access log.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Body => "body_timeout",
            Self::Connect => "upstream: connect_timeout",
            Self::Handshake => "handshake_timeout",
            Self::Head => "head_timeout",
            Self::Hello => "hello_timeout",
            Self::Http2Idle => "http2_idle_timeout",
            Self::Idle => "idle_timeout",
            Self::RequestBody => "request: body_timeout",
            Self::Taking => "client was too slow",
            Self::Upstream => "upstream: upstream_timeout",
            Self::UpstreamBody => "upstream: body_timeout",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// What was ended when memory was short.
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

/// How a connection would come back to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loop {
    /// The client dialled a listener that only takes redirected connections.
    Dialled,
    /// The upstream is a listener, and the connection came from this process.
    Handed(Box<SocketAddr>),
    /// The upstream is a listener.
    Listener(Box<SocketAddr>),
    /// This process dialled it.
    Own,
    /// This process sent its hello.
    Returned,
    /// It was meant for a listener before it was intercepted.
    ToListener,
}

impl fmt::Display for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dialled => "it was not redirected here, but dialled this listener",
            Self::Handed(address) => {
                return write!(
                    f,
                    "{address} is a listener of this edge, and it came from this edge"
                );
            }
            Self::Listener(address) => return write!(f, "{address} is a listener of this edge"),
            Self::Own => "this edge dialled it itself, and was redirected to itself",
            Self::Returned => "this edge sent this hello itself, and it came back",
            Self::ToListener => "it was meant for a listener of this edge",
        })
    }
}

/// Why a second hello of a spliced connection may not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecondHello {
    Malformed(Malformed),
    MalformedName(SniFault),
    /// It has another name.
    Name(Box<str>),
    /// It has no name, and the first has one.
    Nameless,
    NotTls(NotTls),
}

impl fmt::Display for SecondHello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => write!(f, "malformed second hello: {why}"),
            Self::MalformedName(why) => write!(f, "malformed name in the second hello: {why}"),
            Self::Name(name) => write!(f, "the second hello is for {name}"),
            Self::Nameless => f.write_str("the second hello is for no name"),
            Self::NotTls(why) => write!(f, "second hello: {why}"),
        }
    }
}

/// Why the bytes of a spliced connection's server may not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFault {
    /// It chose TLS compression, which a rule forbids.
    Compression,
    /// Its hello is malformed.
    Malformed(Malformed),
    /// It does not speak TLS, and a rule forbids TLS compression.
    NotTls,
    /// It asks for a third hello (RFC 8446 section 4.1.4 allows a second).
    ThirdHello,
}

impl fmt::Display for ServerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compression => "the server chose TLS compression",
            Self::Malformed(why) => return write!(f, "malformed hello of the server: {why}"),
            Self::NotTls => "the server speaks no TLS",
            Self::ThirdHello => "the server asks for a third hello",
        })
    }
}

/// What arrived instead of a CONNECT request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotConnect {
    /// An HTTP request with another method.
    Method,
    /// Neither HTTP nor TLS.
    NotHttp,
    /// A TLS record.
    Tls,
}

impl fmt::Display for NotConnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Method => "another method than CONNECT",
            Self::NotHttp => "not HTTP where CONNECT was expected",
            Self::Tls => "TLS where CONNECT was expected",
        })
    }
}

/// What kind of fault ended a handshake.
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
    /// What it is, without what differs from one handshake to another.
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

/// Floods of streams that a client opens and drops (CVE-2023-44487).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFlood {
    /// Malformed streams, or streams dropped before their response was complete.
    Dropped,
    /// Streams reset before they were served.
    Reset,
}

impl fmt::Display for StreamFlood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("client: HTTP/2: ENHANCE_YOUR_CALM: ")?;
        f.write_str(match self {
            Self::Dropped => "too many streams were dropped",
            Self::Reset => "streams were reset before they were served",
        })
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

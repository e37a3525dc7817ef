//! Limits of what peers can make grow, of connections and of HTTP, with their defaults.

use std::num::NonZeroU32;
use std::time::Duration;

use ipnet::IpNet;

use crate::model::headers::Fields;

/// Limits of everything that a peer can make grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest hello, in bytes of its handshake message.
    pub hello_bytes_max: usize,
    /// From accept to the whole hello.
    pub hello_timeout: Duration,
    /// From the hello to the end of the handshake.
    pub handshake_timeout: Duration,
    /// For an upstream to answer a dial, for all its addresses together.
    pub connect_timeout: Duration,
    /// Without a byte in either direction.
    pub idle_timeout: Duration,
    /// Without a datagram of a QUIC flow in either direction.
    pub quic_idle_timeout: Duration,
    /// True if idle connections are ended for new ones when memory is short.
    pub shed_idle: bool,
    /// The time that busy connections may last after SIGTERM.
    pub drain_timeout: Duration,
    /// Most connections at once, if the file says so: else [`CONNECTIONS_MAX`].
    pub connections_max: Option<usize>,
    /// Most bytes of memory in all.
    pub memory_max: usize,
    /// Handshakes a second. `None`: as many as there are.
    pub handshakes_per_second: Option<NonZeroU32>,
    /// Handshakes a second of one source: an IPv4 address or an IPv6 /64.
    pub source_handshakes_per_second: Option<NonZeroU32>,
}

/// Limits of HTTP, for rules with an HTTP upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// From a request's first byte to the end of its head.
    pub head_timeout: Duration,
    /// Without a byte of a body in transit, in either direction.
    pub body_timeout: Duration,
    /// From a request's end to the response's head.
    pub upstream_timeout: Duration,
    /// Without a stream or a byte on an HTTP/2 connection: else `limits.idle_timeout`.
    pub http2_idle_timeout: Duration,
    /// The largest head of a request, in bytes.
    pub head_bytes_max: usize,
    /// Clients whose Forwarded and X-Forwarded-* fields are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Set in the responses of all rules, unless a rule sets the field itself.
    pub headers: Fields,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            hello_bytes_max: HELLO_BYTES_MAX,
            hello_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(3600),
            quic_idle_timeout: Duration::from_secs(120),
            shed_idle: false,
            drain_timeout: Duration::from_secs(5),
            connections_max: None,
            memory_max: 512 << 20,
            handshakes_per_second: None,
            source_handshakes_per_second: None,
        }
    }
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            upstream_timeout: Duration::from_secs(60),
            http2_idle_timeout: Limits::default().idle_timeout,
            head_bytes_max: 64 << 10,
            trusted_proxies: Vec::new(),
            headers: Fields::new(),
        }
    }
}

/// Most connections at once, where the file does not say how many.
pub const CONNECTIONS_MAX: usize = 1_000_000;
/// Most bytes of a hello: ample. One with three post-quantum key shares has less than 8 KiB.
pub const HELLO_BYTES_MAX: usize = 65_536;

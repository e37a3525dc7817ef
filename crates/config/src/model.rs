//! The checked configuration as a value: what was said in the file, after defaults.
//! Knows no TOML, and not how a connection is served.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use eyelet_compress::Effort;
use eyelet_compress::breach::Allowed;
use eyelet_compress::dictionary::pattern::Pattern;
use eyelet_wire::alert::AlertDescription;
use ipnet::IpNet;

/// One address that is listened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The text that rules name it by in `listener`, beside its address.
    pub name: Option<String>,
    /// Where to bind.
    pub address: SocketAddr,
    /// How its connections come to have a destination.
    pub kind: ListenerKind,
    /// From these sources a PROXY v1/v2 header is required and believed.
    pub proxy_protocol_from: Vec<IpNet>,
    /// Whether another process may hold the port too.
    pub reuse_port: bool,
    /// Whether the kernel keeps connections back until their client has sent something.
    pub defer_accept: bool,
}

/// How the connections of a listener come to have a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// They were sent to the listener's own address.
    Direct,
    /// They were sent elsewhere and redirected here by netfilter, which knows where.
    Redirect,
    /// They were sent elsewhere and delivered here by TPROXY: the socket's address is where.
    Tproxy,
    /// They ask for a host and a port by HTTP CONNECT.
    Connect,
    /// Not TLS: a request is answered with a redirect to https://.
    HttpRedirect,
}

impl Listener {
    /// Whether its connections have a destination that is not the listener itself.
    pub fn has_destination(&self) -> bool {
        !matches!(self.kind, ListenerKind::Direct | ListenerKind::HttpRedirect)
            || !self.proxy_protocol_from.is_empty()
    }
}

/// The three things that can be done with a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Pass it on, bytes untouched.
    Splice(Splice),
    /// End TLS here.
    Terminate(Terminate),
    /// Send an alert and close.
    Refuse(Refuse),
}

/// `action = "splice"`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Splice {
    /// Where to.
    pub upstream: SpliceUpstream,
    /// Addresses that a name may resolve to although they are loopback, link-local, private or
    /// our own.
    pub upstream_allow: Vec<IpNet>,
    /// Which PROXY header the upstream is sent first.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Whose address the upstream sees.
    pub source: Source,
    /// Whether a server that chooses TLS compression ends the connection.
    pub forbid_tls_compression: bool,
    /// Whether the client's first bytes go with the SYN.
    pub fast_open: bool,
}

/// The address that an upstream is dialled from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// One of this host's.
    #[default]
    Host,
    /// The client's, with a port of this host's choice.
    Client,
}

/// Where a spliced connection goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SpliceUpstream {
    /// `host:port`.
    HostPort(HostPort),
    /// `{sni}:port`: the name of the hello, resolved and then checked.
    Sni {
        /// The port to dial.
        port: u16,
    },
    /// `destination`: where the client meant to go.
    Destination,
}

/// A host by address or by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// Nothing to resolve.
    Ip(IpAddr),
    /// Lower-case ASCII, resolved at each dial.
    Name(String),
}

/// `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// The host.
    pub host: Host,
    /// The port, never 0.
    pub port: u16,
}

/// `action = "terminate"`. The certificates are not here but in `RuleList::certificates`: 10,000
/// rules that differ in nothing else share this.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Terminate {
    /// The application.
    pub upstream: TerminateUpstream,
    /// ALPN protocols to choose from, most wanted first; empty: ALPN is not negotiated.
    pub alpn_select: Vec<Vec<u8>>,
    /// Client certificates are required and verified against these, if given.
    pub client_ca: Option<PathBuf>,
    /// How responses are compressed; for upstreams with HTTP.
    pub compression: Compression,
    /// The lowest TLS version spoken.
    pub tls_version_min: TlsVersion,
    /// Which PROXY header the upstream is sent first.
    pub proxy_protocol: Option<ProxyProtocol>,
}

/// Where a terminated connection goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TerminateUpstream {
    /// `tcp://host:port`: dialled when the handshake ends.
    Tcp(HostPort),
    /// `http://`, `https://` or `http+unix:`: dialled for the client's first request.
    Http(HttpUpstream),
    /// `unix:/path`: dialled when the handshake ends.
    Unix(PathBuf),
}

/// An application that speaks HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpUpstream {
    /// Whom to dial.
    pub address: HttpAddress,
    /// For `https://`.
    pub tls: Option<UpstreamTls>,
    /// How long requests are held while nobody answers there.
    pub wait: Duration,
    /// Whether it is spoken to in HTTP/2.
    pub http2: UpstreamHttp2,
}

/// Whether an upstream is spoken to in HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamHttp2 {
    /// An `https://` upstream chooses by ALPN; any other is spoken to in HTTP/1.1.
    Alpn,
    /// Never.
    Off,
    /// Always; without TLS by prior knowledge (RFC 9113 section 3.3).
    On,
}

/// Where an HTTP application is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HttpAddress {
    /// `http://host:port` or `https://host:port`.
    Tcp(HostPort),
    /// `http+unix:/path`.
    Unix(PathBuf),
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(HostPort { host: Host::Name(name), port }) => write!(f, "{name}:{port}"),
            Self::Tcp(HostPort { host: Host::Ip(ip), port }) => {
                write!(f, "{}", SocketAddr::new(*ip, *port))
            }
        }
    }
}

/// How an `https://` upstream is verified.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamTls {
    /// The name or address that its certificate must have.
    pub name: String,
    /// The roots; `None`: the system's.
    pub ca: Option<PathBuf>,
}

/// A TLS version that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TlsVersion {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl TlsVersion {
    /// As on the wire.
    pub const fn code(self) -> u16 {
        match self {
            Self::Tls12 => 0x0303,
            Self::Tls13 => 0x0304,
        }
    }
}

/// A PROXY header towards an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyProtocol {
    /// The binary one.
    V2,
}

/// `action = "refuse"`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Refuse {
    /// Instead of the alert that the reason would give.
    pub alert: Option<AlertDescription>,
}

/// How the responses of a rule are compressed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Compression {
    /// Whether they are at all.
    pub on: bool,
    /// Server-sent events too.
    pub event_streams: bool,
    /// How hard; `None`: hard while the worker has time, less so when it is busy.
    pub effort: Option<Effort>,
    /// Whether the upstream is asked for identity, so that it need not compress.
    pub offload: bool,
    /// Whether responses that may hold a secret beside reflected input stay as they are.
    pub breach_rule: bool,
    /// Whose requests that rule lets through.
    pub breach_allow: Allowed,
    /// At most so many bytes of random length are added to each response; 0 is none.
    pub length_hiding: usize,
    /// Responses to these paths become dictionaries for later ones.
    pub dictionary: Vec<Pattern>,
}

impl Default for Compression {
    fn default() -> Self {
        Self {
            on: true,
            event_streams: false,
            effort: None,
            offload: false,
            breach_rule: true,
            breach_allow: Allowed::default(),
            length_hiding: 0,
            dictionary: Vec::new(),
        }
    }
}

/// Where dictionaries are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dictionaries {
    /// A folder; `None`: in memory only.
    pub path: Option<PathBuf>,
    /// Bytes of bodies and deltas, in memory and again on disk.
    pub bytes_max: usize,
}

impl Default for Dictionaries {
    fn default() -> Self {
        Self { path: None, bytes_max: 64 << 20 }
    }
}

/// Bounds of everything that a peer can make grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest hello, in bytes of TLS records.
    pub hello_bytes_max: usize,
    /// From accept to the whole hello.
    pub hello_timeout: Duration,
    /// From the hello to the end of the handshake.
    pub handshake_timeout: Duration,
    /// For an upstream to answer a dial, all its addresses together.
    pub connect_timeout: Duration,
    /// Without a byte in either direction.
    pub idle_timeout: Duration,
    /// Whether idle connections are ended for new ones when memory is short.
    pub shed_idle: bool,
    /// What SIGTERM leaves to busy connections.
    pub drain_timeout: Duration,
    /// Connections at once.
    pub connections_max: usize,
    /// Bytes of memory in all.
    pub memory_max: usize,
}

/// Bounds of HTTP, for rules with an HTTP upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// From a request's first byte to the end of its head.
    pub head_timeout: Duration,
    /// Without a byte of a body that is on its way, in either direction.
    pub body_timeout: Duration,
    /// From a request's end to the response's head.
    pub upstream_timeout: Duration,
    /// Without a stream on an HTTP/2 connection.
    pub http2_idle_timeout: Duration,
    /// The largest head of a request, in bytes.
    pub head_bytes_max: usize,
    /// Clients whose Forwarded and X-Forwarded-* are believed.
    pub trusted_proxies: Vec<IpNet>,
}

/// What is logged of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Where the access lines go.
    pub access: Access,
    /// Whether they carry JA4, which costs two hashes a connection.
    pub ja4: bool,
}

/// Where the access lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// `"stdout"`.
    Stdout,
    /// `"off"`.
    Off,
    /// A file, appended to.
    File(PathBuf),
}

/// Who resolves names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Empty: the system's.
    pub servers: Vec<SocketAddr>,
}

/// How evidence for names is gathered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvidenceSettings {
    /// PEM; who may sign the certificates of destinations. `None`: the system's roots.
    pub ca: Option<PathBuf>,
    /// How long an address of a name counts after it was last resolved, and a certificate after it
    /// was last seen.
    pub history: Duration,
    /// For one piece of evidence to be had.
    pub timeout: Duration,
}

impl Default for EvidenceSettings {
    fn default() -> Self {
        Self { ca: None, history: Duration::from_secs(3600), timeout: Duration::from_secs(3) }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            hello_bytes_max: HELLO_BYTES_MAX,
            hello_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(3600),
            shed_idle: false,
            drain_timeout: Duration::from_secs(5),
            connections_max: 1_000_000,
            memory_max: 512 << 20,
        }
    }
}

impl Default for Http {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            upstream_timeout: Duration::from_secs(60),
            http2_idle_timeout: Duration::from_mins(3),
            head_bytes_max: 64 << 10,
            trusted_proxies: Vec::new(),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { access: Access::Stdout, ja4: true }
    }
}

/// Bytes; a hello with three post-quantum key shares is below 8 KiB, 64 KiB is what DESIGN allows.
pub const HELLO_BYTES_MAX: usize = 65_536;

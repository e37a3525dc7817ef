//! The checked configuration as values, after defaults.

pub(crate) mod certificate_source;
pub mod dns;
pub(crate) mod headers;
pub(crate) mod limits;
pub(crate) mod listen_address;
pub(crate) mod values;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use eyelet_compress::Effort;
use eyelet_compress::breach::Allowed;
use eyelet_compress::dictionary::pattern::FilePattern;
use eyelet_wire::alert::AlertDescription;
pub use eyelet_wire::version::Version;
use ipnet::IpNet;

pub use crate::model::certificate_source::{CertificateSource, LocalNames};
use crate::model::headers::Fields;
use crate::model::listen_address::ListenAddress;
use eyelet_files::users::Users;
use eyelet_pki::certificate::CertificateFiles;
use eyelet_pki::spiffe::id::SpiffePattern;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The name that rules may use in `listener`; its address works, too.
    pub name: Option<String>,
    /// The address to bind.
    pub address: ListenAddress,
    /// The permissions of its file, if it is a Unix socket.
    pub mode: u32,
    /// The way in which its connections get a destination.
    pub kind: ListenerKind,
    /// Those who may name themselves to a proxy.
    pub users: Option<Users>,
    /// Sources that must send a PROXY v1/v2 header, which is believed.
    pub proxy_protocol_from: Vec<IpNet>,
    /// True if another process may also bind the port.
    pub reuse_port: bool,
    /// The server of an ACME server's requests on an `http_redirect` listener, if Eyelet is not.
    pub acme_upstream: Option<SocketAddr>,
    /// True if the kernel holds connections back until their client has sent something.
    pub defer_accept: bool,
    /// True if its clients, which dialled elsewhere, speak HTTP without TLS.
    pub plain_http: bool,
    /// True if QUIC is read at its address, too.
    pub quic: bool,
    /// True if its socket is in another network: no address here leads to it.
    pub is_apart: bool,
}

/// The way in which a listener's connections get a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// They were sent to the listener's own address.
    Direct,
    /// They were sent elsewhere, and netfilter, which knows where, redirected them here.
    Redirect,
    /// TPROXY delivered them here: the socket's address is the destination.
    Tproxy,
    /// They ask for a host and a port, by HTTP CONNECT or by SOCKS 5.
    Connect,
    /// Not TLS: a request is answered with a redirect to https://.
    HttpRedirect,
    /// Not TLS: requests go to an upstream by TLS.
    Plain,
}

impl Listener {
    /// True if its connections have a destination that is not the listener itself.
    pub fn has_destination(&self) -> bool {
        let is_own = matches!(
            self.kind,
            ListenerKind::Direct | ListenerKind::HttpRedirect | ListenerKind::Plain
        );
        !is_own || !self.proxy_protocol_from.is_empty()
    }
}

/// An action that can be taken on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Begin TLS here, for a client without it.
    Originate(Originate),
    /// Pass it on, bytes untouched.
    Splice(Splice),
    /// End TLS here.
    Terminate(Terminate),
    /// Send an alert and close.
    Refuse(Refuse),
}

impl Action {
    /// The terms by which requests are served, if the action serves any.
    pub fn requests(&self) -> Option<&Terminate> {
        match self {
            Self::Originate(originate) => Some(&originate.requests),
            Self::Terminate(terminate) => Some(terminate),
            Self::Refuse(_) | Self::Splice(_) => None,
        }
    }

    /// The action, if it begins TLS.
    pub fn as_originate(&self) -> Option<&Originate> {
        match self {
            Self::Originate(originate) => Some(originate),
            Self::Refuse(_) | Self::Splice(_) | Self::Terminate(_) => None,
        }
    }
}

/// `action = "originate"`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Originate {
    /// Its upstreams, all `https://` or all `tls://`, and how they are asked.
    pub requests: Terminate,
    /// Host and port of the upstream, as in its Host field. Port 443 is left out.
    pub authority: Box<str>,
    /// Names in lower case that requests may name as their host, beside loopback and the upstream.
    pub hosts: Vec<Box<str>>,
}

/// `action = "splice"`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Splice {
    /// The upstream, or the first of several.
    pub upstream: SpliceUpstream,
    /// The others of the list. All of them, and the first, are [`SpliceUpstream::HostPort`].
    pub others: Vec<SpliceUpstream>,
    /// The choice of one of several.
    pub balance: Balance,
    /// Loopback, link-local, private networks and our own that a name may resolve to.
    pub upstream_allow: Vec<IpNet>,
    /// True if a configured name may lead to public addresses and those networks only.
    pub is_guarded: bool,
    /// The PROXY header that is sent to the upstream first.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The source address that the upstream sees.
    pub source: DialSource,
    /// True if the connection ends if the server chooses TLS compression.
    pub forbid_tls_compression: bool,
    /// True if the client's first bytes go with the SYN.
    pub fast_open: bool,
    /// True if requests for `http://` URLs pass, too.
    pub plain_http: bool,
    /// In a hold rule: it waits for a verdict first.
    pub hold: Option<Hold>,
}

/// The choice of one of several upstreams, their checks, and the addresses to dial them from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Balance {
    /// True if a client stays with one of them. Otherwise the load decides.
    pub by_client: bool,
    /// The question that they are asked, again and again, to see whether they are up.
    pub check: Option<UpstreamCheck>,
    /// The addresses of this host to dial from. Empty: the kernel chooses.
    pub sources: Vec<IpAddr>,
}

/// The sign that an upstream is up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamCheck {
    /// It accepts a connection.
    Connect,
    /// It answers a GET for this path with 2xx or 3xx.
    Get(Box<str>),
}

/// The address that an upstream is dialled from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DialSource {
    /// One of this host's addresses.
    #[default]
    Host,
    /// The client's address, with a port that this host chooses.
    Client,
}

/// The upstream of a spliced connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SpliceUpstream {
    /// `host:port`.
    HostPort(HostPort),
    /// `{sni}:port`: the name of the hello, resolved and then checked.
    Sni {
        /// The port to dial.
        port: u16,
    },
    /// `destination`: the client's destination.
    Destination,
}

/// A host by address or by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// An address.
    Ip(IpAddr),
    /// A name in lower-case ASCII, resolved at each dial. A dot at its end makes it absolute.
    Name(String),
}

/// Writes it as in a rule.
impl fmt::Display for SpliceUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostPort(to) => to.fmt(f),
            Self::Sni { port } => write!(f, "{{sni}}:{port}"),
            Self::Destination => f.write_str("destination"),
        }
    }
}

/// `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    pub host: Host,
    /// The port, never 0.
    pub port: u16,
}

impl HostPort {
    /// Returns the authority as a request names it: its host has no dot at the end.
    pub fn authority(&self) -> String {
        self.to_string().replacen(".:", ":", 1)
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Name(name) => write!(f, "{name}:{}", self.port),
            Host::Ip(ip) => write!(f, "{}", SocketAddr::new(*ip, self.port)),
        }
    }
}

/// `action = "terminate"`. The certificates are in `RuleList::certificates` instead: 10,000 rules
/// that differ in nothing else share this.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Terminate {
    /// The application, or the first of several.
    pub upstream: TerminateUpstream,
    /// The others of the list, of the same kind.
    pub others: Vec<TerminateUpstream>,
    /// The choice of one of several.
    pub balance: Balance,
    /// The source of its certificates.
    pub certificates: CertificateSource,
    /// The time for which connections and requests are held while the upstream is down.
    pub upstream_wait: Duration,
    /// ALPN protocols to choose from, in order of preference. Empty: no ALPN.
    pub alpn_select: Vec<Vec<u8>>,
    /// The CA certificates that must have signed the client's, where one is required.
    pub client_ca: Option<PathBuf>,
    /// The SPIFFE ids of which the client's certificate must have one. Empty: none is asked for.
    pub client_spiffe: Vec<SpiffePattern>,
    /// The revocation lists of the authorities in `client_ca`. Empty: none is asked for.
    pub client_crl: Vec<PathBuf>,
    /// True if these lists, and those for upstreams, count although they have expired.
    pub accepts_expired_crl: bool,
    /// True if each request says the client's certificate to the upstream (RFC 9440).
    pub client_cert_header: bool,
    /// The compression of responses, if the upstream speaks HTTP.
    pub compression: Compression,
    /// Set in each response, if the upstream speaks HTTP.
    pub headers: Fields,
    /// True if the rule does without the `hsts` of `[http]`.
    pub no_hsts: bool,
    /// The lowest TLS version accepted.
    pub tls_version_min: Version,
    /// The PROXY header that is sent to the upstream first.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// In a hold rule: it waits for a verdict first.
    pub hold: Option<Hold>,
}

/// The upstream of a terminated connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TerminateUpstream {
    /// `tcp://host:port`: dialled when the handshake ends.
    Tcp(HostPort),
    /// `http://`, `https://` or `http+unix:`: dialled for the client's first request.
    Http(HttpUpstream),
    /// `tls://host:port`, of an originate rule: dialled at once.
    Tls(TlsUpstream),
    /// `unix:/path`: dialled when the handshake ends.
    Unix(PathBuf),
}

/// An upstream with TLS and any protocol in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TlsUpstream {
    /// The address to dial.
    pub address: HostPort,
    /// Its verification.
    pub tls: UpstreamTls,
    /// The protocols that it is offered by ALPN, in this order. Empty: no ALPN.
    pub alpn: Vec<Vec<u8>>,
}

impl Terminate {
    /// A rule that asks this upstream, and nothing of its clients.
    pub fn to(upstream: TerminateUpstream) -> Self {
        Self {
            upstream,
            others: Vec::new(),
            balance: Balance::default(),
            certificates: CertificateSource::Files,
            upstream_wait: Duration::ZERO,
            alpn_select: Vec::new(),
            client_ca: None,
            client_spiffe: Vec::new(),
            client_crl: Vec::new(),
            accepts_expired_crl: false,
            client_cert_header: false,
            compression: Compression::default(),
            headers: Fields::default(),
            no_hsts: false,
            tls_version_min: Version::Tls12,
            proxy_protocol: None,
            hold: None,
        }
    }

    /// True if its clients must show a certificate.
    pub fn asks_client(&self) -> bool {
        self.client_ca.is_some() || !self.client_spiffe.is_empty()
    }
}

impl TerminateUpstream {
    /// The application, if it speaks HTTP.
    pub fn as_http(&self) -> Option<&HttpUpstream> {
        match self {
            Self::Http(http) => Some(http),
            Self::Tcp(_) | Self::Tls(_) | Self::Unix(_) => None,
        }
    }

    /// Its verification, if it has TLS.
    pub fn tls(&self) -> Option<&UpstreamTls> {
        match self {
            Self::Http(http) => http.tls.as_ref(),
            Self::Tls(upstream) => Some(&upstream.tls),
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }

    /// Its verification, to be changed.
    pub(crate) fn tls_mut(&mut self) -> Option<&mut UpstreamTls> {
        match self {
            Self::Http(http) => http.tls.as_mut(),
            Self::Tls(upstream) => Some(&mut upstream.tls),
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }

    /// The host and port to dial, if it is no Unix socket and no client's destination.
    pub fn host_port(&self) -> Option<&HostPort> {
        match self {
            Self::Tcp(to) | Self::Tls(TlsUpstream { address: to, .. }) => Some(to),
            Self::Http(HttpUpstream { address: HttpAddress::Tcp(to), .. }) => Some(to),
            Self::Http(_) | Self::Unix(_) => None,
        }
    }

    /// True if it is a name, which may have several addresses.
    pub fn is_named(&self) -> bool {
        self.host_port().is_some_and(|to| matches!(to.host, Host::Name(_)))
    }
}

/// Writes it as in a rule.
impl fmt::Display for TerminateUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(to) => write!(f, "tcp://{to}"),
            Self::Tls(upstream) => write!(f, "tls://{}", upstream.address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Http(http) => match (&http.address, &http.tls) {
                (address @ HttpAddress::Unix(_), _) => write!(f, "http+{address}"),
                (HttpAddress::Destination, _) => f.write_str(DESTINATION),
                (address, None) => write!(f, "http://{address}"),
                (address, Some(_)) => write!(f, "https://{address}"),
            },
        }
    }
}

/// An application that speaks HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpUpstream {
    /// The address to dial.
    pub address: HttpAddress,
    /// For `https://`.
    pub tls: Option<UpstreamTls>,
    /// Says if we speak HTTP/2 to it.
    pub http2: UpstreamHttp2,
    /// The internal networks that it may reach, if the client chose the address.
    pub chosen: Option<Vec<IpNet>>,
}

/// Says if we speak HTTP/2 to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamHttp2 {
    /// An `https://` upstream chooses by ALPN; others get HTTP/1.1.
    Alpn,
    /// Never.
    Off,
    /// Always. Without TLS this needs prior knowledge (RFC 9113 section 3.3).
    On,
}

/// The address of an HTTP application.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HttpAddress {
    /// `http://host:port` or `https://host:port`.
    Tcp(HostPort),
    /// `http+unix:/path`.
    Unix(PathBuf),
    /// `destination`: the client's destination. Each connection has its own, with the name in its
    /// hello. Only a rule that mints has it.
    Destination,
}

/// The word for the client's destination as an upstream.
pub(crate) const DESTINATION: &str = "destination";

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
            Self::Destination => f.write_str(DESTINATION),
        }
    }
}

/// The verification of an `https://` upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamTls {
    /// The name or address that its certificate must have.
    pub name: String,
    /// The files that a handshake with it needs.
    pub files: UpstreamFiles,
}

/// The files and SPIFFE ids that a handshake with an `https://` upstream needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct UpstreamFiles {
    /// The CA certificates. `None`: the system's.
    pub ca: Option<PathBuf>,
    /// The certificate that an upstream is shown if it asks for one, and its key.
    pub certificate: Option<CertificateFiles>,
    /// True if that certificate is the one of the SPIFFE Workload API instead.
    pub shows_svid: bool,
    /// The SPIFFE ids of which it must have one, and no name. Empty: it has a name.
    pub ids: Vec<SpiffePattern>,
    /// The revocation lists of the authorities in `ca`. Empty: none is asked for.
    pub crl: Vec<PathBuf>,
    /// True if these lists count although they have expired.
    pub accepts_expired_crl: bool,
}

/// A PROXY header for an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyProtocol {
    /// Version 2, the binary one.
    V2,
}

/// The settings that a hold rule adds to its action. `of_requests`: requests are held, and no
/// connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hold {
    /// The list that the verdict "always" adds a name to.
    pub file: Option<PathBuf>,
    pub of_requests: bool,
}

/// The alert of a refuse rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RefusalAlert {
    /// The reason's.
    #[default]
    ByReason,
    /// This one.
    Always(AlertDescription),
    /// None: the client learns nothing.
    Silence,
}

/// `action = "refuse"`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Refuse {
    pub alert: RefusalAlert,
    /// A line that a refused client of a proxy is shown.
    pub message: Option<Box<str>>,
}

/// Says if the responses of a rule are compressed, and who may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CompressionMode {
    /// Once: by the upstream, else by Eyelet.
    #[default]
    On,
    /// By nobody: the upstream is asked for identity.
    None,
    /// The upstream decides. Eyelet changes nothing.
    Off,
}

/// The compression of the responses of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Compression {
    /// Says if they are compressed, and who may.
    pub mode: CompressionMode,
    /// True if server-sent events are, too.
    pub event_streams: bool,
    /// The effort. `None`: high while the worker has time, less when it is busy.
    pub effort: Option<Effort>,
    /// True if bodies of requests are coded for an upstream that accepts it. Its operator says that
    /// it decodes them for each resource.
    pub code_requests: bool,
    /// True if coded bodies of requests are decoded for the upstream, and clients are told so.
    pub decode_requests: bool,
    /// True if the upstream is asked for identity, so that it need not compress.
    pub offload: bool,
    /// True if responses that may contain a secret next to reflected input stay uncompressed.
    pub breach_rule: bool,
    /// The pages whose requests are exempt from that.
    pub breach_allow: Allowed,
    /// Most bytes of random padding added to each response. 0: none.
    pub length_hiding: usize,
    /// Responses to these paths become dictionaries for later ones.
    pub dictionary: Vec<FilePattern>,
    /// True if all clients that may see such a response get the same one, so that credentials do
    /// not keep it from becoming a dictionary.
    pub dictionary_shared: bool,
}

impl Default for Compression {
    fn default() -> Self {
        Self {
            mode: CompressionMode::On,
            event_streams: false,
            effort: None,
            code_requests: false,
            decode_requests: false,
            offload: false,
            breach_rule: true,
            breach_allow: Allowed::default(),
            length_hiding: 0,
            dictionary: Vec::new(),
            dictionary_shared: false,
        }
    }
}

/// The settings of the dictionaries that are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dictionaries {
    /// A folder. `None`: in memory only.
    pub path: Option<PathBuf>,
    /// Most bytes of bodies and deltas, in memory and again on disk.
    pub bytes_max: usize,
}

impl Default for Dictionaries {
    fn default() -> Self {
        Self { path: None, bytes_max: 64 << 20 }
    }
}

/// The settings of what is logged of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The place of the access log.
    pub access: Access,
    /// True if entries contain JA4, which costs two hashes per connection.
    pub ja4: bool,
    /// The form of lines.
    pub format: LogFormat,
    /// True if each connection that goes on has a line when it is decided, too.
    pub decided: bool,
}

/// The form of lines of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    #[default]
    Json,
    /// Text for people.
    Text,
}

/// The place of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// `"stdout"`.
    Stdout,
    /// `"off"`.
    Off,
    /// A file, appended to.
    File(PathBuf),
}

/// The settings of how evidence for names is gathered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvidenceSettings {
    /// A PEM file of CA certificates for the certificates of destinations. `None`: the system's.
    pub ca: Option<PathBuf>,
    /// The time for which an address counts since it was resolved, a certificate since it was seen.
    pub history: Duration,
    /// For gathering one piece of evidence.
    pub timeout: Duration,
}

impl Default for EvidenceSettings {
    fn default() -> Self {
        Self { ca: None, history: Duration::from_secs(3600), timeout: Duration::from_secs(3) }
    }
}

/// Session tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tickets {
    /// True if clients get tickets, and can resume.
    pub enabled: bool,
    /// The least time that a ticket is good. Its key seals for so long, and opens for as long more.
    pub lifetime: Duration,
}

impl Default for Tickets {
    fn default() -> Self {
        Self { enabled: true, lifetime: Duration::from_hours(12) }
    }
}

impl Default for LogSettings {
    fn default() -> Self {
        let (access, format) = (Access::Stdout, LogFormat::Json);
        Self { access, ja4: true, format, decided: false }
    }
}

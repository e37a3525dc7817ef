//! The facts that are known about a connection: gathered while it is active, kept in 64 bytes while
//! it is parked, and logged at its end.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;

use eyelet_wire::connect::Target;
use eyelet_wire::hello::protocol_names;
use eyelet_wire::ja4::Ja4;
use serde::Serialize;
use smallvec::SmallVec;

use crate::evidence::Evidence;
use crate::held::HeldInfo;
use crate::labels::Labels;
use crate::reason::named::named;
use crate::reason::{Class, Reason};
use crate::upstream::CountedAt;
use crate::upstream_tls::UpstreamTlsInfo;
use eyelet_memory::budget::Budget;
use eyelet_memory::interner::{Heap, Interner, Name, Symbol};

/// Nanoseconds of a millisecond.
pub const NS_PER_MS: u64 = 1_000_000;

named! {
    /// The way in which a connection ended.
    Outcome {
        /// The rule's action could not begin, or the connection ended before a rule was found.
        Failed = "failed",
        /// The client left before that, or in the middle of a request. Nothing is wrong.
        Left = "left",
        /// In the clear from the client, and by TLS to its upstream.
        Originated = "originated",
        /// Redirected to https:// by a listener of kind `http_redirect`.
        Redirected = "redirected",
        /// Refused by a rule, or because no rule matched.
        Refused = "refused",
        /// Passed through untouched.
        Spliced = "spliced",
        /// TLS ended here.
        Terminated = "terminated",
    }
}

/// The end of a connection, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The way in which it ended.
    pub outcome: Outcome,
    /// The reason of the end.
    pub reason: Reason,
}

impl End {
    /// An end before the rule's action began, or of a request without a whole response.
    pub fn failed(reason: Reason) -> Self {
        let outcome = match reason.class() {
            Class::Left => Outcome::Left,
            _ => Outcome::Failed,
        };
        Self { outcome, reason }
    }
}

/// The protocol in which a client asked a proxy for its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedBy {
    /// HTTP CONNECT.
    Connect,
    /// SOCKS 5.
    Socks,
}

/// The source of a connection's destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DestinationSource {
    /// The kernel: the client's packets were routed there before they were intercepted.
    #[default]
    Kernel,
    /// The handover of another process, which does not say who.
    Imported,
    ProxyHeader,
    /// The name in the client's hello: what it has dialled only stands for a name.
    Hello,
}

/// The client of a proxy. Serialized as the access log has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct KnownClient {
    /// The user that the client has named, with a token that was right.
    #[serde(rename = "proxy_user")]
    pub user: Option<Box<str>>,
    /// The common name in its certificate, if a listener of this edge has verified it, or its
    /// SPIFFE id, if its rule has.
    #[serde(rename = "client_cert")]
    pub certificate: Option<Box<str>>,
    /// The cgroup of the process at the other end of a Unix socket.
    #[serde(rename = "peer_cgroup")]
    pub cgroup: Option<Box<str>>,
}

impl Heap for KnownClient {
    fn heap_bytes(&self) -> usize {
        let Self { user, certificate, cgroup } = self;
        [user, certificate, cgroup].into_iter().flatten().map(|text| text.len()).sum()
    }
}

/// The decision about a connection, and its facts. It is the same for many connections, so parked
/// ones share it through [`SharedInfo`], except for what each keeps itself. What is usual is in it
/// and not on the heap: a small block there, written among a request's, keeps the page of its
/// neighbours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Decided {
    /// The names that the configuration that decided gives its listeners and rules.
    pub labels: Labels,
    /// Index of the listener.
    pub listener: u16,
    /// The target of its CONNECT request, as `host:port`.
    pub connect: Option<Name>,
    /// The client of a proxy, if rules know it.
    pub requester: Option<Arc<KnownClient>>,
    /// True if it came from this process: from one listener to another, or back to the same one.
    pub is_handed: bool,
    /// The number of times that it may have come back to this process already.
    pub hop_count: u8,
    /// The client's destination, if a rule asked for it.
    pub destination: Option<SocketAddr>,
    /// The source of the destination.
    pub destination_source: DestinationSource,
    /// The name in the hello.
    pub sni: Option<Box<str>>,
    /// True if the hello has a `server_name` extension without a usable name.
    pub sni_malformed: bool,
    /// The protocols in the hello.
    pub alpn: Option<Alpn>,
    /// True if `alpn` is all that the hello offers, so that rules can be asked about it again.
    pub alpn_whole: bool,
    /// The fingerprint of the hello.
    pub ja4: Option<Ja4>,
    /// True if the hello has the ECH extension.
    pub ech: bool,
    /// The highest version offered, or the negotiated one if TLS ends here.
    pub tls_version: Option<u16>,
    /// The authorities that have vouched for the client's certificate; 0: none was asked for.
    pub client_roots: u64,
    /// The client's certificate in DER, if its rule tells the upstream. Boxed within, so that this
    /// value is no wider for it.
    pub client_certificate: Option<Arc<Box<[u8]>>>,
    /// True if HTTP/2 was negotiated for an HTTP upstream.
    pub http2: bool,
    /// Index of the rule.
    pub rule: Option<u32>,
    /// The upstream that was dialled.
    pub upstream: Option<UpstreamName>,
    /// The terms that Eyelet and a `tls://` upstream agreed on.
    pub upstream_tls: Option<Arc<UpstreamTlsInfo>>,
    /// The counters of the connection, if its upstream is one of several. They stay in this
    /// process: one that takes the connection over finds its own by the upstream's address.
    pub counted_at: Option<CountedAt>,
    /// The result of the peers' negotiation about TLS compression.
    pub tls_compression: Option<TlsCompression>,
    /// The shadow rules that would have decided, and their outcomes.
    pub shadow: Vec<(u32, Outcome)>,
    /// The evidence that rules have asked for.
    pub evidence: Option<Evidence>,
    /// The fate of the connection, if it was held. It stays in this process.
    pub held: Option<HeldInfo>,
}

/// The two counts in front of what an `Arc` holds.
const ARC_BYTES: usize = 2 * size_of::<usize>();

impl Heap for Decided {
    fn heap_bytes(&self) -> usize {
        let upstream = match &self.upstream {
            Some(UpstreamName::Name(name)) => name.len(),
            Some(UpstreamName::Address(_)) | None => 0,
        };
        self.labels.heap_bytes()
            + self.connect.as_ref().map_or(0, Heap::heap_bytes)
            + self.requester.as_ref().map_or(0, |requester| {
                ARC_BYTES + size_of::<KnownClient>() + requester.heap_bytes()
            })
            + self.sni.as_ref().map_or(0, |name| name.len())
            + upstream
            + self.client_certificate_bytes()
            + self
                .upstream_tls
                .as_ref()
                .map_or(0, |tls| ARC_BYTES + size_of::<UpstreamTlsInfo>() + tls.heap_bytes())
            + self.counted_at.as_ref().map_or(0, Heap::heap_bytes)
            + self.alpn.as_ref().map_or(0, Heap::heap_bytes)
            + size_of_val(&self.shadow[..])
            + self.evidence.as_ref().map_or(0, Heap::heap_bytes)
    }
}

impl Decided {
    /// True if somebody chose the destination freely, by CONNECT, in a PROXY header or by a name.
    /// Such a destination may lead where the kernel would route no packet of theirs, as to
    /// loopback.
    pub fn is_chosen(&self) -> bool {
        let is_said = matches!(
            self.destination_source,
            DestinationSource::ProxyHeader | DestinationSource::Hello
        );
        self.connect.is_some() || is_said
    }

    /// True if the destination may be chosen freely. `accepts_proxy_headers`: the listener of the
    /// connection takes PROXY headers, so another process may have read the destination from one.
    pub fn may_be_chosen(&self, accepts_proxy_headers: bool) -> bool {
        let is_unknown = self.destination_source == DestinationSource::Imported;
        self.is_chosen() || is_unknown && accepts_proxy_headers
    }

    /// Bytes that the client's certificate holds.
    pub fn client_certificate_bytes(&self) -> usize {
        let leaf = self.client_certificate.as_ref();
        leaf.map_or(0, |leaf| ARC_BYTES + size_of_val(&**leaf) + leaf.len())
    }
}

/// Most bytes of a hello's ALPN list that are kept. A browser's has 12. One name of the
/// greatest length fits (RFC 7301 section 3.1).
const ALPN_BYTES_MAX: usize = 256;

/// Bytes of an ALPN list that needs no memory of its own.
const SHORT_ALPN_BYTES: usize = 16;

/// The protocols that a hello offers, each after its length. Kept as bytes, because replacement
/// characters for invalid UTF-8 take three times as much.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Alpn(SmallVec<[u8; SHORT_ALPN_BYTES]>);

impl Heap for Alpn {
    fn heap_bytes(&self) -> usize {
        if self.0.spilled() { self.0.capacity() } else { 0 }
    }
}

impl Alpn {
    /// The first names that fit `ALPN_BYTES_MAX`. `None` if there are none.
    pub fn new<T: AsRef<[u8]>>(names: impl Iterator<Item = T>) -> Option<Self> {
        let mut list = SmallVec::new();
        for name in names {
            let name = name.as_ref();
            let Ok(length) = u8::try_from(name.len()) else { break };
            if list.len() + 1 + name.len() > ALPN_BYTES_MAX {
                break;
            }
            list.push(length);
            list.extend_from_slice(name);
        }
        (!list.is_empty()).then_some(Self(list))
    }

    /// The list, as [`Alpn::as_bytes`] gave it. `None` if it is none, or longer than one is here.
    pub(crate) fn from_bytes(list: &[u8]) -> Option<Self> {
        let alpn = Self(list.into());
        let whole = protocol_names(list).map(|name| 1 + name.as_bytes().len()).sum::<usize>();
        (whole == list.len() && (1..=ALPN_BYTES_MAX).contains(&whole)).then_some(alpn)
    }

    /// The list.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Bytes of the list.
    pub fn len_bytes(&self) -> usize {
        self.0.len()
    }

    /// The names, with U+FFFD for invalid UTF-8.
    pub fn names(&self) -> impl Iterator<Item = Cow<'_, str>> {
        protocol_names(&self.0).map(|name| String::from_utf8_lossy(name.as_bytes()))
    }
}

/// The upstream that was dialled.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum UpstreamName {
    Address(SocketAddr),
    /// A name that could not be dialled, or a Unix socket.
    Name(Box<str>),
}

impl UpstreamName {
    /// Parses an address; any other text is a name.
    pub fn of(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Name(text.into()), Self::Address)
    }

    /// The text that [`UpstreamName::of`] parses.
    pub fn to_text(&self) -> String {
        match self {
            Self::Address(address) => address.to_string(),
            Self::Name(name) => name.to_string(),
        }
    }
}

named! {
    /// The result of the peers' negotiation about TLS compression.
    TlsCompression {
        /// The hello offers none.
        None = "none",
        /// The hello offers some. The server chose none, or its choice was not seen.
        Offered = "offered",
        /// The server chose it.
        Chosen = "chosen",
    }
}

/// The info of an active connection.
#[derive(Debug)]
pub struct ConnectionInfo {
    /// Unique in this process.
    pub id: u64,
    /// Nanoseconds since 1970 at accept, by the steady clock.
    pub started_unix_ns: u64,
    /// The client's address.
    pub client: SocketAddr,
    /// The target of its CONNECT request, if there was one.
    pub connect: Option<Box<Target>>,
    /// The protocol in which the client asked for its target, if it still waits for an answer.
    pub owes_answer: Option<AskedBy>,
    /// True if the rules have decided it. Some connections are decided anew.
    pub is_decided: bool,
    /// The decision so far.
    pub decided: Decided,
    /// Bytes written to the upstream.
    pub bytes_to_upstream: u64,
    /// Bytes written to the client.
    pub bytes_to_client: u64,
    /// True if it is a flow of QUIC.
    pub is_quic: bool,
    /// Its datagrams to the upstream, and to the client.
    pub datagrams: [u64; 2],
}

/// A parked connection's part of the bytes of shared values is kept in these steps: those in which
/// a source is charged (`source.rs` of the engine).
pub const SHARED_STEP_BYTES: usize = 256;
/// A mark: the connection is settled, a long one.
const SETTLED: u8 = 1;
/// A mark: the server has chosen TLS compression.
const COMPRESSION_CHOSEN: u8 = 2;

/// The info of a parked connection: 64 bytes.
#[derive(Debug)]
pub struct Parked {
    id: u64,
    started_unix_ns: u64,
    client_ip: [u8; 16],
    client_port: u16,
    /// [`SETTLED`] and [`COMPRESSION_CHOSEN`].
    marks: u8,
    /// See [`Parked::shared_bytes`], in steps of [`SHARED_STEP_BYTES`].
    shared_steps: u8,
    /// The rule's index, from 1. Not in what is shared, which fewer connections could then share.
    rule: Option<NonZeroU32>,
    origin: Symbol,
    name: Option<Symbol>,
    /// Bytes written to the upstream.
    pub bytes_to_upstream: u64,
    /// Bytes written to the client.
    pub bytes_to_client: u64,
}

impl ConnectionInfo {
    /// The info of a connection of which nothing else is known yet.
    pub fn new(id: u64, started_unix_ns: u64, client: SocketAddr) -> Self {
        Self {
            id,
            started_unix_ns,
            client,
            connect: None,
            owes_answer: None,
            is_decided: false,
            decided: Decided::default(),
            bytes_to_upstream: 0,
            bytes_to_client: 0,
            is_quic: false,
            datagrams: [0; 2],
        }
    }

    /// Milliseconds since 1970 at accept.
    pub fn started_unix_ms(&self) -> u64 {
        self.started_unix_ns / NS_PER_MS
    }

    /// The measurements for its log entry.
    pub fn measured(&self, now_unix_ms: u64) -> Measured {
        let started_unix_ms = self.started_unix_ms();
        Measured {
            id: self.id,
            started_unix_ms,
            duration_ms: now_unix_ms.saturating_sub(started_unix_ms),
            client: self.client,
            bytes_to_upstream: self.bytes_to_upstream,
            bytes_to_client: self.bytes_to_client,
            datagrams: self.is_quic.then_some(self.datagrams),
        }
    }

    /// Takes the info out of a connection whose task ends.
    pub fn take(&mut self) -> Self {
        let decided = std::mem::take(&mut self.decided);
        Self { decided, connect: self.connect.take(), ..*self }
    }

    /// A copy without its CONNECT request, which a parked connection does not have.
    pub fn copy(&self) -> Self {
        Self { decided: self.decided.clone(), connect: None, ..*self }
    }

    /// Counts its times by another clock: `to` is the time at which that one shows `from`.
    pub fn follow_clock(&mut self, from_unix_ms: u64, to_unix_ms: u64) {
        let ago_ms = from_unix_ms.saturating_sub(self.started_unix_ms());
        self.started_unix_ns = to_unix_ms.saturating_sub(ago_ms).saturating_mul(NS_PER_MS);
        if let Some(evidence) = &mut self.decided.evidence {
            evidence.follow_clock(from_unix_ms, to_unix_ms);
        }
    }

    /// The part that a parked connection keeps.
    pub fn park(mut self, shared: &mut SharedInfo) -> Parked {
        let rule = self.decided.rule.take().and_then(|rule| NonZeroU32::new(rule.wrapping_add(1)));
        let name = self.decided.sni.take().map(|name| shared.names.intern(name.into()));
        let origin = shared.intern(self.decided);
        let client_ip = match self.client.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        Parked {
            id: self.id,
            started_unix_ns: self.started_unix_ns,
            client_ip,
            client_port: self.client.port(),
            marks: 0,
            shared_steps: shared.steps_of(origin, name),
            rule,
            origin,
            name,
            bytes_to_upstream: self.bytes_to_upstream,
            bytes_to_client: self.bytes_to_client,
        }
    }
}

impl Parked {
    /// The info again, for a connection that becomes active.
    pub fn wake(self, shared: &mut SharedInfo) -> ConnectionInfo {
        let info = self.info(shared);
        shared.forget(&self);
        info
    }

    /// The info again, to be logged.
    pub fn info(&self, shared: &SharedInfo) -> ConnectionInfo {
        let mut decided = shared.restore(self.origin).unwrap_or_default();
        decided.sni = self.name(shared).map(Into::into);
        decided.rule = self.rule_index();
        if self.marks & COMPRESSION_CHOSEN != 0 {
            decided.tls_compression = Some(TlsCompression::Chosen);
        }
        ConnectionInfo {
            is_decided: true,
            decided,
            bytes_to_upstream: self.bytes_to_upstream,
            bytes_to_client: self.bytes_to_client,
            ..ConnectionInfo::new(self.id, self.started_unix_ns, self.client())
        }
    }

    /// Unique in this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Milliseconds since 1970 at accept.
    pub fn started_unix_ms(&self) -> u64 {
        self.started_unix_ns / NS_PER_MS
    }

    /// The client's address, with its port.
    pub fn client(&self) -> SocketAddr {
        SocketAddr::new(self.client_ip(), self.client_port)
    }

    /// The name in the hello.
    pub fn name<'a>(&self, shared: &'a SharedInfo) -> Option<&'a str> {
        self.name.and_then(|name| shared.names.get(name)).map(Name::as_str)
    }

    pub fn rule_index(&self) -> Option<u32> {
        self.rule.map(|rule| rule.get() - 1)
    }

    /// Marks the connection as settled: a long one.
    pub fn settle(&mut self) {
        self.marks |= SETTLED;
    }

    /// Notes that the server has chosen TLS compression.
    pub fn choose_compression(&mut self) {
        self.marks |= COMPRESSION_CHOSEN;
    }

    /// True if it is settled.
    pub fn is_settled(&self) -> bool {
        self.marks & SETTLED != 0
    }

    /// Its part of the memory of the values that it shares: each value's bytes, divided by the
    /// connections that had it when this one was parked, in whole [`SHARED_STEP_BYTES`]. Its source
    /// pays for them, although [`SharedInfo`] counts them: otherwise values that nobody shares are
    /// free.
    pub fn shared_bytes(&self) -> usize {
        usize::from(self.shared_steps) * SHARED_STEP_BYTES
    }

    /// The client's address.
    pub fn client_ip(&self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::from(self.client_ip)).to_canonical()
    }

    /// Its rule, and the names of the configuration that the rule is of.
    pub fn rule(&self, shared: &SharedInfo) -> (Labels, Option<u32>) {
        let labels = self.decided(shared).map(|decided| decided.labels.clone());
        (labels.unwrap_or_default(), self.rule_index())
    }

    /// The upstream that was dialled.
    pub fn upstream<'a>(&self, shared: &'a SharedInfo) -> Option<Cow<'a, UpstreamName>> {
        let origin = shared.origins.get(self.origin)?;
        let dialled = origin.destination.filter(|_| origin.is_dialled).map(UpstreamName::Address);
        let decided = || self.decided(shared)?.upstream.as_ref().map(Cow::Borrowed);
        dialled.map(Cow::Owned).or_else(decided)
    }

    /// The decision about it, without what it keeps of its own and what differs between origins.
    pub fn decided<'a>(&self, shared: &'a SharedInfo) -> Option<&'a Decided> {
        shared.decided.get(shared.origins.get(self.origin)?.decided)
    }

    /// Bytes moved so far, both ways.
    pub fn moved(&self) -> u64 {
        self.bytes_to_upstream + self.bytes_to_client
    }
}

/// The measurements of a connection at its end.
#[derive(Debug)]
pub struct Measured {
    /// Unique in this process: worker in the upper 16 bits, count below.
    pub id: u64,
    /// Start, in milliseconds since 1970 by the steady clock.
    pub started_unix_ms: u64,
    /// From accept to the end.
    pub duration_ms: u64,
    /// The client's address, or the one in its PROXY header.
    pub client: SocketAddr,
    /// Bytes written to the upstream.
    pub bytes_to_upstream: u64,
    /// Bytes written to the client: ciphertext of a spliced, plaintext of a terminated connection.
    pub bytes_to_client: u64,
    /// Datagrams of a flow of QUIC to the upstream, and to the client.
    pub datagrams: Option<[u64; 2]>,
}

/// The values that parked connections share: one copy of each distinct value, as long as a
/// connection uses it. Bounded by the number of parked connections.
pub struct SharedInfo {
    decided: Interner<Decided>,
    origins: Interner<Origin>,
    names: Interner<Name>,
}

/// The decision, and the part of it that differs between origins: connections to many origins share
/// the rest.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Origin {
    /// The part that all origins share.
    decided: Symbol,
    connect: Option<Symbol>,
    destination: Option<SocketAddr>,
    /// True if the destination is the upstream that was dialled. The rest then has none.
    is_dialled: bool,
    evidence: Option<Evidence>,
    held: Option<HeldInfo>,
}

impl Heap for Origin {
    fn heap_bytes(&self) -> usize {
        self.evidence.as_ref().map_or(0, Heap::heap_bytes)
    }
}

impl SharedInfo {
    /// An empty value.
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self {
            decided: Interner::new(budget),
            origins: Interner::new(budget),
            names: Interner::new(budget),
        }
    }

    /// True if no connection uses it.
    pub fn is_empty(&self) -> bool {
        self.decided.is_empty() && self.origins.is_empty() && self.names.is_empty()
    }

    fn intern(&mut self, mut decided: Decided) -> Symbol {
        let destination = decided.destination.take();
        let upstream = destination.map(UpstreamName::Address);
        let is_dialled = upstream.is_some() && upstream == decided.upstream;
        if is_dialled {
            decided.upstream = None;
        }
        let connect = decided.connect.take().map(|target| self.names.intern(target));
        let (evidence, held) = (decided.evidence.take(), decided.held.take());
        let decided = self.decided.intern(decided);
        self.origins.intern(Origin { decided, connect, destination, is_dialled, evidence, held })
    }

    /// Steps of one connection's part of the bytes of these values. 255 are 64 KiB: more than a
    /// certificate and all names take.
    fn steps_of(&self, origin: Symbol, name: Option<Symbol>) -> u8 {
        let of_name = |name: Symbol| self.names.part_bytes(name);
        let of_origin =
            self.origins.get(origin).map_or(0, |&Origin { decided, connect, .. }| {
                self.decided.part_bytes(decided) + connect.map_or(0, of_name)
            });
        let part = self.origins.part_bytes(origin) + of_origin + name.map_or(0, of_name);
        // To the nearest one: what many share costs each of them nothing.
        u8::try_from((part + SHARED_STEP_BYTES / 2) / SHARED_STEP_BYTES).unwrap_or(u8::MAX)
    }

    fn restore(&self, origin: Symbol) -> Option<Decided> {
        let origin = self.origins.get(origin)?;
        let mut decided = self.decided.get(origin.decided)?.clone();
        decided.connect = origin.connect.and_then(|target| self.names.get(target)).cloned();
        decided.destination = origin.destination;
        if origin.is_dialled {
            decided.upstream = origin.destination.map(UpstreamName::Address);
        }
        decided.evidence.clone_from(&origin.evidence);
        decided.held = origin.held;
        Some(decided)
    }

    /// Ends this connection's use of its shared values. It is about to end or to wake.
    pub fn forget(&mut self, info: &Parked) {
        if let Some(&Origin { decided, connect, .. }) = self.origins.get(info.origin) {
            self.origins.release(info.origin);
            self.decided.release(decided);
            connect.into_iter().for_each(|target| self.names.release(target));
        }
        if let Some(name) = info.name {
            self.names.release(name);
        }
    }
}

#[cfg(test)]
mod tests;

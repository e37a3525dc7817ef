//! Open connections as a list: the fields of each, and the query that selects them.

use std::borrow::Cow;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use eyelet_memory::interner::Name;
use eyelet_wire::local_peer::LocalPeer;
use eyelet_wire::version;
use ipnet::IpNet;
use serde::{Serialize, Serializer};

use crate::info::{ConnectionInfo, NS_PER_MS, Parked, SharedInfo, UpstreamName};
use crate::labels::Labels;
use crate::reason::named::named;
use streams::{StreamCounts, StreamKind};

pub mod streams;

/// Bits of an id that count a worker's connections. The bits above are the worker.
const COUNT_BITS: u32 = 48;

/// A connection's id, as the access log writes it: the worker that has accepted it,
/// and its count there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u64);

impl ConnectionId {
    /// Parses `0-17`. One spelling only.
    pub fn parse(text: &str) -> Option<Self> {
        let (worker, count) = text.split_once('-')?;
        let (worker, count) = (worker.parse::<u16>().ok()?, count.parse::<u64>().ok()?);
        let id = Self(u64::from(worker) << COUNT_BITS | count);
        (count >> COUNT_BITS == 0 && id.to_string() == text).then_some(id)
    }

    /// The index of the worker that has accepted it. An upgrade may give it to another one.
    fn worker(self) -> usize {
        (self.0 >> COUNT_BITS) as usize
    }
}

impl std::fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.worker(), self.0 & ((1 << COUNT_BITS) - 1))
    }
}

impl Serialize for ConnectionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

named! {
    /// The stage of a connection.
    #[derive(Default)]
    State {
        /// Its hello, or what comes before it, is being read.
        #[default]
        Peeking = "peeking",
        /// A fact that a rule needs is being fetched.
        Deciding = "deciding",
        /// A rule has decided: its TLS handshake is under way.
        Handshaking = "handshaking",
        /// A rule has decided: its upstream is being dialled.
        Dialling = "dialling",
        /// Its requests are being served.
        Serving = "serving",
        /// It is parked until somebody decides.
        Held = "held",
        /// It is parked, and bytes are in transit.
        Moving = "moving",
        /// It is parked, and idle.
        Parked = "parked",
    }
}

impl State {
    /// The state that is called so.
    pub fn called(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|state| state.name() == name)
    }
}

/// The kind of bytes that pass on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionKind {
    /// None yet: somebody is to decide.
    Held,
    /// The client's own bytes, untouched.
    Spliced,
    /// The client's own datagrams: a flow of QUIC.
    Quic,
    /// TLS ends here, and the upstream gets a plain stream.
    Tcp,
    /// HTTP/1.1 in the clear. TLS begins here.
    Cleartext,
    /// Bytes of any protocol in the clear. TLS begins here.
    Originated,
    /// TLS ends here: HTTP/1.1.
    Http1,
    /// TLS ends here: HTTP/2.
    Http2,
    /// TLS ends here: a WebSocket.
    WebSocket,
}

/// The part of an active connection that its slot shows. Its task has everything else.
#[derive(Debug)]
pub struct Seen {
    /// Its stage.
    pub state: State,
    /// The time at which the dial of its upstream began, which waits: nanoseconds of the worker's
    /// clock.
    pub dials_since_ns: Option<u64>,
    id: u64,
    started_unix_ns: u64,
    client: SocketAddr,
    labels: Labels,
    listener: u16,
    rule: Option<u32>,
    sni: Option<Name>,
    kind: Option<ConnectionKind>,
    tls_version: Option<u16>,
    bytes_to_upstream: u64,
    bytes_to_client: u64,
    /// The bytes that are counted beside these while its requests are served.
    live: Option<LiveBytes>,
}

/// Bytes that were written to the upstream, and to the client, since a connection is being served.
pub type LiveBytes = (Rc<Cell<u64>>, Rc<Cell<u64>>);

impl Seen {
    /// The facts of a connection that was just accepted.
    pub fn accepted(info: &ConnectionInfo) -> Self {
        Self {
            state: State::Peeking,
            dials_since_ns: None,
            id: info.id,
            started_unix_ns: info.started_unix_ns,
            client: info.client,
            labels: info.decided.labels.clone(),
            listener: info.decided.listener,
            rule: None,
            sni: None,
            kind: None,
            tls_version: None,
            bytes_to_upstream: 0,
            bytes_to_client: 0,
            live: None,
        }
    }

    /// Notes what is known of a connection in this state. It allocates for a long name only.
    pub fn note(&mut self, state: State, info: &ConnectionInfo) {
        let decided = &info.decided;
        let http = if decided.http2 { ConnectionKind::Http2 } else { ConnectionKind::Http1 };
        self.state = state;
        // A PROXY header, or a reload, may have changed these.
        self.client = info.client;
        self.labels.clone_from(&decided.labels);
        self.listener = decided.listener;
        self.rule = decided.rule;
        self.sni = decided.sni.as_deref().map(Name::from);
        self.kind = (state == State::Serving).then_some(http);
        self.tls_version = decided.tls_version;
        self.bytes_to_upstream = info.bytes_to_upstream;
        self.bytes_to_client = info.bytes_to_client;
    }

    /// From now on `live` counts the bytes beside those of `info`.
    pub fn count_live(&mut self, info: &ConnectionInfo, live: LiveBytes) {
        (self.bytes_to_upstream, self.bytes_to_client) =
            (info.bytes_to_upstream, info.bytes_to_client);
        self.live = Some(live);
    }

    /// Calls `then` with what is shown.
    pub fn shown<T>(&self, then: impl FnOnce(&ConnectionView<'_>) -> T) -> T {
        let live = self.live.as_ref();
        let (up, down) = live.map_or((0, 0), |(up, down)| (up.get(), down.get()));
        then(&ConnectionView {
            id: self.id,
            state: self.state,
            kind: self.kind,
            started_unix_ms: self.started_unix_ns / NS_PER_MS,
            client: self.client,
            labels: &self.labels,
            listener: self.listener,
            rule: self.rule,
            sni: self.sni.as_ref().map(Name::as_str),
            upstream: None,
            tls_version: self.tls_version,
            idle_ms: None,
            bytes_to_upstream: self.bytes_to_upstream.saturating_add(up),
            bytes_to_client: self.bytes_to_client.saturating_add(down),
            resting: StreamCounts::default(),
            requests: Vec::new(),
        })
    }
}

/// A connection, as its slot knows it. Nothing is copied for one that is not asked for.
#[derive(Clone, Debug)]
pub struct ConnectionView<'a> {
    pub id: u64,
    /// Its stage.
    pub state: State,
    /// The kind of bytes that pass on it, once that is known.
    pub kind: Option<ConnectionKind>,
    /// Start, in milliseconds since 1970 by the steady clock.
    pub started_unix_ms: u64,
    /// The client's address.
    pub client: SocketAddr,
    /// The names of its listener and of its rule.
    pub labels: &'a Labels,
    /// The index of the listener.
    pub listener: u16,
    /// The index of the rule.
    pub rule: Option<u32>,
    /// The name in the hello.
    pub sni: Option<&'a str>,
    /// The upstream that it has.
    pub upstream: Option<Cow<'a, UpstreamName>>,
    /// The version of TLS that was offered or negotiated.
    pub tls_version: Option<u16>,
    /// The time for which no byte has moved. Only a parked connection knows.
    pub idle_ms: Option<u64>,
    /// Bytes written to the upstream.
    pub bytes_to_upstream: u64,
    /// Bytes written to the client.
    pub bytes_to_client: u64,
    /// The requests and streams that rest on it.
    pub resting: StreamCounts,
    /// The first of them, or the request that is held.
    pub requests: Vec<ListedRequest>,
}

impl<'a> ConnectionView<'a> {
    /// The view of a parked connection. It has an upstream now if it has a socket to one, or if
    /// what rests on it has asked one.
    pub fn parked(
        info: &'a Parked,
        shared: &'a SharedInfo,
        (state, kind): (State, ConnectionKind),
        idle_ms: u64,
        (has_socket, resting): (bool, StreamCounts),
    ) -> Option<Self> {
        let has_upstream = has_socket || resting.all() > resting.of(StreamKind::Held);
        let decided = info.decided(shared)?;
        Some(Self {
            id: info.id(),
            state,
            kind: Some(kind),
            started_unix_ms: info.started_unix_ms(),
            client: info.client(),
            labels: &decided.labels,
            listener: decided.listener,
            rule: info.rule_index(),
            sni: info.name(shared),
            upstream: has_upstream.then(|| info.upstream(shared)).flatten(),
            tls_version: decided.tls_version,
            idle_ms: Some(idle_ms),
            bytes_to_upstream: info.bytes_to_upstream,
            bytes_to_client: info.bytes_to_client,
            resting,
            requests: Vec::new(),
        })
    }
}

/// The connections that a query selects: all its conditions hold for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub id: Option<ConnectionId>,
    /// The name of the rule.
    pub rule: Option<String>,
    /// The name in the hello, in lower case.
    pub sni: Option<String>,
    /// A network of clients.
    pub client: Option<IpNet>,
    /// Their stage.
    pub state: Option<State>,
    /// Least age, in milliseconds.
    pub age_min_ms: u64,
    /// Fewest bytes, both ways.
    pub bytes_min: u64,
}

impl Filter {
    /// True if it asks for all connections.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// True if it asks for this connection.
    pub fn takes(&self, shown: &ConnectionView<'_>, now_unix_ms: u64) -> bool {
        let rule = || shown.rule.map(|rule| shown.labels.rule(rule));
        let net = |net: &IpNet| net.contains(&shown.client.ip().to_canonical());
        let age_ms = now_unix_ms.saturating_sub(shown.started_unix_ms);
        self.id.is_none_or(|id| id.0 == shown.id)
            && self.state.is_none_or(|state| state == shown.state)
            && age_ms >= self.age_min_ms
            && shown.bytes_to_upstream.saturating_add(shown.bytes_to_client) >= self.bytes_min
            && self.client.as_ref().is_none_or(net)
            && self.sni.as_deref().is_none_or(|sni| shown.sni == Some(sni))
            && self.rule.as_deref().is_none_or(|name| rule() == Some(name))
    }
}

/// One connection of a list. Its members are those of the access log, where that has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Its id, as the access log has it.
    pub id: ConnectionId,
    /// Its stage.
    pub state: State,
    /// The kind of bytes that pass on it.
    pub kind: Option<ConnectionKind>,
    /// The name of the listener in the configuration.
    pub listener: Box<str>,
    /// The name of the rule.
    pub rule: Option<Box<str>>,
    /// The client's address, or who it is at a Unix socket.
    #[serde(serialize_with = "client")]
    pub client: SocketAddr,
    /// The name in the hello.
    pub sni: Option<Box<str>>,
    pub tls_version: Option<&'static str>,
    /// The upstream that it has.
    pub upstream: Option<UpstreamName>,
    /// Milliseconds since accept.
    pub age_ms: u64,
    /// Milliseconds since a byte last moved, where that is known.
    pub idle_ms: Option<u64>,
    /// Bytes written to the upstream.
    pub bytes_to_upstream: u64,
    /// Bytes written to the client.
    pub bytes_to_client: u64,
    /// The requests and streams that rest on it.
    pub resting: StreamCounts,
    /// The first of them, or the request that is held.
    pub requests: Vec<ListedRequest>,
}

impl Listed {
    /// A copy of what is shown.
    pub fn new(shown: &ConnectionView<'_>, now_unix_ms: u64) -> Self {
        Self {
            id: ConnectionId(shown.id),
            state: shown.state,
            kind: shown.kind,
            listener: shown.labels.listener(shown.listener).into(),
            rule: shown.rule.map(|rule| shown.labels.rule(rule).into()),
            client: shown.client,
            sni: shown.sni.map(Into::into),
            tls_version: shown.tls_version.and_then(version::number),
            upstream: shown.upstream.as_deref().cloned(),
            age_ms: now_unix_ms.saturating_sub(shown.started_unix_ms),
            idle_ms: shown.idle_ms,
            bytes_to_upstream: shown.bytes_to_upstream,
            bytes_to_client: shown.bytes_to_client,
            resting: shown.resting,
            requests: shown.requests.clone(),
        }
    }

    /// Bytes both ways.
    pub fn bytes(&self) -> u64 {
        self.bytes_to_upstream.saturating_add(self.bytes_to_client)
    }
}

/// Writes it as the access log does.
fn client<S: Serializer>(client: &SocketAddr, serializer: S) -> Result<S::Ok, S::Error> {
    match LocalPeer::of(client.ip()) {
        Some(peer) => serializer.collect_str(&peer),
        None => client.serialize(serializer),
    }
}

/// Most requests that are shown of one connection. `resting` counts all of them.
pub const REQUESTS_SHOWN_MAX: usize = 8;
/// Most characters of a path that are shown.
const PATH_CHARS_MAX: usize = 120;

/// A request that waits or rests on a parked connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedRequest {
    pub kind: StreamKind,
    pub method: Option<Box<str>>,
    /// The path without the query.
    pub path: Option<Box<str>>,
    /// The upstream that was asked. `None`: none was yet, or that of the connection.
    pub upstream: Option<Box<str>>,
}

impl ListedRequest {
    /// A request with this method for this path. A query is cut off.
    pub fn new(
        kind: StreamKind,
        method: Option<&str>,
        path: Option<&str>,
        upstream: Option<&str>,
    ) -> Self {
        let path = path.map(|path| {
            let path = path.split_once('?').map_or(path, |(path, _)| path);
            path.chars().take(PATH_CHARS_MAX).collect::<String>().into()
        });
        Self { kind, method: method.map(Into::into), path, upstream: upstream.map(Into::into) }
    }
}

/// The result of a worker's look at a piece of its table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// The connections that were asked for.
    pub listed: Vec<Listed>,
    /// The number of them that it ends.
    pub ended: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn seen(state: State) -> Seen {
        let decided = crate::info::Decided {
            sni: Some("a.example".into()),
            rule: Some(1),
            labels: Labels::imported((0, "public".into()), vec![(1, "api".into())]),
            tls_version: Some(0x304),
            ..Default::default()
        };
        let info = ConnectionInfo {
            id: 3 << COUNT_BITS | 17,
            started_unix_ns: 1_000 * NS_PER_MS,
            client: "[::ffff:192.0.2.7]:5000".parse().unwrap(),
            connect: None,
            owes_answer: None,
            is_decided: true,
            decided,
            bytes_to_upstream: 300,
            bytes_to_client: 700,
            is_quic: false,
            datagrams: [0; 2],
        };
        let mut seen = Seen::accepted(&info);
        seen.note(state, &info);
        seen
    }

    #[test]
    fn an_id_has_one_spelling() {
        let id = ConnectionId::parse("3-17").unwrap();
        assert_eq!((id.worker(), id.to_string()), (3, "3-17".into()));
        for text in ["", "3", "3-", "-17", "03-17", "3-+17", "65536-1", "0-281474976710656"] {
            assert_eq!(ConnectionId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_filter_takes_what_all_of_it_allows() {
        let takes =
            |filter: Filter| seen(State::Serving).shown(|shown| filter.takes(shown, 11_000));
        let all = Filter::default;
        assert!(all().is_all() && takes(all()));
        let text = |text: &str| Some(String::from(text));
        let taken = [
            Filter { id: ConnectionId::parse("3-17"), ..all() },
            Filter { rule: text("api"), sni: text("a.example"), ..all() },
            Filter { client: "192.0.2.0/24".parse().ok(), ..all() },
            Filter { state: Some(State::Serving), ..all() },
            Filter { age_min_ms: 10_000, bytes_min: 1_000, ..all() },
        ];
        let left = [
            Filter { id: ConnectionId::parse("2-17"), ..all() },
            Filter { rule: text("api"), sni: text("b.example"), ..all() },
            Filter { rule: text("other"), ..all() },
            Filter { client: "198.51.100.0/24".parse().ok(), ..all() },
            Filter { state: Some(State::Parked), ..all() },
            Filter { age_min_ms: 10_001, ..all() },
            Filter { bytes_min: 1_001, ..all() },
        ];
        for filter in taken {
            assert!(!filter.is_all() && takes(filter.clone()), "{filter:?}");
        }
        for filter in left {
            assert!(!filter.is_all() && !takes(filter.clone()), "{filter:?}");
        }
    }

    #[test]
    fn a_connection_is_one_object() {
        let listed = seen(State::Serving).shown(|shown| Listed::new(shown, 11_000));
        let expected = r#"{"id":"3-17","state":"serving","kind":"http1","listener":"public","#
            .to_owned()
            + r#""rule":"api","client":"[::ffff:192.0.2.7]:5000","sni":"a.example","#
            + r#""tls_version":"1.3","upstream":null,"age_ms":10000,"idle_ms":null,"#
            + r#""bytes_to_upstream":300,"bytes_to_client":700,"resting":{},"requests":[]}"#;
        assert_eq!(serde_json::to_string(&listed).unwrap(), expected);
        assert!(State::ALL.iter().all(|state| State::called(state.name()) == Some(*state)));
    }
}

//! The state that all requests of a connection share, in either version of HTTP: its info, its
//! rule, its counts, and its access lines.

mod answer;
mod authority;
pub mod by_request;
mod continuing;
pub mod given_verdict;
pub mod held_request;
mod identity;
pub mod record;
mod refused_request;
mod requester;
pub mod rule;
mod timeouts;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use self::given_verdict::GivenVerdict;
use self::identity::ClientIdentity;
use self::rule::ServingRule;
use super::decoding::ClientDecoders;
use super::intermediary::Intermediary;
use super::route::Route;
use super::worker::Http;
use eyelet_engine::worker::Handle;
use eyelet_telemetry::info::{ConnectionInfo, End, UpstreamName};
use eyelet_telemetry::reason::Reason;

/// Bytes of a connection since it woke, which are counted as they move.
#[derive(Clone, Default)]
pub struct ByteCounts {
    /// Written to upstreams.
    pub to_upstream: Rc<Cell<u64>>,
    /// Written to the client.
    pub to_client: Rc<Cell<u64>>,
}

impl ByteCounts {
    /// Those of a client whose bytes are counted here.
    pub fn of(to_client: &Rc<Cell<u64>>) -> Self {
        Self { to_upstream: Rc::default(), to_client: to_client.clone() }
    }
}

/// Facts of a client when its connection wakes.
pub struct ClientInfo {
    pub info: ConnectionInfo,
    /// The PROXY header that a new upstream connection gets first; empty if none.
    pub preface: Vec<u8>,
    pub counts: ByteCounts,
    /// Its handle while it is served: newer rules may ask for the address that it dialled.
    pub handle: Weak<Handle>,
}

/// A connection that serves requests.
pub struct ServedConnection {
    pub http: Rc<Http>,
    /// Its info as it was when it woke.
    pub info: ConnectionInfo,
    /// The PROXY header that a new upstream connection gets first; empty if none.
    pub preface: Vec<u8>,
    /// Counts of its bytes since it woke.
    pub counts: ByteCounts,
    /// The rule that serves its requests.
    pub rule: ServingRule,
    /// The memory that the decoders of its bodies hold.
    pub decoders: ClientDecoders,
    /// The description of the client that upstreams get.
    identity: ClientIdentity,
    /// The address that was dialled last.
    upstream: RefCell<Option<Arc<str>>>,
    handle: Weak<Handle>,
    /// Its info is written, or was passed on.
    is_over: Cell<bool>,
    requests: ServedRequests,
}

/// The requests of a connection that are served here.
enum ServedRequests {
    /// All.
    OfConnection(OwnRequests),
    /// Those of one rule, on another rule's connection.
    OfRule,
}

/// The state of a connection that serves all of its requests.
#[derive(Default)]
struct OwnRequests {
    /// The servers of those that other rules take, one for each rule, in the order of first use.
    by_rule: RefCell<Vec<Rc<ServedConnection>>>,
    /// The verdict on the next one, if that was held while it was parked. Boxed: few are.
    verdict: Cell<Option<Box<GivenVerdict>>>,
}

impl ServedRequests {
    fn of_connection(&self) -> Option<&OwnRequests> {
        match self {
            Self::OfConnection(own) => Some(own),
            Self::OfRule => None,
        }
    }
}

impl ServedConnection {
    /// A connection that wakes.
    pub fn new(http: Rc<Http>, mut client: ClientInfo) -> Self {
        let has_preface = !client.preface.is_empty();
        let local = || local(&client.handle);
        let rule = ServingRule::of(&http, &mut client.info, has_preface, local);
        Self::by(http, client, rule)
    }

    /// A connection that wakes in the middle of an exchange. What the exchange was decided by stays
    /// until it has ended; [`ServedConnection::decided`] then decides the next request.
    pub fn undecided(http: Rc<Http>, client: ClientInfo) -> Self {
        Self::by(http, client, ServingRule::new(None, Intermediary::Gateway))
    }

    /// A connection that has ended while exchanges of it rested. Its line is written by who has
    /// ended it.
    pub fn ended(http: Rc<Http>, info: ConnectionInfo) -> Self {
        let (preface, counts) = (Vec::new(), ByteCounts::default());
        let served =
            Self::undecided(http, ClientInfo { info, preface, counts, handle: Weak::new() });
        served.is_over.set(true);
        served
    }

    /// One request of a proxy's client. Its connection writes its own line.
    pub fn proxied(http: Rc<Http>, client: ClientInfo, route: Option<Route>) -> Self {
        let rule = ServingRule::new(route, Intermediary::Proxy { message: None });
        let served = Self::by(http, client, rule);
        served.is_over.set(true);
        served
    }

    fn by(http: Rc<Http>, client: ClientInfo, rule: ServingRule) -> Self {
        let ClientInfo { info, preface, counts, handle } = client;
        Self {
            http,
            info,
            preface,
            counts,
            rule,
            decoders: ClientDecoders::default(),
            identity: ClientIdentity::default(),
            upstream: RefCell::default(),
            handle,
            is_over: Cell::new(false),
            requests: ServedRequests::OfConnection(OwnRequests::default()),
        }
    }

    /// Returns the connection under the newest configuration, for new requests, if there was a
    /// reload. The old value then serves only the requests that it has.
    pub fn reloaded(&self) -> Option<Self> {
        Some(self.under(self.http.newer()?))
    }

    /// Decides the connection by the newest configuration.
    pub fn decided(&self) -> Self {
        self.under(self.http.newer().unwrap_or_else(|| self.http.clone()))
    }

    fn under(&self, http: Rc<Http>) -> Self {
        let mut next = Self::new(http, self.client_info());
        (next.upstream, next.decoders) = (self.upstream.clone(), self.decoders.clone());
        self.is_over.set(true);
        next
    }

    /// Serves or refuses requests on this connection, which writes its own line.
    fn on_connection(&self, rule: ServingRule) -> Self {
        self.on_connection_by(self.http.clone(), self.client_info(), rule)
    }

    /// Does so under another configuration, to which `client` is updated.
    fn on_connection_by(&self, http: Rc<Http>, client: ClientInfo, rule: ServingRule) -> Self {
        let mut served = Self::by(http, client, rule);
        served.is_over.set(true);
        (served.requests, served.decoders) = (ServedRequests::OfRule, self.decoders.clone());
        served
    }

    fn client_info(&self) -> ClientInfo {
        let (info, preface, counts) = (self.info.copy(), self.preface.clone(), self.counts.clone());
        ClientInfo { info, preface, counts, handle: self.handle.clone() }
    }

    /// The address that the client dialled.
    fn local(&self) -> Option<SocketAddr> {
        local(&self.handle)
    }

    /// Notes the dialled address.
    pub fn note_upstream(&self, name: &Arc<str>) {
        let mut upstream = self.upstream.borrow_mut();
        if upstream.as_ref().is_none_or(|known| !Arc::ptr_eq(known, name)) {
            *upstream = Some(name.clone());
        }
    }

    /// The info with the counts since it woke, for the next owner or the access line.
    pub fn end(mut self) -> ConnectionInfo {
        self.take_info()
    }

    fn take_info(&mut self) -> ConnectionInfo {
        let info = self.info.take();
        self.counted(info)
    }

    /// The info with the counts while requests may still be in progress.
    pub fn info_now(&self) -> ConnectionInfo {
        self.counted(self.info.copy())
    }

    fn counted(&self, mut info: ConnectionInfo) -> ConnectionInfo {
        self.is_over.set(true);
        info.bytes_to_upstream += self.counts.to_upstream.get();
        info.bytes_to_client += self.counts.to_client.get();
        if let Some(name) = &*self.upstream.borrow() {
            info.decided.upstream = Some(UpstreamName::of(name));
        }
        info
    }
}

fn local(handle: &Weak<Handle>) -> Option<SocketAddr> {
    handle.upgrade()?.local_address()
}

/// The reason of a task that is dropped while it works.
pub(super) const DROPPED: Reason = Reason::Drained(None);

/// A task that is dropped at the end of the drain still writes its line. A task that panicked does
/// not: if the panic came from writing the line, a second one would abort the process.
impl Drop for ServedConnection {
    fn drop(&mut self) {
        if !self.is_over.get() && !std::thread::panicking() {
            let end = End { outcome: self.outcome(), reason: DROPPED };
            let info = self.take_info();
            self.http.engine.emit(&info, &end);
        }
    }
}

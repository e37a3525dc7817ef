//! The messages that carry a parked connection's state: a version, and then the values of that
//! version by postcard. crates/handover/README.md describes them. The types of a version never
//! change; a change of the connection's own types changes only the conversions.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

use eyelet_hold::{HoldKey, RequestKey};
use eyelet_memory::packed::PackedBytes;
use eyelet_record::{EXPORT_BYTES, Role, Session};
use eyelet_telemetry::export::{InfoFault, InfoV1, KnownClientV12, TEXT_BYTES_MAX, UpstreamTlsV5};
use eyelet_telemetry::info::{AskedBy, Decided};

use crate::detached::{DetachedClock, IMPORT_UNIX_MS, MovedConnection};
use crate::links::StreamRef;
use crate::rest::IdleState;
use eyelet_relay::Relay;
use eyelet_relay::export::{FlowFault, FlowV1, HELD_BYTES_MAX, STATE_BYTES_MAX};
use eyelet_relay::held::{self, HeldConnection, HeldState};
use eyelet_relay::ready::FURTHER_MAX;
use eyelet_relay::splice::Spliced;
use eyelet_relay::terminate::Terminated;

/// The newest version. It is written of a connection whose client a proxy knows.
pub const VERSION: u16 = 12;
/// The version of a connection with a request that is held.
pub const VERSION_HELD_REQUEST: u16 = 10;
/// The version of a connection that is held.
pub const VERSION_HELD: u16 = 9;
/// The version of a part of a group that one message does not carry.
pub const VERSION_PART: u16 = 8;
/// The version of a group of connections.
pub const VERSION_GROUP: u16 = 7;
/// The version of a connection with an exchange or further sockets, which an older one has no place
/// for.
pub const VERSION_RESTING: u16 = 6;
/// The version of all other connections, so that an older process takes them.
pub const VERSION_USUAL: u16 = 5;
/// The versions that are read.
pub const VERSIONS_READ: [u16; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12];
/// Bytes of the version at a message's begin.
pub const VERSION_BYTES: usize = 2;
/// Most bytes of a message: what a connection holds both ways and of two first flights, and as
/// much again for all else.
pub const MESSAGE_BYTES_MAX: usize = 8 * HELD_BYTES_MAX;

/// Most bytes of a client's certificate: rustls reads no longer message of a handshake.
pub const CERTIFICATE_BYTES_MAX: usize = 64 << 10;

/// The reason why a message and its sockets are not a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ImportError {
    /// Its process is newer, or it is no message.
    #[error("the format has version {0}, and this process knows {VERSION}")]
    Version(u16),
    /// It is longer than any message.
    #[error("a message of {0} bytes is longer than {MESSAGE_BYTES_MAX}")]
    TooLong(usize),
    /// It ends in the middle of a value, or a value is not possible.
    #[error("the message is cut or malformed")]
    Malformed,
    /// Bytes follow its end.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
    /// The sockets that came with it are not those that it has.
    #[error("the message has {expected} sockets, and {got} came with it")]
    Sockets {
        /// Sockets of the connection.
        expected: usize,
        /// Sockets that came.
        got: usize,
    },
    /// No session of a terminated connection.
    #[error("TLS: {0}")]
    Session(#[from] eyelet_record::SessionFault),
    /// The session is a client's, and the connection has what no connection to a `tls://` upstream
    /// has, or its version knows none.
    #[error("TLS: the role is a client's")]
    Role,
    /// No info of a connection.
    #[error("info: {0}")]
    Info(#[from] InfoFault),
    /// No bytes in transit.
    #[error("bytes in transit: {0}")]
    Flow(#[from] FlowFault),
    /// Fewer bytes have moved than are held back.
    #[error("more bytes are held back than were read")]
    Counts,
    /// A state of the program that it does not read, or that this connection cannot have.
    #[error("the state of HTTP/2 is not one of this connection")]
    State,
    /// An exchange at rest that the program does not read, or that this connection cannot have.
    #[error("the exchange at rest is not one of this connection")]
    Exchange,
    /// A group's connections, links and streams do not belong together.
    #[error("the connections of a group are not those of its upstream connections")]
    Group,
    /// The program does not read a link, or its streams are not those of the group's connections.
    #[error("the state of a shared upstream connection is not one of this group")]
    Link,
    /// A client without TLS has nothing that TLS would give it, and no upstream of its own but that
    /// of an exchange.
    #[error("a connection without TLS has another kind's state")]
    Cleartext,
    /// No connection can be held so.
    #[error("the connection is not one that is held")]
    Hold,
    /// TLS towards an upstream that this connection does not have.
    #[error("the connection has no TLS towards its upstream")]
    UpstreamTls,
    /// A client's certificate that is too long, or that this connection cannot have.
    #[error("the client's certificate is not one of this connection")]
    Certificate,
}

/// Version 1 of a parked connection.
#[derive(Deserialize, Serialize)]
struct ConnectionV1<'a> {
    has_upstream: bool,
    is_settled: bool,
    idle_left_ms: u64,
    #[serde(borrow)]
    info: InfoV1<'a>,
    #[serde(borrow)]
    relay: RelayV1<'a>,
}

/// Version 5: version 4, and then the last value. Version 4 is version 3, with
/// [`RelayV1::Cleartext`] and with sessions as a client. Version 3 is version 2, and then two
/// values. Version 2 is version 1, and then `state`.
#[derive(Serialize)]
struct ConnectionV5<'a> {
    first: ConnectionV1<'a>,
    /// [`eyelet_relay::Flow::keep_state`].
    state: Option<&'a [u8]>,
    /// [`Decided::client_certificate`], in DER.
    client_certificate: Option<&'a [u8]>,
    /// [`IdleState::idle`].
    idle_ms: Option<u64>,
    /// [`Decided::upstream_tls`].
    upstream_tls: Option<UpstreamTlsV5<'a>>,
}

/// Version 6: version 5, and then the last value.
#[derive(Serialize)]
struct ConnectionV6<'a> {
    first: ConnectionV5<'a>,
    /// [`eyelet_relay::Flow::keep_exchange`].
    exchange: Option<&'a [u8]>,
}

/// [`Relay`].
#[derive(Deserialize, Serialize)]
enum RelayV1<'a> {
    Splice {
        #[serde(borrow)]
        flow: FlowV1<'a>,
    },
    Terminate {
        /// [`Session::export`].
        session: &'a [u8],
        #[serde(borrow)]
        flow: FlowV1<'a>,
    },
    /// From version 4 on.
    Cleartext {
        #[serde(borrow)]
        flow: FlowV1<'a>,
    },
    /// From version 9 on.
    Held {
        #[serde(borrow)]
        held: HeldV9<'a>,
    },
    /// From version 10 on.
    HeldRequest {
        /// Its bytes are the request's head and what came behind it.
        #[serde(borrow)]
        held: HeldV9<'a>,
        /// The method and the path that are asked about.
        #[serde(borrow)]
        request: Option<(&'a str, &'a str)>,
        /// [`Session::export`].
        session: &'a [u8],
        #[serde(borrow)]
        flow: FlowV1<'a>,
    },
}

impl RelayV1<'_> {
    /// The only version in which it may be, if there is one.
    const fn version(&self) -> Option<u16> {
        match self {
            Self::Held { .. } => Some(VERSION_HELD),
            Self::HeldRequest { .. } => Some(VERSION_HELD_REQUEST),
            Self::Splice { .. } | Self::Terminate { .. } | Self::Cleartext { .. } => None,
        }
    }
}

/// [`HeldConnection`]. Its wait began when it was held: [`IdleState::idle`] says how long ago.
#[derive(Deserialize, Serialize)]
struct HeldV9<'a> {
    /// The bytes that its client has sent.
    bytes: &'a [u8],
    /// The protocol in which the client waits for an answer: 0: none, 1: CONNECT, 2: SOCKS.
    owes_answer: u8,
    /// The time for which it may wait in all.
    wait_ms: u64,
    /// The name of the rule, and what is asked about. `None`: it is to be decided anew.
    #[serde(borrow)]
    question: Option<(&'a str, &'a str, u16)>,
}

impl<'a> HeldV9<'a> {
    fn new(held: &'a HeldConnection) -> Self {
        let owes_answer = match held.owes_answer {
            None => 0,
            Some(AskedBy::Connect) => 1,
            Some(AskedBy::Socks) => 2,
        };
        let question = held.key().map(|key| (&*key.rule, &*key.name, key.port));
        let wait_ms = milliseconds(held.wait());
        Self { bytes: held.bytes(), owes_answer, wait_ms, question }
    }

    /// A connection with a held request. What is asked about it is a request.
    fn request(&self, asked: Option<(&str, &str)>) -> Result<HeldConnection, ImportError> {
        if asked.is_none() && self.question.is_some() || self.owes_answer != 0 {
            return Err(ImportError::Hold);
        }
        let Some((method, path)) = asked else { return self.held(None) };
        self.held(Some(RequestKey::new(method, path).ok_or(ImportError::Hold)?))
    }

    fn held(&self, request: Option<RequestKey>) -> Result<HeldConnection, ImportError> {
        let owes_answer = match self.owes_answer {
            0 => None,
            1 => Some(AskedBy::Connect),
            2 => Some(AskedBy::Socks),
            _ => return Err(ImportError::Hold),
        };
        let is_long = |text: &str| text.len() > TEXT_BYTES_MAX;
        let question = match self.question {
            Some((rule, name, _)) if is_long(rule) || is_long(name) => {
                return Err(ImportError::Hold);
            }
            Some((rule, name, port)) => {
                let (rule, name, request) = (rule.into(), name.into(), request.map(Box::new));
                HeldState::Moved(Box::new(HoldKey { rule, name, port, request }))
            }
            None => HeldState::Anew,
        };
        if self.bytes.len() > held::HELD_BYTES_MAX {
            return Err(ImportError::Hold);
        }
        let wait = Duration::from_millis(self.wait_ms);
        Ok(HeldConnection::new(self.bytes.into(), owes_answer, wait, question))
    }
}

impl<R> MovedConnection<R> {
    /// Its state without the sockets, as a message of [`MESSAGE_BYTES_MAX`] at most. It holds the
    /// secrets, and is wiped when it is dropped.
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let message = self.encode_unknown();
        match self.info.decided.requester.as_deref() {
            Some(client) => join(&to_bytes(VERSION, &KnownClientV12::new(client)), &message),
            None => message,
        }
    }

    /// The message without the client that a proxy knows.
    fn encode_unknown(&self) -> Zeroizing<Vec<u8>> {
        let Self { info, relay, rest, clock, .. } = self;
        let now_unix_ms = match clock {
            DetachedClock::Worker { left_unix_ms } => *left_unix_ms,
            DetachedClock::Import => IMPORT_UNIX_MS,
        };
        let mut session = Zeroizing::new([0; EXPORT_BYTES]);
        let mut info = info.copy();
        let certificate = info.decided.client_certificate.clone();
        let relay = match relay {
            Relay::Cleartext(flow) => RelayV1::Cleartext { flow: flow.export() },
            Relay::Held(held) => match held.session() {
                None => RelayV1::Held { held: HeldV9::new(held) },
                Some(of_client) => {
                    of_client.export(&mut session);
                    let request = held.key().and_then(|key| key.request.as_deref());
                    RelayV1::HeldRequest {
                        held: HeldV9::new(held),
                        request: request.map(|request| (&*request.method, &*request.path)),
                        session: &session[..],
                        flow: held.flow.export(),
                    }
                }
            },
            Relay::Splice(spliced) => {
                spliced.restore(&mut info.decided);
                RelayV1::Splice { flow: spliced.flow.export() }
            }
            Relay::Terminate(terminated) => {
                terminated.session.export(&mut session);
                RelayV1::Terminate { session: &session[..], flow: terminated.flow.export() }
            }
        };
        let first = ConnectionV1 {
            has_upstream: self.upstream.is_some(),
            is_settled: rest.is_settled,
            idle_left_ms: milliseconds(rest.idle_left),
            info: InfoV1::new(&info, now_unix_ms),
            relay,
        };
        let client_certificate = certificate.as_deref().map(|leaf| &**leaf);
        let idle_ms = rest.idle.map(milliseconds);
        let upstream_tls = self.info.decided.upstream_tls.as_deref().map(UpstreamTlsV5::new);
        let state = self.state().map(|state| Zeroizing::new(state.whole()));
        let state = state.as_ref().map(|state| &state[..]);
        let first = ConnectionV5 { first, state, client_certificate, idle_ms, upstream_tls };
        match self.exchange() {
            exchange if matches!(self.relay, Relay::Held(_)) => {
                to_bytes(Self::version(&self.relay, false), &ConnectionV6 { first, exchange })
            }
            None if self.further.is_empty() => to_bytes(VERSION_USUAL, &first),
            exchange => to_bytes(VERSION_RESTING, &ConnectionV6 { first, exchange }),
        }
    }

    /// The version that the other process must read. Of a connection whose streams are all held
    /// it is that of an exchange, though the message has [`VERSION_USUAL`]: they need no socket.
    /// `is_known`: a proxy knows its client.
    pub fn version(relay: &Relay, is_known: bool) -> u16 {
        match relay {
            _ if is_known => VERSION,
            Relay::Held(held) if held.session().is_none() => VERSION_HELD,
            Relay::Held(_) => VERSION_HELD_REQUEST,
            relay if relay.has_exchange() => VERSION_RESTING,
            _ => VERSION_USUAL,
        }
    }

    /// The connection of a message and its sockets. The caller knows that both come from a process
    /// of its own user, and wipes the message.
    ///
    /// # Errors
    /// The message is not one, or is of a newer version. The sockets are then closed.
    pub fn decode(bytes: &[u8], sockets: Vec<OwnedFd>) -> Result<Self, ImportError> {
        Self::decode_with(bytes, sockets, Vec::new())
    }

    /// The connection of a message, with these streams on links of its group.
    pub(crate) fn decode_with(
        bytes: &[u8],
        sockets: Vec<OwnedFd>,
        streams: Vec<StreamRef>,
    ) -> Result<Self, ImportError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(ImportError::TooLong(bytes.len()));
        }
        let (version, rest) = take_version(bytes)?;
        if version != VERSION {
            return Self::decode_unknown((version, rest), sockets, streams);
        }
        let (client, message): (KnownClientV12<'_>, _) = take(rest)?;
        let client = client.client()?.ok_or(ImportError::Malformed)?;
        let mut detached = Self::decode_unknown(take_version(message)?, sockets, streams)?;
        detached.info.decided.requester = Some(Arc::new(client));
        Ok(detached)
    }

    /// The connection of a message that does not say its client.
    fn decode_unknown(
        (version, rest): (u16, &[u8]),
        sockets: Vec<OwnedFd>,
        streams: Vec<StreamRef>,
    ) -> Result<Self, ImportError> {
        // Those between are of groups.
        if !(1..=VERSION_RESTING).contains(&version)
            && !(VERSION_HELD..=VERSION_HELD_REQUEST).contains(&version)
        {
            return Err(ImportError::Version(version));
        }
        let (connection, behind): (ConnectionV1<'_>, _) = take(rest)?;
        if version < 4 && matches!(connection.relay, RelayV1::Cleartext { .. }) {
            return Err(ImportError::Malformed);
        }
        if connection.relay.version() != (version >= VERSION_HELD).then_some(version) {
            return Err(ImportError::Malformed);
        }
        let (state, behind) = if version >= 2 { take(behind)? } else { (None, behind) };
        let ((certificate, idle_ms), behind): ((Option<&[u8]>, Option<u64>), _) =
            if version >= 3 { take(behind)? } else { ((None, None), behind) };
        let (upstream_tls, behind): (Option<UpstreamTlsV5<'_>>, _) =
            if version >= 5 { take(behind)? } else { (None, behind) };
        let (exchange, behind): (Option<&[u8]>, _) =
            if version >= 6 { take(behind)? } else { (None, behind) };
        if !behind.is_empty() {
            return Err(ImportError::Trailing(behind.len()));
        }
        let mut detached = connection.detached(sockets)?;
        detached.streams = streams;
        if detached.relay.is_originated() && version < 4 {
            return Err(ImportError::Role);
        }
        detached.rest.idle = idle_ms.map(Duration::from_millis);
        if (state.is_none() || version < 6) && !detached.further.is_empty() {
            let got = detached.sockets().count();
            return Err(ImportError::Sockets { expected: got - detached.further.len(), got });
        }
        if let Some(state) = state {
            detached.keep_state(PackedBytes::own(state))?;
        }
        if let Some(exchange) = exchange {
            detached.keep_exchange(exchange)?;
        }
        if matches!(detached.relay, Relay::Cleartext(_))
            && detached.upstream.is_some()
            && detached.exchange().is_none()
        {
            return Err(ImportError::Cleartext);
        }
        if let Some(certificate) = certificate {
            detached.take_certificate(certificate)?;
        }
        if let Some(tls) = upstream_tls {
            if !detached.relay.is_originated() {
                return Err(ImportError::UpstreamTls);
            }
            detached.info.decided.upstream_tls = Some(Arc::new(tls.info()?));
        }
        Ok(detached)
    }

    /// Only a terminated connection whose client authorities have vouched for has a certificate.
    fn take_certificate(&mut self, certificate: &[u8]) -> Result<(), ImportError> {
        let ends_tls = match &self.relay {
            Relay::Terminate(terminated) => !terminated.is_originated(),
            Relay::Held(held) => held.session().is_some(),
            Relay::Cleartext(_) | Relay::Splice(_) => false,
        };
        if !ends_tls {
            return Err(ImportError::Certificate);
        }
        let decided = &mut self.info.decided;
        decided.client_certificate = Some(Arc::new(certificate.into()));
        has_place_for(decided).then_some(()).ok_or(ImportError::Certificate)
    }

    /// Only a connection with an upstream, or with one stream on a link, has an exchange, and it
    /// holds nothing but what its client has not taken. Its client's TLS ends here, or it has none.
    /// Keeps an exchange at rest. The program reads it later, and says then if it can.
    fn keep_exchange(&mut self, exchange: &[u8]) -> Result<(), ImportError> {
        let flow = match &mut self.relay {
            Relay::Cleartext(flow) => flow,
            Relay::Terminate(Terminated { session, flow }) if session.role() == Role::Server => {
                flow
            }
            Relay::Held(_) | Relay::Splice(_) | Relay::Terminate(_) => {
                return Err(ImportError::Exchange);
            }
        };
        let upstreams = usize::from(self.upstream.is_some()) + self.streams.len();
        if upstreams != 1 || !flow.may_rest() || exchange.len() > STATE_BYTES_MAX {
            return Err(ImportError::Exchange);
        }
        flow.keep_exchange(exchange);
        Ok(())
    }

    /// Only a terminated connection without an upstream has a state. Whether the program reads it
    /// is for the program to say.
    pub fn keep_state(&mut self, state: PackedBytes) -> Result<(), ImportError> {
        match &mut self.relay {
            Relay::Terminate(terminated)
                if self.upstream.is_none() && state.whole_len() <= STATE_BYTES_MAX =>
            {
                terminated.flow.keep_state(state);
                Ok(())
            }
            _ => Err(ImportError::State),
        }
    }
}

/// TLS towards a client.
fn of_client(session: &[u8], flow: &FlowV1<'_>) -> Result<Terminated, ImportError> {
    flow.check_terminated()?;
    let session = Session::import(session)?;
    match session.role() {
        Role::Client => Err(ImportError::Role),
        Role::Server => Ok(Terminated { session, flow: flow.flow()? }),
    }
}

/// True if a message has a place for what was decided.
pub fn has_place_for(decided: &Decided) -> bool {
    decided.client_certificate.as_ref().is_none_or(|leaf| {
        decided.client_roots != 0 && (1..=CERTIFICATE_BYTES_MAX).contains(&leaf.len())
    })
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The version at a message's begin, and what follows it.
fn take_version(bytes: &[u8]) -> Result<(u16, &[u8]), ImportError> {
    let (version, rest) = bytes.split_first_chunk().ok_or(ImportError::Malformed)?;
    Ok((u16::from_be_bytes(*version), rest))
}

/// Two messages as one, in a buffer of the whole length.
fn join(first: &[u8], second: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(first.len() + second.len()));
    bytes.extend_from_slice(first);
    bytes.extend_from_slice(second);
    bytes
}

/// The next value of a message, and what follows it.
pub fn take<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8]), ImportError> {
    postcard::take_from_bytes(bytes).map_err(|_| ImportError::Malformed)
}

/// Written into a buffer of the whole length: one that grew would leave copies of the secrets.
pub fn to_bytes(version: u16, connection: &impl Serialize) -> Zeroizing<Vec<u8>> {
    // The values are plain, so neither step can fail. Empty bytes would be refused by `decode`.
    let len = postcard::experimental::serialized_size(connection).unwrap_or(0);
    let mut bytes = Zeroizing::new(vec![0; VERSION_BYTES + len]);
    let (head, rest) = bytes.split_at_mut(VERSION_BYTES);
    head.copy_from_slice(&version.to_be_bytes());
    if postcard::to_slice(connection, rest).is_err() {
        return Zeroizing::default();
    }
    bytes
}

impl ConnectionV1<'_> {
    fn detached<R>(&self, sockets: Vec<OwnedFd>) -> Result<MovedConnection<R>, ImportError> {
        let mut info = self.info.info(IMPORT_UNIX_MS)?;
        let is_of_tls = info.decided.http2 || info.decided.tls_version.is_some();
        let relay = match &self.relay {
            RelayV1::Splice { flow } => {
                let (up, down) = flow.inspected_bytes();
                if up > info.bytes_to_upstream || down > info.bytes_to_client {
                    return Err(ImportError::Counts);
                }
                Relay::Splice(Spliced::new(flow.flow()?, &mut info.decided))
            }
            RelayV1::Terminate { session, flow } => {
                flow.check_terminated()?;
                let session = Session::import(session)?;
                // Towards the upstream, so there is one, and the client has no TLS.
                if session.role() == Role::Client
                    && !(self.has_upstream && !is_of_tls && flow.is_originated())
                {
                    return Err(ImportError::Role);
                }
                Relay::Terminate(Terminated { session, flow: flow.flow()? })
            }
            RelayV1::Cleartext { flow } => {
                if is_of_tls || !flow.is_cleartext() {
                    return Err(ImportError::Cleartext);
                }
                Relay::Cleartext(flow.flow()?)
            }
            RelayV1::Held { .. } | RelayV1::HeldRequest { .. } if self.has_upstream => {
                return Err(ImportError::Hold);
            }
            RelayV1::Held { held } => Relay::Held(held.held(None)?),
            RelayV1::HeldRequest { .. } if !is_of_tls => return Err(ImportError::Role),
            RelayV1::HeldRequest { held, request, session, flow } => {
                let terminated = of_client(session, flow)?;
                Relay::Held(held.request(*request)?.of_request(terminated))
            }
        };
        // A spliced connection is parked once its upstream is dialled.
        let has_upstream = self.has_upstream || matches!(relay, Relay::Splice(_));
        let expected = 1 + usize::from(has_upstream);
        let got = sockets.len();
        let mut sockets = sockets.into_iter().map(Arc::new);
        // The others are further ones, if it has a state.
        let most = if has_upstream { expected } else { expected + FURTHER_MAX };
        let (Some(client), true) = (sockets.next(), (expected..=most).contains(&got)) else {
            return Err(ImportError::Sockets { expected, got });
        };
        Ok(MovedConnection {
            client,
            upstream: if has_upstream { sockets.next() } else { None },
            further: sockets.collect(),
            streams: Vec::new(),
            holds: Vec::new(),
            info,
            relay,
            rest: IdleState {
                is_settled: self.is_settled,
                idle_left: Duration::from_millis(self.idle_left_ms),
                idle: None,
            },
            clock: DetachedClock::Import,
            counted: None,
            room: None,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;

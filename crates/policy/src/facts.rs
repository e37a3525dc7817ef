//! The facts about one connection that rules are decided by.

use std::net::{IpAddr, SocketAddr};

use eyelet_wire::connect::Target;
use eyelet_wire::hello::{HelloFacts, Transport};

/// Facts about a connection. A fact that is `None` was not fetched yet, or is also in `unknown`.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Index of the listener that accepted it.
    pub listener: u16,
    /// The client's address.
    pub client: IpAddr,
    /// The protocol that carries it.
    pub transport: Transport,
    /// The target of its CONNECT request. `None`: there was no CONNECT; this fact is always known.
    pub connect: Option<&'a Target>,
    /// The client of a proxy, as far as it is known.
    pub requester: RequesterFacts<'a>,
    /// The client's destination.
    pub destination: Option<SocketAddr>,
    /// The facts of the hello.
    pub hello: Option<HelloFacts<'a>>,
    /// The fingerprint of the hello.
    pub ja4: Option<&'a str>,
    /// True if the destination is among the addresses of the name in the hello.
    pub dns_agrees: Option<bool>,
    /// The certificate that the destination shows for the name in the hello.
    pub certificate: Option<&'a CertificateFacts>,
    /// Facts that were asked for but cannot be obtained. They fail closed: a refuse rule that asks
    /// for one matches as if it held, any other rule does not match.
    pub unknown: FactSet,
}

/// The facts of a proxy's client. Each is known with the request, or stays unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterFacts<'a> {
    /// The user as whom the client asks, with a token that was right.
    pub user: Option<&'a str>,
    /// The common name in the client's certificate, which this edge has verified.
    pub client_cert: Option<&'a str>,
    /// The cgroup of the process at the other end of a Unix socket.
    pub cgroup: Option<&'a str>,
}

/// The certificate from a side handshake with the destination, for the name in the hello.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CertificateFacts {
    /// Its DNS names, lower-cased. `*.` stands for any first label.
    pub names: Box<[Box<str>]>,
    /// Its issuer's names: the whole distinguished name, its common names, its organisations.
    pub issuer: Box<[Box<str>]>,
    /// True if the chain leads to a trusted root and is within its validity period.
    pub trusted: bool,
    /// True if it is also valid for the name.
    pub valid: bool,
}

impl Facts<'_> {
    /// The facts at accept. The others are filled in when [`crate::Decision::Need`] asks for them.
    pub const fn new(listener: u16, client: IpAddr) -> Self {
        let unknown = FactSet::EMPTY;
        Self {
            listener,
            client,
            transport: Transport::Tcp,
            connect: None,
            requester: RequesterFacts { user: None, client_cert: None, cgroup: None },
            destination: None,
            hello: None,
            ja4: None,
            dns_agrees: None,
            certificate: None,
            unknown,
        }
    }
}

/// A fact that costs something. It is fetched when a rule that may still match asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fact {
    /// `Facts::destination`.
    Destination,
    /// `Facts::hello`.
    Hello,
    /// `Facts::ja4`; asked for only when the hello is known.
    Ja4,
    /// `Facts::dns_agrees`; asked for only when the hello is known, and has a name.
    DnsEvidence,
    /// `Facts::certificate`; asked for only when the hello is known.
    Certificate,
}

/// A set of facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FactSet(u8);

impl FactSet {
    /// No fact.
    pub const EMPTY: Self = Self(0);

    /// This set and `fact`.
    #[must_use]
    pub const fn with(self, fact: Fact) -> Self {
        Self(self.0 | 1 << fact as u8)
    }

    /// True if `fact` is in it.
    pub const fn contains(self, fact: Fact) -> bool {
        self.0 & (1 << fact as u8) != 0
    }
}

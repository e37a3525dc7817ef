//! What is known of one connection when rules are asked about it.
//! Knows nothing of how a fact is obtained, or of what it costs.

use std::net::{IpAddr, SocketAddr};

use eyelet_wire::connect::Target;
use eyelet_wire::hello::Hello;

/// What is known of a connection. A fact that is `None` was not fetched yet; if it cannot be had,
/// it is also in `unknown`.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Index of the listener that accepted it.
    pub listener: u16,
    /// Where it comes from.
    pub client: IpAddr,
    /// What it asked for by CONNECT; `None` where it asked for nothing so, which is known.
    pub connect: Option<&'a Target>,
    /// Where the client meant to go.
    pub destination: Option<SocketAddr>,
    /// What was peeked.
    pub hello: Option<&'a Hello<'a>>,
    /// The fingerprint of `hello`.
    pub ja4: Option<&'a str>,
    /// Whether the destination is among the addresses of the name in the hello.
    pub dns_agrees: Option<bool>,
    /// What the destination shows to who asks for the name in the hello.
    pub certificate: Option<&'a CertificateFacts>,
    /// What was asked for and cannot be had. It fails closed: a refuse rule that asks for it
    /// matches as if it held, any other rule does not match.
    pub unknown: FactSet,
}

/// What a handshake with the destination, for the name in the hello, has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CertificateFacts {
    /// Its DNS names, lower-cased; `*.` for a first label that may be any.
    pub names: Box<[Box<str>]>,
    /// What its issuer is called: the whole name, its common names, its organisations.
    pub issuer: Box<[Box<str>]>,
    /// Whether the chain leads to a root that is trusted, and is in force.
    pub trusted: bool,
    /// Whether it is also valid for the name.
    pub valid: bool,
}

impl Facts<'_> {
    /// What is known at accept; the rest is filled in as [`crate::Decision::Need`] asks for it.
    pub const fn new(listener: u16, client: IpAddr) -> Self {
        let unknown = FactSet::EMPTY;
        Self {
            listener,
            client,
            connect: None,
            destination: None,
            hello: None,
            ja4: None,
            dns_agrees: None,
            certificate: None,
            unknown,
        }
    }
}

/// A fact that costs something, and is fetched when a rule still in play asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fact {
    /// `Facts::destination`.
    Destination,
    /// `Facts::hello`.
    Hello,
    /// `Facts::ja4`; asked for only when the hello is there.
    Ja4,
    /// `Facts::dns_agrees`; asked for only when the hello is there, and has a name.
    DnsEvidence,
    /// `Facts::certificate`; asked for only when the hello is there.
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

    /// Whether `fact` is in it.
    pub const fn contains(self, fact: Fact) -> bool {
        self.0 & (1 << fact as u8) != 0
    }
}

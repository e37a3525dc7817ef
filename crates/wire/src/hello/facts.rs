//! The facts of a hello that rules ask about, without the hello. They may have been kept of one
//! that is gone, or be given by a user of `explain`.

use super::sni::{Sni, SniFault};
use super::view::Hello;
use crate::version::TLS13;

/// The facts that rules ask of a hello, except for its fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloFacts<'a> {
    /// The server's name.
    pub name: HelloName<'a>,
    /// The protocols offered, each after its length; see [`protocol_names`](super::protocol_names).
    pub alpn: &'a [u8],
    /// The highest version offered, see [`Hello::version_max`].
    pub version_max: u16,
    /// True if there is an ECH extension.
    pub ech: bool,
    /// True if TLS compression is offered.
    pub compression: bool,
}

/// The server's name in a hello: an [`Sni`] that owns nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloName<'a> {
    /// There is no `server_name` extension.
    Absent,
    /// One host name, spelled like a [`HostName`](super::HostName).
    Name(&'a str),
    /// A `server_name` extension without a usable name.
    Malformed(SniFault),
}

impl<'a> HelloFacts<'a> {
    /// A TLS 1.3 hello that says nothing else. `None`: it has no name.
    pub fn named(name: Option<&'a str>) -> Self {
        let name = name.map_or(HelloName::Absent, HelloName::Name);
        Self { name, alpn: &[], version_max: TLS13, ech: false, compression: false }
    }

    /// The name, if it has one.
    pub const fn host_name(&self) -> Option<&'a str> {
        match self.name {
            HelloName::Name(name) => Some(name),
            HelloName::Absent | HelloName::Malformed(_) => None,
        }
    }
}

impl<'a> From<&'a Hello<'_>> for HelloFacts<'a> {
    fn from(hello: &'a Hello<'_>) -> Self {
        let name = match hello.sni() {
            Sni::Absent => HelloName::Absent,
            Sni::Name(name) => HelloName::Name(name),
            Sni::Malformed(fault) => HelloName::Malformed(*fault),
        };
        Self {
            name,
            alpn: hello.alpn_list(),
            version_max: hello.version_max(),
            ech: hello.has_ech(),
            compression: hello.offers_compression(),
        }
    }
}

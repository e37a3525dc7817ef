//! A client's messages of SOCKS version 5 (RFC 1928) and of its user and password (RFC 1929), read
//! strictly, and our answers to them. The client waits for each answer, so each message has a
//! reader of its own.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::connect::{Target, TargetHost};
use crate::hello::{HostName, SniFault};

/// The first byte of a client that speaks SOCKS 5. No request of HTTP and no TLS record begins so.
pub const VERSION: u8 = 5;

/// Longest message in bytes: a user and a password of 255 bytes each. Each message says its length
/// in bytes of 8 bits, so nothing more must be bounded.
pub const MESSAGE_BYTES_MAX: usize = 3 + 2 * u8::MAX as usize;

/// The answer of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// It lives on the stack while the message is read.
#[allow(clippy::large_enum_variant)]
pub enum SocksPeek<T> {
    /// The message is incomplete.
    NeedMore,
    /// A complete message of `len` bytes. What follows it is the next message, or for the target.
    Read {
        /// Bytes of the message.
        len: usize,
        /// The message.
        message: T,
    },
    /// A message that breaks the RFCs, or asks for what Eyelet does not have.
    Malformed(SocksFault),
}

/// A fault of a message. It is always the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocksFault {
    /// A message of another version.
    Version(u8),
    /// A greeting without a method.
    NoMethod,
    /// A greeting without a method that the listener takes.
    MethodsUnfit,
    /// A message of the user and the password with another version than 1.
    CredentialsVersion(u8),
    /// A command other than CONNECT.
    Command(u8),
    /// A reserved byte that is not 0.
    Reserved(u8),
    /// A kind of address other than IPv4, IPv6 and a name.
    AddressKind(u8),
    /// A name that no hello could have.
    Host(SniFault),
    /// Port 0.
    Port,
}

/// The methods of authentication that a greeting offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Methods {
    /// None is needed.
    pub none: bool,
    /// A user and a password (RFC 1929).
    pub password: bool,
}

/// The method of authentication that is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `00`: none is needed.
    None,
    /// `02`: a user and a password.
    Password,
    /// `FF`: none of those offered. The connection ends.
    Unfit,
}

/// The code of the answer to a request (RFC 1928 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `00`: succeeded.
    Succeeded,
    /// `01`: general failure.
    Failure,
    /// `02`: not allowed by the rules.
    NotAllowed,
    /// `03`: network unreachable.
    NetworkUnreachable,
    /// `04`: host unreachable.
    HostUnreachable,
    /// `05`: connection refused.
    Refused,
    /// `06`: TTL expired.
    TtlExpired,
    /// `07`: the command is not supported.
    Command,
    /// `08`: the kind of address is not supported.
    AddressKind,
}

/// A user and a password, as they were sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// The user.
    pub user: &'a [u8],
    /// The password.
    pub password: &'a [u8],
}

/// Reads a greeting. `raw` is everything received so far.
#[must_use]
pub fn read_greeting(raw: &[u8]) -> SocksPeek<Methods> {
    let (methods, len) = match raw {
        [] => return SocksPeek::NeedMore,
        [version, ..] if *version != VERSION => {
            return SocksPeek::Malformed(SocksFault::Version(*version));
        }
        [_] => return SocksPeek::NeedMore,
        [_, 0, ..] => return SocksPeek::Malformed(SocksFault::NoMethod),
        [_, count, methods @ ..] => match methods.get(..usize::from(*count)) {
            Some(methods) => (methods, 2 + methods.len()),
            None => return SocksPeek::NeedMore,
        },
    };
    let none = methods.contains(&Method::None.code());
    let password = methods.contains(&Method::Password.code());
    SocksPeek::Read { len, message: Methods { none, password } }
}

/// Reads a user and a password. `raw` is everything received behind the greeting.
#[must_use]
pub fn read_credentials(raw: &[u8]) -> SocksPeek<Credentials<'_>> {
    let Some((version, rest)) = raw.split_first() else { return SocksPeek::NeedMore };
    if *version != CREDENTIALS_VERSION {
        return SocksPeek::Malformed(SocksFault::CredentialsVersion(*version));
    }
    let Some((user, rest)) = counted(rest) else { return SocksPeek::NeedMore };
    let Some((password, rest)) = counted(rest) else { return SocksPeek::NeedMore };
    let len = raw.len() - rest.len();
    SocksPeek::Read { len, message: Credentials { user, password } }
}

/// Reads a request. `raw` is everything received behind the authentication.
#[must_use]
pub fn read_request(raw: &[u8]) -> SocksPeek<Target> {
    // Each byte is checked as it comes: the rest of a request that is refused may never come.
    for (byte, check) in raw.iter().zip([version, command, reserved, address_kind]) {
        if let Err(fault) = check(*byte) {
            return SocksPeek::Malformed(fault);
        }
    }
    let [_, _, _, kind, address @ ..] = raw else { return SocksPeek::NeedMore };
    let found = match *kind {
        IPV4 => address.split_first_chunk().map(|(ip, rest)| {
            let ip: [u8; 4] = *ip;
            (Ok(TargetHost::Ip(Ipv4Addr::from(ip).into())), rest)
        }),
        IPV6 => address.split_first_chunk().map(|(ip, rest)| {
            let ip: [u8; 16] = *ip;
            (Ok(TargetHost::Ip(IpAddr::V6(Ipv6Addr::from(ip)).to_canonical())), rest)
        }),
        _ => counted(address).map(|(text, rest)| (name(text), rest)),
    };
    let Some((host, rest)) = found else { return SocksPeek::NeedMore };
    let host = match host {
        Ok(host) => host,
        Err(fault) => return SocksPeek::Malformed(fault),
    };
    let Some((port, rest)) = rest.split_first_chunk() else { return SocksPeek::NeedMore };
    match u16::from_be_bytes(*port) {
        0 => SocksPeek::Malformed(SocksFault::Port),
        port => SocksPeek::Read { len: raw.len() - rest.len(), message: Target { host, port } },
    }
}

const fn version(byte: u8) -> Result<(), SocksFault> {
    if byte == VERSION { Ok(()) } else { Err(SocksFault::Version(byte)) }
}

const fn command(byte: u8) -> Result<(), SocksFault> {
    if byte == CONNECT { Ok(()) } else { Err(SocksFault::Command(byte)) }
}

const fn reserved(byte: u8) -> Result<(), SocksFault> {
    if byte == 0 { Ok(()) } else { Err(SocksFault::Reserved(byte)) }
}

const fn address_kind(byte: u8) -> Result<(), SocksFault> {
    if matches!(byte, IPV4 | NAME | IPV6) { Ok(()) } else { Err(SocksFault::AddressKind(byte)) }
}

/// A field with its length in front, and what follows it.
fn counted(raw: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = raw.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

/// The host of a request. Some programs send an address as text: it is one, and no name.
fn name(text: &[u8]) -> Result<TargetHost, SocksFault> {
    if let Some(ip) = core::str::from_utf8(text).ok().and_then(|text| text.parse::<IpAddr>().ok()) {
        return Ok(TargetHost::Ip(ip.to_canonical()));
    }
    HostName::new(text).map(TargetHost::Name).map_err(SocksFault::Host)
}

impl Methods {
    /// The method to answer with. `asks_user`: the listener knows users, so a client that can say
    /// its user is asked. Others may be let through by rules that ask for no user.
    #[must_use]
    pub const fn choose(self, asks_user: bool) -> Method {
        match (self.password && asks_user, self.none) {
            (true, _) => Method::Password,
            (false, true) => Method::None,
            (false, false) => Method::Unfit,
        }
    }
}

impl Method {
    /// The whole answer to a greeting.
    #[must_use]
    pub const fn answer(self) -> [u8; 2] {
        [VERSION, self.code()]
    }

    const fn code(self) -> u8 {
        match self {
            Self::None => 0x00,
            Self::Password => 0x02,
            Self::Unfit => 0xff,
        }
    }
}

/// The whole answer to a user and a password (RFC 1929 section 2). After a failure the connection
/// ends.
#[must_use]
pub const fn credentials_answer(is_good: bool) -> [u8; 2] {
    [CREDENTIALS_VERSION, if is_good { 0 } else { 1 }]
}

impl Reply {
    /// The whole answer to a request. Its address is `0.0.0.0:0`: an answer often goes before the
    /// dial, and a client of CONNECT has no use for it.
    #[must_use]
    pub const fn answer(self) -> [u8; 10] {
        [VERSION, self as u8, 0, IPV4, 0, 0, 0, 0, 0, 0]
    }
}

impl SocksFault {
    /// The code of the answer, where the fault is in a request.
    #[must_use]
    pub const fn reply(self) -> Reply {
        match self {
            Self::Command(_) => Reply::Command,
            Self::AddressKind(_) => Reply::AddressKind,
            _ => Reply::Failure,
        }
    }
}

/// A password is never written.
impl fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl fmt::Display for SocksFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version(version) => return write!(f, "version {version}"),
            Self::NoMethod => "a greeting without a method",
            Self::MethodsUnfit => "no method that this listener takes",
            Self::CredentialsVersion(version) => {
                return write!(f, "version {version} of user and password");
            }
            Self::Command(2) => "BIND is not supported",
            Self::Command(3) => "UDP ASSOCIATE is not supported",
            Self::Command(command) => return write!(f, "command {command}"),
            Self::Reserved(byte) => return write!(f, "reserved byte {byte:#04x}"),
            Self::AddressKind(kind) => return write!(f, "address of kind {kind}"),
            Self::Host(fault) => return write!(f, "target: {fault}"),
            Self::Port => "port 0",
        })
    }
}

impl core::error::Error for SocksFault {}

/// The version of the negotiation of RFC 1929.
const CREDENTIALS_VERSION: u8 = 1;

/// The only command that is supported.
const CONNECT: u8 = 1;

// Kinds of addresses.
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

#[cfg(test)]
mod tests;

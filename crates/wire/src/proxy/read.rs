//! Reads a PROXY header strictly: one spelling, framed to its last byte.

use super::header::{
    CLIENT_CERT_CONN, CLIENT_CERT_SESS, Command, ProxyHeader, SUBTYPE_SSL_CN, TLV_HEADER_LEN,
    TYPE_SSL, V2_HEADER_LEN, V2_LOCAL, V2_PROXY, V2_SIGNATURE, V2_TCP4, V2_TCP4_LEN, V2_TCP6,
    V2_TCP6_LEN, V2_UNIX_LEN, V2_UNIX_STREAM, V2_UNSPEC,
};
use crate::local_peer::LocalPeer;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest version 1 line, CR LF included (section 2.1 of the specification).
pub const V1_LINE_BYTES_MAX: usize = 107;

/// Longest version 2 header that is read: 16 bytes, 216 of addresses, and room for TLVs; the long
/// ones are a client certificate's name and an AWS endpoint. The specification allows 65,551 bytes,
/// which no proxy sends and which we would have to hold.
pub const HEADER_BYTES_MAX: usize = 4096;

const V1_PREFIX: &[u8] = b"PROXY ";
/// `PROXY UNKNOWN` and CR LF.
const V1_LINE_BYTES_MIN: usize = 15;

/// The answer of [`read()`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyPeek {
    /// No header can be complete before so many more bytes have arrived. Bytes beyond them may be
    /// the client's.
    NeedMore {
        /// Bytes, at least 1.
        at_least: usize,
    },
    /// The first bytes begin no PROXY header.
    NotProxy,
    /// A PROXY header that breaks the specification, or a limit.
    Malformed(ProxyFault),
    /// A complete header.
    Header(ProxyHeader),
}

/// The fault of a PROXY header. Always the fault of the sending proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyFault {
    /// Version 1: no CR LF within 107 bytes.
    LineTooLong,
    /// Version 1: a CR without LF, or an LF without CR.
    LineEnd,
    /// Version 1: neither `TCP4`, `TCP6` nor `UNKNOWN`.
    Protocol,
    /// Version 1: not exactly two addresses and two ports with single spaces between.
    FieldCount,
    /// Version 1: an invalid address, or one of the other family. Both versions: a client's address
    /// that stands for a [`LocalPeer`] here.
    Address,
    /// Version 1: a port that is not a number from 0 to 65535 in its shortest spelling.
    Port,
    /// Version 2: a version or command that does not exist.
    VersionCommand(u8),
    /// Version 2: an unknown family and transport, or one that is no stream.
    FamilyTransport(u8),
    /// Version 2: a header longer than [`HEADER_BYTES_MAX`].
    TooLong {
        /// Bytes of the header by its length field.
        header_bytes: usize,
    },
    /// Version 2: fewer bytes than the addresses need.
    AddressesTruncated,
    /// Version 2: a TLV runs past the end of the header.
    TlvTruncated,
}

/// Reads the PROXY header at the start of `raw`, which is everything received so far.
///
/// The header may have at most [`HEADER_BYTES_MAX`] bytes. Its TLVs are framed but not read.
pub fn read(raw: &[u8]) -> ProxyPeek {
    let result = if raw.starts_with(&V2_SIGNATURE) {
        read_v2(raw)
    } else if raw.starts_with(V1_PREFIX) {
        read_v1(raw)
    } else if V2_SIGNATURE.starts_with(raw) {
        // Version 1 has the shorter minimum, and an empty `raw` may still become one.
        let least = if raw.is_empty() { V1_LINE_BYTES_MIN } else { V2_HEADER_LEN };
        Err(ProxyPeek::NeedMore { at_least: least - raw.len() })
    } else if V1_PREFIX.starts_with(raw) {
        Err(ProxyPeek::NeedMore { at_least: V1_LINE_BYTES_MIN - raw.len() })
    } else {
        Err(ProxyPeek::NotProxy)
    };
    match result {
        // No client has this address, and the access log would show it as a user of this machine.
        Ok(ProxyHeader { command: Command::Proxy { client, .. }, .. })
            if LocalPeer::of(client.ip()).is_some() =>
        {
            ProxyPeek::Malformed(ProxyFault::Address)
        }
        Ok(header) => ProxyPeek::Header(header),
        Err(other) => other,
    }
}

fn fault<T>(fault: ProxyFault) -> Result<T, ProxyPeek> {
    Err(ProxyPeek::Malformed(fault))
}

fn read_v1(raw: &[u8]) -> Result<ProxyHeader, ProxyPeek> {
    let (line, len) = v1_line(raw)?;
    let mut fields = line.split(|&b| b == b' ').skip(1);
    let is_v4 = match fields.next() {
        Some(b"TCP4") => true,
        Some(b"TCP6") => false,
        // "the receiver must ignore anything presented before the CRLF"
        Some(b"UNKNOWN") => return Ok(ProxyHeader { len, command: Command::Local }),
        _ => return fault(ProxyFault::Protocol),
    };
    let (Some(client), Some(destination), Some(client_port), Some(destination_port), None) =
        (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return fault(ProxyFault::FieldCount);
    };
    let address = |field: &[u8]| match (is_v4, core::str::from_utf8(field)) {
        (true, Ok(text)) => text.parse().ok().map(IpAddr::V4),
        (false, Ok(text)) => text.parse().ok().map(IpAddr::V6),
        (_, Err(_)) => None,
    };
    let (Some(client), Some(destination)) = (address(client), address(destination)) else {
        return fault(ProxyFault::Address);
    };
    let (Some(client_port), Some(destination_port)) = (port(client_port), port(destination_port))
    else {
        return fault(ProxyFault::Port);
    };
    let command = Command::Proxy {
        client: SocketAddr::new(client, client_port),
        destination: SocketAddr::new(destination, destination_port),
    };
    Ok(ProxyHeader { len, command })
}

/// The line without its CR LF, and its length with it.
fn v1_line(raw: &[u8]) -> Result<(&[u8], usize), ProxyPeek> {
    // Up to the last position of a CR whose LF is still within the limit.
    let window = raw.get(..V1_LINE_BYTES_MAX - 1);
    let Some(end) = window.unwrap_or(raw).iter().position(|b| matches!(b, b'\r' | b'\n')) else {
        if window.is_some() {
            return fault(ProxyFault::LineTooLong);
        }
        let at_least = V1_LINE_BYTES_MIN.saturating_sub(raw.len()).max(2);
        return Err(ProxyPeek::NeedMore { at_least });
    };
    match raw.split_at(end) {
        (line, [b'\r', b'\n', ..]) => Ok((line, end + 2)),
        (_, [b'\r']) => Err(ProxyPeek::NeedMore { at_least: 1 }),
        _ => fault(ProxyFault::LineEnd),
    }
}

/// A decimal number in its one spelling.
fn port(digits: &[u8]) -> Option<u16> {
    match digits {
        [b'0', _, ..] | [] => None,
        _ if digits.iter().all(u8::is_ascii_digit) => {
            core::str::from_utf8(digits).ok()?.parse().ok()
        }
        _ => None,
    }
}

fn read_v2(raw: &[u8]) -> Result<ProxyHeader, ProxyPeek> {
    let rest = raw.get(V2_SIGNATURE.len()..).unwrap_or_default();
    // Each byte is checked when it arrives: we must not wait after a wrong one.
    let version_command = rest.first().copied().unwrap_or(V2_LOCAL);
    if !matches!(version_command, V2_LOCAL | V2_PROXY) {
        return fault(ProxyFault::VersionCommand(version_command));
    }
    let family = rest.get(1).copied().unwrap_or(V2_UNSPEC);
    let Some(addresses_len) = addresses_len(family) else {
        return fault(ProxyFault::FamilyTransport(family));
    };
    let &[_, _, high, low, ref body @ ..] = rest else {
        return Err(ProxyPeek::NeedMore { at_least: V2_HEADER_LEN - raw.len() });
    };
    let body_len = usize::from(u16::from_be_bytes([high, low]));
    let header_bytes = V2_HEADER_LEN + body_len;
    if header_bytes > HEADER_BYTES_MAX {
        return fault(ProxyFault::TooLong { header_bytes });
    }
    let Some(body) = body.get(..body_len) else {
        return Err(ProxyPeek::NeedMore { at_least: header_bytes - raw.len() });
    };
    // "the receiver [...] must accept the connection as valid and must use the real connection
    // endpoints and discard the protocol block": the rest of a LOCAL header is not read.
    let command = if version_command == V2_LOCAL {
        Command::Local
    } else {
        let Some((addresses, tlvs)) = body.split_at_checked(addresses_len) else {
            return fault(ProxyFault::AddressesTruncated);
        };
        frame_tlvs(tlvs)?;
        command(addresses)
    };
    Ok(ProxyHeader { len: header_bytes, command })
}

/// Bytes of this family's address block; `None` if it is unknown or no stream.
const fn addresses_len(family: u8) -> Option<usize> {
    match family {
        V2_UNSPEC => Some(0),
        V2_TCP4 => Some(V2_TCP4_LEN),
        V2_TCP6 => Some(V2_TCP6_LEN),
        V2_UNIX_STREAM => Some(V2_UNIX_LEN),
        _ => None,
    }
}

fn command(addresses: &[u8]) -> Command {
    if let Ok(block) = <[u8; V2_TCP4_LEN]>::try_from(addresses) {
        let [a, b, c, d, e, f, g, h, ports @ ..] = block;
        let (client_port, destination_port) = split_ports(ports);
        Command::Proxy {
            client: (Ipv4Addr::new(a, b, c, d), client_port).into(),
            destination: (Ipv4Addr::new(e, f, g, h), destination_port).into(),
        }
    } else if let Some((client, rest)) = addresses.split_first_chunk::<16>()
        && let Some((destination, ports)) = rest.split_first_chunk::<16>()
        && let Ok(ports) = <[u8; 4]>::try_from(ports)
    {
        let (client_port, destination_port) = split_ports(ports);
        Command::Proxy {
            client: (Ipv6Addr::from(*client), client_port).into(),
            destination: (Ipv6Addr::from(*destination), destination_port).into(),
        }
    } else {
        Command::Local
    }
}

const fn split_ports([a, b, c, d]: [u8; 4]) -> (u16, u16) {
    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}

/// The common name in the client's certificate, which the sender of a header says it has verified.
/// `header` is a whole one, as [`read()`] has found it.
pub fn client_name(header: &[u8]) -> Option<&str> {
    let [V2_PROXY, family, _, _, body @ ..] = header.strip_prefix(&V2_SIGNATURE)? else {
        return None;
    };
    let ssl = tlv(body.get(addresses_len(*family)?..)?, TYPE_SSL)?;
    // The result of the verification is 0 if it was good.
    let [client, 0, 0, 0, 0, more @ ..] = ssl else { return None };
    let is_shown = client & (CLIENT_CERT_CONN | CLIENT_CERT_SESS) != 0;
    let name = tlv(more, SUBTYPE_SSL_CN).filter(|name| is_shown && !name.is_empty())?;
    core::str::from_utf8(name).ok()
}

/// The value of the first TLV of this type.
fn tlv(mut tlvs: &[u8], of_type: u8) -> Option<&[u8]> {
    loop {
        let &[found, high, low, ref rest @ ..] = tlvs else { return None };
        let (value, behind) = rest.split_at_checked(u16::from_be_bytes([high, low]).into())?;
        if found == of_type {
            return Some(value);
        }
        tlvs = behind;
    }
}

fn frame_tlvs(mut tlvs: &[u8]) -> Result<(), ProxyPeek> {
    while !tlvs.is_empty() {
        let &[_, high, low, ..] = tlvs else { return fault(ProxyFault::TlvTruncated) };
        let len = TLV_HEADER_LEN + usize::from(u16::from_be_bytes([high, low]));
        let Some(rest) = tlvs.get(len..) else { return fault(ProxyFault::TlvTruncated) };
        tlvs = rest;
    }
    Ok(())
}

impl fmt::Display for ProxyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LineTooLong => "PROXY line over 107 bytes",
            Self::LineEnd => "PROXY line that does not end in CR LF",
            Self::Protocol => "PROXY line of unknown protocol",
            Self::FieldCount => "PROXY line without two addresses and two ports",
            Self::Address => "bad address in the PROXY header",
            Self::Port => "bad port in the PROXY line",
            Self::VersionCommand(b) => return write!(f, "PROXY version and command {b:#04x}"),
            Self::FamilyTransport(b) => return write!(f, "PROXY family and transport {b:#04x}"),
            Self::TooLong { header_bytes } => {
                return write!(f, "PROXY header of {header_bytes} bytes is over the limit");
            }
            Self::AddressesTruncated => "addresses of the PROXY header are cut short",
            Self::TlvTruncated => "TLV of the PROXY header is cut short",
        })
    }
}

impl core::error::Error for ProxyFault {}

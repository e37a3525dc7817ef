//! The packets of a datagram: what their headers say without keys (RFC 8999, RFC 9000 17, RFC 9369
//! 3.2).

use super::fault::QuicFault;
use super::quic_id::CONNECTION_ID_BYTES_MAX;
use super::varint::take_varint;

/// Most packets of one datagram. A client's first flight has up to three: Initial, 0-RTT, and the
/// rest as padding.
pub const PACKETS_MAX: usize = 16;

/// The first bit of a long header (RFC 8999 5.1).
const LONG: u8 = 0x80;
/// The two bits of a long header that say the type of the packet.
const KIND: u8 = 0x30;

/// A version of QUIC whose Initial packets can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuicVersion {
    /// RFC 9000.
    V1,
    /// RFC 9369.
    V2,
}

/// A packet of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicPacket<'a> {
    /// The part that is readable without keys.
    pub header: QuicHeader<'a>,
    /// The packet from its first byte to its end.
    pub bytes: &'a [u8],
    /// Offset of the packet number in `bytes`; 0 where there is none, or it cannot be found.
    pub number_at: usize,
}

/// A packet's header, as far as it is readable without keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicHeader<'a> {
    /// A long header: the connection is not established yet.
    Long(LongHeader<'a>),
    /// A short header. Its destination id follows the first byte; only who chose the id knows its
    /// length.
    Short {
        /// The bytes after the first.
        id_and_rest: &'a [u8],
    },
}

/// A long header. Its form is the same in all versions (RFC 8999 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongHeader<'a> {
    /// The version's number, 0 in a Version Negotiation packet.
    pub version: u32,
    /// The type of the packet.
    pub kind: LongKind<'a>,
    /// The receiver's connection id.
    pub dcid: &'a [u8],
    /// The sender's connection id.
    pub scid: &'a [u8],
}

/// The type of a packet with a long header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongKind<'a> {
    /// Initial.
    Initial {
        /// The token of a Retry or NEW_TOKEN, or nothing.
        token: &'a [u8],
    },
    /// 0-RTT.
    ZeroRtt,
    /// Handshake.
    Handshake,
    /// Retry; only servers send it.
    Retry,
    /// Version Negotiation; only servers send it.
    VersionNegotiation,
    /// A packet of a version that is not known here.
    OtherVersion,
}

impl QuicVersion {
    /// The version with this number.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0x0000_0001 => Some(Self::V1),
            0x6b33_43cf => Some(Self::V2),
            _ => None,
        }
    }

    /// Its number on the wire.
    pub const fn number(self) -> u32 {
        match self {
            Self::V1 => 0x0000_0001,
            Self::V2 => 0x6b33_43cf,
        }
    }

    /// The two bits of an Initial packet's type, in their place in the first byte.
    pub const fn initial_bits(self) -> u8 {
        match self {
            Self::V1 => 0x00,
            Self::V2 => 0x10,
        }
    }
}

/// The packets of a datagram, in order. It ends with the first fault, and with a packet that has no
/// length of its own.
///
/// Padding may follow a packet: zeros look like a short header. Packets with long headers
/// must all have the same destination id (RFC 9000 12.2).
pub fn packets(datagram: &[u8]) -> impl Iterator<Item = Result<QuicPacket<'_>, QuicFault>> {
    let mut left = datagram;
    let mut count = 0;
    let mut dcid = None;
    core::iter::from_fn(move || {
        if left.is_empty() {
            return None;
        }
        count += 1;
        let read = if count > PACKETS_MAX { Err(QuicFault::TooManyPackets) } else { packet(left) };
        let checked = read.and_then(|packet| match packet.header {
            QuicHeader::Long(header) if *dcid.get_or_insert(header.dcid) != header.dcid => {
                Err(QuicFault::MixedIds)
            }
            _ => Ok(packet),
        });
        left = match checked {
            Ok(packet) => left.get(packet.bytes.len()..).unwrap_or_default(),
            Err(_) => &[],
        };
        Some(checked)
    })
}

/// The packet at the front of `bytes`.
fn packet(bytes: &[u8]) -> Result<QuicPacket<'_>, QuicFault> {
    let (&first, id_and_rest) = bytes.split_first().ok_or(QuicFault::TruncatedPacket)?;
    if first & LONG == 0 {
        let header = QuicHeader::Short { id_and_rest };
        return Ok(QuicPacket { header, bytes, number_at: 0 });
    }
    let mut left = id_and_rest;
    let version = long_version(&mut left)?;
    let dcid = connection_id(&mut left)?;
    let scid = connection_id(&mut left)?;
    let known = QuicVersion::from_number(version);
    if known.is_some()
        && let Some(long) = [dcid, scid].iter().find(|id| id.len() > CONNECTION_ID_BYTES_MAX)
    {
        return Err(QuicFault::ConnectionIdTooLong(long.len() as u8));
    }
    let kind = match known {
        None if version == 0 => LongKind::VersionNegotiation,
        None => LongKind::OtherVersion,
        // v2 moves the types by one (RFC 9369 3.2).
        Some(known) => match (first & KIND).wrapping_sub(known.initial_bits()) & KIND {
            0x00 => LongKind::Initial { token: counted(&mut left)? },
            0x10 => LongKind::ZeroRtt,
            0x20 => LongKind::Handshake,
            _ => LongKind::Retry,
        },
    };
    let header = QuicHeader::Long(LongHeader { version, kind, dcid, scid });
    match kind {
        LongKind::Initial { .. } | LongKind::ZeroRtt | LongKind::Handshake => {
            let len = length(&mut left)?;
            let number_at = bytes.len() - left.len();
            let bytes = bytes.get(..number_at + len).ok_or(QuicFault::TruncatedPacket)?;
            Ok(QuicPacket { header, bytes, number_at })
        }
        LongKind::Retry | LongKind::VersionNegotiation | LongKind::OtherVersion => {
            Ok(QuicPacket { header, bytes, number_at: 0 })
        }
    }
}

fn long_version(left: &mut &[u8]) -> Result<u32, QuicFault> {
    let (version, rest) = left.split_first_chunk().ok_or(QuicFault::TruncatedPacket)?;
    *left = rest;
    Ok(u32::from_be_bytes(*version))
}

fn connection_id<'a>(left: &mut &'a [u8]) -> Result<&'a [u8], QuicFault> {
    let (&len, rest) = left.split_first().ok_or(QuicFault::TruncatedPacket)?;
    let (id, rest) = rest.split_at_checked(len.into()).ok_or(QuicFault::TruncatedPacket)?;
    *left = rest;
    Ok(id)
}

/// The bytes that follow their length.
fn counted<'a>(left: &mut &'a [u8]) -> Result<&'a [u8], QuicFault> {
    let len = length(left)?;
    let (bytes, rest) = left.split_at_checked(len).ok_or(QuicFault::TruncatedPacket)?;
    *left = rest;
    Ok(bytes)
}

/// A length that what is left can have.
fn length(left: &mut &[u8]) -> Result<usize, QuicFault> {
    let len = take_varint(left).and_then(|len| usize::try_from(len).ok());
    len.filter(|len| *len <= left.len()).ok_or(QuicFault::TruncatedPacket)
}

//! The faults of a datagram of QUIC, and the answer that the client gets. Every fault is the
//! client's; some are limits of ours.

use super::CRYPTO_ERROR;
use crate::fault::Malformed;
use core::fmt;

/// Transport error codes (RFC 9000 20.1).
const CONNECTION_REFUSED: u64 = 0x02;
const FRAME_ENCODING_ERROR: u64 = 0x07;
const PROTOCOL_VIOLATION: u64 = 0x0a;
const CRYPTO_BUFFER_EXCEEDED: u64 = 0x0d;

/// A datagram that no server should take for the begin of a connection, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicFault {
    /// A packet's header is cut, or its length is more than the datagram has.
    TruncatedPacket,
    /// A connection id of more than 20 bytes (RFC 9000 17.2).
    ConnectionIdTooLong(u8),
    /// An Initial packet in a datagram of less than 1,200 bytes (RFC 9000 14.1).
    ShortDatagram {
        /// Bytes of the datagram.
        len: u16,
    },
    /// More packets in one datagram than [`PACKETS_MAX`](super::PACKETS_MAX).
    TooManyPackets,
    /// Packets of one datagram are for different connections (RFC 9000 12.2).
    MixedIds,
    /// The first packet of a connection is neither an Initial nor a 0-RTT packet.
    NotInitial,
    /// A version that is neither v1 nor v2: its packets cannot be read.
    OtherVersion(u32),
    /// An Initial packet of another version than those before it.
    VersionChanged,
    /// The destination's id differs from that of the packets before it.
    IdChanged,
    /// A packet that the keys of its connection id do not open.
    NotAuthentic,
    /// Reserved bits of the header are set (RFC 9000 17.2).
    ReservedBits,
    /// An Initial packet without a frame (RFC 9000 12.4).
    NoFrame,
    /// A frame of this type, which an Initial packet may not have (RFC 9000 12.4).
    FrameType(u8),
    /// A frame of this type is cut, or a number in it is out of range.
    FrameForm(u8),
    /// CRYPTO frames give different bytes for the same offset.
    Overlap {
        /// The first offset that differs lies in the frame at this offset.
        at: u32,
    },
    /// The hello lies in more separate pieces than [`PIECES_MAX`](super::PIECES_MAX).
    TooManyPieces,
    /// CRYPTO bytes lie behind the longest hello that is read.
    CryptoTooFar {
        /// Offset in the stream at which the frame ends.
        end: u64,
    },
    /// The hello itself is wrong.
    Hello(Malformed),
    /// The second hello, for which a server has asked, has another name.
    OtherName,
    /// More datagrams than the hello may take.
    TooManyDatagrams,
    /// The client ended the connection before its hello was complete.
    Closed {
        /// Its transport error code.
        code: u64,
    },
}

/// The answer to a faulty datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicAnswer {
    /// None: a server discards such a datagram, and the connection goes on. Anybody could have sent
    /// it, with the client's address.
    Drop,
    /// CONNECTION_CLOSE with this transport error code ends the connection.
    Close(u64),
}

impl QuicFault {
    /// The answer that RFC 9000 asks for.
    pub const fn answer(self) -> QuicAnswer {
        match self {
            Self::TruncatedPacket
            | Self::ConnectionIdTooLong(_)
            | Self::ShortDatagram { .. }
            | Self::TooManyPackets
            | Self::MixedIds
            | Self::NotInitial
            | Self::OtherVersion(_)
            | Self::VersionChanged
            | Self::IdChanged
            | Self::NotAuthentic
            | Self::Closed { .. } => QuicAnswer::Drop,
            Self::ReservedBits
            | Self::NoFrame
            | Self::FrameType(_)
            | Self::Overlap { .. }
            | Self::OtherName => QuicAnswer::Close(PROTOCOL_VIOLATION),
            Self::FrameForm(_) => QuicAnswer::Close(FRAME_ENCODING_ERROR),
            Self::TooManyPieces | Self::CryptoTooFar { .. } => {
                QuicAnswer::Close(CRYPTO_BUFFER_EXCEEDED)
            }
            Self::Hello(malformed) => {
                QuicAnswer::Close(CRYPTO_ERROR + malformed.why.alert().code() as u64)
            }
            Self::TooManyDatagrams => QuicAnswer::Close(CONNECTION_REFUSED),
        }
    }
}

impl fmt::Display for QuicFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TruncatedPacket => f.write_str("QUIC packet is cut short"),
            Self::ConnectionIdTooLong(len) => {
                write!(f, "connection id of {len} bytes is over 20")
            }
            Self::ShortDatagram { len } => {
                write!(f, "Initial packet in a datagram of {len} bytes, below 1200")
            }
            Self::TooManyPackets => f.write_str("too many packets in one datagram"),
            Self::MixedIds => f.write_str("packets of several connections in one datagram"),
            Self::NotInitial => f.write_str("first packet is not Initial"),
            Self::OtherVersion(version) => write!(f, "QUIC version {version:#010x}"),
            Self::VersionChanged => f.write_str("QUIC version changed"),
            Self::IdChanged => f.write_str("connection id changed"),
            Self::NotAuthentic => f.write_str("Initial packet does not authenticate"),
            Self::ReservedBits => f.write_str("reserved bits are set"),
            Self::NoFrame => f.write_str("Initial packet without a frame"),
            Self::FrameType(t) => write!(f, "frame of type {t:#04x} in an Initial packet"),
            Self::FrameForm(t) => write!(f, "frame of type {t:#04x} is malformed"),
            Self::Overlap { at } => write!(f, "CRYPTO bytes at {at} differ from earlier ones"),
            Self::TooManyPieces => f.write_str("hello in too many separate pieces"),
            Self::CryptoTooFar { end } => write!(f, "CRYPTO bytes to {end} are over the limit"),
            Self::Hello(malformed) => malformed.fmt(f),
            Self::OtherName => f.write_str("second hello has another name"),
            Self::TooManyDatagrams => f.write_str("hello in too many datagrams"),
            Self::Closed { code } => write!(f, "closed by the client with code {code:#x}"),
        }
    }
}

impl core::error::Error for QuicFault {}

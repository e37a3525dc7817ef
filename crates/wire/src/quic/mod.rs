//! QUIC as an edge sees it (RFC 9000, 9369): the packets of a datagram, the frames of an Initial
//! packet, and the CRYPTO stream that the hello lies in. Removing protection needs keys, which this
//! crate does not have.

mod crypto_stream;
mod fault;
mod frames;
mod packet;
mod quic_id;
mod varint;

pub use crypto_stream::{CryptoStream, PIECES_MAX};
pub use fault::{QuicAnswer, QuicFault};
pub use frames::{InitialFrame, InitialFrames};
pub use packet::{LongHeader, LongKind, PACKETS_MAX, QuicHeader, QuicPacket, QuicVersion, packets};
pub use quic_id::{CONNECTION_ID_BYTES_MAX, QuicId};
pub use varint::{put_varint, take_varint};

/// Fewest bytes of a datagram with an Initial packet of a client. A server discards a shorter one
/// (RFC 9000 14.1), so its hello must not count.
pub const INITIAL_DATAGRAM_BYTES_MIN: usize = 1200;

/// The offset of TLS alerts in transport error codes (RFC 9001 4.8: CRYPTO_ERROR).
pub const CRYPTO_ERROR: u64 = 0x0100;

#[cfg(test)]
mod tests;

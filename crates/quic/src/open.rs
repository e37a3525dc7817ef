//! Opens one Initial packet: header protection, packet number, payload (RFC 9001 5.3, 5.4).

use eyelet_wire::quic::{QuicFault, QuicPacket};
use rustls::quic::DirectionalKeys;

/// Longest packet number. The sample for header protection begins behind one of this length,
/// whatever the length is (RFC 9001 5.4.2).
pub(crate) const NUMBER_BYTES_MAX: usize = 4;

/// The reserved bits of a long header, readable without protection (RFC 9000 17.2).
const RESERVED: u8 = 0x0c;

/// An opened packet.
pub(crate) struct Opened<'a> {
    pub(crate) number: u64,
    pub(crate) payload: &'a [u8],
}

/// Opens `packet`. `scratch` takes a copy, because the packet's own bytes are still passed on.
/// `largest` is the largest packet number that was opened before.
pub(crate) fn open<'a>(
    packet: &QuicPacket<'_>,
    keys: &DirectionalKeys,
    largest: Option<u64>,
    scratch: &'a mut Vec<u8>,
) -> Result<Opened<'a>, QuicFault> {
    scratch.clear();
    scratch.extend_from_slice(packet.bytes);
    let (header, sampled) =
        scratch.split_at_mut_checked(packet.number_at).ok_or(QuicFault::NotAuthentic)?;
    let first = header.first_mut().ok_or(QuicFault::NotAuthentic)?;
    let (number, rest) =
        sampled.split_at_mut_checked(NUMBER_BYTES_MAX).ok_or(QuicFault::NotAuthentic)?;
    let sample = rest.get(..keys.header.sample_len()).ok_or(QuicFault::NotAuthentic)?;
    let unprotected = keys.header.decrypt_in_place(sample, first, number);
    unprotected.map_err(|_| QuicFault::NotAuthentic)?;
    let first = *first;
    let number_len = usize::from(first & 0x03) + 1;
    let truncated = number.iter().take(number_len).fold(0, |n, &byte| n << 8 | u64::from(byte));
    let number = whole_number(truncated, number_len, largest);

    let split = packet.number_at + number_len;
    let (header, payload) = scratch.split_at_mut_checked(split).ok_or(QuicFault::NotAuthentic)?;
    let opened = keys.packet.decrypt_in_place(number, header, payload);
    let payload = opened.map_err(|_| QuicFault::NotAuthentic)?;
    // RFC 9000 17.2: checked after both protections are removed.
    if first & RESERVED != 0 {
        return Err(QuicFault::ReservedBits);
    }
    Ok(Opened { number, payload })
}

/// The packet number next to the expected one that ends in these bytes (RFC 9000 A.3).
fn whole_number(truncated: u64, len: usize, largest: Option<u64>) -> u64 {
    let expected = largest.map_or(0, |largest| largest + 1);
    let window = 1 << (8 * len);
    let candidate = expected & !(window - 1) | truncated;
    if candidate + window / 2 <= expected && candidate + window < 1 << 62 {
        candidate + window
    } else if candidate > expected + window / 2 && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::whole_number;

    /// RFC 9000 A.3, and the ends of the range.
    #[test]
    fn packet_numbers_are_completed() {
        for (truncated, len, largest, whole) in [
            (0x9b32, 2, Some(0xa82f_30ea), 0xa82f_9b32),
            (0, 1, None, 0),
            (255, 1, None, 255),
            (0, 1, Some(255), 256),
            (250, 1, Some(256), 250),
            (1, 4, Some(u64::from(u32::MAX)), 1 << 32 | 1),
        ] {
            assert_eq!(whole_number(truncated, len, largest), whole, "{truncated} of {len}");
        }
    }
}

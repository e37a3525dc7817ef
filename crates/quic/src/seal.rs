//! Protects one Initial packet: payload, then header (RFC 9001 5.3, 5.4).

use rustls::quic::DirectionalKeys;

use crate::open::NUMBER_BYTES_MAX;

/// Appends the sealed payload to `packet`, a header that ends in the packet number, and protects
/// the header. The number begins at `number_at`. `None`: the payload is too short or too long.
pub(crate) fn seal(
    keys: &DirectionalKeys,
    mut packet: Vec<u8>,
    number_at: usize,
    number: u64,
    mut payload: Vec<u8>,
) -> Option<Vec<u8>> {
    let number_len = packet.len().checked_sub(number_at)?;
    let tag = keys.packet.encrypt_in_place(number, &packet, &mut payload).ok()?;
    packet.extend(payload);
    packet.extend(tag.as_ref());
    let (header, sealed) = packet.split_at_mut_checked(number_at)?;
    let (number, rest) = sealed.split_at_mut_checked(NUMBER_BYTES_MAX)?;
    let sample = rest.get(..keys.header.sample_len())?;
    let number = number.get_mut(..number_len)?;
    keys.header.encrypt_in_place(sample, header.first_mut()?, number).ok()?;
    Some(packet)
}

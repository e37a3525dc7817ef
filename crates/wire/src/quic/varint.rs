//! Reads and writes variable-length integers (RFC 9000 16).

use alloc::vec::Vec;

/// Removes an integer from the front of `bytes`. `None`: it is cut.
pub fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, _) = bytes.split_first()?;
    let (encoded, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    *bytes = rest;
    let start = u64::from(first & 0x3f);
    Some(encoded.iter().skip(1).fold(start, |value, &byte| value << 8 | u64::from(byte)))
}

/// Appends an integer in its shortest form. Only its lower 62 bits are written: there is no form
/// for more.
pub fn put_varint(value: u64, out: &mut Vec<u8>) {
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend((value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend((value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend((value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

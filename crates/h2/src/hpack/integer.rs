//! Numbers with a prefix of some bits (RFC 7541 section 5.1).

use super::fault::HpackFault;

/// Bytes after the prefix: 28 bits, more than any length or size that is allowed.
const MORE_BYTES_MAX: usize = 4;

/// A number whose prefix has `bits` bits, and the bytes that it takes. `None` if it is incomplete.
pub(crate) fn read(input: &[u8], bits: u8) -> Result<Option<(usize, usize)>, HpackFault> {
    let Some((first, rest)) = input.split_first() else { return Ok(None) };
    let full = (1_usize << bits) - 1;
    let prefix = usize::from(*first) & full;
    if prefix < full {
        return Ok(Some((prefix, 1)));
    }
    let mut value = 0;
    for (at, byte) in rest.iter().take(MORE_BYTES_MAX).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((value + full, at + 2)));
        }
    }
    if rest.len() < MORE_BYTES_MAX { Ok(None) } else { Err(HpackFault::Integer) }
}

/// Appends a number after a pattern in the bits above its prefix.
pub(crate) fn write(value: usize, pattern: u8, bits: u8, out: &mut Vec<u8>) {
    let full = (1_usize << bits) - 1;
    if value < full {
        return out.push(pattern | value as u8);
    }
    out.push(pattern | full as u8);
    let mut left = value - full;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7541 appendix C.1, and the edges.
    #[test]
    fn numbers_come_back() {
        for (value, bits, wanted) in [
            (10, 5, &[0x0a][..]),
            (1337, 5, &[0x1f, 0x9a, 0x0a]),
            (42, 8, &[0x2a]),
            (31, 5, &[0x1f, 0x00]),
            (0, 4, &[0]),
            ((1 << 28) - 1 + 127, 7, &[0x7f, 0xff, 0xff, 0xff, 0x7f]),
        ] {
            let mut out = Vec::new();
            write(value, 0, bits, &mut out);
            assert_eq!(out, wanted);
            assert_eq!(read(&out, bits), Ok(Some((value, out.len()))));
            for cut in 0..out.len() {
                assert_eq!(read(&out[..cut], bits), Ok(None), "{value} in {cut} bytes");
            }
        }
        assert_eq!(read(&[0x7f, 0xff, 0xff, 0xff, 0xff], 7), Err(HpackFault::Integer));
        assert_eq!(read(&[0x7f, 0x80, 0x80, 0x80, 0x80, 0x00], 7), Err(HpackFault::Integer));
    }
}

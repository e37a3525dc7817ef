//! zstd frames of raw blocks (RFC 8878 section 3.1.1.2): bytes as they are, in a frame that any
//! decoder reads. They need no memory and take little time.

/// Magic number, a descriptor without any flag, and a window of 128 KiB.
const HEADER: [u8; 6] = [0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x38];
/// Most bytes of a block: the window, and at most 128 KiB.
const BLOCK_BYTES_MAX: usize = 128 << 10;
/// A raw block of no bytes that is the last one.
const LAST: [u8; 3] = [1, 0, 0];

/// Begins a frame.
pub fn begin(out: &mut Vec<u8>) {
    out.extend_from_slice(&HEADER);
}

/// Adds bytes to a frame. They can be decoded at once.
pub fn push(piece: &[u8], out: &mut Vec<u8>) {
    for block in piece.chunks(BLOCK_BYTES_MAX) {
        // The length above the three bits of "not the last one" and "raw".
        let header = (block.len() << 3).to_le_bytes();
        out.extend_from_slice(&header[..3]);
        out.extend_from_slice(block);
    }
}

/// Ends a frame.
pub fn finish(out: &mut Vec<u8>) {
    out.extend_from_slice(&LAST);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_decoder_reads_a_stored_frame_behind_another_one() {
        let mut coded = zstd_safe_frame(b"before ");
        let body: Vec<u8> =
            (0..300_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        begin(&mut coded);
        for piece in body.chunks(140_001) {
            push(piece, &mut coded);
        }
        push(b"", &mut coded);
        finish(&mut coded);
        let mut decoder = crate::ContentDecoder::new(crate::Coding::Zstd).unwrap();
        let (mut left, mut decoded) = (&coded[..], Vec::new());
        loop {
            let before = decoded.len();
            decoder.step(&mut left, &mut decoded).unwrap();
            if decoded.len() == before {
                break;
            }
        }
        assert!(left.is_empty() && decoder.end().is_ok());
        assert!(decoded == [b"before ", &body[..]].concat());
    }

    fn zstd_safe_frame(body: &[u8]) -> Vec<u8> {
        let mut coded = Vec::with_capacity(zstd_safe::compress_bound(body.len()));
        zstd_safe::compress(&mut coded, body, 3).unwrap();
        coded
    }
}

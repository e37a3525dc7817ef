//! HPACK's Huffman code (RFC 7541 section 5.2, appendix B). The code is canonical: the lengths of
//! the codes determine the codes, so only the lengths are written here.

use super::fault::HpackFault;

/// Bits of the code of each byte, and of the end of string (256), which is never sent.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];
const SYMBOLS: usize = 257;
const END_OF_STRING: u16 = 256;
/// The longest code, in bits.
const BITS_MAX: usize = 30;
/// Codes of at most so many bits are found by one look.
const SHORT_BITS: usize = 8;

/// A code for each symbol, right-aligned.
const CODES: [u32; SYMBOLS] = CANONICAL.codes;

struct CanonicalCode {
    codes: [u32; SYMBOLS],
    /// All symbols by their codes.
    symbols: [u16; SYMBOLS],
    /// For each length: the first code, left-aligned in 32 bits, and the place of its symbol.
    first: [u32; BITS_MAX + 2],
    place: [u16; BITS_MAX + 2],
}

const CANONICAL: CanonicalCode = canonical();

const fn canonical() -> CanonicalCode {
    let mut all = CanonicalCode {
        codes: [0; SYMBOLS],
        symbols: [0; SYMBOLS],
        first: [u32::MAX; BITS_MAX + 2],
        place: [0; BITS_MAX + 2],
    };
    let (mut code, mut count, mut bits) = (0_u64, 0, 1);
    while bits <= BITS_MAX {
        code <<= 1;
        all.first[bits] = if code >> bits == 0 { (code << (32 - bits)) as u32 } else { u32::MAX };
        all.place[bits] = count as u16;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == bits {
                all.codes[symbol] = code as u32;
                all.symbols[count] = symbol as u16;
                count += 1;
                code += 1;
            }
            symbol += 1;
        }
        bits += 1;
    }
    all
}

/// Symbol and length for all codes of at most [`SHORT_BITS`] bits. The length is 0 if the code is
/// longer.
static SHORT: [(u8, u8); 1 << SHORT_BITS] = short();

const fn short() -> [(u8, u8); 1 << SHORT_BITS] {
    let mut table = [(0, 0); 1 << SHORT_BITS];
    let mut symbol = 0;
    while symbol < SYMBOLS {
        let bits = LENGTHS[symbol] as usize;
        if bits <= SHORT_BITS {
            let free = SHORT_BITS - bits;
            let mut low = 0;
            while low < 1 << free {
                table[(CODES[symbol] as usize) << free | low] = (symbol as u8, bits as u8);
                low += 1;
            }
        }
        symbol += 1;
    }
    table
}

/// Bytes of a text in this code.
pub(crate) fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|byte| usize::from(LENGTHS[usize::from(*byte)])).sum();
    bits.div_ceil(8)
}

/// The code of each byte and its bits: one look for both.
static BYTES: [(u32, u8); 256] = {
    let mut bytes = [(0, 0); 256];
    let mut symbol = 0;
    while symbol < 256 {
        bytes[symbol] = (CODES[symbol], LENGTHS[symbol]);
        symbol += 1;
    }
    bytes
};

/// Appends a text in this code.
pub(crate) fn encode(text: &[u8], out: &mut Vec<u8>) {
    // At most 31 bits are left from the bytes before, so 61 bits are enough.
    let (mut bits, mut held) = (0_u64, 0);
    for byte in text {
        let (code, len) = BYTES[usize::from(*byte)];
        held += u32::from(len);
        bits = bits << len | u64::from(code);
        if held >= 32 {
            held -= 32;
            out.extend_from_slice(&((bits >> held) as u32).to_be_bytes());
        }
    }
    // The rest is filled with ones, the beginning of the end of string.
    let free = 32 - held;
    let rest = ((bits << free) as u32 | (((1_u64 << free) - 1) as u32)).to_be_bytes();
    let len = held.div_ceil(8) as usize;
    out.extend_from_slice(rest.get(..len).unwrap_or_default());
}

/// Appends the text of a coded string.
///
/// # Errors
/// If the string holds the end of string, or if its last bits are no padding: more than seven, or
/// not all ones (RFC 7541 5.2).
pub(crate) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), HpackFault> {
    static LONG: CanonicalCode = CANONICAL;
    // The next bits, left-aligned. Only `held` of them are of the string.
    let (mut bits, mut held) = (0_u64, 0_usize);
    let mut rest = coded.iter();
    loop {
        while held <= 56
            && let Some(byte) = rest.next()
        {
            bits |= u64::from(*byte) << (56 - held);
            held += 8;
        }
        let (symbol, len) = SHORT[(bits >> (64 - SHORT_BITS)) as usize];
        let len = usize::from(len);
        if len > 0 && len <= held {
            out.push(symbol);
            (bits, held) = (bits << len, held - len);
            continue;
        }
        if held < 8 {
            // What is left is no code. It must be padding.
            let is_padding = held == 0 || bits >> (64 - held) == (1 << held) - 1;
            return if is_padding { Ok(()) } else { Err(HpackFault::Huffman) };
        }
        let next = (bits >> 32) as u32;
        let mut len = SHORT_BITS + 1;
        while len < BITS_MAX && next >= LONG.first[len + 1] {
            len += 1;
        }
        let nth = next.saturating_sub(LONG.first[len]) >> (32 - len);
        let place = usize::from(LONG.place[len]) + nth as usize;
        match LONG.symbols.get(place) {
            Some(symbol) if *symbol != END_OF_STRING && len <= held => {
                out.push(*symbol as u8);
                (bits, held) = (bits << len, held - len);
            }
            _ => return Err(HpackFault::Huffman),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn decoded(coded: &[u8]) -> Result<Vec<u8>, HpackFault> {
        let mut text = Vec::new();
        decode(coded, &mut text).map(|()| text)
    }

    #[test]
    fn every_byte_and_every_pair_comes_back() {
        let texts = (0..=255).flat_map(|a| (0..=255).map(move |b| vec![a, b, a]));
        for text in texts.chain((0..=255).map(|a| vec![a])) {
            let mut coded = Vec::new();
            encode(&text, &mut coded);
            assert_eq!(coded.len(), encoded_len(&text));
            assert_eq!(decoded(&coded).unwrap(), text);
        }
        assert_eq!(decoded(&[]), Ok(Vec::new()));
    }

    /// RFC 7541 appendix B gives these codes.
    #[test]
    fn codes_are_those_of_the_appendix() {
        let some = [(b'0', 0x0), (b'!', 0x3f8), (b'z', 0x7b), (b'\\', 0x7fff0), (22, 0x3fff_fffe)];
        for (byte, code) in some {
            assert_eq!(CODES[usize::from(byte)], code, "{byte}");
        }
        assert_eq!(CODES[256], 0x3fff_ffff);
    }

    #[test]
    fn what_is_no_string_is_refused() {
        for (coded, why) in [
            (&[0xff, 0xff, 0xff, 0xff][..], "the end of string"),
            (&[0x1f, 0xff], "eight bits of padding after a whole byte"),
            (&[0xff], "eight bits of padding"),
            (&[0x00], "three bits of padding that are zeros"),
            (&[0xfe], "the beginning of a longer code"),
            (&[0xff, 0xff, 0xff], "24 ones"),
            (&[0xff, 0xf0], "two bits of padding that are zeros"),
        ] {
            assert_eq!(decoded(coded), Err(HpackFault::Huffman), "{why}");
        }
    }
}

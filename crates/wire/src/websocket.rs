//! Frames of a WebSocket (RFC 6455 section 5.2): where they begin and end, and the close frame.

/// The status of an endpoint that goes away, such as a server that goes down (RFC 6455 7.4.1).
const GOING_AWAY: [u8; 2] = 1001_u16.to_be_bytes();
/// FIN and the opcode of a close frame.
const CLOSE: u8 = 0x88;
const OPCODE: u8 = 0x0f;
const OPCODE_CLOSE: u8 = 0x08;
/// The second byte: whether the payload is masked, and its length.
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7f;
/// Bytes of a masking key.
const MASK_BYTES: u8 = 4;

/// Bytes of the longer close frame.
pub const CLOSE_BYTES_MAX: usize = 8;

/// A close frame to a client: going away.
pub const CLOSE_TO_CLIENT: [u8; 4] = [CLOSE, 2, GOING_AWAY[0], GOING_AWAY[1]];

/// A close frame to a server, masked by a key (RFC 6455 5.3).
pub const fn close_to_server(mask: [u8; 4]) -> [u8; CLOSE_BYTES_MAX] {
    let [a, b, c, d] = mask;
    [CLOSE, MASKED | 2, a, b, c, d, GOING_AWAY[0] ^ a, GOING_AWAY[1] ^ b]
}

/// Bytes of an exported [`FrameReader`].
pub const EXPORT_BYTES: usize = 11;

/// Follows the frames of one direction without keeping them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameReader {
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The next byte begins a frame.
    #[default]
    Between,
    /// The second byte of a header is next.
    Length { opcode: u8 },
    /// So many bytes of an extended length are next. `behind` bytes of a masking key follow it.
    Extended { left: u8, behind: u8, length: u64 },
    /// So many bytes of the frame are left.
    Payload { left: u64 },
    /// A close frame has begun: nothing may follow it.
    Closed,
}

impl FrameReader {
    /// Reads the next bytes of the direction.
    pub fn read(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            bytes = rest;
            self.state = match self.state {
                State::Between => State::Length { opcode: first & OPCODE },
                State::Length { opcode: OPCODE_CLOSE } | State::Closed => State::Closed,
                State::Length { .. } => length(*first),
                State::Extended { left, behind, length } => {
                    let length = length << 8 | u64::from(*first);
                    match left {
                        0 | 1 => payload(length.saturating_add(behind.into())),
                        _ => State::Extended { left: left - 1, behind, length },
                    }
                }
                State::Payload { left } => {
                    let skipped = usize::try_from(left - 1).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &bytes[skipped..];
                    payload(left - 1 - skipped as u64)
                }
            };
        }
    }

    /// Exports the place of the direction for another process: a code, two small values and a
    /// length.
    pub fn export(self) -> [u8; EXPORT_BYTES] {
        let (code, one, other, length) = match self.state {
            State::Between => (0, 0, 0, 0),
            State::Length { opcode } => (1, opcode, 0, 0),
            State::Extended { left, behind, length } => (2, left, behind, length),
            State::Payload { left } => (3, 0, 0, left),
            State::Closed => (4, 0, 0, 0),
        };
        let mut bytes = [0; EXPORT_BYTES];
        bytes[..3].copy_from_slice(&[code, one, other]);
        bytes[3..].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    /// The reader that [`FrameReader::export`] wrote. `None`: no direction can be there.
    pub fn import(bytes: [u8; EXPORT_BYTES]) -> Option<Self> {
        let [code, one, other, length @ ..] = bytes;
        let state = match (code, one, other, u64::from_be_bytes(length)) {
            (0, 0, 0, 0) => State::Between,
            (1, opcode @ 0..=OPCODE, 0, 0) => State::Length { opcode },
            (2, left @ 1..=8, behind @ (0 | MASK_BYTES), length) => {
                State::Extended { left, behind, length }
            }
            (3, 0, 0, left @ 1..) => State::Payload { left },
            (4, 0, 0, 0) => State::Closed,
            _ => return None,
        };
        Some(Self { state })
    }

    /// True if the last frame is whole, and another may follow.
    pub fn is_between(&self) -> bool {
        self.state == State::Between
    }
}

fn length(second: u8) -> State {
    let behind = if second & MASKED == 0 { 0 } else { MASK_BYTES };
    match second & LENGTH {
        126 => State::Extended { left: 2, behind, length: 0 },
        127 => State::Extended { left: 8, behind, length: 0 },
        length => payload(u64::from(length + behind)),
    }
}

fn payload(left: u64) -> State {
    if left == 0 { State::Between } else { State::Payload { left } }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    /// A frame with this length in each form of a header, and with or without a mask.
    fn frame(opcode: u8, length: usize, masked: bool) -> Vec<u8> {
        let bit = if masked { MASKED } else { 0 };
        let mut frame = vec![0x80 | opcode];
        match length {
            0..=125 => frame.push(bit | length as u8),
            126..=0xffff => {
                frame.push(bit | 126);
                frame.extend_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                frame.push(bit | 127);
                frame.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        let mask = if masked { 4 } else { 0 };
        frame.resize(frame.len() + mask + length, 0x88);
        frame
    }

    #[test]
    fn every_cut_of_a_frame_is_within_it_but_for_its_ends() {
        for masked in [false, true] {
            for length in [0, 1, 125, 126, 300, 65_535, 65_536] {
                let frame = frame(2, length, masked);
                let cuts = (0..frame.len().min(20)).chain(frame.len() - 1..=frame.len());
                for cut in cuts {
                    let mut reader = FrameReader::default();
                    reader.read(&frame[..cut]);
                    let is_end = cut == 0 || cut == frame.len();
                    assert_eq!(reader.is_between(), is_end, "{length} {masked} {cut}");
                    reader.read(&frame[cut..]);
                    assert!(reader.is_between(), "{length} {masked} {cut}");
                }
            }
        }
    }

    #[test]
    fn a_reader_goes_on_in_another_process_after_every_byte() {
        for masked in [false, true] {
            for length in [0, 125, 300, 65_536] {
                let bytes = [frame(2, length, masked), frame(8, 2, masked)].concat();
                let (mut reader, mut moved) = (FrameReader::default(), FrameReader::default());
                for byte in bytes {
                    reader.read(&[byte]);
                    moved.read(&[byte]);
                    moved = FrameReader::import(moved.export()).unwrap_or_default();
                    assert_eq!(reader, moved, "{length} {masked}");
                }
            }
        }
        let mut impossible = [0; EXPORT_BYTES];
        for (at, byte) in [(0, 5), (1, 1), (2, 1), (10, 1)] {
            impossible[at] = byte;
            assert_eq!(FrameReader::import(impossible), None);
            impossible[at] = 0;
        }
        assert_eq!(FrameReader::import([3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn nothing_follows_a_close_frame() {
        let text = frame(1, 5, true);
        for close in [&CLOSE_TO_CLIENT[..], &close_to_server([1, 2, 3, 4])] {
            let mut reader = FrameReader::default();
            reader.read(&text);
            assert!(reader.is_between());
            reader.read(close);
            assert!(!reader.is_between());
            reader.read(&text);
            assert!(!reader.is_between());
        }
    }

    #[test]
    fn a_close_frame_says_that_the_endpoint_goes_away() {
        assert_eq!(CLOSE_TO_CLIENT, [0x88, 2, 0x03, 0xe9]);
        assert_eq!(close_to_server([0; 4]), [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9]);
        assert_eq!(close_to_server([1, 2, 3, 4]), [0x88, 0x82, 1, 2, 3, 4, 0x02, 0xeb]);
    }

    #[test]
    fn a_length_beyond_64_bits_ends_no_frame() {
        let mut reader = FrameReader::default();
        reader.read(&[2, 0xff]);
        reader.read(&[0xff; 4096]);
        assert!(!reader.is_between());
    }
}

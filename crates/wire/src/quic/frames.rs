//! The frames that an Initial packet may have (RFC 9000 12.4, 19). All others are a fault.

use super::fault::QuicFault;
use super::varint::take_varint;

const PADDING: u8 = 0x00;
const PING: u8 = 0x01;
const ACK: u8 = 0x02;
const ACK_ECN: u8 = 0x03;
const CRYPTO: u8 = 0x06;
const CONNECTION_CLOSE: u8 = 0x1c;

/// Counts of ECN marks in an ACK frame (RFC 9000 19.3.2).
const ECN_COUNTS: u64 = 3;

/// A frame of an Initial packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialFrame<'a> {
    /// One or more PADDING frames.
    Padding,
    /// PING.
    Ping,
    /// ACK, with or without counts of ECN marks. Its ranges are checked and not kept.
    Ack,
    /// Bytes of the handshake.
    Crypto {
        /// Their offset in the stream.
        at: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// CONNECTION_CLOSE of the transport.
    Close {
        /// The transport error code.
        code: u64,
    },
}

/// The frames of an Initial packet's payload, in order. It ends with the first fault.
#[derive(Clone, Debug)]
pub struct InitialFrames<'a> {
    left: &'a [u8],
}

impl<'a> InitialFrames<'a> {
    /// The frames of this payload, which must have one (RFC 9000 12.4).
    pub const fn new(payload: &'a [u8]) -> Result<Self, QuicFault> {
        if payload.is_empty() {
            return Err(QuicFault::NoFrame);
        }
        Ok(Self { left: payload })
    }
}

impl<'a> Iterator for InitialFrames<'a> {
    type Item = Result<InitialFrame<'a>, QuicFault>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&frame_type, mut left) = self.left.split_first()?;
        let read = match frame_type {
            PADDING => {
                let padded = left.iter().take_while(|&&byte| byte == PADDING).count();
                left = left.get(padded..).unwrap_or_default();
                Some(InitialFrame::Padding)
            }
            PING => Some(InitialFrame::Ping),
            ACK | ACK_ECN => ack(&mut left, frame_type == ACK_ECN).map(|()| InitialFrame::Ack),
            CRYPTO => crypto(&mut left),
            CONNECTION_CLOSE => close(&mut left),
            // A type of several bytes has its high bits set: the types above have one spelling
            // only, which RFC 9000 12.4 lets us require.
            _ => {
                self.left = &[];
                return Some(Err(QuicFault::FrameType(frame_type)));
            }
        };
        self.left = if read.is_some() { left } else { &[] };
        Some(read.ok_or(QuicFault::FrameForm(frame_type)))
    }
}

/// Checks an ACK frame: no range may begin below packet 0 (RFC 9000 19.3.1). Each range takes two
/// bytes at least, so the packet's length bounds the loop.
fn ack(left: &mut &[u8], with_ecn: bool) -> Option<()> {
    let largest = take_varint(left)?;
    let _delay = take_varint(left)?;
    let ranges = take_varint(left)?;
    let mut smallest = largest.checked_sub(take_varint(left)?)?;
    for _ in 0..ranges {
        let gap = take_varint(left)?;
        let length = take_varint(left)?;
        smallest = smallest.checked_sub(gap.checked_add(2)?)?.checked_sub(length)?;
    }
    if with_ecn {
        for _ in 0..ECN_COUNTS {
            take_varint(left)?;
        }
    }
    Some(())
}

fn crypto<'a>(left: &mut &'a [u8]) -> Option<InitialFrame<'a>> {
    let at = take_varint(left)?;
    Some(InitialFrame::Crypto { at, bytes: counted(left)? })
}

/// The reason in words is skipped: a stranger chooses it.
fn close<'a>(left: &mut &'a [u8]) -> Option<InitialFrame<'a>> {
    let code = take_varint(left)?;
    let _frame_type = take_varint(left)?;
    counted(left)?;
    Some(InitialFrame::Close { code })
}

/// The bytes that follow their length.
fn counted<'a>(left: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(take_varint(left)?).ok()?;
    let (bytes, rest) = left.split_at_checked(len)?;
    *left = rest;
    Some(bytes)
}

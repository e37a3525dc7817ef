//! Progress in a handshake message that continues in the next record.

/// The part of a handshake message in earlier records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Partial {
    /// `len` bytes of type and length. 0: between two messages. 4: a KeyUpdate's last byte is
    /// missing.
    Head { len: u8, bytes: [u8; 4] },
    /// Bytes of a skipped message that are still to come; never 0. The longest message that is
    /// skipped has 0xffff bytes, as in rustls' deframer.
    Skip { left: u16 },
}

impl Partial {
    pub(crate) const NONE: Partial = Partial::Head { len: 0, bytes: [0; 4] };

    /// True if a message has begun and not ended.
    pub(crate) fn is_open(self) -> bool {
        !matches!(self, Partial::Head { len: 0, .. })
    }

    pub(crate) fn skip(left: u16) -> Partial {
        if left == 0 { Partial::NONE } else { Partial::Skip { left } }
    }
}

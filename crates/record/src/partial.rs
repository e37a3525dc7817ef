//! How far the reading of a handshake message is that a record did not end.
//! It must not know what the message says.

/// The part of a handshake message that earlier records brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Partial {
    /// So many bytes of type and length; 0: between two messages; 4: a KeyUpdate's last byte
    /// is awaited.
    Head { len: u8, bytes: [u8; 4] },
    /// So many bytes of a skipped message are still to come; never 0.
    Skip { left: u32 },
}

impl Partial {
    pub(crate) const NONE: Partial = Partial::Head { len: 0, bytes: [0; 4] };

    /// Whether a message has begun and not ended.
    pub(crate) fn is_open(self) -> bool {
        !matches!(self, Partial::Head { len: 0, .. })
    }

    pub(crate) fn skip(left: u32) -> Partial {
        if left == 0 { Partial::NONE } else { Partial::Skip { left } }
    }
}

//! The id of a connection of QUIC, as a value of its own.

use core::fmt;

/// Longest connection id of QUIC v1 and v2 (RFC 9000 17.2).
pub const CONNECTION_ID_BYTES_MAX: usize = 20;

/// A connection id of at most [`CONNECTION_ID_BYTES_MAX`] bytes. It may be empty.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuicId {
    len: u8,
    /// Zero behind `len`, so that equal ids are equal values.
    bytes: [u8; CONNECTION_ID_BYTES_MAX],
}

impl QuicId {
    /// The id with these bytes. `None`: it is too long.
    pub fn new(id: &[u8]) -> Option<Self> {
        let mut bytes = [0; CONNECTION_ID_BYTES_MAX];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        Some(Self { len: id.len() as u8, bytes })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// True for the id without bytes, which tells nobody apart.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for QuicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Hex digits.
impl fmt::Display for QuicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

//! HPACK (RFC 7541): the compression of fields, one encoder and one decoder for each connection.

use std::fmt;

mod decoder;
mod encoder;
mod export;
mod fault;
mod huffman;
mod integer;
mod shared_fields;
mod static_table;
mod table;

pub use decoder::HpackDecoder;
pub use encoder::{ENCODER_TABLE_BYTES, HpackEncoder};
pub(crate) use encoder::{say_table_size, write_plain};
pub use fault::HpackFault;
pub(crate) use shared_fields::common_entries;
pub use table::TABLE_BYTES_MAX;

/// Bytes that a field counts besides its texts, in tables and in the size of a head (RFC 7541 4.1,
/// RFC 9113 6.5.2).
pub const FIELD_BYTES: usize = table::ENTRY_BYTES;

/// A field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HeaderField<'a> {
    /// Its name in lower case, or a pseudo-header's name.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// True if no table may hold it, here and at each next hop (RFC 7541 7.1.3).
    pub sensitive: bool,
}

/// The value may be a secret, and the name one that nobody else has.
impl fmt::Debug for HeaderField<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeaderField")
            .field("name", &self.name.len())
            .field("value", &self.value.len())
            .field("sensitive", &self.sensitive)
            .finish()
    }
}

impl<'a> HeaderField<'a> {
    /// A field that tables may hold.
    pub const fn new(name: &'a [u8], value: &'a [u8]) -> Self {
        Self { name, value, sensitive: false }
    }

    /// Its size as tables and limits count it.
    pub const fn size(&self) -> usize {
        self.name.len() + self.value.len() + FIELD_BYTES
    }
}

#[cfg(test)]
mod tests;

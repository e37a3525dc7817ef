//! The faults of a header block. All are the peer's and end the connection with COMPRESSION_ERROR
//! (RFC 9113 section 4.3): the tables of the two sides no longer agree.

use std::fmt;

/// The reason why a header block cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HpackFault {
    /// A string is no Huffman code.
    Huffman,
    /// An index is 0 or beyond the tables.
    Index,
    /// A number is longer than any that has a meaning.
    Integer,
    /// A size update after the first field, or more than two of them (RFC 7541 4.2).
    SizeUpdatePlace,
    /// A size update beyond what SETTINGS_HEADER_TABLE_SIZE allows.
    TableSize,
    /// The block ends in the middle of a field.
    Truncated,
}

impl fmt::Display for HpackFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huffman => "a string that is no Huffman code",
            Self::Index => "an index outside the tables",
            Self::Integer => "a number that is too long",
            Self::SizeUpdatePlace => "a size update in the wrong place",
            Self::TableSize => "a size update beyond the limit",
            Self::Truncated => "a header block that ends within a field",
        })
    }
}

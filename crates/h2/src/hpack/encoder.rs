//! The encoder (RFC 7541 section 6). It inserts what is likely to come again, and nothing that an
//! attacker should not be able to guess by the sizes of messages (RFC 7541 section 7.1).

use super::table::DynamicTable;
use super::{HeaderField, TABLE_BYTES_MAX, huffman, integer, static_table};

/// The largest table that is used, whatever the peer allows. Responses repeat a handful of fields,
/// and a parked connection keeps the table.
pub const ENCODER_TABLE_BYTES: u16 = 1024;
/// A value that gets no entry is sent as it is up to this length, such as a date. The Huffman code
/// saves seven of a date's 29 bytes (RFC 7541 C.6.1), and took 1,650 instructions for two values.
const PLAIN_BYTES_MAX: usize = 32;
/// A shorter cookie could be guessed field by field (RFC 7541 7.1.3).
const COOKIE_BYTES_GUESSABLE: usize = 20;

/// Encodes what one peer receives. It keeps the dynamic table between blocks.
#[derive(Debug)]
pub struct HpackEncoder {
    table: DynamicTable,
    /// The smallest size since the last block, if the size has changed.
    smallest: Option<u16>,
}

/// The form of a field without an equal entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LiteralForm {
    Insert,
    Plain,
    /// A literal like `Plain`, but inserted while no table has its name.
    PlainOnceNamed,
    Never,
}

impl Default for HpackEncoder {
    fn default() -> Self {
        Self::new()
    }
}

impl HpackEncoder {
    /// An encoder for a peer that has said nothing about its table.
    pub fn new() -> Self {
        let mut encoder = Self { table: DynamicTable::new(TABLE_BYTES_MAX), smallest: None };
        encoder.set_limit(u32::from(TABLE_BYTES_MAX));
        encoder
    }

    pub(super) fn with_table(table: DynamicTable, smallest: Option<u16>) -> Self {
        Self { table, smallest }
    }

    pub(super) fn table(&self) -> &DynamicTable {
        &self.table
    }

    /// The smallest size since the last block, if the next one must say it.
    pub(super) fn smallest(&self) -> Option<u16> {
        self.smallest
    }

    /// The size of the table that follows from the peer's SETTINGS_HEADER_TABLE_SIZE.
    pub(crate) fn size_for(limit: u32) -> u16 {
        u16::try_from(limit).unwrap_or(u16::MAX).min(ENCODER_TABLE_BYTES)
    }

    /// Follows the peer's SETTINGS_HEADER_TABLE_SIZE.
    pub fn set_limit(&mut self, limit: u32) {
        let size = Self::size_for(limit);
        if size != self.table.size_max() {
            self.smallest = Some(self.smallest.map_or(size, |smallest| smallest.min(size)));
            self.table.set_size_max(size);
        }
    }

    /// Begins a block: says a changed size of the table (RFC 7541 section 4.2).
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        let Some(smallest) = self.smallest.take() else { return };
        say_table_size(self.table.size_max(), smallest, out);
    }

    /// Appends a field.
    pub fn encode(&mut self, field: HeaderField<'_>, out: &mut Vec<u8>) {
        let HeaderField { name, value, .. } = field;
        let how = self.literal_for(field);
        let fixed = static_table::find(name, value);
        if let (Some((index, true)), false) = (fixed, how == LiteralForm::Never) {
            return integer::write(index, 0x80, 7, out);
        }
        // A field that is never inserted is not there either. At most its name is, which is of no
        // use beside the static table's.
        let may_be_there = how == LiteralForm::Insert || fixed.is_none();
        let found = may_be_there.then(|| self.table.find(name, value)).flatten();
        let found = found.map(|(at, exact)| (static_table::STATIC_ENTRIES + 1 + at, exact));
        if let (Some((index, true)), false) = (found, how == LiteralForm::Never) {
            return integer::write(index, 0x80, 7, out);
        }
        let index = fixed.or(found).map_or(0, |(index, _)| index);
        match how {
            // The next one refers to the name of this one.
            LiteralForm::PlainOnceNamed if index == 0 => self.insert(index, name, value, out),
            LiteralForm::Insert => self.insert(index, name, value, out),
            LiteralForm::Plain | LiteralForm::PlainOnceNamed => {
                write_plain(index, name, value, out)
            }
            LiteralForm::Never => write_literal(index, (0x10, 4), name, value, out),
        }
    }

    fn insert(&mut self, index: usize, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        write_inserted(index, name, value, out);
        self.table.insert(name, value);
    }

    fn literal_for(&self, field: HeaderField<'_>) -> LiteralForm {
        if field.sensitive || is_secret(&field) {
            return LiteralForm::Never;
        }
        // A large entry would evict all others.
        let is_large = field.size() > usize::from(self.table.size_max()) / 2;
        match volatility(field.name) {
            _ if is_large => LiteralForm::Plain,
            Some(form) => form,
            None => LiteralForm::Insert,
        }
    }
}

/// Says the size of the table, and the smallest that it had since the last block.
pub(crate) fn say_table_size(size: u16, smallest: u16, out: &mut Vec<u8>) {
    if smallest < size {
        integer::write(usize::from(smallest), 0x20, 5, out);
    }
    integer::write(usize::from(size), 0x20, 5, out);
}

/// Credentials, which no table may hold.
fn is_secret(field: &HeaderField<'_>) -> bool {
    match field.name {
        b"authorization" | b"proxy-authorization" | b"set-cookie" => true,
        b"cookie" => field.value.len() < COOKIE_BYTES_GUESSABLE,
        _ => false,
    }
}

/// The form of fields whose value is another one in most messages: their entries would evict those
/// of fields that stay the same.
fn volatility(name: &[u8]) -> Option<LiteralForm> {
    match name {
        // The static table does not have these. RFC 9842: a hash of each file, and its path.
        b"available-dictionary" | b"use-as-dictionary" => Some(LiteralForm::PlainOnceNamed),
        b":path" | b"age" | b"content-length" | b"content-range" | b"date" | b"etag"
        | b"expires" | b"if-modified-since" | b"if-none-match" | b"last-modified" | b"location"
        | b"range" => Some(LiteralForm::Plain),
        _ => None,
    }
}

/// A literal field that the table gets (RFC 7541 6.2.1). Index 0: the name follows.
pub(super) fn write_inserted(index: usize, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    write_literal(index, (0x40, 6), name, value, out);
}

/// A literal field that the table does not get (RFC 7541 6.2.2).
pub(crate) fn write_plain(index: usize, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    if index == 0 || value.len() > PLAIN_BYTES_MAX {
        return write_literal(index, (0x00, 4), name, value, out);
    }
    integer::write(index, 0x00, 4, out);
    integer::write(value.len(), 0, 7, out);
    out.extend_from_slice(value);
}

fn write_literal(
    index: usize,
    (pattern, bits): (u8, u8),
    name: &[u8],
    value: &[u8],
    out: &mut Vec<u8>,
) {
    integer::write(index, pattern, bits, out);
    if index == 0 {
        write_string(name, out);
    }
    write_string(value, out);
}

/// Appends a string, in the Huffman code if that is shorter.
fn write_string(text: &[u8], out: &mut Vec<u8>) {
    let coded = huffman::encoded_len(text);
    if coded < text.len() {
        integer::write(coded, 0x80, 7, out);
        huffman::encode(text, out);
    } else {
        integer::write(text.len(), 0, 7, out);
        out.extend_from_slice(text);
    }
}

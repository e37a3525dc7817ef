//! The decoder (RFC 7541 section 3): a header block in pieces becomes fields.

use std::fmt;

use super::fault::HpackFault;
use super::table::DynamicTable;
use super::{HeaderField, TABLE_BYTES_MAX, huffman, integer, static_table};

/// Size updates at the beginning of a block (RFC 7541 section 4.2): the smallest size in between,
/// and the last.
const SIZE_UPDATES_MAX: u8 = 2;
/// Kept memory for one field. Larger ones give theirs back before more input is waited for.
const SCRATCH_BYTES_KEPT: usize = 512;

/// Decodes what one peer sends. It keeps the dynamic table between blocks.
pub struct HpackDecoder {
    table: DynamicTable,
    /// Largest size that the peer may choose: HTTP/2's default, or less if an earlier version has
    /// announced less.
    limit: u16,
    /// The place in the current block.
    place: BlockPlace,
    /// The texts of the current field that are not in the input as such.
    scratch: Vec<u8>,
}

/// A place in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockPlace {
    /// Before the first field, after so many size updates.
    Start(u8),
    Fields,
}

/// A string as it was sent.
#[derive(Clone, Copy)]
pub(super) struct CodedString<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) is_huffman: bool,
}

/// A literal field (RFC 7541 section 6.2).
pub(super) struct LiteralField<'a> {
    /// Index of the name; 0: the name is `name`.
    pub(super) index: usize,
    pub(super) name: CodedString<'a>,
    value: CodedString<'a>,
}

/// The texts may be secrets.
impl fmt::Debug for HpackDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HpackDecoder")
            .field("table", &self.table)
            .field("limit", &self.limit)
            .field("place", &self.place)
            .field("scratch", &self.scratch.len())
            .finish()
    }
}

impl Default for HpackDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl HpackDecoder {
    /// A decoder with the table size that HTTP/2 begins with.
    pub fn new() -> Self {
        Self::with_table(DynamicTable::new(TABLE_BYTES_MAX), TABLE_BYTES_MAX)
    }

    pub(super) fn with_table(table: DynamicTable, limit: u16) -> Self {
        Self { table, limit, place: BlockPlace::Start(0), scratch: Vec::new() }
    }

    pub(super) fn table(&self) -> &DynamicTable {
        &self.table
    }

    pub(super) fn into_table(self) -> DynamicTable {
        self.table
    }

    /// Returns the largest size of the table that the peer may choose.
    pub fn limit(&self) -> u16 {
        self.limit
    }

    /// Decodes whole fields of a block, and returns how many bytes they take. The rest is the
    /// beginning of a field, which the caller passes again with more bytes.
    ///
    /// # Errors
    /// The connection must end with COMPRESSION_ERROR.
    pub fn decode(
        &mut self,
        input: &[u8],
        mut sink: impl FnMut(HeaderField<'_>),
    ) -> Result<usize, HpackFault> {
        let mut at = 0;
        while let Some(rest) = input.get(at..)
            && !rest.is_empty()
        {
            match self.step(rest, &mut sink)? {
                Some(used) => at += used,
                None => break,
            }
        }
        if self.scratch.capacity() > SCRATCH_BYTES_KEPT {
            self.scratch = Vec::new();
        }
        Ok(at)
    }

    /// Gives up the memory that it keeps besides the table. No block is under way.
    pub(crate) fn shrink(&mut self) {
        self.scratch = Vec::new();
    }

    /// Bytes of memory that it keeps besides the table.
    pub(crate) fn held(&self) -> usize {
        self.scratch.capacity()
    }

    /// Ends a block with the bytes that [`HpackDecoder::decode`] has left.
    ///
    /// # Errors
    /// If the block ends within a field.
    pub fn end(&mut self, left: &[u8]) -> Result<(), HpackFault> {
        self.place = BlockPlace::Start(0);
        if left.is_empty() { Ok(()) } else { Err(HpackFault::Truncated) }
    }

    /// Reads one representation (RFC 7541 section 6).
    fn step(
        &mut self,
        input: &[u8],
        sink: &mut impl FnMut(HeaderField<'_>),
    ) -> Result<Option<usize>, HpackFault> {
        let first = input.first().copied().unwrap_or_default();
        if first & 0xe0 == 0x20 {
            return self.update_size(input);
        }
        self.place = BlockPlace::Fields;
        if first & 0x80 != 0 {
            let Some((index, used)) = integer::read(input, 7)? else { return Ok(None) };
            let (name, value) = entry(&self.table, index)?;
            sink(HeaderField::new(name, value));
            return Ok(Some(used));
        }
        let (bits, inserts, sensitive) = match first & 0xf0 {
            0x10 => (4, false, true),
            0x00 => (4, false, false),
            _ => (6, true, false),
        };
        let Some((literal, used)) = read_literal(input, bits)? else { return Ok(None) };
        self.literal(&literal, inserts, sensitive, sink)?;
        Ok(Some(used))
    }

    fn literal(
        &mut self,
        literal: &LiteralField<'_>,
        inserts: bool,
        sensitive: bool,
        sink: &mut impl FnMut(HeaderField<'_>),
    ) -> Result<(), HpackFault> {
        self.scratch.clear();
        if literal.index > 0 {
            // Copied, because the insertion may evict the entry that has the name.
            self.scratch.extend_from_slice(entry(&self.table, literal.index)?.0);
        } else if literal.name.is_huffman {
            huffman::decode(literal.name.bytes, &mut self.scratch)?;
        }
        let name_end = self.scratch.len();
        if literal.value.is_huffman {
            huffman::decode(literal.value.bytes, &mut self.scratch)?;
        }
        let (name, value) = self.scratch.split_at(name_end);
        let is_raw = literal.index == 0 && !literal.name.is_huffman;
        let name = if is_raw { literal.name.bytes } else { name };
        let value = if literal.value.is_huffman { value } else { literal.value.bytes };
        sink(HeaderField { name, value, sensitive });
        if inserts {
            self.table.insert(name, value);
        }
        Ok(())
    }

    fn update_size(&mut self, input: &[u8]) -> Result<Option<usize>, HpackFault> {
        let updates = match self.place {
            BlockPlace::Start(updates) if updates < SIZE_UPDATES_MAX => updates,
            _ => return Err(HpackFault::SizeUpdatePlace),
        };
        let Some((size, used)) = integer::read(input, 5)? else { return Ok(None) };
        match u16::try_from(size) {
            Ok(size) if size <= self.limit => self.table.set_size_max(size),
            _ => return Err(HpackFault::TableSize),
        }
        self.place = BlockPlace::Start(updates + 1);
        Ok(Some(used))
    }
}

/// An entry of the static or of the dynamic table (RFC 7541 section 2.3.3).
fn entry(table: &DynamicTable, index: usize) -> Result<(&[u8], &[u8]), HpackFault> {
    let entry = match index.checked_sub(static_table::STATIC_ENTRIES + 1) {
        None => static_table::entry(index),
        Some(index) => table.entry(index),
    };
    entry.ok_or(HpackFault::Index)
}

/// A literal field, and the bytes that it takes. `None` if it is incomplete. Nothing is decoded
/// before all of it is there, so many pieces cost no more than one.
pub(super) fn read_literal(
    input: &[u8],
    bits: u8,
) -> Result<Option<(LiteralField<'_>, usize)>, HpackFault> {
    let Some((index, mut at)) = integer::read(input, bits)? else { return Ok(None) };
    let mut name = CodedString { bytes: &[], is_huffman: false };
    if index == 0 {
        let Some((string, used)) = read_string(input.get(at..).unwrap_or_default())? else {
            return Ok(None);
        };
        name = string;
        at += used;
    }
    let Some((value, used)) = read_string(input.get(at..).unwrap_or_default())? else {
        return Ok(None);
    };
    Ok(Some((LiteralField { index, name, value }, at + used)))
}

fn read_string(input: &[u8]) -> Result<Option<(CodedString<'_>, usize)>, HpackFault> {
    let Some((len, at)) = integer::read(input, 7)? else { return Ok(None) };
    let is_huffman = input.first().is_some_and(|first| first & 0x80 != 0);
    let bytes = input.get(at..at + len);
    Ok(bytes.map(|bytes| (CodedString { bytes, is_huffman }, at + len)))
}

//! The tables as bytes, and back. A table is written as a header block that inserts its entries,
//! the oldest first: the form is HPACK's own, with its static names and its Huffman code.

use super::decoder::HpackDecoder;
use super::encoder::{ENCODER_TABLE_BYTES, HpackEncoder, write_inserted};
use super::fault::HpackFault;
use super::static_table::{self, STATIC_ENTRIES};
use super::table::{DynamicTable, ENTRY_BYTES, TABLE_BYTES_MAX};

/// Appends a block that inserts the entries of a table.
fn write_entries(table: &DynamicTable, out: &mut Vec<u8>) {
    let entries: Vec<_> = (0..table.len()).rev().filter_map(|index| table.entry(index)).collect();
    for (place, (name, value)) in entries.iter().enumerate() {
        let older = entries.iter().take(place).rev().position(|(older, _)| older == name);
        let index = match (static_table::find(name, value), older) {
            (Some((index, _)), _) => index,
            (None, Some(back)) => STATIC_ENTRIES + 1 + back,
            (None, None) => 0,
        };
        write_inserted(index, name, value, out);
    }
}

/// A table of this size with the entries of a block.
fn read_entries(size_max: u16, block: &[u8]) -> Result<DynamicTable, HpackFault> {
    let mut decoder = HpackDecoder::with_table(DynamicTable::new(size_max), size_max);
    let (mut fields, mut bytes) = (0, 0);
    let used = decoder.decode(block, |field| {
        fields += 1;
        bytes += field.name.len() + field.value.len() + ENTRY_BYTES;
    })?;
    decoder.end(block.get(used..).unwrap_or_default())?;
    // Each field is an entry, and none was evicted.
    if fields != decoder.table().len() || bytes > usize::from(size_max) {
        return Err(HpackFault::TableSize);
    }
    Ok(decoder.into_table())
}

impl HpackDecoder {
    /// Appends the table's entries. Its size is [`HpackDecoder::table_size`].
    pub fn export(&self, out: &mut Vec<u8>) {
        write_entries(self.table(), out);
    }

    /// The size that the peer has chosen for the table.
    pub fn table_size(&self) -> u16 {
        self.table().size_max()
    }

    /// A decoder with this table size, this limit, and the entries of [`HpackDecoder::export`].
    ///
    /// # Errors
    /// If the bytes are not of an exported decoder.
    pub fn import(size: u16, limit: u16, block: &[u8]) -> Result<Self, HpackFault> {
        if size > TABLE_BYTES_MAX || limit > TABLE_BYTES_MAX {
            return Err(HpackFault::TableSize);
        }
        Ok(Self::with_table(read_entries(size, block)?, limit))
    }
}

impl HpackEncoder {
    /// Appends the table's entries. Its size is [`HpackEncoder::table_sizes`].
    pub fn export(&self, out: &mut Vec<u8>) {
        write_entries(self.table(), out);
    }

    /// The size of the table, and the smallest since the last block if the next must say it.
    pub fn table_sizes(&self) -> (u16, Option<u16>) {
        (self.table().size_max(), self.smallest())
    }

    /// An encoder with these sizes and the entries of [`HpackEncoder::export`].
    ///
    /// # Errors
    /// If the bytes are not of an exported encoder.
    pub fn import(sizes: (u16, Option<u16>), block: &[u8]) -> Result<Self, HpackFault> {
        let (size, smallest) = sizes;
        if size > ENCODER_TABLE_BYTES || smallest.is_some_and(|smallest| smallest > size) {
            return Err(HpackFault::TableSize);
        }
        Ok(Self::with_table(read_entries(size, block)?, smallest))
    }
}

//! A reader that has its hello as bytes, for another process. crates/handover/README.md describes
//! them.

use eyelet_wire::hello::Peek;
use eyelet_wire::quic::{CryptoStream, QuicId, QuicVersion};

use crate::InitialReader;

/// Stands for the length of a server's id that is not known.
const NO_ID: u8 = 0xff;
/// Stands for a packet number where none was opened. Numbers have 62 bits.
const NO_NUMBER: u64 = u64::MAX;

impl InitialReader {
    /// The reader as bytes. `None`: its hello, or a second one, has come in part, and only the
    /// whole one can be checked.
    pub fn export(&self) -> Option<Vec<u8>> {
        let is_whole = |first: &&[u8]| self.hello_is_read && first.len() == self.hello_bytes;
        let first = self.stream.without_gap().filter(is_whole)?;
        let second = self.second.without_gap()?;
        if !second.is_empty() && !matches!(self.second.peek(), Peek::Hello(_)) {
            return None;
        }
        let mut out = self.version.number().to_be_bytes().to_vec();
        out.push(self.client_dcid.as_bytes().len() as u8);
        out.extend_from_slice(self.client_dcid.as_bytes());
        out.push(self.server_id.map_or(NO_ID, |id| id.as_bytes().len() as u8));
        out.extend_from_slice(self.server_id.as_ref().map_or(&[], QuicId::as_bytes));
        out.extend_from_slice(&self.largest.unwrap_or(NO_NUMBER).to_be_bytes());
        out.extend_from_slice(&(first.len() as u32).to_be_bytes());
        out.extend_from_slice(first);
        out.extend_from_slice(second);
        Some(out)
    }

    /// The reader of these bytes, for hellos of at most `hello_bytes_max` bytes. `None`: they are
    /// of no reader.
    pub fn import(bytes: &[u8], hello_bytes_max: usize) -> Option<Self> {
        let (version, rest) = bytes.split_first_chunk()?;
        let version = QuicVersion::from_number(u32::from_be_bytes(*version))?;
        let (&len, rest) = rest.split_first()?;
        let (client_dcid, rest) = rest.split_at_checked(len.into())?;
        let (&len, rest) = rest.split_first()?;
        let server_bytes = if len == NO_ID { 0 } else { len.into() };
        let (server_id, rest) = rest.split_at_checked(server_bytes)?;
        let (largest, rest) = rest.split_first_chunk()?;
        let (first_bytes, rest) = rest.split_first_chunk()?;
        let first_bytes = u32::from_be_bytes(*first_bytes) as usize;
        let (first, second) = rest.split_at_checked(first_bytes)?;
        let client_dcid = QuicId::new(client_dcid)?;
        let mut reader = Self::of(version, client_dcid, hello_bytes_max)?;
        if len != NO_ID {
            reader.server_id = Some(QuicId::new(server_id)?);
        }
        reader.largest = match u64::from_be_bytes(*largest) {
            NO_NUMBER => None,
            number if number >> 62 == 0 => Some(number),
            _ => return None,
        };
        fill(&mut reader.stream, first)?;
        if !second.is_empty() {
            fill(&mut reader.second, second)?;
        }
        (reader.hello_bytes, reader.hello_is_read) = (first_bytes, true);
        Some(reader)
    }
}

/// Puts a whole hello into a stream.
fn fill(stream: &mut CryptoStream, hello: &[u8]) -> Option<()> {
    stream.insert(0, hello).ok()?;
    matches!(stream.peek(), Peek::Hello(read) if read.message().len() == hello.len()).then_some(())
}

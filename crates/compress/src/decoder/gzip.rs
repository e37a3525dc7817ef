//! gzip (RFC 1952) by zlib-rs. A body may have several members (section 2.2).

use flate2::{Decompress, FlushDecompress, Status};

use super::step::{DecodingFault, STEP_BYTES_MAX};

/// Bytes of memory of a context: DEFLATE's window of 32 KiB, and tables.
pub(super) const BYTES: usize = 64 << 10;
/// 32 KiB, the most that DEFLATE has.
const WINDOW_BITS: u8 = 15;

pub(super) struct Gunzip {
    context: Decompress,
    at: At,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Start,
    Member,
    /// Behind a member.
    Between,
}

impl Gunzip {
    pub(super) fn new() -> Self {
        Self { context: Decompress::new_gzip(WINDOW_BITS), at: At::Start }
    }

    pub(super) fn step(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), DecodingFault> {
        if self.at == At::Between {
            // Files are padded with zeros, as gzip itself expects.
            let padding = input.iter().take_while(|byte| **byte == 0).count();
            *input = input.get(padding..).unwrap_or_default();
        }
        if input.is_empty() && self.at != At::Member {
            return Ok(());
        }
        if self.at == At::Between {
            self.context = Decompress::new_gzip(WINDOW_BITS);
        }
        self.at = At::Member;
        let mut room = [0; STEP_BYTES_MAX];
        let (taken, given) = (self.context.total_in(), self.context.total_out());
        let status = self.context.decompress(input, &mut room, FlushDecompress::None);
        let status = status.map_err(|_| DecodingFault::Malformed)?;
        let count = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
        let taken = count(self.context.total_in(), taken);
        let given = count(self.context.total_out(), given);
        *input = input.get(taken..).unwrap_or_default();
        out.extend_from_slice(room.get(..given).unwrap_or_default());
        if status == Status::StreamEnd {
            self.at = At::Between;
        }
        Ok(())
    }

    pub(super) fn is_between_members(&self) -> bool {
        self.at == At::Between
    }
}

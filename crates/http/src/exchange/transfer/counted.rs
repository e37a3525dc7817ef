//! The coding of a response's body, for its access line and the counters.

use super::Download;
use eyelet_recoding::Coder;
use eyelet_telemetry::request::Coded;

impl Download<'_> {
    /// Returns the coding of the body, for the access line.
    pub(super) fn coding_info(&self) -> Coded {
        let coding_info = self.coder.as_ref().map(Coder::coding_info).unwrap_or_default();
        let why_not = coding_info.why_not.or(self.why_not);
        Coded {
            coding: coding_info.coding,
            bytes_identity: self.taken,
            bytes_sent: self.given,
            why_not,
        }
    }
}

/// However the exchange ends, also where a drain drops its task.
impl Drop for Download<'_> {
    fn drop(&mut self) {
        if self.has_begun {
            self.counts.note_coded(self.coding_info());
        }
    }
}

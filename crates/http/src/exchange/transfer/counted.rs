//! The coding of a response's body, for its access line and the counters.

use super::Download;
use eyelet_compress::WhyNot;
use eyelet_http1::body::Decoder;
use eyelet_http1::head::Length;
use eyelet_recoding::Coder;
use eyelet_telemetry::request::Coded;

impl Download<'_> {
    /// Passes the body on as it is, for this reason.
    pub fn pass_as_is(&mut self, why: WhyNot) {
        self.why_not = Some(why.text());
    }

    /// Notes that all of the body, so many bytes, is passed on together with its head.
    pub fn has_passed(&mut self, bytes: u64) {
        (self.taken, self.given, self.ended) = (bytes, bytes, true);
        self.decoder = Decoder::new(Length::Empty);
    }

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

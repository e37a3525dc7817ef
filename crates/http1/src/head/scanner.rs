//! Finds the end of a head of HTTP/1.1 in bytes that come in pieces.

use crate::lines::find_lf;

/// Finds where a head ends, whatever the sizes of the reads.
#[derive(Debug, Default)]
pub struct Scanner {
    at: usize,
    line: usize,
    /// Lines before the last one, which is empty.
    pub(super) lines: usize,
}

/// A line that ends in LF alone. Readers differ on whether it ends a field (RFC 9112 2.2).
#[derive(Debug, PartialEq, Eq)]
pub struct BareLf;

impl Scanner {
    /// True if it has read nothing of a head.
    pub fn is_new(&self) -> bool {
        self.at == 0
    }

    /// The length of the head, or `None` if more bytes are needed. `bytes` extends the last call's.
    pub fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, BareLf> {
        while let Some(offset) = find_lf(&bytes[self.at..]) {
            let lf = self.at + offset;
            if lf == self.line || bytes[lf - 1] != b'\r' {
                return Err(BareLf);
            }
            let empty = lf == self.line + 1;
            // One empty line before a request line is ignored (RFC 9112 2.2).
            if empty && self.line > 0 {
                return Ok(Some(lf + 1));
            }
            (self.at, self.line) = (lf + 1, lf + 1);
            self.lines += 1;
        }
        self.at = bytes.len();
        Ok(None)
    }

    /// Finds the end likewise, but LF alone also ends a line, as RFC 9112 2.2 permits.
    pub fn lenient_end(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(offset) = find_lf(&bytes[self.at..]) {
            let lf = self.at + offset;
            let is_empty = matches!(bytes[self.line..lf], [] | [b'\r']);
            if is_empty && self.line > 0 {
                return Some(lf + 1);
            }
            (self.at, self.line) = (lf + 1, lf + 1);
            self.lines += 1;
        }
        self.at = bytes.len();
        None
    }
}

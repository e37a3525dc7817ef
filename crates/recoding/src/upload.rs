//! The coder of a request's body, towards an upstream that accepts zstd.

use eyelet_compress::coder::stored;
use eyelet_compress::pool::Lent;
use eyelet_compress::{Coding, CodingError, request};

use super::compressors::Compressors;

/// A body on its way through a coder.
pub struct UploadCoder {
    compressors: Compressors,
    /// `None`: the bytes are stored in a frame as they are.
    lent: Option<Lent>,
    /// True if the frame of stored bytes has begun.
    is_stored: bool,
    /// Bytes that came, and bytes that were put out.
    taken: u64,
    given: u64,
    /// True if bytes came since all was put out.
    is_unflushed: bool,
}

impl UploadCoder {
    /// A coder at the body's first byte. While memory is short, it stores the bytes.
    pub fn new(compressors: &Compressors) -> Self {
        let inner = &compressors.inner;
        compressors.recount();
        let lent = inner.pool.lend(Coding::Zstd, inner.pace.effort(), None);
        compressors.recount();
        let compressors = compressors.clone();
        Self { compressors, lent, is_stored: false, taken: 0, given: 0, is_unflushed: false }
    }

    /// Takes a piece of the body. Returns what can be sent.
    ///
    /// # Errors
    /// The coder's: the request cannot go on.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<u8>, CodingError> {
        let mut out = Vec::new();
        self.taken += piece.len() as u64;
        self.is_unflushed = true;
        match &mut self.lent {
            Some(lent) => self.compressors.inner.pace.spend(|| lent.push(piece, &mut out))?,
            None => self.store(piece, &mut out),
        }
        self.given += out.len() as u64;
        if request::nears_bomb(self.given, self.taken) {
            self.give_up(&mut out)?;
        }
        Ok(out)
    }

    /// Makes all that came decodable.
    ///
    /// # Errors
    /// As [`UploadCoder::push`].
    pub fn flush(&mut self) -> Result<Vec<u8>, CodingError> {
        let mut out = Vec::new();
        if std::mem::take(&mut self.is_unflushed)
            && let Some(lent) = &mut self.lent
        {
            self.compressors.inner.pace.spend(|| lent.flush(&mut out))?;
            self.given += out.len() as u64;
        }
        Ok(out)
    }

    /// Ends the body.
    ///
    /// # Errors
    /// As [`UploadCoder::push`].
    pub fn finish(&mut self) -> Result<Vec<u8>, CodingError> {
        let mut out = Vec::new();
        match &mut self.lent {
            Some(lent) => self.compressors.inner.pace.spend(|| lent.finish(&mut out))?,
            None => {
                self.store(b"", &mut out);
                stored::finish(&mut out);
            }
        }
        Ok(out)
    }

    /// Stores the rest, in a frame behind the one that ends here.
    fn give_up(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        if let Some(mut lent) = self.lent.take() {
            lent.finish(out)?;
        }
        Ok(())
    }

    fn store(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.is_stored, true) {
            stored::begin(out);
        }
        stored::push(piece, out);
    }
}

impl Drop for UploadCoder {
    /// Counts what the pool has got back.
    fn drop(&mut self) {
        self.lent = None;
        self.compressors.recount();
    }
}

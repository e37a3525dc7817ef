//! Bytes that a parked connection keeps: they live long, and may be secrets.

use std::fmt;
use std::ops::{Deref, DerefMut};

use eyelet_sys::memory::blocks::{LongBox, LongLived, LongVec};
use zeroize::Zeroize;

/// Bytes in pages for what lives long, which are wiped when they are dropped.
#[derive(Clone)]
pub struct WipedBytes(LongBox<[u8]>);

impl From<&[u8]> for WipedBytes {
    fn from(bytes: &[u8]) -> Self {
        let mut all = LongVec::with_capacity_in(bytes.len(), LongLived);
        all.extend_from_slice(bytes);
        Self(all.into_boxed_slice())
    }
}

impl Deref for WipedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for WipedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// The bytes may be secrets.
impl fmt::Debug for WipedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WipedBytes({})", self.len())
    }
}

impl Drop for WipedBytes {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

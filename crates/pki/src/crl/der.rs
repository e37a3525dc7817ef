//! Values in DER (X.690), read one after the other.

pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(super) const SEQUENCE: u8 = 0x30;
/// `[0] EXPLICIT`, the version of a certificate.
pub(super) const VERSION: u8 = 0xa0;

/// Values in DER (X.690), one after the other.
pub(super) struct Der<'a>(pub(super) &'a [u8]);

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Value<'a> {
    pub(super) tag: u8,
    pub(super) value: &'a [u8],
    /// The bytes with their tag and length.
    pub(super) whole: &'a [u8],
}

impl<'a> Der<'a> {
    /// The next value, if it has this tag.
    pub(super) fn take(&mut self, tag: u8) -> Option<Value<'a>> {
        self.next().filter(|value| value.tag == tag)
    }

    /// The next value.
    pub(super) fn next(&mut self) -> Option<Value<'a>> {
        let (tag, length) = (*self.0.first()?, *self.0.get(1)?);
        let (head, length) = match length {
            0..=0x7f => (2, usize::from(length)),
            // More than four bytes of length are more than a file has.
            0x81..=0x84 => {
                let count = usize::from(length & 0x7f);
                let bytes = self.0.get(2..2 + count)?;
                (2 + count, bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
            }
            _ => return None,
        };
        let whole = self.0.get(..head.checked_add(length)?)?;
        self.0 = self.0.get(whole.len()..)?;
        Some(Value { tag, value: whole.get(head..)?, whole })
    }
}

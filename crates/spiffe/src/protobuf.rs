//! Reads the wire format of Protocol Buffers: fields of a message, one after the other. Three
//! messages without numbers are read here: a library would bring a derive macro and two crates for
//! these lines, and would copy keys into buffers that nobody wipes.

use thiserror::Error;

/// Bytes of a number: 64 bits in groups of seven.
const VARINT_BYTES_MAX: usize = 10;

/// The reason why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProtobufFault {
    #[error("it ends within a field")]
    Cut,
    #[error("a number has more than 64 bits")]
    Number,
    #[error("a field has the number 0, or one that is too large")]
    FieldNumber,
    #[error("a field has the wire type {0}")]
    WireType(u8),
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtobufValue<'a> {
    /// A text, bytes, or a message.
    Bytes(&'a [u8]),
    /// Anything else, whose value nobody needs.
    Other,
}

/// The fields of a message.
pub struct ProtobufFields<'a> {
    rest: &'a [u8],
}

impl<'a> ProtobufFields<'a> {
    pub fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// The number of the next field, and its value. `None`: the message ends here.
    ///
    /// # Errors
    /// [`ProtobufFault`]. Nothing more can be read then.
    pub fn next(&mut self) -> Result<Option<(u32, ProtobufValue<'a>)>, ProtobufFault> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = u32::try_from(tag >> 3).ok().filter(|field| (1..1 << 29).contains(field));
        let field = field.ok_or(ProtobufFault::FieldNumber)?;
        let value = match (tag & 7) as u8 {
            0 => self.varint().map(|_| ProtobufValue::Other)?,
            1 => self.take(8).map(|_| ProtobufValue::Other)?,
            2 => {
                let len = usize::try_from(self.varint()?).map_err(|_| ProtobufFault::Cut)?;
                ProtobufValue::Bytes(self.take(len)?)
            }
            5 => self.take(4).map(|_| ProtobufValue::Other)?,
            // Groups (3 and 4) are not of this version, and 6 and 7 are nothing.
            other => return Err(ProtobufFault::WireType(other)),
        };
        Ok(Some((field, value)))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], ProtobufFault> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(ProtobufFault::Cut)?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, ProtobufFault> {
        let mut number = 0;
        for (at, byte) in self.rest.iter().take(VARINT_BYTES_MAX).enumerate() {
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has the 64th bit alone.
            if at == VARINT_BYTES_MAX - 1 && *byte > 1 {
                return Err(ProtobufFault::Number);
            }
            number |= bits << (7 * at);
            if byte & 0x80 == 0 {
                self.take(at + 1)?;
                return Ok(number);
            }
        }
        let is_long = self.rest.len() >= VARINT_BYTES_MAX;
        Err(if is_long { ProtobufFault::Number } else { ProtobufFault::Cut })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &[u8]) -> Result<Vec<(u32, ProtobufValue<'_>)>, ProtobufFault> {
        let (mut fields, mut all) = (ProtobufFields::new(message), Vec::new());
        while let Some(field) = fields.next()? {
            all.push(field);
        }
        Ok(all)
    }

    #[test]
    fn fields_are_read_in_their_order() {
        assert_eq!(read(b""), Ok(vec![]));
        assert_eq!(
            read(b"\x0a\x02ab\x12\x00\x82\x01\x01c"),
            Ok(vec![
                (1, ProtobufValue::Bytes(b"ab")),
                (2, ProtobufValue::Bytes(b"")),
                (16, ProtobufValue::Bytes(b"c"))
            ])
        );
        // A number, eight bytes and four bytes, each before a text.
        let others = b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x0a\x01a\x11abcdefgh\x1dabcd";
        let other = ProtobufValue::Other;
        let expected = vec![(1, other), (1, ProtobufValue::Bytes(b"a")), (2, other), (3, other)];
        assert_eq!(read(others), Ok(expected));
    }

    #[test]
    fn what_is_no_message_has_a_fault() {
        for (message, fault) in [
            (&b"\x0a"[..], ProtobufFault::Cut),
            (b"\x0a\x03ab", ProtobufFault::Cut),
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", ProtobufFault::Cut),
            (b"\x80", ProtobufFault::Cut),
            (b"\x11abcdefg", ProtobufFault::Cut),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", ProtobufFault::Number),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", ProtobufFault::Number),
            (b"\x00\x01", ProtobufFault::FieldNumber),
            (b"\xff\xff\xff\xff\xff\x01\x01", ProtobufFault::FieldNumber),
            (b"\x0b", ProtobufFault::WireType(3)),
            (b"\x0f", ProtobufFault::WireType(7)),
        ] {
            assert_eq!(read(message), Err(fault), "{}", message.escape_ascii());
        }
    }
}

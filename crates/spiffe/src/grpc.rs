//! Messages of gRPC in the data of a response: a byte, a length, and the message. A message may
//! come in any pieces. It is wiped when it is dropped, because it has a key.

use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a message: gRPC's own limit where nothing else is said.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Bytes before each message.
pub const HEAD_BYTES: usize = 5;

/// The reason why data is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GrpcFault {
    #[error("a message has {0} bytes; at most {MESSAGE_BYTES_MAX} are read")]
    TooLong(u32),
    #[error("a message is compressed, and nobody asked for that")]
    Compressed,
}

/// Collects messages.
#[derive(Default)]
pub struct Messages {
    head: [u8; HEAD_BYTES],
    head_len: usize,
    /// The message that has begun. Its room is made at once, so that no copy is left behind.
    body: Option<Zeroizing<Vec<u8>>>,
    missing: usize,
}

impl Messages {
    /// Takes the next piece of data, and calls `take` for each message that is whole then.
    ///
    /// # Errors
    /// [`GrpcFault`], or that of `take`.
    pub fn push<E: From<GrpcFault>>(
        &mut self,
        mut data: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            if self.body.is_none() && !self.read_head(&mut data)? {
                return Ok(());
            }
            let Some(body) = &mut self.body else { return Ok(()) };
            let (piece, rest) = data.split_at(self.missing.min(data.len()));
            body.extend_from_slice(piece);
            self.missing -= piece.len();
            data = rest;
            if self.missing > 0 {
                return Ok(());
            }
            if let Some(body) = self.body.take() {
                take(&body)?;
            }
        }
    }

    /// True within a message.
    pub fn is_within(&self) -> bool {
        self.head_len > 0 || self.body.is_some()
    }

    /// Reads the bytes before a message. Returns `false` if they are not whole.
    fn read_head(&mut self, data: &mut &[u8]) -> Result<bool, GrpcFault> {
        let wanted = HEAD_BYTES - self.head_len;
        let (piece, rest) = data.split_at(wanted.min(data.len()));
        self.head[self.head_len..self.head_len + piece.len()].copy_from_slice(piece);
        self.head_len += piece.len();
        *data = rest;
        if self.head_len < HEAD_BYTES {
            return Ok(false);
        }
        self.head_len = 0;
        let [is_compressed, length @ ..] = self.head;
        let length = u32::from_be_bytes(length);
        self.head.zeroize();
        if is_compressed != 0 {
            return Err(GrpcFault::Compressed);
        }
        let len = usize::try_from(length).ok().filter(|len| *len <= MESSAGE_BYTES_MAX);
        let len = len.ok_or(GrpcFault::TooLong(length))?;
        self.body = Some(Zeroizing::new(Vec::with_capacity(len)));
        self.missing = len;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn messages(pieces: &[&[u8]]) -> Result<(Vec<Vec<u8>>, bool), GrpcFault> {
        let (mut messages, mut all) = (Messages::default(), Vec::new());
        for piece in pieces {
            messages.push(piece, |message| {
                all.push(message.to_vec());
                Ok::<_, GrpcFault>(())
            })?;
        }
        Ok((all, messages.is_within()))
    }

    #[test]
    fn a_message_is_whole_however_it_comes() {
        let data = b"\0\0\0\0\x02ab\0\0\0\0\0\0\0\0\0\x01c\0\0";
        let expected = Ok((vec![b"ab".to_vec(), Vec::new(), b"c".to_vec()], true));
        assert_eq!(messages(&[data]), expected);
        for step in 1..data.len() {
            let pieces: Vec<&[u8]> = data.chunks(step).collect();
            assert_eq!(messages(&pieces), expected, "{step}");
        }
        assert_eq!(messages(&[b"\0\0\0\0\x01c"]), Ok((vec![b"c".to_vec()], false)));
    }

    #[test]
    fn a_message_has_a_limit_and_no_coding() {
        let most = (MESSAGE_BYTES_MAX as u32).to_be_bytes();
        assert_eq!(messages(&[&[0], &most]), Ok((vec![], true)));
        let more = (MESSAGE_BYTES_MAX as u32 + 1).to_be_bytes();
        let too_long = GrpcFault::TooLong(MESSAGE_BYTES_MAX as u32 + 1);
        assert_eq!(messages(&[&[0], &more]), Err(too_long));
        assert_eq!(messages(&[b"\x01\0\0\0\x01a"]), Err(GrpcFault::Compressed));
    }
}

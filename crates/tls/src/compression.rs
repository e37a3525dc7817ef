//! Compresses certificates for the handshake (RFC 8879): once for each certificate and coding, by
//! the coders that bodies have, too. rustls' own would bring a second brotli.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// The quality of brotli. With 4 a chain is 7 % longer, with 11 it is 5 % shorter and takes longer.
const BROTLI_QUALITY: u32 = 5;
/// The window of brotli, as its logarithm: a message of certificates has less than 64 KiB.
const BROTLI_WINDOW: u32 = 16;
/// Bytes that a coder takes at once.
const BUFFER_BYTES: usize = 4096;
/// A message is compressed if that saves this part of it at least. A client pays for it with an
/// allocation and a pass over the message. ML-DSA's keys and signatures do not shrink.
const SAVED_PART_MIN: usize = 8;

/// A coding of RFC 8879.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainCoding {
    Brotli,
    Zlib,
}

/// A certificate's message in both codings, as far as clients have asked for them.
#[derive(Default)]
pub struct CompressedChain([Option<Compressed>; 2]);

/// The result of compressing a message, which has so many bytes.
struct Compressed {
    message_len: usize,
    /// `None`: it saves too little.
    coded: Option<Box<[u8]>>,
}

impl CompressedChain {
    /// The coded form of a message of this length. `None`: nobody has asked for it yet.
    pub fn get(&self, coding: ChainCoding, message_len: usize) -> Option<Option<&[u8]>> {
        let known = self.0[coding as usize].as_ref()?;
        (known.message_len == message_len).then_some(known.coded.as_deref())
    }

    /// Stores a coded form. Returns how many bytes more it takes.
    pub fn put(
        &mut self,
        coding: ChainCoding,
        message_len: usize,
        coded: Option<Box<[u8]>>,
    ) -> usize {
        let bytes = coded.as_deref().map_or(0, <[u8]>::len);
        let slot = &mut self.0[coding as usize];
        // Another thread was faster. Its chain never changes, and so its bytes are the same.
        if slot.is_some() {
            return 0;
        }
        *slot = Some(Compressed { message_len, coded });
        bytes
    }

    /// Bytes of the coded forms.
    pub fn bytes(&self) -> usize {
        let coded = self.0.iter().flatten().filter_map(|known| known.coded.as_deref());
        coded.map(<[u8]>::len).sum()
    }
}

impl ChainCoding {
    /// Codes a message. `None`: that saves too little.
    pub fn code(self, message: &[u8]) -> Option<Box<[u8]>> {
        let coded = match self {
            Self::Brotli => {
                let mut coder = brotli::CompressorWriter::new(
                    Vec::new(),
                    BUFFER_BYTES,
                    BROTLI_QUALITY,
                    BROTLI_WINDOW,
                );
                coder.write_all(message).ok()?;
                coder.into_inner()
            }
            Self::Zlib => {
                let mut coder = ZlibEncoder::new(Vec::new(), Compression::best());
                coder.write_all(message).ok()?;
                coder.finish().ok()?
            }
        };
        let most = message.len() - message.len() / SAVED_PART_MIN;
        (coded.len() <= most).then(|| coded.into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Read;

    use super::*;

    #[test]
    fn a_message_that_shrinks_is_coded_and_another_is_not() {
        let texts: Vec<String> =
            (0..60).map(|n| format!("certificate {n} of CA Example; ")).collect();
        let message = texts.concat().into_bytes();
        for coding in [ChainCoding::Brotli, ChainCoding::Zlib] {
            let coded = coding.code(&message).unwrap();
            let mut back = Vec::new();
            match coding {
                ChainCoding::Brotli => {
                    brotli::Decompressor::new(&*coded, 4096).read_to_end(&mut back).map(drop)
                }
                ChainCoding::Zlib => {
                    flate2::read::ZlibDecoder::new(&*coded).read_to_end(&mut back).map(drop)
                }
            }
            .unwrap();
            assert!(back == message && coded.len() < message.len() / 2, "{coding:?}");
            let mut noise = vec![0; 2500];
            aws_lc_rs::rand::fill(&mut noise).unwrap();
            assert_eq!(coding.code(&noise), None, "{coding:?}");
            assert_eq!(coding.code(b""), None, "{coding:?}");
        }
    }

    #[test]
    fn each_coding_is_stored_once() {
        let mut chain = CompressedChain::default();
        assert_eq!(chain.get(ChainCoding::Zlib, 10), None);
        assert_eq!(chain.put(ChainCoding::Zlib, 10, Some([1, 2].into())), 2);
        assert_eq!(chain.put(ChainCoding::Zlib, 10, Some([1, 2].into())), 0, "another thread");
        assert_eq!(chain.put(ChainCoding::Brotli, 10, None), 0);
        assert_eq!(chain.get(ChainCoding::Zlib, 10), Some(Some(&[1, 2][..])));
        assert_eq!(chain.get(ChainCoding::Zlib, 11), None);
        assert_eq!(chain.get(ChainCoding::Brotli, 10), Some(None), "it saves too little");
        assert_eq!(chain.bytes(), 2);
    }
}

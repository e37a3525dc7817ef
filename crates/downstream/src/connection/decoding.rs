//! A body that is decoded on its way: a response's for a client that does not accept its coding, a
//! request's for an application. Each step waits until the receiver has taken what came before.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use eyelet_compress::decoder::DECODER_BYTES_MAX;
use eyelet_compress::dictionary::learned::Learned;
use eyelet_compress::validators::without_digests;
use eyelet_compress::{ContentDecoder, DecodingFault};
use http::HeaderMap;

use eyelet_engine::worker::Worker;
use eyelet_http1::body::Piece;
use eyelet_http1::fault::ResponseFault;
use eyelet_http1::write_queue::coded_piece;
use eyelet_memory::budget::{Account, Budget, Counted};
use eyelet_recoding::DecodedCoding;

/// Coded bytes that may come to nothing before other tasks run: empty blocks, members and frames.
const FRUITLESS_BYTES_MAX: usize = 64 << 10;
/// A decoder that holds more begins only where others may begin, and gives way when memory is
/// short. Tables and windows of ordinary bodies take less.
const LARGE_BYTES: usize = 1 << 20;
/// Most bytes of all decoders of one connection of a client: two with the largest windows. A few
/// bytes on each of a hundred streams would open a hundred of them. Each may hold [`LARGE_BYTES`]
/// all the same.
const CLIENT_BYTES_MAX: usize = 2 * DECODER_BYTES_MAX;

/// Bytes that all decoders of one connection of a client hold.
pub type ClientDecoders = Rc<Cell<usize>>;

/// A decoder's part of them.
struct ClientShare {
    all: ClientDecoders,
    own: usize,
}

impl ClientShare {
    fn set(&mut self, bytes: usize) {
        self.all.set(self.all.get() - self.own + bytes);
        self.own = bytes;
    }

    /// Returns the most that this decoder may hold. An ordinary one has room beside large ones.
    fn room(&self) -> usize {
        CLIENT_BYTES_MAX.saturating_sub(self.all.get() - self.own).max(LARGE_BYTES)
    }
}

impl Drop for ClientShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The reason why a body cannot be decoded.
#[derive(Debug)]
pub enum NotDecoded {
    /// Its bytes are not of the coding.
    Fault(DecodingFault),
    /// There is no memory for it.
    NoRoom,
}

impl From<NotDecoded> for ResponseFault {
    fn from(why: NotDecoded) -> Self {
        match why {
            NotDecoded::Fault(DecodingFault::Malformed) => Self::ContentCoding,
            NotDecoded::Fault(DecodingFault::Cut) => Self::ContentCut,
            NotDecoded::Fault(DecodingFault::Dictionary) => Self::Dictionary,
            NotDecoded::NoRoom | NotDecoded::Fault(DecodingFault::NoRoom) => Self::NoRoom,
        }
    }
}

/// The decoder of a body, and the coded bytes that it has not taken.
pub struct Decoding {
    decoder: ContentDecoder,
    /// Kept to be told that it is wrong.
    dictionary: Option<Arc<Learned>>,
    input: Bytes,
    /// The body's end, with its trailers. It waits for the bytes before it.
    end: Option<Option<HeaderMap>>,
    budget: Arc<Budget>,
    counted: Counted,
    of_client: ClientShare,
    /// The most that was counted.
    bytes: usize,
}

impl Decoding {
    /// A decoder at the body's first byte. `all` are the decoders of its client's connection.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(
        decoded_coding: DecodedCoding,
        budget: &Arc<Budget>,
        all: &ClientDecoders,
    ) -> Result<Self, NotDecoded> {
        let DecodedCoding { coding, dictionary } = decoded_coding;
        let decoder = match &dictionary {
            // The decoder copies it. There was room for that when the request was made.
            Some(learned) if budget.left() < learned.body.len() => None,
            Some(learned) => ContentDecoder::with_dictionary(coding, learned.hash, &learned.body),
            None => ContentDecoder::new(coding),
        };
        let decoder = decoder.ok_or(NotDecoded::NoRoom)?;
        let bytes = decoder.bytes();
        let mut of_client = ClientShare { all: all.clone(), own: 0 };
        // A dictionary takes up to 16 MiB.
        if bytes > of_client.room() {
            return Err(NotDecoded::NoRoom);
        }
        of_client.set(bytes);
        let (counted, budget) = (Counted::of(budget, Account::Compression, bytes), budget.clone());
        let (input, end) = (Bytes::new(), None);
        Ok(Self { decoder, dictionary, input, end, budget, counted, of_client, bytes })
    }

    /// The next piece of the decoded body. `read` gives those of the coded one.
    pub fn poll<E: From<NotDecoded>>(
        &mut self,
        task: &mut Context<'_>,
        mut read: impl FnMut(&mut Context<'_>) -> Poll<Result<Piece, E>>,
    ) -> Poll<Result<Piece, E>> {
        let mut fruitless = 0;
        loop {
            self.decoder.limit_growth(self.room_bytes());
            let (mut left, mut out) = (&self.input[..], Vec::new());
            if let Err(fault) = self.decoder.step(&mut left, &mut out) {
                if fault == DecodingFault::NoRoom {
                    return Poll::Ready(Err(NotDecoded::NoRoom.into()));
                }
                // A connection that is cut says nothing about the dictionary.
                if let Some(dictionary) =
                    self.dictionary.as_ref().filter(|_| fault != DecodingFault::Cut)
                {
                    dictionary.distrust();
                }
                return Poll::Ready(Err(NotDecoded::Fault(fault).into()));
            }
            let taken = self.input.len() - left.len();
            self.input.advance(taken);
            self.count()?;
            if !out.is_empty() {
                return Poll::Ready(Ok(Piece::Data(coded_piece(out))));
            }
            if let Some(trailers) = self.end.take() {
                self.decoder.end().map_err(NotDecoded::Fault)?;
                return Poll::Ready(Ok(Piece::End(trailers.and_then(without_digests))));
            }
            fruitless += taken;
            if fruitless >= FRUITLESS_BYTES_MAX {
                task.waker().wake_by_ref();
                return Poll::Pending;
            }
            match ready!(read(task))? {
                Piece::Data(data) => self.input = data,
                Piece::End(trailers) => self.end = Some(trailers),
            }
        }
    }

    /// Returns the room for a window that is about to be allocated. Those who were let in before
    /// still grow, and newcomers need the last eighth: a large one leaves a quarter of the budget.
    fn room_bytes(&self) -> usize {
        let left = self.budget.left();
        self.budget.left_to_begin().max(left.min(LARGE_BYTES)).min(self.of_client.room())
    }

    /// Counts a window that has grown. The last eighth of the budget is not for windows, and the
    /// one before it not for large ones.
    fn count(&mut self) -> Result<(), NotDecoded> {
        let bytes = self.decoder.bytes();
        self.counted.set(bytes);
        self.of_client.set(bytes);
        let has_grown = bytes > self.bytes;
        self.bytes = self.bytes.max(bytes);
        let is_full = match self.is_large() {
            true => self.budget.is_filling(0),
            false => self.budget.is_tight(0),
        };
        if has_grown && is_full { Err(NotDecoded::NoRoom) } else { Ok(()) }
    }

    /// True if it holds much.
    fn is_large(&self) -> bool {
        self.bytes > LARGE_BYTES
    }

    /// A body whose decoder holds much ends when memory is short, whether it moves or not: one
    /// window is as much as five hundred connections. This checks again at each tick.
    ///
    /// # Errors
    /// Others need the memory.
    pub fn give_way(&self, task: &Context<'_>, engine: &Worker) -> Result<(), NotDecoded> {
        if !self.is_large() {
            return Ok(());
        }
        engine.wants_memory(task);
        if self.budget.is_tight(0) { Err(NotDecoded::NoRoom) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;

    use eyelet_compress::Coding;

    use super::*;

    /// 32 MiB with a window of 16 MiB.
    fn of_a_large_window() -> Vec<u8> {
        let mut coded = Vec::new();
        let mut coder = brotli::CompressorWriter::new(&mut coded, 4096, 1, 24);
        coder.write_all(&vec![b'a'; 32 << 20]).unwrap();
        drop(coder);
        coded
    }

    /// Decodes until there is a first byte.
    fn begin(decoding: &mut Decoding, coded: &[u8]) -> Result<(), NotDecoded> {
        let mut task = Context::from_waker(std::task::Waker::noop());
        let mut body = Some(Bytes::copy_from_slice(coded));
        loop {
            let read = |_: &mut Context<'_>| {
                let data = body.take().map(Piece::Data);
                Poll::Ready(Ok(data.unwrap_or(Piece::End(None))))
            };
            match decoding.poll::<NotDecoded>(&mut task, read) {
                Poll::Ready(piece) => return piece.map(drop),
                Poll::Pending => {}
            }
        }
    }

    /// However much memory is left for others.
    #[test]
    fn the_decoders_of_one_client_share_a_limit() {
        let coded = of_a_large_window();
        let budget = Arc::new(Budget::new(1 << 30, 0));
        let all = ClientDecoders::default();
        let decoder = |all| {
            let decoded_coding = DecodedCoding { coding: Coding::Br, dictionary: None };
            Decoding::new(decoded_coding, &budget, all).unwrap()
        };
        let mut held = [decoder(&all), decoder(&all)];
        for decoding in &mut held {
            begin(decoding, &coded).unwrap();
        }
        let over = begin(&mut decoder(&all), &coded);
        assert!(matches!(over, Err(NotDecoded::NoRoom)), "{over:?}");
        assert!(all.get() <= CLIENT_BYTES_MAX, "{}", all.get());
        let other = ClientDecoders::default();
        begin(&mut decoder(&other), &coded).unwrap();
        drop(held);
        assert_eq!((all.get(), other.get()), (0, 0));
        begin(&mut decoder(&all), &coded).unwrap();
    }

    #[test]
    fn a_window_for_which_there_is_no_room_is_not_allocated() {
        let coded = of_a_large_window();
        let budget = Arc::new(Budget::new(32 << 20, 0));
        let decoded_coding = DecodedCoding { coding: Coding::Br, dictionary: None };
        let all = ClientDecoders::default();
        let mut decoding = Decoding::new(decoded_coding, &budget, &all).unwrap();
        let mut task = Context::from_waker(std::task::Waker::noop());
        let mut body = Some(Bytes::from(coded));
        let error = loop {
            let read = |_: &mut Context<'_>| {
                let data = body.take().map(Piece::Data);
                Poll::Ready(Ok(data.unwrap_or(Piece::End(None))))
            };
            match decoding.poll::<NotDecoded>(&mut task, read) {
                Poll::Ready(Err(error)) => break error,
                Poll::Ready(Ok(Piece::Data(_))) | Poll::Pending => {}
                Poll::Ready(Ok(Piece::End(_))) => panic!("the window of 16 MiB fits in 20 MiB"),
            }
        };
        assert!(matches!(error, NotDecoded::NoRoom), "{error:?}");
        assert!(decoding.decoder.bytes() < 16 << 20, "{} bytes", decoding.decoder.bytes());
    }
}

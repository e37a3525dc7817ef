//! The ways of a body to the client: unchanged, through a stream's coder, or held until it can be
//! coded as a whole.

use std::sync::Arc;
use std::time::Duration;

use eyelet_compress::coder::{Br, CodingStep, zstd};
use eyelet_compress::dictionary::store::{Family, Step, StoredVersion};
use eyelet_compress::dictionary::{self, Hash};
use eyelet_compress::pool::{CompressorPool, DCB_QUALITY, Lent, Share};
use eyelet_compress::{Coding, CodingError, WhyNot};

use super::compressors::{CodingInfo, Compressors, Inner, coding_info};
use super::dictionaries::hash::hash;
use super::dictionaries::jobs::Capture;
use super::dictionaries::trained::Trained;
use super::learning::{DecodedCoding, Learning};

/// The path of a body to the client.
pub struct Coder {
    compressors: Compressors,
    way: Way,
    coding_info: CodingInfo,
    pub(super) capture: Option<Box<Capture>>,
    /// A response that becomes a dictionary of an edge that is a client.
    pub(super) learning: Option<Box<Learning>>,
    /// The upstream's coding, which is decoded before.
    pub(super) undoes: Option<Box<DecodedCoding>>,
}

enum Way {
    AsIs,
    Stream {
        /// Boxed, like the capture: most responses have neither, and a coder is moved a few times.
        lent: Box<Lent>,
        /// The bytes that precede the first coded one.
        header: Vec<u8>,
        /// Identity bytes since the last flush.
        unflushed: u64,
    },
    Held(Box<Held>),
    /// Ended or failed: a failed coder must not continue.
    Over,
}

/// A body that is coded as a whole. Its length is known and bounded.
pub(super) struct Held {
    body: Vec<u8>,
    coding: Coding,
    history: History,
    /// The body's share of the budget.
    _share: Share,
}

/// The dictionary that a body is coded with.
pub(super) enum History {
    /// An earlier response of this family.
    Version(Arc<StoredVersion>, Family),
    Trained(Arc<Trained>),
}

impl Held {
    /// A body of so many bytes, with its share of the budget.
    pub(super) fn new(history: History, coding: Coding, length: usize, share: Share) -> Self {
        Self { body: Vec::with_capacity(length), coding, history, _share: share }
    }
}

/// A silence of the upstream after which everything it has sent is made decodable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Its length.
    pub of: Duration,
    /// The time after the first unflushed byte from which the pause is assumed, if there is no
    /// silence.
    pub since_first: Duration,
}

impl Coder {
    pub(super) fn as_is(compressors: &Compressors, why: WhyNot) -> Self {
        Self::new(compressors, Way::AsIs, coding_info(None, Some(why)))
    }

    pub(super) fn stream(
        compressors: &Compressors,
        lent: Lent,
        coding: Coding,
        dictionary: Option<Hash>,
    ) -> Self {
        let mut header = Vec::new();
        if let Some(hash) = dictionary {
            dictionary::header(coding, hash, &mut header);
        }
        let way = Way::Stream { lent: Box::new(lent), header, unflushed: 0 };
        Self::new(compressors, way, coding_info(Some(coding), None))
    }

    pub(super) fn held(compressors: &Compressors, held: Held) -> Self {
        let coding_info = coding_info(Some(held.coding), None);
        Self::new(compressors, Way::Held(Box::new(held)), coding_info)
    }

    fn new(compressors: &Compressors, way: Way, coding_info: CodingInfo) -> Self {
        let compressors = compressors.clone();
        Self { compressors, way, coding_info, capture: None, learning: None, undoes: None }
    }

    /// The upstream's coding, if the body must be decoded before it comes here.
    pub fn take_decoded(&mut self) -> Option<DecodedCoding> {
        self.undoes.take().map(|decoded_coding| *decoded_coding)
    }

    /// True if pieces are passed on unchanged, without [`Coder::push`].
    pub fn is_identity(&self) -> bool {
        matches!(self.way, Way::AsIs)
    }

    /// Takes a piece of the body. Appends the output, which may be empty.
    ///
    /// # Errors
    /// A coder's; the response must be cut.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.inspect(piece);
        let pace = &self.compressors.inner.pace;
        let done = match &mut self.way {
            Way::AsIs => {
                out.extend_from_slice(piece);
                Ok(())
            }
            Way::Stream { lent, header, unflushed, .. } => {
                out.append(header);
                *unflushed += piece.len() as u64;
                pace.spend(|| lent.push(piece, out))
            }
            Way::Held(held) if held.body.capacity() - held.body.len() < piece.len() => Err(LONGER),
            Way::Held(held) => {
                held.body.extend_from_slice(piece);
                Ok(())
            }
            Way::Over => Err(OVER),
        };
        self.over_if(done)
    }

    /// Returns the time at which [`Coder::flush`] is due. `None`: there is nothing to flush.
    pub fn pause(&self) -> Option<Pause> {
        match &self.way {
            Way::Stream { unflushed, .. } if *unflushed > 0 => Some(PAUSE),
            Way::Held(held) if !held.body.is_empty() => Some(HELD_PAUSE),
            Way::AsIs | Way::Stream { .. } | Way::Held(_) | Way::Over => None,
        }
    }

    /// Flushes the coder after an upstream pause: everything so far becomes decodable.
    ///
    /// # Errors
    /// As [`Coder::push`].
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        let done = match &mut self.way {
            Way::Held(held) if !held.body.is_empty() => self.release(out),
            Way::AsIs | Way::Stream { .. } | Way::Held(_) | Way::Over => Ok(()),
        };
        let done = done.and_then(|()| match &mut self.way {
            Way::Stream { lent, unflushed, .. } if *unflushed > 0 => {
                *unflushed = 0;
                self.compressors.inner.pace.spend(|| lent.flush(out))
            }
            Way::Over => Err(OVER),
            Way::AsIs | Way::Stream { .. } | Way::Held(_) => Ok(()),
        });
        self.over_if(done)
    }

    /// Continues as a stream, with the same dictionary, a body that was to be coded as a whole. If
    /// there is no room for that, the body stays held.
    fn release(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        let Way::Held(held) = &mut self.way else { return Ok(()) };
        let (hash, dictionary) = match &held.history {
            History::Version(version, _) => (version.hash, &version.body[..]),
            History::Trained(trained) => (trained.hash, &trained.content[..]),
        };
        // As at its end: a history that is too large is not used.
        let max = delta_now_bytes_max(held.coding);
        let is_small = dictionary.len() + held.body.capacity() <= max;
        let history = if is_small { dictionary } else { b"" };
        let Inner { pool, pace, .. } = &*self.compressors.inner;
        let Some(mut lent) = pool.lend_with(held.coding, pace.effort(), history) else {
            return Ok(());
        };
        dictionary::header(held.coding, hash, out);
        let pushed = pace.spend(|| lent.push(&held.body, out));
        let unflushed = held.body.len() as u64;
        self.way = Way::Stream { lent: Box::new(lent), header: Vec::new(), unflushed };
        pushed
    }

    /// Ends a complete body. For one that was cut short, drop the coder instead.
    ///
    /// # Errors
    /// As [`Coder::push`].
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.inspect_end();
        match std::mem::replace(&mut self.way, Way::Over) {
            Way::AsIs => {
                self.way = Way::AsIs;
                Ok(())
            }
            Way::Stream { mut lent, mut header, .. } => {
                out.append(&mut header);
                self.compressors.inner.pace.spend(|| lent.finish(out))
            }
            Way::Held(held) => {
                let compressors = self.compressors.clone();
                compressors.inner.pace.spend(|| finish_held(&compressors, &held, out))
            }
            Way::Over => Err(OVER),
        }
    }

    /// True if the bytes of an identity body must be passed to [`Coder::inspect`].
    pub fn inspects(&self) -> bool {
        self.capture.is_some() || self.learning.is_some()
    }

    /// Notes bytes that pass.
    pub fn inspect(&mut self, piece: &[u8]) {
        self.coding_info.bytes_identity += piece.len() as u64;
        if let Some(capture) = &mut self.capture
            && !capture.take(piece)
        {
            self.capture = None;
        }
        if let Some(learning) = &mut self.learning
            && !learning.take(piece)
        {
            self.learning = None;
        }
    }

    /// Notes that the body is complete.
    pub fn inspect_end(&mut self) {
        if let Some(capture) = self.capture.take() {
            self.compressors.inner.shared.note_seen(capture.seen, capture.body.into());
        }
        if let Some(learning) = self.learning.take() {
            learning.end(&self.compressors.inner.shared);
        }
    }

    /// For the access log.
    pub fn coding_info(&self) -> CodingInfo {
        self.coding_info
    }

    fn over_if(&mut self, done: Result<(), CodingError>) -> Result<(), CodingError> {
        if done.is_err() {
            self.way = Way::Over;
        }
        done
    }
}

fn finish_held(
    compressors: &Compressors,
    held: &Held,
    out: &mut Vec<u8>,
) -> Result<(), CodingError> {
    let (body, coding) = (&held.body, held.coding);
    match &held.history {
        History::Version(version, family) => {
            let step = Step { from: version.hash, to: hash(body), coding };
            let shared = &compressors.inner.shared;
            if let Some(coded) = shared.delta(step) {
                out.extend_from_slice(&coded);
                return Ok(());
            }
            // Most files of a tree are unchanged, and a better delta of nothing saves nothing.
            if !(family.is_file && step.is_unchanged()) {
                shared.ask_for_step(family, step);
            }
            dictionary::header(coding, version.hash, out);
            // The head has promised this coding for the delta of another body of this length. One
            // that is too large to be made now is coded without its history. A body that is its
            // own dictionary is a single match, which takes little time at any length.
            let is_small = version.body.len() + body.len() <= delta_now_bytes_max(coding)
                || (step.is_unchanged() && coding == Coding::Dcz);
            let history = if is_small { &version.body[..] } else { b"" };
            match coding {
                Coding::Dcb if is_small => whole_br(DCB_QUALITY, history, body, out),
                Coding::Dcb => whole_br(DCB_QUALITY_LARGE, history, body, out),
                _ => {
                    let delta = zstd::delta(history, body, DELTA_NOW_LEVEL)?;
                    out.extend_from_slice(&delta);
                    Ok(())
                }
            }
        }
        History::Trained(trained) => {
            dictionary::header(coding, trained.hash, out);
            match coding {
                Coding::Dcb => whole_br(DCB_QUALITY, &trained.content, body, out),
                _ => whole_trained(&compressors.inner.pool, trained, body, out),
            }
        }
    }
}

fn whole_br(
    quality: u32,
    dictionary: &[u8],
    body: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), CodingError> {
    let mut br = Br::with_dictionary(quality, dictionary, Some(body.len() as u64));
    br.step(body, out, CodingStep::Finish)
}

/// The head has promised this coding. If the pool is exhausted by now, the frame gets its own
/// context.
fn whole_trained(
    pool: &CompressorPool,
    trained: &Trained,
    body: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), CodingError> {
    let before = out.len();
    if pool.whole(&trained.prepared, body, out).is_ok() {
        return Ok(());
    }
    out.truncate(before);
    out.extend_from_slice(&zstd::delta(&trained.content, body, DELTA_NOW_LEVEL)?);
    Ok(())
}

/// Most bytes of dictionary and body together: some milliseconds of a worker's time. dcz takes 5 ms
/// for two sources of 1.7 MB, and plain br 80 ms for one of them. dcb takes as long as br.
pub(super) const fn delta_now_bytes_max(coding: Coding) -> usize {
    match coding {
        Coding::Dcz => 4 << 20,
        _ => 2 << 20,
    }
}
/// The lowest quality that searches for matches: a quarter of the time of [`DCB_QUALITY`].
const DCB_QUALITY_LARGE: u32 = 2;
/// Level 3 with the large hash tables of [`zstd::delta`].
const DELTA_NOW_LEVEL: i32 = 3;
/// The pause after which a stream is flushed. An upstream that sends as fast as it can has shorter
/// gaps, and a flush in each of them would cost a tenth of the bytes or more. One that never stops
/// writes less at a time, so it is not waited for either.
const PAUSE: Pause = Pause { of: Duration::from_millis(2), since_first: Duration::from_millis(20) };
/// The pause for a body that is held, which then gives up its delta. It is longer than the round
/// trips of a distant upstream that starts slowly.
const HELD_PAUSE: Pause =
    Pause { of: Duration::from_millis(300), since_first: Duration::from_millis(300) };

const LONGER: CodingError = CodingError { coder: "held", why: "the body is longer than declared" };
const OVER: CodingError = CodingError { coder: "coder", why: "used after its end" };

//! Packed bytes: pieces that many parked connections have in common are stored once for a worker.
//!
//! The form is a sequence of runs. A run begins with a number in LEB128: its length times two, and
//! its bytes follow; or a symbol's index times two plus one, which stands for a shared piece.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use crate::budget::Budget;
use crate::interner::{Interner, Symbol};
use crate::wiped::WipedBytes;
use zeroize::Zeroizing;

/// A shorter piece is not shared. A symbol takes up to 4 bytes, and may split a run, which takes
/// another one; the first use of a piece takes `FIRST_USE_BYTES` more among the shared ones.
pub const SHARED_BYTES_MIN: usize = 12;
/// Bytes that the first use of a piece takes besides the piece, about: its slot, its place in the
/// table, and the allocator's header.
const FIRST_USE_BYTES: usize = 50;
/// A longer piece is not shared. Such pieces are rarely alike, and a source is charged for a part
/// of a piece only.
pub const SHARED_BYTES_MAX: usize = 512;
/// Most shared pieces of one value, for the same reason. A browser's connection has about 20.
pub const SHARED_PIECES_MAX: usize = 32;

/// Bits of a number in each byte of LEB128.
const NUMBER_BITS: u32 = 7;
const MORE: u8 = 0x80;
/// Most bytes of a number: those of a length or a symbol have 33 bits at most.
const NUMBER_BYTES_MAX: usize = 5;

/// The pieces that the values of one worker share. They count against the budget as
/// [`Account::Texts`](crate::budget::Account::Texts), and each as long as a value has it.
pub struct SharedPieces(RefCell<Interner<Box<[u8]>>>);

impl SharedPieces {
    /// A set without pieces.
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self(RefCell::new(Interner::new(budget)))
    }

    /// True if no value shares a piece.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

/// Bytes in one allocation, and the shared pieces that they refer to. Dropping them ends that use,
/// and wipes the bytes, which may be secrets.
pub struct PackedBytes {
    runs: WipedBytes,
    /// `None`: no run is shared.
    shared: Option<Rc<SharedPieces>>,
    /// See [`PackedBytes::shared_bytes`].
    shared_bytes: usize,
}

/// A part of the bytes.
#[derive(Clone, Copy)]
enum Run<'a> {
    Own(&'a [u8]),
    Shared(Symbol),
}

/// The bytes may be secrets.
impl fmt::Debug for PackedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedBytes").field("runs", &self.runs.len()).finish_non_exhaustive()
    }
}

impl PackedBytes {
    /// Bytes that share nothing.
    pub fn own(bytes: &[u8]) -> Self {
        let mut runs = Zeroizing::new(Vec::with_capacity(bytes.len() + NUMBER_BYTES_MAX));
        write_own(bytes, &mut runs);
        Self { runs: WipedBytes::from(&runs[..]), shared: None, shared_bytes: 0 }
    }

    /// Packs bytes. `common` are the places of pieces that other values may have too, in ascending
    /// order. They must not hold secrets: a shared piece lives as long as any value that has it.
    pub fn pack(bytes: &[u8], common: &[Range<usize>], shared: &Rc<SharedPieces>) -> Self {
        let mut pieces = shared.0.borrow_mut();
        // It never grows: that would leave a copy that is not wiped.
        let numbers = (2 * SHARED_PIECES_MAX + 1) * NUMBER_BYTES_MAX;
        let mut runs = Zeroizing::new(Vec::with_capacity(bytes.len() + numbers));
        let (mut at, mut shared_bytes) = (0, 0);
        let pays =
            |place: &&Range<usize>| (SHARED_BYTES_MIN..=SHARED_BYTES_MAX).contains(&place.len());
        for place in common.iter().filter(pays).take(SHARED_PIECES_MAX) {
            let places = (bytes.get(at..place.start), bytes.get(place.clone()));
            let (Some(before), Some(piece)) = places else { continue };
            write_own(before, &mut runs);
            let (symbol, uses) = pieces.intern_ref(piece);
            shared_bytes += (FIRST_USE_BYTES + piece.len()) / uses.max(1) as usize;
            write_number(u64::from(symbol.index()) << 1 | 1, &mut runs);
            at = place.end;
        }
        write_own(bytes.get(at..).unwrap_or_default(), &mut runs);
        let shared = (at > 0).then(|| shared.clone());
        Self { runs: WipedBytes::from(&runs[..]), shared, shared_bytes }
    }

    /// The bytes, unpacked.
    pub fn whole(&self) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.whole_len());
        self.each(|piece| whole.extend_from_slice(piece));
        whole
    }

    /// Length of the bytes, unpacked.
    pub fn whole_len(&self) -> usize {
        let mut len = 0;
        self.each(|piece| len += piece.len());
        len
    }

    /// The bytes before the first shared piece.
    pub fn first(&self) -> &[u8] {
        match self.runs().next() {
            Some(Run::Own(bytes)) => bytes,
            _ => &[],
        }
    }

    /// The bytes behind the last shared piece.
    pub fn last(&self) -> &[u8] {
        match self.runs().last() {
            Some(Run::Own(bytes)) => bytes,
            _ => &[],
        }
    }

    /// The first run, to be changed in place.
    pub fn first_mut(&mut self) -> &mut [u8] {
        let len = self.first().len();
        let head = read_number(&self.runs).map_or(0, |(_, head)| head);
        self.runs.get_mut(head..head + len).unwrap_or_default()
    }

    /// The bytes behind the last shared piece, to be changed in place.
    pub fn last_mut(&mut self) -> &mut [u8] {
        let begin = self.runs.len() - self.last().len();
        &mut self.runs[begin..]
    }

    /// Bytes of memory that it holds itself.
    pub fn held_bytes(&self) -> usize {
        self.runs.len()
    }

    /// Its part of the memory of its shared pieces: each piece's bytes, divided by the values that
    /// had it when this one was packed. Its source pays for them, although [`SharedPieces`] counts
    /// them: otherwise a piece that nobody shares, or whose first value has gone, is free.
    pub fn shared_bytes(&self) -> usize {
        self.shared_bytes
    }

    fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        let mut rest = &self.runs[..];
        std::iter::from_fn(move || {
            let (number, head) = read_number(rest)?;
            rest = rest.get(head..)?;
            let value = number >> 1;
            if number & 1 == 1 {
                return Some(Run::Shared(Symbol::of(u32::try_from(value).ok()?)));
            }
            let (own, later) = rest.split_at_checked(usize::try_from(value).ok()?)?;
            rest = later;
            Some(Run::Own(own))
        })
    }

    /// Passes all bytes in their order.
    fn each(&self, mut pass: impl FnMut(&[u8])) {
        let pieces = self.shared.as_ref().map(|shared| shared.0.borrow());
        for run in self.runs() {
            let shared = |symbol| pieces.as_ref().and_then(|pieces| pieces.get(symbol));
            pass(match run {
                Run::Own(bytes) => bytes,
                Run::Shared(symbol) => shared(symbol).map_or(&[], |piece| &**piece),
            });
        }
    }
}

impl Drop for PackedBytes {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            let mut pieces = shared.0.borrow_mut();
            for run in self.runs() {
                if let Run::Shared(symbol) = run {
                    pieces.release(symbol);
                }
            }
        }
    }
}

fn write_own(bytes: &[u8], runs: &mut Vec<u8>) {
    if !bytes.is_empty() {
        write_number((bytes.len() as u64) << 1, runs);
        runs.extend_from_slice(bytes);
    }
}

fn write_number(mut number: u64, runs: &mut Vec<u8>) {
    while number >= u64::from(MORE) {
        runs.push(number as u8 | MORE);
        number >>= NUMBER_BITS;
    }
    runs.push(number as u8);
}

/// A number, and the bytes that it takes.
fn read_number(runs: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0;
    for (at, byte) in runs.iter().enumerate() {
        number |= u64::from(byte & !MORE).checked_shl(NUMBER_BITS * at as u32)?;
        if byte & MORE == 0 {
            return Some((number, at + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(bytes: &[u8], pieces: &[&str]) -> Vec<Range<usize>> {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let place = |piece: &&str| text.find(piece).map(|at| at..at + piece.len());
        pieces.iter().filter_map(place).collect()
    }

    #[test]
    fn a_common_piece_is_stored_once_and_goes_with_its_last_value() {
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let shared = Rc::new(SharedPieces::new(&budget));
        let agent = "user-agent: a browser of many people";
        let values: Vec<PackedBytes> = (0..1_000)
            .map(|nth| {
                let bytes = format!("numbers {nth:4};{agent};cookie {nth}").into_bytes();
                let packed = PackedBytes::pack(&bytes, &places(&bytes, &[agent]), &shared);
                assert_eq!((packed.whole(), packed.whole_len()), (bytes, packed.whole().len()));
                packed
            })
            .collect();
        assert!(values.iter().all(|packed| packed.held_bytes() < 30));
        let shared_bytes: Vec<usize> = values.iter().map(PackedBytes::shared_bytes).collect();
        let whole = FIRST_USE_BYTES + agent.len();
        // Two that share what nobody else has pay at least half of it, whichever of them stays.
        assert_eq!((shared_bytes[0], shared_bytes[1], shared_bytes[999]), (whole, whole / 2, 0));
        assert!(shared_bytes.iter().sum::<usize>() < 6 * whole, "clients of one kind pay little");
        assert_eq!(values[7].first(), b"numbers    7;");
        assert_eq!(values[7].last(), b";cookie 7");
        assert!((1..1_000).contains(&budget.used()), "{} bytes", budget.used());
        drop(values);
        assert!(shared.is_empty());
    }

    /// Nothing between pieces, before them or behind them; pieces that are too short or too long;
    /// places that are none; more than may be shared.
    #[test]
    fn any_places_give_the_bytes_back() {
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let shared = Rc::new(SharedPieces::new(&budget));
        let bytes: Vec<u8> = (0..1_000_u16).map(|nth| nth as u8).collect();
        let one_after_another: Vec<_> = (0..50).map(|nth| nth * 20..nth * 20 + 20).collect();
        let packed = PackedBytes::pack(&bytes, &one_after_another, &shared);
        assert_eq!(packed.held_bytes(), SHARED_PIECES_MAX + 2 + (50 - SHARED_PIECES_MAX) * 20);
        assert_eq!((packed.whole(), packed.first()), (bytes.clone(), &[][..]));
        let too_short = 0..SHARED_BYTES_MIN - 1;
        let too_long = 100..100 + SHARED_BYTES_MAX + 1;
        for places in [vec![], vec![too_short, too_long, 990..1_010], vec![500..520, 100..120]] {
            let packed = PackedBytes::pack(&bytes, &places, &shared);
            assert_eq!(packed.whole(), bytes, "{places:?}");
        }
        let own = PackedBytes::own(&bytes);
        assert_eq!((own.whole(), own.first()), (bytes.clone(), &bytes[..]));
        assert_eq!(own.last(), own.first());
        assert_eq!(PackedBytes::own(&[]).whole(), b"");
    }

    /// A program's user-agent may have 400 characters.
    #[test]
    fn a_long_piece_is_shared_and_one_that_is_too_long_is_not() {
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let shared = Rc::new(SharedPieces::new(&budget));
        let bytes = vec![7; 2 * SHARED_BYTES_MAX];
        for (len, held) in [(SHARED_BYTES_MAX, 3 + SHARED_BYTES_MAX), (400, 3 + 624)] {
            let piece = 0..len;
            let packed = PackedBytes::pack(&bytes, std::slice::from_ref(&piece), &shared);
            assert_eq!((packed.held_bytes(), packed.whole()), (held, bytes.clone()), "{len}");
        }
        let piece = 0..SHARED_BYTES_MAX + 1;
        let packed = PackedBytes::pack(&bytes, std::slice::from_ref(&piece), &shared);
        assert!(packed.held_bytes() > bytes.len() && shared.is_empty());
    }

    #[test]
    fn the_first_bytes_are_changed_in_place() {
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let shared = Rc::new(SharedPieces::new(&budget));
        for len in [1, 63, 64, 100] {
            let bytes = [vec![1; len], vec![2; 20], vec![3; 5]].concat();
            let piece = len..len + 20;
            let mut packed = PackedBytes::pack(&bytes, std::slice::from_ref(&piece), &shared);
            packed.first_mut().fill(9);
            assert_eq!(packed.whole(), [vec![9; len], vec![2; 20], vec![3; 5]].concat());
        }
    }
}

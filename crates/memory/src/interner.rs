//! An interner: equal values of many parked connections are stored once. They lie in chunks of
//! their own, because a long-lived value among a handshake's allocations would keep a page of the
//! heap.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::budget::{Account, Budget, Counted};
use crate::slab::Slab;

/// Names an interned value: its slab index plus 1, so that `Option<Symbol>` needs no more space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Symbol(NonZeroU32);

impl Symbol {
    pub(crate) fn of(index: u32) -> Self {
        // 2^32 - 1 slots would need more than any memory.
        Self(NonZeroU32::MIN.saturating_add(index))
    }

    pub(crate) fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// A value that may hold memory on the heap.
pub trait Heap {
    /// Bytes on the heap that it holds.
    fn heap_bytes(&self) -> usize;
}

impl Heap for Box<[u8]> {
    fn heap_bytes(&self) -> usize {
        self.len()
    }
}

/// Values with their reference counts. These count against the budget: the chunks of slots, the
/// table of symbols, and each value's heap once.
pub struct Interner<T> {
    values: Slab<Interned<T>>,
    /// The symbols, by the hash of their values.
    symbols: HashTable<Symbol>,
    /// Keyed, because peers choose the names.
    hasher: RandomState,
    /// The symbol given last. Its value may be gone.
    last: Option<Symbol>,
    counted: Counted,
    /// The sum of all values' [`Heap::heap_bytes`].
    heap_bytes: usize,
}

struct Interned<T> {
    uses: u32,
    /// The value's [`Hash32`]: a value is hashed once, whatever becomes of the table.
    hash: Hash32,
    value: T,
}

/// A hash in 32 bits, which fit beside the count.
#[derive(Clone, Copy)]
struct Hash32(u32);

impl Hash32 {
    fn of(hasher: &RandomState, value: &(impl Hash + ?Sized)) -> Self {
        Self(hasher.hash_one(value) as u32)
    }

    /// For the table, which takes the place from the low bits and a tag from the high ones.
    fn wide(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

impl<T: Eq + Hash + Heap> Interner<T> {
    /// An empty interner.
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self {
            values: Slab::default(),
            symbols: HashTable::new(),
            hasher: RandomState::default(),
            last: None,
            counted: Counted::of(budget, Account::Texts, 0),
            heap_bytes: 0,
        }
    }

    /// True if no symbol is in use.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The symbol of an equal value, or a new one. Each call must be matched by a call of
    /// [`Interner::release`].
    pub fn intern(&mut self, value: T) -> Symbol {
        let last = self.last.filter(|last| self.get(*last) == Some(&value));
        // Most connections are decided as the one before, which is found without a hash.
        let symbol = last.unwrap_or_else(|| {
            let hash = Hash32::of(&self.hasher, &value);
            self.find(hash, |other| *other == value).unwrap_or_else(|| self.insert(hash, value))
        });
        self.last = Some(symbol);
        self.count_use(symbol)
    }

    /// Interns a value that is made only if there is no equal one. Returns its uses, too, this one
    /// included.
    pub fn intern_ref<Q>(&mut self, value: &Q) -> (Symbol, u32)
    where
        T: Borrow<Q> + for<'a> From<&'a Q>,
        Q: Eq + Hash + ?Sized,
    {
        let hash = Hash32::of(&self.hasher, value);
        let found = self.find(hash, |other| other.borrow() == value);
        let symbol = found.unwrap_or_else(|| self.insert(hash, value.into()));
        let symbol = self.count_use(symbol);
        (symbol, self.values.get(symbol.index()).map_or(1, |shared| shared.uses))
    }

    fn find(&self, hash: Hash32, is_equal: impl Fn(&T) -> bool) -> Option<Symbol> {
        let is_it = |symbol: &Symbol| self.get(*symbol).is_some_and(&is_equal);
        self.symbols.find(hash.wide(), is_it).copied()
    }

    /// A new symbol without a use.
    fn insert(&mut self, hash: Hash32, value: T) -> Symbol {
        let Self { values, symbols, .. } = self;
        self.heap_bytes += value.heap_bytes();
        let symbol = Symbol::of(values.insert(Interned { uses: 0, hash, value }).index);
        symbols.insert_unique(hash.wide(), symbol, |symbol| hash_at(values, *symbol));
        self.recount();
        symbol
    }

    fn count_use(&mut self, symbol: Symbol) -> Symbol {
        if let Some(shared) = self.values.at(symbol.index()) {
            shared.uses += 1;
        }
        symbol
    }

    /// The value of a symbol, unless it was released.
    pub fn get(&self, symbol: Symbol) -> Option<&T> {
        self.values.get(symbol.index()).map(|shared| &shared.value)
    }

    /// A use's part of the memory of a value: its bytes, divided by its uses now.
    pub fn part_bytes(&self, symbol: Symbol) -> usize {
        self.values.get(symbol.index()).map_or(0, |shared| {
            (size_of::<Interned<T>>() + shared.value.heap_bytes()) / shared.uses.max(1) as usize
        })
    }

    /// Ends one use of a symbol. The last use frees the value.
    pub fn release(&mut self, symbol: Symbol) {
        let Self { values, symbols, .. } = self;
        let Some(shared) = values.at(symbol.index()) else { return };
        shared.uses -= 1;
        if shared.uses > 0 {
            return;
        }
        self.heap_bytes -= shared.value.heap_bytes();
        let hash = shared.hash.wide();
        if let Ok(found) = symbols.find_entry(hash, |other| *other == symbol) {
            found.remove();
        }
        if let Some(key) = values.key_at(symbol.index()) {
            values.remove(key);
        }
        // The memory of a burst's table is not kept for ever.
        if symbols.capacity() > KEPT_SYMBOLS && symbols.len() * 4 < symbols.capacity() {
            symbols.shrink_to(symbols.len() * 2, |symbol| hash_at(values, *symbol));
        }
        self.recount();
    }

    fn recount(&mut self) {
        let table = self.symbols.allocation_size();
        self.counted.set(self.values.held_bytes() + table + self.heap_bytes);
    }
}

fn hash_at<T>(values: &Slab<Interned<T>>, symbol: Symbol) -> u64 {
    values.get(symbol.index()).map_or(0, |shared| shared.hash.wide())
}

/// A table with room for so many symbols (32 buckets) is kept when it is empty: where connections
/// come one by one, each would allocate it anew.
const KEPT_SYMBOLS: usize = 28;

/// Longest name that is stored inline, in bytes. Most host names are shorter.
const SHORT_BYTES: usize = 46;

/// A name in 48 bytes. Only a long one allocates.
#[derive(Clone, Debug)]
pub enum Name {
    /// The length, and the array whose first bytes are the name.
    Short(u8, [u8; SHORT_BYTES]),
    /// A name that is longer than the array.
    Long(Box<str>),
}

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        // The bytes were copied from a str.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short(len, bytes) => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Self::Long(name) => name.as_bytes(),
        }
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl Heap for Name {
    fn heap_bytes(&self) -> usize {
        match self {
            Self::Short(..) => 0,
            Self::Long(name) => name.len(),
        }
    }
}

impl Name {
    fn short(name: &str) -> Option<Self> {
        let mut bytes = [0; SHORT_BYTES];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(Self::Short(name.len() as u8, bytes))
    }
}

impl From<&str> for Name {
    fn from(name: &str) -> Self {
        Self::short(name).unwrap_or_else(|| Self::Long(name.into()))
    }
}

impl From<Box<str>> for Name {
    fn from(name: Box<str>) -> Self {
        Self::short(&name).unwrap_or(Self::Long(name))
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Heap for usize {
        fn heap_bytes(&self) -> usize {
            100
        }
    }

    #[test]
    fn a_value_is_stored_once_until_its_last_use_ends() {
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let mut interner = Interner::new(&budget);
        let symbols: Vec<Symbol> = (0..5_000_usize).map(|n| interner.intern(n % 2_500)).collect();
        let counted = budget.used();
        assert!((2_500 * (100 + 16)..2_500 * (100 + 64)).contains(&counted), "{counted}");
        let part = (100 + size_of::<Interned<usize>>()) / 2;
        assert_eq!(interner.part_bytes(symbols[0]), part, "it is used twice");
        assert_eq!(symbols[..2_500], symbols[2_500..]);
        for (n, symbol) in symbols.iter().enumerate().take(2_500) {
            interner.release(*symbol);
            assert_eq!(interner.get(*symbol), Some(&n), "there is another use");
        }
        for symbol in &symbols[2_500..] {
            interner.release(*symbol);
        }
        assert!(interner.is_empty() && interner.symbols.is_empty());
        // The slab's first chunk stays allocated, and counts.
        let held = interner.values.held_bytes() + interner.symbols.allocation_size();
        assert!(budget.used() == held && held > 0, "{} of {held}", budget.used());
        assert!(interner.symbols.capacity() < 100, "{}", interner.symbols.capacity());
        let again = interner.intern(2_499);
        assert_eq!(interner.get(again), Some(&2_499), "the value given last was gone");
    }

    #[test]
    fn a_name_of_any_length_is_read_back() {
        assert_eq!((size_of::<Name>(), size_of::<Option<Name>>()), (48, 48));
        assert_eq!(size_of::<Option<Interned<Name>>>(), 56, "the hash fits beside the count");
        for len in [0, 1, SHORT_BYTES, SHORT_BYTES + 1, 253] {
            let text: Box<str> = "n".repeat(len).into();
            let name = Name::from(text.clone());
            assert_eq!(name.as_str(), &*text);
            assert_eq!(matches!(name, Name::Short(..)), len <= SHORT_BYTES);
        }
    }
}

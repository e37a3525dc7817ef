//! Maps of fields that a worker keeps for its next messages.

use std::cell::RefCell;
use std::sync::Arc;

use eyelet_memory::budget::{Budget, Counted};
use eyelet_memory::spares::Spares;
use http::HeaderMap;

use super::spare_heads;

/// Fields that Eyelet adds to a head. Growing the map would rehash all fields. A small message's
/// map stays below what the allocator has cached.
pub const FIELDS_ADDED: usize = 3;
/// Field maps that a worker keeps for its next messages: those of five hundred requests in progress
/// and of their responses, until no message has needed them for a tick. With 256, one map was made
/// for each request of 32 clients with ten streams each. While memory is short, none is added.
const SPARE_MAX: usize = 1_000;
/// Bytes that each counts: 24 fields and the index of their names.
const SPARE_MAP_BYTES: usize = 5 << 9;
/// See [`give_back`].
pub const SPARE_FIELDS_MAX: usize = 24;

/// Keeps the memory of unused fields for the next message. It saves two allocations each, which a
/// small request would notice.
pub fn give_back(mut fields: HeaderMap) {
    // The capacity does not count repeated names, which also keep memory.
    let is_small = fields.len() <= SPARE_FIELDS_MAX && fields.capacity() <= SPARE_FIELDS_MAX;
    if !is_small || fields.capacity() == 0 {
        return;
    }
    fields.clear();
    SPARE.with_borrow_mut(|spare| {
        let count = spare.maps.count() + 1;
        // Those since the last tick are not counted yet. Before the first tick none is kept.
        let fits = |counted: &Counted| counted.may_be(count * SPARE_MAP_BYTES);
        if count <= SPARE_MAX && spare.counted.as_ref().is_some_and(fits) {
            spare.maps.push(fields);
        }
    });
}

/// An empty map with room for so many fields, and for those that Eyelet adds. Its memory is that of
/// an earlier message, if there is one.
pub fn spare_fields(count: usize) -> HeaderMap {
    let mut map = SPARE.with_borrow_mut(|spare| spare.maps.pop()).unwrap_or_default();
    // A map that cannot be so large refuses the field that does not fit.
    let _ = map.try_reserve(count + FIELDS_ADDED);
    map
}

/// Frees the kept maps and buffers that no message has needed since the last call: they lie in
/// pages of an earlier burst and pin them. Counts the others.
pub fn forget_unused(budget: &Arc<Budget>) {
    SPARE.with_borrow_mut(|spare| {
        drop(spare.maps.take_unused());
        let bytes = spare.maps.count() * SPARE_MAP_BYTES + spare_heads::forget_unused();
        spare.counted.get_or_insert_with(|| Counted::new(budget, 0)).set(bytes);
    });
}

/// Maps that are kept for the next messages.
struct SpareMaps {
    maps: Spares<HeaderMap>,
    /// Counts as many as there were at the last tick.
    counted: Option<Counted>,
}

thread_local! {
    static SPARE: RefCell<SpareMaps> =
        const { RefCell::new(SpareMaps { maps: Spares::new(), counted: None }) };
}

#[cfg(test)]
mod tests;

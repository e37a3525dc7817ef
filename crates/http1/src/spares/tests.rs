//! Maps of fields are kept for later messages and counted, and dropped while memory is short.

use super::*;

/// The maps of a burst are counted on a tick, and gone on the next.
#[test]
fn kept_maps_are_counted() {
    let budget = Arc::new(Budget::new(64 << 20, 0));
    let before = budget.used();
    forget_unused(&budget);
    let maps: Vec<_> = (0..3).map(|_| spare_fields(1)).collect();
    maps.into_iter().for_each(give_back);
    forget_unused(&budget);
    assert_eq!(budget.used() - before, 3 * SPARE_MAP_BYTES);
    forget_unused(&budget);
    assert_eq!(budget.used(), before);
}

/// While memory is short, maps go with their messages. Those since the last tick count, too.
#[test]
fn no_map_is_kept_while_memory_is_short() {
    let budget = Arc::new(Budget::new(64 << 20, 0));
    let kept = |count: usize| {
        let maps: Vec<_> = (0..count).map(|_| spare_fields(1)).collect();
        maps.into_iter().for_each(give_back);
        let before = budget.used();
        forget_unused(&budget);
        let more = budget.used() - before;
        forget_unused(&budget);
        more / SPARE_MAP_BYTES
    };
    assert_eq!(kept(3), 0, "before the first tick");
    assert_eq!(kept(3), 3);
    let mut others = Counted::new(&budget, budget.left() - 2 * SPARE_MAP_BYTES);
    assert_eq!(kept(3), 2);
    others.set(budget.bytes_max());
    assert_eq!(kept(3), 0);
    others.set(0);
    assert_eq!(kept(SPARE_MAX + 1), SPARE_MAX);
}

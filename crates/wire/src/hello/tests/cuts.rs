//! Cutting bytes into TCP segments does not change the answer, and cutting a hello into records
//! does not change what it says.

use super::*;
use crate::testing::properties::fed;
use proptest::prelude::*;
use std::vec;

#[test]
fn every_cut_into_two_segments_and_one_byte_reads() {
    for raw in clients::raws().map(<[u8]>::to_vec).chain([browser().raw()]) {
        let whole = answer(&peek(&raw));
        for cut in 0..=raw.len() {
            assert_eq!(fed(&raw, [cut]), whole, "cut at {cut}");
        }
        assert_eq!(fed(&raw, 0..raw.len()), whole);
    }
}

#[test]
fn every_cut_into_two_records_and_one_byte_records() {
    let message = browser().message();
    let whole = answer(&peek(&record(&message)));
    for cut in 1..message.len() {
        let raw = records(&message, &[cut]);
        assert_eq!(answer(&peek(&raw)), whole, "cut at {cut}");
        assert_eq!(hello(&raw).raw_len(), raw.len());
    }
    let raw = records(&message, &vec![1; message.len()]);
    assert_eq!(fed(&raw, 0..raw.len()), whole);
}

#[test]
fn twenty_kilobytes_in_two_records_wherever_the_name_is() {
    let padding = ext(21, vec![0; 20_000]);
    for extensions in [vec![sni("a.test"), padding.clone()], vec![padding.clone(), sni("a.test")]] {
        let raw = records(&Spec::with(&extensions).message(), &[]);
        assert_eq!(sni_of(&raw), Sni::Name("a.test".into()));
    }
}

/// Hellos, well-formed and malformed, and other bytes.
fn raws() -> impl Strategy<Value = Vec<u8>> {
    let sizes = prop::collection::vec(1_usize..300, 0..20);
    let changed = (any::<prop::sample::Index>(), any::<u8>());
    let cut_up = (sizes, prop::option::of(changed)).prop_map(|(sizes, change)| {
        let mut message = browser().message();
        if let Some((at, to)) = change {
            let at = at.index(message.len());
            message[at] = to;
        }
        records(&message, &sizes)
    });
    let broken = (raws_of_clients(), any::<prop::sample::Index>(), any::<u8>());
    let broken = broken.prop_map(|(mut raw, at, to)| {
        let at = at.index(raw.len());
        raw[at] = to;
        raw
    });
    prop_oneof![cut_up, broken, prop::collection::vec(any::<u8>(), 1..40)]
}

fn raws_of_clients() -> impl Strategy<Value = Vec<u8>> {
    prop::sample::select(clients::raws().map(<[u8]>::to_vec).collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn any_segments_give_the_same_answer(
        raw in raws(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let mut ends = cuts.iter().map(|cut| cut.index(raw.len() + 1)).collect::<Vec<_>>();
        ends.sort_unstable();
        let whole = fed(&raw, []);
        prop_assert_eq!(fed(&raw, ends), whole.clone());
        prop_assert_eq!(fed(&raw, 0..raw.len()), whole);
    }

    #[test]
    fn any_records_give_the_same_hello(sizes in prop::collection::vec(1_usize..2000, 0..60)) {
        let message = browser().message();
        let raw = records(&message, &sizes);
        prop_assert_eq!(answer(&peek(&raw)), answer(&peek(&record(&message))));
    }
}

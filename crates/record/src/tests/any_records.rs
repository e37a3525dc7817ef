//! Scripts of records that are mostly well-formed: what holds for any holds for them.

use proptest::prelude::*;

use crate::properties::arbitrary_records;

/// One step of a script: data, alerts, KeyUpdates whole and in parts, and anything else.
fn step() -> impl Strategy<Value = Vec<u8>> {
    let message = prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 1..50).prop_map(|data| (23, data)),
        1 => Just((23, vec![])),
        3 => (0..2_u8).prop_map(|request| (22, vec![24, 0, 0, 1, request])),
        1 => Just((22, vec![24, 0])),
        1 => Just((22, vec![0, 1, 1])),
        1 => Just((22, vec![1, 0, 0, 2, 0])),
        1 => Just((22, vec![0])),
        1 => Just((21, vec![1, 90])),
        1 => (any::<u8>(), prop::collection::vec(any::<u8>(), 0..50)),
    ];
    (1..4_u8, message).prop_map(|(who, (content_type, content))| {
        let [hi, lo] = (content.len() as u16).to_be_bytes();
        [&[who, content_type, hi, lo][..], &content].concat()
    })
}

proptest! {
    // No file of failing seeds: the smallest failing input is printed.
    #![proptest_config(ProptestConfig {
        cases: 2000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn arbitrary_records_of_the_peer(choice: u8, steps in prop::collection::vec(step(), 0..40)) {
        let script = steps.into_iter().flatten();
        arbitrary_records(&[choice].into_iter().chain(script).collect::<Vec<u8>>());
    }
}

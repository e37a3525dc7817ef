//! A parked connection is fed arbitrary records, by its peer and by a stranger without keys.
#![no_main]

#[path = "../../crates/record/tests/arbitrary/mod.rs"]
mod arbitrary;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| arbitrary::arbitrary_records(data));

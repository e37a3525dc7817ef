//! Any header blocks: decoded in any cut, exported, imported, encoded again.
#![no_main]

#[path = "../../crates/h2/tests/arbitrary/mod.rs"]
mod arbitrary;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| arbitrary::any_blocks(data));

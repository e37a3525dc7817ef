//! Any bytes as a parked HTTP/2 connection, and any frames for it.
#![no_main]

#[path = "../../crates/h2/tests/arbitrary/mod.rs"]
mod arbitrary;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| arbitrary::any_parked(data));

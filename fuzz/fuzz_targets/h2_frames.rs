//! An HTTP/2 peer sends any frames, in either role, in any cut.
#![no_main]

#[path = "../../crates/h2/tests/arbitrary/mod.rs"]
mod arbitrary;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| arbitrary::any_frames(data));

//! Any header blocks: decoded in any cut, exported, imported, encoded again.
#![no_main]

use eyelet_h2::properties::bytes::any_blocks;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_blocks(data));

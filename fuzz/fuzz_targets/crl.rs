//! No bytes are a revocation list without an authority, and no certificate passes without a list.
#![no_main]

use eyelet_pki::properties::nothing_passes_unsigned;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| nothing_passes_unsigned(data));

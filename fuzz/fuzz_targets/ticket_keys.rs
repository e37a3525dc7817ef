//! Any bytes are exported ticket keys or are refused as a whole; the same as tickets and sessions.
#![no_main]

use eyelet_tls::properties::bytes_are_keys_or_nothing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| bytes_are_keys_or_nothing(data));

//! Any bytes as a parked HTTP/2 connection, and any frames for it.
#![no_main]

use eyelet_h2::properties::bytes::any_parked;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_parked(data));

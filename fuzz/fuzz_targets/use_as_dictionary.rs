//! Use-As-Dictionary of an upstream: any bytes are read, and what is read is bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| eyelet_compress::properties::field_is_bounded(data));

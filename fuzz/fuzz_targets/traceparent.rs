//! A `traceparent` field is read exactly if the grammar of W3C Trace Context takes it.
#![no_main]

use eyelet_wire::testing::properties::traceparent_is_exact;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| traceparent_is_exact(data));

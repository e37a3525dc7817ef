//! The fields of a request, as one edge codes its body and another one decodes it: any bytes are
//! read, and a body is coded or decoded once at most. A line of the input is a value.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| eyelet_compress::properties::fields_are_consistent(data));

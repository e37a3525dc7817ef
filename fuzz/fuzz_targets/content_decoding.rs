//! Bodies that an upstream has coded, with a dictionary or without one: any bytes are decoded in
//! bounded steps and bounded memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| eyelet_compress::properties::steps_are_bounded(data));

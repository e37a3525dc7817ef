//! The first flights of a spliced connection pass as they should, however they are cut. The first
//! byte says whose flight it is, and the next seven where it is cut.
#![no_main]

use eyelet_relay::inspect::properties::flights_are_inspected;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| flights_are_inspected(data));

//! A CONNECT request is read the same in one piece and byte by byte, and names one target.
#![no_main]

use eyelet_wire::testing::properties::connect_is_stable;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| connect_is_stable(data));

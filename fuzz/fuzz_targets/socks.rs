//! Messages of SOCKS are read the same in one piece and byte by byte, and name one target.
#![no_main]

use eyelet_wire::testing::properties::socks_is_stable;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| socks_is_stable(data));

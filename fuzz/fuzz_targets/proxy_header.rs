//! A PROXY header is read the same in one piece and byte by byte, and what it says can be written
//! and read again.
#![no_main]

use eyelet_wire::testing::properties::proxy_header_is_stable;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| proxy_header_is_stable(data));

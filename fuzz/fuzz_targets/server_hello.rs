//! A server's first flight is read the same in one piece and byte by byte.
#![no_main]

use eyelet_wire::testing::properties::server_hello_is_stable;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| server_hello_is_stable(data));

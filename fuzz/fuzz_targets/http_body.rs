//! An HTTP/1.1 body is read the same in one piece and byte by byte, and has one end.
#![no_main]

use eyelet_http1::properties::body_is_stable;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| body_is_stable(data));

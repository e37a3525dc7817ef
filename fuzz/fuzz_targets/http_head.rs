//! An HTTP/1.1 head is read the same in one piece and byte by byte, and has one meaning.
#![no_main]

use eyelet_http1::properties::head_is_stable;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| head_is_stable(data));

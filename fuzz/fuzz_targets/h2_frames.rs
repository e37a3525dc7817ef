//! An HTTP/2 peer sends any frames, in either role, in any cut.
#![no_main]

use eyelet_h2::properties::bytes::any_frames;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_frames(data));

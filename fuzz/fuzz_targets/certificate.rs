//! Any file of a certificate and its key can be used, or is refused with an error that names it.
#![no_main]

use eyelet_pki::properties::file_is_read_or_refused;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| file_is_read_or_refused(data));

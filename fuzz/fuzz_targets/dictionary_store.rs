//! A dictionary store that begins with any files keeps to its bounds. Eight bytes say one file.
#![no_main]

use eyelet_recoding::stored_properties::store_begins_with_files;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| store_begins_with_files(data));

//! A file of the dictionary store is read only whole and under its own name. The first line is the
//! name, and the rest is the file without its checksum.
#![no_main]

use eyelet_recoding::stored_properties::file_is_one_thing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| file_is_one_thing(data));

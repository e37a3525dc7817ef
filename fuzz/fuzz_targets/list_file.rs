//! Any bytes are a list that has each of their entries, or mistakes that have places in them.
#![no_main]

use eyelet_config::properties::list::bytes_are_a_list;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| bytes_are_a_list(data));

//! A path has one normal form: origins that decode it once, twice or not at all agree on what it
//! names, and its form is its own.
#![no_main]

use eyelet_policy::properties::path_has_one_reading;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|path: &str| {
    path_has_one_reading(path);
});

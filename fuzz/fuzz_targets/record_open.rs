//! A parked connection is fed arbitrary records, by its peer and by a stranger without keys.
#![no_main]

use eyelet_record::properties::arbitrary_records;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| arbitrary_records(data));

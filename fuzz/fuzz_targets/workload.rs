//! Any message of the SPIFFE Workload API is read, or refused as a whole.
#![no_main]

use eyelet_spiffe::properties::message_is_read_or_refused;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| message_is_read_or_refused(data));

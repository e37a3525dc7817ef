//! A process is handed arbitrary messages, and good ones with changed bytes, in place of a parked
//! connection.
#![no_main]

use eyelet_engine::testing::any_message::any_message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_message(data));

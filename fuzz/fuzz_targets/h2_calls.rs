//! A client and a server of HTTP/2 are connected, and their callers make any calls in any order.
#![no_main]

use eyelet_h2::properties::calls::{Call, any_calls};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: ((u8, u8), Vec<(u8, u8, u16, bool)>)| {
    let calls: Vec<_> = input.1.into_iter().map(Call::of).collect();
    any_calls(input.0, &calls);
});

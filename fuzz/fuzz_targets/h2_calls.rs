//! A client and a server of HTTP/2 are connected, and their callers make any calls in any order.
#![no_main]

#[path = "../../crates/h2/tests/calls/mod.rs"]
mod calls;

use calls::{Call, any_calls};
use libfuzzer_sys::arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;

impl<'a> Arbitrary<'a> for Call {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Result<Self> {
        bytes.arbitrary().map(Self::of)
    }
}

fuzz_target!(|input: ((u8, u8), Vec<Call>)| any_calls(input.0, &input.1));

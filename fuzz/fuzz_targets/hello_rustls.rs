//! We see the name that rustls sees in the same bytes, or refuse the hello where
//! `docs/conformance.md` says that we are stricter.
#![no_main]

use eyelet_wire::testing::differential::{hello_from, same_name_as_rustls};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| same_name_as_rustls(&hello_from(data)));

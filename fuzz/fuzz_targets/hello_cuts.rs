//! No way of cutting a hello into TCP segments or TLS records changes what we make of it. The
//! first 16 bytes say where it is cut.
#![no_main]

use eyelet_wire::testing::{differential::hello_from, properties::cuts_do_not_matter};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some((cuts, data)) = data.split_at_checked(16) {
        cuts_do_not_matter(&hello_from(data), cuts);
    }
});

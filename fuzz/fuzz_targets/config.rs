//! Any text is a checked configuration, or a list of mistakes that have places in it.
#![no_main]

use eyelet_config::properties::text::text_is_checked;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        text_is_checked(text);
    }
});

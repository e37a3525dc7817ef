//! Checks that the reader of a DNS response finds only what is in it, and that the facts kept of
//! many responses are theirs, and bounded. Each message begins with its length, two bytes, and a
//! byte for the seconds since the last.
#![no_main]

use eyelet_resolve::dns::properties::answers_are_what_was_said;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| answers_are_what_was_said(data));

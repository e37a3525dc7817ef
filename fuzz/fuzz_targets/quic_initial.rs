//! Any datagrams of a client, raw or sealed with its keys, are read or refused within bounds, and
//! have one hello at most.
#![no_main]

use eyelet_quic::properties::datagrams_are_read;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    datagrams_are_read(data);
});

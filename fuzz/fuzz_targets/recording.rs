//! The service manager passes an arbitrary recording: reading it ends, and a message has no
//! descriptor that nobody has sent.
#![no_main]

use std::fs::File;
use std::io::Write;

use eyelet_sys::recording::Recording;
use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// The first bytes of a recording.
const MAGIC: &[u8] = b"EYST\x01";
/// Bytes of the shortest frame.
const FRAME_BYTES: usize = 7;

fuzz_target!(|data: &[u8]| {
    let memfd = memfd_create("recording", MemfdFlags::ALLOW_SEALING).expect("memory");
    let mut file = File::from(memfd);
    file.write_all(MAGIC).and_then(|()| file.write_all(data)).expect("memory");
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).expect("seals");
    let mut recording = Recording::open(vec![file.into()]).expect("a sealed file of this user");
    let mut messages = 0;
    while let Ok(received) = recording.receive(&mut Vec::new()) {
        assert!(received.descriptors.is_empty());
        messages += 1;
    }
    assert!(messages <= data.len() / FRAME_BYTES);
});

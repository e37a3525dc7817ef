//! A parked connection becomes bytes and sockets in one process and is parked again in the other,
//! as in an upgrade. Or it comes back to the process that it left, because the handover has failed.

use std::rc::Rc;

use eyelet_memory::slab::Key;
use fastrand::Rng;

use crate::departure::BATCH_DESCRIPTORS_MAX;
use crate::moving::handover::{Detached, attach, close, detach};
use crate::worker::Worker;
use eyelet_relay::Relay;
use eyelet_relay::testing::kernel;

/// Counts how often connections left their process.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HandedOver {
    spliced: usize,
    terminated: usize,
    held: usize,
    /// The ones that took bytes along.
    with_bytes: usize,
    /// Those that had bytes in a pipe.
    with_pipes: usize,
    came_back: usize,
    refused: usize,
    /// The ones that the new process has ended.
    closed: usize,
}

impl HandedOver {
    pub fn add(&mut self, other: &Self) {
        self.spliced += other.spliced;
        self.terminated += other.terminated;
        self.held += other.held;
        self.with_bytes += other.with_bytes;
        self.with_pipes += other.with_pipes;
        self.came_back += other.came_back;
        self.refused += other.refused;
        self.closed += other.closed;
    }

    /// Panics if no run had one of these cases.
    pub fn check_coverage(&self) {
        let Self { spliced, terminated, held, with_bytes, with_pipes, .. } = *self;
        let Self { came_back, refused, closed, .. } = *self;
        let cases = [spliced, terminated, held, with_bytes, with_pipes, came_back, refused, closed];
        assert!(!cases.contains(&0), "{self:?}");
    }
}

/// Hands a parked connection over.
pub fn hand_over(
    old: &Rc<Worker>,
    new: &Rc<Worker>,
    key: Key,
    rng: &mut Rng,
    seen: &mut HandedOver,
) {
    let pipes = old.buffers.borrow().pipes_lent();
    let Ok(detached) = detach(old, key, BATCH_DESCRIPTORS_MAX) else { return };
    assert!(detach(old, key, BATCH_DESCRIPTORS_MAX).is_err(), "it is outside of its worker");
    if rng.u8(..4) == 0 {
        seen.came_back += 1;
        attach(old, detached).expect("it is not refused where it comes from");
        return;
    }
    match detached.relay {
        Relay::Cleartext(_) => panic!("the simulator has none"),
        Relay::Held(_) => seen.held += 1,
        Relay::Splice(_) => seen.spliced += 1,
        Relay::Terminate(_) => seen.terminated += 1,
    }
    seen.with_bytes += usize::from(detached.holds_bytes());
    seen.with_pipes += usize::from(old.buffers.borrow().pipes_lent() < pipes);
    let bytes = detached.encode();
    let sockets = detached.sockets().map(kernel::copy).collect();
    let imported = Detached::decode(&bytes, sockets).expect("a message of this process");
    assert_eq!(imported.encode(), bytes, "nothing is lost between the two forms");
    let Err(imported) = attach(new, imported) else { return };
    seen.refused += 1;
    if rng.bool() {
        seen.closed += 1;
        drop(detached);
        close(new, imported);
    } else {
        drop(imported);
        attach(old, detached).expect("it is not refused where it comes from");
    }
}

//! What a parked connection is that is held until somebody decides, and how it finds its question
//! again.

use std::rc::Rc;

use eyelet_relay::Relay;
use eyelet_relay::held::{HeldConnection, HeldState};
use eyelet_telemetry::info::ConnectionInfo;

use crate::table::{ConnectionTable, Slot, SlotState};
use crate::worker::Worker;
use crate::worker::queues::ShedPosition;

/// True if it is held.
pub(crate) fn is_held(relay: &Relay) -> bool {
    matches!(relay, Relay::Held(_))
}

/// True if it is held no longer: it goes on in a task.
pub(super) fn is_over(relay: &Relay) -> bool {
    matches!(relay, Relay::Held(held) if held.is_over())
}

/// Has the program find the question of a connection that comes from another process.
pub(super) fn ask_again(worker: &Rc<Worker>, info: &ConnectionInfo, relay: &mut Relay) {
    if let Relay::Held(held) = relay
        && held.is_over()
        && held.decision().is_none()
        && let Some(key) = held.key().cloned()
    {
        let program = worker.program();
        let question = program.and_then(|program| program.ask_again(info, key, held.bytes().len()));
        held.set_question(question.map_or(HeldState::Anew, HeldState::Waits));
    }
}

/// The held connection of a position, unless that is stale.
pub(crate) fn held_at<'a>(
    table: &'a mut ConnectionTable,
    at: &ShedPosition,
) -> Option<&'a mut HeldConnection> {
    match table.slot(at.key)? {
        Slot { position, state: SlotState::Parked { relay: Relay::Held(held), .. }, .. }
            if *position == at.position =>
        {
            Some(held)
        }
        _ => None,
    }
}

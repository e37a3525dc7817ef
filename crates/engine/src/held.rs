//! Connections that are held until somebody decides: how they wake, which ones a reload decides
//! anew, and how the oldest one ends when memory is short.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use eyelet_hold::{HoldKey, HoldPlace, Holds};
use eyelet_memory::slab::Key;
use eyelet_relay::held::{HeldConnection, HeldState};
use eyelet_telemetry::reason::{Reason, Shed, Stage, When};

use crate::park::held::{are_over, held_at, waits_at};
use crate::park::{close, wake};
use crate::worker::Worker;
use eyelet_table::queues::ShedPosition;

/// Wakes the held connections of a worker as verdicts come, for as long as it lives.
pub async fn follow(worker: Rc<Worker>, holds: Arc<Holds>) {
    let mut seen = 0;
    loop {
        poll_fn(|task| holds.poll_verdict(&mut seen, task)).await;
        wake_decided(&worker);
    }
}

/// Wakes those that have their verdict.
pub fn wake_decided(worker: &Rc<Worker>) {
    each(worker, |held| held.decision().is_some());
    wake_streams(worker);
}

/// Wakes the parked connections of which held streams have something to do.
fn wake_streams(worker: &Rc<Worker>) {
    let over = worker.table.borrow().held_keys(are_over);
    for key in over {
        worker.guarded(key, || wake(worker, key));
    }
}

/// Decides those anew for whose question `is_gone` is true.
pub fn decide_anew(worker: &Rc<Worker>, is_gone: impl Fn(&HoldKey) -> bool) {
    each(worker, |held| {
        let is_gone = held.decision().is_none() && held.key().is_some_and(&is_gone);
        if is_gone {
            held.set_question(HeldState::Anew);
        }
        is_gone
    });
    for place in worker.table.borrow_mut().holds_mut() {
        let is_gone = |of: &HoldPlace| of.decision().is_none() && is_gone(&of.question().key);
        drop(place.take_if(|place| is_gone(place)));
    }
    wake_streams(worker);
}

/// Wakes the held connections that `is_to_wake` selects.
fn each(worker: &Rc<Worker>, mut is_to_wake: impl FnMut(&mut HeldConnection) -> bool) {
    let keys: Vec<Key> = {
        let (positions, mut table) =
            (worker.shedding.held.positions.borrow(), worker.table.borrow_mut());
        let mut wakes = |at: &&ShedPosition| held_at(&mut table, at).is_some_and(&mut is_to_wake);
        positions.iter().filter(|at| wakes(at)).map(|at| at.key).collect()
    };
    for key in keys {
        worker.guarded(key, || wake(worker, key));
    }
}

/// Ends the connection that waits for verdicts longest, because others need its memory. Returns
/// `false` if none does. `spared` is not ended.
pub(crate) fn shed_oldest(worker: &Rc<Worker>, spared: Option<Key>) -> bool {
    let mut kept = None;
    let is_shed = loop {
        let Some(first) = worker.shedding.held.positions.borrow_mut().pop_front() else {
            break false;
        };
        if !waits_at(worker, &mut worker.table.borrow_mut(), &first) {
            continue;
        }
        if spared == Some(first.key) {
            kept = Some(first);
            continue;
        }
        let when = When::During(Stage::Verdict);
        close(worker, first.key, Reason::Shed(Shed::Unfinished(when)));
        break true;
    };
    if let Some(first) = kept {
        worker.shedding.held.positions.borrow_mut().push_front(first);
    }
    is_shed
}

#[cfg(test)]
mod tests;

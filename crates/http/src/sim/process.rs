//! A process of a run: a worker of its own, its program and its log. An upgrade begins another one.

use std::rc::Rc;
use std::sync::Arc;

use eyelet_engine::moving::batch::RefusalReason;
use eyelet_engine::testing::stepper::{Stepper, check_worker};
use eyelet_engine::testing::{SETTINGS, worker_in};
use eyelet_engine::worker::Program;
use eyelet_memory::budget::{Budget, CountedBuffer};
use eyelet_telemetry::log::Log;

use super::edge::{Edge, Setup};
use super::events::Events;

/// Iterations in which the last tasks of a process end.
const LAST_ITERATIONS: usize = 4;
/// Polls of each task in one of them.
const LAST_POLLS: usize = 8;

pub struct Process {
    pub stepper: Stepper,
    pub edge: Rc<Edge>,
    lines: Box<dyn Iterator<Item = CountedBuffer>>,
    /// Another one serves for good.
    is_settled: bool,
}

impl Process {
    /// A process whose configuration has the rule, or not. All processes of a run share a budget:
    /// some of what it counts is of the thread.
    pub fn new(setup: &Setup, budget: &Arc<Budget>, has_removed: bool) -> Self {
        let worker = worker_in(SETTINGS, budget);
        let (log, batches) = Log::captured(budget);
        let edge = Edge::new(setup, &worker, log, has_removed);
        worker.serve(&edge);
        let (stepper, lines) = (Stepper::new(worker), Box::new(batches));
        Self { stepper, edge, lines, is_settled: false }
    }

    /// Says if it holds no connection.
    pub fn is_empty(&self) -> bool {
        self.stepper.worker.table.borrow().is_empty()
    }

    pub fn settle(&mut self) {
        self.is_settled = true;
        self.stepper.settle();
    }

    /// Begins nothing new, once another one serves for good.
    pub fn retire(&self, events: &mut Events) {
        if self.is_settled && !self.stepper.worker.is_retired() {
            events.note("a process that is retired");
            self.stepper.retire();
        }
    }

    /// Moves what is parked here to another process, which takes so many descriptors at a time.
    pub fn move_to(&self, to: &Self, descriptors: usize, fails: bool, events: &mut Events) {
        let moved = self.stepper.move_parked(&to.stepper.worker, descriptors, fails);
        let is_full = moved.why.is_none_or(|why| matches!(why, RefusalReason::NoRoom));
        assert!(is_full, "a process does not read what another one wrote: {:?}", moved.why);
        let counts = [
            ("a connection that moved", moved.connections),
            ("an exchange that moved", moved.with_exchange),
            ("one that moved with a shared connection", moved.in_groups),
            ("one that moved in parts", moved.in_parts),
            ("one that came back", moved.back),
        ];
        for (event, count) in counts {
            if count > 0 {
                events.add_many(event, count);
            }
        }
    }

    /// Ends it, and returns its access lines. Panics unless it holds nothing.
    pub async fn end(mut self, events: &mut Events) -> String {
        let Self { edge, lines, .. } = self;
        events.add_many("a connection that woke", edge.woken.get());
        events.add_many("an exchange that rested", edge.rested.get());
        let shared = edge.rested_shared.get();
        events.add_many("an exchange that rested on a shared connection", shared);
        edge.http.borrow().pool.close();
        edge.flush_log(0);
        let budget = self.stepper.worker.process.budget.clone();
        drop(edge);
        for _ in 0..LAST_ITERATIONS {
            crate::forget_unused(&budget);
            self.stepper.iterate();
            for _ in 0..LAST_POLLS {
                tokio::task::yield_now().await;
            }
        }
        let worker = self.stepper.into_worker();
        assert_eq!(Rc::strong_count(&worker), 1, "a task stays");
        check_worker(worker);
        let text: Vec<u8> = lines.flat_map(|batch| batch.to_vec()).collect();
        String::from_utf8(text).expect("lines are text")
    }
}

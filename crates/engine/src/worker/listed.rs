//! The list of active connections, and counts by their states.

use std::rc::Rc;

use eyelet_memory::slab::Key;
use eyelet_telemetry::cell::Cell;
use eyelet_telemetry::counters::handshake_kind;
use eyelet_telemetry::histogram::Histogram;
use eyelet_telemetry::info::ConnectionInfo;
use eyelet_telemetry::listing::{Seen, State};

use crate::worker::Worker;
use eyelet_table::SlotState;

impl Worker {
    /// Notes what a list shows of a connection that was just accepted, if somebody may ask for one.
    pub(crate) fn note_accepted(&self, state: &mut SlotState, info: &ConnectionInfo) {
        if let SlotState::Active { seen, .. } = state
            && self.settings.get().may_list
        {
            *seen = Some(Seen::accepted(info));
        }
    }

    /// Notes what a list shows of an active connection, if somebody may ask for one. A dial begins
    /// when the clock was read last.
    pub(crate) fn note_state(&self, key: Key, state: State, info: &ConnectionInfo) {
        if !self.settings.get().may_list {
            return;
        }
        let mut table = self.table.borrow_mut();
        if let Some(SlotState::Active { seen, .. }) = table.slot(key).map(|slot| &mut slot.state) {
            let seen = seen.get_or_insert_with(|| Seen::accepted(info));
            self.counters.of_state(seen.state).inspect(|cell| cell.down());
            self.counters.of_state(state).inspect(|cell| cell.up());
            if state == State::Dialling {
                seen.dials_since_ns = Some(self.clock.last_ns());
            }
            seen.note(state, info);
        }
    }

    /// Has a list show the bytes of an active connection while its requests are served.
    pub(crate) fn count_live(
        &self,
        key: Key,
        info: &ConnectionInfo,
        (to_upstream, to_client): (&Rc<std::cell::Cell<u64>>, &Rc<std::cell::Cell<u64>>),
    ) {
        if !self.settings.get().may_list {
            return;
        }
        let mut table = self.table.borrow_mut();
        if let Some(SlotState::Active { seen: Some(seen), .. }) =
            table.slot(key).map(|slot| &mut slot.state)
        {
            seen.count_live(info, (to_upstream.clone(), to_client.clone()));
        }
    }

    /// Gives a slot another state, and counts it there.
    pub(crate) fn change_state(&self, of: &mut SlotState, state: SlotState) -> SlotState {
        self.count_change(of, &state);
        std::mem::replace(of, state)
    }

    /// Gives a slot another state. Counts it as [`Self::change_state`] does.
    pub(crate) fn set_state(&self, of: &mut SlotState, state: SlotState) {
        self.count_change(of, &state);
        *of = state;
    }

    fn count_change(&self, before: &SlotState, after: &SlotState) {
        self.count_state(before, Cell::down);
        self.count_state(after, Cell::up);
    }

    /// Counts a slot's state. Parked connections are counted when they are parked and woken.
    pub(crate) fn count_state(&self, state: &SlotState, count: impl Fn(&Cell)) {
        match state {
            SlotState::Active { seen: Some(seen), .. } => {
                self.counters.of_state(seen.state).into_iter().for_each(count)
            }
            SlotState::Lingering => count(&self.counters.lingering),
            SlotState::Active { seen: None, .. } | SlotState::Parked { .. } => {}
        }
    }

    /// The upstream is connected, and the dial has waited. When it began is kept in the slot: it
    /// would make each task larger.
    pub(crate) fn connected(&self, key: Key) {
        if !self.settings.get().may_list {
            return;
        }
        let mut table = self.table.borrow_mut();
        if let Some(SlotState::Active { seen: Some(seen), .. }) =
            table.slot(key).map(|slot| &mut slot.state)
            && let Some(began_ns) = seen.dials_since_ns.take()
        {
            let now_ns = self.clock.iteration_ns();
            self.counters.connects.observe_ns(now_ns.saturating_sub(began_ns));
        }
    }

    /// The upstream is connected, and the dial has not waited.
    pub(crate) fn connected_at_once(&self) {
        if self.settings.get().may_list {
            self.counters.connects.observe_none();
        }
    }

    /// Now, where somebody may ask how long it takes what begins now. Otherwise no clock is read.
    pub fn begins(&self) -> Option<u64> {
        self.settings.get().may_list.then(|| self.clock.now_ns())
    }

    /// Counts a handshake that a client has completed: by TLS 1.3 or not, resumed or not.
    pub fn count_handshake(&self, (is_tls13, is_resumed): (bool, bool), began_ns: Option<u64>) {
        let kind = handshake_kind(is_tls13, is_resumed);
        self.counters.completed[kind].up();
        if let Some(histogram) = self.counters.handshakes.get(kind) {
            self.ends(histogram, began_ns);
        }
    }

    /// Adds the time since its beginning to a histogram. `None`: nobody asks.
    pub fn ends(&self, histogram: &Histogram, began_ns: Option<u64>) {
        if let Some(began_ns) = began_ns {
            histogram.observe_ns(self.clock.now_ns().saturating_sub(began_ns));
        }
    }
}

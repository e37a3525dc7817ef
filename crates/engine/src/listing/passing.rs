//! The flows of QUIC of a worker, as a list shows them: those whose datagrams pass. One that is
//! being decided is shown by its slot.

use std::borrow::Cow;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use eyelet_memory::slab::Key;
use eyelet_telemetry::info::UpstreamName;
use eyelet_telemetry::listing::{ConnectionKind, ConnectionView, Filter, Listed, Slice, State};
use eyelet_telemetry::reason::Reason;

use crate::worker::Worker;

/// Looks at the flows in these slots of the table of flows. With `ends` it ends those that are
/// found.
pub(super) fn look(
    worker: &Rc<Worker>,
    (filter, ends): (&Filter, Option<&AtomicUsize>),
    slots: Range<u32>,
) -> Slice {
    let (now_unix_ms, mut slice) = (worker.now_unix_ms(), Slice::default());
    for index in slots {
        let Some(key) = worker.flows.table.borrow().key_at(index) else { continue };
        let taken = show(worker, key, |shown| {
            filter.takes(shown, now_unix_ms).then(|| Listed::new(shown, now_unix_ms))
        });
        match (taken.flatten(), ends) {
            (Some(_), Some(ends)) if takes_one(ends) => {
                worker.end_whole_flow(key);
                slice.ended += 1;
            }
            (Some(listed), None) => slice.listed.push(listed),
            (Some(_), Some(_)) | (None, _) => {}
        }
    }
    slice
}

/// Takes the end of one connection from those that are left.
pub(super) fn takes_one(ends: &AtomicUsize) -> bool {
    ends.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
}

/// Calls `then` with what a flow shows. Of several addresses the one that has its access line does.
fn show<T>(worker: &Worker, key: Key, then: impl FnOnce(&ConnectionView<'_>) -> T) -> Option<T> {
    let mut table = worker.flows.table.borrow_mut();
    let moved = table.moved(key);
    let flow = table.flow(key)?;
    let idle_ms = flow.idle_ms(worker.now_unix_ms());
    let info = flow.payload.info.as_ref()?;
    let shared = worker.shared.borrow();
    let kind = (State::Parked, ConnectionKind::Quic);
    let mut view =
        ConnectionView::parked(info, &shared, kind, idle_ms, (true, Default::default()))?;
    let to = flow.payload.upstream.as_ref().map(|(_, to)| *to);
    view.upstream = to.map(|to| Cow::Owned(UpstreamName::Address(to)));
    (view.bytes_to_upstream, view.bytes_to_client) =
        (moved.bytes_to_upstream, moved.bytes_to_client);
    Some(then(&view))
}

impl Worker {
    /// Ends a flow at all addresses of its client.
    fn end_whole_flow(self: &Rc<Self>, key: Key) {
        let keys = self.flows.table.borrow().addresses(key);
        for key in keys {
            self.end_flow(key, Reason::Ended);
        }
    }
}

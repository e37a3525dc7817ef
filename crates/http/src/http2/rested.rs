//! The streams of a parked connection that wakes. Their sockets stay at their places.

use std::rc::Rc;
use std::time::Duration;

use eyelet_downstream::client::resting_stream::{RestingStream, StreamUpstream};
use eyelet_downstream::clock;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_engine::worker::Handle;
use eyelet_resting::RestingExchange;
use eyelet_resting::timeout::RestTimeout;
use eyelet_telemetry::upstream::{CountedAt, OpenExchange};

use super::parked::read_forms;
use crate::exchange::resting::shared::take_shared;
use eyelet_upstream::RestingUpstream;
use zeroize::Zeroizing;

/// The streams of a connection that wakes, in the order of their identifiers. `None`: they are not
/// those of its upstreams.
pub fn take_rested(
    handle: &Handle,
    served: &mut ServedConnection,
    forms: &[u8],
) -> Option<Vec<RestingStream>> {
    let decided = &mut served.info.decided;
    let counted_at = decided.counted_at.take();
    let mut open = counted_at.map(CountedAt::resumed).unwrap_or_default().into_iter();
    let (forms, shared) = (read_forms(forms)?, take_shared(handle));
    let counts = forms.iter().map(|form| usize::from(form.open)).sum::<usize>();
    // In another process they count nowhere.
    let has_counts = counts == open.len();
    let own = decided.upstream.as_ref().map(|name| name.to_text());
    let own: Rc<str> = own.unwrap_or_default().into();
    let (slept, now) = (handle.idle(), clock::now());
    let mut rested = Vec::with_capacity(forms.len());
    let mut holds = handle.take_holds().into_iter();
    let with_socket = forms.iter().filter(|form| RestingExchange::has_socket(form.exchange));
    if with_socket.count() != handle.socket_places() {
        return None;
    }
    let (settings, mut shared) = (handle.worker.settings(), shared.into_iter());
    for form in forms {
        let upstream = match form.exchange {
            form if RestingExchange::is_held(form) => StreamUpstream::Held(holds.next().flatten()),
            form if RestingExchange::is_shared(form) => {
                StreamUpstream::Kept(RestingUpstream::Shared(Box::new(shared.next()?)))
            }
            _ => StreamUpstream::AtPlace,
        };
        let idle = Duration::from_millis(form.idle_ms).saturating_add(slept);
        let count = if has_counts { form.open.into() } else { 0 };
        rested.push(RestingStream {
            form: Zeroizing::new(form.exchange.to_vec()),
            upstream,
            name: form.name.unwrap_or(&own).into(),
            open: open.by_ref().take(count).collect::<Vec<OpenExchange>>(),
            since: now.checked_sub(idle).unwrap_or(now),
            idle_max: RestTimeout::of(form.exchange)?.by(&settings),
        });
    }
    shared.next().is_none().then_some(rested)
}

//! An HTTP/2 connection whose open streams all rest: it is parked with their upstreams. When it
//! wakes, a stream goes on in a task of its own once something happens to it. The others rest on
//! beside it: their sockets keep their places in the connection's slot, and are watched there.
//! Streams of upstream connections that others share have no such place, and all go on.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use eyelet_downstream::client::head::AskedRequest;
use eyelet_downstream::client::http2::{Http2Stream, WaitBegun};
use eyelet_downstream::client::resting_stream::{RestingStream, StreamFormV1, StreamUpstream};
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_engine::park;
use eyelet_engine::table::Phase;
use eyelet_memory::budget::{Counted, STREAM_BYTES};
use eyelet_resting::{RestingExchange, RestingState};
use eyelet_telemetry::reason::Reason;
use eyelet_telemetry::upstream::CountedAt;

use super::parked::{end_forms, pack, write_forms};
use super::tasks::{self, StreamJob, StreamWork};
use super::{Last, ServedStreams};
use crate::exchange::rest::ResumedExchange;
use crate::exchange::resting::KeptUpstream;
use crate::exchange::resting::shared::give_shared;
use eyelet_upstream::RestingUpstream;
use zeroize::Zeroizing;

impl ServedStreams {
    /// Has the streams rest where all of them may, or go on where one does.
    pub(super) fn settle(&mut self, task: &Context<'_>) {
        let is_ending = self.served.http.engine.is_draining() || self.earlier.is_removed();
        if self.streams.holds() {
            self.renew();
        }
        self.streams.call_decided(task);
        if is_ending {
            // Their tasks look for themselves whether they end.
            self.streams.call_all();
        }
        if !self.places.is_empty() {
            for nth in self.client.handle.ready_sockets() {
                let Some(id) = self.places.get(nth) else { continue };
                if !self.streams.call_by_upstream(*id) {
                    self.client.handle.forget_ready(nth);
                }
            }
        }
        let at_once = self.served.http.engine.rests_at_once();
        if std::mem::replace(&mut self.rested_at_once, at_once) != at_once {
            // A stream may rest at once then.
            self.streams.wake_all();
        }
        // After GOAWAY its streams rest, too: they may go on for hours.
        let may = self.streams.all_quiet()
            && self.has_one_rule()
            && !self.client.handle.is_to_end()
            && self.client.is_at_rest()
            && !self.is_due_soon()
            && self.streams.is_at_rest();
        let (handle, places) = (&self.client.handle, &self.places);
        let keep = |id, socket| match places.binary_search(&id) {
            Ok(nth) => handle.put_socket(nth, socket),
            Err(_) => Err(socket),
        };
        let (engine, source) = (&self.served.http.engine, self.served.info.client.ip());
        for id in self.streams.settle(may, keep) {
            let may_wait = !is_ending && self.streams.may_wait(id);
            if may_wait && !engine.make_room_to_wake(handle.key(), source, STREAM_BYTES) {
                // Its bytes stay unread meanwhile, as those of a parked connection do.
                engine.wants_memory(task);
                continue;
            }
            if let Some(stream) = self.streams.take_rested(id) {
                self.go_on(id, stream);
            }
        }
    }

    /// Serves what begins from here on by the newest rules, if there was a reload. They decide held
    /// streams again.
    pub(super) fn renew(&mut self) {
        if let Some(newer) = self.served.reloaded() {
            self.served = Rc::new(newer);
            self.streams.call_held();
        }
    }

    /// True if resting streams still have the rule of their connection.
    pub(super) fn has_one_rule(&self) -> bool {
        rule(&self.earlier) == rule(&self.served)
    }

    /// Takes the socket of a stream that rested from its place.
    fn take_socket(&self, id: u32) -> Option<OwnedFd> {
        self.client.handle.take_socket(self.places.binary_search(&id).ok()?)
    }

    /// Begins a task that goes on with a stream that rested.
    fn go_on(&self, id: u32, stream: RestingStream) {
        let Some((served, work, two)) = self.resumed(id, stream) else {
            tracing::error!("internal error: an exchange at rest is none, and is reset");
            return self.streams.end(id);
        };
        let engine = &self.served.http.engine;
        let counted = Counted::new(&engine.process.budget, STREAM_BYTES);
        let serving = engine.count_task(self.served.info.client.ip());
        tasks::begin(StreamJob { served, work, two, counted, serving });
    }

    /// The work of a stream that goes on, and who serves it.
    fn resumed(
        &self,
        id: u32,
        stream: RestingStream,
    ) -> Option<(Rc<ServedConnection>, StreamWork, Http2Stream)> {
        let RestingStream { form, upstream, name, open, since, .. } = stream;
        let (exchange, streams) = (RestingExchange::unpack(&form)?, self.streams.clone());
        let upstream = match (upstream, exchange.state) {
            (StreamUpstream::Held(place), RestingState::Held(hold)) => {
                let wait = WaitBegun { key: hold.key.clone(), place, since, wait: hold.wait };
                let two = Http2Stream::was_held(streams, id, &hold, wait);
                let (parts, length) = hold.request();
                let asked = AskedRequest { parts, length, fault: None };
                // It is decided again, by the newest rules.
                return Some((self.served.clone(), StreamWork::Request(asked), two));
            }
            (StreamUpstream::Held(_), _) => return None,
            (StreamUpstream::Kept(upstream), state) => (upstream, state),
            (StreamUpstream::AtPlace, state) => {
                (RestingUpstream::Socket(self.take_socket(id)?), state)
            }
        };
        let (upstream, state) = upstream;
        let two = Http2Stream::resumed(streams, id, &state);
        let (exchange, kept) =
            (RestingExchange { state, ..exchange }, KeptUpstream { upstream, open });
        let resumed = Box::new(ResumedExchange { exchange, kept, name, since });
        Some((self.earlier.clone(), StreamWork::Rested(resumed), two))
    }

    /// Takes the streams of a connection that was parked. They rest on.
    pub(super) fn resume(&mut self, rested: Vec<RestingStream>) {
        self.is_unused = false;
        self.served = Rc::new(self.earlier.decided());
        self.served.http.engine.enters(self.client.handle.key(), Phase::Busy);
        for (open, stream) in self.streams.open().into_iter().zip(rested) {
            let id = open.id;
            let (is_kept, is_placed) = match stream.upstream {
                StreamUpstream::Kept(_) => (true, false),
                StreamUpstream::AtPlace => (false, true),
                StreamUpstream::Held(_) => (false, false),
            };
            self.streams.resume(open, stream);
            if is_kept {
                // Nothing watches it while its connection is served.
                self.streams.call(id);
            }
            if is_placed {
                self.places.push(id);
            }
        }
    }

    /// Parks the connection: what is left of it is its state, as bytes, and the upstreams of its
    /// streams.
    pub(super) fn rest(self) {
        let (state, open) = (self.streams.export(), self.streams.open());
        let resting = self.streams.take_resting();
        let is_each = open.iter().map(|open| open.id).eq(resting.iter().map(|(id, _)| *id));
        let mut info = self.served.info_now();
        let (mut shared, mut holds) = (Vec::new(), Vec::new());
        let (mut open, mut forms) = (Vec::new(), Zeroizing::default());
        if !resting.is_empty() {
            // The streams say how long they were idle before.
            self.client.handle.note_idle(Duration::ZERO);
            let upstream = info.decided.upstream.as_ref().map(|name| name.to_text());
            let streams = resting.iter().map(|(_, stream)| stream);
            let streams = streams.map(|stream| StreamFormV1::of(stream, upstream.as_deref()));
            forms = write_forms(&streams.collect::<Vec<_>>());
        }
        let Some(state) = state.filter(|_| is_each) else { return self.end_unparked(&forms) };
        let mut sockets = Vec::with_capacity(resting.len());
        for (id, stream) in resting {
            match stream.upstream {
                StreamUpstream::Kept(RestingUpstream::Shared(two)) => shared.push(*two),
                StreamUpstream::Kept(RestingUpstream::Socket(socket)) => {
                    sockets.push((id, Some(socket)));
                }
                StreamUpstream::AtPlace => sockets.push((id, None)),
                StreamUpstream::Held(place) => {
                    place.as_ref().inspect(|place| place.forget_task());
                    holds.push(place);
                }
            }
            open.extend(stream.open);
        }
        if self.give_sockets(sockets).is_none() {
            return self.end_unparked(&forms);
        }
        give_shared(&self.client.handle, shared);
        self.client.handle.give_holds(holds);
        info.decided.counted_at = CountedAt::resting(open);
        let Self { client, served, is_unused, .. } = self;
        let state = pack(&state, &forms, &served.http.engine.pieces);
        if is_unused {
            // Its client only sent what is no request: the time until GOAWAY goes on.
            client.handle.stays_idle();
        }
        let (handle, relay) = client.into_parked(served.preface.clone(), Some(state));
        park::park(&handle, &mut info, relay);
    }

    /// Puts the sockets of all streams at their places. Each stays where it is, as long as the
    /// streams are those of before.
    fn give_sockets(&self, sockets: Vec<(u32, Option<OwnedFd>)>) -> Option<()> {
        let handle = &self.client.handle;
        if sockets.iter().map(|(id, _)| *id).eq(self.places.iter().copied()) {
            for (nth, (_, socket)) in sockets.into_iter().enumerate() {
                if let Some(socket) = socket {
                    handle.put_socket(nth, socket).ok()?;
                }
            }
            return Some(());
        }
        let all = sockets.into_iter().map(|(id, own)| own.or_else(|| self.take_socket(id)));
        let all = all.collect::<Option<Vec<_>>>()?;
        drop(handle.take_sockets());
        handle.give_sockets(all).ok()
    }

    /// Ends a connection that cannot be parked although it was to be. As one that just begins, its
    /// client's next bytes would be misread. `forms` are those of its streams, which have no task.
    fn end_unparked(self, forms: &[u8]) {
        self.streams.close(eyelet_h2::ErrorCode::NO_ERROR);
        let reason = Reason::Internal("an HTTP/2 connection that cannot be parked");
        end_forms(&self.earlier, forms, &reason);
        self.end(Last::Close(reason));
    }
}

/// The rule that decided, by its name. A parked connection has one.
fn rule(served: &ServedConnection) -> Option<&str> {
    let decided = &served.info.decided;
    decided.rule.map(|rule| decided.labels.rule(rule))
}

//! A worker leaves: another process gets its listeners and its connections.

use std::future::ready;
use std::io;
use std::pin::pin;
use std::time::Instant;

use eyelet_memory::slab::Key;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use crate::departure::{BatchAnswer, Departure, Leaving};
use crate::iteration::accept::LAST_ACCEPT_TIME;
use crate::iteration::event_loop::{Iterations, cut_all, others_first, until_written};
use crate::moving::batch::{self, PLACED_AT_ONCE};
use crate::moving::parcel::Parcel;
use crate::moving::search::Search;
use crate::shedding::retired;
use crate::worker::{ListenerSocket, Order, WorkerOrders};

/// Rounds of the runtime in which a connection that was told to rest does so: HTTP/2's tells its
/// streams in the first one, and has their answers in the second.
const ROUSED_ROUNDS: usize = 2;

/// Orders to a worker that leaves.
enum HandoverEvent {
    /// The answer to its batch. `None`: the other process is dead.
    Answer(Option<BatchAnswer>),
    Order(Order),
}

impl Iterations {
    /// Leaves: the other process accepts, and gets what is parked and what is parked later. What
    /// cannot leave goes on here. Returns whether this worker serves on because the other process
    /// has died. If not, what is left drains.
    pub(super) async fn hand_over(&mut self, orders: &mut WorkerOrders) -> io::Result<bool> {
        let worker = self.worker.clone();
        let departure = worker.program().and_then(|program| program.departure());
        let Some(mut departure) = departure else { return Ok(false) };
        let now = Instant::now();
        let drain_timeout = worker.settings.get().drain_timeout;
        // Until the order to let go, this worker may have to accept again.
        let mut sockets = Some(self.leave_listeners(&departure, now));
        let (mut must_drain, mut early) = self.leave_flows(&mut departure, orders).await?;
        let Departure { kept, batches, descriptors_max, reads_below, .. } = departure;
        let Departure { mut answers, active_max, .. } = departure;
        let end = active_max.map(|active_max| now + drain_timeout.min(active_max));
        drop(kept);
        worker.moving.is_leaving.set(true);
        worker.moving.reads_below.set(reads_below);
        let mut search = Search::new(&worker, batches, descriptors_max);
        let mut waiting = Vec::new();
        loop {
            if waiting.is_empty() && !must_drain {
                waiting = search.next(&worker);
                if search.is_rousing() {
                    // Those of the next batch come to rest while this one is on its way.
                    self.rouse(&mut search).await?;
                }
            }
            if waiting.is_empty() {
                // The others may still need this worker: the process serves on if the new one dies.
                if search.has_moved_parked() && worker.is_empty() {
                    search.leave();
                }
                if end.is_some_and(|end| Instant::now() >= end) {
                    cut_all(&worker).await;
                    must_drain = true;
                }
                if must_drain && early.is_none() {
                    search.leave();
                    return Ok(false);
                }
            }
            let is_over = sockets.is_none() && now.elapsed() >= drain_timeout;
            self.retire(&mut search, is_over);
            let event = match early.take() {
                None => self.next_event(&mut answers, orders).await?,
                event => event,
            };
            match event {
                None => {}
                Some(HandoverEvent::Order(Order::Settled)) => {
                    sockets = None;
                    worker.forget_given_flows();
                    // An order to reload that came before was not obeyed.
                    worker.reload(&mut self.accepting, Instant::now());
                }
                Some(HandoverEvent::Order(Order::Reload(_))) if sockets.is_none() => {
                    worker.reload(&mut self.accepting, Instant::now());
                }
                Some(HandoverEvent::Order(order)) => must_drain |= order == Order::Drain,
                Some(HandoverEvent::Answer(Some(BatchAnswer::Over))) => return Ok(false),
                Some(HandoverEvent::Answer(Some(answer))) => {
                    let sent = std::mem::take(&mut waiting);
                    self.put_back_refused(sent, &answer, &mut search).await?;
                }
                Some(HandoverEvent::Answer(None)) => {
                    self.put_back(waiting).await?;
                    return Ok(self.come_back(sockets.filter(|_| !must_drain)));
                }
            }
        }
    }

    /// Retires the worker once the time for what is active `is_over`. From then on busy connections
    /// get a second in ten to move.
    fn retire(&self, search: &mut Search, is_over: bool) {
        match self.worker.is_retired() {
            true => search.rouse_again(&self.worker),
            false if is_over => retired::begin(&self.worker),
            false => {}
        }
    }

    /// Stops accepting.
    fn leave_listeners(&mut self, departure: &Departure, now: Instant) -> Vec<ListenerSocket> {
        let left = (&*departure.kept, departure.moves_flows);
        self.worker.leave(&mut self.accepting, left, now + LAST_ACCEPT_TIME)
    }

    /// Gives flows of QUIC to the other process, or ends them, some at a time: the others go on
    /// between. Returns whether an order to drain has come, and an answer that was not one to them.
    async fn leave_flows(
        &mut self,
        departure: &mut Departure,
        orders: &mut WorkerOrders,
    ) -> io::Result<(bool, Option<HandoverEvent>)> {
        let worker = self.worker.clone();
        let mut must_drain = false;
        loop {
            let (batches, are_last) = worker.leave_some_flows(departure.descriptors_max);
            if !departure.moves_flows {
                self.next(pin!(ready(()))).await?;
            } else {
                let flows: Vec<usize> = batches.iter().map(|batch| batch.flows).collect();
                let index = worker.index.into();
                // The queue has room for what each worker sends.
                let _ =
                    departure.batches.try_send(Leaving::Flows { worker: index, batches, are_last });
                loop {
                    match self.next_event(&mut departure.answers, orders).await? {
                        Some(HandoverEvent::Answer(Some(BatchAnswer::Committed { refused }))) => {
                            worker.end_refused_flows(&flows, &refused);
                            if departure.active_max.is_some() {
                                // It may serve on, and so may who reads the recording.
                                worker.forget_recorded_flows();
                            }
                            break;
                        }
                        Some(HandoverEvent::Order(Order::Drain)) => {
                            must_drain = true;
                        }
                        // An order to reload is obeyed once this has settled.
                        None | Some(HandoverEvent::Order(_)) => {}
                        answer => return Ok((must_drain, answer)),
                    }
                }
            }
            if are_last {
                return Ok((must_drain, None));
            }
        }
    }

    /// Accepts again from these sockets, because the other process has died. Returns whether this
    /// worker serves on.
    fn come_back(&mut self, sockets: Option<Vec<ListenerSocket>>) -> bool {
        let worker = &self.worker;
        let Some(sockets) = sockets else {
            worker.end_given_flows();
            return false;
        };
        worker.moving.is_leaving.set(false);
        worker.come_back(&mut self.accepting, sockets);
        worker.take_flows_back();
        true
    }

    /// Has the next active connections rest. The last ones are told, too, so that what could not
    /// rest does so as soon as it can.
    async fn rouse(&mut self, search: &mut Search) -> io::Result<()> {
        self.worker.moving.is_awaited.set(true);
        let has_others = search.rouse(&self.worker);
        for _ in 0..ROUSED_ROUNDS {
            self.next(pin!(ready(()))).await?;
            until_written().await;
        }
        self.worker.moving.is_awaited.set(!has_others);
        Ok(())
    }

    /// Places the connections of a batch that the other process has not taken.
    async fn put_back_refused(
        &mut self,
        sent: Vec<Parcel>,
        answer: &BatchAnswer,
        search: &mut Search,
    ) -> io::Result<()> {
        match answer {
            BatchAnswer::Committed { refused } => {
                let sent = sent.into_iter().enumerate();
                let back = sent.filter(|(index, _)| refused.binary_search(index).is_ok());
                let back = back.map(|(_, parcel)| parcel).collect();
                let back = self.put_back(back).await?;
                search.keep(&self.worker, back);
            }
            BatchAnswer::Refused | BatchAnswer::Over => {
                self.put_back(sent).await?;
                search.stop();
            }
        }
        self.worker.moving.is_leaving.set(!search.is_stopped());
        Ok(())
    }

    /// Places what has not left, a few in each iteration. Returns the keys of the connections of
    /// each.
    async fn put_back(&mut self, parcels: Vec<Parcel>) -> io::Result<Vec<Vec<Key>>> {
        let (mut parcels, mut placed) = (parcels.into_iter(), Vec::new());
        while parcels.len() > 0 {
            placed.extend(batch::put_back(&self.worker, parcels.by_ref().take(PLACED_AT_ONCE)));
            self.next(pin!(ready(()))).await?;
        }
        Ok(placed)
    }

    /// The answer to a batch, or an order. `None`: neither, after an iteration.
    async fn next_event(
        &mut self,
        answers: &mut mpsc::Receiver<BatchAnswer>,
        orders: &mut WorkerOrders,
    ) -> io::Result<Option<HandoverEvent>> {
        if self.worker.moving.is_searching.get() {
            others_first().await;
        }
        // A worker that always has events polls what follows only at a tick.
        match answers.try_recv() {
            Err(TryRecvError::Empty) => {}
            answer => return Ok(Some(HandoverEvent::Answer(answer.ok()))),
        }
        let next_event = pin!(async {
            tokio::select! {
                answer = answers.recv() => HandoverEvent::Answer(answer),
                order = orders.next() => HandoverEvent::Order(order),
            }
        });
        self.next(next_event).await
    }
}

//! `systemctl restart` keeps connections: the process that ends gives its listening sockets and its
//! parked connections to the service manager, and the next process takes them over.
//!
//! Their states are a recording ([`eyelet_sys::recording`]) of the messages of an upgrade: HELLO,
//! SOCKETS, TICKETS, SERVE, then a BATCH each, then END. FLOWS of QUIC come with the first batches,
//! and FLOWS_END behind the last of them.
//!
//! One process only may ever use a state, because two would use the same AEAD nonces:
//!
//! - A socket is in the queue of its carrier, and leaves it when it is read. So of all processes
//!   that might read a recording, one gets the socket.
//! - The earlier process takes a connection out of its worker before it records it. The worker puts
//!   it back only if the recording has no room for it, or is dropped before the manager has it.
//!   If the process ends before the manager has the recording, the connections end with it. After
//!   that it does nothing with them, however long it lives.
//! - The next process reads no connection before the manager has forgotten the recording
//!   ([`service::forget`]).
//!   If it ends before that, no key was used, and the manager passes the recording again. If it
//!   ends after that, the connections end with it. If the manager does not answer, it closes them.
//! - Several recordings come at once if a restart meets an upgrade, or if the manager did not
//!   answer before. A connection has one owner, so it is in one of them.
//!
//! systemd obeys only processes that `NotifyAccess=` admits; the main process always is. So the
//! manager is asked first whether it keeps a descriptor ([`service::keeps`]): if not, the process
//! drains.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use eyelet_engine::departure::{Collected, Kept, collect, departures};
use eyelet_engine::moving::batch::{Arrivals, count, deliver};
use eyelet_engine::moving::parts::{
    ConnectionBatch, GroupPart, GroupProgress, IncomingGroup, is_first, parts,
};
use eyelet_engine::worker::inbox::Placed;
use eyelet_handover::flows::{self, FlowBatch};
use eyelet_sys::recording::{Recorder, Recording};
use eyelet_sys::service;
use eyelet_tls::tickets::Now;
use zeroize::Zeroizing;

use crate::handover::{
    HandoverError, MESSAGE_TIMEOUT, Message, OwnState, Serve, body, hand_state, kind, read,
};
use crate::serve::Running;
use crate::takeover::{EarlierState, state};
use eyelet_edge::snapshot;
use eyelet_edge::snapshot::listen::{Bound, ListenError, own_files};
use eyelet_edge::snapshot::published::worker_of_flows;

/// The time for exchanges that are under way to end, unless `drain_timeout` is shorter. Parked
/// connections stand still meanwhile, and nobody accepts.
const ACTIVE_MAX: Duration = Duration::from_secs(2);
/// The time that the workers may take to give up what they have: this and the time to end the rest.
const LEAVE_TIMEOUT: Duration = MESSAGE_TIMEOUT;

/// The reason why the service manager does not have the connections.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It closes what it is given. No worker has left.
    #[error(
        "connections are drained, because the service manager keeps no descriptors: the unit needs \
         FileDescriptorStoreMax= besides FDSTORE=, and NotifyAccess= must admit this process"
    )]
    NotKept,
    /// It does not answer. No worker has left.
    #[error("connections are drained, because the service manager cannot be asked: {0}")]
    Unasked(io::Error),
    /// Nothing could be recorded.
    #[error("the service manager gets nothing: {0}")]
    Record(#[from] HandoverError),
    /// It has not said that it has them.
    #[error("the service manager may keep only some of {connections} connections: {error}")]
    Unanswered {
        /// The number of connections that it was given.
        connections: usize,
        /// The reason why it is not known.
        error: io::Error,
    },
}

/// Gives everything that is parked to the service manager, with the listening sockets and their
/// queues. What is active and does not end soon is ended. Returns how many connections these are.
///
/// # Errors
/// [`StoreError`]. With [`StoreError::NotKept`] and [`StoreError::Unasked`] the workers serve on.
/// Otherwise the connections that they have given up until then are lost.
pub fn keep(running: &Running, descriptors_max: usize) -> Result<usize, StoreError> {
    // The environment says how many. Only the manager knows whether.
    match service::keeps() {
        Ok(true) => {}
        Ok(false) => return Err(StoreError::NotKept),
        Err(error) => return Err(StoreError::Unasked(error)),
    }
    let recorded = record(running, descriptors_max).map_err(HandoverError::of_store);
    let (connections, recording) = recorded?;
    service::keep(&recording).map_err(|error| StoreError::Unanswered { connections, error })?;
    Ok(connections)
}

/// Records everything that is parked. Returns how many connections these are.
fn record(
    running: &Running,
    descriptors_max: usize,
) -> Result<(usize, Vec<OwnedFd>), HandoverError> {
    let listeners = running.listeners();
    let mut recorder = Recorder::new(descriptors_max)?;
    let tickets = running.ticket_keys().export();
    let send = |kind, body: &[u8], sockets: &[BorrowedFd<'_>]| recorder.send(kind, body, sockets);
    let upstreams = &running.published.snapshot().names.upstreams.known_addresses();
    let own = OwnState { tickets: &tickets, hands_flows: false, upstreams };
    hand_state(&listeners, own, send)?;
    let first_id = running.next_first_id();
    recorder.send(kind::SERVE, &body(kind::SERVE, &Serve { first_id })?, &[])?;
    // A process that cannot start has read the listening sockets, and no connection.
    recorder.end_carrier();
    let kept: Arc<[Arc<OwnedFd>]> = listeners.iter().flat_map(Bound::distinct).cloned().collect();
    // The next process keeps so many free, too, unless its limit is another.
    let batch_descriptors = snapshot::batch_descriptors();
    let (mut departures, answers, leaving) =
        departures(running.workers(), &kept, batch_descriptors, Some(ACTIVE_MAX));
    departures.iter_mut().for_each(|departure| departure.moves_flows = true);
    running.hand_over(departures);
    let end = Instant::now() + ACTIVE_MAX + LEAVE_TIMEOUT;
    let (mut full, mut flows_without_room) = (None, 0);
    let Collected { kept, flows, stopped, .. } =
        collect((answers, leaving), end, |kept| match record_kept(&mut recorder, &kept) {
            Err(error) if error.kind() == ErrorKind::StorageFull => {
                match kept {
                    Kept::Flows(batch) => flows_without_room += batch.flows,
                    // Its reader needs none.
                    Kept::FlowsEnd => {}
                    Kept::Connections(_) => full = full.take().or(Some(error)),
                }
                Ok(false)
            }
            sent => sent.map(|()| true),
        });
    if let Some(why) = full {
        tracing::error!("connections end: {why}");
    }
    if flows_without_room > 0 {
        tracing::error!("{flows_without_room} flows of QUIC end: the recording is full");
    }
    if flows > 0 {
        tracing::info!("{flows} flows of QUIC leave");
    }
    if let Some(why) = stopped {
        tracing::error!("{kept} connections leave, and the others are drained: {why}");
    }
    // The next process accepts at the same files.
    listeners.iter().for_each(Bound::leave_file);
    recorder.send(kind::END, &body(kind::END, &kept)?, &[])?;
    Ok((kept, recorder.finish()?))
}

/// Records a batch, the parts of a group, or flows. The reader drops a group whose last part is
/// missing.
fn record_kept(recorder: &mut Recorder, kept: &Kept<'_>) -> io::Result<()> {
    let mut send = |kind, body: &[u8], sockets: &[Arc<OwnedFd>]| {
        let sockets: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket| socket.as_fd()).collect();
        recorder.send(kind, body, &sockets)
    };
    match kept {
        Kept::Connections(batch) => match batch.group {
            None => send(kind::BATCH, &batch.states, &batch.sockets),
            Some(group) => parts(group, batch)
                .try_for_each(|GroupPart { body, sockets }| send(kind::PART, &body, sockets)),
        },
        Kept::Flows(FlowBatch { body, sockets, .. }) => send(kind::FLOWS, body, sockets),
        Kept::FlowsEnd => send(kind::FLOWS_END, &[], &[]),
    }
}

/// The connections that an earlier process has given to the service manager.
pub struct Stored {
    recording: Recording,
    pub listeners: Vec<Bound>,
    tickets: Zeroizing<Vec<u8>>,
    upstreams: BTreeMap<String, Vec<SocketAddr>>,
    first_id: u64,
}

impl Stored {
    /// Reads the listeners. The connections stay with the manager.
    pub fn open(kept: Vec<OwnedFd>) -> Option<Self> {
        if kept.is_empty() {
            return None;
        }
        let count = kept.len();
        Self::read(kept)
            .map_err(HandoverError::of_store)
            .inspect_err(|error| {
                tracing::error!("{count} descriptors of the service manager are closed: {error}");
                if let Err(error) = service::forget() {
                    tracing::error!("the service manager still has them: {error}");
                }
            })
            .ok()
    }

    fn read(kept: Vec<OwnedFd>) -> Result<Self, HandoverError> {
        let mut recording = Recording::open(kept)?;
        let EarlierState { listeners, tickets, upstreams, .. } = state(|| next(&mut recording))?;
        let (received, body) = next(&mut recording)?;
        let Serve { first_id } = read(&received, kind::SERVE, &body)?;
        Ok(Self { recording, listeners, tickets, upstreams, first_id })
    }

    /// Accepts, and serves the connections, once the manager has forgotten them.
    ///
    /// # Errors
    /// If a socket cannot listen.
    pub fn serve(self, running: &Running) -> Result<(), ListenError> {
        let Self { recording, tickets, upstreams, first_id, .. } = self;
        running.published.snapshot().names.upstreams.learn(&upstreams);
        if let Err(error) = running.ticket_keys().import(&tickets, Now::read()) {
            tracing::warn!("clients cannot resume their sessions: {error}");
        }
        let (workers, listeners) = (running.arrivals(), running.listeners());
        let process = workers.process.clone();
        process.inboxes.await_flows();
        running.serve(first_id)?;
        own_files(&listeners);
        if let Err(error) = service::forget() {
            tracing::error!("connections are closed: the service manager may keep them: {error}");
            // No state is read. Their clients would wait as long as the manager has the sockets.
            recording.close();
            process.inboxes.end_flows(MESSAGE_TIMEOUT);
            return Ok(());
        }
        // Its waits would block the runtime of this thread.
        let taken = thread::spawn(move || {
            let mut taken = Taken::default();
            let all = take(recording, (&workers, &listeners), &mut taken);
            (taken, all)
        });
        let taken = taken.join();
        // Whatever has come of them, also after a panic: nobody else reads datagrams.
        process.inboxes.end_flows(MESSAGE_TIMEOUT);
        match taken {
            Ok((Taken { back, flows, .. }, Ok(all))) if back == all => {
                let more = match flows {
                    0 => String::new(),
                    flows => format!(", and {flows} flows of QUIC"),
                };
                tracing::info!("{back} connections are back{more}");
            }
            Ok((Taken { back, ended, .. }, Ok(all))) => tracing::error!(
                "{back} of {all} connections are back: {ended} have ended here, and the service \
                 manager lost {}",
                all.saturating_sub(back + ended)
            ),
            Ok((Taken { back, ended, .. }, Err(error))) => tracing::error!(
                "{back} connections are back, {ended} have ended here, and others are lost: {error}"
            ),
            Err(_) => tracing::error!("internal error: connections are lost"),
        }
        Ok(())
    }
}

/// Connections of earlier processes.
#[derive(Default)]
struct Taken {
    /// Those that the workers serve.
    back: usize,
    /// Those that cannot be read, or have no room. Nobody is there to take them back.
    ended: usize,
    /// Flows of QUIC that the workers serve.
    flows: usize,
}

/// Has the workers serve the connections, and counts them. Returns how many were recorded.
fn take(
    mut recording: Recording,
    (workers, listeners): (&Arrivals, &[Bound]),
    taken: &mut Taken,
) -> Result<usize, HandoverError> {
    let (mut recorded, mut group) = (0, None);
    loop {
        let (received, body) = next(&mut recording).map_err(HandoverError::of_store)?;
        if let Some(error) = recording.take_fault() {
            tracing::error!("connections are lost with the socket that held theirs: {error}");
        }
        if received.kind == kind::END {
            recorded += read::<usize>(&received, kind::END, &body)?;
            if !recording.next_part() {
                return Ok(recorded);
            }
        }
        let sockets = received.descriptors;
        let batch = match received.kind {
            kind::PART => next_part(&mut group, &body, sockets, (workers, taken)),
            kind::BATCH => Some(ConnectionBatch::new(body, sockets)),
            kind::FLOWS => {
                match take_flows((workers, listeners), (body.to_vec(), sockets)) {
                    Ok(flows) => taken.flows += flows,
                    Err(why) => tracing::error!("flows of QUIC end: {why}"),
                }
                None
            }
            kind::FLOWS_END => {
                workers.process.inboxes.end_flows(MESSAGE_TIMEOUT);
                None
            }
            // What another process had besides connections.
            _ => None,
        };
        // Without sockets, if they are lost.
        let Some(batch) = batch.filter(|batch| !batch.sockets.is_empty()) else { continue };
        let connections = count(&batch);
        let delivered = deliver(workers, batch, false, MESSAGE_TIMEOUT);
        match delivered.map_err(|error| slow(&error)).flatten() {
            Ok((batch, commit)) => {
                if let (0, Some(why)) = (taken.ended, batch.why) {
                    tracing::error!("a connection ends, and others may: {why}");
                }
                taken.back += batch.taken;
                taken.ended += batch.refused.len();
                // A worker that has ended has closed them.
                let _ = commit.send(());
            }
            // No worker takes it any more: nobody commits it.
            Err(why) => {
                tracing::error!("{connections} connections end: {why}");
                taken.ended += connections;
            }
        }
    }
}

/// Has the worker that reads their listening socket serve flows of QUIC. Returns how many it does.
fn take_flows(
    (workers, listeners): (&Arrivals, &[Bound]),
    (body, sockets): (Vec<u8>, Vec<OwnedFd>),
) -> Result<usize, String> {
    let inboxes = &workers.process.inboxes;
    let via = flows::via(&body).map_err(|error| error.to_string())?;
    // Without one that reads their socket, any ends them, with their lines.
    let worker = worker_of_flows(listeners, via, inboxes.workers()).unwrap_or(0);
    let placed = inboxes.deliver_flows(worker, (body, sockets), MESSAGE_TIMEOUT);
    let Placed { served, ended } = placed.map_err(|error| slow(&error)).flatten()?;
    if ended > 0 {
        tracing::error!("{ended} flows of QUIC end: no room, no listener, or not to be read");
    }
    Ok(served)
}

/// Adds a part to a group. Returns the group when it is whole.
fn next_part(
    group: &mut Option<IncomingGroup>,
    body: &[u8],
    sockets: Vec<OwnedFd>,
    (workers, taken): (&Arrivals, &mut Taken),
) -> Option<ConnectionBatch> {
    let progress = match group.take() {
        // One that is not whole had no room in the recording, and has ended in its process.
        _ if is_first(body) => {
            IncomingGroup::begin(body, &sockets, &workers.process).map(GroupProgress::More)
        }
        Some(begun) => begun.add(body, sockets),
        // The rest of one that has ended.
        None => return None,
    };
    match progress {
        Ok(GroupProgress::More(more)) => *group = Some(more),
        Ok(GroupProgress::Whole(whole)) => return Some(whole),
        Err(why) => {
            tracing::error!("connections that share upstream connections end: {why}");
            taken.ended += 1;
        }
    }
    None
}

fn slow(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut => String::from("the workers are too slow to read them"),
        _ => String::from("no worker is left"),
    }
}

fn next(recording: &mut Recording) -> Result<Message, HandoverError> {
    let mut body = Zeroizing::default();
    let received = recording.receive(&mut body)?;
    Ok((received, body))
}

#[cfg(test)]
mod tests;

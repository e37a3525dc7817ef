//! Takes batches of parked connections out of a worker, and places them into one of another
//! process.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;

use eyelet_sys::channel::BODY_BYTES_MAX;
use tokio::sync::mpsc::Receiver;
use zeroize::Zeroizing;

use crate::connection_table::{SlotState, Waits};
use crate::handover::{self, Detached, MESSAGE_BYTES_MAX, attach, detach};
use crate::transfer::{Arrival, BATCH_BYTES, BATCH_DESCRIPTORS_MAX, ConnectionBatch};
use crate::worker::Worker;

/// Descriptors of one connection: the client's and the upstream's.
const CONNECTION_DESCRIPTORS: usize = 2;
/// Before each state: its length in 4 bytes and the number of its sockets in 1, in big-endian
/// order.
const PREFIX_BYTES: usize = 5;

/// The last connection of a batch may be as large as one can be.
const _: () = assert!(BATCH_BYTES + PREFIX_BYTES + MESSAGE_BYTES_MAX <= BODY_BYTES_MAX);

/// Detached connections and their encoded form.
pub struct Detachment {
    /// The connections.
    pub connections: Vec<Detached>,
    /// The same for the other process.
    pub batch: ConnectionBatch,
}

/// Why a batch cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// Its lengths do not match its bytes or its sockets.
    Lengths,
    /// A connection's state is not what this program reads.
    Connection(String),
}

impl std::fmt::Display for BatchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lengths => f.write_str("a batch of connections has wrong lengths"),
            Self::Connection(error) => write!(f, "a connection cannot be read: {error}"),
        }
    }
}

/// Detaches the next parked connections of a worker. `None`: no connection can leave now.
pub fn next(worker: &Rc<Worker>) -> Option<Detachment> {
    let mut taken = Taken::default();
    // Otherwise the table, which may be large, would be searched in vain.
    let slots = if worker.counters.parked.value() == 0 { 0 } else { worker.table.borrow().slots() };
    for _ in 0..slots {
        if taken.is_full() {
            break;
        }
        let key = worker.table.borrow().next_keys(&worker.leaving_cursor, 1).next();
        let Some(detached) = key.and_then(|key| detach(worker, key)) else { continue };
        if let Err(detached) = taken.add(detached) {
            // It has no place in the message. Only a lack of descriptors does this.
            put_back(worker, [detached]);
            break;
        }
    }
    (!taken.connections.is_empty()).then(|| taken.finish())
}

/// Places detached connections into a worker. Those that have no room there end.
pub fn put_back(worker: &Rc<Worker>, connections: impl IntoIterator<Item = Detached>) {
    for detached in connections {
        if let Err(detached) = attach(worker, detached) {
            handover::close(worker, detached);
        }
    }
}

/// Resumes all active connections once: those of HTTP/2 that have no stream end themselves then.
pub fn wake_active(worker: &Rc<Worker>) {
    let keys = worker.table.borrow().keys();
    for key in keys {
        match worker.table.borrow_mut().slot(key).map(|slot| &slot.state) {
            Some(SlotState::Active { waits: Waits::Here(_), .. }) => worker.go_on_later(key),
            Some(SlotState::Active { waits: Waits::Task(waker), .. }) => waker.wake_by_ref(),
            _ => {}
        }
    }
}

/// Places the batches that arrive into a worker, until their queue ends.
pub async fn arrive(worker: Rc<Worker>, mut arrivals: Receiver<Arrival>) {
    while let Some(Arrival { batch, read, committed }) = arrivals.recv().await {
        let batch = decode(batch);
        let said = batch.as_ref().map(Vec::len).map_err(ToString::to_string);
        // The other end of this queue is the thread that waits for it, or it is gone.
        let is_heard = read.try_send(said).is_ok();
        let Ok(connections) = batch else { continue };
        if is_heard && committed.await.is_ok() {
            put_back(&worker, connections);
        }
    }
}

/// Connections for one batch.
#[derive(Default)]
struct Taken {
    connections: Vec<Detached>,
    states: Vec<Zeroizing<Vec<u8>>>,
    state_bytes: usize,
    sockets: Vec<OwnedFd>,
}

impl Taken {
    fn is_full(&self) -> bool {
        self.sockets.len() + CONNECTION_DESCRIPTORS > BATCH_DESCRIPTORS_MAX
            || self.state_bytes >= BATCH_BYTES
    }

    /// Adds a connection, or returns it if no descriptor is free.
    // A box for each connection would cost more than the move.
    #[allow(clippy::result_large_err)]
    fn add(&mut self, detached: Detached) -> Result<(), Detached> {
        let duplicates: std::io::Result<Vec<OwnedFd>> =
            detached.sockets().map(|socket: BorrowedFd<'_>| socket.try_clone_to_owned()).collect();
        let Ok(duplicates) = duplicates else { return Err(detached) };
        let state = detached.encode();
        self.state_bytes += PREFIX_BYTES + state.len();
        let (length, sockets) = (state.len() as u32, duplicates.len() as u8);
        let mut prefix = Zeroizing::new(length.to_be_bytes().to_vec());
        prefix.push(sockets);
        self.states.extend([prefix, state]);
        self.sockets.extend(duplicates);
        self.connections.push(detached);
        Ok(())
    }

    fn finish(self) -> Detachment {
        // Allocated once, so that no copy of a secret is left behind.
        let mut states = Zeroizing::new(Vec::with_capacity(self.state_bytes));
        for state in &self.states {
            states.extend_from_slice(state);
        }
        let batch = ConnectionBatch { states, sockets: self.sockets };
        Detachment { connections: self.connections, batch }
    }
}

/// Reads all connections of a batch. If one cannot be read, all are dropped.
///
/// # Errors
/// [`BatchError`].
pub fn decode(batch: ConnectionBatch) -> Result<Vec<Detached>, BatchError> {
    let mut connections = Vec::with_capacity(batch.sockets.len());
    let (mut rest, mut sockets) = (&batch.states[..], batch.sockets.into_iter());
    while let Some((prefix, behind)) = rest.split_first_chunk::<PREFIX_BYTES>() {
        let [l0, l1, l2, l3, count] = *prefix;
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        let (state, behind) = behind.split_at_checked(length).ok_or(BatchError::Lengths)?;
        let own: Vec<OwnedFd> = sockets.by_ref().take(count.into()).collect();
        if own.len() != usize::from(count) {
            return Err(BatchError::Lengths);
        }
        let detached = Detached::decode(state, own);
        connections.push(detached.map_err(|error| BatchError::Connection(error.to_string()))?);
        rest = behind;
    }
    let is_whole = rest.is_empty() && sockets.next().is_none();
    if is_whole { Ok(connections) } else { Err(BatchError::Lengths) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch with these bytes and so many sockets.
    fn error_of(states: &[u8], sockets: usize) -> Option<BatchError> {
        let socket = || eyelet_sys::socket::pair().ok().map(|(socket, _)| socket);
        let sockets = std::iter::repeat_with(socket).take(sockets).flatten().collect();
        let states = Zeroizing::new(states.to_vec());
        decode(ConnectionBatch { states, sockets }).err()
    }

    #[test]
    fn a_batch_has_what_its_lengths_say() {
        assert_eq!(error_of(&[], 0), None);
        for (states, sockets) in [
            // A prefix that is cut, a state that is cut, sockets that are missing or left over.
            (&[0, 0, 0, 1][..], 0),
            (&[0, 0, 0, 2, 0, 7], 0),
            (&[0xff, 0xff, 0xff, 0xff, 0, 7], 0),
            (&[0, 0, 0, 1, 2, 7], 1),
            (&[], 1),
        ] {
            assert_eq!(error_of(states, sockets), Some(BatchError::Lengths), "{states:?}");
        }
        let garbage = error_of(&[0, 0, 0, 1, 1, 7], 1);
        assert!(matches!(garbage, Some(BatchError::Connection(_))), "{garbage:?}");
    }
}

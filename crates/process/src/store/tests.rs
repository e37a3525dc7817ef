//! Groups in parts in a recording: they come back whole, or end.

#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::Relaxed;

use eyelet_engine::departure::LeavingBatch;
use eyelet_engine::moving::batch::{Arrival, BatchRead};
use eyelet_engine::worker::Process;
use eyelet_memory::budget::Budget;
use tokio::sync::mpsc::channel;

use super::*;

/// Sockets of a group: its first part has none, and two others have them.
const GROUP_SOCKETS: usize = 300;
const GROUP_MESSAGE: &[u8] = b"the message of a group";
/// A connection of a batch: the length of its state, the number of its sockets, and its state.
const BATCH: &[u8] = &[0, 0, 0, 1, 1, 9];

fn batch(states: &[u8], sockets: usize, group: Option<u64>) -> LeavingBatch {
    let (socket, _) = eyelet_sys::socket::pair().unwrap();
    let sockets = (0..sockets).map(|_| Arc::new(socket.try_clone().unwrap())).collect();
    LeavingBatch { states: Zeroizing::new(states.to_vec()), sockets, group }
}

fn group(number: u64) -> LeavingBatch {
    batch(GROUP_MESSAGE, GROUP_SOCKETS, Some(number))
}

/// A recording of these messages. The first group lacks its last part if `is_cut`, as if the
/// recording had no room for it.
fn recording(batches: Vec<LeavingBatch>, is_cut: bool) -> Recording {
    let mut recorder = Recorder::new(2_000).unwrap();
    for (nth, batch) in batches.iter().enumerate() {
        match batch.group {
            Some(group) if is_cut && nth == 0 => {
                for part in parts(group, batch).take(2) {
                    let sockets: Vec<_> = part.sockets.iter().map(|one| one.as_fd()).collect();
                    recorder.send(kind::PART, &part.body, &sockets).unwrap();
                }
            }
            _ => record_kept(&mut recorder, &Kept::Connections(batch)).unwrap(),
        }
    }
    let all = body(kind::END, &batches.len()).unwrap();
    recorder.send(kind::END, &all, &[]).unwrap();
    Recording::open(recorder.finish().unwrap()).unwrap()
}

/// The batches of a worker that takes everything: the states, and the number of sockets.
type Got = Vec<(Vec<u8>, usize)>;

/// Takes a recording with room for so many descriptors. Returns what the worker got, and counts.
fn taken(recording: Recording, descriptors_max: usize) -> (Got, Taken, Arc<Process>) {
    let process = Arc::new(Process::new(Arc::new(Budget::new(64 << 20, 0))));
    process.descriptors_max.store(descriptors_max, Relaxed);
    let (queue, mut arrivals) = channel(1);
    let worker = thread::spawn(move || {
        let mut got = Got::new();
        while let Some(Arrival { batch, may_go_back, read, committed }) = arrivals.blocking_recv() {
            assert!(!may_go_back);
            got.push((batch.states.to_vec(), batch.sockets.len()));
            let all = BatchRead { taken: 1, ..BatchRead::default() };
            read.send(Ok(all)).unwrap();
            committed.blocking_recv().unwrap();
        }
        got
    });
    let workers = Arrivals { workers: vec![(queue, Arc::default())], process: process.clone() };
    let mut taken = Taken::default();
    take(recording, (&workers, &[]), &mut taken).unwrap();
    drop(workers);
    (worker.join().unwrap(), taken, process)
}

#[test]
fn a_group_in_parts_comes_back_whole() {
    let batches = [group(1), batch(BATCH, 1, None), group(2)];
    let (got, taken, process) = taken(recording(batches.into(), false), 1_000);
    let of_group = (GROUP_MESSAGE.to_vec(), GROUP_SOCKETS);
    assert_eq!(got, [of_group.clone(), (BATCH.to_vec(), 1), of_group]);
    assert_eq!((taken.back, taken.ended), (3, 0));
    assert_eq!(process.descriptors.load(Relaxed), 0, "they are the worker's");
}

/// It has ended in the process that recorded it. Nothing of it stays, and nobody else is lost.
#[test]
fn a_group_without_its_last_part_is_closed() {
    for behind in [group(2), batch(BATCH, 1, None)] {
        let expected = (behind.states.to_vec(), behind.sockets.len());
        let (socket, mut client) = UnixStream::pair().unwrap();
        let mut cut = group(1);
        cut.sockets[0] = Arc::new(socket.into());
        let (got, taken, process) = taken(recording(vec![cut, behind], true), 1_000);
        assert_eq!((got, taken.back, taken.ended), (vec![expected], 1, 0));
        assert_eq!(process.descriptors.load(Relaxed), 0);
        // A process that another test starts has them, too, until it executes its program.
        client.set_read_timeout(Some(MESSAGE_TIMEOUT)).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "its sockets are closed");
    }
}

#[test]
fn a_group_without_room_ends_and_the_others_come_back() {
    let batches = [group(1), batch(BATCH, 1, None)];
    let (got, taken, process) = taken(recording(batches.into(), false), GROUP_SOCKETS - 1);
    assert_eq!(got, [(BATCH.to_vec(), 1)]);
    assert_eq!((taken.back, taken.ended), (1, 1));
    assert_eq!(process.descriptors.load(Relaxed), 0);
}

//! Predecessors in an upgrade: what each hears while the workers leave, and who is passed on.

#![allow(clippy::unwrap_used)]

use eyelet_engine::worker::Process;
use eyelet_memory::budget::Budget;

use super::*;
use crate::handover::expect;

/// No worker.
fn nobody() -> Arrivals {
    let process = Arc::new(Process::new(Arc::new(Budget::new(1 << 20, 0))));
    Arrivals { workers: Vec::new(), process }
}

/// A predecessor that this process has a channel to, and its end of it.
fn known() -> (Arc<Predecessors>, Channel) {
    let (channel, theirs) = Channel::pair().unwrap();
    let predecessors = Arc::<Predecessors>::default();
    let predecessor = LingeringProcess { pid: Some(7), is_told: false };
    predecessors.resume(vec![PredecessorLink { predecessor, channel }], &nobody());
    (predecessors, Channel::over(theirs).unwrap())
}

/// Offers a connection. Returns those that are refused.
fn offer(predecessor: &mut Channel) -> Vec<usize> {
    // The length of its state, the number of its sockets, and the state.
    let states = [0, 0, 0, 1, 0, 9];
    predecessor.send(kind::BATCH, &states, &[], MESSAGE_TIMEOUT).unwrap();
    let (received, body) = receive(predecessor, Some(MESSAGE_TIMEOUT)).unwrap();
    let answer: HandoverReceived = read(&received, kind::RECEIVED, &body).unwrap();
    answer.refused
}

/// While the workers leave, it keeps what it offers at once, and hears that the service ends.
#[test]
fn a_predecessor_is_heard_and_told_while_the_workers_leave() {
    let (predecessors, mut predecessor) = known();
    predecessors.hold();
    for _ in 0..2 {
        assert_eq!(offer(&mut predecessor), [0]);
        signal(&mut predecessor, kind::COMMIT).unwrap();
    }
    predecessors.drain();
    expect(&mut predecessor, kind::DRAIN, MESSAGE_TIMEOUT).unwrap();
    let links = predecessors.pause();
    assert_eq!(links.len(), 1);
    assert!(links[0].predecessor.is_told && predecessors.pids().is_empty());
}

/// A process without connections ends at once after the order.
#[test]
fn a_predecessor_is_told_before_the_process_ends() {
    let (predecessors, mut predecessor) = known();
    predecessors.drain();
    predecessors.stop();
    expect(&mut predecessor, kind::DRAIN, Duration::from_millis(1)).unwrap();
}

/// The service may end while nobody reads its channel: it is told before it is passed on, or when
/// this process goes on with it.
#[test]
fn a_predecessor_that_is_paused_is_told_later() {
    for resumes in [true, false] {
        let (predecessors, mut predecessor) = known();
        predecessors.hold();
        let mut links = predecessors.pause();
        predecessors.drain();
        if resumes {
            predecessors.release();
            predecessors.resume(links, &nobody());
        } else {
            links.iter_mut().for_each(|link| predecessors.tell(link).unwrap());
            links.iter_mut().for_each(|link| predecessors.tell(link).unwrap());
            drop(links);
        }
        expect(&mut predecessor, kind::DRAIN, MESSAGE_TIMEOUT).unwrap();
        if !resumes {
            let again = receive(&mut predecessor, Some(MESSAGE_TIMEOUT));
            assert!(again.is_err_and(|error| error.is_closed()), "it is told once");
        }
    }
}

/// One in the middle of a batch counts on, and is passed on when it is through.
#[test]
fn a_predecessor_that_stands_still_is_passed_on_later() {
    let (predecessors, mut predecessor) = known();
    predecessors.hold();
    assert_eq!(offer(&mut predecessor), [0]);
    assert!(predecessors.pause().is_empty());
    assert_eq!(predecessors.pids(), [Some(7)], "it counts on");
    assert!(predecessors.take_stopped().is_empty());
    signal(&mut predecessor, kind::COMMIT).unwrap();
    let end = Instant::now() + MESSAGE_TIMEOUT;
    let mut links = Vec::new();
    while links.is_empty() && Instant::now() < end {
        links = predecessors.take_stopped();
        thread::park_timeout(PAUSE_STEP);
    }
    assert_eq!(links.len(), 1);
    assert!(predecessors.pids().is_empty());
}

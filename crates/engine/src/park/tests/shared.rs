//! Parked connections with streams of upstream connections that others share: what wakes them, and
//! how those streams end.

use std::io::Write;

use super::further::{Heard, accepted, check_empty, drive, park_streams, serving, tls, within};
use super::*;
use crate::moving::handover::{Stays, detach};
use crate::worker::ParkedWaker;
use eyelet_sys::memory::blocks::long_any;
use eyelet_table::shared_streams::SHARED_BYTES;

/// Streams that note when they are dropped.
struct Kept(Rc<Cell<bool>>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

/// A parked connection, by HTTP/2 or with one exchange of HTTP/1.1.
struct SharedAtRest {
    key: Key,
    waker: ParkedWaker,
    is_dropped: Rc<Cell<bool>>,
    _client: OwnedFd,
}

fn park_shared(worker: &Rc<Worker>, http2: bool) -> SharedAtRest {
    let (handle, client) = accepted(worker);
    let is_dropped = Rc::new(Cell::new(false));
    handle.give_streams(2, long_any(Kept(is_dropped.clone())));
    let waker = handle.parked_waker();
    let mut info = worker.info(0, ([192, 0, 2, 1], 5000).into());
    let mut flow = Flow::default();
    match http2 {
        true => flow.keep_state(PackedBytes::own(&[1])),
        false => flow.keep_exchange(&[1]),
    }
    park(&handle, &mut info, Relay::Terminate(Terminated { session: tls(End13::Server), flow }));
    SharedAtRest { key: handle.key(), waker, is_dropped, _client: client }
}

/// Anything that comes for one of its streams wakes it, and the program takes them all.
#[test]
fn a_call_wakes_the_connection() {
    let heard = Rc::new(Heard::default());
    let (worker, _program) = serving(&heard);
    let parked = park_shared(&worker, true);
    drive(&[&worker]);
    assert_eq!(heard.wakes.get(), 0);
    parked.waker.wake();
    assert!(worker.run_queue.has_more(), "an iteration begins");
    drive(&[&worker]);
    assert_eq!((heard.wakes.get(), parked.is_dropped.get()), (1, true));
    assert!(!worker.run_queue.has_more());
}

/// Nor is another connection woken that has the slot by then, or a worker kept by a waker.
#[test]
fn a_call_for_an_earlier_connection_wakes_nobody() {
    let heard = Rc::new(Heard::default());
    let (worker, _program) = serving(&heard);
    let earlier = park_shared(&worker, true);
    abandon(&worker, earlier.key);
    assert!(earlier.is_dropped.get());
    let later = park_shared(&worker, true);
    assert_eq!(later.key.index, earlier.key.index);
    earlier.waker.wake();
    drive(&[&worker]);
    assert_eq!((heard.wakes.get(), later.is_dropped.get()), (0, false));
    drop((worker, _program));
    later.waker.wake();
}

#[test]
fn each_end_drops_them() {
    type Act = fn(&Rc<Worker>, Key);
    let acts: [Act; 4] = [
        abandon,
        |worker, key| close(worker, key, Reason::Ended),
        |worker, key| close(worker, key, Reason::Drained(None)),
        |worker, key| {
            worker.ending.is_cutting.set(true);
            crate::shedding::drain::cut(worker, &[key]);
        },
    ];
    for (nth, act) in acts.into_iter().enumerate() {
        let heard = Rc::new(Heard::default());
        let (worker, _program) = serving(&heard);
        let used = || worker.process.budget.used();
        let before = used();
        let parked = park_shared(&worker, true);
        assert!(used() - before >= SHARED_BYTES);
        within(|| act(&worker, parked.key));
        drive(&[&worker]);
        assert!(parked.is_dropped.get(), "{nth}");
        // It lingers, or was parked again by its task.
        abandon(&worker, parked.key);
        check_empty(&worker);
    }
}

/// Others share their upstream connection, which stays, and so it stays too. It is in use: neither
/// a drain nor the end of idle connections of a replaced process takes it for an idle one.
#[test]
fn it_stays_in_its_process_and_is_in_use() {
    for http2 in [true, false] {
        let worker = worker();
        let parked = park_shared(&worker, http2);
        assert_eq!(detach(&worker, parked.key, 100).err(), Some(Stays::Shared));
        crate::shedding::retired::begin(&worker);
        for _ in 0..2_000 {
            let tick = worker.table.borrow().now() + 1;
            worker.table.borrow_mut().next_due(tick);
            crate::shedding::retired::tick(&worker);
        }
        assert!(worker.table.borrow_mut().slot(parked.key).is_some() && !parked.is_dropped.get());
    }
}

/// A source is charged by the sum of what a connection holds and what its streams take.
#[test]
fn a_source_is_charged_for_both_together() {
    let heard = Rc::new(Heard::default());
    let (worker, _program) = serving(&heard);
    for count in 1..32 {
        let (key, mut peers) = park_streams(&worker, 1, count);
        let part = [&[0x17, 3, 3, 1, 0][..], &[0; 200]].concat();
        peers.client.as_mut().unwrap().write_all(&part).unwrap();
        drive(&[&worker]);
        abandon(&worker, key);
        check_empty(&worker);
    }
}

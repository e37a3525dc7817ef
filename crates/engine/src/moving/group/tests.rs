//! Groups of a program whose links are numbers with a socket.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eyelet_memory::budget::Counted;
use eyelet_memory::packed::PackedBytes;
use eyelet_record::{Role, Session, Suite};
use eyelet_telemetry::info::{ConnectionInfo, Decided, End};
use zeroize::Zeroizing;

use super::*;
use crate::departure::BATCH_DESCRIPTORS_MAX;
use crate::links::AttachedStreams;
use crate::moving::batch::{self, Detachment, RefusalReason, SearchResult};
use crate::moving::parcel::Parcel;
use crate::moving::parts::ConnectionBatch;
use crate::moving::staying::Staying;
use crate::testing::worker;
use crate::worker::{Handle, Program, Task, Update};
use eyelet_relay::terminate::Terminated;
use eyelet_relay::{Flow, KeptExchanges, Relay};
use eyelet_sys::memory::blocks::long_any;
use eyelet_table::KeptStreams;

/// The state of a link that no program reads.
const UNREADABLE: u8 = 0xff;

struct Link {
    number: u8,
    socket: Cell<Option<OwnedFd>>,
    keys: RefCell<Vec<Key>>,
    may_leave: Cell<bool>,
}

/// The streams of a connection: each is of a link.
type Streams = Vec<(Rc<Link>, u32)>;

struct Linking(
    Rc<Worker>,
    /** How often links were looked at. */ Cell<usize>,
    /** Descriptors and bytes that counted when links were read. */ Cell<(usize, usize)>,
);

impl Program for Linking {
    fn accepted(self: Rc<Self>, _: Handle, _: ConnectionInfo) -> Task {
        Box::pin(std::future::ready(()))
    }

    fn woken(self: Rc<Self>, _: Handle, _: ConnectionInfo, _: Relay, _: Counted) -> Task {
        panic!("nothing comes");
    }

    fn task_bytes(&self, _: &Decided) -> usize {
        100
    }

    fn pack_state(&self, _: &Decided, state: &[u8], _: (usize, usize)) -> Option<PackedBytes> {
        Some(PackedBytes::own(state))
    }

    fn find_partners(&self, kept: &KeptStreams, found: &mut Partners) -> bool {
        self.1.update(|looks| looks + 1);
        kept.downcast_ref::<Streams>().unwrap().iter().all(|(link, _)| {
            if found.add_link(link.number.into()) {
                link.keys.borrow().iter().for_each(|key| found.add(*key));
            }
            link.may_leave.get()
        })
    }

    fn detach_links(&self, kept: Vec<KeptStreams>) -> Option<DetachedLinks> {
        let (mut links, mut numbers, mut streams) = (Vec::new(), Vec::new(), Vec::new());
        for kept in &kept {
            let of_connection = kept.downcast_ref::<Streams>().unwrap().iter().map(|(link, id)| {
                if let Some(socket) = link.socket.take() {
                    let state = Zeroizing::new(vec![link.number]);
                    links.push(DetachedLink { socket: Arc::new(socket), state });
                    numbers.push(link.number);
                }
                let at = numbers.iter().position(|number| *number == link.number).unwrap();
                StreamRef { link: at as u16, stream: *id, bits: 0 }
            });
            streams.push(of_connection.collect());
        }
        Some(DetachedLinks { links, streams })
    }

    fn reads_links(
        &self,
        links: &[DetachedLink],
        connections: &[(KeptExchanges<'_>, &[StreamRef])],
    ) -> bool {
        let process = &self.0.process;
        let bytes = process.budget.used_by(Account::Relayed);
        self.2.set((process.descriptors.load(Relaxed), bytes));
        !connections.is_empty() && links.iter().all(|link| link.state[0] != UNREADABLE)
    }

    fn attach_links(
        &self,
        links: Vec<DetachedLink>,
        connections: &[(Key, Vec<StreamRef>)],
    ) -> Vec<AttachedStreams> {
        let links = links.into_iter().map(|link| {
            let (socket, state) = link.into_parts().unwrap();
            new_link(state[0], socket)
        });
        let links: Vec<_> = links.collect();
        let kept = connections.iter().map(|(key, streams)| {
            let streams = streams.iter().map(|stream| {
                let link = &links[usize::from(stream.link)];
                link.keys.borrow_mut().push(*key);
                (link.clone(), stream.stream)
            });
            Some(long_any(streams.collect::<Streams>()))
        });
        kept.collect()
    }

    fn update(&self) -> Option<Update> {
        None
    }

    fn apply_update(&self) {}

    fn is_logging(&self) -> bool {
        false
    }

    fn log(&self, _: &ConnectionInfo, _: &End) {}
    fn flush_log(&self, _: i64) {}
    fn tick(&self) {}
    fn release_caches(&self) {}
    fn close(&self) {
        drop(self.0.clone());
    }

    fn is_resting(&self) -> bool {
        true
    }
}

fn new_link(number: u8, socket: OwnedFd) -> Rc<Link> {
    let (socket, keys) = (Cell::new(Some(socket)), RefCell::default());
    Rc::new(Link { number, socket, keys, may_leave: Cell::new(true) })
}

fn serving() -> (Rc<Worker>, Rc<Linking>) {
    let worker = worker();
    let program = Rc::new(Linking(worker.clone(), Cell::new(0), Cell::default()));
    worker.serve(&program);
    (worker, program)
}

/// Parks a connection with a stream on each of these links. Returns its client.
fn park_on(worker: &Rc<Worker>, links: &[&Rc<Link>]) -> (Key, OwnedFd) {
    park_with(worker, links, &[7; 9])
}

/// Parks such a connection with this state.
fn park_with(worker: &Rc<Worker>, links: &[&Rc<Link>], state: &[u8]) -> (Key, OwnedFd) {
    park_named(worker, links, state, None)
}

/// Parks such a connection, whose hello has this name.
fn park_named(
    worker: &Rc<Worker>,
    links: &[&Rc<Link>],
    state: &[u8],
    name: Option<&str>,
) -> (Key, OwnedFd) {
    let session = Session::tls13(Role::Server, Suite::Aes128Gcm, &[1; 32], &[2; 32], 0, 0);
    let mut flow = Flow::default();
    flow.keep_state(PackedBytes::own(state));
    let relay = Relay::Terminate(Terminated { session: session.unwrap(), flow });
    let (client, peer) = eyelet_sys::socket::pair().unwrap();
    let key = worker.table.borrow_mut().insert(client, false);
    worker.process.open.fetch_add(1, Relaxed);
    worker.uses_descriptors(2);
    let taken = eyelet_memory::budget::ACTIVE_BYTES;
    worker.process.budget.take(Account::Connections, taken);
    worker.counters.connections.up();
    let handle = Handle::new(worker.clone(), key);
    let streams: Streams = links.iter().map(|link| ((*link).clone(), 2 * key.index + 1)).collect();
    links.iter().for_each(|link| link.keys.borrow_mut().push(key));
    handle.give_streams(links.len() as u32, long_any(streams));
    let mut info = worker.info(0, ([192, 0, 2, 1], 5000).into());
    info.decided.sni = name.map(Into::into);
    park::park(&handle, &mut info, relay);
    (key, peer)
}

/// Three connections, and two links that join them.
fn chain(worker: &Rc<Worker>) -> ([Rc<Link>; 2], Vec<(Key, OwnedFd)>) {
    let links = [0, 1].map(|number| new_link(number, eyelet_sys::socket::pair().unwrap().0));
    let [one, two] = &links;
    let connections = [&[one][..], &[one, two], &[two]].map(|links| park_on(worker, links));
    (links, connections.into())
}

fn found(worker: &Rc<Worker>) -> Option<Detachment> {
    let end = Instant::now() + Duration::from_secs(600);
    match batch::next(worker, BATCH_DESCRIPTORS_MAX, u32::MAX, end, &Staying::new()) {
        SearchResult::Batch(detachment) => Some(detachment),
        SearchResult::Nothing | SearchResult::NotThrough(_) => None,
    }
}

fn received(detachment: &Detachment) -> ConnectionBatch {
    let sockets = &detachment.batch.sockets;
    let sockets = sockets.iter().map(|socket| socket.try_clone().unwrap()).collect();
    ConnectionBatch::new(detachment.batch.states.clone(), sockets)
}

#[track_caller]
fn check_counts(worker: &Worker, connections: usize, descriptors: usize) {
    assert_eq!(worker.process.open.load(Relaxed), connections);
    assert_eq!(worker.process.descriptors.load(Relaxed), descriptors);
    assert_eq!(worker.counters.parked.value() as usize, connections);
    let is_counted = worker.counters.parked_bytes.value() > 0;
    assert_eq!(is_counted, connections > 0);
}

#[test]
fn a_group_leaves_whole_by_its_first_connection() {
    let ((old, _old), (new, _new)) = (serving(), serving());
    let (_links, connections) = chain(&old);
    let room = |taken| SocketRoom::of(&old, BATCH_DESCRIPTORS_MAX, taken);
    let later = Parcel::detach(&old, connections[1].0, room(0));
    assert!(matches!(later, Err(Stays::Shared)), "the first one begins it");
    let few = Parcel::detach(&old, connections[0].0, room(BATCH_DESCRIPTORS_MAX - 4)).err();
    assert_eq!(few, Some(Stays::Sockets(5)), "the next batch begins with it");
    check_counts(&old, 3, 3);
    for round in 0..2 {
        let (from, to) = if round == 0 { (&old, &new) } else { (&new, &old) };
        let detachment = found(from).unwrap();
        check_counts(from, 0, 0);
        let counts: Vec<_> = detachment.counts.iter().map(|one| one.connections).collect();
        assert_eq!((counts, detachment.batch.sockets.len()), (vec![3], 5));
        let (read, taken) = batch::admit(to, received(&detachment), true).unwrap();
        assert_eq!((read.taken, &read.refused[..]), (3, &[][..]));
        assert_eq!(to.process.descriptors.load(Relaxed), 5, "those of links are reserved");
        drop(detachment);
        let keys = batch::put_back(to, taken).concat();
        check_counts(to, 3, 3);
        let streams = keys.iter().map(|key| to.table.borrow().shared_count(*key));
        assert_eq!(streams.collect::<Vec<_>>(), [1, 2, 1]);
    }
}

#[test]
fn a_group_with_a_link_that_is_busy_stays_whole() {
    let (old, _old) = serving();
    let (links, _connections) = chain(&old);
    links[1].may_leave.set(false);
    assert!(found(&old).is_none());
    check_counts(&old, 3, 3);
    links[1].may_leave.set(true);
    assert_eq!(found(&old).unwrap().parcels.len(), 1);
}

/// All of it comes back, and nothing else suffers.
#[test]
fn a_group_that_is_refused_comes_back_whole() {
    for case in ["a link that is not read", "no room for its last connection", "nor for a link"] {
        let ((old, _old), (new, _new)) = (serving(), serving());
        let (links, _connections) = chain(&old);
        let alone = park_on(&old, &[&new_link(9, eyelet_sys::socket::pair().unwrap().0)]);
        let mut settings = new.settings.get();
        let why = match case {
            "a link that is not read" => RefusalReason::Import(ImportError::Link),
            _ => RefusalReason::NoRoom,
        };
        match case {
            "no room for its last connection" => settings.connections_max = 2,
            "nor for a link" => settings.descriptors_max = 4,
            _ => {}
        }
        new.settings.set(settings);
        let detachment = found(&old).unwrap();
        let mut arriving = received(&detachment);
        if case == "a link that is not read" {
            // The state of the second link is the last byte of the first message.
            let length = u32::from_be_bytes(arriving.states[..4].try_into().unwrap()) as usize;
            assert_eq!(arriving.states[5 + length - 1], links[1].number);
            arriving.states[5 + length - 1] = UNREADABLE;
        }
        let (read, taken) = batch::admit(&new, arriving, true).unwrap();
        assert_eq!((read.taken, &read.refused[..], read.why), (1, &[0][..], Some(why)), "{case}");
        check_room(&new, 1, 2);
        let Detachment { parcels, batch, .. } = detachment;
        drop(batch);
        let back = parcels.into_iter().next();
        assert_eq!(batch::put_back(&old, back).concat().len(), 3, "{case}");
        check_counts(&old, 3, 3);
        batch::put_back(&new, taken);
        check_counts(&new, 1, 1);
        assert_eq!(found(&old).unwrap().batch.sockets.len(), 5, "it may be offered again");
        drop(alone);
    }
}

#[track_caller]
fn check_room(worker: &Worker, connections: usize, descriptors: usize) {
    assert_eq!(worker.process.open.load(Relaxed), connections);
    assert_eq!(worker.process.descriptors.load(Relaxed), descriptors);
}

/// A recorded group has no process to go back to.
#[test]
fn a_group_without_room_ends_if_it_cannot_go_back() {
    let ((old, _old), (new, _new)) = (serving(), serving());
    let (_links, _connections) = chain(&old);
    let mut settings = new.settings.get();
    settings.connections_max = 2;
    new.settings.set(settings);
    let detachment = found(&old).unwrap();
    let (read, parcels) = batch::admit(&new, received(&detachment), false).unwrap();
    assert_eq!((read.taken, parcels.len()), (0, 1));
    drop(detachment);
    assert!(batch::put_back(&new, parcels).is_empty(), "none has a place");
    assert_eq!(new.counters.parked.value(), 0, "they linger, or have ended");
}

/// A process that knows no groups gets none.
#[test]
fn a_group_stays_where_its_version_is_not_read() {
    let (old, _old) = serving();
    let (_links, _connections) = chain(&old);
    old.moving.reads_below.set(Some(VERSION_GROUP));
    assert!(found(&old).is_none());
    check_counts(&old, 3, 3);
}

mod parts;

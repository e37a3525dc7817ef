//! The table: flows by their clients' addresses and their servers' connection ids, and their
//! states.

use std::hash::BuildHasher;
use std::sync::Arc;

use eyelet_memory::budget::{Account, Budget, Counted};
use eyelet_memory::slab::{Key, Slab};
use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::id::{
    FIRST_DATAGRAM_BYTES_MIN, FIRST_ID_BYTES_MIN, FOLLOWED_ID_BYTES_MIN, FlowId, Header,
    ID_BYTES_MAX,
};
use crate::order::{HasLinks, Links, List, NONE};
use crate::peer::Peer;
use crate::unanswered::UnansweredFlows;
use crate::waiting::WaitingDatagrams;

/// The time in which a server must answer a flow. After the second retransmission of a client's
/// first flight (RFC 9002 section 6.2), and within it a resolver is asked twice.
pub const ANSWER_MS: u64 = 3_000;
/// The time after which a flow ends that nobody decides: far longer than all deadlines of a
/// decision.
pub const UNDECIDED_MS: u64 = 60_000;
/// The time for which a refused flow is remembered: its client's retransmissions get the same
/// answer, and are not decided anew.
pub const REFUSED_MS: u64 = 3_000;
/// Refused flows that are remembered.
pub const REFUSED_MAX: usize = 1_024;
/// Flows of one client address. A client may have several at one socket, told apart by their ids,
/// and nobody can see that it has closed one. Each datagram looks at all of them. A new one ends
/// another: [`Flows::check_new`].
pub const FLOWS_OF_ADDRESS_MAX: usize = 64;
/// Addresses of one flow at the same time. A client that moves uses two while it validates the new
/// one; a third is for a stranger who sends copies from his own.
pub const ADDRESSES_MAX: usize = 3;
/// Bytes that may be sent to an unproved address for each byte that came from it (RFC 9000 section
/// 8.1).
pub const AMPLIFICATION: u64 = 3;

/// Bytes and datagrams that were passed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTraffic {
    pub bytes_to_upstream: u64,
    pub bytes_to_client: u64,
    pub datagrams_to_upstream: u64,
    pub datagrams_to_client: u64,
}

impl FlowTraffic {
    pub(crate) fn add(&mut self, other: &Self) {
        self.bytes_to_upstream += other.bytes_to_upstream;
        self.bytes_to_client += other.bytes_to_client;
        self.datagrams_to_upstream += other.datagrams_to_upstream;
        self.datagrams_to_client += other.datagrams_to_client;
    }
}

/// The state of a flow: the way of its datagrams.
#[derive(Debug)]
pub enum State {
    /// They wait: the flow is not decided.
    Undecided(WaitingDatagrams),
    /// They pass. `is_answered`: the server has sent one.
    Passing { is_answered: bool },
    /// They get this answer, as far as it is not more than three times what came. Empty: none.
    Refused { answer: Box<[u8]>, received: u64, sent: u64 },
}

/// A flow at one address of its client.
#[derive(Debug)]
pub struct QuicFlow<P> {
    pub peer: Peer,
    pub state: State,
    pub moved: FlowTraffic,
    /// The part that the table's owner keeps.
    pub payload: P,
    pub(crate) first_id: FlowId,
    /// The server's id, once it is known.
    pub(crate) server_id: Option<FlowId>,
    /// Its client has named the server's id. Who sends in its name does not know that id.
    pub(crate) is_proven: bool,
    /// The time at which the present wait began, or when it was last used, in milliseconds.
    pub(crate) since_ms: u64,
    pub(crate) links: Links,
    /// The next flow at the address before this one, and at the one behind.
    pub(crate) older: u32,
    pub(crate) newer: u32,
}

/// The flow of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundFlow {
    /// This one.
    Flow(Key),
    /// This one, but its client has another address by now.
    Moved(Key),
    /// A new one.
    New,
    /// None, and it begins none.
    Unknown,
}

/// The reason why a flow cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Too many of the process are unanswered.
    Unanswered,
    /// Too many of its network are unanswered.
    Network,
    /// Its address has too many.
    Address,
    /// Its id is none.
    BadId,
    /// Its address has one with this id.
    Known,
}

/// The reason why a flow's time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// No server has answered it.
    Unanswered,
    /// Nothing has passed for the idle timeout.
    Idle,
    /// It was refused, and need not be remembered any more.
    Forgotten,
}

/// The flows of one worker.
pub struct Flows<P> {
    pub(crate) flows: Slab<QuicFlow<P>>,
    /// Slots by their clients' addresses.
    pub(crate) by_address: HashTable<u32>,
    /// Slots by their servers' ids: of a flow with several addresses the newest.
    by_id: HashTable<u32>,
    /// The number of those by their ids' lengths.
    lengths: [u32; ID_BYTES_MAX + 1],
    pub(crate) unanswered: List,
    pub(crate) answered: List,
    refused: List,
    /// Those of all tables of the process.
    pub(crate) all_unanswered: Arc<UnansweredFlows>,
    /// Keyed: clients choose addresses and ids.
    pub(crate) hasher: RandomState,
    /// Memory of waiting datagrams and answers.
    waiting_bytes: usize,
    counted: Counted,
}

impl<P> Flows<P> {
    /// A table without flows.
    pub fn new(budget: &Arc<Budget>, all_unanswered: &Arc<UnansweredFlows>) -> Self {
        Self {
            flows: Slab::default(),
            by_address: HashTable::new(),
            by_id: HashTable::new(),
            lengths: [0; ID_BYTES_MAX + 1],
            unanswered: List::default(),
            answered: List::default(),
            refused: List::default(),
            all_unanswered: all_unanswered.clone(),
            hasher: RandomState::default(),
            waiting_bytes: 0,
            counted: Counted::of(budget, Account::Flows, 0),
        }
    }

    /// Flows whose datagrams wait or pass.
    pub fn open(&self) -> usize {
        self.unanswered.len() + self.answered.len()
    }

    /// Flows that no server has answered.
    pub fn unanswered(&self) -> usize {
        self.unanswered.len()
    }

    /// True if nothing is known of any flow.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// The keys of all flows.
    pub fn keys(&self) -> Vec<Key> {
        self.flows.keys()
    }

    /// The flow of this key.
    pub fn flow(&mut self, key: Key) -> Option<&mut QuicFlow<P>> {
        self.flows.slot(key)
    }

    /// Finds the flow of a client's datagram.
    pub fn find(&self, peer: &Peer, header: &Header<'_>) -> FoundFlow {
        let mut latest: Option<((bool, u64), u32)> = None;
        for &index in self.by_address.iter_hash(self.hasher.hash_one(peer)) {
            let Some(flow) = self.flows.get(index).filter(|flow| flow.peer == *peer) else {
                continue;
            };
            let is_to_server = flow.server_id.is_some_and(|id| header.names(&id));
            if is_to_server || header.names(&flow.first_id) {
                return self.flows.key_at(index).map_or(FoundFlow::Unknown, FoundFlow::Flow);
            }
            let rank = (flow.is_proven, flow.since_ms);
            if latest.is_none_or(|(best, _)| rank >= best) {
                latest = Some((rank, index));
            }
        }
        if let Some(moved) = self.find_by_id(header) {
            return FoundFlow::Moved(moved);
        }
        if let Header::Long { dcid, begins: true, datagram_bytes } = header {
            // Never an older flow's, as in `find_by_id`.
            let is_id = (FIRST_ID_BYTES_MIN..=ID_BYTES_MAX).contains(&dcid.len());
            return match is_id && *datagram_bytes >= FIRST_DATAGRAM_BYTES_MIN {
                true => FoundFlow::New,
                false => FoundFlow::Unknown,
            };
        }
        // An id that the server has issued since, in secret: mostly that of the flow that was used
        // last, and never a stranger's who sends in its client's name.
        let latest = latest.and_then(|(_, index)| self.flows.key_at(index));
        latest.map_or(FoundFlow::Unknown, FoundFlow::Flow)
    }

    fn find_by_id(&self, header: &Header<'_>) -> Option<Key> {
        let (rest, lengths) = match header {
            // It may have another hello, which nobody has read.
            Header::Long { begins: true, .. } => return None,
            Header::Long { dcid, .. } => (*dcid, dcid.len()..=dcid.len()),
            Header::Short(rest) => (*rest, FOLLOWED_ID_BYTES_MIN..=ID_BYTES_MAX),
        };
        for len in lengths {
            if self.lengths.get(len).is_none_or(|count| *count == 0) {
                continue;
            }
            let index = rest.get(..len).and_then(FlowId::new).and_then(|id| self.index_of_id(&id));
            if let Some(index) = index {
                return self.flows.key_at(index);
            }
        }
        None
    }

    pub(crate) fn index_of_id(&self, id: &FlowId) -> Option<u32> {
        let is_it =
            |index: &u32| self.flows.get(*index).is_some_and(|flow| flow.server_id == Some(*id));
        self.by_id.find(self.hasher.hash_one(id), is_it).copied()
    }

    /// Begins a flow, whose datagrams wait. The owner sees to the bound of all unanswered ones.
    ///
    /// # Errors
    /// Why it cannot begin.
    pub fn begin(&mut self, peer: Peer, dcid: &[u8], now_ms: u64, payload: P) -> Result<Key, Full> {
        let first_id = FlowId::new(dcid).ok_or(Full::BadId)?;
        self.check_address(&peer)?;
        if !self.all_unanswered.add(peer.network()) {
            return Err(Full::Network);
        }
        let state = State::Undecided(WaitingDatagrams::default());
        Ok(self.insert(QuicFlow {
            peer,
            state,
            moved: FlowTraffic::default(),
            payload,
            first_id,
            server_id: None,
            is_proven: false,
            since_ms: now_ms,
            links: Links::default(),
            older: NONE,
            newer: NONE,
        }))
    }

    /// Checks the bounds of a client's network and address. At that of the address, returns the
    /// flow that ends for the new one.
    ///
    /// # Errors
    /// Why it cannot begin.
    pub fn check_new(&self, peer: &Peer) -> Result<Option<Key>, Full> {
        self.check_network(peer)?;
        match self.check_address(peer) {
            Err(full) => self.next_to_shed_at(peer).map(Some).ok_or(full),
            Ok(()) => Ok(None),
        }
    }

    /// The flow that ends for another one of its client's address: one that is refused, else one
    /// whose client has never named its server's id, else the longest unused. It is none while one
    /// has no answer: a stranger who sends in the client's name would have all flows end, and begin
    /// as many as he likes.
    fn next_to_shed_at(&self, peer: &Peer) -> Option<Key> {
        let same = self.by_address.iter_hash(self.hasher.hash_one(peer));
        let same = same.filter_map(|index| Some((*index, self.flows.get(*index)?)));
        let same = same.filter(|(_, flow)| flow.peer == *peer);
        let rank = |flow: &QuicFlow<P>| match flow.state {
            State::Refused { .. } => 0,
            State::Passing { is_answered: true } if !flow.is_proven => 1,
            State::Undecided(_) | State::Passing { is_answered: false } => 2,
            State::Passing { is_answered: true } => 3,
        };
        let (index, least) = same.min_by_key(|(_, flow)| (rank(flow), flow.since_ms))?;
        self.flows.key_at(index).filter(|_| rank(least) != 2)
    }

    pub(crate) fn check_network(&self, peer: &Peer) -> Result<(), Full> {
        if self.all_unanswered.is_full_of(peer.network()) { Err(Full::Network) } else { Ok(()) }
    }

    pub(crate) fn check_address(&self, peer: &Peer) -> Result<(), Full> {
        let same = self.by_address.iter_hash(self.hasher.hash_one(peer));
        let same = same.filter(|index| self.flows.get(**index).is_some_and(|it| it.peer == *peer));
        if same.count() >= FLOWS_OF_ADDRESS_MAX { Err(Full::Address) } else { Ok(()) }
    }

    /// Inserts a flow, which is counted already if it is unanswered.
    pub(crate) fn insert(&mut self, flow: QuicFlow<P>) -> Key {
        let (peer, is_answered) = (flow.peer, flow.is_answered());
        let key = self.flows.insert(flow);
        let hash = self.hasher.hash_one(peer);
        let (flows, hasher) = (&self.flows, &self.hasher);
        self.by_address.insert_unique(hash, key.index, |index| {
            flows.get(*index).map_or(0, |flow| hasher.hash_one(flow.peer))
        });
        if is_answered {
            self.answered.push(&mut self.flows, key.index);
        } else {
            self.unanswered.push(&mut self.flows, key.index);
        }
        self.count();
        key
    }

    /// Keeps a datagram of a flow that is not decided. Returns false if there is no room for it.
    pub fn hold(&mut self, key: Key, bytes: &[u8], ecn: u8) -> bool {
        let Some(QuicFlow { state: State::Undecided(waiting), .. }) = self.flows.slot(key) else {
            return false;
        };
        let before = waiting.held_bytes();
        let is_held = waiting.add(bytes, ecn);
        self.waiting_bytes += waiting.held_bytes() - before;
        self.count();
        is_held
    }

    /// Lets the datagrams of a flow pass. Returns those that have waited. The server has as long to
    /// answer from now on.
    pub fn pass(&mut self, key: Key, now_ms: u64) -> WaitingDatagrams {
        let Some(flow) = self.flows.slot(key) else { return WaitingDatagrams::default() };
        if !matches!(flow.state, State::Undecided(_)) {
            return WaitingDatagrams::default();
        }
        flow.since_ms = now_ms;
        let state = std::mem::replace(&mut flow.state, State::Passing { is_answered: false });
        self.unanswered.renew(&mut self.flows, key.index);
        let State::Undecided(waiting) = state else { return WaitingDatagrams::default() };
        self.waiting_bytes -= waiting.held_bytes();
        self.count();
        waiting
    }

    /// Refuses a flow with this answer. It is remembered for [`REFUSED_MS`]. Returns whether the
    /// answer may be sent now, and the flow that need not be remembered any more.
    pub fn refuse(&mut self, key: Key, answer: Box<[u8]>, now_ms: u64) -> (bool, Option<Key>) {
        let Some(flow) = self.flows.slot(key) else { return (false, None) };
        // Before, the server may have asked its client to begin anew.
        let (mut received, sent) = (flow.moved.bytes_to_upstream, flow.moved.bytes_to_client);
        match &flow.state {
            State::Undecided(waiting) => received += waiting.bytes() as u64,
            State::Passing { is_answered: false } => {}
            State::Passing { is_answered: true } | State::Refused { .. } => return (false, None),
        }
        flow.since_ms = now_ms;
        let answer_bytes = answer.len();
        let refused = State::Refused { answer, received, sent };
        let (before, network) = (std::mem::replace(&mut flow.state, refused), flow.peer.network());
        let is_answered = flow.take_answer(0);
        if let State::Undecided(waiting) = before {
            self.waiting_bytes -= waiting.held_bytes();
        }
        self.waiting_bytes += answer_bytes;
        self.all_unanswered.remove(network);
        self.unanswered.remove(&mut self.flows, key.index);
        self.refused.push(&mut self.flows, key.index);
        self.count();
        let is_full = self.refused.len() > REFUSED_MAX;
        let first = self.refused.first().filter(|_| is_full);
        (is_answered, first.and_then(|index| self.flows.key_at(index)))
    }

    /// Counts datagrams of the client that were passed on.
    pub fn note_client(&mut self, key: Key, bytes: usize, datagrams: usize, now_ms: u64) {
        let Some(flow) = self.flows.slot(key) else { return };
        flow.moved.bytes_to_upstream += bytes as u64;
        flow.moved.datagrams_to_upstream += datagrams as u64;
        if flow.is_answered() {
            flow.since_ms = now_ms;
            self.answered.renew(&mut self.flows, key.index);
        }
    }

    /// Takes a datagram out of those that wait: it must not be passed on.
    pub fn drop_held(&mut self, key: Key, nth: usize) {
        if let Some(QuicFlow { state: State::Undecided(waiting), .. }) = self.flows.slot(key) {
            let before = waiting.held_bytes();
            waiting.remove(nth);
            self.waiting_bytes -= before - waiting.held_bytes();
            self.count();
        }
    }

    /// Lets the datagrams of an unanswered flow wait again: its server has asked its client to
    /// begin anew, so that it is decided anew. Returns whether it is unanswered.
    pub fn reopen(&mut self, key: Key, now_ms: u64) -> bool {
        let Some(flow) = self.flows.slot(key) else { return false };
        if !matches!(flow.state, State::Passing { is_answered: false }) {
            return false;
        }
        flow.state = State::Undecided(WaitingDatagrams::default());
        flow.since_ms = now_ms;
        self.unanswered.renew(&mut self.flows, key.index);
        true
    }

    /// Counts datagrams of the server that were passed on and are no answer: they ask the client to
    /// begin anew.
    pub fn note_unanswering(&mut self, key: Key, bytes: usize, datagrams: usize) {
        let Some(flow) = self.flows.slot(key) else { return };
        flow.moved.bytes_to_client += bytes as u64;
        flow.moved.datagrams_to_client += datagrams as u64;
    }

    /// Counts datagrams of the server that were passed on. The server has answered.
    pub fn note_server(&mut self, key: Key, bytes: usize, datagrams: usize, now_ms: u64) {
        self.note_unanswering(key, bytes, datagrams);
        let Some(flow) = self.flows.slot(key) else { return };
        flow.since_ms = now_ms;
        let network = flow.peer.network();
        let before = match &mut flow.state {
            State::Passing { is_answered } => std::mem::replace(is_answered, true),
            State::Undecided(_) | State::Refused { .. } => return,
        };
        if before {
            return self.answered.renew(&mut self.flows, key.index);
        }
        self.unanswered.remove(&mut self.flows, key.index);
        self.answered.push(&mut self.flows, key.index);
        self.all_unanswered.remove(network);
    }

    /// Notes the source id of a server's long header. Its client addresses its packets to it from
    /// then on. Another flow that has the same one stays the one that is found by it.
    pub fn note_server_id(&mut self, key: Key, scid: &[u8]) {
        let Some(id) = FlowId::new(scid) else { return };
        let is_known = self.flows.slot(key).is_none_or(|flow| flow.server_id == Some(id));
        if is_known {
            return;
        }
        self.forget_id(key.index);
        if let Some(flow) = self.flows.slot(key) {
            flow.server_id = Some(id);
        }
        if scid.len() >= FOLLOWED_ID_BYTES_MIN && self.index_of_id(&id).is_none() {
            self.index_id(key.index, &id);
        }
    }

    pub(crate) fn index_id(&mut self, index: u32, id: &FlowId) {
        let (flows, hasher) = (&self.flows, &self.hasher);
        self.by_id.insert_unique(hasher.hash_one(id), index, |index| {
            let id = flows.get(*index).and_then(|flow| flow.server_id);
            id.map_or(0, |id| hasher.hash_one(id))
        });
        self.lengths[id.as_bytes().len()] += 1;
        self.count();
    }

    /// Lets nobody find a flow by its server's id any more. Returns whether somebody could.
    fn forget_id(&mut self, index: u32) -> bool {
        let Some(id) = self.flows.get(index).and_then(|flow| flow.server_id) else { return false };
        let entry = self.by_id.find_entry(self.hasher.hash_one(id), |found| *found == index);
        let Ok(entry) = entry else { return false };
        entry.remove();
        self.lengths[id.as_bytes().len()] -= 1;
        true
    }

    /// Adds an address of a flow whose client has moved. Returns its key, and if it has too many
    /// addresses, the key of the least recently used one.
    ///
    /// # Errors
    /// Why it cannot have that address.
    pub fn add_address(
        &mut self,
        of: Key,
        peer: Peer,
        now_ms: u64,
        payload: P,
    ) -> Result<(Key, Option<Key>), Full> {
        self.check_network(&peer)?;
        self.check_address(&peer)?;
        let Some(flow) = self.flows.slot(of) else { return Err(Full::BadId) };
        let (first_id, server_id) = (flow.first_id, flow.server_id);
        let was_found = self.forget_id(of.index);
        let newest = self.newest_address(of.index);
        // It begins as answered: its server is known to be there, and has three seconds at least.
        let key = self.insert(QuicFlow {
            peer,
            state: State::Passing { is_answered: true },
            moved: FlowTraffic::default(),
            payload,
            first_id,
            server_id,
            is_proven: true,
            since_ms: now_ms,
            links: Links::default(),
            older: newest,
            newer: NONE,
        });
        if let Some(flow) = self.flows.at(newest) {
            flow.newer = key.index;
        }
        if let Some(id) = server_id.filter(|_| was_found) {
            self.index_id(key.index, &id);
        }
        Ok((key, self.least_used_address(key)))
    }

    /// The slot of a flow's newest address.
    fn newest_address(&self, mut index: u32) -> u32 {
        while let Some(flow) = self.flows.get(index)
            && flow.newer != NONE
        {
            index = flow.newer;
        }
        index
    }

    fn least_used_address(&self, newest: Key) -> Option<Key> {
        let mut at = self.flows.get(newest.index)?.older;
        let (mut count, mut least) = (1, None::<(u64, u32)>);
        while let Some(flow) = self.flows.get(at) {
            count += 1;
            if least.is_none_or(|(since, _)| flow.since_ms <= since) {
                least = Some((flow.since_ms, at));
            }
            at = flow.older;
        }
        let (_, index) = least.filter(|_| count > ADDRESSES_MAX)?;
        self.flows.key_at(index)
    }

    /// Removes a flow. If it goes on at another address, that one counts what it has moved, and its
    /// key is returned, too.
    pub fn remove(&mut self, key: Key) -> Option<(QuicFlow<P>, Option<Key>)> {
        self.flows.slot(key)?;
        let index = key.index;
        let was_found = self.forget_id(index);
        let flow = self.flows.get(index)?;
        let (peer, older, newer) = (flow.peer, flow.older, flow.newer);
        let entry = self.by_address.find_entry(self.hasher.hash_one(peer), |it| *it == index);
        if let Ok(entry) = entry {
            entry.remove();
        }
        match &flow.state {
            State::Undecided(waiting) => self.waiting_bytes -= waiting.held_bytes(),
            State::Refused { answer, .. } => self.waiting_bytes -= answer.len(),
            State::Passing { .. } => {}
        }
        match &flow.state {
            State::Refused { .. } => self.refused.remove(&mut self.flows, index),
            State::Passing { is_answered: true } => self.answered.remove(&mut self.flows, index),
            State::Undecided(_) | State::Passing { is_answered: false } => {
                self.unanswered.remove(&mut self.flows, index);
                self.all_unanswered.remove(peer.network());
            }
        }
        let flow = self.flows.remove(key)?;
        if let Some(older) = self.flows.at(older) {
            older.newer = newer;
        }
        if let Some(newer) = self.flows.at(newer) {
            newer.older = older;
        }
        let goes_on = if self.flows.get(newer).is_some() { newer } else { older };
        if let Some(other) = self.flows.at(goes_on) {
            other.moved.add(&flow.moved);
        }
        if was_found && let Some(id) = self.flows.get(goes_on).and_then(|other| other.server_id) {
            self.index_id(goes_on, &id);
        }
        self.count();
        Some((flow, self.flows.key_at(goes_on)))
    }

    /// The next flow whose time is over. The owner removes it.
    pub fn next_due(&mut self, now_ms: u64, idle_ms: u64) -> Option<(Key, Due)> {
        for (list, wait_ms, due) in
            [(self.refused, REFUSED_MS, Due::Forgotten), (self.answered, idle_ms, Due::Idle)]
        {
            if let Some(index) = list.first()
                && let Some(flow) = self.flows.get(index)
                && now_ms.saturating_sub(flow.since_ms) >= wait_ms
            {
                return self.flows.key_at(index).map(|key| (key, due));
            }
        }
        for _ in 0..self.unanswered.len() {
            let index = self.unanswered.first()?;
            let flow = self.flows.at(index)?;
            if now_ms.saturating_sub(flow.since_ms) < ANSWER_MS {
                return None;
            }
            let waits_long = now_ms.saturating_sub(flow.since_ms) >= UNDECIDED_MS;
            if waits_long || !matches!(flow.state, State::Undecided(_)) {
                return self.flows.key_at(index).map(|key| (key, Due::Unanswered));
            }
            // Who decides it has a deadline of his own.
            self.unanswered.renew(&mut self.flows, index);
        }
        None
    }

    /// The time of the last use of the longest idle flow, in milliseconds.
    pub fn idle_since_ms(&self) -> Option<u64> {
        Some(self.flows.get(self.answered.first()?)?.since_ms)
    }

    /// The flow that ends if there is no room for another: the oldest without an answer of its
    /// server, or else the longest idle.
    pub fn next_to_shed(&self) -> Option<Key> {
        let index = self.unanswered.first().or(self.answered.first())?;
        self.flows.key_at(index)
    }

    fn count(&mut self) {
        /// A slot and its control byte (hashbrown).
        const ENTRY_BYTES: usize = size_of::<u32>() + 1;
        let entries = self.by_address.capacity() + self.by_id.capacity();
        self.counted.set(self.flows.held_bytes() + entries * ENTRY_BYTES + self.waiting_bytes);
    }
}

/// Its flows may end with their worker, while the others go on.
impl<P> Drop for Flows<P> {
    fn drop(&mut self) {
        let mut at = self.unanswered.first();
        while let Some(flow) = at.and_then(|index| self.flows.get(index)) {
            self.all_unanswered.remove(flow.peer.network());
            at = flow.links.behind();
        }
    }
}

impl<P> HasLinks for QuicFlow<P> {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl<P> QuicFlow<P> {
    /// True if its server has sent something.
    pub fn is_answered(&self) -> bool {
        matches!(self.state, State::Passing { is_answered: true })
    }

    /// Notes the id in a header of its client.
    pub fn note_named(&mut self, header: &Header<'_>) {
        self.is_proven |= self.server_id.is_some_and(|id| header.names(&id));
    }

    /// The server's id, once it is known.
    pub const fn server_id(&self) -> Option<FlowId> {
        self.server_id
    }

    /// The time for which it was not used.
    pub fn idle_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.since_ms)
    }

    /// Counts a datagram that came to a refused flow. Returns whether its answer may be sent.
    pub fn take_answer(&mut self, received_bytes: usize) -> bool {
        let State::Refused { answer, received, sent } = &mut self.state else { return false };
        *received += received_bytes as u64;
        let sum = *sent + answer.len() as u64;
        let may_send = !answer.is_empty() && sum <= AMPLIFICATION * *received;
        if may_send {
            *sent = sum;
        }
        may_send
    }
}

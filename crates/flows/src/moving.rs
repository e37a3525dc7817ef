//! A flow leaves its table whole, with all addresses of its client, and is placed in another one.

use std::hash::BuildHasher;

use eyelet_memory::slab::Key;

use crate::id::{FOLLOWED_ID_BYTES_MIN, FlowId};
use crate::order::{Links, NONE};
use crate::peer::Peer;
use crate::table::{ADDRESSES_MAX, FlowTraffic, Flows, Full, QuicFlow, State};

/// A flow that passes, outside of any table.
#[derive(Debug)]
pub struct MovingFlow<P> {
    /// The id that its client has addressed first.
    pub first_id: FlowId,
    /// The server's id, once it is known.
    pub server_id: Option<FlowId>,
    /// Moved by all addresses.
    pub moved: FlowTraffic,
    /// Its client's addresses, the oldest first: one at least, and [`ADDRESSES_MAX`] at most.
    pub addresses: Vec<FlowAddress<P>>,
}

/// One address of a [`MovingFlow`].
#[derive(Debug)]
pub struct FlowAddress<P> {
    pub peer: Peer,
    /// The server has sent something.
    pub is_answered: bool,
    /// The time of its last use, in milliseconds.
    pub since_ms: u64,
    pub payload: P,
}

impl<P> Flows<P> {
    /// Takes a flow out with all its addresses, unless its datagrams wait or are refused.
    pub fn take(&mut self, key: Key) -> Option<MovingFlow<P>> {
        let flow = self.flow(key).filter(|flow| matches!(flow.state, State::Passing { .. }))?;
        let (first_id, server_id) = (flow.first_id, flow.server_id);
        let mut moved = FlowTraffic::default();
        let mut addresses = Vec::new();
        for key in self.addresses(key) {
            let Some((flow, _)) = self.remove(key) else { continue };
            let is_answered = flow.is_answered();
            // The next address has counted what this one has moved.
            moved = flow.moved;
            let QuicFlow { peer, since_ms, payload, .. } = flow;
            addresses.push(FlowAddress { peer, is_answered, since_ms, payload });
        }
        Some(MovingFlow { first_id, server_id, moved, addresses })
    }

    /// The keys of a flow's addresses, the oldest first.
    pub fn addresses(&self, key: Key) -> Vec<Key> {
        let mut oldest = key.index;
        while let Some(flow) = self.flows.get(oldest)
            && flow.older != NONE
        {
            oldest = flow.older;
        }
        let at = |index: &u32| self.flows.get(*index).map(|flow| flow.newer);
        let all = std::iter::successors(Some(oldest), at);
        all.filter_map(|index| self.flows.key_at(index)).collect()
    }

    /// Places a flow that was taken out of another table. Returns the keys of its addresses.
    /// [`Flows::restore_order`] is to follow.
    ///
    /// # Errors
    /// The flow, and why there is no room for it.
    pub fn restore(&mut self, flow: MovingFlow<P>) -> Result<Vec<Key>, (Full, MovingFlow<P>)> {
        if let Err(full) = self.check_moving(&flow) {
            return Err((full, flow));
        }
        let MovingFlow { first_id, server_id, mut moved, addresses } = flow;
        let mut keys: Vec<Key> = Vec::with_capacity(addresses.len());
        for FlowAddress { peer, is_answered, since_ms, payload } in addresses {
            // Checked above. Another worker may have taken the last place since.
            let is_answered = is_answered || !self.all_unanswered.add(peer.network());
            let older = keys.last().map_or(NONE, |older| older.index);
            let key = self.insert(QuicFlow {
                peer,
                state: State::Passing { is_answered },
                // Counted once.
                moved: std::mem::take(&mut moved),
                payload,
                first_id,
                server_id,
                is_proven: is_answered,
                since_ms,
                links: Links::default(),
                older,
                newer: NONE,
            });
            if let Some(older) = self.flows.at(older) {
                older.newer = key.index;
            }
            keys.push(key);
        }
        let followed = server_id.filter(|id| id.as_bytes().len() >= FOLLOWED_ID_BYTES_MIN);
        if let (Some(id), Some(newest)) = (followed, keys.last())
            && self.index_of_id(&id).is_none()
        {
            self.index_id(newest.index, &id);
        }
        Ok(keys)
    }

    /// Checks that there is room for a flow of another table.
    ///
    /// # Errors
    /// Why there is none.
    pub fn check_moving<Q>(&self, flow: &MovingFlow<Q>) -> Result<(), Full> {
        let all_answered = flow.addresses.iter().all(|address| address.is_answered);
        // A client is followed to another address once its server has answered.
        if !(1..=if all_answered { ADDRESSES_MAX } else { 1 }).contains(&flow.addresses.len()) {
            return Err(Full::Address);
        }
        for (nth, FlowAddress { peer, .. }) in flow.addresses.iter().enumerate() {
            self.check_address(peer)?;
            if !all_answered {
                self.check_network(peer)?;
            }
            let is_known = |index: &u32| {
                self.flows.get(*index).is_some_and(|known| {
                    known.peer == *peer
                        && (known.first_id == flow.first_id
                            || known.server_id.is_some() && known.server_id == flow.server_id)
                })
            };
            let mut at_address = self.by_address.iter_hash(self.hasher.hash_one(peer));
            let is_repeated = flow.addresses.iter().take(nth).any(|other| other.peer == *peer);
            if is_repeated || at_address.any(is_known) {
                return Err(Full::Known);
            }
        }
        match !all_answered && self.all_unanswered.is_full() {
            true => Err(Full::Unanswered),
            false => Ok(()),
        }
    }

    /// Has flows end in the order of their times again, after some were restored.
    pub fn restore_order(&mut self) {
        self.answered.sort(&mut self.flows, |flow| flow.since_ms);
        self.unanswered.sort(&mut self.flows, |flow| flow.since_ms);
    }
}

//! A client changes to an id that its server has issued in secret: some do so right after the
//! handshake, others after some thousand packets. It is learned from the client's next packet at a
//! known address. Where the client has several flows there, one is guessed. A client that changes
//! never goes back (RFC 9000 section 5.1.2), so a flow whose last id comes again was the wrong one.

use std::hash::BuildHasher;

use eyelet_memory::slab::Key;

use crate::id::{Doubt, FOLLOWED_ID_BYTES_MIN, FlowId, Header};
use crate::peer::Peer;
use crate::table::{Flows, QuicFlow, State};

impl<P> QuicFlow<P> {
    /// The server's id that its client uses.
    pub(crate) fn present_id(&self) -> Option<FlowId> {
        self.later_id.or(self.server_id)
    }

    /// True if a header has an id of its server, a present or a former one.
    pub(crate) fn is_named(&self, header: &Header<'_>) -> bool {
        let ids = [self.later_id, self.server_id, self.doubt.as_ref().map(|doubt| doubt.previous)];
        ids.iter().flatten().any(|id| header.names(id))
    }

    /// The id in a header, if it may be one that its server has issued later: servers give all
    /// their ids one length.
    fn later_id_in(&self, header: &Header<'_>) -> Option<FlowId> {
        let Header::Short(rest) = header else { return None };
        let has_issued =
            self.named_ms > 0 && matches!(self.state, State::Passing { is_answered: true });
        let len = self.server_id.filter(|_| has_issued)?.as_bytes().len();
        rest.get(..len).filter(|_| len >= FOLLOWED_ID_BYTES_MIN).and_then(FlowId::new)
    }
}

impl<P> Flows<P> {
    /// Notes the id in a header of the client of this flow, which [`Flows::find`] has found.
    pub fn note_named(&mut self, key: Key, header: &Header<'_>, now_ms: u64) {
        let Some(flow) = self.flows.slot(key) else { return };
        if flow.present_id().is_some_and(|id| header.names(&id)) {
            flow.named_ms = now_ms;
            return;
        }
        match &flow.doubt {
            Some(doubt) if header.names(&doubt.previous) => {
                let Some(doubt) = flow.doubt.take() else { return };
                flow.named_ms = now_ms;
                self.give_on(key, *doubt);
            }
            _ if header.names(&flow.first_id) || flow.is_named(header) => {}
            _ => {
                let Some((id, previous)) = flow.later_id_in(header).zip(flow.present_id()) else {
                    return;
                };
                flow.named_ms = now_ms;
                self.change_id(key.index, id);
                if self.others_at_address(key).next().is_some()
                    && let Some(flow) = self.flows.slot(key)
                {
                    flow.doubt = Some(Box::new(Doubt { previous, since_ms: now_ms }));
                }
            }
        }
    }

    /// True if a flow may have come to an address. One that has flows already is a socket's that
    /// has not changed hosts: the id is rather a new one of theirs, and has the same bytes.
    pub(crate) fn may_come_to(&self, key: Key, peer: &Peer, has_flows: bool) -> bool {
        let is_its = |flow: &QuicFlow<P>| flow.peer.client().ip() == peer.client().ip();
        !has_flows || self.flows.get(key.index).is_some_and(is_its)
    }

    /// Gives an id on to the next flow of the same client that may have it, because the one that
    /// was guessed has its former id still.
    fn give_on(&mut self, key: Key, Doubt { previous, since_ms }: Doubt) {
        let id = self.flows.get(key.index).and_then(QuicFlow::present_id);
        self.change_id(key.index, previous);
        let may_have = |flow: &&QuicFlow<P>| flow.named_ms > 0 && flow.named_ms <= since_ms;
        let len = previous.as_bytes().len();
        let others = self.others_at_address(key).filter_map(|index| {
            let flow = self.flows.get(index).filter(may_have)?;
            let present = flow.present_id().filter(|id| id.as_bytes().len() == len)?;
            Some((flow.named_ms, index, present))
        });
        let next = others.max_by_key(|(named_ms, ..)| *named_ms);
        let (Some((_, index, previous)), Some(id)) = (next, id) else { return };
        self.change_id(index, id);
        if let Some(flow) = self.flows.at(index) {
            flow.doubt = Some(Box::new(Doubt { previous, since_ms }));
        }
    }

    fn others_at_address(&self, key: Key) -> impl Iterator<Item = u32> {
        let peer = self.flows.get(key.index).map(|flow| flow.peer);
        let hash = peer.map_or(0, |peer| self.hasher.hash_one(peer));
        self.by_address.iter_hash(hash).copied().filter(move |index| {
            let other = self.flows.get(*index).filter(|_| *index != key.index);
            let is_answered =
                |flow: &QuicFlow<P>| matches!(flow.state, State::Passing { is_answered: true });
            other.is_some_and(|flow| Some(flow.peer) == peer && is_answered(flow))
        })
    }

    /// Has a flow be found by another id of its server.
    fn change_id(&mut self, index: u32, id: FlowId) {
        self.forget_id(index);
        if let Some(flow) = self.flows.at(index) {
            (flow.later_id, flow.doubt) = (Some(id), None);
        }
        if self.index_of_id(&id).is_none() {
            self.index_id(index, &id);
        }
    }
}

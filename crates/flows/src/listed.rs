//! The flows of a table one by one, as a list shows them.

use eyelet_memory::slab::Key;

use crate::table::{FlowTraffic, Flows};

impl<P> Flows<P> {
    /// The number of slots. A flow keeps its own for life.
    pub fn slots(&self) -> u32 {
        self.flows.slots()
    }

    /// The key of the flow in a slot.
    pub fn key_at(&self, index: u32) -> Option<Key> {
        self.flows.key_at(index)
    }

    /// The sum of what all addresses of a flow have moved.
    pub fn moved(&self, key: Key) -> FlowTraffic {
        let mut sum = FlowTraffic::default();
        for key in self.addresses(key) {
            if let Some(flow) = self.flows.get(key.index) {
                sum.add(&flow.moved);
            }
        }
        sum
    }
}

//! Flows in the order in which they end: lists whose links lie in the flows.

use eyelet_memory::slab::Slab;

/// No flow.
pub(crate) const NONE: u32 = u32::MAX;

/// A value that can be in a list.
pub(crate) trait HasLinks {
    fn links(&mut self) -> &mut Links;
}

/// The links of a flow in its list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    before: u32,
    behind: u32,
}

impl Default for Links {
    fn default() -> Self {
        Self { before: NONE, behind: NONE }
    }
}

impl Links {
    /// The next flow in its list.
    pub fn behind(&self) -> Option<u32> {
        (self.behind != NONE).then_some(self.behind)
    }
}

/// A list of flows: the first one ends first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    first: u32,
    last: u32,
    len: usize,
}

impl Default for List {
    fn default() -> Self {
        Self { first: NONE, last: NONE, len: 0 }
    }
}

impl List {
    /// The flow that ends first.
    pub fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends a flow that is in no list.
    pub fn push<T: HasLinks>(&mut self, flows: &mut Slab<T>, index: u32) {
        if let Some(flow) = flows.at(index) {
            *flow.links() = Links { before: self.last, behind: NONE };
        }
        match flows.at(self.last) {
            Some(last) => last.links().behind = index,
            None => self.first = index,
        }
        self.last = index;
        self.len += 1;
    }

    /// Removes a flow that is in this list.
    pub fn remove<T: HasLinks>(&mut self, flows: &mut Slab<T>, index: u32) {
        let Some(flow) = flows.at(index) else { return };
        let Links { before, behind } = std::mem::take(flow.links());
        match flows.at(before) {
            Some(before) => before.links().behind = behind,
            None => self.first = behind,
        }
        match flows.at(behind) {
            Some(behind) => behind.links().before = before,
            None => self.last = before,
        }
        self.len -= 1;
    }

    /// Sorts the list by the times of its flows.
    pub fn sort<T: HasLinks>(&mut self, flows: &mut Slab<T>, time: impl Fn(&T) -> u64) {
        let mut order = Vec::with_capacity(self.len);
        let mut at = self.first;
        while let Some(flow) = flows.at(at) {
            order.push((time(flow), at));
            at = flow.links().behind;
        }
        order.sort_by_key(|(time, _)| *time);
        *self = Self::default();
        for (_, index) in order {
            self.push(flows, index);
        }
    }

    /// Makes a flow of this list the last one.
    pub fn renew<T: HasLinks>(&mut self, flows: &mut Slab<T>, index: u32) {
        if self.last != index {
            self.remove(flows, index);
            self.push(flows, index);
        }
    }
}

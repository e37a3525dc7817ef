//! Spare values of a worker for its next messages, which are not made again for each of them. Those
//! that no message has needed for a tick go: they are of an earlier burst.

/// Spare values. The one that came last is used first.
pub struct Spares<T> {
    kept: Vec<T>,
    /// The fewest since [`Spares::take_unused`].
    fewest: usize,
}

impl<T> Default for Spares<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Spares<T> {
    /// A set without spares.
    pub const fn new() -> Self {
        Self { kept: Vec::new(), fewest: 0 }
    }

    /// The number of spares.
    pub fn count(&self) -> usize {
        self.kept.len()
    }

    /// Keeps a value.
    pub fn push(&mut self, spare: T) {
        self.kept.push(spare);
    }

    /// Takes a value.
    pub fn pop(&mut self) -> Option<T> {
        let spare = self.kept.pop();
        self.fewest = self.fewest.min(self.kept.len());
        spare
    }

    /// Takes those that were not needed since the last call.
    pub fn take_unused(&mut self) -> Vec<T> {
        let unused = self.kept.drain(..self.fewest).collect();
        self.fewest = self.kept.len();
        if self.kept.is_empty() {
            self.kept = Vec::new();
        }
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_needed_for_a_tick_goes() {
        let mut spares = Spares::new();
        (0..3).for_each(|spare| spares.push(spare));
        assert!(spares.take_unused().is_empty(), "they came since the last tick");
        assert_eq!(spares.pop(), Some(2));
        spares.push(2);
        assert_eq!((spares.take_unused(), spares.count()), (vec![0, 1], 1));
        assert_eq!((spares.take_unused(), spares.count()), (vec![2], 0));
    }
}

//! The time that an edge is meant to live, and what its start gives back to the system for that.

/// The time that an edge is meant to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// For months: what only the start needed is given back.
    Months,
    /// The process lives until a command has ended, which waits for its start. Giving back would
    /// take longer than the rest of the start: it needs threads, and pages that the next step needs
    /// again.
    Command,
}

impl Life {
    /// Gives memory back to the system.
    pub fn trim(self) {
        if self == Self::Months {
            eyelet_sys::memory::trim();
        }
    }

    /// Gives pages of the program back that only the start needed.
    pub fn forget_code(self) {
        if self == Self::Months {
            eyelet_sys::memory::forget_code();
        }
    }
}

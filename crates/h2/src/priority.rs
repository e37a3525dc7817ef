//! Priorities (RFC 9218): what the peer needs first, and what may be sent in turns.

/// The urgency of a response. What a field leaves out is urgency 3, not incremental.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// From 0, the most urgent, to 7.
    pub urgency: u8,
    /// True if parts of it are useful, so that it takes turns with others.
    pub incremental: bool,
}

/// The last urgency (RFC 9218 section 4.1).
pub(crate) const URGENCY_MAX: u8 = 7;

impl Default for Priority {
    fn default() -> Self {
        Self { urgency: 3, incremental: false }
    }
}

impl Priority {
    /// The priority of a request that says nothing: it takes turns with others, as clients expect
    /// that know nothing of RFC 9218. Otherwise a long response would stop all that were asked for
    /// later.
    pub const UNSAID: Self = Self { urgency: 3, incremental: true };

    /// Follows a `priority` field's value: a dictionary (RFC 9651 3.2). Members that are unknown or
    /// have a wrong value are ignored (RFC 9218 section 4).
    pub fn read(value: &[u8]) -> Self {
        let mut priority = Self::default();
        for member in value.split(|byte| *byte == b',') {
            // What follows a semicolon are parameters, and none is defined.
            let member = member.split(|byte| *byte == b';').next().unwrap_or_default();
            match member.trim_ascii() {
                [b'u', b'=', urgency] if urgency.wrapping_sub(b'0') <= URGENCY_MAX => {
                    priority.urgency = urgency - b'0';
                }
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        for (value, urgency, incremental) in [
            ("", 3, false),
            ("u=0", 0, false),
            ("u=7, i", 7, true),
            ("i;x=1,u=1;y", 1, true),
            ("i=?1, i=?0", 3, false),
            ("u=8, i=1, a, u=-1", 3, false),
            ("u=5,,=,;", 5, false),
            ("u=12", 3, false),
        ] {
            let wanted = Priority { urgency, incremental };
            assert_eq!(Priority::read(value.as_bytes()), wanted, "{value}");
        }
    }
}

//! The authorities of a request of an originate rule, while it rests.

/// The authorities of a translation whose request rests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestingOrigin {
    /// That of the request.
    pub client: Box<str>,
    /// That of the upstream.
    pub upstream: Box<str>,
}

/// Most bytes of such an authority: a name, a port and the colon between them.
pub const RESTING_ORIGIN_BYTES_MAX: usize = 253 + 6;

impl RestingOrigin {
    /// True if an authority is short enough to rest.
    pub fn takes(authority: &str) -> bool {
        authority.len() <= RESTING_ORIGIN_BYTES_MAX
    }
}

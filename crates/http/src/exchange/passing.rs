//! An exchange whose response passes, and how far it is.

use std::time::Instant;

use super::transfer::{Download, Upload};
use eyelet_upstream::Upstream;

/// An exchange whose response is passed on.
pub struct Passing<'a> {
    /// The upstream.
    pub upstream: Upstream,
    /// The rest of the request.
    pub upload: Upload<'a>,
    /// The response's body.
    pub download: Download<'a>,
}

/// Progress of a response.
#[derive(PartialEq, Eq)]
pub enum BodyProgress {
    /// The rest no longer needs the upstream.
    Queued,
    /// The client's socket has taken all of it.
    Written,
    /// Nothing has moved since then, and nothing is on its way: the exchange rests.
    Rests(Instant),
}

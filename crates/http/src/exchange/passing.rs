//! A request at its upstream with its response, and how far the response is.

use std::time::Instant;

use super::find::FoundUpstream;
use super::transfer::{Download, Upload};

/// A request that is sent to an upstream, and its response. It stays where it is until it ends or
/// rests, because moving it would copy it.
pub struct Passing<'a> {
    /// The upstream.
    pub found: FoundUpstream,
    /// The request's head and body.
    pub upload: Upload<'a>,
    /// The response's body. It has begun when its head is here.
    pub download: Download<'a>,
    /// True if the request's body is coded for this upstream.
    pub is_coded: bool,
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

//! A request at its upstream with its response, and how far the response is.

use std::time::Instant;

use eyelet_resting::timeout::RestTimeout;
use eyelet_upstream::Upstream;

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

impl Passing<'_> {
    /// True if all that has come of both bodies is passed on, and more may come.
    pub fn is_at_rest(&self) -> bool {
        let (may_rest, received) = self.received();
        may_rest && self.upload.rest().is_some() && self.download.may_rest(received)
    }

    /// The timeout of its response, once it is at rest.
    pub fn timeout(&self) -> RestTimeout {
        self.download.timeout(self.received().1)
    }

    /// True if the upstream may rest, and the bytes that were read ahead of the response's decoder.
    fn received(&self) -> (bool, &[u8]) {
        match &self.found.upstream {
            Upstream::Http1(one) => (one.may_rest(false), &one.received),
            Upstream::Http2(two) => (two.may_rest(), &[]),
        }
    }
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

//! Decides if a request that got no response is sent again. It is if a repetition does no harm (RFC
//! 9110 section 9.2.2), or if the upstream has certainly not processed it (RFC 9113 section 8.7).

use eyelet_balance::group::Tried;

use super::find::{Chosen, FoundUpstream};
use super::transfer::TakenBody;
use eyelet_downstream::client::failure::Failure;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_upstream::Upstream;
use eyelet_upstream::request::{NoAnswer, UpstreamRequest};

/// The number of times that a request is sent, if sending it again does no harm.
const TRIES_MAX: u32 = 3;

/// The tries of a request.
pub struct Tries<'a> {
    served: &'a ServedConnection,
    count: u32,
    /// The upstreams of its rule that gave no response.
    pub tried: Tried,
    /// The body as far as the last try has taken it.
    pub body: TakenBody,
    is_harmless_twice: bool,
    /// The last try may have ended the upstream.
    was_dead: bool,
}

impl<'a> Tries<'a> {
    /// The first try is next. `is_last`: it follows one that may have ended its upstream.
    pub fn new(served: &'a ServedConnection, request: &UpstreamRequest<'_>, is_last: bool) -> Self {
        Self {
            served,
            count: 1,
            tried: Tried::default(),
            body: TakenBody::default(),
            is_harmless_twice: request.again && !is_last,
            was_dead: is_last,
        }
    }

    /// True if the next try is the first.
    pub fn is_first(&self) -> bool {
        self.count == 1
    }

    /// True if the request may be held while its upstream accepts no connection.
    pub fn may_hold(&self) -> bool {
        !self.was_dead
    }

    /// The body for the next try, by this upstream. One by HTTP/1.1 never says that it has not
    /// processed a request.
    pub fn take_body(&mut self, upstream: &Upstream) -> TakenBody {
        let mut body = std::mem::take(&mut self.body);
        body.begin(self.count < TRIES_MAX && matches!(upstream, Upstream::Http2(_)));
        body
    }

    /// True if the request is sent again where this upstream closes without a response.
    pub fn may_go_on(&self, found: &FoundUpstream, request: &UpstreamRequest<'_>) -> bool {
        let left = |at: &Chosen| self.tried.count() + 1 < at.group.members.len();
        let has_other = found.chosen.as_ref().is_some_and(left);
        let is_wanted = has_other || request.again && found.upstream.is_reused();
        self.is_harmless_twice && is_wanted
    }

    /// Prepares the next try.
    ///
    /// # Errors
    /// The request is not sent again.
    pub fn go_on(
        &mut self,
        why: NoAnswer,
        found: &FoundUpstream,
        request: &mut UpstreamRequest<'_>,
    ) -> Result<(), Failure> {
        let is_whole = self.body.is_whole();
        self.was_dead = matches!(why, NoAnswer::Dead | NoAnswer::Alert(_));
        let is_harmless = match why {
            // It may have closed it before the request came.
            NoAnswer::Dead | NoAnswer::Alert(_) if found.upstream.is_reused() => request.again,
            NoAnswer::Dead | NoAnswer::Alert(_) => {
                let at = found.chosen.as_ref();
                let has_other =
                    at.is_some_and(|at| at.note_dead(self.served, found.index, &mut self.tried));
                let is_silent = matches!(why, NoAnswer::Dead) && found.upstream.is_silent();
                let is_same = !has_other && is_silent && request.again;
                self.tried = if is_same { Tried::default() } else { self.tried };
                self.is_harmless_twice && (has_other || is_same)
            }
            NoAnswer::Unread | NoAnswer::Http1Wanted => is_whole,
            NoAnswer::Broken(_) | NoAnswer::Fault(_) | NoAnswer::NoRoom => false,
        };
        if !is_harmless || self.count >= TRIES_MAX {
            // An upstream that refuses each try would refuse the client's, too.
            let is_last = self.count >= TRIES_MAX;
            let is_lost = matches!(why, NoAnswer::Unread) && !is_whole && !is_last;
            return Err(if is_lost { Failure::Unprocessed } else { why.into() });
        }
        self.count += 1;
        // A try that was not processed has done nothing once.
        request.again &= !self.was_dead;
        request.needs_http1 |= matches!(why, NoAnswer::Http1Wanted);
        Ok(())
    }
}

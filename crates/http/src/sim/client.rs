//! A scripted client, by either version of HTTP.

use fastrand::Rng;

use super::edge::HOSTS;
use super::events::Events;
use super::http1_client::Http1Client;
use super::http2_client::Http2Client;
use super::peer::{Leave, Peer};
use super::plan::Plan;
use super::request::Request;

pub enum Client {
    Http1(Box<Http1Client>),
    Http2(Box<Http2Client>),
}

impl Client {
    pub fn peer(&self) -> &Peer {
        match self {
            Self::Http1(one) => &one.peer,
            Self::Http2(two) => &two.peer,
        }
    }

    fn peer_mut(&mut self) -> &mut Peer {
        match self {
            Self::Http1(one) => &mut one.peer,
            Self::Http2(two) => &mut two.peer,
        }
    }

    /// Says if it can ask now. Only the first upstream speaks HTTP/1.1, as WebSockets do.
    pub fn can_begin(&self, plan: &Plan) -> bool {
        let (can_begin, host) = match self {
            Self::Http1(one) => (one.can_begin(), one.host),
            Self::Http2(two) => (two.can_begin(plan), two.host),
        };
        can_begin && (!plan.switches || host == HOSTS[0])
    }

    pub fn begin(&mut self, request: &mut Request, rng: &mut Rng) {
        match self {
            Self::Http1(one) => one.begin(request, rng),
            Self::Http2(two) => two.begin(request, rng),
        }
    }

    pub fn say(&mut self, max: usize, insists: bool, requests: &mut [Request], rng: &mut Rng) {
        match self {
            Self::Http1(one) => one.say(max, insists, requests, rng),
            Self::Http2(two) => two.say(max, requests, rng),
        }
    }

    pub fn write(&mut self, max: usize) {
        self.peer_mut().write(max);
    }

    pub fn read(&mut self, max: usize, holds: bool, requests: &mut [Request], rng: &mut Rng) {
        match self {
            Self::Http1(one) => one.read(max, holds, requests),
            Self::Http2(two) => {
                two.read(max, holds, requests, rng);
                if rng.bool() {
                    two.release(!holds, rng);
                }
            }
        }
    }

    pub fn ping(&mut self, events: &mut Events, rng: &mut Rng) {
        if let Self::Http2(two) = self
            && !two.peer.is_finished()
        {
            events.note("a PING");
            two.ping(rng);
        }
    }

    /// Breaks off: one stream, or the connection.
    pub fn abort(&mut self, how: u8, requests: &mut [Request], events: &mut Events, rng: &mut Rng) {
        if let Self::Http2(two) = self
            && !how.is_multiple_of(4)
        {
            if two.reset(requests, rng) {
                events.note("a client resets a stream");
            }
            return;
        }
        if self.peer().is_finished() {
            return;
        }
        let how = match how / 4 % 3 {
            0 => Leave::Truncated,
            1 => Leave::Orderly,
            _ => Leave::Gone,
        };
        events.note(match how {
            Leave::Truncated => "a client ends without close_notify",
            Leave::Orderly => "a client ends its stream before it has read all",
            Leave::Gone => "a client closes its socket",
        });
        self.waiting().for_each(|index| requests[index].is_left = true);
        self.peer_mut().leave(how);
    }

    /// Says and reads all that it can.
    pub fn finish(&mut self, requests: &mut [Request], rng: &mut Rng) {
        for _ in 0..4 {
            self.say(usize::MAX, true, requests, rng);
        }
        self.write(usize::MAX);
        self.read(usize::MAX, false, requests, rng);
        if let Self::Http2(two) = self {
            two.release(true, rng);
        }
        self.write(usize::MAX);
        if self.is_idle() && !self.peer().is_finished() {
            if let Self::Http2(two) = self {
                two.shut_down(rng);
            }
            self.peer_mut().leave(Leave::Orderly);
            self.write(usize::MAX);
        }
    }

    /// Closes its socket.
    pub fn close(&mut self) {
        self.peer_mut().leave(Leave::Gone);
    }

    pub fn is_idle(&self) -> bool {
        match self {
            Self::Http1(one) => one.is_idle(),
            Self::Http2(two) => two.is_idle(),
        }
    }

    pub fn is_http2(&self) -> bool {
        matches!(self, Self::Http2(_))
    }

    /// The requests that are not answered in full.
    pub fn waiting(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        match self {
            Self::Http1(one) => Box::new(one.waiting()),
            Self::Http2(two) => Box::new(two.waiting()),
        }
    }
}

//! The exchange of a resting HTTP/2 stream: the remains of its task, and the form in which a parked
//! connection keeps it. crates/handover/README.md describes the form.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eyelet_hold::HoldPlace;
use eyelet_telemetry::upstream::OpenExchange;
use eyelet_upstream::RestingUpstream;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::clock::{self, ms};
use eyelet_resting::link::NAME_BYTES_MAX;

/// The exchange of a stream that rests.
pub struct RestingStream {
    /// Its facts and its step, packed: `RestingExchange`. It may hold secrets.
    pub form: Zeroizing<Vec<u8>>,
    /// The upstream.
    pub upstream: StreamUpstream,
    /// The upstream's address.
    pub name: Arc<str>,
    /// The counters of the exchange until it ends.
    pub open: Vec<OpenExchange>,
    /// Since when nothing has moved.
    pub since: Instant,
    /// For how long that may be so.
    pub idle_max: Duration,
}

/// The upstream of a stream that rests.
pub enum StreamUpstream {
    /// It keeps it itself.
    Kept(RestingUpstream),
    /// Its socket is at its place in the connection's slot, and reports there what comes.
    AtPlace,
    /// None yet: the request is held. `None`: it has to ask anew, because it comes from another
    /// process or its rule is gone.
    Held(Option<HoldPlace>),
}

impl RestingStream {
    /// Milliseconds until it is due.
    pub fn left_ms(&self) -> u64 {
        ms(self.idle_max.saturating_sub(clock::since(self.since)))
    }
}

/// The form in which a parked connection keeps it: its first byte is the version of what follows.
/// The upstream is beside the connection, at the place that the stream has among those of its kind.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct StreamFormV1<'a> {
    /// The upstream's address, if it is not the one of the connection.
    pub name: Option<&'a str>,
    /// Milliseconds in which nothing has moved, when the connection was parked.
    pub idle_ms: u64,
    /// Places where the exchange counts, of those of the connection.
    pub open: u8,
    /// `RestingExchange`.
    pub exchange: &'a [u8],
}

impl<'a> StreamFormV1<'a> {
    /// The form of a stream of a connection with this upstream.
    pub fn of(stream: &'a RestingStream, upstream: Option<&str>) -> Self {
        Self {
            name: Some(&*stream.name).filter(|name| Some(*name) != upstream),
            idle_ms: ms(clock::since(stream.since)),
            open: u8::try_from(stream.open.len()).unwrap_or(u8::MAX),
            exchange: &stream.form,
        }
    }

    /// Bytes that it takes.
    pub fn packed_len(&self) -> usize {
        // The values are plain, so neither step can fail. An empty form would not be read.
        postcard::experimental::serialized_size(self).unwrap_or(0)
    }

    /// The place of `open`, which is one byte, among those of the form.
    pub fn count_place(&self) -> usize {
        let before = (self.name, self.idle_ms);
        postcard::experimental::serialized_size(&before).unwrap_or(0)
    }

    /// Appends the form.
    pub fn pack(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.resize(at + self.packed_len(), 0);
        if postcard::to_slice(self, &mut out[at..]).is_err() {
            out.truncate(at);
        }
    }

    /// Reads the next form, and returns what is behind it. `None`: there is none.
    pub fn unpack(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (form, behind): (Self, _) = postcard::take_from_bytes(bytes).ok()?;
        let is_short = form.name.is_none_or(|name| name.len() <= NAME_BYTES_MAX);
        is_short.then_some((form, behind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever stands before it.
    #[test]
    fn the_count_of_a_stream_is_changed_in_place() {
        for (name, idle_ms) in [(None, 0), (Some("192.0.2.1:80"), 127), (Some("[::]:1"), 1 << 40)] {
            let mut form = StreamFormV1 { name, idle_ms, open: 3, exchange: b"exchange" };
            let mut bytes = Vec::new();
            form.pack(&mut bytes);
            assert_eq!(bytes[form.count_place()], 3);
            bytes[form.count_place()] = 200;
            form.open = 200;
            assert_eq!(StreamFormV1::unpack(&bytes), Some((form, &[][..])));
        }
    }
}

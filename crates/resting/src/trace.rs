//! The trace of an exchange that rests: its ids and times, in the form that another process reads.

use eyelet_trace::span::HOST_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// The versions of HTTP by their places in the form of a trace, which never change.
pub const VERSIONS: [&str; 3] = ["1.0", "1.1", "2"];
/// Most microseconds since 1970, and of a duration: collectors count nanoseconds in 64 bits.
pub const MICROS_MAX: u64 = 1 << 53;

/// The trace of an exchange at rest, in version 1 of its form. Its types never change. Method and
/// path are those of the exchange.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct RestingTrace {
    /// The id of the trace: not 0.
    pub trace_id: [u8; 16],
    /// The id of the span.
    pub span_id: [u8; 8],
    /// True if it is recorded.
    pub is_sampled: bool,
    /// The id of the span that the client named.
    pub parent: Option<[u8; 8]>,
    /// The facts that its spans say, if they are recorded.
    pub recorded: Option<RestingSpans>,
}

/// The facts of a recorded exchange.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct RestingSpans {
    /// Its beginning, in microseconds since 1970.
    pub began_unix_us: u64,
    /// The host that the client named.
    pub host: Option<Box<str>>,
    /// The version of HTTP, by its place in [`VERSIONS`].
    pub version: u8,
    /// The last request to an upstream.
    pub asked: Option<RestingAsked>,
}

/// The last request to an upstream.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct RestingAsked {
    /// The id of the span.
    pub span_id: [u8; 8],
    /// Its time after the beginning, in microseconds.
    pub after_us: u64,
    /// The time of its response after the beginning, in microseconds, and the status.
    pub answered: Option<(u64, u16)>,
    /// The number of requests so far.
    pub times: u32,
}

impl RestingTrace {
    /// True if an exchange can have it.
    pub fn is_possible(&self) -> bool {
        let is_id = self.trace_id != [0; 16] && self.span_id != [0; 8];
        is_id && self.recorded.as_ref().is_none_or(RestingSpans::is_possible)
    }
}

impl RestingSpans {
    fn is_possible(&self) -> bool {
        let is_time = |us: u64| us <= MICROS_MAX;
        let asked = self.asked.as_ref();
        is_time(self.began_unix_us)
            && usize::from(self.version) < VERSIONS.len()
            && self.host.as_ref().is_none_or(|host| host.len() <= HOST_BYTES_MAX)
            && asked.is_none_or(|asked| {
                is_time(asked.after_us) && asked.answered.is_none_or(|(us, _)| is_time(us))
            })
    }
}

//! Requests and streams that are under way, by kind. A connection of HTTP/2 has many.

use std::fmt;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::reason::named::named;

named! {
    /// The kind of a request or a stream that is under way.
    StreamKind {
        /// A response of server-sent events.
        Events = "event_stream",
        /// An exchange of gRPC, at whatever step.
        Grpc = "grpc",
        /// A request that waits for a verdict.
        Held = "held",
        /// Any other response.
        Response = "response",
        /// A connection that has switched to a protocol that is no WebSocket.
        Switched = "switched",
        /// Any other request whose body goes up, and whose response has not begun.
        Upload = "upload",
        /// Any other request that waits for its response.
        Waiting = "waiting",
        /// A WebSocket, by either version of HTTP.
        WebSocket = "websocket",
    }
}

/// The number of kinds.
pub const STREAM_KINDS: usize = StreamKind::ALL.len();

impl StreamKind {
    /// The noun for so many of them in a log.
    fn noun(self, count: u32) -> &'static str {
        let (one, several) = match self {
            Self::Events => ("event stream", "event streams"),
            Self::Grpc => ("gRPC stream", "gRPC streams"),
            Self::Held => ("held request", "held requests"),
            Self::Response => ("response", "responses"),
            Self::Switched => ("switched connection", "switched connections"),
            Self::Upload => ("upload", "uploads"),
            Self::Waiting => ("request that waits", "requests that wait"),
            Self::WebSocket => ("WebSocket", "WebSockets"),
        };
        if count == 1 { one } else { several }
    }
}

/// Numbers of streams, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts([u32; STREAM_KINDS]);

impl StreamCounts {
    pub fn one(kind: StreamKind) -> Self {
        let mut counts = Self::default();
        counts.add(kind, 1);
        counts
    }

    /// Adds so many of a kind.
    pub fn add(&mut self, kind: StreamKind, count: u32) {
        let own = &mut self.0[kind as usize];
        *own = own.saturating_add(count);
    }

    /// Adds all of `other`.
    pub fn add_all(&mut self, other: &Self) {
        other.iter().for_each(|(kind, count)| self.add(kind, count));
    }

    /// The number of this kind.
    pub fn of(&self, kind: StreamKind) -> u32 {
        self.0[kind as usize]
    }

    /// The kinds of which there is any, and their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (StreamKind, u32)> {
        let all = StreamKind::ALL.iter().copied().zip(self.0);
        all.filter(|(_, count)| *count > 0)
    }

    /// The number of all streams.
    pub fn all(&self) -> u32 {
        self.0.iter().fold(0, |all, count| all.saturating_add(*count))
    }
}

/// Cells of counters, by kind.
impl From<[u64; STREAM_KINDS]> for StreamCounts {
    fn from(counts: [u64; STREAM_KINDS]) -> Self {
        Self(counts.map(|count| u32::try_from(count).unwrap_or(u32::MAX)))
    }
}

/// `2 uploads, 1 WebSocket`.
impl fmt::Display for StreamCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (kind, count)) in self.iter().enumerate() {
            let comma = if nth == 0 { "" } else { ", " };
            write!(f, "{comma}{count} {}", kind.noun(count))?;
        }
        Ok(())
    }
}

/// `{"upload":2,"websocket":1}`.
impl Serialize for StreamCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.iter().count()))?;
        for (kind, count) in self.iter() {
            map.serialize_entry(kind.name(), &count)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_are_said_by_kind() {
        let mut counts = StreamCounts::one(StreamKind::WebSocket);
        counts.add_all(&StreamCounts::one(StreamKind::Upload));
        counts.add(StreamKind::Upload, 1);
        counts.add_all(&StreamCounts::default());
        assert_eq!((counts.to_string(), counts.all()), ("2 uploads, 1 WebSocket".into(), 3));
        let json = serde_json::to_string(&counts).unwrap();
        assert_eq!(json, r#"{"upload":2,"websocket":1}"#);
        counts.add(StreamKind::Upload, u32::MAX);
        assert_eq!(counts.all(), u32::MAX);
        let none = StreamCounts::default();
        assert_eq!(
            (none.to_string(), serde_json::to_string(&none).unwrap()),
            (String::new(), "{}".into())
        );
    }
}

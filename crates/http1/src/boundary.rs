//! The boundaries at which a stream without an end may be ended: between two events of an event
//! stream, or between two frames of a WebSocket.

use eyelet_wire::websocket::FrameReader;
use http::{HeaderMap, header};

/// The last bytes of an event stream that show whether an event is over: an empty line behind
/// another line.
const TAIL_BYTES: usize = 3;

/// Follows one direction of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub enum Boundary {
    /// A stream that has its own end.
    #[default]
    Unknown,
    /// An event stream, with its last bytes.
    Events([u8; TAIL_BYTES]),
    /// A WebSocket.
    Frames(FrameReader),
}

impl Boundary {
    /// The boundary of a response's body: known for an event stream that its upstream has not
    /// coded.
    pub fn of_body(head: &HeaderMap) -> Self {
        let Some(kind) = head.get(header::CONTENT_TYPE) else { return Self::Unknown };
        let kind = kind.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        let is_coded = head.contains_key(header::CONTENT_ENCODING);
        match kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream") && !is_coded {
            // Nothing has been sent, so nothing is cut.
            true => Self::Events([b'\n'; TAIL_BYTES]),
            false => Self::Unknown,
        }
    }

    /// A WebSocket at its first byte.
    pub fn of_frames() -> Self {
        Self::Frames(FrameReader::default())
    }

    /// Reads the next bytes.
    pub fn read(&mut self, bytes: &[u8]) {
        match self {
            Self::Unknown => {}
            Self::Events(tail) => {
                let new = bytes.len().min(TAIL_BYTES);
                tail.rotate_left(new);
                tail[TAIL_BYTES - new..].copy_from_slice(&bytes[bytes.len() - new..]);
            }
            Self::Frames(reader) => reader.read(bytes),
        }
    }

    /// True if an event stream may end here.
    pub fn is_between_events(&self) -> bool {
        // A line ends in CRLF, LF or CR (HTML, 9.2.5). An empty line dispatches an event.
        matches!(
            self,
            Self::Events(
                [_, b'\n', b'\n']
                    | [_, b'\r', b'\r']
                    | [_, b'\n', b'\r']
                    | [b'\r' | b'\n', b'\r', b'\n']
            )
        )
    }

    /// True if a frame may follow.
    pub fn is_between_frames(&self) -> bool {
        matches!(self, Self::Frames(reader) if reader.is_between())
    }

    /// The reader of a WebSocket's frames.
    pub fn frames(&self) -> Option<FrameReader> {
        match self {
            Self::Frames(reader) => Some(*reader),
            Self::Unknown | Self::Events(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn events() -> Boundary {
        let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
        Boundary::of_body(&HeaderMap::from_iter([(header::CONTENT_TYPE, kind)]))
    }

    #[test]
    fn an_event_ends_with_an_empty_line() {
        for (text, is_between) in [
            ("", true),
            ("data: a\n\n", true),
            ("data: a\r\n\r\n", true),
            ("data: a\r\r", true),
            ("data: a\n\r\n", true),
            ("data: a\n\ndata: b\n\n", true),
            (": ping\n\n", true),
            ("data: a\r\n\n", true),
            ("data: a", false),
            ("data: a\n", false),
            ("data: a\r\n", false),
            ("data: a\n\ndata: b\r\n", false),
            ("data: a\n\nx", false),
        ] {
            for cut in 0..=text.len() {
                let mut boundary = events();
                boundary.read(&text.as_bytes()[..cut]);
                boundary.read(&text.as_bytes()[cut..]);
                assert_eq!(boundary.is_between_events(), is_between, "{text:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn only_a_plain_event_stream_is_followed() {
        let coded = HeaderMap::from_iter([
            (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            (header::CONTENT_ENCODING, HeaderValue::from_static("gzip")),
        ]);
        let page =
            HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("text/html"))]);
        for head in [coded, page, HeaderMap::new()] {
            assert!(!Boundary::of_body(&head).is_between_events(), "{head:?}");
        }
    }
}

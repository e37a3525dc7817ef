//! The places of a WebSocket's two directions, in the middle of a frame or between two.

use eyelet_wire::websocket::FrameReader;

use crate::ready::{CLIENT, Side};

/// The places of both directions.
#[derive(Clone, Copy, Debug, Default)]
pub struct WebSocketFrames {
    /// From the client to the upstream.
    pub up: FrameReader,
    /// From the upstream to the client.
    pub down: FrameReader,
}

impl WebSocketFrames {
    pub(crate) fn are_between(&self) -> bool {
        self.up.is_between() && self.down.is_between()
    }

    pub(crate) fn from(&mut self, side: Side) -> &mut FrameReader {
        match side {
            CLIENT => &mut self.up,
            _ => &mut self.down,
        }
    }
}

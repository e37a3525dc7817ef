//! WebSockets among parked connections: between which frames their streams are, so that a close
//! frame can be sent to both sides.
//!
//! A connection at rest is between two frames in both directions, and holds nothing for this. Only
//! in the middle of a frame, or of the closing handshake, does it hold where it is.

use super::frames::WebSocketFrames;
use super::{Flow, FlowKind};
use crate::ready::{Side, UPSTREAM};

impl Flow {
    /// Begins to follow a WebSocket. `frames` have seen all bytes so far.
    pub fn follow_websocket(&mut self, frames: WebSocketFrames) {
        self.kind = FlowKind::WebSocket;
        self.keep(frames);
    }

    /// True if its frames are followed.
    pub fn is_websocket(&self) -> bool {
        self.kind == FlowKind::WebSocket
    }

    /// Returns the places in its frames, if they are followed.
    pub(crate) fn followed(&self) -> Option<WebSocketFrames> {
        self.is_websocket().then(|| self.frames())
    }

    /// Notes bytes that a side has sent.
    pub(crate) fn follow(&mut self, from: Side, bytes: &[u8]) {
        if !self.is_websocket() {
            return;
        }
        let mut frames = self.frames();
        frames.from(from).read(bytes);
        self.keep(frames);
    }

    /// True if it is between two frames in both directions.
    pub fn is_between_frames(&self) -> bool {
        self.is_websocket() && self.frames().are_between()
    }

    /// True if a close frame may be sent to a side: nothing is held for it, and it has received
    /// whole frames only, the last of them no close frame.
    pub fn takes_close_frame(&mut self, to: Side) -> bool {
        let from = UPSTREAM - to;
        self.is_websocket()
            && self.held(to).is_none()
            && self.is_open(from)
            && self.frames().from(from).is_between()
    }

    fn frames(&self) -> WebSocketFrames {
        self.transit().map(|pending| pending.frames).unwrap_or_default()
    }

    fn keep(&mut self, frames: WebSocketFrames) {
        if self.transit().is_some() || !frames.are_between() {
            self.pending().frames = frames;
        }
    }
}

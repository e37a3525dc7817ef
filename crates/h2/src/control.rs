//! The frames that carry no message: whole ones that are read at once, and SETTINGS value by value.

use crate::code::ErrorCode;
use crate::connection::{FrameState, H2Connection, Leaving, SHUTDOWN_PING};
use crate::event::H2Event;
use crate::fault::{ConnectionFault, StreamFault};
use crate::frame::{self, FRAME_HEAD_BYTES, FrameHead, flag, setting};
use crate::limits::{EARLY_PRIORITIES_MAX, PRIORITY_BYTES_MAX};
use crate::priority::Priority;
use crate::receive::{Step, Stepped};
use crate::role::H2Role;
use crate::settings::{self, SETTING_BYTES};
use crate::stream::{Receiving, Sending};

/// Bytes of a stream identifier, of an error code, and of an increment.
const WORD_BYTES: usize = 4;
const PING_BYTES: usize = 8;
const PRIORITY_FRAME_BYTES: usize = 5;

/// Checks a frame of fixed length. `None` if its payload has not arrived.
fn whole<const N: usize>(
    head: FrameHead,
    payload: &[u8],
) -> Result<Option<&[u8; N]>, ConnectionFault> {
    if head.len != N {
        return Err(ConnectionFault::FrameLength(head.kind));
    }
    Ok(payload.first_chunk::<N>())
}

impl H2Connection {
    pub(crate) fn ping_frame<'a>(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Stepped<'a> {
        if head.stream != 0 {
            return Err(ConnectionFault::FrameStream(head.kind));
        }
        let Some(payload) = whole::<PING_BYTES>(head, payload)? else {
            return Ok(Step::Need(FRAME_HEAD_BYTES + PING_BYTES));
        };
        let used = FRAME_HEAD_BYTES + PING_BYTES;
        self.count_control()?;
        if !head.has(flag::ACK) {
            frame::write_ping(*payload, true, out);
            return Ok(Step::Used(used));
        }
        if *payload == SHUTDOWN_PING && matches!(self.leaving, Leaving::Asked { .. }) {
            self.say_last(out);
            return Ok(Step::Used(used));
        }
        Ok(Step::Event(used, H2Event::Pong(*payload)))
    }

    pub(crate) fn go_away<'a>(&mut self, head: FrameHead, payload: &[u8]) -> Stepped<'a> {
        if head.stream != 0 {
            return Err(ConnectionFault::FrameStream(head.kind));
        }
        if head.len < 2 * WORD_BYTES {
            return Err(ConnectionFault::FrameLength(head.kind));
        }
        let Some((last, rest)) = payload.split_first_chunk::<WORD_BYTES>() else {
            return Ok(Step::Need(FRAME_HEAD_BYTES + 2 * WORD_BYTES));
        };
        let Some(code) = rest.first_chunk::<WORD_BYTES>() else {
            return Ok(Step::Need(FRAME_HEAD_BYTES + 2 * WORD_BYTES));
        };
        self.count_control()?;
        let code = ErrorCode(u32::from_be_bytes(*code));
        let last = frame::read_stream(last);
        // It must not grow (RFC 9113 section 6.8). What was given up stays given up.
        let last = self.peer_leaves.map_or(last, |before| before.min(last));
        self.peer_leaves = Some(last);
        if self.role == H2Role::Client {
            self.streams.drop_above(last);
        }
        // What follows is text for people.
        let Step::Used(used) = self.skip_payload(head, 2 * WORD_BYTES) else {
            return Err(ConnectionFault::FrameLength(head.kind));
        };
        Ok(Step::Event(used, H2Event::GoAway { last, code }))
    }

    pub(crate) fn rst_stream<'a>(&mut self, head: FrameHead, payload: &[u8]) -> Stepped<'a> {
        if head.stream == 0 {
            return Err(ConnectionFault::FrameStream(head.kind));
        }
        let Some(code) = whole::<WORD_BYTES>(head, payload)? else {
            return Ok(Step::Need(FRAME_HEAD_BYTES + WORD_BYTES));
        };
        if self.is_idle(head.stream) {
            return Err(ConnectionFault::StreamIdle);
        }
        let used = FRAME_HEAD_BYTES + WORD_BYTES;
        let Some(stream) = self.streams.remove(head.stream) else {
            self.count_control()?;
            return Ok(Step::Used(used));
        };
        let code = ErrorCode(u32::from_be_bytes(*code));
        // A client does not need the rest of its request's stream when our response is whole. A
        // server may end a request early (RFC 9113 section 8.1).
        let is_early_answer = self.role == H2Role::Client && code == ErrorCode::NO_ERROR;
        if stream.sending != Sending::Ended && !is_early_answer {
            self.count_drop()?;
        }
        Ok(Step::Event(used, H2Event::Reset { stream: head.stream, code }))
    }

    pub(crate) fn window_update<'a>(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Stepped<'a> {
        let Some(bytes) = whole::<WORD_BYTES>(head, payload)? else {
            return Ok(Step::Need(FRAME_HEAD_BYTES + WORD_BYTES));
        };
        let used = FRAME_HEAD_BYTES + WORD_BYTES;
        self.count_control()?;
        let bytes = frame::read_stream(bytes);
        if head.stream == 0 {
            if bytes == 0 {
                return Err(ConnectionFault::WindowUpdateZero);
            }
            self.send_window.open(bytes).ok_or(ConnectionFault::WindowOverflow)?;
            return Ok(Step::Event(used, H2Event::Writable));
        }
        if self.is_idle(head.stream) {
            return Err(ConnectionFault::StreamIdle);
        }
        let fault = match self.streams.find(head.stream) {
            // It has ended: the frame crossed our last one.
            None => return Ok(Step::Used(used)),
            Some(_) if bytes == 0 => StreamFault::WindowUpdateZero,
            Some(stream) => match stream.send_window.open(bytes) {
                Some(()) => return Ok(Step::Event(used, H2Event::Writable)),
                None => StreamFault::WindowOverflow,
            },
        };
        Ok(Step::Event(used, self.fail_stream(head.stream, fault, out)?))
    }

    /// The priorities of RFC 7540 are only checked (RFC 9113 section 5.3).
    pub(crate) fn priority<'a>(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Stepped<'a> {
        if head.stream == 0 {
            return Err(ConnectionFault::FrameStream(head.kind));
        }
        let is_known = self.streams.find(head.stream).is_some();
        let Ok(whole) = whole::<PRIORITY_FRAME_BYTES>(head, payload) else {
            self.count_control()?;
            if !is_known {
                return Err(ConnectionFault::FrameLength(head.kind));
            }
            let event = self.fail_stream(head.stream, StreamFault::FrameLength, out)?;
            self.skip_payload(head, 0);
            return Ok(Step::Event(FRAME_HEAD_BYTES, event));
        };
        let Some(priority) = whole else {
            return Ok(Step::Need(FRAME_HEAD_BYTES + PRIORITY_FRAME_BYTES));
        };
        self.count_control()?;
        let used = FRAME_HEAD_BYTES + PRIORITY_FRAME_BYTES;
        match frame::read_stream(priority) == head.stream {
            true if is_known => {
                let event = self.fail_stream(head.stream, StreamFault::SelfDependency, out)?;
                Ok(Step::Event(used, event))
            }
            true if self.is_idle(head.stream) => Err(ConnectionFault::SelfDependency),
            _ => Ok(Step::Used(used)),
        }
    }

    /// RFC 9218 section 7.1.
    pub(crate) fn priority_update<'a>(&mut self, head: FrameHead, payload: &[u8]) -> Stepped<'a> {
        if head.stream != 0 || self.role == H2Role::Client {
            return Err(ConnectionFault::FrameStream(head.kind));
        }
        let Some(value_len) = head.len.checked_sub(WORD_BYTES) else {
            return Err(ConnectionFault::FrameLength(head.kind));
        };
        let read = head.len.min(WORD_BYTES + PRIORITY_BYTES_MAX);
        let Some((id, value)) =
            payload.get(..read).and_then(<[u8]>::split_first_chunk::<WORD_BYTES>)
        else {
            return Ok(Step::Need(FRAME_HEAD_BYTES + read));
        };
        self.count_control()?;
        let id = frame::read_stream(id);
        if id.is_multiple_of(2) {
            return Err(ConnectionFault::StreamId);
        }
        if value_len <= PRIORITY_BYTES_MAX {
            self.prioritize(id, Priority::read(value));
        }
        Ok(self.skip_payload(head, read))
    }

    fn prioritize(&mut self, id: u32, priority: Priority) {
        if let Some(stream) = self.streams.find(id) {
            stream.priority = priority;
        } else if self.is_idle(id) {
            self.early_priorities.retain(|(early, _)| *early != id);
            if self.early_priorities.len() < EARLY_PRIORITIES_MAX {
                self.early_priorities.push((id, priority));
            }
        }
    }

    pub(crate) fn read_settings<'a>(&mut self, input: &[u8], out: &mut Vec<u8>) -> Stepped<'a> {
        let FrameState::Settings { left, mut settings, table_bytes_min } = self.reading else {
            return Err(ConnectionFault::Closed);
        };
        if left == 0 {
            self.reading = FrameState::Head;
            self.follow(settings, table_bytes_min)?;
            frame::write_settings_ack(out);
            return Ok(Step::Event(0, H2Event::Settings));
        }
        let Some((id, value)) = settings::read(input) else {
            return Ok(Step::Need(SETTING_BYTES));
        };
        settings.set(id, value, self.role)?;
        let table_bytes_min = match id {
            setting::HEADER_TABLE_SIZE => table_bytes_min.min(value),
            _ => table_bytes_min,
        };
        let left = left - SETTING_BYTES;
        self.reading = FrameState::Settings { left, settings, table_bytes_min };
        Ok(Step::Used(SETTING_BYTES))
    }

    /// Follows the values of a SETTINGS frame, all at once.
    fn follow(
        &mut self,
        settings: settings::PeerSettings,
        table_bytes_min: u32,
    ) -> Result<(), ConnectionFault> {
        let from = self.peer.window;
        if settings.window != from {
            for stream in self.streams.iter_mut() {
                let resized = stream.send_window.resize(from, settings.window);
                resized.ok_or(ConnectionFault::WindowOverflow)?;
            }
        }
        self.encoder.set_limit(table_bytes_min);
        self.encoder.set_limit(settings.table_bytes);
        self.peer = settings;
        self.is_greeted = true;
        Ok(())
    }

    /// The peer follows our SETTINGS from here on.
    pub(crate) fn acknowledged<'a>(&mut self, out: &mut Vec<u8>) -> Option<H2Event<'a>> {
        let sent = self.unacknowledged.take()?;
        self.stream_window = sent.stream_window;
        for stream in self.streams.iter_mut() {
            stream.receive_window.resize(sent.stream_window);
            // The peer has nothing more to send on it.
            if stream.receiving == Receiving::Ended {
                continue;
            }
            if let Some(bytes) = stream.receive_window.update() {
                frame::write_window(stream.id, bytes, out);
            }
        }
        Some(H2Event::SettingsAcknowledged)
    }
}

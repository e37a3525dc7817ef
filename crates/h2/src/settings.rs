//! Settings (RFC 9113 section 6.5, RFC 8441 section 3, RFC 9218 section 2.1).

use crate::fault::ConnectionFault;
use crate::frame::{self, FRAME_BYTES_MAX, kind, setting as id};
use crate::limits::H2Limits;
use crate::role::H2Role;
use crate::window::{WINDOW_FIRST, WINDOW_MAX};

/// Bytes of one value with its identifier.
pub(crate) const SETTING_BYTES: usize = 6;
/// The largest frame that a peer may announce (RFC 9113 6.5.2).
const FRAME_BYTES_LIMIT: u32 = (1 << 24) - 1;

/// The peer's settings in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// The size of the table of fields that it keeps for us.
    pub table_bytes: u32,
    /// Streams that we may have at once.
    pub streams_max: u32,
    /// The window of each stream.
    pub window: u32,
    /// Most bytes of a head that it takes, by its own word.
    pub head_bytes_max: u32,
    /// True if it takes extended CONNECT.
    pub connect_protocol: bool,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            table_bytes: 4096,
            streams_max: u32::MAX,
            window: WINDOW_FIRST,
            head_bytes_max: u32::MAX,
            connect_protocol: false,
        }
    }
}

impl PeerSettings {
    /// Follows one value of a SETTINGS frame. `role` is ours.
    pub(crate) fn set(&mut self, id: u16, value: u32, role: H2Role) -> Result<(), ConnectionFault> {
        let is_allowed = match id {
            // Only a client may allow pushes.
            id::ENABLE_PUSH => value == 0 || value == 1 && role == H2Role::Server,
            id::INITIAL_WINDOW_SIZE => value <= WINDOW_MAX,
            // Larger frames than the least are never sent.
            id::MAX_FRAME_SIZE => (FRAME_BYTES_MAX as u32..=FRAME_BYTES_LIMIT).contains(&value),
            // What was allowed stays allowed (RFC 8441 section 3).
            id::ENABLE_CONNECT_PROTOCOL => value == 1 || value == 0 && !self.connect_protocol,
            id::NO_RFC7540_PRIORITIES => value <= 1,
            _ => true,
        };
        if !is_allowed {
            return Err(ConnectionFault::Setting(id));
        }
        match id {
            id::HEADER_TABLE_SIZE => self.table_bytes = value,
            id::MAX_CONCURRENT_STREAMS => self.streams_max = value,
            id::INITIAL_WINDOW_SIZE => self.window = value,
            id::MAX_HEADER_LIST_SIZE => self.head_bytes_max = value,
            id::ENABLE_CONNECT_PROTOCOL => self.connect_protocol = value == 1,
            _ => {}
        }
        Ok(())
    }
}

/// One value with its identifier. `None` if it is incomplete.
pub(crate) fn read(input: &[u8]) -> Option<(u16, u32)> {
    let [a, b, c, d, e, f] = *input.first_chunk::<SETTING_BYTES>()?;
    Some((u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f])))
}

/// Appends the SETTINGS that a connection begins with. The peer's table of fields keeps the size
/// that HTTP/2 begins with: many encoders never follow another one.
pub(crate) fn write_first(limits: &H2Limits, role: H2Role, out: &mut Vec<u8>) {
    let of_role: &[(u16, u32)] = match role {
        H2Role::Client => &[(id::ENABLE_PUSH, 0)],
        H2Role::Server => &[
            (id::MAX_CONCURRENT_STREAMS, limits.streams_max),
            (id::ENABLE_CONNECT_PROTOCOL, limits.connect_protocol as u32),
            (id::NO_RFC7540_PRIORITIES, 1),
        ],
    };
    let of_both = [
        (id::INITIAL_WINDOW_SIZE, limits.stream_window),
        (id::MAX_HEADER_LIST_SIZE, limits.head_bytes_max),
    ];
    write(of_role.iter().chain(&of_both), out);
}

/// Appends a SETTINGS frame that changes the window of each stream.
pub(crate) fn write_window(bytes: u32, out: &mut Vec<u8>) {
    write([(id::INITIAL_WINDOW_SIZE, bytes)].iter(), out);
}

fn write<'a>(values: impl Iterator<Item = &'a (u16, u32)>, out: &mut Vec<u8>) {
    let mut payload = Vec::with_capacity(SETTING_BYTES * 6);
    for (id, value) in values {
        payload.extend_from_slice(&id.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame::write(kind::SETTINGS, 0, 0, &payload, out);
}

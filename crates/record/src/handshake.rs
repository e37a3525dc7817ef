//! Handshake messages after the handshake: KeyUpdate is obeyed, renegotiation is refused, clients
//! skip tickets, all else is a fault. No message is stored, only at most four bytes of its header.

use crate::fault::RecordFault;
use crate::keys::{Keys, next_generation};
use crate::partial::Partial;
use crate::session::{Renegotiation, Session};
use crate::suite::{Role, Version};

/// Handshake types (RFC 8446 section 4, RFC 5246 section 7.4).
mod kind {
    pub(super) const HELLO_REQUEST: u8 = 0;
    pub(super) const CLIENT_HELLO: u8 = 1;
    pub(super) const NEW_SESSION_TICKET: u8 = 4;
    pub(super) const KEY_UPDATE: u8 = 24;
}

/// Most KeyUpdates without application data between them, as in rustls and BoringSSL. Each costs an
/// HKDF.
pub(crate) const KEY_UPDATES_MAX: u8 = 32;

const HEAD_BYTES: u8 = 4;

/// A KeyUpdate that requests none in return (RFC 8446 section 4.6.3).
pub(crate) const KEY_UPDATE: [u8; 5] = [kind::KEY_UPDATE, 0, 0, 1, 0];
/// A KeyUpdate that requests one from the peer.
pub(crate) const KEY_UPDATE_REQUESTED: [u8; 5] = [kind::KEY_UPDATE, 0, 0, 1, 1];

impl Session {
    /// Reads the content of one handshake record.
    pub(crate) fn read_handshake(
        &mut self,
        keys: &mut Keys,
        content: &[u8],
    ) -> Result<(), RecordFault> {
        let mut rest = content;
        while let Some((&byte, behind)) = rest.split_first() {
            match self.partial {
                Partial::Skip { left } => {
                    let skipped = rest.len().min(usize::from(left));
                    self.partial = Partial::skip(left - skipped as u16);
                    rest = &rest[skipped..];
                }
                Partial::Head { len: HEAD_BYTES, .. } => {
                    // RFC 8446 section 5.1: no message may span a change of keys, and a
                    // KeyUpdate must end its record.
                    if !behind.is_empty() {
                        return Err(RecordFault::KeyUpdateNotLast);
                    }
                    self.partial = Partial::NONE;
                    return self.key_update(keys, byte);
                }
                Partial::Head { len, mut bytes } => {
                    if len == 0 {
                        self.admit(byte)?;
                    }
                    bytes[usize::from(len)] = byte;
                    self.partial = Partial::Head { len: len + 1, bytes };
                    if len + 1 == HEAD_BYTES {
                        self.read_head(bytes)?;
                    }
                    rest = behind;
                }
            }
        }
        Ok(())
    }

    /// Checks that a message of this type is allowed.
    fn admit(&self, message: u8) -> Result<(), RecordFault> {
        let allowed = may_begin(self.version, self.role, message);
        if allowed { Ok(()) } else { Err(RecordFault::HandshakeType(message)) }
    }

    fn read_head(&mut self, head: [u8; 4]) -> Result<(), RecordFault> {
        let [message, body_len @ ..] = head;
        let body_len = body_len.iter().fold(0, |sum, &byte| sum << 8 | u32::from(byte));
        if message == kind::KEY_UPDATE {
            return if body_len == 1 { Ok(()) } else { Err(RecordFault::KeyUpdateLength) };
        }
        let Ok(left) = u16::try_from(body_len) else { return Err(RecordFault::HandshakeLength) };
        match message {
            kind::NEW_SESSION_TICKET => self.count_empty()?,
            _ => self.refuse_renegotiation()?,
        }
        self.partial = Partial::skip(left);
        Ok(())
    }

    /// RFC 5246 section 7.2.2: a warning refuses, and the peer may continue. It may not ask twice.
    fn refuse_renegotiation(&mut self) -> Result<(), RecordFault> {
        if self.renegotiation != Renegotiation::Unasked {
            return Err(RecordFault::TooManyRenegotiations);
        }
        self.renegotiation = Renegotiation::WarningDue;
        Ok(())
    }

    fn key_update(&mut self, keys: &mut Keys, request_update: u8) -> Result<(), RecordFault> {
        if request_update > 1 {
            return Err(RecordFault::KeyUpdateRequest(request_update));
        }
        if self.key_updates == KEY_UPDATES_MAX {
            return Err(RecordFault::TooManyKeyUpdates);
        }
        self.key_updates += 1;
        let due = self.key_update_due.without_request();
        self.key_update_due = if request_update == 1 { due.with_answer() } else { due };
        next_generation(self.suite, &mut self.rx, &mut keys.open);
        Ok(())
    }
}

/// True if the peer of this end may send a message of this type after the handshake.
pub(crate) fn may_begin(version: Version, role: Role, message: u8) -> bool {
    match (version, role) {
        (Version::Tls13, Role::Server) => message == kind::KEY_UPDATE,
        (Version::Tls13, Role::Client) => {
            matches!(message, kind::KEY_UPDATE | kind::NEW_SESSION_TICKET)
        }
        (Version::Tls12, Role::Server) => message == kind::CLIENT_HELLO,
        (Version::Tls12, Role::Client) => message == kind::HELLO_REQUEST,
    }
}

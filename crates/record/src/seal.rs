//! Sealing records: application data, alerts and KeyUpdates, in place, in a caller's slot.

use eyelet_wire::record::RecordHeader;

use crate::fault::{RecordFault, alert};
use crate::handshake::{KEY_UPDATE, KEY_UPDATE_REQUESTED};
use crate::keys::{
    DirectionKey, EXPLICIT_NONCE_BYTES, Keys, TAG_BYTES, next_generation, records_max,
};
use crate::open::{RECORD_VERSION, content, has_explicit_nonce, tls12_aad};
use crate::session::{KeyUpdateDue, Renegotiation, Session, Writing};
use crate::suite::{IV_BYTES, Version};
use crate::{HEADER_BYTES, PAYLOAD_BYTES_MAX};

/// The number of records before its limit at which a TLS 1.3 key is replaced. It is more than any
/// batch that is sealed between two calls of [`Session::seal_control`]: 16 MiB in full records.
const REKEY_MARGIN: u64 = 1 << 10;

const ALERT_LEVEL_WARNING: u8 = 1;
const ALERT_LEVEL_FATAL: u8 = 2;

impl Session {
    /// Bytes before the payload in a slot: 5, or 13 for AES-GCM in TLS 1.2.
    pub const fn prefix_len(&self) -> usize {
        if has_explicit_nonce(self.suite, self.version) {
            HEADER_BYTES + EXPLICIT_NONCE_BYTES
        } else {
            HEADER_BYTES
        }
    }

    /// Bytes after the payload in a slot: 17 in TLS 1.3, 16 in TLS 1.2.
    pub const fn suffix_len(&self) -> usize {
        match self.version {
            Version::Tls13 => 1 + TAG_BYTES,
            Version::Tls12 => TAG_BYTES,
        }
    }

    /// Length of the record that [`Session::seal`] makes of a payload. Full slots of
    /// `record_len(PAYLOAD_BYTES_MAX)` side by side are contiguous on the wire.
    pub const fn record_len(&self, payload_len: usize) -> usize {
        self.prefix_len() + payload_len + self.suffix_len()
    }

    /// Seals one record of application data in place. The payload lies at
    /// `slot[prefix_len()..][..payload_len]`, with room for `suffix_len()` bytes after it. Returns
    /// the record's length. An empty payload makes no record and returns 0.
    ///
    /// Call [`Session::control_due`] at least once in 512 records: a due KeyUpdate goes first.
    ///
    /// # Errors
    /// [`RecordFault::SequenceExhausted`]: end the connection with close_notify.
    /// [`RecordFault::Closed`], [`RecordFault::OutputTooSmall`]: the caller's mistake.
    pub fn seal(
        &mut self,
        keys: &mut Keys,
        slot: &mut [u8],
        payload_len: usize,
    ) -> Result<usize, RecordFault> {
        if self.writing != Writing::Open {
            return Err(RecordFault::Closed);
        }
        if payload_len == 0 {
            return Ok(0);
        }
        if self.tx.seq >= records_max(self.suite) {
            return Err(RecordFault::SequenceExhausted);
        }
        self.seal_content(keys, content::APPLICATION_DATA, slot, payload_len)
    }

    /// True if a control record must be sent before more data: the answer to a KeyUpdate or to a
    /// renegotiation, or a KeyUpdate because our key nears its limit.
    pub fn control_due(&self) -> bool {
        let is_due = match self.version {
            Version::Tls12 => self.renegotiation == Renegotiation::WarningDue,
            Version::Tls13 => {
                self.key_update_due != KeyUpdateDue::No
                    || self.tx.seq >= records_max(self.suite) - REKEY_MARGIN
            }
        };
        is_due && self.writing == Writing::Open
    }

    /// Schedules a KeyUpdate that requests the peer's (RFC 8446 section 4.6.3). TLS 1.2 has none.
    pub fn request_key_update(&mut self) {
        if self.version == Version::Tls13 {
            self.key_update_due = self.key_update_due.with_request();
        }
    }

    /// Seals the record that is due, and switches keys after a KeyUpdate. `out` needs
    /// [`crate::CONTROL_BYTES_MAX`] bytes. Returns the record's length, 0 if none is due.
    ///
    /// # Errors
    /// [`RecordFault::OutputTooSmall`] if `out` is too small: nothing has changed then.
    pub fn seal_control(&mut self, keys: &mut Keys, out: &mut [u8]) -> Result<usize, RecordFault> {
        if !self.control_due() {
            return Ok(0);
        }
        match self.version {
            Version::Tls12 => {
                let warning = [ALERT_LEVEL_WARNING, alert::NO_RENEGOTIATION];
                let len = self.seal_message(keys, content::ALERT, &warning, out)?;
                self.renegotiation = Renegotiation::Refused;
                Ok(len)
            }
            Version::Tls13 => {
                let message = match self.key_update_due {
                    KeyUpdateDue::No | KeyUpdateDue::Answer => KEY_UPDATE,
                    KeyUpdateDue::Request | KeyUpdateDue::AnswerAndRequest => KEY_UPDATE_REQUESTED,
                };
                // Sealed with the old key. All that follows uses the next (RFC 8446 4.6.3).
                let len = self.seal_message(keys, content::HANDSHAKE, &message, out)?;
                self.key_update_due = KeyUpdateDue::No;
                next_generation(self.suite, &mut self.tx, &mut keys.seal);
                Ok(len)
            }
        }
    }

    /// Seals an alert by its code. close_notify, user_canceled and no_renegotiation are warnings,
    /// all others are fatal. `out` needs [`crate::CONTROL_BYTES_MAX`] bytes. Returns the record's
    /// length; 0 if our direction is closed already, so that a caller need not check.
    ///
    /// close_notify closes our direction, a fatal alert the session.
    ///
    /// # Errors
    /// [`RecordFault::OutputTooSmall`] if `out` is too small: nothing has changed then.
    pub fn seal_alert(
        &mut self,
        keys: &mut Keys,
        description: u8,
        out: &mut [u8],
    ) -> Result<usize, RecordFault> {
        if self.writing == Writing::Closed {
            return Ok(0);
        }
        let level = match description {
            alert::CLOSE_NOTIFY | alert::USER_CANCELED | alert::NO_RENEGOTIATION => {
                ALERT_LEVEL_WARNING
            }
            _ => ALERT_LEVEL_FATAL,
        };
        let len = self.seal_message(keys, content::ALERT, &[level, description], out)?;
        if description == alert::CLOSE_NOTIFY {
            self.writing = Writing::Closed;
        } else if level == ALERT_LEVEL_FATAL {
            self.fail(Writing::Closed);
        }
        Ok(len)
    }

    fn seal_message(
        &mut self,
        keys: &mut Keys,
        content_type: u8,
        message: &[u8],
        out: &mut [u8],
    ) -> Result<usize, RecordFault> {
        let start = self.prefix_len();
        let Some(place) = out.get_mut(start..start + message.len()) else {
            return Err(RecordFault::OutputTooSmall);
        };
        place.copy_from_slice(message);
        self.seal_content(keys, content_type, out, message.len())
    }

    /// Seals the slot's content. Control records may exceed the key's limit, which leaves room for
    /// them. The sequence number never wraps.
    pub(crate) fn seal_content(
        &mut self,
        keys: &mut Keys,
        content_type: u8,
        slot: &mut [u8],
        content_len: usize,
    ) -> Result<usize, RecordFault> {
        if content_len > PAYLOAD_BYTES_MAX {
            return Err(RecordFault::OutputTooSmall);
        }
        let Some(record) = slot.get_mut(..self.record_len(content_len)) else {
            return Err(RecordFault::OutputTooSmall);
        };
        if self.tx.seq == u64::MAX {
            return Err(RecordFault::SequenceExhausted);
        }
        let key = DirectionKey::wake(&mut keys.seal, self.suite, self.version, &self.tx)?;
        let nonce = key.nonce(self.tx.seq);
        match self.version {
            Version::Tls13 => encrypt_tls13(key, nonce, content_type, record)?,
            Version::Tls12 => {
                let aad = tls12_aad(self.tx.seq, content_type, content_len);
                encrypt_tls12(key, nonce, &aad, self.prefix_len(), record)?;
            }
        }
        self.tx.seq += 1;
        Ok(record.len())
    }
}

/// TLSInnerPlaintext without padding, sealed (RFC 8446 section 5.2).
fn encrypt_tls13(
    key: &DirectionKey,
    nonce: [u8; IV_BYTES],
    content_type: u8,
    record: &mut [u8],
) -> Result<(), RecordFault> {
    let header = header(content::APPLICATION_DATA, record.len());
    let tag_at = record.len() - TAG_BYTES;
    record[..HEADER_BYTES].copy_from_slice(&header);
    record[tag_at - 1] = content_type;
    let (plain, tag) = record.split_at_mut(tag_at);
    key.aead.seal(nonce, &header, &mut plain[HEADER_BYTES..], tag)
}

/// GenericAEADCipher (RFC 5246 section 6.2.3.3). The type is in the additional data.
fn encrypt_tls12(
    key: &DirectionKey,
    nonce: [u8; IV_BYTES],
    aad: &[u8; 13],
    start: usize,
    record: &mut [u8],
) -> Result<(), RecordFault> {
    let header = header(aad[8], record.len());
    let tag_at = record.len() - TAG_BYTES;
    record[..HEADER_BYTES].copy_from_slice(&header);
    let explicit_len = start - HEADER_BYTES;
    record[HEADER_BYTES..start].copy_from_slice(&nonce[IV_BYTES - 8..][..explicit_len]);
    let (plain, tag) = record.split_at_mut(tag_at);
    key.aead.seal(nonce, aad, &mut plain[start..], tag)
}

fn header(content_type: u8, record_len: usize) -> [u8; HEADER_BYTES] {
    let len = (record_len - HEADER_BYTES) as u16;
    RecordHeader { content_type, version: RECORD_VERSION, len }.to_bytes()
}

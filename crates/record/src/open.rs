//! Opening records: one record at the start of a buffer is checked, decrypted in place, and
//! interpreted.

use std::ops::Range;

use eyelet_wire::record::{CIPHERTEXT_TLS12_BYTES_MAX, CIPHERTEXT_TLS13_BYTES_MAX, RecordHeader};
use eyelet_wire::version::TLS12;

use crate::fault::{RecordFault, alert};
use crate::keys::{DirectionKey, EXPLICIT_NONCE_BYTES, Keys, TAG_BYTES, records_max};
use crate::session::{Reading, Session, Writing};
use crate::suite::{Suite, Version};
use crate::{HEADER_BYTES, PAYLOAD_BYTES_MAX};

/// Content types (RFC 8446 section 5.1, RFC 5246 section 6.2.1).
pub(crate) use eyelet_wire::record as content;

/// The legacy_record_version of every record that we seal, and of every TLS 1.2 record.
pub(crate) const RECORD_VERSION: u16 = TLS12;

/// Most empty records without application data between them, as in rustls and BoringSSL. They are
/// legal but cost an AEAD operation each, so a stream of them is an attack.
pub(crate) const EMPTY_RECORDS_MAX: u8 = 32;

/// Most warning alerts in the life of a connection, as in rustls and BoringSSL.
pub(crate) const WARNINGS_MAX: u8 = 4;

const ALERT_LEVEL_WARNING: u8 = 1;
const ALERT_LEVEL_FATAL: u8 = 2;

/// The find of [`Session::open`] at the start of its input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// The record is incomplete. Call again when `input` has at least so many bytes; more may be
    /// needed then.
    NeedMore {
        /// Length that the input must have, counted from the start of the record.
        at_least: usize,
    },
    /// One record was read.
    Record {
        /// Bytes of the input that are consumed; never 0.
        consumed: usize,
        /// Its content.
        what: Incoming,
    },
}

/// The content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// Application data, decrypted in place: its range in the input. Never empty.
    Data(Range<usize>),
    /// Nothing for the caller.
    Nothing,
    /// Nothing to read, but a record to send: see [`Session::seal_control`].
    Reply,
    /// The peer sends no more. The rest of the stream is to be ignored.
    CloseNotify,
    /// The peer ended the connection with this alert. Nothing can be sealed any more.
    PeerAlert(u8),
}

impl Session {
    /// Reads one record at the start of `input` and decrypts it in place.
    ///
    /// After close_notify all input is consumed and ignored (RFC 8446 section 6.1).
    ///
    /// # Errors
    /// The peer's fault. The session has then ended, except for the alert of
    /// [`Session::seal_alert`]. [`RecordFault::Closed`] if it had ended before.
    pub fn open(&mut self, keys: &mut Keys, input: &mut [u8]) -> Result<Opened, RecordFault> {
        match self.reading {
            Reading::Failed => return Err(RecordFault::Closed),
            Reading::Closed if !input.is_empty() => {
                return Ok(Opened::Record { consumed: input.len(), what: Incoming::Nothing });
            }
            Reading::Closed | Reading::Open => {}
        }
        let opened = self.open_record(keys, input);
        if opened.is_err() {
            self.fail(Writing::Failed);
            keys.open = None;
        }
        opened
    }

    fn open_record(&mut self, keys: &mut Keys, input: &mut [u8]) -> Result<Opened, RecordFault> {
        let Some(&header) = input.first_chunk::<HEADER_BYTES>() else {
            return Ok(Opened::NeedMore { at_least: HEADER_BYTES });
        };
        let record_len = HEADER_BYTES + self.check_header(header)?;
        let Some(record) = input.get_mut(..record_len) else {
            return Ok(Opened::NeedMore { at_least: record_len });
        };
        if self.rx.seq == u64::MAX {
            return Err(RecordFault::SequenceExhausted);
        }
        let (content_type, content) = match self.version {
            Version::Tls13 => self.decrypt_tls13(keys, header, record)?,
            Version::Tls12 => self.decrypt_tls12(keys, header, record)?,
        };
        self.count_received();
        let what = self.judge(keys, content_type, &record[content.clone()])?;
        let what = match what {
            Incoming::Data(_) => Incoming::Data(content),
            other => other,
        };
        Ok(Opened::Record { consumed: record_len, what })
    }

    /// Checks what the header alone decides. Returns the length of the fragment.
    fn check_header(&self, header: [u8; HEADER_BYTES]) -> Result<usize, RecordFault> {
        let RecordHeader { content_type: outer_type, version, len } =
            RecordHeader::from_bytes(header);
        let fragment_max = match self.version {
            // All records are encrypted, with the outer type application data. A plaintext alert or
            // a ChangeCipherSpec can only be forged (RFC 8446 section 5). The version is ignored,
            // as section 5.1 requires, but the AEAD covers it.
            Version::Tls13 => {
                if outer_type != content::APPLICATION_DATA {
                    return Err(RecordFault::RecordType(outer_type));
                }
                CIPHERTEXT_TLS13_BYTES_MAX
            }
            Version::Tls12 => {
                if !matches!(
                    outer_type,
                    content::ALERT | content::HANDSHAKE | content::APPLICATION_DATA
                ) {
                    return Err(RecordFault::RecordType(outer_type));
                }
                if version != RECORD_VERSION {
                    return Err(RecordFault::RecordVersion(version));
                }
                CIPHERTEXT_TLS12_BYTES_MAX
            }
        };
        let fragment_len = usize::from(len);
        if fragment_len > fragment_max {
            return Err(RecordFault::RecordOverflow);
        }
        Ok(fragment_len)
    }

    /// Decrypts TLSCiphertext and strips type and padding (RFC 8446 sections 5.2 and 5.4).
    fn decrypt_tls13(
        &self,
        keys: &mut Keys,
        header: [u8; HEADER_BYTES],
        record: &mut [u8],
    ) -> Result<(u8, Range<usize>), RecordFault> {
        let sealed = &mut record[HEADER_BYTES..];
        if sealed.len() < TAG_BYTES {
            return Err(RecordFault::BadRecordMac);
        }
        let key = DirectionKey::wake(&mut keys.open, self.suite, self.version, &self.rx)?;
        let inner_len = key.aead.open(key.nonce(self.rx.seq), &header, sealed)?;
        if inner_len > PAYLOAD_BYTES_MAX + 1 {
            return Err(RecordFault::RecordOverflow);
        }
        let inner = &sealed[..inner_len];
        // `end` is at most 2^14, so the content is within its limit.
        let Some(end) = inner.iter().rposition(|&byte| byte != 0) else {
            return Err(RecordFault::NoContentType);
        };
        match inner[end] {
            content::ALERT | content::HANDSHAKE | content::APPLICATION_DATA => {
                Ok((inner[end], HEADER_BYTES..HEADER_BYTES + end))
            }
            other => Err(RecordFault::InnerType(other)),
        }
    }

    /// Decrypts GenericAEADCipher (RFC 5246 section 6.2.3.3; RFC 5288, RFC 7905).
    fn decrypt_tls12(
        &self,
        keys: &mut Keys,
        header: [u8; HEADER_BYTES],
        record: &mut [u8],
    ) -> Result<(u8, Range<usize>), RecordFault> {
        let start = self.prefix_len();
        let Some(plain_len) = record.len().checked_sub(start + TAG_BYTES) else {
            return Err(RecordFault::BadRecordMac);
        };
        let key = DirectionKey::wake(&mut keys.open, self.suite, self.version, &self.rx)?;
        let nonce = match record[HEADER_BYTES..start].first_chunk::<EXPLICIT_NONCE_BYTES>() {
            Some(&sent) => key.explicit_nonce(sent),
            None => key.nonce(self.rx.seq),
        };
        let aad = tls12_aad(self.rx.seq, header[0], plain_len);
        key.aead.open(nonce, &aad, &mut record[start..])?;
        if plain_len > PAYLOAD_BYTES_MAX {
            return Err(RecordFault::RecordOverflow);
        }
        Ok((header[0], start..start + plain_len))
    }

    /// Counts a received record. Only the peer can keep to its key's limit (RFC 8446 section 5.5):
    /// refusing what it has already encrypted protects nobody. In TLS 1.3 it is reminded once a
    /// generation, by a KeyUpdate that requests one.
    fn count_received(&mut self) {
        self.rx.seq += 1;
        if self.version == Version::Tls13 && self.rx.seq == records_max(self.suite) {
            self.key_update_due = self.key_update_due.with_request();
        }
    }

    fn judge(
        &mut self,
        keys: &mut Keys,
        kind: u8,
        content: &[u8],
    ) -> Result<Incoming, RecordFault> {
        // RFC 8446 section 5.1: no other record between the fragments of a handshake message.
        if kind != content::HANDSHAKE && self.partial.is_open() {
            return Err(RecordFault::Interleaved);
        }
        match kind {
            content::APPLICATION_DATA if content.is_empty() => {
                self.count_empty()?;
                Ok(self.nothing_or_reply())
            }
            content::APPLICATION_DATA => {
                self.empty_records = 0;
                self.key_updates = 0;
                Ok(Incoming::Data(0..0))
            }
            _ if content.is_empty() => Err(RecordFault::EmptyMessage),
            content::ALERT => self.judge_alert(content),
            _ => {
                self.read_handshake(keys, content)?;
                Ok(self.nothing_or_reply())
            }
        }
    }

    fn nothing_or_reply(&self) -> Incoming {
        if self.control_due() { Incoming::Reply } else { Incoming::Nothing }
    }

    pub(crate) fn count_empty(&mut self) -> Result<(), RecordFault> {
        if self.empty_records == EMPTY_RECORDS_MAX {
            return Err(RecordFault::TooManyEmptyRecords);
        }
        self.empty_records += 1;
        Ok(())
    }

    fn judge_alert(&mut self, content: &[u8]) -> Result<Incoming, RecordFault> {
        // RFC 8446 section 5.1: an alert is neither fragmented nor coalesced.
        let &[level, description] = content else {
            return Err(RecordFault::AlertLength(content.len()));
        };
        if !matches!(level, ALERT_LEVEL_WARNING | ALERT_LEVEL_FATAL) {
            return Err(RecordFault::AlertLevel(level));
        }
        if description == alert::CLOSE_NOTIFY {
            self.reading = Reading::Closed;
            return Ok(Incoming::CloseNotify);
        }
        // The level means nothing in TLS 1.3: all except user_canceled are errors (section 6).
        let warning = match self.version {
            Version::Tls13 => description == alert::USER_CANCELED,
            Version::Tls12 => level == ALERT_LEVEL_WARNING,
        };
        if !warning {
            self.fail(Writing::Closed);
            return Ok(Incoming::PeerAlert(description));
        }
        if self.warnings == WARNINGS_MAX {
            return Err(RecordFault::TooManyWarnings);
        }
        self.warnings += 1;
        Ok(Incoming::Nothing)
    }
}

/// additional_data of TLS 1.2: sequence number, type, version, length (RFC 5246 6.2.3.3).
pub(crate) fn tls12_aad(seq: u64, content_type: u8, plain_len: usize) -> [u8; 13] {
    let mut aad = [0; 13];
    aad[..8].copy_from_slice(&seq.to_be_bytes());
    aad[8] = content_type;
    aad[9..11].copy_from_slice(&RECORD_VERSION.to_be_bytes());
    aad[11..].copy_from_slice(&(plain_len as u16).to_be_bytes());
    aad
}

/// True if records carry 8 bytes of nonce after their header (RFC 5288 section 3).
pub(crate) const fn has_explicit_nonce(suite: Suite, version: Version) -> bool {
    matches!((suite, version), (Suite::Aes128Gcm | Suite::Aes256Gcm, Version::Tls12))
}

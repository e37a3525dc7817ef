//! Checks of a handshake's incoming bytes: missing extensions of the hello, record headers, and
//! early data to skip.

use eyelet_record::{HEADER_BYTES, Keys, RecordFault, Role, Session, Suite};
use eyelet_wire::alert::AlertDescription;
use eyelet_wire::hello::Hello;
use eyelet_wire::record::{
    ALERT, APPLICATION_DATA, CHANGE_CIPHER_SPEC, CIPHERTEXT_TLS12_BYTES_MAX,
    CIPHERTEXT_TLS13_BYTES_MAX, HANDSHAKE, PLAINTEXT_BYTES_MAX, RecordHeader,
};
use eyelet_wire::version::TLS13;

/// Extensions that a TLS 1.3 hello must have.
const SUPPORTED_GROUPS: u16 = 10;
const SIGNATURE_ALGORITHMS: u16 = 13;
const KEY_SHARE: u16 = 51;

/// The step for the next record.
#[derive(Debug, PartialEq)]
pub enum Next {
    /// It is not complete.
    NeedMore,
    /// It ends here, and rustls may read it.
    Record(usize),
    /// It may not come here.
    Refused(BadRecord),
}

/// The reason why a record of the client may not come. rustls has no alert for it, or a different
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// RFC 8446 section 5, RFC 5246 section 6.
    #[error("a record of type {0}")]
    Type(u8),
    /// RFC 8446 sections 5.1 and 5.2, RFC 5246 section 6.2.
    #[error("a record of {0} bytes, which is too long")]
    Length(u16),
    /// RFC 8446 section 5, RFC 5246 section 7.1.
    #[error("a malformed ChangeCipherSpec")]
    ChangeCipherSpec,
    /// RFC 8446 section 4.2.10: after a HelloRetryRequest.
    #[error("more early data than is skipped")]
    EarlyData,
    /// RFC 8446 section 5.2: what is not the client's Finished, and too much to be early data.
    #[error("a record that cannot be decrypted")]
    Undecryptable,
}

impl BadRecord {
    /// The alert that answers it.
    pub fn alert(self) -> AlertDescription {
        match self {
            Self::Type(_) | Self::ChangeCipherSpec | Self::EarlyData => {
                AlertDescription::UnexpectedMessage
            }
            Self::Length(_) => AlertDescription::RecordOverflow,
            Self::Undecryptable => AlertDescription::BadRecordMac,
        }
    }
}

/// Early data that may still be skipped.
pub struct EarlyData(usize);

impl EarlyData {
    /// Bytes of content: 2^14, as most servers offer in their tickets, and what one record may add
    /// for padding (RFC 8446 section 5.2).
    const BYTES_MAX: usize = PLAINTEXT_BYTES_MAX + 256;
    /// Bytes that each record counts at least, so that at most 260 are opened in vain.
    const RECORD_BYTES_MIN: usize = 64;
    /// Bytes of a record beside its content: the header, the content type, and the tag.
    const OVERHEAD_BYTES: usize = HEADER_BYTES + 1 + 16;

    /// A budget for as much as any client may send.
    pub fn new() -> Self {
        Self(Self::BYTES_MAX)
    }

    /// Counts a record of this length. Returns `false` if it is too much.
    pub fn skip(&mut self, record_len: usize) -> bool {
        let content_len = record_len.saturating_sub(Self::OVERHEAD_BYTES);
        let left = self.0.checked_sub(content_len.max(Self::RECORD_BYTES_MIN));
        self.0 = left.unwrap_or(0);
        left.is_some()
    }
}

/// True if a TLS 1.3 hello lacks an extension, so that we answer `missing_extension` (RFC 8446
/// section 9.2). A pre-shared key alone does not suffice: we require a new key exchange, and a
/// certificate if the ticket is not ours.
pub fn is_lacking(hello: &Hello<'_>) -> bool {
    let has = |wanted| hello.extensions().any(|extension| extension == wanted);
    hello.version_max() >= TLS13
        && !(has(SUPPORTED_GROUPS) && has(SIGNATURE_ALGORITHMS) && has(KEY_SHARE))
}

/// Checks the record that begins at `at`. `sealed` says that our TLS 1.3 flight was sent. The
/// client's records then look like application data, except alerts and one kind of CCS.
pub fn next_record(incoming: &[u8], at: usize, sealed: bool) -> Next {
    let Some(header) = incoming.get(at..).and_then(RecordHeader::read) else {
        return Next::NeedMore;
    };
    let RecordHeader { content_type, len, .. } = header;
    let fragment_len = usize::from(len);
    let fragment_max = match content_type {
        CHANGE_CIPHER_SPEC | ALERT => CIPHERTEXT_TLS12_BYTES_MAX,
        HANDSHAKE if !sealed => CIPHERTEXT_TLS12_BYTES_MAX,
        APPLICATION_DATA if sealed => CIPHERTEXT_TLS13_BYTES_MAX,
        APPLICATION_DATA => CIPHERTEXT_TLS12_BYTES_MAX,
        other => return Next::Refused(BadRecord::Type(other)),
    };
    if fragment_len > fragment_max {
        return Next::Refused(BadRecord::Length(len));
    }
    let begin = at + HEADER_BYTES;
    let end = begin + fragment_len;
    let Some(fragment) = incoming.get(begin..end) else { return Next::NeedMore };
    if content_type == CHANGE_CIPHER_SPEC && fragment != [1] {
        return Next::Refused(BadRecord::ChangeCipherSpec);
    }
    Next::Record(end)
}

/// The outer content type of a record.
pub fn content_type(record: &[u8]) -> Option<u8> {
    record.first().copied()
}

/// True if a record does not belong to the client's handshake (RFC 8446 section 4.2.10: "ignoring
/// records that fail to deprotect"). It is opened on a copy. The client's sequence number stays 0
/// until one record opens.
pub fn is_early_data(suite: Suite, client_handshake: &[u8], record: &[u8]) -> bool {
    let secret = client_handshake;
    let Ok(mut session) = Session::tls13(Role::Server, suite, secret, secret, 0, 0) else {
        return false;
    };
    session.open(&mut Keys::new(), &mut record.to_vec()) == Err(RecordFault::BadRecordMac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_by_their_headers() {
        let refused = |next, bad| next == Next::Refused(bad);
        assert_eq!(next_record(&[22, 3, 3, 0], 0, false), Next::NeedMore);
        assert_eq!(next_record(&[22, 3, 3, 0, 2, 0], 0, false), Next::NeedMore);
        assert_eq!(next_record(&[9, 22, 3, 3, 0, 2, 0, 0, 22], 1, false), Next::Record(8));
        assert!(refused(next_record(&[22, 3, 3, 0, 2], 0, true), BadRecord::Type(22)));
        assert!(refused(next_record(&[24, 3, 3, 0, 0], 0, false), BadRecord::Type(24)));
        for (sealed, fragment_max) in [(false, 0x4800_u16), (true, 0x4100)] {
            let [high, low] = fragment_max.to_be_bytes();
            assert_eq!(next_record(&[23, 3, 3, high, low], 0, sealed), Next::NeedMore);
            let over = next_record(&[23, 3, 3, high, low + 1], 0, sealed);
            assert!(refused(over, BadRecord::Length(fragment_max + 1)));
        }
        assert_eq!(next_record(&[20, 3, 3, 0, 1, 1], 0, true), Next::Record(6));
        for malformed in [&[20, 3, 3, 0, 1, 2][..], &[20, 3, 3, 0, 0], &[20, 3, 3, 0, 2, 1, 1]] {
            assert!(refused(next_record(malformed, 0, true), BadRecord::ChangeCipherSpec));
        }
    }

    #[test]
    fn early_data_by_the_lengths_of_its_records() {
        let skipped = |content: usize| {
            let mut left = EarlyData::new();
            (0..).take_while(|_| left.skip(5 + content + 1 + 16)).take(1000).count()
        };
        let counts = [0, 1, 64, 4096, 16_384, 16_384 + 239].map(skipped);
        assert_eq!(counts, [260, 260, 260, 4, 1, 1]);
        assert_eq!(skipped(usize::from(u16::MAX)), 0);
    }
}

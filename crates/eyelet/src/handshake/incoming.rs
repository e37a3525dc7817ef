//! Checks of a handshake's incoming bytes: missing extensions of the hello, record headers, and
//! early data to skip.

use eyelet_record::{HEADER_BYTES, Keys, RecordFault, Role, Session, Suite};
use eyelet_wire::alert::AlertDescription;
use eyelet_wire::hello::Hello;
use eyelet_wire::record::{
    ALERT, APPLICATION_DATA, CHANGE_CIPHER_SPEC, CIPHERTEXT_TLS12_BYTES_MAX,
    CIPHERTEXT_TLS13_BYTES_MAX, HANDSHAKE, RecordHeader,
};
use eyelet_wire::version::TLS13;

/// Extensions that a TLS 1.3 hello must have.
const SUPPORTED_GROUPS: u16 = 10;
const SIGNATURE_ALGORITHMS: u16 = 13;
const KEY_SHARE: u16 = 51;

/// What to do with the next record.
#[derive(Debug, PartialEq)]
pub enum Next {
    /// It is not complete.
    NeedMore,
    /// It ends here, and rustls may read it.
    Record(usize),
    /// No such record may come here. rustls has no alert for it, or a different one.
    Refused(AlertDescription, &'static str),
}

/// Whether a TLS 1.3 hello lacks an extension, so that we answer `missing_extension` (RFC 8446
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
        // RFC 8446 section 5, RFC 5246 section 6.
        _ => return Next::Refused(AlertDescription::UnexpectedMessage, "a record of another type"),
    };
    if fragment_len > fragment_max {
        return Next::Refused(AlertDescription::RecordOverflow, "a record is too long");
    }
    let begin = at + HEADER_BYTES;
    let end = begin + fragment_len;
    let Some(fragment) = incoming.get(begin..end) else { return Next::NeedMore };
    if content_type == CHANGE_CIPHER_SPEC && fragment != [1] {
        return Next::Refused(AlertDescription::UnexpectedMessage, "a malformed ChangeCipherSpec");
    }
    Next::Record(end)
}

/// Whether the outer content type of a record is application data.
pub fn is_application_data(record: &[u8]) -> bool {
    record.first() == Some(&APPLICATION_DATA)
}

/// Whether a record does not belong to the client's handshake (RFC 8446 section 4.2.10: "ignoring
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
        use AlertDescription::{RecordOverflow, UnexpectedMessage};
        let refused = |next, alert| matches!(next, Next::Refused(a, _) if a == alert);
        assert_eq!(next_record(&[22, 3, 3, 0], 0, false), Next::NeedMore);
        assert_eq!(next_record(&[22, 3, 3, 0, 2, 0], 0, false), Next::NeedMore);
        assert_eq!(next_record(&[9, 22, 3, 3, 0, 2, 0, 0, 22], 1, false), Next::Record(8));
        assert!(refused(next_record(&[22, 3, 3, 0, 2], 0, true), UnexpectedMessage));
        assert!(refused(next_record(&[24, 3, 3, 0, 0], 0, false), UnexpectedMessage));
        for (sealed, fragment_max) in [(false, 0x4800_u16), (true, 0x4100)] {
            let [high, low] = fragment_max.to_be_bytes();
            assert_eq!(next_record(&[23, 3, 3, high, low], 0, sealed), Next::NeedMore);
            let over = next_record(&[23, 3, 3, high, low + 1], 0, sealed);
            assert!(refused(over, RecordOverflow));
        }
        assert_eq!(next_record(&[20, 3, 3, 0, 1, 1], 0, true), Next::Record(6));
        for malformed in [&[20, 3, 3, 0, 1, 2][..], &[20, 3, 3, 0, 0], &[20, 3, 3, 0, 2, 1, 1]] {
            assert!(refused(next_record(malformed, 0, true), UnexpectedMessage));
        }
    }
}

//! The TLS record header (RFC 8446 5.1), the limits on its length, and the content types.

/// Bytes of a record header: type (1), legacy version (2), length (2).
pub const HEADER_LEN: usize = 5;

/// Most bytes in a `TLSPlaintext` record (RFC 8446 5.1): 2^14.
pub const PLAINTEXT_BYTES_MAX: usize = 1 << 14;

/// Most bytes in a TLS 1.3 `TLSCiphertext` record (RFC 8446 5.2): 2^14 + 256.
pub const CIPHERTEXT_TLS13_BYTES_MAX: usize = PLAINTEXT_BYTES_MAX + 256;

/// Most bytes in a TLS 1.2 `TLSCiphertext` record (RFC 5246 6.2.3): 2^14 + 2048.
pub const CIPHERTEXT_TLS12_BYTES_MAX: usize = PLAINTEXT_BYTES_MAX + 2048;

/// `ContentType.change_cipher_spec`.
pub const CHANGE_CIPHER_SPEC: u8 = 20;
/// `ContentType.alert`.
pub const ALERT: u8 = 21;
/// `ContentType.handshake`.
pub const HANDSHAKE: u8 = 22;
/// `ContentType.application_data`.
pub const APPLICATION_DATA: u8 = 23;

/// The only major version that TLS has ever had on the wire (SSL 3.0 to TLS 1.3).
pub const VERSION_MAJOR: u8 = 3;

/// A record header as sent. Nothing is checked: what is allowed depends on the state of the
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// `ContentType`, see the constants of this module.
    pub content_type: u8,
    /// `legacy_record_version`; 0x0301 or 0x0303 in practice.
    pub version: u16,
    /// Bytes of payload that follow the header.
    pub len: u16,
}

impl RecordHeader {
    /// The header in five bytes of the wire.
    #[inline]
    pub const fn from_bytes([content_type, v0, v1, l0, l1]: [u8; HEADER_LEN]) -> Self {
        Self {
            content_type,
            version: u16::from_be_bytes([v0, v1]),
            len: u16::from_be_bytes([l0, l1]),
        }
    }

    /// Reads the header at the start of `raw`; `None` if it has fewer than [`HEADER_LEN`] bytes.
    #[inline]
    pub const fn read(raw: &[u8]) -> Option<Self> {
        match raw.first_chunk() {
            Some(bytes) => Some(Self::from_bytes(*bytes)),
            None => None,
        }
    }

    /// The header at the start of `raw`, and all that follows it.
    pub const fn split(raw: &[u8]) -> Option<(Self, &[u8])> {
        match (Self::read(raw), raw) {
            (Some(header), [_, _, _, _, _, rest @ ..]) => Some((header, rest)),
            _ => None,
        }
    }

    /// The five bytes on the wire.
    #[inline]
    pub const fn to_bytes(self) -> [u8; HEADER_LEN] {
        let [v0, v1] = self.version.to_be_bytes();
        let [l0, l1] = self.len.to_be_bytes();
        [self.content_type, v0, v1, l0, l1]
    }

    /// Bytes of the whole record, header included.
    #[inline]
    pub const fn record_len(self) -> usize {
        HEADER_LEN + self.len as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let header = RecordHeader { content_type: HANDSHAKE, version: 0x0301, len: 0x0102 };
        assert_eq!(header.to_bytes(), [22, 3, 1, 1, 2]);
        assert_eq!(RecordHeader::read(&header.to_bytes()), Some(header));
        assert_eq!(header.record_len(), 263);
        for cut in 0..HEADER_LEN {
            assert_eq!(RecordHeader::read(&header.to_bytes()[..cut]), None);
        }
    }
}

//! TLS alerts: codes, the RFCs' names, and the plaintext record that carries one.

use core::fmt;

/// Bytes of a plaintext alert record: header (5), level (1), description (1).
pub const FATAL_RECORD_LEN: usize = 7;

/// `AlertLevel.fatal`. Every alert that we send ends the connection. RFC 8446 6 treats all but two
/// alerts as fatal, whatever their level.
const LEVEL_FATAL: u8 = 2;

/// One table, so that code, name and parsing cannot disagree.
macro_rules! alerts {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal;)*) => {
        /// `AlertDescription` of RFC 8446 6 and RFC 5246 7.2, with those later registrations of the
        /// IANA "TLS Alerts" registry that a peer may send today.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum AlertDescription {
            $($(#[$doc])* $variant = $code,)*
        }

        impl AlertDescription {
            /// All of them, in order of their codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name as the RFC spells it, e.g. `unrecognized_name`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The alert with this code, or `None` for one that no RFC in use defines.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The alert with this RFC name, spelled exactly, in lower case.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

alerts! {
    /// The sender will send no more (RFC 8446 6.1).
    CloseNotify = 0, "close_notify";
    /// A message that is not allowed at this point.
    UnexpectedMessage = 10, "unexpected_message";
    /// A record that does not decrypt.
    BadRecordMac = 20, "bad_record_mac";
    /// TLS 1.0 only; kept so that logs can name it.
    DecryptionFailed = 21, "decryption_failed";
    /// A record longer than allowed (RFC 8446 5.1, 5.2).
    RecordOverflow = 22, "record_overflow";
    /// TLS 1.2 and before: compressed data that does not decompress.
    DecompressionFailure = 30, "decompression_failure";
    /// No acceptable set of parameters.
    HandshakeFailure = 40, "handshake_failure";
    /// SSL 3.0 only; kept so that logs can name it.
    NoCertificate = 41, "no_certificate";
    /// A corrupt certificate.
    BadCertificate = 42, "bad_certificate";
    /// A certificate of an unsupported type.
    UnsupportedCertificate = 43, "unsupported_certificate";
    /// A revoked certificate.
    CertificateRevoked = 44, "certificate_revoked";
    /// An expired certificate.
    CertificateExpired = 45, "certificate_expired";
    /// A certificate that is unacceptable for another reason.
    CertificateUnknown = 46, "certificate_unknown";
    /// A field out of range or inconsistent with another.
    IllegalParameter = 47, "illegal_parameter";
    /// A chain that ends in no known authority.
    UnknownCa = 48, "unknown_ca";
    /// A valid request that is not permitted.
    AccessDenied = 49, "access_denied";
    /// A message that could not be decoded.
    DecodeError = 50, "decode_error";
    /// A handshake signature or Finished that does not verify.
    DecryptError = 51, "decrypt_error";
    /// TLS 1.0 only; kept so that logs can name it.
    ExportRestriction = 60, "export_restriction";
    /// No common protocol version.
    ProtocolVersion = 70, "protocol_version";
    /// Stronger parameters were required.
    InsufficientSecurity = 71, "insufficient_security";
    /// A fault that is not the peer's.
    InternalError = 80, "internal_error";
    /// A retry at a lower version than needed (RFC 7507).
    InappropriateFallback = 86, "inappropriate_fallback";
    /// The user ended the handshake.
    UserCanceled = 90, "user_canceled";
    /// TLS 1.2 and before: no renegotiation.
    NoRenegotiation = 100, "no_renegotiation";
    /// A mandatory extension is absent (RFC 8446 9.2).
    MissingExtension = 109, "missing_extension";
    /// An extension that was not offered or is not allowed in this message.
    UnsupportedExtension = 110, "unsupported_extension";
    /// RFC 6066; obsolete in TLS 1.3.
    CertificateUnobtainable = 111, "certificate_unobtainable";
    /// No server for this name (RFC 6066 3).
    UnrecognizedName = 112, "unrecognized_name";
    /// An unacceptable OCSP response.
    BadCertificateStatusResponse = 113, "bad_certificate_status_response";
    /// RFC 6066; obsolete in TLS 1.3.
    BadCertificateHashValue = 114, "bad_certificate_hash_value";
    /// No such pre-shared key.
    UnknownPskIdentity = 115, "unknown_psk_identity";
    /// A client certificate was required.
    CertificateRequired = 116, "certificate_required";
    /// No common application protocol (RFC 7301 3.2).
    NoApplicationProtocol = 120, "no_application_protocol";
    /// Encrypted ClientHello was needed (RFC 9849).
    EchRequired = 121, "ech_required";
}

impl AlertDescription {
    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// A plaintext record with this alert, level fatal. Its version is 0x0303, as RFC 8446 5.1
    /// requires of every record except the first hello. TLS 1.2 clients accept it, too.
    pub const fn fatal_record(self) -> [u8; FATAL_RECORD_LEN] {
        [crate::record::ALERT, 3, 3, 0, 2, LEVEL_FATAL, self.code()]
    }
}

impl fmt::Display for AlertDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_go_both_ways() {
        for &alert in AlertDescription::ALL {
            assert_eq!(AlertDescription::from_code(alert.code()), Some(alert));
            assert_eq!(AlertDescription::from_name(alert.name()), Some(alert));
        }
        assert_eq!(AlertDescription::from_code(1), None);
        assert_eq!(AlertDescription::from_name("Unrecognized_Name"), None);
    }

    /// rustls knows the same names by the same codes.
    #[test]
    #[cfg(not(miri))] // rustls has C, which miri does not run.
    fn agrees_with_rustls() {
        for &alert in AlertDescription::ALL {
            let theirs = std::format!("{:?}", rustls::AlertDescription::from(alert.code()));
            let ours = match alert {
                // rustls spells these two differently.
                AlertDescription::UnrecognizedName => "UnrecognisedName".into(),
                AlertDescription::EchRequired => "EncryptedClientHelloRequired".into(),
                alert => std::format!("{alert:?}"),
            };
            assert_eq!(ours.to_lowercase(), theirs.to_lowercase());
        }
    }

    #[test]
    fn fatal_record_is_a_whole_record() {
        assert_eq!(AlertDescription::UnrecognizedName.fatal_record(), [21, 3, 3, 0, 2, 2, 112]);
    }
}

//! Basic credentials (RFC 7617): a scheme, and a user and a password in base64.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use zeroize::Zeroizing;

const SCHEME: &[u8] = b"basic ";
/// Clients that leave the padding out are read, too. What is written has it.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Decodes the credentials of a field's value. `None`: they are no Basic ones.
pub(crate) fn decode(value: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (scheme, coded) = value.split_at_checked(SCHEME.len())?;
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        return None;
    }
    LENIENT.decode(coded.trim_ascii()).ok().map(Zeroizing::new)
}

/// Makes a field's value of credentials.
pub(crate) fn encode(credentials: &[u8]) -> Zeroizing<Vec<u8>> {
    const SHOWN: &[u8] = b"Basic ";
    let coded = Zeroizing::new(LENIENT.encode(credentials));
    let mut value = Zeroizing::new(Vec::with_capacity(SHOWN.len() + coded.len()));
    value.extend_from_slice(SHOWN);
    value.extend_from_slice(coded.as_bytes());
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_as_servers_read_them() {
        for (value, expected) in [
            (&b"Basic dXNlcjpwYXNz"[..], Some(&b"user:pass"[..])),
            (b"basic dXNlcjpwYXNz", Some(b"user:pass")),
            (b"Basic  dXNlcjpwYXM=", Some(b"user:pas")),
            (b"Basic dXNlcjpwYXM", Some(b"user:pas")),
            (b"Basic", None),
            (b"Basic %%%", None),
            (b"Bearer dXNlcjpwYXNz", None),
        ] {
            assert_eq!(decode(value).as_ref().map(|read| &***read), expected);
        }
        assert_eq!(**encode(b"user:pas"), *b"Basic dXNlcjpwYXM=");
    }
}

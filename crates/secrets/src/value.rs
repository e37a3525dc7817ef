//! The value of a secret, and its search in what must not show it.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use memchr::memmem;
use zeroize::Zeroizing;

/// Fewest bytes of a value. A response that has fewer has them by chance.
pub const SECRET_BYTES_MIN: usize = 8;
/// Most bytes of a value. Servers take heads of so many bytes in all.
pub const SECRET_BYTES_MAX: usize = 16 << 10;
/// A text of fewer bytes is looked through for the first byte of a value. What makes a search of a
/// longer one linear costs more than most fields.
const SHORT_BYTES: usize = 1 << 10;
/// Bytes that base64 makes four characters of.
const GROUP_BYTES: usize = 3;

/// A secret. It is wiped when it is dropped.
pub struct SecretValue {
    bytes: Zeroizing<Vec<u8>>,
    /// The characters of base64 that the value alone decides, behind 0, 1 and 2 other bytes, and
    /// those of base64url that are different.
    coded: Vec<Zeroizing<String>>,
}

/// The reason why bytes are no secret. It shows none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretFault {
    /// There is nothing.
    #[error("it is empty")]
    Empty,
    /// There are too few bytes.
    #[error("it has fewer than {SECRET_BYTES_MIN} bytes: anybody can guess it")]
    Short,
    /// There are too many bytes.
    #[error("it has more than {SECRET_BYTES_MAX} bytes")]
    Long,
    /// There is more than one line.
    #[error("it has more than one line, which no header field can carry")]
    Lines,
    /// A byte that no field's value has, or a blank at an end.
    #[error("it has a control character or a blank at an end, which no header field can carry")]
    Byte,
    /// It has a placeholder: it would be looked for again.
    #[error("it has a placeholder in it; expected the secret itself")]
    Placeholder,
}

impl SecretValue {
    /// Reads a value. One end of a line behind it is cut.
    ///
    /// # Errors
    /// The bytes cannot be a field's value.
    pub fn new(read: &[u8]) -> Result<Self, SecretFault> {
        let value = read.strip_suffix(b"\n").unwrap_or(read);
        let value = value.strip_suffix(b"\r").unwrap_or(value);
        let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
        if value.is_empty() {
            return Err(SecretFault::Empty);
        }
        if value.len() > SECRET_BYTES_MAX {
            return Err(SecretFault::Long);
        }
        if value.iter().any(|byte| b"\r\n".contains(byte)) {
            return Err(SecretFault::Lines);
        }
        let is_bad = |byte: &u8| *byte != b'\t' && byte.is_ascii_control();
        if value.iter().any(is_bad) || is_blank(value.first()) || is_blank(value.last()) {
            return Err(SecretFault::Byte);
        }
        if value.len() < SECRET_BYTES_MIN {
            return Err(SecretFault::Short);
        }
        let forms = |base64: &GeneralPurpose| [0, 1, 2].map(|before| coded(base64, value, before));
        let (mut coded, of_url) = (Vec::from(forms(&STANDARD_NO_PAD)), forms(&URL_SAFE_NO_PAD));
        let is_other = |form: &Zeroizing<String>| form.contains(['-', '_']);
        coded.extend(of_url.into_iter().filter(is_other));
        // Exactly as large: a buffer that grows leaves copies.
        Ok(Self { bytes: Zeroizing::new(value.to_vec()), coded })
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// True if a text has the value, as it is, in base64 or in base64url, wherever it begins there.
    pub(crate) fn is_in(&self, text: &[u8]) -> bool {
        // Most fields are shorter than a token.
        if text.len() < self.bytes.len() {
            return false;
        }
        let has = |part: &[u8]| has(text, part);
        has(&self.bytes) || self.coded.iter().any(|coded| has(coded.as_bytes()))
    }

    /// True if a field's name has the value, in whatever case.
    pub(crate) fn is_in_name(&self, name: &str) -> bool {
        name_has(name, &self.bytes)
    }
}

/// True if a field's name, whose case does not count, has this text.
pub(crate) fn name_has(name: &str, text: &[u8]) -> bool {
    name.as_bytes().windows(text.len().max(1)).any(|part| part.eq_ignore_ascii_case(text))
}

/// True if a text has these bytes.
fn has(text: &[u8], part: &[u8]) -> bool {
    let Some(first) = part.first().filter(|_| text.len() < SHORT_BYTES) else {
        return memmem::find(text, part).is_some();
    };
    let Some(last) = text.len().checked_sub(part.len()) else { return false };
    memchr::memchr_iter(*first, &text[..=last]).any(|at| text[at..].starts_with(part))
}

/// Shows nothing.
impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue")
    }
}

/// The characters that a value has in base64 behind so many other bytes, and before any.
fn coded(base64: &GeneralPurpose, value: &[u8], before: usize) -> Zeroizing<String> {
    let mut padded = Zeroizing::new(Vec::with_capacity(before + value.len()));
    padded.extend_from_slice(&[0; GROUP_BYTES][..before]);
    padded.extend_from_slice(value);
    let all = Zeroizing::new(base64.encode(&*padded));
    // A character has six bits. The first one that has none of the bytes before is the first of
    // the value, and the last one is full if no bit of a next byte is in it.
    let begins = (before * 8).div_ceil(6);
    let ends = padded.len() * 8 / 6;
    Zeroizing::new(all.get(begins..ends).unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use base64::engine::general_purpose::STANDARD;

    use super::*;

    #[test]
    fn only_what_a_field_can_carry_is_a_value() {
        let long = vec![b'a'; SECRET_BYTES_MAX + 1];
        for (read, expected) in [
            (&b"token-123"[..], Ok(&b"token-123"[..])),
            (b"token-123\n", Ok(b"token-123")),
            (b"token-123\r\n", Ok(b"token-123")),
            (b"two words", Ok(b"two words")),
            (b"", Err(SecretFault::Empty)),
            (b"\n", Err(SecretFault::Empty)),
            (b"token-123\n\n", Err(SecretFault::Lines)),
            (b"token\n123 45", Err(SecretFault::Lines)),
            (b"token-123\r\r\n", Err(SecretFault::Lines)),
            (b"token-123 \n", Err(SecretFault::Byte)),
            (b" token-123", Err(SecretFault::Byte)),
            (b"token\0-123", Err(SecretFault::Byte)),
            (b"token\x7f-123", Err(SecretFault::Byte)),
            (b"1234567", Err(SecretFault::Short)),
            (&long, Err(SecretFault::Long)),
        ] {
            let value = SecretValue::new(read);
            assert_eq!(value.as_ref().map(SecretValue::bytes).map_err(|fault| *fault), expected);
        }
    }

    /// Its base64 has `+` and `/`, and its base64url other characters.
    #[test]
    fn a_value_is_found_in_base64url() {
        let token = "a~~~b???c>>>d";
        let value = SecretValue::new(token.as_bytes()).unwrap();
        for before in ["", "u", "us"] {
            let text = URL_SAFE_NO_PAD.encode(format!("{before}{token}:pw"));
            assert!(text.contains(['-', '_']), "{text}");
            assert!(value.is_in(text.as_bytes()), "{before}: {text}");
        }
    }

    #[test]
    fn a_value_is_found_as_it_is_and_in_base64_at_any_place() {
        for token in ["token-123", "token-1234", "token-12345", "12345678"] {
            let value = SecretValue::new(token.as_bytes()).unwrap();
            assert!(value.is_in(format!("a {token} b").as_bytes()), "{token}");
            for before in ["", "u", "us", "use", "user"] {
                for after in ["", ":", ":p", ":pw"] {
                    let text = STANDARD.encode(format!("{before}{token}{after}"));
                    assert!(value.is_in(text.as_bytes()), "{before} {token} {after}: {text}");
                }
            }
            // A long text is searched in another way, and so is one where the value begins often.
            for text in [".".repeat(SHORT_BYTES), token[..7].repeat(9)] {
                assert!(!value.is_in(text.as_bytes()), "{token}");
                assert!(value.is_in(format!("{text}{token}").as_bytes()), "{token}");
                let coded = STANDARD.encode(format!("{text}{token}{text}"));
                assert!(value.is_in(coded.as_bytes()), "{token}");
            }
            let (cut, _) = token.split_at(token.len() - 1);
            assert!(!value.is_in(cut.as_bytes()) && !value.is_in(STANDARD.encode(cut).as_bytes()));
        }
        assert_eq!(format!("{:?}", SecretValue::new(b"token-123").unwrap()), "SecretValue");
    }
}

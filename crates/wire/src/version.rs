//! Versions of TLS: their codes on the wire, their names, and those that are spoken here.

/// SSL 3.0 as its code: the first version with the form of hello that is read here.
pub const SSL30: u16 = 0x0300;
/// TLS 1.0 as its code.
pub const TLS10: u16 = 0x0301;
/// TLS 1.1 as its code.
pub const TLS11: u16 = 0x0302;
/// TLS 1.2 as its code.
pub const TLS12: u16 = 0x0303;
/// TLS 1.3 as its code.
pub const TLS13: u16 = 0x0304;

/// A version that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl Version {
    /// Its code on the wire.
    pub const fn code(self) -> u16 {
        match self {
            Self::Tls12 => TLS12,
            Self::Tls13 => TLS13,
        }
    }
}

/// The versions of TLS that people name by a number, and the number.
const NUMBERS: [(u16, &str); 4] = [(TLS10, "1.0"), (TLS11, "1.1"), (TLS12, "1.2"), (TLS13, "1.3")];

/// The number of a version of TLS, as in configuration and access log: `1.2`.
pub fn number(code: u16) -> Option<&'static str> {
    NUMBERS.into_iter().find_map(|(known, number)| (known == code).then_some(number))
}

/// The version with this number.
pub fn of_number(number: &str) -> Option<u16> {
    NUMBERS.into_iter().find_map(|(code, known)| (known == number).then_some(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_and_its_number_are_one() {
        for (code, text) in [(TLS10, "1.0"), (TLS11, "1.1"), (TLS12, "1.2"), (TLS13, "1.3")] {
            assert_eq!((number(code), of_number(text)), (Some(text), Some(code)));
        }
        assert_eq!((number(SSL30), number(0x0305), of_number("3.0")), (None, None, None));
        assert_eq!([Version::Tls12, Version::Tls13].map(Version::code), [TLS12, TLS13]);
    }
}

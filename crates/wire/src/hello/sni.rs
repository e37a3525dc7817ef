//! The `server_name` extension (RFC 6066 3): the one host name that rules may decide by, or the
//! reason why there is none.

use crate::cursor::Cursor;
use crate::fault::Field;
use alloc::borrow::Cow;
use core::fmt;
use core::net::IpAddr;
use core::ops::Deref;

/// `ExtensionType.server_name`.
pub(crate) const SERVER_NAME: u16 = 0;

/// `NameType.host_name`, the only one ever defined.
const TYPE_HOST_NAME: u8 = 0;

/// Longest host name without a trailing dot. RFC 1035 2.3.4 allows 255 octets on the wire; two of
/// them are not in the text: the first label's length and the root label.
pub const HOST_NAME_BYTES_MAX: usize = 253;

/// Longest label (RFC 1035 2.3.4).
pub const LABEL_BYTES_MAX: usize = 63;

/// The server's name in a hello. The three cases must never be confused: a rule for hellos without
/// a name must not catch a broken one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sni<'a> {
    /// There is no `server_name` extension.
    Absent,
    /// Exactly one well-formed host name, spelled like a [`HostName`]. It borrows the received
    /// bytes if they have no upper-case letter.
    Name(Cow<'a, str>),
    /// A `server_name` extension without a usable name.
    Malformed(SniFault),
}

/// A host name as TLS stacks see it: 1 to 253 bytes of ASCII, lower-cased, labels of 1 to 63
/// letters, digits, `-` and `_`, none starting or ending with `-`, the last one not a number.
#[derive(Clone, Copy)]
pub struct HostName {
    bytes: [u8; HOST_NAME_BYTES_MAX],
    len: u8,
}

/// The reason why a `server_name` extension gives no name. The faults are looked for in this order,
/// so that a name always gets the same reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SniFault {
    /// The list, an item's length or its name runs past the end of the extension.
    Truncated,
    /// Bytes are left over after the list.
    Trailing,
    /// The list has no item.
    EmptyList,
    /// A `NameType` other than `host_name`. RFC 6066 3 makes later types begin with a 16-bit
    /// length, so a reader could skip one. Some stacks drop the rest of the list instead, and then
    /// see another name, or none.
    NameType(u8),
    /// More than one name in the list.
    Duplicated,
    /// A name of no bytes.
    Empty,
    /// A name of more than 253 bytes.
    TooLong,
    /// A NUL byte, which ends the name for some readers.
    Nul,
    /// A byte outside of ASCII. Internationalized names are sent as A-labels (RFC 6066 3).
    NonAscii,
    /// An IPv4 or IPv6 address, which RFC 6066 3 does not permit.
    IpLiteral,
    /// An ASCII character that is not a letter, digit, `-`, `_` or `.`.
    BadCharacter(u8),
    /// A dot at the end: a second spelling of the same name (RFC 6066 3: "without a trailing
    /// dot").
    TrailingDot,
    /// Two dots in a row, or a dot at the start.
    EmptyLabel,
    /// A label of more than 63 bytes.
    LabelTooLong,
    /// A label that starts or ends with a hyphen (RFC 952).
    LabelHyphen,
    /// The last label is a number, also a hexadecimal one: no top-level domain is one (RFC 3696 2),
    /// but some spellings of IPv4 addresses end so, and URLs take them (WHATWG URL, "ends in a
    /// number").
    NumericTopLabel,
}

impl HostName {
    /// Checks and lower-cases a name from a hello. Names in rules are read by this, too, so both
    /// are spelled alike.
    ///
    /// # Errors
    /// The first fault, in the order of [`SniFault`].
    pub fn new(name: &[u8]) -> Result<Self, SniFault> {
        let mut bytes = [0; HOST_NAME_BYTES_MAX];
        let (Some(copy), Ok(len)) = (bytes.get_mut(..name.len()), u8::try_from(name.len())) else {
            return Err(SniFault::TooLong);
        };
        check(name)?;
        copy.copy_from_slice(name);
        copy.make_ascii_lowercase();
        Ok(Self { bytes, len })
    }

    /// The name, lower-case.
    pub fn as_str(&self) -> &str {
        // ASCII by construction: the fallback is never taken.
        self.bytes
            .get(..usize::from(self.len))
            .and_then(|name| core::str::from_utf8(name).ok())
            .unwrap_or_default()
    }
}

/// The letters of a well-formed name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Letters {
    Lower,
    Mixed,
}

fn check(name: &[u8]) -> Result<Letters, SniFault> {
    sound(name).ok_or_else(|| first_fault(name).err().unwrap_or(SniFault::NonAscii))
}

/// Checks that a name is well-formed, in one pass. Nearly every name is.
fn sound(name: &[u8]) -> Option<Letters> {
    let (mut letters, mut label_at) = (Letters::Lower, 0);
    for (at, &byte) in name.iter().enumerate() {
        match CLASSES[usize::from(byte)] {
            Class::Inner => {}
            Class::Upper => letters = Letters::Mixed,
            Class::Dot if is_label(&name[label_at..at]) => label_at = at + 1,
            Class::Dot | Class::Foreign => return None,
        }
    }
    // An IPv4 address ends in a number in every spelling; an IPv6 address has colons.
    let top = &name[label_at..];
    (is_label(top) && !is_number(top)).then_some(letters)
}

/// The class of a byte in a name.
#[derive(Clone, Copy)]
enum Class {
    /// Allowed in a label as it is.
    Inner,
    Upper,
    Dot,
    Foreign,
}

/// A table, because comparisons take three times as long for a digit.
const CLASSES: [Class; 256] = {
    let mut classes = [Class::Foreign; 256];
    let mut byte = 0;
    while byte < classes.len() {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => Class::Inner,
            b'A'..=b'Z' => Class::Upper,
            b'.' => Class::Dot,
            _ => Class::Foreign,
        };
        byte += 1;
    }
    classes
};

fn is_label(label: &[u8]) -> bool {
    label.len() <= LABEL_BYTES_MAX
        && label.first().is_some_and(|&first| first != b'-')
        && label.last() != Some(&b'-')
}

/// True if a label is a decimal number, or `0x` with hexadecimal digits or none.
fn is_number(label: &[u8]) -> bool {
    match label {
        [b'0', b'x' | b'X', digits @ ..] => digits.iter().all(u8::is_ascii_hexdigit),
        digits => digits.iter().all(u8::is_ascii_digit),
    }
}

fn first_fault(name: &[u8]) -> Result<(), SniFault> {
    if name.is_empty() {
        return Err(SniFault::Empty);
    }
    if name.contains(&0) {
        return Err(SniFault::Nul);
    }
    let Some(text) = core::str::from_utf8(name).ok().filter(|text| text.is_ascii()) else {
        return Err(SniFault::NonAscii);
    };
    if text.parse::<IpAddr>().is_ok() {
        return Err(SniFault::IpLiteral);
    }
    let allowed = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if let Some(&bad) = name.iter().find(|b| !allowed(b)) {
        return Err(SniFault::BadCharacter(bad));
    }
    if name.ends_with(b".") {
        return Err(SniFault::TrailingDot);
    }
    check_labels(name)
}

fn check_labels(name: &[u8]) -> Result<(), SniFault> {
    let labels = || name.split(|&b| b == b'.');
    if labels().any(<[u8]>::is_empty) {
        return Err(SniFault::EmptyLabel);
    }
    if labels().any(|label| label.len() > LABEL_BYTES_MAX) {
        return Err(SniFault::LabelTooLong);
    }
    if labels().any(|label| label.starts_with(b"-") || label.ends_with(b"-")) {
        return Err(SniFault::LabelHyphen);
    }
    if labels().next_back().is_some_and(is_number) {
        return Err(SniFault::NumericTopLabel);
    }
    Ok(())
}

/// Reads the extension's body: `ServerName server_name_list<1..2^16-1>`.
#[inline(always)]
pub(super) fn read(body: Cursor<'_>) -> Sni<'_> {
    match host_name(body) {
        Ok(name) => Sni::Name(name),
        Err(fault) => Sni::Malformed(fault),
    }
}

#[inline(always)]
fn host_name(mut body: Cursor<'_>) -> Result<Cow<'_, str>, SniFault> {
    const FIELD: Field = Field::Extension(SERVER_NAME);
    let mut list = body.vec16(FIELD).map_err(|_| SniFault::Truncated)?;
    body.finish(FIELD).map_err(|_| SniFault::Trailing)?;
    let mut only = None;
    while !list.is_empty() {
        let name_type = list.u8(FIELD).map_err(|_| SniFault::Truncated)?;
        if name_type != TYPE_HOST_NAME {
            return Err(SniFault::NameType(name_type));
        }
        let name = list.vec16(FIELD).map_err(|_| SniFault::Truncated)?;
        if only.replace(name.left()).is_some() {
            return Err(SniFault::Duplicated);
        }
    }
    let name = only.ok_or(SniFault::EmptyList)?;
    if name.len() > HOST_NAME_BYTES_MAX {
        return Err(SniFault::TooLong);
    }
    let letters = check(name)?;
    let name = core::str::from_utf8(name).map_err(|_| SniFault::NonAscii)?;
    Ok(match letters {
        Letters::Lower => Cow::Borrowed(name),
        Letters::Mixed => Cow::Owned(name.to_ascii_lowercase()),
    })
}

impl Sni<'_> {
    /// This name without a borrow.
    pub(super) fn into_owned(self) -> Sni<'static> {
        match self {
            Self::Absent => Sni::Absent,
            Self::Name(name) => Sni::Name(Cow::Owned(name.into_owned())),
            Self::Malformed(fault) => Sni::Malformed(fault),
        }
    }
}

impl Deref for HostName {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for HostName {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for HostName {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for HostName {}

impl PartialEq<str> for HostName {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl SniFault {
    /// A word for logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Trailing => "trailing_bytes",
            Self::EmptyList => "empty_list",
            Self::NameType(_) => "name_type",
            Self::Duplicated => "duplicated",
            Self::Empty => "empty",
            Self::TooLong => "too_long",
            Self::Nul => "nul",
            Self::NonAscii => "non_ascii",
            Self::IpLiteral => "ip_literal",
            Self::BadCharacter(_) => "bad_character",
            Self::TrailingDot => "trailing_dot",
            Self::EmptyLabel => "empty_label",
            Self::LabelTooLong => "label_too_long",
            Self::LabelHyphen => "label_hyphen",
            Self::NumericTopLabel => "numeric_top_label",
        }
    }
}

impl fmt::Display for SniFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "server_name is cut short",
            Self::Trailing => "bytes left over after server_name",
            Self::EmptyList => "server_name without a name",
            Self::NameType(t) => return write!(f, "server_name of unknown type {t}"),
            Self::Duplicated => "two names in server_name",
            Self::Empty => "empty host name",
            Self::TooLong => "host name over 253 bytes",
            Self::Nul => "NUL in the host name",
            Self::NonAscii => "host name is not ASCII",
            Self::IpLiteral => "host name is an IP address",
            Self::BadCharacter(b) => return write!(f, "byte {b:#04x} in the host name"),
            Self::TrailingDot => "host name ends in a dot",
            Self::EmptyLabel => "empty label in the host name",
            Self::LabelTooLong => "label over 63 bytes in the host name",
            Self::LabelHyphen => "label in the host name starts or ends with a hyphen",
            Self::NumericTopLabel => "last label of the host name is a number",
        })
    }
}

impl core::error::Error for SniFault {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::string::String;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// The one pass and the search for the first fault agree.
        #[test]
        fn a_name_is_sound_if_it_has_no_fault(
            name in prop_oneof![
                "[a-c0-2._-]{0,12}".prop_map(String::into_bytes),
                "[0-9a-f.:]{0,12}".prop_map(String::into_bytes),
                "([a-z0-9-]{1,3}\\.){0,5}[a-z0-9-]{60,66}".prop_map(String::into_bytes),
                prop::collection::vec(any::<u8>(), 0..6),
            ]
        ) {
            prop_assert_eq!(sound(&name).is_some(), first_fault(&name).is_ok());
        }
    }
}

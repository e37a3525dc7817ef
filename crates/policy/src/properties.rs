//! Properties of a request's path, for any text. A fuzz target and a test assert them.
#![allow(missing_docs)]

use std::borrow::Cow;

use crate::normalize_path;

/// Checks that a path with a normal form is read alike by origins that decode it once, twice, or
/// not at all, and that none of them is led out of a folder. Returns true if it has that form.
///
/// # Panics
/// If that does not hold.
pub fn path_has_one_reading(path: &str) -> bool {
    let Ok(normal) = normalize_path(path) else { return false };
    assert_eq!(normalize_path(&normal), Ok(Cow::Borrowed(&*normal)), "{path}");
    let once = decode(path.as_bytes());
    assert_eq!(decode(normal.as_bytes()), once, "{path}");
    for read in [path.as_bytes(), &once, &decode(&once)] {
        assert!(read.starts_with(b"/") && !read.windows(2).any(|two| two == b"//"), "{path}");
        assert!(!read.iter().any(|byte| matches!(byte, 0 | b'\\' | b';')), "{path}");
        let mut segments = read.split(|byte| *byte == b'/');
        assert!(!segments.any(|segment| segment == b"." || segment == b".."), "{path}");
    }
    true
}

/// Decodes what is encoded, as an origin does.
fn decode(text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (mut decoded, mut rest) = (Vec::new(), text);
    while let [first, behind @ ..] = rest {
        let pair = match behind {
            [high, low, ..] if *first == b'%' => digit(*high).zip(digit(*low)),
            _ => None,
        };
        decoded.push(pair.map_or(*first, |(high, low)| high << 4 | low));
        rest = if pair.is_some() { &behind[2..] } else { behind };
    }
    decoded
}

//! The examples of the W3C's text, and what is one character beside them.
#![allow(clippy::unwrap_used)]

use std::string::String;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::testing::properties::traceparent_is_exact;

const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn parse(text: &str) -> Option<TraceParent> {
    TraceParent::parse(text.as_bytes())
}

#[test]
fn a_valid_field_is_read_and_written() {
    let read = parse(VALID).unwrap();
    assert_eq!(read.trace_id[..2], [0x4b, 0xf9]);
    assert_eq!(read.span_id, [0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
    assert!(read.is_sampled);
    assert_eq!(read.to_bytes(), VALID.as_bytes());
    assert_eq!(hex::<16>(&read.span_id), *b"00f067aa0ba902b7");
}

/// Section 3.2.2.5: a receiver does not act on the flags that it does not know, and sends none.
#[test]
fn only_the_sampled_flag_counts() {
    for (flags, is_sampled) in [("00", false), ("01", true), ("02", false), ("ff", true)] {
        let read = parse(&[&VALID[..53], flags].concat()).unwrap();
        assert_eq!(read.is_sampled, is_sampled, "{flags}");
        assert_eq!(read.to_bytes()[53..], [b'0', b'0' + u8::from(is_sampled)]);
    }
}

#[test]
fn a_higher_version_may_have_more_behind_a_dash() {
    for more in ["", "-", "-what-the-future-brings", "-01"] {
        let read = parse(&["cc", &VALID[2..], more].concat()).unwrap();
        assert_eq!(read.to_bytes(), VALID.as_bytes(), "{more}");
    }
    for (version, more) in [("cc", "x"), ("cc", ".0"), ("00", "-"), ("00", "-01"), ("00", " ")] {
        assert_eq!(parse(&[version, &VALID[2..], more].concat()), None, "{version} {more}");
    }
}

#[test]
fn what_is_not_by_the_text_is_invalid() {
    for (at, instead) in [
        (0, "ff"),
        (0, "0x"),
        (0, " 0"),
        (0, "CC"),
        (2, "_"),
        (3, "4B"),
        (3, "4g"),
        (3, "00000000000000000000000000000000"),
        (35, "0"),
        (36, "0000000000000000"),
        (36, "00F0"),
        (52, "."),
        (53, "0A"),
        (53, "1"),
    ] {
        let mut text = String::from(VALID);
        text.replace_range(at..at + instead.len(), instead);
        // The first digit of the flags alone may be 1.
        let is_valid = (at, instead) == (53, "1");
        assert_eq!(parse(&text).is_some(), is_valid, "{text}");
    }
    for end in 0..VALID.len() {
        assert_eq!(parse(&VALID[..end]), None, "{end}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_exactly(bytes: Vec<u8>) {
        traceparent_is_exact(&bytes);
    }

    #[test]
    fn any_change_is_read_exactly(at in 0..60_usize, with: u8, version in "[0-9a-f]{2}") {
        let mut bytes = [version.as_bytes(), &VALID.as_bytes()[2..], b"-more"].concat();
        if let Some(byte) = bytes.get_mut(at) {
            *byte = with;
        }
        traceparent_is_exact(&bytes);
        traceparent_is_exact(&bytes[..TRACEPARENT_BYTES]);
    }
}

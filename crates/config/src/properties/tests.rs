//! Any text is a checked configuration or a list of mistakes with valid places, any list is read
//! or refused.

use super::list::bytes_are_a_list;
use super::text::text_is_checked;

const EXAMPLES: [&str; 6] = [
    include_str!("../../../../examples/acme.toml"),
    include_str!("../../../../examples/ci.toml"),
    include_str!("../../../../examples/edge.toml"),
    include_str!("../../../../examples/egress.toml"),
    include_str!("../../../../examples/gateway.toml"),
    include_str!("../../../../examples/many-names.toml"),
];
const LISTS: [&str; 3] = [
    include_str!("../../../../examples/allow.txt"),
    include_str!("../../../../examples/builders.txt"),
    "\u{feff}A.example\r\n.b.example\t# c\r\n\r\n*.example\r\n::/0\r\n10.0.0.1",
];
/// Bytes that are inserted at every place of a list.
const LIST_SLIPS: [&[u8]; 12] =
    [b".", b"*", b"*.", b" ", b"#", b"\n", b"\r\n", b"\xff", b"\xef\xbb\xbf", b"/", b":", b"\0"];
/// Typing mistakes; one of them is inserted at every third place.
const SLIPS: [&str; 11] = ["\"", "=", "[", "]", "\n", "\r\n", "#", "*", "9", ",", "\u{e9}"];

#[test]
fn examples_with_slips() {
    for text in EXAMPLES {
        text_is_checked(text);
        for (at, slip) in (0..text.len()).step_by(3).zip(SLIPS.iter().cycle()) {
            let Some((before, after)) = text.split_at_checked(at) else { continue };
            text_is_checked(before);
            text_is_checked(&[before, *slip, after].concat());
        }
    }
}

/// A thousand mistakes in one long line: each keeps only the beginning of that line.
#[test]
fn mistakes_in_one_line() {
    let mut text = "rule = [".to_owned();
    text.push_str(&"{ name = \"a\" }, ".repeat(3_000));
    text.push(']');
    text_is_checked(&text);
}

#[test]
fn excerpts_end_with_their_line() {
    for length in 155..165 {
        for end in ["", "\n", "\r\n"] {
            text_is_checked(&format!("{}{end}", "\u{e9}".repeat(length)));
        }
    }
}

#[test]
fn lists_with_slips() {
    for text in LISTS {
        bytes_are_a_list(text.as_bytes());
        for (at, slip) in (0..text.len()).flat_map(|at| LIST_SLIPS.iter().map(move |s| (at, s))) {
            let (before, after) = text.as_bytes().split_at(at);
            bytes_are_a_list(before);
            bytes_are_a_list(&[before, slip, after].concat());
        }
    }
    bytes_are_a_list(&b"a b\n*.c\n".repeat(1_000));
}

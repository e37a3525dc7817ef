//! Texts whose length a peer has chosen, such as the names of a certificate: cut where they are too
//! long for a log line.

use std::fmt::{self, Write};

/// Most bytes of such a text: four of the longest DNS names. A log line has several.
pub const CLIPPED_BYTES_MAX: usize = 1 << 10;
/// The end of a text that was cut.
const ELLIPSIS: &str = "…";

/// The text, or its beginning and an ellipsis. No more of it is ever written to memory.
pub fn clip(text: impl fmt::Display) -> Box<str> {
    let mut clipped = Clipped(String::new());
    // It stops where the text is cut.
    let _ = write!(clipped, "{text}");
    clipped.0.into()
}

struct Clipped(String);

impl Write for Clipped {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = CLIPPED_BYTES_MAX - self.0.len();
        if part.len() <= room {
            self.0.push_str(part);
            return Ok(());
        }
        // The ellipsis is in place of the end.
        self.0.push_str(&part[..part.floor_char_boundary(room)]);
        self.0.truncate(self.0.floor_char_boundary(CLIPPED_BYTES_MAX - ELLIPSIS.len()));
        self.0.push_str(ELLIPSIS);
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        for text in ["", "short", &"a".repeat(CLIPPED_BYTES_MAX)] {
            assert_eq!(&*clip(text), text);
        }
        for text in ["a", "ab", "ü", "aü", "𝄞a", "abc…"] {
            let text = text.repeat(CLIPPED_BYTES_MAX + 1);
            let clipped = clip(&text);
            assert!(clipped.len() <= CLIPPED_BYTES_MAX, "{}", clipped.len());
            assert!(clipped.len() > CLIPPED_BYTES_MAX - 8, "{}", clipped.len());
            assert!(text.starts_with(clipped.trim_end_matches('…')), "{clipped}");
            assert!(clipped.ends_with('…'), "{clipped}");
        }
        // In parts, as errors write.
        let parts = clip(format_args!("{} {}", "a".repeat(CLIPPED_BYTES_MAX - 1), "ü".repeat(9)));
        assert!(parts.len() <= CLIPPED_BYTES_MAX && parts.ends_with("a…"), "{parts}");
    }
}

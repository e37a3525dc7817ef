//! Any file of a certificate or of revocation lists is read or refused.

#![allow(clippy::unwrap_used)]

use crate::properties::{file_is_read_or_refused, nothing_passes_unsigned};

#[test]
fn lists_that_nobody_has_signed() {
    let texts = ["a.example", "# none\n10.0.0.0/8\n", "[[rule]]\nname = \"a\"\n"];
    for text in texts {
        nothing_passes_unsigned(text.as_bytes());
    }
    for bytes in [&b""[..], b"0", b"0\x80", b"0\x84\xff\xff\xff\xff", b"0\x030\x010"] {
        nothing_passes_unsigned(bytes);
    }
}

#[test]
fn certificates_with_slips() {
    let made = rcgen::generate_simple_self_signed(["app.example".into(), "*.Example".into()]);
    let made = made.unwrap();
    let whole = made.cert.pem() + &made.signing_key.serialize_pem();
    file_is_read_or_refused(whole.as_bytes());
    for at in (0..whole.len()).step_by(7) {
        file_is_read_or_refused(&whole.as_bytes()[..at]);
        let mut changed = whole.clone().into_bytes();
        changed[at] ^= 1;
        file_is_read_or_refused(&changed);
    }
}

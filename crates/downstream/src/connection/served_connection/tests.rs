//! Paths for the log, and the hosts that an inspector may be asked for.

#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn a_long_path_is_cut_between_characters() {
    for (path, chars) in [
        ("/".to_owned(), 1),
        ("\u{e9}".repeat(PATH_CHARS_MAX), PATH_CHARS_MAX),
        ("\u{e9}".repeat(PATH_CHARS_MAX + 1), PATH_CHARS_MAX),
        ("a".repeat(PATH_CHARS_MAX), PATH_CHARS_MAX),
        ("a".repeat(PATH_CHARS_MAX + 1), PATH_CHARS_MAX),
    ] {
        let cut = cut(&path);
        assert_eq!(cut.chars().count(), chars);
        assert!(path.starts_with(cut));
    }
}

#[test]
fn an_inspector_gets_requests_for_what_the_rules_decided_alone() {
    let named = Decided {
        sni: Some("shop.example".into()),
        destination: Some("192.0.2.1:443".parse().unwrap()),
        connect: Some("shop.example:443".into()),
        ..Decided::default()
    };
    let nameless = Decided { sni: None, ..named.clone() };
    let of_address = Decided { connect: Some("192.0.2.1:443".into()), ..nameless.clone() };
    for (decided, host, is_own) in [
        (&named, "shop.example", true),
        (&named, "SHOP.example.:443", true),
        (&named, "shop.example:22", false),
        (&named, "evil.example", false),
        (&named, "192.0.2.1", false),
        (&nameless, "shop.example", true),
        (&nameless, "evil.example", false),
        (&nameless, "192.0.2.1", true),
        (&of_address, "192.0.2.1:443", true),
        (&of_address, "10.0.0.1", false),
        (&of_address, "[::1]", false),
    ] {
        assert_eq!(is_decided(decided, &host.parse().unwrap()), is_own, "{host}");
    }
}

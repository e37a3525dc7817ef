//! The `server_name` extension: one spelling of a name, and a reason for everything else.

use super::*;
use std::vec;

fn list(items: &[Vec<u8>]) -> Vec<u8> {
    ext(0, vec16(items.concat()))
}

/// Our reading of a hello with this `server_name` extension.
fn sni_with(extension: Vec<u8>) -> Sni<'static> {
    sni_of(&Spec::with(&[extension]).raw()).into_owned()
}

#[test]
fn names_are_lower_cased() {
    let long = [vec!["a".repeat(63); 3], vec!["a".repeat(61)]].concat().join(".");
    assert_eq!(long.len(), HOST_NAME_BYTES_MAX);
    let cases = [
        ("host.test", "host.test"),
        ("HoSt.TeSt", "host.test"),
        ("localhost", "localhost"),
        ("a", "a"),
        ("_dmarc._tcp.Host_1.test", "_dmarc._tcp.host_1.test"),
        ("xn--bcher-kva.test", "xn--bcher-kva.test"),
        ("r3---sn-4g5e6nsk.test", "r3---sn-4g5e6nsk.test"),
        ("1.2.3.4.test", "1.2.3.4.test"),
        ("123.test", "123.test"),
        ("a.0x7f.test", "a.0x7f.test"),
        ("a.0x7g", "a.0x7g"),
        (&long, &long),
    ];
    for (sent, seen) in cases {
        assert_eq!(sni_with(sni(sent)), Sni::Name(seen.into()));
        assert_eq!(HostName::new(sent.as_bytes()).unwrap().as_str(), seen);
    }
}

#[test]
fn each_bad_name_has_its_reason() {
    let cases: &[(&[u8], SniFault)] = &[
        (b"", SniFault::Empty),
        (&[b'a'; 254], SniFault::TooLong),
        (&[b'a'; 300], SniFault::TooLong),
        (b"host.test\0.evil", SniFault::Nul),
        (b"\0", SniFault::Nul),
        (b"b\xc3\xbccher.test", SniFault::NonAscii),
        (b"\xff\xfe", SniFault::NonAscii),
        (b"127.1.0.1", SniFault::IpLiteral),
        (b"::1", SniFault::IpLiteral),
        (b"2001:db8::7", SniFault::IpLiteral),
        (b"::ffff:10.0.0.1", SniFault::IpLiteral),
        (b"[::1]", SniFault::BadCharacter(b'[')),
        (b"fe80::1%eth0", SniFault::BadCharacter(b':')),
        (b"host.test\r\n", SniFault::BadCharacter(b'\r')),
        (b"host test", SniFault::BadCharacter(b' ')),
        (b"*.host.test", SniFault::BadCharacter(b'*')),
        (b"host.test:443", SniFault::BadCharacter(b':')),
        (b"a/b", SniFault::BadCharacter(b'/')),
        (b"\x7f", SniFault::BadCharacter(0x7f)),
        (b"host.test.", SniFault::TrailingDot),
        (b".", SniFault::TrailingDot),
        (b"host..test", SniFault::EmptyLabel),
        (b".host.test", SniFault::EmptyLabel),
        (&[b'a'; 64], SniFault::LabelTooLong),
        (b"-a.test", SniFault::LabelHyphen),
        (b"a-.test", SniFault::LabelHyphen),
        (b"a.-", SniFault::LabelHyphen),
        (b"1.2.3", SniFault::NumericTopLabel),
        (b"127.0.0.01", SniFault::NumericTopLabel),
        (b"2130706433", SniFault::NumericTopLabel),
        (b"0x7f000001", SniFault::NumericTopLabel),
        (b"127.0.0.0X1f", SniFault::NumericTopLabel),
        (b"a.0x", SniFault::NumericTopLabel),
    ];
    for (name, fault) in cases {
        let shown = name.escape_ascii();
        assert_eq!(sni_with(sni(name)), Sni::Malformed(*fault), "{shown}");
        assert_eq!(HostName::new(name), Err(*fault), "{shown}");
    }
}

#[test]
fn each_bad_list_has_its_reason() {
    let cases = [
        ("no list", ext(0, []), SniFault::Truncated),
        ("half a length", ext(0, [0]), SniFault::Truncated),
        ("list over the end", ext(0, [0, 9, 0, 0, 1, b'a']), SniFault::Truncated),
        ("list before the end", ext(0, [0, 4, 0, 0, 1, b'a', 0]), SniFault::Trailing),
        ("empty list", list(&[]), SniFault::EmptyList),
        ("type alone", list(&[vec![0]]), SniFault::Truncated),
        ("name over the list", list(&[vec![0, 0, 9, b'a']]), SniFault::Truncated),
        ("other type", list(&[vec![1, 0, 1, b'a']]), SniFault::NameType(1)),
        ("two names", list(&[host_name("a.test"), host_name("b.test")]), SniFault::Duplicated),
        ("same twice", list(&[host_name("a.test"), host_name("a.test")]), SniFault::Duplicated),
        (
            "name and other type",
            list(&[host_name("a.test"), vec![1, 0, 1, b'b']]),
            SniFault::NameType(1),
        ),
    ];
    for (what, extension, fault) in cases {
        assert_eq!(sni_with(extension), Sni::Malformed(fault), "{what}");
    }
}

/// RFC 8446 4.2: "There MUST NOT be more than one extension of the same type". There is no name,
/// whichever of the two a lenient stack would use.
#[test]
fn two_server_name_extensions_are_malformed() {
    let raw = Spec::with(&[sni("a.test"), sni("b.test")]).raw();
    let Peek::Malformed(malformed) = peek(&raw) else { panic!("{:?}", peek(&raw)) };
    assert_eq!(malformed.why, Fault::DuplicateExtension(0));
}

#[test]
fn no_extension_is_no_name_and_no_fault() {
    assert_eq!(sni_of(&Spec::with(&[alpn(&[b"h2"])]).raw()), Sni::Absent);
}

//! Messages as clients send them, each fault, and cuts that do not change the answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::testing::properties::socks_is_stable;
use proptest::prelude::*;
use std::format;
use std::string::ToString;
use std::vec::Vec;

/// A request for a name.
fn to(name: &[u8], port: u16) -> Vec<u8> {
    let len = [u8::try_from(name.len()).unwrap()];
    [&b"\x05\x01\x00\x03"[..], &len, name, &port.to_be_bytes()].concat()
}

#[test]
fn requests_as_clients_send_them() {
    let v6 = b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x07\x01\xbb";
    let mapped = b"\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\x00\x02\x07\x00\x50";
    for (raw, expected) in [
        (to(b"a.test", 443), "a.test:443"),
        (to(b"A.Test", 1), "a.test:1"),
        (to(b"under_score.test", 65535), "under_score.test:65535"),
        (b"\x05\x01\x00\x01\xc0\x00\x02\x07\x00\x16".to_vec(), "192.0.2.7:22"),
        ([b"\x05\x01\x00\x04", &v6[..]].concat(), "[2001:db8::7]:443"),
        ([b"\x05\x01\x00\x04", &mapped[..]].concat(), "192.0.2.7:80"),
        // Addresses as text.
        (to(b"192.0.2.7", 443), "192.0.2.7:443"),
        (to(b"2001:db8::7", 443), "[2001:db8::7]:443"),
    ] {
        let all = [&raw[..], b"\x16\x03\x01 early data"].concat();
        let SocksPeek::Read { len, message } = read_request(&all) else { panic!("{expected}") };
        assert_eq!((len, message.to_string().as_str()), (raw.len(), expected));
        socks_is_stable(&all);
    }
}

#[test]
fn each_fault_of_a_request() {
    let longest = [b'a'; 255];
    for (raw, fault) in [
        (b"\x04\x01".to_vec(), SocksFault::Version(4)),
        (b"\x05\x02".to_vec(), SocksFault::Command(2)),
        (b"\x05\x03".to_vec(), SocksFault::Command(3)),
        (b"\x05\x00".to_vec(), SocksFault::Command(0)),
        (b"\x05\x01\x01".to_vec(), SocksFault::Reserved(1)),
        (b"\x05\x01\x00\x02".to_vec(), SocksFault::AddressKind(2)),
        (to(b"", 443), SocksFault::Host(SniFault::Empty)),
        (to(&longest, 443), SocksFault::Host(SniFault::TooLong)),
        (to(b"a\0.test", 443), SocksFault::Host(SniFault::Nul)),
        (to(b"127.1", 443), SocksFault::Host(SniFault::NumericTopLabel)),
        (to(b"2130706433", 443), SocksFault::Host(SniFault::NumericTopLabel)),
        (to(b"0x7f.0.0.1", 443), SocksFault::Host(SniFault::NumericTopLabel)),
        (to(b"a.test.", 443), SocksFault::Host(SniFault::TrailingDot)),
        (to(b"a.test", 0), SocksFault::Port),
        (b"\x05\x01\x00\x01\xc0\x00\x02\x07\x00\x00".to_vec(), SocksFault::Port),
    ] {
        let read = read_request(&raw);
        assert_eq!(read, SocksPeek::Malformed(fault), "{}", raw.escape_ascii());
        socks_is_stable(&raw);
    }
    // A name of 255 bytes is waited for, although no host has so many.
    assert_eq!(read_request(&to(&longest, 443)[..259]), SocksPeek::NeedMore);
    assert_eq!(SocksFault::Command(2).reply() as u8, 7);
    assert_eq!(SocksFault::AddressKind(2).reply() as u8, 8);
    assert_eq!(SocksFault::Port.reply() as u8, 1);
}

#[test]
fn greetings_and_the_method_that_is_chosen() {
    for (raw, len, open, asking) in [
        (&b"\x05\x01\x00"[..], 3, Method::None, Method::None),
        (b"\x05\x01\x02", 3, Method::Unfit, Method::Password),
        (b"\x05\x02\x00\x02", 4, Method::None, Method::Password),
        // GSSAPI and the user, as curl offers them; then the next message.
        (b"\x05\x03\x00\x01\x02\x01\x00", 5, Method::None, Method::Password),
        (b"\x05\x01\x01", 3, Method::Unfit, Method::Unfit),
        (b"\x05\x02\x01\x80", 4, Method::Unfit, Method::Unfit),
    ] {
        let SocksPeek::Read { len: read, message } = read_greeting(raw) else { panic!("{raw:?}") };
        assert_eq!((read, message.choose(false), message.choose(true)), (len, open, asking));
        socks_is_stable(raw);
    }
    for (raw, fault) in [
        (&b"\x05\x00"[..], SocksFault::NoMethod),
        (b"\x04\x01", SocksFault::Version(4)),
        (b"GET", SocksFault::Version(b'G')),
    ] {
        assert_eq!(read_greeting(raw), SocksPeek::Malformed(fault));
    }
    assert_eq!(read_greeting(b"\x05"), SocksPeek::NeedMore);
    assert_eq!(read_greeting(b"\x05\xff\x00"), SocksPeek::NeedMore);
    assert_eq!(Method::Unfit.answer(), *b"\x05\xff");
}

#[test]
fn users_and_passwords() {
    let (user, password) = ([b'u'; 255], [b'p'; 255]);
    let longest = [b"\x01\xff", &user[..], b"\xff", &password].concat();
    assert_eq!(longest.len(), MESSAGE_BYTES_MAX);
    for (raw, user, password) in [
        (&b"\x01\x05alice\x06secret"[..], &b"alice"[..], &b"secret"[..]),
        (b"\x01\x00\x00", b"", b""),
        (&longest, &user, &password),
    ] {
        let read = read_credentials(raw);
        let message = Credentials { user, password };
        assert_eq!(read, SocksPeek::Read { len: raw.len(), message });
        assert!(!format!("{read:?}").contains("secret"));
        socks_is_stable(raw);
    }
    let fault = SocksPeek::Malformed(SocksFault::CredentialsVersion(5));
    assert_eq!(read_credentials(b"\x05"), fault);
    assert_eq!((credentials_answer(true), credentials_answer(false)), ([1, 0], [1, 1]));
}

proptest! {
    #[test]
    fn any_bytes_have_an_answer(raw in proptest::collection::vec(any::<u8>(), 0..600)) {
        socks_is_stable(&raw);
        socks_is_stable(&[b"\x05\x01\x00", &raw[..]].concat());
        socks_is_stable(&[b"\x01", &raw[..]].concat());
    }
}

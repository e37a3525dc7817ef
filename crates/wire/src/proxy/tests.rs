//! PROXY headers as load balancers send them, each fault, and written headers read back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::header::V2_SIGNATURE;
use super::*;
use proptest::prelude::*;
use std::string::String;
use std::vec;
use std::vec::Vec;

fn proxied(client: &str, destination: &str) -> Command {
    Command::Proxy { client: client.parse().unwrap(), destination: destination.parse().unwrap() }
}

fn v2(version_command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len()).unwrap().to_be_bytes();
    [&V2_SIGNATURE[..], &[version_command, family], &len, body].concat()
}

const TCP4_BODY: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 7, 0xdc, 0x04, 0x01, 0xbb];

#[test]
fn version_1_lines() {
    let longest = "PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff \
                   ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
    let all = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
    let cases = [
        (
            "PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n",
            proxied("192.0.2.1:56324", "198.51.100.7:443"),
        ),
        (
            "PROXY TCP4 255.255.255.255 0.0.0.0 0 65535\r\n",
            proxied("255.255.255.255:0", "0.0.0.0:65535"),
        ),
        ("PROXY TCP6 2001:db8::1 ::1 1 2\r\n", proxied("[2001:db8::1]:1", "[::1]:2")),
        ("PROXY TCP6 ::ffff:10.0.0.1 ::1 1 2\r\n", proxied("[::ffff:10.0.0.1]:1", "[::1]:2")),
        (longest, proxied(all, all)),
        ("PROXY UNKNOWN\r\n", Command::Local),
        ("PROXY UNKNOWN ffff::1 anything at all\r\n", Command::Local),
    ];
    for (line, command) in cases {
        let raw = [line.as_bytes(), b"\x16\x03\x01"].concat();
        let expected = ProxyPeek::Header(ProxyHeader { len: line.len(), command });
        assert_eq!(read(&raw), expected, "{line}");
        assert_eq!(read(line.as_bytes()), expected, "{line}");
    }
}

#[test]
fn version_1_faults() {
    let too_long = std::format!("PROXY UNKNOWN {}\r\n", "x".repeat(92));
    assert_eq!(too_long.len(), V1_LINE_BYTES_MAX + 1);
    let cases = [
        ("PROXY \r\n", ProxyFault::Protocol),
        ("PROXY TCP5 1.2.3.4 1.2.3.4 1 1\r\n", ProxyFault::Protocol),
        ("PROXY tcp4 1.2.3.4 1.2.3.4 1 1\r\n", ProxyFault::Protocol),
        ("PROXY  TCP4 1.2.3.4 1.2.3.4 1 1\r\n", ProxyFault::Protocol),
        ("PROXY UNKNOWNS\r\n", ProxyFault::Protocol),
        ("PROXY TCP4\r\n", ProxyFault::FieldCount),
        ("PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", ProxyFault::FieldCount),
        ("PROXY TCP4 1.2.3.4 1.2.3.4 1 1 \r\n", ProxyFault::FieldCount),
        ("PROXY TCP4 1.2.3.4 1.2.3.4 1 1 1\r\n", ProxyFault::FieldCount),
        ("PROXY TCP4 1.2.3.4  1.2.3.4 1\r\n", ProxyFault::Address),
        ("PROXY TCP4 ::1 ::1 1 1\r\n", ProxyFault::Address),
        ("PROXY TCP6 1.2.3.4 1.2.3.4 1 1\r\n", ProxyFault::Address),
        ("PROXY TCP6 ff01::1 ::1 1 1\r\n", ProxyFault::Address),
        ("PROXY TCP4 1.2.3.04 1.2.3.4 1 1\r\n", ProxyFault::Address),
        ("PROXY TCP4 1.2.3.256 1.2.3.4 1 1\r\n", ProxyFault::Address),
        ("PROXY TCP4 1.2.3.4\t1.2.3.4 1 1 1\r\n", ProxyFault::Address),
        ("PROXY TCP4 1.2.3.4 1.2.3.4 65536 1\r\n", ProxyFault::Port),
        ("PROXY TCP4 1.2.3.4 1.2.3.4 01 1\r\n", ProxyFault::Port),
        ("PROXY TCP4 1.2.3.4 1.2.3.4 +1 1\r\n", ProxyFault::Port),
        ("PROXY TCP4 1.2.3.4 1.2.3.4 -1 1\r\n", ProxyFault::Port),
        ("PROXY TCP4 1.2.3.4 1.2.3.4 1 \r\n", ProxyFault::Port),
        ("PROXY TCP4 1.2.3.4 1.2.3.4 1 1\n", ProxyFault::LineEnd),
        ("PROXY TCP4 1.2.3.4 1.2.3.4 1 1\rX", ProxyFault::LineEnd),
        (&too_long, ProxyFault::LineTooLong),
    ];
    for (line, fault) in cases {
        assert_eq!(read(line.as_bytes()), ProxyPeek::Malformed(fault), "{line:?}");
    }
    // Decided by the first byte that no line can have.
    let endless = std::format!("PROXY UNKNOWN {}", "x".repeat(200));
    assert!(matches!(read(&endless.as_bytes()[..105]), ProxyPeek::NeedMore { at_least: 2 }));
    let fault = ProxyPeek::Malformed(ProxyFault::LineTooLong);
    assert_eq!(read(&endless.as_bytes()[..106]), fault);
    // Later bytes change nothing.
    let late = std::format!("{}\n", &endless[..106]);
    assert_eq!(read(late.as_bytes()), fault);
}

#[test]
fn version_2_headers() {
    let tcp6 = [&[0x20, 1], &[0; 13][..], &[1], &[0; 15], &[1], &[0, 1, 0, 2]].concat();
    let with_tlvs = [&TCP4_BODY[..], &[4, 0, 0], &[0xe0, 0, 2, 9, 9]].concat();
    let destination = "198.51.100.7:443";
    let cases = [
        (v2(0x21, 0x11, &TCP4_BODY), proxied("192.0.2.1:56324", destination)),
        (v2(0x21, 0x11, &with_tlvs), proxied("192.0.2.1:56324", destination)),
        (v2(0x21, 0x21, &tcp6), proxied("[2001::1]:1", "[::1]:2")),
        (v2(0x21, 0x00, &[]), Command::Local),
        (v2(0x21, 0x31, &[b'/'; 216]), Command::Local),
        (v2(0x20, 0x00, &[]), Command::Local),
        (v2(0x20, 0x11, &TCP4_BODY), Command::Local),
        // "the receiver must [...] discard the protocol block including the family".
        (v2(0x20, 0x11, &[1]), Command::Local),
    ];
    for (header, command) in cases {
        let raw = [&header[..], b"\x16\x03"].concat();
        let expected = ProxyPeek::Header(ProxyHeader { len: header.len(), command });
        assert_eq!(read(&raw), expected, "{header:x?}");
        for len in 0..header.len() {
            let needed = read(&raw[..len]);
            let ProxyPeek::NeedMore { at_least } = needed else { panic!("{needed:?}") };
            assert!((1..=header.len() - len).contains(&at_least), "{len}: {at_least}");
        }
    }
}

#[test]
fn version_2_faults() {
    let cases = [
        (v2(0x22, 0x11, &TCP4_BODY), ProxyFault::VersionCommand(0x22)),
        (v2(0x11, 0x11, &TCP4_BODY), ProxyFault::VersionCommand(0x11)),
        (v2(0x31, 0x11, &TCP4_BODY), ProxyFault::VersionCommand(0x31)),
        (v2(0x21, 0x12, &TCP4_BODY), ProxyFault::FamilyTransport(0x12)),
        (v2(0x21, 0x41, &TCP4_BODY), ProxyFault::FamilyTransport(0x41)),
        (v2(0x21, 0x11, &TCP4_BODY[..11]), ProxyFault::AddressesTruncated),
        (v2(0x21, 0x21, &TCP4_BODY), ProxyFault::AddressesTruncated),
        (v2(0x21, 0x11, &[&TCP4_BODY[..], &[1, 0]].concat()), ProxyFault::TlvTruncated),
        (v2(0x21, 0x11, &[&TCP4_BODY[..], &[1, 0, 2, 9]].concat()), ProxyFault::TlvTruncated),
        (v2(0x21, 0x11, &[0; 4081]), ProxyFault::TooLong { header_bytes: 4097 }),
    ];
    for (raw, fault) in cases {
        assert_eq!(read(&raw), ProxyPeek::Malformed(fault), "{raw:x?}");
    }
    assert!(matches!(read(&v2(0x21, 0x11, &[0; 4080])[..16]), ProxyPeek::NeedMore { .. }));
}

#[test]
fn what_is_no_header_is_said_at_once() {
    for raw in [&b"\x16\x03\x01"[..], b"GET / HTTP/1.1", b"PROXX", b"proxy ", b"\r\nQUIT", b"\0"] {
        assert_eq!(read(raw), ProxyPeek::NotProxy, "{raw:x?}");
    }
    for raw in [&b""[..], b"P", b"PROXY", b"\r\n\r\n\0\r\nQUI"] {
        assert!(matches!(read(raw), ProxyPeek::NeedMore { .. }), "{raw:x?}");
    }
    assert_eq!(read(b""), ProxyPeek::NeedMore { at_least: 15 });
}

#[test]
fn writes_the_bytes_of_the_specification() {
    let mut out = [0; V2_WRITTEN_BYTES_MAX];
    let tlvs = Tlvs {
        alpn: Some(b"h2"),
        authority: Some("host.test"),
        ssl: Some(Ssl {
            version: "TLSv1.3",
            cipher: "TLS_AES_128_GCM_SHA256",
            common_name: Some("client"),
            client_certificate: true,
            client_certificate_here: true,
        }),
    };
    let command = proxied("192.0.2.1:56324", "198.51.100.7:443");
    let len = write_v2(&mut out, command, &tlvs).unwrap();
    let ssl = [
        &[7, 0, 0, 0, 0, 0x21, 0, 7][..],
        b"TLSv1.3",
        &[0x22, 0, 6],
        b"client",
        &[0x23, 0, 22],
        b"TLS_AES_128_GCM_SHA256",
    ]
    .concat();
    let body = [
        &TCP4_BODY[..],
        &[1, 0, 2],
        b"h2",
        &[2, 0, 9],
        b"host.test",
        &[0x20, 0, u8::try_from(ssl.len()).unwrap()],
        &ssl,
    ]
    .concat();
    assert_eq!(out[..len], v2(0x21, 0x11, &body));
    assert_eq!(read(&out[..len]), ProxyPeek::Header(ProxyHeader { len, command }));
}

#[test]
fn says_what_it_knows_of_the_client_certificate() {
    let flags = |client_certificate, client_certificate_here| {
        let ssl = Ssl {
            version: "",
            cipher: "",
            common_name: None,
            client_certificate,
            client_certificate_here,
        };
        let mut out = [0; V2_WRITTEN_BYTES_MAX];
        let tlvs = Tlvs { ssl: Some(ssl), ..Tlvs::default() };
        write_v2(&mut out, proxied("[::1]:1", "[::1]:2"), &tlvs).unwrap();
        (out[16 + 36 + 3], out[16 + 36 + 7])
    };
    assert_eq!(flags(false, false), (1, 1));
    assert_eq!(flags(false, true), (1, 1));
    assert_eq!(flags(true, false), (5, 0));
    assert_eq!(flags(true, true), (7, 0));
}

#[test]
fn writes_local_and_mixed_families() {
    let mut out = [0xee; V2_WRITTEN_BYTES_MAX];
    let tlvs = Tlvs { authority: Some("host.test"), ..Tlvs::default() };
    assert_eq!(write_v2(&mut out, Command::Local, &tlvs), Ok(16));
    assert_eq!(out[..16], v2(0x20, 0, &[]));

    let command = proxied("192.0.2.1:1", "[::1]:2");
    let len = write_v2(&mut out, command, &Tlvs::default()).unwrap();
    let command = proxied("[::ffff:192.0.2.1]:1", "[::1]:2");
    assert_eq!(read(&out[..len]), ProxyPeek::Header(ProxyHeader { len, command }));
}

#[test]
fn what_does_not_fit_is_said() {
    let command = proxied("[::1]:1", "[::1]:2");
    let longest = "x".repeat(256);
    let tlvs = Tlvs {
        alpn: Some(longest.as_bytes()),
        authority: Some(&longest),
        ssl: Some(Ssl {
            version: &longest,
            cipher: &longest,
            common_name: Some(&longest),
            client_certificate: false,
            client_certificate_here: false,
        }),
    };
    let mut out = vec![0; V2_WRITTEN_BYTES_MAX];
    assert_eq!(write_v2(&mut out, command, &tlvs), Ok(V2_WRITTEN_BYTES_MAX));
    for len in 0..V2_WRITTEN_BYTES_MAX {
        assert_eq!(write_v2(&mut out[..len], command, &tlvs), Err(NoRoom));
    }
    let longer = longest.clone() + "x";
    let tlvs = Tlvs { authority: Some(&longer), ..Tlvs::default() };
    assert_eq!(write_v2(&mut out, command, &tlvs), Err(NoRoom));
}

fn start() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(V2_SIGNATURE.to_vec()),
        Just([&V2_SIGNATURE[..], &[0x21, 0x11, 0, 20]].concat()),
        Just(b"PROXY ".to_vec()),
        Just(b"PROXY TCP4 1.2.3.4 1.2.3.4 ".to_vec()),
        Just(Vec::new()),
    ]
}

proptest! {
    /// One answer, however the bytes arrive, and no panic.
    #[test]
    fn the_answer_does_not_depend_on_segments(
        start in start(),
        rest in "[ 0-9.\r\n:TCP\\x00-\\x40]{0,60}",
    ) {
        let raw = [&start[..], rest.as_bytes()].concat();
        let first = (0..=raw.len()).map(|len| (len, read(&raw[..len])))
            .find(|(_, answer)| !matches!(answer, ProxyPeek::NeedMore { .. }));
        match first {
            Some((_, answer)) => prop_assert_eq!(answer, read(&raw)),
            None => {
                let waits = matches!(read(&raw), ProxyPeek::NeedMore { .. });
                prop_assert!(waits);
            }
        }
    }

    #[test]
    fn what_is_written_is_read(
        client: core::net::SocketAddrV4,
        destination: core::net::SocketAddrV4,
        authority in prop::option::of("[a-z.]{1,253}"),
    ) {
        let command = Command::Proxy { client: client.into(), destination: destination.into() };
        let authority: Option<String> = authority;
        let tlvs = Tlvs { authority: authority.as_deref(), ..Tlvs::default() };
        let mut out = [0; V2_WRITTEN_BYTES_MAX];
        let len = write_v2(&mut out, command, &tlvs).unwrap();
        prop_assert_eq!(read(&out[..len]), ProxyPeek::Header(ProxyHeader { len, command }));
    }
}

#[test]
fn a_name_counts_that_the_sender_has_verified() {
    let client = core::net::SocketAddr::from(([192, 0, 2, 7], 1));
    let command = Command::Proxy { client, destination: client };
    let ssl = |common_name, client_certificate| Ssl {
        version: "TLSv1.3",
        cipher: "TLS_AES_128_GCM_SHA256",
        common_name,
        client_certificate,
        client_certificate_here: false,
    };
    for (ssl, expected) in [
        (Some(ssl(Some("build-1"), true)), Some("build-1")),
        (Some(ssl(Some("build-1"), false)), None),
        (Some(ssl(None, true)), None),
        (None, None),
    ] {
        let mut out = [0; V2_WRITTEN_BYTES_MAX];
        let tlvs = Tlvs { alpn: Some(b"h2"), authority: Some("a.test"), ssl };
        let len = write_v2(&mut out, command, &tlvs).unwrap();
        assert_eq!(client_name(&out[..len]), expected, "{ssl:?}");
        for cut in 0..len {
            // A header that is not whole has no name, or the same one.
            assert!(client_name(&out[..cut]).is_none_or(|name| Some(name) == expected));
        }
    }
    assert_eq!(client_name(b"PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\n"), None);
    // The verification has failed.
    let mut out = [0; V2_WRITTEN_BYTES_MAX];
    let tlvs = Tlvs { ssl: Some(ssl(Some("x"), true)), ..Tlvs::default() };
    let len = write_v2(&mut out, command, &tlvs).unwrap();
    // Signature, lengths, addresses, the TLV's own header, and the bits before it.
    out[16 + 12 + 3 + 1 + 3] ^= 1;
    assert_eq!(client_name(&out[..len]), None);
}

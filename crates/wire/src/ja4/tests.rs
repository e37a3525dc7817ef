//! JA4: FoxIO's published examples, rebuilt as hellos from their raw forms, and rules of the
//! specification that no example covers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::hello::{HelloReader, Peek};
use crate::testing::*;
use std::cell::RefCell;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

fn sha256(text: &[u8]) -> [u8; 32] {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text).as_ref().try_into().unwrap()
}

fn ja4_of(raw: &[u8], hash: impl Fn(&[u8]) -> [u8; 32]) -> String {
    match HelloReader::new(1 << 18).feed(raw) {
        Peek::Hello(hello) => ja4(&hello, hash).to_string(),
        other => panic!("no hello: {other:?}"),
    }
}

/// `JA4_ro` (raw, in the order of the hello) and `JA4` of captures that FoxIO published: the
/// example of `technical_details/JA4.md`, then `python/test/testdata` in their repository.
const PUBLISHED: &[(&str, &str)] = &[
    (
        "t13d1516h2_1301,1302,1303,c02b,c02f,c02c,c030,cca9,cca8,c013,c014,009c,009d,002f,0035_\
         001b,0000,0033,0010,4469,0017,002d,000d,0005,0023,0012,002b,ff01,000b,000a,0015_\
         0403,0804,0401,0503,0805,0501,0806,0601",
        "t13d1516h2_8daaf6152771_e5627efa2ab1",
    ),
    // badcurveball.pcap
    (
        "t13d1615h2_1301,1302,1303,c02b,c02f,c02c,c030,cca9,cca8,c013,c014,009c,009d,002f,0035,\
         000a_0000,0017,ff01,000a,000b,0023,0010,0005,000d,0012,0033,002d,002b,001b,0015_\
         0403,0804,0401,0503,0805,0501,0806,0601,0201",
        "t13d1615h2_46e7e9700bed_45f260be83e2",
    ),
    // sigalg-grease.pcapng
    (
        "t13d1517h2_1301,1302,1303,c02b,c02f,c02c,c030,cca9,cca8,c013,c014,009c,009d,002f,0035_\
         fe0d,0010,0017,0033,44cd,ff01,000a,000d,0023,002b,000b,ca34,002d,0000,0005,001b,0012_\
         0904,0905,0906,0403,0804,0401,0503,0805,0501,0806,0601",
        "t13d1517h2_8daaf6152771_cb7bf5808d99",
    ),
    // tls-sni.pcapng, stream 6: no ALPN
    (
        "t13d151400_1301,1302,1303,c02b,c02f,c02c,c030,cca9,cca8,c013,c014,009c,009d,002f,0035_\
         0033,002b,001b,0000,0012,002d,000d,000a,0005,0023,0017,ff01,000b,0015_\
         0403,0804,0401,0503,0805,0501,0806,0601",
        "t13d151400_8daaf6152771_de4a06bb82e3",
    ),
    // tls-sni.pcapng, stream 5: http/1.1
    (
        "t13d1516h1_1301,1302,1303,c02b,c02f,c02c,c030,cca9,cca8,c013,c014,009c,009d,002f,0035_\
         000d,0033,0000,ff01,002b,0023,002d,0005,0012,000b,0017,4469,0010,001b,000a,0015_\
         0403,0804,0401,0503,0805,0501,0806,0601",
        "t13d1516h1_8daaf6152771_e5627efa2ab1",
    ),
    // latest.pcapng, stream 3: TLS 1.2
    (
        "t12d190800_c02c,c02b,c030,c02f,c024,c023,c028,c027,c00a,c009,c014,c013,009d,009c,003d,\
         003c,0035,002f,000a_0000,0005,000a,000b,000d,0023,0017,ff01_\
         0804,0805,0806,0401,0501,0201,0403,0503,0203,0202,0601,0603",
        "t12d190800_d83cc789557e_7af1ed941c26",
    ),
    // latest.pcapng, stream 5: pre-shared key
    (
        "t13d1516h2_1301,1302,1303,c02b,c02f,c02c,c030,cca9,cca8,c013,c014,009c,009d,002f,0035_\
         000d,0010,0000,000b,0023,4469,ff01,0033,000a,002d,002b,0005,0017,0012,001b,0029_\
         0403,0804,0401,0503,0805,0501,0806,0601",
        "t13d1516h2_8daaf6152771_9b887d9acb53",
    ),
];

fn values(list: &str) -> Vec<u16> {
    list.split(',').map(|hex| u16::from_str_radix(hex, 16).unwrap()).collect()
}

/// A hello with this raw fingerprint and GREASE everywhere.
fn rebuild(raw_form: &str) -> Vec<u8> {
    let [a, suites, extensions, algorithms] =
        raw_form.split('_').collect::<Vec<_>>().try_into().unwrap();
    let alpn_name: &[u8] = if a.ends_with("h1") { b"http/1.1" } else { b"h2" };
    let version = if a.starts_with("t13") { 0x0304 } else { 0x0303 };
    let algorithms = [&[0x3a3a], &values(algorithms)[..]].concat();
    let extensions = values(extensions).into_iter().map(|extension_type| match extension_type {
        13 => signature_algorithms(&algorithms),
        16 => alpn(&[alpn_name, b"other"]),
        43 => versions(&[0xfafa, version, 0x0303]),
        other => any_ext(other),
    });
    let spec = Spec {
        cipher_suites: [&[0x0a0a], &values(suites)[..]].concat(),
        extensions: [ext(0xaaaa, [])].into_iter().chain(extensions).collect(),
        ..Spec::default()
    };
    spec.raw()
}

#[test]
fn published_examples() {
    for (raw_form, expected) in PUBLISHED {
        assert_eq!(ja4_of(&rebuild(raw_form), sha256), *expected);
    }
}

/// The hashed texts are those of the specification's example.
#[test]
fn hashes_the_text_of_the_specification() {
    let texts = RefCell::new(Vec::new());
    ja4_of(&rebuild(PUBLISHED[0].0), |text| {
        texts.borrow_mut().push(String::from_utf8(text.to_vec()).unwrap());
        [0xab; 32]
    });
    assert_eq!(
        *texts.borrow(),
        [
            "002f,0035,009c,009d,1301,1302,1303,c013,c014,c02b,c02c,c02f,c030,cca8,cca9",
            "0005,000a,000b,000d,0012,0015,0017,001b,0023,002b,002d,0033,4469,ff01_\
             0403,0804,0401,0503,0805,0501,0806,0601",
        ]
    );
}

/// The text without signature algorithms: "6d807ffa2a79" in the specification, which leaves
/// `000d` in the list. A hello with that extension has an algorithm, so it is a GREASE one here.
#[test]
fn without_signature_algorithms_there_is_no_underscore() {
    let raw_form = PUBLISHED[0].0.rsplit_once('_').unwrap().0;
    let raw = rebuild(&std::format!("{raw_form}_2a2a"));
    assert_eq!(ja4_of(&raw, sha256), "t13d1516h2_8daaf6152771_6d807ffa2a79");
}

/// The examples of "ALPN Extension Value", and the rules around them.
#[test]
fn alpn_by_its_first_and_last_character() {
    let cases: &[(&[u8], &str)] = &[
        (b"h2", "h2"),
        (b"http/1.1", "h1"),
        (b"a", "aa"),
        (b"H-Z", "HZ"),
        (&[0xab], "ab"),
        (&[0xab, 0xcd], "ad"),
        (&[0x30, 0xab], "3b"),
        (&[0x30, 0x31, 0xab, 0xcd], "3d"),
        (&[0x30, 0xab, 0xcd, 0x31], "01"),
        // GREASE: "GREASE values anywhere" are two-byte values, and a protocol name may be one.
        (&[0x0a, 0x0a], "0a"),
        (b"-x", "28"),
    ];
    for (name, expected) in cases {
        let fingerprint = ja4_of(&Spec::with(&[alpn(&[name])]).raw(), sha256);
        assert_eq!(&fingerprint[8..10], *expected, "{name:x?}");
    }
    assert_eq!(&ja4_of(&Spec::with(&[]).raw(), sha256)[8..10], "00");
}

#[test]
fn versions_by_their_names() {
    let cases: &[(u16, Option<&[u16]>, &str)] = &[
        (0x0303, Some(&[0x0303, 0x0304]), "13"),
        (0x0303, None, "12"),
        (0x0302, None, "11"),
        (0x0301, None, "10"),
        (0x0300, None, "s3"),
        (0x0002, None, "s2"),
        (0xfeff, None, "d1"),
        (0xfefd, None, "d2"),
        (0x0303, Some(&[0xfefc]), "d3"),
        (0x0303, Some(&[0x0a0a, 0x0301]), "10"),
        (0x0303, Some(&[0x1a1a]), "00"),
        (0x0999, None, "00"),
    ];
    for &(legacy_version, offered, expected) in cases {
        let extensions = offered.map(versions).into_iter().collect();
        let raw = Spec { legacy_version, extensions, ..Spec::default() }.raw();
        assert_eq!(&ja4_of(&raw, sha256)[1..3], expected, "{legacy_version:x} {offered:x?}");
    }
}

#[test]
fn what_is_absent_is_zeroes() {
    let raw = Spec { cipher_suites: vec![0x0a0a], ..Spec::with(&[ext(0x0a0a, [])]) }.raw();
    assert_eq!(ja4_of(&raw, sha256), "t12i000000_000000000000_000000000000");
    let raw = Spec { cipher_suites: vec![0x0a0a], ..Spec::with(&[sni("a.test")]) }.raw();
    assert_eq!(ja4_of(&raw, sha256), "t12d000100_000000000000_000000000000");
    // "If the SNI extension (0x0000) exists": also one without a name.
    let raw = Spec { cipher_suites: vec![0x0a0a], ..Spec::with(&[ext(0, [])]) }.raw();
    assert_eq!(ja4_of(&raw, sha256), "t12d000100_000000000000_000000000000");
}

#[test]
fn counts_stop_at_99_and_hashing_at_the_limit() {
    let suites = |len: u16| (0x2000..0x2000 + len).collect::<Vec<_>>();
    let with = |len| Spec { cipher_suites: suites(len), ..Spec::with(&[]) }.raw();
    assert!(ja4_of(&with(99), sha256).starts_with("t12i990000_"));
    assert!(ja4_of(&with(100), sha256).starts_with("t12i990000_"));
    let limit = u16::try_from(LIST_LEN_MAX).unwrap();
    assert!(!ja4_of(&with(limit), sha256).contains("ffffffffffff"));
    assert_eq!(ja4_of(&with(limit + 1), sha256), "t12i990000_ffffffffffff_000000000000");

    let many = (0x3000..0x3000 + limit + 1).map(|t| ext(t, [])).collect::<Vec<_>>();
    let fingerprint = ja4_of(&Spec::with(&many).raw(), sha256);
    assert!(fingerprint.starts_with("t12i029900_") && fingerprint.ends_with("_ffffffffffff"));
    let longest = [signature_algorithms(&suites(limit)), sni("a.test")];
    assert!(!ja4_of(&Spec::with(&longest).raw(), sha256).contains("ffffffffffff"));
    let longer = [signature_algorithms(&suites(limit + 1))];
    assert!(ja4_of(&Spec::with(&longer).raw(), sha256).ends_with("_ffffffffffff"));
}

/// Buffers of both sizes give the same hash, up to the last entry that fits the small ones.
#[test]
fn both_buffer_sizes_give_the_same_fingerprint() {
    for len in [1, 2, LIST_LEN_USUAL - 1, LIST_LEN_USUAL, LIST_LEN_USUAL + 1] {
        let values: Vec<u16> = (0..len).map(|n| 0x9000 - 7 * u16::try_from(n).unwrap()).collect();
        let types = values[1..].iter().map(|t| ext(*t, []));
        let spec = Spec {
            cipher_suites: values.clone(),
            extensions: types.chain([signature_algorithms(&values), sni("a.test")]).collect(),
            ..Spec::default()
        };
        let raw = spec.raw();
        let mut reader = HelloReader::new(1 << 18);
        let Peek::Hello(hello) = reader.feed(&raw) else { panic!("no hello of {len}") };
        let hash = |list: &[u16]| list_hash(list, sha256);
        let (count, usual) = suites::<LIST_LEN_USUAL>(&hello, hash);
        assert_eq!((count, usual.is_some()), (len, len <= LIST_LEN_USUAL));
        let (long_count, long) = long_suites(&hello, hash);
        assert!(long_count == count && long == usual.or(long));
        let (count, usual) = extensions::<LIST_LEN_USUAL>(&hello, hash);
        assert_eq!((count, usual.is_some()), (len + 1, len <= LIST_LEN_USUAL));
        let (long_count, long) = long_extensions(&hello, hash);
        assert!(long_count == count && long == usual.or(long));
        // And the same by the specification: sorted, in hex, with commas between.
        let hex = |values: &[u16]| {
            values.iter().map(|v| std::format!("{v:04x}")).collect::<Vec<_>>().join(",")
        };
        let sorted: Vec<u16> = values.iter().rev().copied().collect();
        let others = [&[13], &sorted[..len - 1]].concat();
        let texts = RefCell::new(Vec::new());
        ja4(&hello, |text| {
            texts.borrow_mut().push(String::from_utf8(text.to_vec()).unwrap());
            [0; 32]
        });
        let expected = [hex(&sorted), std::format!("{}_{}", hex(&others), hex(&values))];
        assert_eq!(*texts.borrow(), expected);
    }
}

#[test]
fn a_fingerprint_is_read_back_and_nothing_else() {
    let good = "t13d1516h2_8daaf6152771_b186095e22b6";
    assert_eq!(Ja4::parse(good).as_ref().map(Ja4::as_str), Some(good));
    let with = |part: &str| good.replacen("h2", part, 1);
    for bad in [&good[1..], &with("h22"), &with("h\""), &with("h "), &with("\u{e9}"), ""] {
        assert!(Ja4::parse(bad).is_none(), "{bad:?}");
    }
}

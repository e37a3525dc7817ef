//! Hellos of every kind, read by us and by OpenSSL: we never read another name than a server behind
//! us would. The crate `wire` compares itself with rustls.

use std::process::Command;

use eyelet_wire::hello::{Fault, Field, HelloReader, Malformed, Peek, Sni, SniFault};

use crate::support::pki::Kind;
use crate::support::{Hello, Pki, need, noise, output, records};

const CAPTURED: [&[u8]; 8] = [
    include_bytes!("../../../wire/src/testdata/curl.bin"),
    include_bytes!("../../../wire/src/testdata/go.bin"),
    include_bytes!("../../../wire/src/testdata/java.bin"),
    include_bytes!("../../../wire/src/testdata/node.bin"),
    include_bytes!("../../../wire/src/testdata/openssl-no-name.bin"),
    include_bytes!("../../../wire/src/testdata/openssl-tls12.bin"),
    include_bytes!("../../../wire/src/testdata/openssl-tls13.bin"),
    include_bytes!("../../../wire/src/testdata/python.bin"),
];

/// Each captured hello with one to three bytes changed, most of them among lengths and names.
const CHANGES_A_HELLO: usize = 500;
const SERVER_NAME: u16 = 0;
/// The limit of Eyelet.
const HELLO_BYTES_MAX: usize = 65_536;

/// Returns OpenSSL's reading of each.
fn theirs(hellos: &[Vec<u8>]) -> Vec<String> {
    let pki = Pki::new();
    pki.server("server", &["host.test"], Kind::P256);
    let all: Vec<u8> = hellos
        .iter()
        .flat_map(|raw| [&u32::try_from(raw.len()).unwrap().to_be_bytes(), &raw[..]].concat())
        .collect();
    let file = pki.folder.write("hellos.bin", all);
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/hellos.py");
    let mut command = Command::new("python3");
    // Its warnings about old versions would lie between its answers, in any order.
    command.args(["-W", "ignore", program, file.to_str().unwrap(), &pki.text("server.pem")]);
    let said = output(command.arg(pki.text("server.key")));
    assert!(said.status.success(), "{}", said.text);
    let lines: Vec<String> = said.text.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), hellos.len(), "{}", said.text);
    lines
}

fn changed(hello: &[u8], seed: u64) -> Vec<u8> {
    let mut raw = hello.to_vec();
    let random = noise(16, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for change in random[1..].chunks(3).take(1 + usize::from(random[0] % 3)) {
        let at = (usize::from(change[0]) << 8 | usize::from(change[1])) % raw.len();
        raw[at] = match random[0] >> 4 {
            0..6 => change[2],
            6..9 => raw[at].wrapping_add(1),
            9..12 => raw[at].wrapping_sub(1),
            _ => change[2] % 8,
        };
    }
    raw
}

fn named(list: &[(u8, &[u8])]) -> Vec<u8> {
    let items = list.iter().map(|(kind, name)| {
        [&[*kind][..], &u16::try_from(name.len()).unwrap().to_be_bytes(), name].concat()
    });
    let items = items.collect::<Vec<_>>().concat();
    [&u16::try_from(items.len()).unwrap().to_be_bytes(), &items[..]].concat()
}

/// By hand: what mutation seldom comes upon.
fn odd() -> Vec<Vec<u8>> {
    let long = |label: usize, count| vec!["a".repeat(label); count].join(".").into_bytes();
    let names: [&[u8]; 22] = [
        b"host.test",
        b"HOST.Test",
        b"host.test.",
        b"host..test",
        b".host.test",
        b"-a.test",
        b"a-.test",
        b"a_b.test",
        b"1.2.3",
        b"127.1.0.1",
        b"::1",
        b"host",
        b"host.test\0.evil",
        b"host.test\r\n",
        b"h\xc3\xb6st.test",
        b"\xff\xfe",
        b"",
        b" ",
        b"*.test",
        b"a/b",
        &long(63, 4)[..253],
        &long(64, 2),
    ];
    let mut hellos: Vec<Vec<u8>> =
        names.iter().map(|name| records(&Hello::named(name).message(), &[])).collect();
    for name in [long(63, 4), long(60, 5)] {
        hellos.push(records(&Hello::named(name).message(), &[]));
    }
    let lists: [&[(u8, &[u8])]; 7] = [
        &[],
        &[(0, b"a.test"), (0, b"b.test")],
        &[(1, b"a.test")],
        &[(1, b"a.test"), (0, b"b.test")],
        &[(0, b"a.test"), (1, b"b.test")],
        &[(0, b"a.test"), (0xff, b"")],
        &[(0, b""), (0, b"b.test")],
    ];
    for list in lists {
        let hello = Hello::nameless().extension(0, &named(list));
        hellos.push(records(&hello.message(), &[]));
    }
    for body in [&[][..], &[0], &[0, 0, 0], &[0, 4, 0, 0, 1], &[0, 4, 0, 0, 1, b'a', b'b']] {
        hellos.push(records(&Hello::nameless().extension(0, body).message(), &[]));
    }
    hellos.push(records(&Hello::named("a.test").and_named("b.test").message(), &[]));
    let unknown = Hello::named("a.test").extension(0x1234, b"x").extension(0x1234, b"y");
    hellos.push(records(&unknown.message(), &[]));
    hellos.push(records(&Hello::named("a.test").extension(41, &[0]).message(), &[]));
    hellos.extend(framed());
    hellos
}

/// One hello in records of many kinds.
fn framed() -> Vec<Vec<u8>> {
    let message = Hello::named("host.test").message();
    let raw = records(&message, &[]);
    let parts = records(&message, &[60]);
    let (first, second) = parts.split_at(65);
    let empty = [22, 3, 1, 0, 0];
    let mut framed: Vec<Vec<u8>> = vec![
        records(&message, &vec![1; message.len()]),
        [first, &empty, second].concat(),
        [&empty[..], &raw].concat(),
        [first, &[21, 3, 1, 0, 2, 1, 90], second].concat(),
        [first, &[20, 3, 1, 0, 1, 1], second].concat(),
        [first, &[23, 3, 1, 0, 1, 0], second].concat(),
        [&[20, 3, 3, 0, 1, 1][..], &raw].concat(),
        [&[21, 3, 3, 0, 2, 1, 90][..], &raw].concat(),
        [&raw[..], &records(&Hello::named("evil.test").message(), &[])].concat(),
        [&raw[..], b"\x17\x03\x03\x00\x05early"].concat(),
        [&message[..], &[0; 4]].concat(),
        raw[..raw.len() - 1].to_vec(),
    ];
    let both = [&message[..], &Hello::named("evil.test").message()].concat();
    framed.push(records(&both, &[]));
    framed.push(records(&[&message[..], &[1]].concat(), &[]));
    for version in [0x0200_u16, 0x0300, 0x0301, 0x0302, 0x0303, 0x0304, 0x03ff, 0x0400, 0xfeff] {
        let mut raw = raw.clone();
        raw[1..3].copy_from_slice(&version.to_be_bytes());
        framed.push(raw);
        let mut parts = parts.clone();
        parts[66..68].copy_from_slice(&version.to_be_bytes());
        framed.push(parts);
        let mut message = message.clone();
        message[4..6].copy_from_slice(&version.to_be_bytes());
        framed.push(records(&message, &[]));
        let tls12 = Hello::named("host.test").without(43).without(51).without(45);
        let mut message = tls12.message();
        message[4..6].copy_from_slice(&version.to_be_bytes());
        framed.push(records(&message, &[]));
    }
    // The length of the session id, and of the message in 24 bits.
    for (at, to) in [(38, 0), (38, 33), (38, 255), (1, 1), (1, 255), (2, 255), (3, 0)] {
        let mut message = message.clone();
        message[at] = to;
        framed.push(records(&message, &[]));
    }
    framed.push(records(&Hello::named("host.test").padded_to(1 << 14).message(), &[]));
    framed.push(records(&Hello::named("host.test").padded_to(60_000).message(), &[]));
    framed
}

#[test]
fn openssl_sees_the_name_that_we_see() {
    if !need("python3") {
        return;
    }
    let mut hellos: Vec<Vec<u8>> = CAPTURED.iter().map(|raw| raw.to_vec()).collect();
    hellos.extend(odd());
    for (at, captured) in CAPTURED.iter().enumerate() {
        let seeds = (0..CHANGES_A_HELLO).map(|n| (at * CHANGES_A_HELLO + n) as u64);
        hellos.extend(seeds.map(|seed| changed(captured, seed)));
    }
    let theirs = theirs(&hellos);
    let mut wrong = Vec::new();
    for (raw, theirs) in hellos.iter().zip(&theirs) {
        let ours = HelloReader::new(HELLO_BYTES_MAX).feed(raw);
        if !agree(&ours, theirs) {
            wrong.push(format!("OpenSSL: {theirs}; we: {ours:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), hellos.len(), wrong.join("\n"));
    // The comparison is of something.
    let named = theirs.iter().filter(|theirs| theirs.starts_with("name ")).count();
    assert!(named > hellos.len() / 4, "{named} of {}", hellos.len());
}

/// True if a server with OpenSSL behind us would be reached by the name that we decided by, or
/// not at all.
fn agree(ours: &Peek<'_>, theirs: &str) -> bool {
    if theirs.starts_with("refused") {
        return true;
    }
    match ours {
        Peek::Hello(hello) => match hello.sni() {
            Sni::Name(ours) => {
                theirs.strip_prefix("name ").is_some_and(|name| name.eq_ignore_ascii_case(ours))
            }
            Sni::Absent => theirs == "none",
            Sni::Malformed(fault) => stricter_on_names(*fault),
        },
        Peek::Malformed(Malformed { why, .. }) => theirs == "more" || stricter_on_form(*why),
        Peek::NeedMore { .. } | Peek::NotTls(_) => theirs == "more",
    }
}

/// Names that OpenSSL passes on as they are: docs/conformance.md says why we do not.
fn stricter_on_names(fault: SniFault) -> bool {
    use SniFault as F;
    match fault {
        F::Empty | F::TooLong | F::NonAscii | F::IpLiteral | F::BadCharacter(_) => true,
        F::TrailingDot | F::EmptyLabel | F::LabelTooLong | F::LabelHyphen => true,
        F::NumericTopLabel => true,
        F::Truncated | F::Trailing | F::EmptyList | F::NameType(_) | F::Duplicated | F::Nul => {
            false
        }
    }
}

/// OpenSSL decodes only the extensions that it has a use for, knows duplicates only of those that
/// it knows, and takes up to 32 empty records.
fn stricter_on_form(why: Fault) -> bool {
    use Field::Extension as In;
    match why {
        Fault::EmptyRecord | Fault::DuplicateExtension(_) | Fault::BinderTooShort => true,
        Fault::Truncated(In(kind)) | Fault::Trailing(In(kind)) | Fault::Empty(In(kind)) => {
            kind != SERVER_NAME
        }
        _ => false,
    }
}

//! Compares our reading with that of rustls: hellos of its own clients, captured ones, and broken
//! ones of every kind. Also the cases where we are stricter on purpose, see `docs/conformance.md`.

use super::*;
use crate::testing::differential::{Theirs, same_name_as_rustls, theirs};
use ::rustls::client::{ClientConfig, ClientConnection, EchGreaseConfig, EchMode};
use ::rustls::crypto::aws_lc_rs;
use ::rustls::version::{TLS12, TLS13};
use ::rustls::{RootCertStore, SupportedProtocolVersion};
use proptest::prelude::*;
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec;

fn client_hello(name: &str, versions: &[&'static SupportedProtocolVersion]) -> Vec<u8> {
    let mut config = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    sent(config, name)
}

fn sent(config: ClientConfig, name: &str) -> Vec<u8> {
    let name = name.to_string().try_into().unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut raw = Vec::new();
    client.write_tls(&mut raw).unwrap();
    raw
}

fn ech_hello() -> Vec<u8> {
    let suite = aws_lc_rs::hpke::ALL_SUPPORTED_SUITES[0];
    let (public_key, _) = suite.generate_key_pair().unwrap();
    let config = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
        .with_ech(EchMode::Grease(EchGreaseConfig::new(suite, public_key)))
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    sent(config, "ech.eyelet.test")
}

#[test]
fn hellos_of_rustls_clients() {
    for (versions, version_max) in
        [(&[&TLS13][..], 0x0304), (&[&TLS12], 0x0303), (&[&TLS13, &TLS12], 0x0304)]
    {
        let raw = client_hello("Rustls.Eyelet.Test", versions);
        let hello = hello(&raw);
        assert!(matches!(hello.sni(), Sni::Name(name) if *name == *"rustls.eyelet.test"));
        assert_eq!(hello.version_max(), version_max);
        assert_eq!(hello.alpn().count(), 2);
        assert_eq!(hello.raw_len(), raw.len());
        same_name_as_rustls(&raw);
    }
    let raw = client_hello("a.test", &[&TLS13]);
    // X25519MLKEM768 makes the hello longer than a packet.
    assert!(hello(&raw).key_share_groups().any(|group| group == 0x11ec));
    assert!(raw.len() > 1200);
    // A client that connects to an address sends no name.
    assert_eq!(sni_of(&client_hello("192.0.2.1", &[&TLS13])), Sni::Absent);
    let raw = ech_hello();
    assert!(hello(&raw).has_ech());
    same_name_as_rustls(&raw);
}

#[test]
fn captured_hellos_and_the_browser() {
    for raw in clients::raws().map(<[u8]>::to_vec).chain([browser().raw()]) {
        assert!(matches!(theirs(&raw), Theirs::Accepted(_)));
        same_name_as_rustls(&raw);
    }
}

fn spec_with(extension: Vec<u8>) -> Vec<u8> {
    Spec::with(&[extension, signature_algorithms(&[0x0403])]).raw()
}

#[test]
fn stricter_trailing_dot() {
    let raw = spec_with(sni("host.test."));
    assert_eq!(theirs(&raw), Theirs::Accepted(Some("host.test".into())));
    assert_eq!(sni_of(&raw), Sni::Malformed(SniFault::TrailingDot));
}

#[test]
fn stricter_ip_literal() {
    for literal in ["127.1.0.1", "2001:db8::7"] {
        let raw = spec_with(sni(literal));
        assert_eq!(theirs(&raw), Theirs::Accepted(None));
        assert_eq!(sni_of(&raw), Sni::Malformed(SniFault::IpLiteral));
    }
}

#[test]
fn stricter_unknown_name_type() {
    let raw = spec_with(ext(0, vec16([host_name("host.test"), vec![9, 0]].concat())));
    assert_eq!(theirs(&raw), Theirs::Accepted(Some("host.test".into())));
    assert_eq!(sni_of(&raw), Sni::Malformed(SniFault::NameType(9)));
}

#[test]
fn stricter_record_overflow() {
    let padding = ext(21, vec![0; (1 << 14) + 1]);
    let spec = Spec::with(&[padding, sni("host.test"), signature_algorithms(&[0x0403])]);
    let raw = record(spec.message());
    assert_eq!(theirs(&raw), Theirs::Accepted(Some("host.test".into())));
    let Peek::Malformed(malformed) = peek(&raw) else { panic!("{:?}", peek(&raw)) };
    assert!(matches!(malformed.why, Fault::RecordOverflow { .. }));
}

#[test]
fn stricter_binder_too_short() {
    let identity = [vec16([1]), vec![0; 4]].concat();
    let offer = ext(41, [vec16(identity), vec16([vec![31], vec![7; 31]].concat())].concat());
    let raw = Spec::with(&[sni("host.test"), signature_algorithms(&[0x0403]), offer]).raw();
    assert_eq!(theirs(&raw), Theirs::Accepted(Some("host.test".into())));
    assert!(matches!(peek(&raw), Peek::Malformed(m) if m.why == Fault::BinderTooShort));
}

/// Not stricter: rustls refuses these, too, each for its own reason.
#[test]
fn what_both_refuse() {
    let message = Spec::default().message();
    let cases = [
        ("two SNI extensions", Spec::with(&[sni("a.test"), sni("b.test")]).raw()),
        ("two names", spec_with(ext(0, vec16([host_name("a"), host_name("b")].concat())))),
        ("empty name", spec_with(sni(""))),
        ("empty list", spec_with(ext(0, [0, 0]))),
        ("NUL", spec_with(sni("host.test\0.evil"))),
        ("CR LF", spec_with(sni("host.test\r\n"))),
        ("300 characters", spec_with(sni("a".repeat(300)))),
        ("bytes ff fe", spec_with(sni([0xff, 0xfe]))),
        ("hyphen", spec_with(sni("-a.test"))),
        ("number", spec_with(sni("1.2.3"))),
        ("handshake bytes after it", record([&message[..], &[1]].concat())),
        ("an empty record", [record(&message[..9]), vec![22, 3, 3, 0, 0]].concat()),
        ("an alert inside", [record(&message[..9]), typed_record(21, [2, 40])].concat()),
    ];
    for (what, raw) in cases {
        assert!(matches!(theirs(&raw), Theirs::Refused(_)), "{what}: {:?}", theirs(&raw));
        same_name_as_rustls(&raw);
    }
}

fn names() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[a-zA-Z0-9._-]{0,12}".prop_map(String::into_bytes),
        "[0-9a-f:.]{1,20}".prop_map(String::into_bytes),
        "([0-9]{1,3}\\.){3}[0-9]{1,3}".prop_map(String::into_bytes),
        "[a-z]{60,65}\\.[a-z]{1,9}".prop_map(String::into_bytes),
        "([a-z]{1,63}\\.){2,6}[a-z]{1,20}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..12),
    ]
}

/// An extension that is well-formed or nearly so.
fn extensions() -> impl Strategy<Value = Vec<u8>> {
    let types = prop_oneof![0_u16..60, Just(0xfe0d), Just(0xfd00), Just(0xff01), any::<u16>()];
    let body = prop::collection::vec(any::<u8>(), 0..12);
    prop_oneof![
        names().prop_map(sni),
        prop::collection::vec((0_u8..2, names()), 0..3).prop_map(|items| {
            let items = items.into_iter().map(|(t, name)| [vec![t], vec16(name)].concat());
            ext(0, vec16(items.collect::<Vec<_>>().concat()))
        }),
        types.clone().prop_map(any_ext),
        (types, body).prop_map(|(t, body)| ext(t, body)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_extensions_read_the_same(list in prop::collection::vec(extensions(), 0..6)) {
        let list = [vec![signature_algorithms(&[0x0403])], list].concat();
        same_name_as_rustls(&Spec::with(&list).raw());
    }

    #[test]
    fn any_change_to_a_real_hello_reads_the_same(
        raw in prop::sample::select(clients::raws().map(<[u8]>::to_vec).collect::<Vec<_>>()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut raw = raw;
        for (at, to) in changes {
            let at = at.index(raw.len());
            raw[at] = to;
        }
        same_name_as_rustls(&raw);
    }

    #[test]
    fn any_records_read_the_same(
        sizes in prop::collection::vec(1_usize..400, 0..20),
        at in any::<prop::sample::Index>(),
        to in any::<u8>(),
    ) {
        let mut raw = records(&browser().message(), &sizes);
        let at = at.index(raw.len());
        raw[at] = to;
        same_name_as_rustls(&raw);
    }
}

//! Messages of the Workload API: whole ones, and ones that are cut or changed at any byte.

#![allow(clippy::unwrap_used)]

use rcgen::{CertificateParams, KeyPair, SanType};

use super::read;
use crate::properties::message_is_read_or_refused;

const ID: &str = "spiffe://one.test/edge";

/// A field of wire type 2.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let (mut bytes, mut len) = (vec![number << 3 | 2], value.len());
    while len > 0x7f {
        bytes.push(len as u8 | 0x80);
        len >>= 7;
    }
    bytes.push(len as u8);
    [&bytes, value].concat()
}

/// A certificate for an id, and its key.
fn svid(id: &str) -> (Vec<u8>, Vec<u8>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
    (params.self_signed(&key).unwrap().der().to_vec(), key.serialize_der())
}

/// A message with these federated trust domains.
fn message(id: &str, federated: &[&str]) -> Vec<u8> {
    let (certificate, key) = svid(id);
    let chain = [certificate.clone(), certificate.clone()].concat();
    let parts = [field(1, id.as_bytes()), field(2, &chain), field(3, &key), field(4, &certificate)];
    let mut message = field(1, &[parts.concat(), field(5, b"hint")].concat());
    for domain in federated {
        let entry = [field(1, domain.as_bytes()), field(2, &certificate)].concat();
        message.extend(field(3, &entry));
    }
    // A field of a later version.
    message.extend(field(15, b"new"));
    message
}

#[test]
fn a_message_is_read_with_its_bundles() {
    let parts = read(&message(ID, &["spiffe://two.test", "three.test", "spiffe://one.test"]));
    let parts = parts.unwrap();
    assert_eq!(parts.id.as_str(), ID);
    assert_eq!(parts.pair.certified.cert.len(), 2);
    let domains: Vec<String> = parts.bundles.iter().map(|(domain, _)| domain.to_string()).collect();
    assert_eq!(domains, ["one.test", "three.test", "two.test"]);
    // Nobody else speaks for the workload's own trust domain.
    let own = &parts.bundles[0].1;
    assert_eq!(own[0], parts.pair.certified.cert[1]);
    for (id, federated, fault) in [
        ("spiffe://one.test", "two.test", "a trust domain alone"),
        (ID, "Two.test", "the name of a trust domain"),
    ] {
        let error = read(&message(id, &[federated])).err().unwrap().to_string();
        assert!(error.contains(fault), "{error}");
    }
}

#[test]
fn any_cut_and_any_changed_byte_is_read_or_refused() {
    let message = message(ID, &["two.test"]);
    message_is_read_or_refused(&message);
    for at in 0..message.len() {
        message_is_read_or_refused(&message[..at]);
        for change in [1, 0x80, 0xff] {
            let mut changed = message.clone();
            changed[at] ^= change;
            message_is_read_or_refused(&changed);
        }
    }
}

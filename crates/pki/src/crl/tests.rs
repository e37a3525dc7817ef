//! Lists that an authority signs here, what they say of certificates, and broken ones.

#![allow(clippy::unwrap_used)]

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CrlDistributionPoint,
    CrlIssuingDistributionPoint, CrlScope, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SerialNumber,
};

use super::*;

const NOW: u64 = 1_700_000_000;
const LIST_SECS: u64 = 1_000;
/// ecdsa-with-SHA256, with which all here sign.
const SHA256_OID: [u8; 8] = [42, 134, 72, 206, 61, 4, 3, 2];
/// ecdsa-with-SHA224, which nobody here verifies.
const SHA224_OID: [u8; 8] = [42, 134, 72, 206, 61, 4, 3, 1];
/// prime256v1, the curve of all keys here, and prime192v1, which nobody here knows.
const P256_OID: [u8; 8] = [42, 134, 72, 206, 61, 3, 1, 7];
const P192_OID: [u8; 8] = [42, 134, 72, 206, 61, 3, 1, 1];
const ONE: &str = "http://crl.example/1.crl";
const TWO: &str = "http://crl.example/2.crl";
const OTHER: &str = "ldap:///cn=list?certificateRevocationList";

struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

fn time(secs: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(secs)
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn authority(name: &str) -> Authority {
    let (key, params) = (KeyPair::generate().unwrap(), authority_params(name));
    let certificate = params.self_signed(&key).unwrap().der().clone();
    Authority { certificate, issuer: Issuer::new(params, key) }
}

impl Authority {
    /// An authority that this one has signed.
    fn below(&self, name: &str, serial: u8) -> Authority {
        let (key, mut params) = (KeyPair::generate().unwrap(), authority_params(name));
        params.serial_number = Some(SerialNumber::from_slice(&[serial]));
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        Authority { certificate, issuer: Issuer::new(params, key) }
    }

    fn leaf(&self, serial: &[u8]) -> CertificateDer<'static> {
        self.leaf_listed_at(serial, &[])
    }

    /// A certificate with a distribution point of each URI.
    fn leaf_listed_at(&self, serial: &[u8], uris: &[&str]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["client.test".to_owned()]).unwrap();
        let point = |uri: &&str| CrlDistributionPoint { uris: vec![(*uri).to_owned()] };
        params.crl_distribution_points = uris.iter().map(point).collect();
        params.serial_number = Some(SerialNumber::from_slice(serial));
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, &self.issuer).unwrap().der().clone()
    }

    fn list(&self, serials: &[&[u8]]) -> Vec<u8> {
        self.list_for(serials, None)
    }

    /// A list for the certificates of a distribution point.
    fn list_at(&self, serials: &[&[u8]], uri: &str, scope: Option<CrlScope>) -> Vec<u8> {
        let distribution_point = CrlDistributionPoint { uris: vec![OTHER.to_owned(), uri.into()] };
        self.list_for(serials, Some(CrlIssuingDistributionPoint { distribution_point, scope }))
    }

    fn list_for(&self, serials: &[&[u8]], part: Option<CrlIssuingDistributionPoint>) -> Vec<u8> {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial),
            revocation_time: time(NOW - 10).into(),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: time(NOW - 10).into(),
            next_update: time(NOW + LIST_SECS).into(),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: part,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().der().to_vec()
    }

    fn anchor(&self) -> TrustAnchor<'_> {
        anchor_from_trusted_cert(&self.certificate).unwrap()
    }
}

fn pem(der: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN X509 CRL-----\n{text}\n-----END X509 CRL-----\n")
}

/// A certificate with other bytes at each place where it has these.
fn changed(der: &[u8], from: [u8; 8], to: [u8; 8]) -> CertificateDer<'static> {
    let mut der = der.to_vec();
    while let Some(at) = der.windows(from.len()).position(|window| *window == from) {
        der[at..at + to.len()].copy_from_slice(&to);
    }
    der.into()
}

fn at(secs: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(secs))
}

fn revocations(lists: Vec<RevocationList>, accepts_expired: bool) -> Revocations {
    Revocations::new(lists, &[], accepts_expired)
}

#[test]
fn a_listed_certificate_is_revoked_and_one_without_a_list_is_unknown() {
    let (one, other) = (authority("one"), authority("other"));
    // The second begins with a bit that DER has a zero in front of.
    let serials: [&[u8]; 3] = [&[7], &[0xff, 1], &[1; 20]];
    let lists = of_bytes(&one.list(&serials), &[other.anchor(), one.anchor()]).unwrap();
    let known = revocations(lists, false);
    assert_eq!((known.entries(), known.soonest_expiry()), (3, Some(NOW + LIST_SECS)));
    for serial in serials {
        let checked = known.check(&one.leaf(serial), &[], at(NOW));
        assert_eq!(checked, Err(RevocationFault::Revoked), "{serial:?}");
    }
    for serial in [&[8][..], &[1, 0xff], &[0x7f, 7], &[1; 19]] {
        assert_eq!(known.check(&one.leaf(serial), &[], at(NOW)), Ok(()), "{serial:?}");
    }
    assert_eq!(known.check(&other.leaf(&[8]), &[], at(NOW)), Err(RevocationFault::Unknown));
    // A client may send its authority, too, and an issuer that is revoked.
    let good = one.leaf(&[8]);
    assert_eq!(known.check(&good, std::slice::from_ref(&one.certificate), at(NOW)), Ok(()));
    assert_eq!(known.check(&good, &[one.leaf(&[7])], at(NOW)), Err(RevocationFault::Revoked));
    for broken in [&good[..20], &good[..4], &[], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]] {
        let broken = CertificateDer::from(broken.to_vec());
        assert_eq!(known.check(&broken, &[], at(NOW)), Err(RevocationFault::Malformed));
    }
}

/// A client that leaves its revoked authority out of the chain is refused, too, also where that one
/// is only below an authority on a list; one of a new authority with the same name and another key
/// is not.
#[test]
fn an_authority_that_is_on_a_list_vouches_for_nobody() {
    let root = authority("root");
    let (old, new) = (root.below("below", 7), root.below("below", 8));
    let (third, fourth) = (old.below("third", 1), new.below("fourth", 1));
    let mut fifth = third.below("fifth", 1);
    fifth.certificate = changed(&fifth.certificate, SHA256_OID, SHA224_OID);
    // Those above come last.
    let all = [&fifth, &fourth, &third, &new, &old, &root];
    let authorities = all.map(|authority| authority.certificate.clone());
    let anchors: Vec<_> = anchors(&authorities).collect();
    for (revoked, of_old) in [(7, Err(RevocationFault::Revoked)), (9, Ok(()))] {
        let lists = all.map(|authority| authority.list(&[]));
        let lists = [root.list(&[&[revoked]])].into_iter().chain(lists);
        let lists: Vec<_> = lists.collect();
        let lists = lists.iter().flat_map(|list| of_bytes(list, &anchors).unwrap());
        let known = Revocations::new(lists.collect(), &authorities, false);
        assert_eq!(known.revoked.len(), if of_old.is_err() { 3 } else { 0 });
        assert_eq!(known.revoked_authorities().is_some(), of_old.is_err());
        for below in [&old, &third, &fifth] {
            assert_eq!(known.check(&below.leaf(&[1]), &[], at(NOW)), of_old);
            let chain = std::slice::from_ref(&below.certificate);
            assert_eq!(known.check(&below.leaf(&[1]), chain, at(NOW)), of_old);
        }
        for below in [&new, &fourth] {
            assert_eq!(known.check(&below.leaf(&[1]), &[], at(NOW)), Ok(()));
        }
    }
}

/// Nobody can say here that another key of its name has signed what is below it.
#[test]
fn a_revoked_authority_whose_key_is_of_an_unknown_kind_vouches_for_nobody() {
    let root = authority("root");
    let mut old = root.below("below", 7);
    let third = old.below("third", 1);
    old.certificate = changed(&old.certificate, P256_OID, P192_OID);
    let authorities = [&root, &old, &third].map(|authority| authority.certificate.clone());
    let lists = [(&root, root.list(&[&[7]])), (&third, third.list(&[]))];
    let lists = lists.iter().flat_map(|(by, list)| of_bytes(list, &[by.anchor()]).unwrap());
    let known = Revocations::new(lists.collect(), &authorities, false);
    assert_eq!(known.revoked.len(), 2);
    assert_eq!(known.check(&third.leaf(&[1]), &[], at(NOW)), Err(RevocationFault::Revoked));
}

#[test]
fn keys_are_of_one_kind_by_their_identifiers() {
    let [curve, rsa, rsa_pss] = [
        &[6, 7, 42, 134, 72, 206, 61, 2, 1][..],
        &[6, 9, 42, 134, 72, 134, 247, 13, 1, 1, 1],
        &[6, 9, 42, 134, 72, 134, 247, 13, 1, 1, 10],
    ];
    assert_eq!(key_kind(rsa), key_kind(rsa_pss));
    assert_ne!(key_kind(rsa), key_kind(curve));
    assert_eq!(key_kind(&[6, 200]), None);
    let of_bytes = |bytes: usize| {
        let number = [&[2, 0x82, (bytes >> 8) as u8, bytes as u8][..], &vec![1; bytes]].concat();
        [&[0x30, 0x82, ((bytes + 4) >> 8) as u8, (bytes + 4) as u8][..], &number].concat()
    };
    for (bytes, is_usable) in [(128, false), (256, true), (1025, true), (1026, false)] {
        assert_eq!(has_usable_length(&of_bytes(bytes)), is_usable, "{bytes}");
    }
    assert!(has_usable_length(&[4, 1, 2]), "a point of a curve");
}

#[test]
fn an_expired_list_fails_closed_unless_it_is_accepted() {
    let one = authority("one");
    for (accepts, expected) in [(false, Err(RevocationFault::Expired)), (true, Ok(()))] {
        let lists = of_bytes(&one.list(&[&[7]]), &[one.anchor()]).unwrap();
        let known = revocations(lists, accepts);
        assert_eq!(known.check(&one.leaf(&[8]), &[], at(NOW + LIST_SECS)), Ok(()));
        let late = at(NOW + LIST_SECS + 1);
        assert_eq!(known.check(&one.leaf(&[8]), &[], late), expected);
        assert_eq!(known.check(&one.leaf(&[7]), &[], late), Err(RevocationFault::Revoked));
        assert_eq!(known.expired(time(NOW)), None);
        assert!(known.expired(time(NOW + LIST_SECS + 1)).is_some());
    }
}

#[test]
fn a_list_counts_only_if_its_authority_has_signed_it() {
    let (one, same_name) = (authority("one"), authority("one"));
    let der = one.list(&[&[7]]);
    let read = |bytes: &[u8], by: &[TrustAnchor<'_>]| of_bytes(bytes, by).map(|lists| lists.len());
    assert_eq!(read(&der, &[one.anchor()]), Ok(1));
    assert_eq!(read(pem(&der).as_bytes(), &[one.anchor()]), Ok(1));
    assert_eq!(read((pem(&der) + &pem(&der)).as_bytes(), &[one.anchor()]), Ok(2));
    assert_eq!(read(&der, &[same_name.anchor()]), Err(CrlFault::Signature));
    assert_eq!(read(&der, &[same_name.anchor(), one.anchor()]), Ok(1));
    assert_eq!(read(&der, &[authority("other").anchor()]), Err(CrlFault::NoIssuer));
    assert_eq!(read(&der, &[]), Err(CrlFault::NoIssuer));
    assert_eq!(read(&one.list(&[]), &[one.anchor()]), Ok(1), "nothing is revoked yet");
    for text in ["", "no list", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"] {
        assert_eq!(read(text.as_bytes(), &[one.anchor()]), Err(CrlFault::None), "{text}");
    }
    let broken = pem(&der).replace("-----END", "");
    assert!(matches!(read(broken.as_bytes(), &[one.anchor()]), Err(CrlFault::Malformed(_))));
}

#[test]
fn a_list_of_a_distribution_point_is_for_the_certificates_that_name_it() {
    let one = authority("one");
    let known = |lists: &[Vec<u8>]| {
        let read = lists.iter().flat_map(|list| of_bytes(list, &[one.anchor()]).unwrap());
        revocations(read.collect(), false)
    };
    let first = [one.list_at(&[&[7]], ONE, None)];
    for (lists, uris, serial, expected) in [
        (&first[..], &[ONE][..], 8, Ok(())),
        (&first, &[TWO, ONE], 8, Ok(())),
        (&first, &[ONE], 7, Err(RevocationFault::Revoked)),
        // Another part of the authority's list may have them.
        (&first, &[TWO], 8, Err(RevocationFault::Unknown)),
        (&first, &[], 8, Err(RevocationFault::Unknown)),
        (&first, &["http://crl.example/1.cr"], 8, Err(RevocationFault::Unknown)),
        (&[first[0].clone(), one.list_at(&[], TWO, None)], &[TWO], 8, Ok(())),
        (&[first[0].clone(), one.list(&[])], &[], 8, Ok(())),
        // A serial number is used once.
        (&first, &[TWO], 7, Err(RevocationFault::Revoked)),
    ] {
        let leaf = one.leaf_listed_at(&[serial], uris);
        let checked = known(lists).check(&leaf, &[], at(NOW));
        assert_eq!(checked, expected, "{} lists, {uris:?}, {serial}", lists.len());
    }
}

#[test]
fn a_list_of_users_is_not_for_authorities_and_the_other_way_round() {
    let one = authority("one");
    let leaf = one.leaf_listed_at(&[8], &[ONE]);
    // Stands for an authority in a chain.
    let above = one.leaf_listed_at(&[9], &[ONE]);
    let (users, authorities) = (CrlScope::UserCertsOnly, CrlScope::CaCertsOnly);
    for (scopes, of_leaf, of_chain) in [
        (&[users][..], Ok(()), Err(RevocationFault::Unknown)),
        (&[authorities], Err(RevocationFault::Unknown), Err(RevocationFault::Unknown)),
        (&[users, authorities], Ok(()), Ok(())),
    ] {
        let lists = scopes.iter().map(|scope| one.list_at(&[], ONE, Some(*scope)));
        let read = lists.flat_map(|list| of_bytes(&list, &[one.anchor()]).unwrap());
        let known = revocations(read.collect(), false);
        assert_eq!(known.check(&leaf, &[], at(NOW)), of_leaf, "{scopes:?}");
        let chain = std::slice::from_ref(&above);
        assert_eq!(known.check(&leaf, chain, at(NOW)), of_chain, "{scopes:?}");
    }
}

/// RFC 5280 section 5.2: a list whose critical extensions are not understood must not be used.
#[test]
fn lists_of_other_kinds_are_refused_by_name() {
    let one = authority("one");
    for (extension, said) in [
        // Their values are webpki's to read. The object identifiers: 2.5.29.28 and 2.5.29.27.
        (&[0x55, 0x1d, 0x1c, 0x30, 0x03, 0x84, 0x01, 0xff][..], "an indirect list"),
        (&[0x55, 0x1d, 0x1c, 0x30, 0x04, 0x83, 0x02, 0x06, 0x40], "for some reasons only"),
        (&[0x55, 0x1d, 0x1c, 0x30, 0x03, 0x81, 0x01, 0xff], "has no full name"),
        (&[0x55, 0x1d, 0x1c, 0x30, 0x00], "has no full name"),
        (&[0x55, 0x1d, 0x1b, 0x02, 0x01, 0x01], "only the changes of another list"),
        (&[0x55, 0x1d, 0x7f, 0x05, 0x00], "a critical extension that is not known"),
        // A full name of a mail address; one of a directory name, which is empty; a URI with the
        // scopes of both kinds.
        (
            &[0x55, 0x1d, 0x1c, 0x30, 0x07, 0xa0, 0x05, 0xa0, 0x03, 0x81, 0x01, 0x61],
            "has no URI, and Eyelet compares only these",
        ),
        (
            &[0x55, 0x1d, 0x1c, 0x30, 0x08, 0xa0, 0x06, 0xa0, 0x04, 0xa4, 0x02, 0x30, 0x00],
            "has no URI, and Eyelet compares only these",
        ),
        (
            &[
                0x55, 0x1d, 0x1c, 0x30, 0x0d, 0xa0, 0x05, 0xa0, 0x03, 0x86, 0x01, 0x61, 0x81, 0x01,
                0xff, 0x82, 0x01, 0xff,
            ],
            "no certificate can be in the scope",
        ),
    ] {
        let list = with_extension(&one.list(&[&[7]]), &extension[..3], &extension[3..]);
        let fault = of_bytes(&list, &[one.anchor()]).unwrap_err();
        assert!(fault.to_string().contains(said), "{said}: {fault}");
    }
}

/// A list with one more critical extension. Its signature is broken, which is looked at last.
fn with_extension(list: &[u8], id: &[u8], value: &[u8]) -> Vec<u8> {
    let tagged = |tag: u8, parts: &[&[u8]]| {
        let value = parts.concat();
        let [high, low] = u16::try_from(value.len()).unwrap().to_be_bytes();
        let head = match (high, low) {
            (0, ..=0x7f) => vec![tag, low],
            (0, _) => vec![tag, 0x81, low],
            _ => vec![tag, 0x82, high, low],
        };
        [head, value].concat()
    };
    let mut fields = Der(Der(list).take(SEQUENCE).unwrap().value);
    let mut signed = Der(fields.take(SEQUENCE).unwrap().value);
    let (mut kept, mut extensions) = (Vec::new(), Vec::new());
    while let Some(field) = signed.next() {
        match field.tag {
            VERSION => {
                let known = Der(field.value).take(SEQUENCE).unwrap().value;
                let critical = [0x01, 0x01, 0xff];
                let (id, value) = (tagged(0x06, &[id]), tagged(0x04, &[value]));
                let more = tagged(SEQUENCE, &[&id, &critical, &value]);
                extensions = tagged(VERSION, &[&tagged(SEQUENCE, &[known, &more])]);
            }
            _ => kept.extend_from_slice(field.whole),
        }
    }
    let signed = tagged(SEQUENCE, &[&kept, &extensions]);
    tagged(SEQUENCE, &[&signed, fields.0])
}

/// Each byte of a list that is another one: it is refused, or says the same.
#[test]
fn no_changed_list_is_accepted() {
    let one = authority("one");
    for der in [one.list(&[&[7], &[9]]), one.list_at(&[&[7]], ONE, Some(CrlScope::UserCertsOnly))] {
        check_changes(&one, &der);
    }
}

fn check_changes(one: &Authority, der: &[u8]) {
    let whole = of_bytes(der, &[one.anchor()]).unwrap();
    for at in 0..der.len() {
        for bit in [1, 0x80] {
            let mut changed = der.to_vec();
            changed[at] ^= bit;
            let read = of_bytes(&changed, &[one.anchor()]);
            assert!(read.is_err() || read.as_ref() == Ok(&whole), "byte {at}");
        }
        assert!(of_bytes(&der[..at], &[one.anchor()]).is_err(), "{at} bytes");
    }
}

/// `EYELET_CRL_ENTRIES=1000000` measures so many.
#[test]
fn an_entry_takes_twenty_bytes() {
    let entries = std::env::var("EYELET_CRL_ENTRIES").map_or(10_000, |text| text.parse().unwrap());
    let one = authority("one");
    let serials: Vec<[u8; 16]> = (0..entries as u128)
        .map(|n| {
            (n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834) | 1 << 120).to_be_bytes()
        })
        .collect();
    let all: Vec<&[u8]> = serials.iter().map(|serial| &serial[..]).collect();
    let der = one.list(&all);
    let began = std::time::Instant::now();
    let lists = of_bytes(&der, &[one.anchor()]).unwrap();
    let took = began.elapsed();
    let kept = size_of_val(&*lists[0].serials);
    let known = revocations(lists, false);
    assert_eq!(known.entries(), entries);
    assert_eq!(kept, entries * SERIAL_BYTES);
    let (leaf, began) = (one.leaf(&[8]), std::time::Instant::now());
    (0..1_000).for_each(|_| assert_eq!(known.check(&leaf, &[], at(NOW)), Ok(())));
    eprintln!("{entries} entries: {} bytes, {kept} kept, read in {took:?}", der.len());
    eprintln!("a check: {:?}", began.elapsed() / 1_000);
}

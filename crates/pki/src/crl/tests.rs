//! Lists that an authority signs here, what they say of certificates, and broken ones.

#![allow(clippy::unwrap_used)]

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CrlDistributionPoint,
    CrlIssuingDistributionPoint, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SerialNumber,
};

use super::*;

const NOW: u64 = 1_700_000_000;
const LIST_SECS: u64 = 1_000;

struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

fn time(secs: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(secs)
}

fn authority(name: &str) -> Authority {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key).unwrap().der().clone();
    Authority { certificate, issuer: Issuer::new(params, key) }
}

impl Authority {
    fn leaf(&self, serial: &[u8]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["client.test".to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from_slice(serial));
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, &self.issuer).unwrap().der().clone()
    }

    fn list(&self, serials: &[&[u8]], part: bool) -> Vec<u8> {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial),
            revocation_time: time(NOW - 10).into(),
            reason_code: None,
            invalidity_date: None,
        });
        let uris = vec!["http://crl.example/1.crl".to_owned()];
        let part = part.then_some(CrlIssuingDistributionPoint {
            distribution_point: CrlDistributionPoint { uris },
            scope: None,
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

fn at(secs: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(secs))
}

fn revocations(lists: Vec<RevocationList>, accepts_expired: bool) -> Revocations {
    Revocations { lists, accepts_expired }
}

#[test]
fn a_listed_certificate_is_revoked_and_one_without_a_list_is_unknown() {
    let (one, other) = (authority("one"), authority("other"));
    // The second begins with a bit that DER has a zero in front of.
    let serials: [&[u8]; 3] = [&[7], &[0xff, 1], &[1; 20]];
    let lists = of_bytes(&one.list(&serials, false), &[other.anchor(), one.anchor()]).unwrap();
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

#[test]
fn an_expired_list_fails_closed_unless_it_is_accepted() {
    let one = authority("one");
    for (accepts, expected) in [(false, Err(RevocationFault::Expired)), (true, Ok(()))] {
        let lists = of_bytes(&one.list(&[&[7]], false), &[one.anchor()]).unwrap();
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
    let der = one.list(&[&[7]], false);
    let read = |bytes: &[u8], by: &[TrustAnchor<'_>]| of_bytes(bytes, by).map(|lists| lists.len());
    assert_eq!(read(&der, &[one.anchor()]), Ok(1));
    assert_eq!(read(pem(&der).as_bytes(), &[one.anchor()]), Ok(1));
    assert_eq!(read((pem(&der) + &pem(&der)).as_bytes(), &[one.anchor()]), Ok(2));
    assert_eq!(read(&der, &[same_name.anchor()]), Err(CrlFault::Signature));
    assert_eq!(read(&der, &[same_name.anchor(), one.anchor()]), Ok(1));
    assert_eq!(read(&der, &[authority("other").anchor()]), Err(CrlFault::NoIssuer));
    assert_eq!(read(&der, &[]), Err(CrlFault::NoIssuer));
    assert_eq!(read(&one.list(&[], true), &[one.anchor()]), Err(CrlFault::Partial));
    assert_eq!(read(&one.list(&[], false), &[one.anchor()]), Ok(1), "nothing is revoked yet");
    for text in ["", "no list", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"] {
        assert_eq!(read(text.as_bytes(), &[one.anchor()]), Err(CrlFault::None), "{text}");
    }
    let broken = pem(&der).replace("-----END", "");
    assert!(matches!(read(broken.as_bytes(), &[one.anchor()]), Err(CrlFault::Malformed(_))));
}

/// Each byte of a list that is another one: it is refused, or says the same.
#[test]
fn no_changed_list_is_accepted() {
    let one = authority("one");
    let der = one.list(&[&[7], &[9]], false);
    let whole = of_bytes(&der, &[one.anchor()]).unwrap();
    for at in 0..der.len() {
        for bit in [1, 0x80] {
            let mut changed = der.clone();
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
    let der = one.list(&all, false);
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

//! Writes a trust store for Java: PKCS#12 (RFC 7292) without encryption or MAC, which its
//! certificates need no more than a file of PEM does. Java reads such a store from 8u301 on.

use yasna::models::ObjectIdentifier;
use yasna::{DERWriter, Tag, construct_der};

/// PKCS#7 data (RFC 2315 section 14).
const DATA: &[u64] = &[1, 2, 840, 113_549, 1, 7, 1];
/// A bag with a certificate (RFC 7292 section 4.2.3).
const CERTIFICATE_BAG: &[u64] = &[1, 2, 840, 113_549, 1, 12, 10, 1, 3];
/// The kind of a certificate: X.509.
const X509: &[u64] = &[1, 2, 840, 113_549, 1, 9, 22, 1];
/// The name of a bag. Java calls it an alias.
const FRIENDLY_NAME: &[u64] = &[1, 2, 840, 113_549, 1, 9, 20];
/// Oracle's mark of a certificate that is trusted, and what for. Java skips others.
const TRUSTED_FOR: &[u64] = &[2, 16, 840, 1, 113_894, 746_875, 1, 1];
/// Any use (RFC 5280 section 4.2.1.12).
const ANY: &[u64] = &[2, 5, 29, 37, 0];
/// The version of the format.
const VERSION: u8 = 3;

/// The store of these certificates, each in DER.
pub(super) fn trust_store<C: AsRef<[u8]>>(certificates: &[C]) -> Vec<u8> {
    let bags = construct_der(|writer| {
        writer.write_sequence_of(|writer| {
            for (number, certificate) in certificates.iter().enumerate() {
                write_bag(writer.next(), certificate.as_ref(), &format!("root {number}"));
            }
        });
    });
    let safe = construct_der(|writer| {
        writer.write_sequence_of(|writer| write_data(writer.next(), &bags));
    });
    construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_u8(VERSION);
            write_data(writer.next(), &safe);
        });
    })
}

fn write_data(writer: DERWriter<'_>, content: &[u8]) {
    writer.write_sequence(|writer| {
        writer.next().write_oid(&oid(DATA));
        writer.next().write_tagged(Tag::context(0), |writer| writer.write_bytes(content));
    });
}

fn write_bag(writer: DERWriter<'_>, certificate: &[u8], name: &str) {
    writer.write_sequence(|writer| {
        writer.next().write_oid(&oid(CERTIFICATE_BAG));
        writer.next().write_tagged(Tag::context(0), |writer| {
            writer.write_sequence(|writer| {
                writer.next().write_oid(&oid(X509));
                let value = |writer: DERWriter<'_>| writer.write_bytes(certificate);
                writer.next().write_tagged(Tag::context(0), value);
            });
        });
        writer.next().write_set_of(|writer| {
            write_attribute(writer.next(), FRIENDLY_NAME, |writer| writer.write_bmp_string(name));
            write_attribute(writer.next(), TRUSTED_FOR, |writer| writer.write_oid(&oid(ANY)));
        });
    });
}

fn write_attribute(writer: DERWriter<'_>, kind: &[u64], value: impl FnOnce(DERWriter<'_>)) {
    writer.write_sequence(|writer| {
        writer.next().write_oid(&oid(kind));
        writer.next().write_set_of(|writer| value(writer.next()));
    });
}

fn oid(parts: &[u64]) -> ObjectIdentifier {
    ObjectIdentifier::from_slice(parts)
}

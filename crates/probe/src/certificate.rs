//! The certificate and its chain: names, validity, key, and whether clients can build the chain.

use std::sync::Arc;

use eyelet_tls::client::describe_certificate;
use eyelet_tls::provider::PROVIDER;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::{CertificateError, Error, RootCertStore};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::public_key::PublicKey;

use crate::report::{Grade, ProbeReport};
use crate::target::ProbeTarget;

/// A renewal should have happened when this part of the lifetime is left: 30 of 90 days.
const RENEW_PART: i64 = 3;
/// Seconds of a day.
const DAY_SECS: i64 = 86_400;
/// Names that a line has room for.
const NAMES_SHOWN: usize = 4;
/// NIST SP 800-57: 112 bits of security.
const RSA_BITS_MIN: usize = 2048;

/// Looks at the certificates as sent, the server's own first.
pub fn look(target: &ProbeTarget, chain: &[CertificateDer<'_>], report: &mut ProbeReport) {
    let Some((leaf, others)) = chain.split_first() else { return };
    match X509Certificate::from_der(leaf) {
        Ok((_, certificate)) => {
            names(&certificate, report);
            validity(&certificate, report);
            key(&certificate, report);
        }
        Err(error) => report.unknown("certificate", error),
    }
    match verify(target, leaf, others) {
        Ok(()) => {
            let seen = format!("{}, complete", counted(chain.len()));
            report.add("chain", Grade::Good, seen);
        }
        Err(Error::InvalidCertificate(why)) => {
            let seen = format!("{}: {}", counted(chain.len()), describe_certificate(&why));
            let advice = match why {
                CertificateError::UnknownIssuer => ADVICE_ISSUER,
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => ADVICE_NAME,
                _ => ADVICE_OTHER,
            };
            let grade = if target.is_local() { Grade::Note } else { Grade::Bad };
            report.advise("chain", grade, seen, advice);
        }
        Err(error) => report.unknown("chain", error),
    }
}

fn counted(certificates: usize) -> String {
    format!("{certificates} certificate{}", if certificates == 1 { "" } else { "s" })
}

/// Verifies by the roots of this machine.
fn verify(
    target: &ProbeTarget,
    leaf: &CertificateDer<'_>,
    others: &[CertificateDer<'_>],
) -> Result<(), Error> {
    let general = |error: &dyn std::fmt::Display| Error::General(error.to_string());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), PROVIDER.clone()).build();
    let verifier = verifier.map_err(|error| general(&error))?;
    let name = target.server_name().map_err(|error| general(&error))?;
    verifier.verify_server_cert(leaf, others, &name, &[], UnixTime::now()).map(|_| ())
}

/// The names of a certificate that a client can ask for.
pub fn dns_names(leaf: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(leaf) else { return Vec::new() };
    let alternatives = certificate.subject_alternative_name().ok().flatten();
    let names = alternatives.iter().flat_map(|list| &list.value.general_names);
    let dns = names.filter_map(|name| match name {
        // One below it is as good as another.
        GeneralName::DNSName(name) => Some(name.replacen('*', "www", 1)),
        _ => None,
    });
    dns.collect()
}

fn names(certificate: &X509Certificate<'_>, report: &mut ProbeReport) {
    let alternatives = certificate.subject_alternative_name().ok().flatten();
    let names: Vec<String> = alternatives
        .iter()
        .flat_map(|list| &list.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => Some(address(bytes)),
            _ => None,
        })
        .collect();
    let shown = names.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => report.advise("names", Grade::Bad, "no subjectAltName", ADVICE_SAN),
        1..=NAMES_SHOWN => report.add("names", Grade::Good, shown),
        many => {
            report.add("names", Grade::Good, format!("{shown} and {} more", many - NAMES_SHOWN))
        }
    }
}

fn address(bytes: &[u8]) -> String {
    match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
        (Ok(four), _) => std::net::Ipv4Addr::from(four).to_string(),
        (_, Ok(six)) => std::net::Ipv6Addr::from(six).to_string(),
        _ => "an odd address".into(),
    }
}

fn validity(certificate: &X509Certificate<'_>, report: &mut ProbeReport) {
    let valid = certificate.validity();
    let now = i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX);
    match expiry(valid.not_before.timestamp(), valid.not_after.timestamp(), now) {
        (Grade::Good, seen, _) => report.add("expiry", Grade::Good, seen),
        (grade, seen, advice) => report.advise("expiry", grade, seen, advice),
    }
}

/// The verdict about a lifetime, in seconds since 1970.
fn expiry(start: i64, end: i64, now: i64) -> (Grade, String, &'static str) {
    let left = end.saturating_sub(now);
    let days = left.div_euclid(DAY_SECS);
    if left < 0 {
        return (Grade::Bad, format!("{} days ago", -days), ADVICE_RENEW);
    }
    if start > now {
        let days = start.saturating_sub(now) / DAY_SECS;
        return (Grade::Bad, format!("valid only in {days} days"), ADVICE_START);
    }
    let is_late = left < end.saturating_sub(start) / RENEW_PART;
    let grade = if is_late { Grade::Note } else { Grade::Good };
    (grade, format!("in {days} days"), ADVICE_RENEW)
}

fn key(certificate: &X509Certificate<'_>, report: &mut ProbeReport) {
    let public = certificate.public_key();
    match public.parsed() {
        Ok(PublicKey::RSA(rsa)) if rsa.key_size() < RSA_BITS_MIN => {
            let seen = format!("RSA, {} bits", rsa.key_size());
            report.advise("key", Grade::Bad, seen, ADVICE_KEY);
        }
        Ok(PublicKey::RSA(rsa)) => {
            let seen = format!("RSA, {} bits", rsa.key_size());
            report.advise("key", Grade::Note, seen, ADVICE_KEY);
        }
        Ok(PublicKey::EC(point)) => {
            report.add("key", Grade::Good, format!("ECDSA, {} bits", point.key_size()));
        }
        _ => {
            let algorithm = public.algorithm.algorithm.to_id_string();
            report.add("key", Grade::Note, format!("algorithm {algorithm}"));
        }
    }
}

const ADVICE_ISSUER: &str =
    "send the intermediate certificates too, or install the authority at the clients";
const ADVICE_NAME: &str = "add this name to the certificate, or probe with --name";
const ADVICE_OTHER: &str = "clients that verify it will end the handshake";
const ADVICE_START: &str = "clients refuse it until then: set the clock of who issued it";
const ADVICE_RENEW: &str = "renew it; by ACME it renews itself";
const ADVICE_SAN: &str = "clients ignore the subject (RFC 9525): add subjectAltName";
const ADVICE_KEY: &str = "ECDSA P-256 signs with a tenth of the CPU of RSA";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_is_late_at_a_third_of_the_lifetime() {
        for (start, end, grade, seen) in [
            (-50, 40, Grade::Good, "in 40 days"),
            (-61, 29, Grade::Note, "in 29 days"),
            (-2, 4, Grade::Good, "in 4 days"),
            (-5, 1, Grade::Note, "in 1 days"),
            (-300, 98, Grade::Note, "in 98 days"),
            (2, 92, Grade::Bad, "valid only in 2 days"),
            (-90, -1, Grade::Bad, "1 days ago"),
        ] {
            let now = 1_800_000_000;
            let found = expiry(now + start * DAY_SECS, now + end * DAY_SECS, now);
            assert_eq!((found.0, &*found.1), (grade, seen), "{start} {end}");
        }
    }
}

//! Reads PEM as OpenSSL does, so that a file that nginx, HAProxy, Node or Python load is loaded
//! here, too. This is the only reader of PEM.

use rustls_pki_types::pem::{Error, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::asn1_rs::{Any, FromDer};
use zeroize::Zeroizing;

/// A PEM text (RFC 7468). It may contain a key, so it is wiped when dropped.
pub struct Pem(Zeroizing<Vec<u8>>);

impl Pem {
    /// Takes a text with any line ends, blanks around its lines, and text between its sections.
    pub fn new(text: &[u8]) -> Self {
        // Each line gets a line end, and a line with two boundaries becomes two. The buffer never
        // grows, so no part of a key stays behind.
        let room = text.len() + text.len() / BEGIN.len() + 1;
        let mut lines = Zeroizing::new(Vec::with_capacity(room));
        for line in text.split(|byte| matches!(byte, b'\n' | b'\r')) {
            let line = bare(line);
            // `cat` joins a file without a line end at its end and the next one like this:
            // "-----END CERTIFICATE----------BEGIN CERTIFICATE-----".
            let begin = line.windows(BEGIN.len()).position(|window| window == BEGIN);
            let joint = begin.filter(|_| line.starts_with(END)).unwrap_or(0);
            let (end, rest) = line.split_at(joint);
            if !end.is_empty() {
                push(&mut lines, end);
            }
            push(&mut lines, rest);
        }
        Self(lines)
    }

    /// All certificates, in their order.
    ///
    /// # Errors
    /// If a section is broken.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, Error> {
        CertificateDer::pem_slice_iter(&self.0).map(|certificate| certificate.map(alone)).collect()
    }

    /// The text, with one boundary a line.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// The first certificate. What follows it is not read.
    ///
    /// # Errors
    /// If there is none, or a section before its end is broken.
    pub fn certificate(&self) -> Result<CertificateDer<'static>, Error> {
        CertificateDer::from_pem_slice(&self.0).map(alone)
    }

    /// The first key: PKCS#8, SEC1 or PKCS#1.
    ///
    /// # Errors
    /// If there is none, or a section before its end is broken.
    pub fn key(&self) -> Result<Zeroizing<PrivateKeyDer<'static>>, Error> {
        PrivateKeyDer::from_pem_slice(&self.0).map(Zeroizing::new)
    }
}

/// Adds a line. A boundary with one of OpenSSL's other labels of a certificate gets the usual one.
fn push(lines: &mut Vec<u8>, line: &[u8]) {
    for edge in [BEGIN, END] {
        let label = line.strip_prefix(edge);
        let rest = label.and_then(|label| LABELS.iter().find_map(|own| label.strip_prefix(*own)));
        if let Some(rest) = rest {
            lines.extend([edge, CERTIFICATE, rest, b"\n"].concat());
            return;
        }
    }
    lines.extend(line);
    lines.push(b'\n');
}

/// The line without blanks around it. Each of several joined files may begin with a byte order
/// mark.
fn bare(line: &[u8]) -> &[u8] {
    line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line).trim_ascii()
}

/// The certificate without what follows it. In a TRUSTED CERTIFICATE, OpenSSL's trust settings do.
fn alone(certificate: CertificateDer<'static>) -> CertificateDer<'static> {
    let len = Any::from_der(&certificate).map(|(rest, _)| certificate.len() - rest.len());
    match len {
        Ok(len) if len < certificate.len() => certificate[..len].to_vec().into(),
        // One that cannot be parsed is refused by whoever uses it.
        _ => certificate,
    }
}

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
const CERTIFICATE: &[u8] = b"CERTIFICATE-----";
/// OpenSSL's PEM_STRING_X509_OLD and PEM_STRING_X509_TRUSTED.
const LABELS: [&[u8]; 2] = [b"X509 CERTIFICATE-----", b"TRUSTED CERTIFICATE-----"];
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn section(label: &str, der: &[u8]) -> String {
        let text = BASE64_STANDARD.encode(der);
        let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
    }

    /// Two certificates and a key, however they are written.
    #[test]
    fn other_writings_of_the_same() {
        let key = KeyPair::generate().unwrap();
        let [one, two] = ["one.test", "two.test"].map(|name| {
            let params = CertificateParams::new([name.to_owned()]).unwrap();
            params.self_signed(&key).unwrap().der().clone()
        });
        let settings = b"\x30\x0c\x30\x0a\x06\x08\x2b\x06\x01\x05\x05\x07\x03\x01";
        let trusted = [&one[..], settings].concat();
        let of = |label| section(label, &one) + &section(label, &two);
        let plain = of("CERTIFICATE");
        let private = key.serialize_pem();
        let parameters = section("EC PARAMETERS", b"\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07");
        let whole = format!("{plain}{parameters}{private}");
        let joined = [&section("CERTIFICATE", &one), &section("CERTIFICATE", &two), &private];
        for (name, text) in [
            ("plain", whole.clone()),
            ("CRLF", whole.replace('\n', "\r\n")),
            ("CR", whole.replace('\n', "\r")),
            ("blank lines", whole.replace('\n', "\n\n")),
            ("blanks at the ends of lines", whole.replace('\n', " \t\n")),
            ("blanks before lines", format!("  {}", whole.replace('\n', "\n  "))),
            ("no line end at the end", whole.trim_end().to_owned()),
            ("joined without line ends", joined.map(|text| text.trim_end()).concat()),
            ("a mark", format!("\u{feff}{whole}")),
            ("a mark each", joined.map(|text| format!("\u{feff}{text}")).concat()),
            ("a mark each, joined", joined.map(|t| format!("\u{feff}{}", t.trim_end())).concat()),
            (
                "text between",
                joined.map(|t| format!("subject=CN = one\n\n{t}Bag Attributes\n")).concat(),
            ),
            ("an old label", of("X509 CERTIFICATE") + &private),
            (
                "trusted",
                section("TRUSTED CERTIFICATE", &trusted) + &section("CERTIFICATE", &two) + &private,
            ),
            ("trusted without settings", of("TRUSTED CERTIFICATE") + &private),
            ("the key first", format!("{private}{plain}")),
        ] {
            let pem = Pem::new(text.as_bytes());
            assert_eq!(pem.certificates().unwrap(), [one.clone(), two.clone()], "{name}");
            assert_eq!(pem.certificate().unwrap(), one, "{name}");
            assert_eq!(pem.key().unwrap().secret_der(), key.serialized_der(), "{name}");
        }
    }

    #[test]
    fn broken_sections() {
        let section = section("CERTIFICATE", b"\x30\x03\x02\x01\x01");
        for (name, text) in [
            ("no end", section.replace("-----END", "")),
            ("another end", section.replace("END CERTIFICATE", "END PRIVATE KEY")),
            ("no base64", section.replace("MA", "M!")),
            ("an open boundary", section.replace("BEGIN CERTIFICATE-----", "BEGIN CERTIFICATE--")),
        ] {
            assert!(Pem::new(text.as_bytes()).certificates().is_err(), "{name}");
        }
        for text in [&b""[..], b"-----BEGIN", b"-----END CERTIFICATE-----", b"\xff\xfe-\0", b"\n\n"]
        {
            assert!(Pem::new(text).certificates().unwrap().is_empty(), "{text:?}");
            assert!(matches!(Pem::new(text).key(), Err(Error::NoItemsFound)), "{text:?}");
        }
    }
}

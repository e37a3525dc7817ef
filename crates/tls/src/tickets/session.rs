//! The client's certificates in a session, as rustls encodes it for a ticket.
//!
//! rustls believes the certificates in a ticket without another check. They may have expired, or
//! `client_ca` may have changed. rustls does not show them before it resumes, so this reads its
//! encoding. If that changes, nothing is read, and each handshake with a client certificate is a
//! full one: `tests.rs` and the end-to-end tests notice.

use rustls_pki_types::CertificateDer;

/// The certificates of a session, leaf first. `None`: it has none, or rustls encodes sessions in
/// another way.
pub fn client_certificates(session: &[u8]) -> Option<Vec<CertificateDer<'_>>> {
    let mut rest = Rest(session);
    // The name in the hello.
    rest.optional(1)?;
    // Version and suite.
    rest.take(2 + 2)?;
    // The master secret, or the resumption secret.
    rest.vector(1)?;
    // Whether the extended master secret was used.
    rest.take(1)?;
    let certificates = rest.optional(3)?;
    // The protocol that ALPN selected.
    rest.optional(1)?;
    // Data of the application.
    rest.vector(2)?;
    // When it was sealed, and an offset of its age.
    rest.take(8 + 4)?;
    if !rest.0.is_empty() {
        return None;
    }
    let mut certificates = Rest(certificates?);
    let mut chain = Vec::new();
    while !certificates.0.is_empty() {
        chain.push(CertificateDer::from(certificates.vector(3)?));
    }
    Some(chain).filter(|chain| !chain.is_empty())
}

/// The bytes that are not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// A vector (RFC 8446 section 3.4) with a length of so many bytes.
    fn vector(&mut self, length_bytes: usize) -> Option<&'a [u8]> {
        let length = self.take(length_bytes)?;
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        self.take(length)
    }

    /// A byte that says whether a vector follows, and the vector.
    fn optional(&mut self, length_bytes: usize) -> Option<Option<&'a [u8]>> {
        match self.take(1)? {
            [0] => Some(None),
            [1] => self.vector(length_bytes).map(Some),
            _ => None,
        }
    }
}

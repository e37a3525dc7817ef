//! The evidence that a connection keeps, and how the access log shows it.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;

use eyelet_memory::interner::Heap;

/// The evidence that one connection was decided on. What is known of a name is one allocation for
/// its connections and the cache, so they are the same if the allocations are. Connections that
/// come from another process share none, so theirs are the same if the values are.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    dns: Option<Arc<AddressEvidence>>,
    certificate: Option<Arc<CertificateEvidence>>,
    unknown: Box<[Box<str>]>,
    dns_agrees: Option<bool>,
    is_imported: bool,
}

/// The addresses of a name, for a log entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AddressEvidence {
    /// The addresses of the last answer, at most eight.
    pub addresses: Box<[IpAddr]>,
    /// The time at which that answer arrived.
    pub at_unix_ms: u64,
}

/// The facts of a certificate, for a log entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CertificateEvidence {
    /// The names, at most eight.
    pub names: Box<[Box<str>]>,
    /// The issuer's whole name.
    pub issuer: Box<str>,
    /// The fault of it.
    pub fault: Option<Box<str>>,
    /// The time at which the server showed it.
    pub at_unix_ms: u64,
}

/// Times of imported evidence are rounded to this, so that connections which come within a second
/// share it. Nobody reads an age more exactly.
const IMPORTED_STEP_MS: u64 = 100;

impl Heap for Evidence {
    /// Shared memory included: it lives as long as the last user.
    fn heap_bytes(&self) -> usize {
        let texts = |texts: &[Box<str>]| {
            size_of_val(texts) + texts.iter().map(|text| text.len()).sum::<usize>()
        };
        let dns =
            self.dns().map_or(0, |logged| size_of_val(logged) + size_of_val(&logged.addresses[..]));
        let certificate = self.certificate().map_or(0, |logged| {
            let fault = logged.fault.as_ref().map_or(0, |fault| fault.len());
            size_of_val(logged) + texts(&logged.names) + logged.issuer.len() + fault
        });
        dns + certificate + texts(&self.unknown)
    }
}

impl Evidence {
    /// Notes what DNS says: its answer if there was one, whether the address is the name's, and why
    /// that is unknown.
    pub fn note_dns(
        &mut self,
        answer: Option<Arc<AddressEvidence>>,
        agrees: Option<bool>,
        fault: Option<&str>,
    ) {
        self.dns = answer;
        self.dns_agrees = agrees;
        if let Some(why) = fault {
            self.note_unknown(&format!("dns: {why}"));
        }
    }

    /// Notes the certificate that the destination has shown, or why there is none.
    pub fn note_certificate(&mut self, shown: Result<Arc<CertificateEvidence>, &str>) {
        match shown {
            Ok(shown) => self.certificate = Some(shown),
            Err(why) => self.note_unknown(&format!("certificate: {why}")),
        }
    }

    /// Notes evidence that could not even be asked for.
    pub fn note_unknown(&mut self, why: &str) {
        let mut unknown = std::mem::take(&mut self.unknown).into_vec();
        unknown.push(why.into());
        self.unknown = unknown.into();
    }

    /// The unknown evidence, and why it is unknown.
    pub fn unknown(&self) -> &[Box<str>] {
        &self.unknown
    }

    /// Evidence of these parts, which come from another process.
    pub(crate) fn of(
        dns: Option<Arc<AddressEvidence>>,
        dns_agrees: Option<bool>,
        certificate: Option<Arc<CertificateEvidence>>,
        unknown: Vec<Box<str>>,
    ) -> Self {
        Self { dns, certificate, unknown: unknown.into(), dns_agrees, is_imported: true }
    }

    /// Counts the times by another clock, if it is imported: `to` is the time at which that one
    /// shows `from`.
    pub(crate) fn follow_clock(&mut self, from_unix_ms: u64, to_unix_ms: u64) {
        if !self.is_imported {
            return;
        }
        let moved = |at_unix_ms| {
            let at = to_unix_ms.saturating_sub(from_unix_ms.saturating_sub(at_unix_ms));
            at / IMPORTED_STEP_MS * IMPORTED_STEP_MS
        };
        if let Some(dns) = &mut self.dns {
            let dns = Arc::make_mut(dns);
            dns.at_unix_ms = moved(dns.at_unix_ms);
        }
        if let Some(shown) = &mut self.certificate {
            let shown = Arc::make_mut(shown);
            shown.at_unix_ms = moved(shown.at_unix_ms);
        }
    }

    /// The addresses of the name.
    pub(crate) fn dns(&self) -> Option<&AddressEvidence> {
        self.dns.as_deref()
    }

    /// True if the address is the name's.
    pub(crate) fn dns_agrees(&self) -> Option<bool> {
        self.dns_agrees
    }

    /// The certificate that the destination has shown.
    pub(crate) fn certificate(&self) -> Option<&CertificateEvidence> {
        self.certificate.as_deref()
    }

    /// Its form in a log entry.
    pub fn line(&self, started_unix_ms: u64) -> EvidenceLine<'_> {
        let age = |at_unix_ms| started_unix_ms.saturating_sub(at_unix_ms);
        EvidenceLine {
            dns: self.dns().map(|logged| &*logged.addresses),
            dns_agrees: self.dns_agrees,
            age_ms: self.dns().map(|logged| age(logged.at_unix_ms)),
            certificate: self.certificate().map(|logged| CertificateLine {
                names: &logged.names,
                issuer: &logged.issuer,
                valid: logged.fault.is_none(),
                fault: logged.fault.as_deref(),
                age_ms: age(logged.at_unix_ms),
            }),
            unknown: &self.unknown,
        }
    }
}

/// The `evidence` of a log entry.
#[derive(Serialize)]
pub struct EvidenceLine<'a> {
    dns: Option<&'a [IpAddr]>,
    dns_agrees: Option<bool>,
    age_ms: Option<u64>,
    certificate: Option<CertificateLine<'a>>,
    unknown: &'a [Box<str>],
}

#[derive(Serialize)]
struct CertificateLine<'a> {
    names: &'a [Box<str>],
    issuer: &'a str,
    valid: bool,
    fault: Option<&'a str>,
    age_ms: u64,
}

impl PartialEq for Evidence {
    fn eq(&self, other: &Self) -> bool {
        fn is_same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
            one.map(Arc::as_ptr) == other.map(Arc::as_ptr)
        }
        let are_shared = || {
            is_same(self.dns.as_ref(), other.dns.as_ref())
                && is_same(self.certificate.as_ref(), other.certificate.as_ref())
        };
        let are_equal = || self.dns == other.dns && self.certificate == other.certificate;
        self.is_imported == other.is_imported
            && self.dns_agrees == other.dns_agrees
            && self.unknown == other.unknown
            && if self.is_imported { are_equal() } else { are_shared() }
    }
}

impl Eq for Evidence {}

impl Hash for Evidence {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.dns_agrees.hash(state);
        self.unknown.hash(state);
        if self.is_imported {
            self.dns.hash(state);
            self.certificate.hash(state);
        } else {
            self.dns.as_ref().map(Arc::as_ptr).hash(state);
            self.certificate.as_ref().map(Arc::as_ptr).hash(state);
        }
    }
}

//! The matchers on evidence: whether the name in the hello is verified, and which certificate the
//! destination shows.

use eyelet_wire::connect::{Target, TargetHost};
use eyelet_wire::hello::{HelloFacts, HelloName};

use crate::facts::{CertificateFacts, Fact, Facts};
use crate::matcher::{Matcher, Outcome, SortedList, listed, missing};
use crate::names::NamePattern;

/// Evidence for a name, from cheap to expensive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EvidenceKind {
    /// The client named it in a CONNECT request.
    Connect,
    /// The destination is among the addresses of the name.
    Dns,
    /// The destination shows a certificate that is valid for the name.
    Certificate,
}

/// The matchers on evidence. One that is empty or `None` always holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EvidenceMatchers {
    /// Hellos whose name is verified, or is not, by any of these.
    pub sni_verified: Option<(bool, SortedList<EvidenceKind>)>,
    /// Destinations whose certificate has one of these names.
    pub certificate_names: SortedList<NamePattern>,
    /// Destinations whose certificate's issuer has one of these names.
    pub certificate_issuer: SortedList<Box<str>>,
    /// Destinations whose certificate is valid for the name, or is not.
    pub certificate_valid: Option<bool>,
}

/// The verdict of evidence about a name.
enum SniVerdict {
    Known(bool),
    Unknown,
    Needs(Fact),
}

impl EvidenceKind {
    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Dns => "dns",
            Self::Certificate => "certificate",
        }
    }
}

impl EvidenceMatchers {
    pub(crate) fn asks(&self, matcher: Matcher) -> bool {
        match matcher {
            Matcher::SniVerified => self.sni_verified.is_some(),
            Matcher::CertificateNames => !self.certificate_names.is_empty(),
            Matcher::CertificateIssuer => !self.certificate_issuer.is_empty(),
            Matcher::CertificateValid => self.certificate_valid.is_some(),
            _ => false,
        }
    }

    /// True if it needs the destination's certificate.
    pub(crate) fn asks_certificate(&self) -> bool {
        let of_certificate =
            [Matcher::CertificateNames, Matcher::CertificateIssuer, Matcher::CertificateValid];
        self.asks_name(EvidenceKind::Certificate) || of_certificate.iter().any(|m| self.asks(*m))
    }

    /// True if this evidence may verify the name.
    pub(crate) fn asks_name(&self, evidence: EvidenceKind) -> bool {
        self.sni_verified.as_ref().is_some_and(|(_, all)| all.contains(&evidence))
    }

    /// Checked from cheap to expensive, like all matchers.
    pub(crate) fn check(&self, hello: &HelloFacts<'_>, facts: &Facts<'_>, refuse: bool) -> Outcome {
        if let Some((wanted, evidence)) = &self.sni_verified {
            match sni_verdict(hello.name, evidence, facts) {
                SniVerdict::Known(known) if known == *wanted => {}
                SniVerdict::Unknown if refuse => {}
                SniVerdict::Known(_) | SniVerdict::Unknown => {
                    return Outcome::Fails(Matcher::SniVerified);
                }
                SniVerdict::Needs(fact) => return Outcome::Needs(fact),
            }
        }
        let first = [Matcher::CertificateValid, Matcher::CertificateNames]
            .into_iter()
            .chain([Matcher::CertificateIssuer])
            .find(|matcher| self.asks(*matcher));
        match (first, facts.certificate) {
            (None, _) => Outcome::Holds,
            (Some(_), Some(certificate)) => self.check_certificate(certificate, refuse),
            (Some(matcher), None) => missing(facts, Fact::Certificate, matcher, refuse),
        }
    }

    fn check_certificate(&self, certificate: &CertificateFacts, refuse: bool) -> Outcome {
        if self.certificate_valid.is_some_and(|valid| certificate.valid != valid) {
            return Outcome::Fails(Matcher::CertificateValid);
        }
        // Anyone can put any name into their own certificate. Its contents count only if it is
        // trusted, or if they count against the connection.
        let counts = certificate.trusted || refuse || self.certificate_valid == Some(false);
        let names = &certificate.names;
        let has_name = |pattern: &NamePattern| names.iter().any(|name| is_for(name, pattern));
        let is_issuer = |name: &str| certificate.issuer.iter().any(|issuer| **issuer == *name);
        let (listed, issuers) = (&self.certificate_names, &self.certificate_issuer);
        match counts {
            false if !listed.is_empty() => Outcome::Fails(Matcher::CertificateNames),
            false if !issuers.is_empty() => Outcome::Fails(Matcher::CertificateIssuer),
            _ if !listed.is_empty() && !listed.iter().any(has_name) => {
                Outcome::Fails(Matcher::CertificateNames)
            }
            _ if !issuers.is_empty() && !issuers.iter().any(|name| is_issuer(name)) => {
                Outcome::Fails(Matcher::CertificateIssuer)
            }
            _ => Outcome::Holds,
        }
    }

    /// True if these hold whenever those of `other` do. Only for two rules that both refuse, or
    /// both do not.
    pub(crate) fn cover(&self, other: &Self) -> bool {
        let sni_verdict = match (&self.sni_verified, &other.sni_verified) {
            (None, _) => true,
            (Some(_), None) => false,
            // More kinds of evidence verify more names, and leave fewer unverified.
            (Some((true, wide)), Some((true, narrow))) => narrow.iter().all(|e| wide.contains(e)),
            (Some((false, wide)), Some((false, narrow))) => wide.iter().all(|e| narrow.contains(e)),
            (Some(_), Some(_)) => false,
        };
        let reads = !self.certificate_names.is_empty() || !self.certificate_issuer.is_empty();
        let as_strict = !reads
            || other.certificate_valid != Some(false)
            || self.certificate_valid == Some(false);
        sni_verdict
            && as_strict
            && (self.certificate_valid.is_none()
                || self.certificate_valid == other.certificate_valid)
            && self.certificate_names.covers(&other.certificate_names)
            && self.certificate_issuer.covers(&other.certificate_issuer)
    }

    pub(crate) fn text(&self, matcher: Matcher) -> String {
        match (matcher, &self.sni_verified) {
            (Matcher::SniVerified, Some((wanted, evidence))) => {
                let evidence = listed(evidence.iter().map(|evidence| evidence.name()));
                format!("{wanted} by {evidence}")
            }
            (Matcher::CertificateNames, _) => listed(self.certificate_names.iter()),
            (Matcher::CertificateIssuer, _) => listed(self.certificate_issuer.iter()),
            (Matcher::CertificateValid, _) => {
                self.certificate_valid.is_some_and(|valid| valid).to_string()
            }
            _ => String::new(),
        }
    }
}

/// A name is verified as soon as one kind of evidence confirms it, and not verified when all have
/// been asked and none does. A hello without a name, or with a malformed one, has no verified name.
fn sni_verdict(name: HelloName<'_>, evidence: &[EvidenceKind], facts: &Facts<'_>) -> SniVerdict {
    let HelloName::Name(name) = name else { return SniVerdict::Known(false) };
    let is_name =
        |target: &Target| matches!(&target.host, TargetHost::Name(host) if **host == *name);
    let mut unknown = false;
    for evidence in evidence {
        let (known, fact) = match evidence {
            EvidenceKind::Connect => (facts.connect.map(is_name), None),
            EvidenceKind::Dns => (facts.dns_agrees, Some(Fact::DnsEvidence)),
            EvidenceKind::Certificate => {
                (facts.certificate.map(|c| c.valid), Some(Fact::Certificate))
            }
        };
        match known {
            Some(true) => return SniVerdict::Known(true),
            Some(false) => {}
            None => match fact.filter(|fact| !facts.unknown.contains(*fact)) {
                Some(fact) => return SniVerdict::Needs(fact),
                None => unknown = true,
            },
        }
    }
    if unknown { SniVerdict::Unknown } else { SniVerdict::Known(false) }
}

/// True if a certificate with this name may serve a name of the pattern.
fn is_for(name: &str, pattern: &NamePattern) -> bool {
    match pattern {
        NamePattern::Absent => false,
        NamePattern::Exact(exact) => {
            let any_label = name.strip_prefix("*.");
            *name == **exact
                || any_label
                    .is_some_and(|rest| exact.split_once('.').is_some_and(|(_, r)| r == rest))
        }
        NamePattern::Suffix(suffix) => name
            .strip_suffix(&**suffix)
            .is_some_and(|label| label.len() > 1 && label.ends_with('.')),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names_of_certificates() {
        for (name, pattern, expected) in [
            ("a.example", "a.example", true),
            ("*.example.com", "a.example.com", true),
            ("*.example.com", "a.b.example.com", false),
            ("*.example.com", "example.com", false),
            ("*.example.com", "*.example.com", true),
            ("a.b.example.com", "*.example.com", true),
            ("example.com", "*.example.com", false),
            (".example.com", "*.example.com", false),
            ("badexample.com", "*.example.com", false),
            ("a.example", "", false),
        ] {
            assert_eq!(is_for(name, &pattern.parse().unwrap()), expected, "{name} {pattern}");
        }
    }
}
